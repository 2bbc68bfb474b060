package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	tryWithin    = 2 * time.Second // an upstream's answer
	rounds       = 2               // over all upstreams
	askWithin    = 8 * time.Second // all tries of a question together
	restUpstream = 10 * time.Second
	maxUpstreams = 4
	udpSize      = 1232 // bytes of a packet that pass everywhere (EDNS0)
)

var errNoUpstream = errors.New("there is no resolver to ask")

// upstreams are the resolvers of the host, in order.
type upstreams struct{ all []*upstream }

type upstream struct {
	addr netip.AddrPort
	// rest is when it is asked again in its turn, in nanoseconds of a steady clock, since it did not answer. Zero: it is well.
	rest atomic.Int64
}

// newUpstreams leaves out what is the server itself.
func newUpstreams(addrs []netip.AddrPort, own netip.AddrPort) *upstreams {
	u := &upstreams{}
	for _, a := range addrs {
		a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
		if a.IsValid() && a != own && len(u.all) < maxUpstreams {
			u.all = append(u.all, &upstream{addr: a})
		}
	}
	return u
}

// order returns the resolvers with those at the end that do not answer. When the rest of one is over, one question finds out.
func (u *upstreams) order(now int64) []*upstream {
	out := make([]*upstream, 0, len(u.all))
	var last []*upstream
	for _, s := range u.all {
		rest := s.rest.Load()
		if rest == 0 || now > rest && s.rest.CompareAndSwap(rest, now+int64(restUpstream)) {
			out = append(out, s)
		} else {
			last = append(last, s)
		}
	}
	return append(out, last...)
}

// ask has a question answered by one of them. The answer is to that very question, and of nobody else; its id is not the asker's.
func (u *upstreams) ask(ctx context.Context, question *dns.Msg, within time.Duration, clock func() int64) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	err := errNoUpstream
	for range rounds {
		var unable *dns.Msg
		for _, s := range u.order(clock()) {
			var answer *dns.Msg
			if answer, err = s.ask(ctx, question, within); err != nil {
				if ctx.Err() != nil {
					return nil, err
				}
				s.rest.Store(clock() + int64(restUpstream))
				continue
			}
			s.rest.Store(0)
			switch answer.Rcode {
			case dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeNotImplemented, dns.RcodeFormatError:
				unable = answer // perhaps another one can
			default:
				return answer, nil
			}
		}
		if unable != nil {
			return unable, nil
		}
	}
	return nil, err
}

// ask asks one upstream over UDP, and over TCP what does not fit.
func (s *upstream) ask(ctx context.Context, question *dns.Msg, within time.Duration) (*dns.Msg, error) {
	answer, err := s.exchange(ctx, "udp", question, within)
	if err != nil || !answer.Truncated {
		return answer, err
	}
	if whole, err := s.exchange(ctx, "tcp", question, within); err == nil {
		return whole, nil
	}
	return answer, nil
}

// exchange sends a question from a port of its own under an id of its own, and waits for its answer.
func (s *upstream) exchange(ctx context.Context, network string, question *dns.Msg, within time.Duration) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, s.addr.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	q := *question
	q.Id = dns.Id()
	packet, err := q.Pack()
	if err != nil {
		return nil, err
	}
	send, receive := writeFramed, readFramed
	if network == "udp" {
		send, receive = writePacket, readPacket
	}
	if err := send(conn, packet); err != nil {
		return nil, err
	}
	for {
		packet, err := receive(conn)
		if err != nil {
			return nil, err
		}
		if answer := answerTo(&q, packet); answer != nil {
			return answer, nil
		}
	}
}

func writePacket(w io.Writer, packet []byte) error {
	_, err := w.Write(packet)
	return err
}

func readPacket(r io.Reader) ([]byte, error) {
	buf := make([]byte, 4096) // some send more than they are asked for
	n, err := r.Read(buf)
	return buf[:n], err
}

// answerTo returns the message in a packet when it is an answer to a question, else nil.
func answerTo(q *dns.Msg, packet []byte) *dns.Msg {
	if len(packet) < headerLen || binary.BigEndian.Uint16(packet) != q.Id || packet[2]&flagQR == 0 {
		return nil
	}
	var m dns.Msg
	if m.Unpack(packet) != nil || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return nil
	}
	is, want := m.Question[0], q.Question[0]
	if is.Qtype != want.Qtype || is.Qclass != want.Qclass || !strings.EqualFold(is.Name, want.Name) {
		return nil
	}
	return &m
}

// upstreamQuestion is what is asked for an asker: its question, and nothing else of what it sent.
func upstreamQuestion(from *dns.Msg) *dns.Msg {
	q := &dns.Msg{Question: from.Question[:1:1]}
	q.RecursionDesired = from.RecursionDesired
	q.CheckingDisabled = from.CheckingDisabled
	q.AuthenticatedData = from.AuthenticatedData
	opt := from.IsEdns0()
	q.SetEdns0(udpSize, opt != nil && opt.Do())
	return q
}

func writeFramed(w io.Writer, packet []byte) error {
	out := make([]byte, 2, 2+len(packet))
	binary.BigEndian.PutUint16(out, uint16(len(packet))) //nolint:gosec // messages have no more
	_, err := w.Write(append(out, packet...))
	return err
}

func readFramed(r io.Reader) ([]byte, error) { return readFramedUpTo(r, dns.MaxMsgSize) }

// readFramedUpTo is readFramed for a message of which no more is believed than most bytes.
func readFramedUpTo(r io.Reader, most int) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint16(length[:]))
	if size > most {
		return nil, errors.New("the message is too long")
	}
	packet := make([]byte, size)
	_, err := io.ReadFull(r, packet)
	return packet, err
}
