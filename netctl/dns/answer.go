package dns

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

const (
	headerLen  = 12 // bytes of a message before its question
	flagQR     = 0x80
	ttl        = 5 // seconds for which an internal name, or that there is none, may be remembered
	minUDPSize = 512
)

// verdict is what becomes of a packet.
type verdict struct {
	question *dns.Msg // nil: the packet gets no answer
	answer   *dns.Msg // nil: the upstreams have to be asked
	count    *counter // what it counts as
}

// judge says what becomes of a packet of a pod. It neither waits nor sends.
func (s *Server) judge(t *table, a asker, packet []byte) verdict {
	if len(packet) < headerLen || packet[2]&flagQR != 0 {
		return verdict{count: &s.counts.malformed} // answers are not answered: two servers could go on for ever
	}
	q, rcode := question(packet)
	reply := func(rcode int, c *counter) verdict { return verdict{q, replyTo(q, rcode), c} }
	switch {
	case rcode == dns.RcodeFormatError:
		return reply(rcode, &s.counts.malformed)
	case rcode != dns.RcodeSuccess:
		return reply(rcode, &s.counts.refused)
	case a.budget == nil: // none of our pods
		return reply(dns.RcodeRefused, &s.counts.refused)
	}
	if opt := q.IsEdns0(); opt != nil && opt.Version() != 0 {
		return reply(dns.RcodeBadVers, &s.counts.refused)
	}
	if m := t.answer(a, q); m != nil {
		return verdict{q, m, &s.counts.internal}
	}
	if q.Question[0].Qtype == dns.TypeANY {
		m := replyTo(q, dns.RcodeSuccess)
		m.Answer = []dns.RR{minimal(q.Question[0].Name)}
		return verdict{q, m, &s.counts.internal}
	}
	return verdict{question: q, count: &s.counts.forwarded}
}

// question reads what is asked. What is not one question of the Internet gets the code other than success; then the message has
// perhaps only the header.
func question(packet []byte) (*dns.Msg, int) {
	q := &dns.Msg{}
	q.Id = uint16(packet[0])<<8 | uint16(packet[1])
	q.Opcode = int(packet[2]>>3) & 0xF
	q.RecursionDesired = packet[2]&1 != 0
	if q.Opcode != dns.OpcodeQuery {
		return q, dns.RcodeNotImplemented
	}
	// One question, no answers, no authorities, and one record more at most, that of EDNS0.
	if packet[4] != 0 || packet[5] != 1 || packet[6]|packet[7]|packet[8]|packet[9]|packet[10] != 0 || packet[11] > 1 {
		return q, dns.RcodeFormatError
	}
	var m dns.Msg
	if m.Unpack(packet) != nil || len(m.Question) != 1 || len(m.Extra) > 0 && m.IsEdns0() == nil {
		return q, dns.RcodeFormatError
	}
	switch of := m.Question[0]; {
	case of.Qclass != dns.ClassINET:
		return &m, dns.RcodeRefused
	case of.Qtype == dns.TypeOPT || of.Qtype == dns.TypeNone:
		return &m, dns.RcodeFormatError
	case of.Qtype >= dns.TypeTKEY && of.Qtype <= dns.TypeMAILA: // TKEY, TSIG, zone transfers, mail
		return &m, dns.RcodeRefused
	}
	return &m, dns.RcodeSuccess
}

// replyTo begins an answer. The question stands in it as it was asked, letter by letter.
func replyTo(q *dns.Msg, rcode int) *dns.Msg {
	m := &dns.Msg{Question: q.Question}
	m.Id, m.Opcode, m.Response, m.Rcode = q.Id, q.Opcode, true, rcode
	m.RecursionDesired, m.RecursionAvailable, m.CheckingDisabled = q.RecursionDesired, true, q.CheckingDisabled
	if opt := q.IsEdns0(); opt != nil {
		m.SetEdns0(udpSize, opt.Do())
	}
	return m
}

// answer answers from the tables. Nil: it is for the upstreams.
func (t *table) answer(a asker, q *dns.Msg) *dns.Msg {
	name := dns.CanonicalName(q.Question[0].Name)
	if before, suffix, ok := t.base.internal(name); ok {
		return t.answerName(a, q, before, suffix)
	}
	if addr, zone, ok := t.base.reverse(name); ok {
		return t.answerAddr(a, q, addr, zone)
	}
	return nil
}

func (t *table) answerName(a asker, q *dns.Msg, before, suffix string) *dns.Msg {
	of := q.Question[0]
	m := replyTo(q, dns.RcodeSuccess)
	m.Authoritative = true
	if before == "" {
		if of.Qtype == dns.TypeSOA {
			m.Answer = []dns.RR{soa(of.Name)}
			return m
		}
		return none(m, suffix)
	}
	found, known := t.find(a.vnis, before)
	switch {
	case !known:
		return replyTo(q, dns.RcodeServerFailure)
	case len(found) == 0:
		m.Rcode = dns.RcodeNameError
		return none(m, suffix)
	case of.Qtype == dns.TypeANY:
		m.Answer = []dns.RR{minimal(of.Name)}
	case of.Qtype != dns.TypeA:
		return none(m, suffix)
	}
	if of.Qtype == dns.TypeA {
		for _, addr := range found {
			m.Answer = append(m.Answer, &dns.A{Hdr: header(of.Name, dns.TypeA), A: addr.AsSlice()})
		}
	}
	return m
}

func (t *table) answerAddr(a asker, q *dns.Msg, addr netip.Addr, zone string) *dns.Msg {
	of := q.Question[0]
	m := replyTo(q, dns.RcodeSuccess)
	m.Authoritative = true
	pod, known := "", true
	if addr.IsValid() {
		pod, known = t.named(a.vnis, addr)
	}
	switch {
	case !known:
		return replyTo(q, dns.RcodeServerFailure)
	case pod == "" || len(t.base.suffixes) == 0:
		m.Rcode = dns.RcodeNameError
		return none(m, zone)
	case of.Qtype == dns.TypeANY:
		m.Answer = []dns.RR{minimal(of.Name)}
	case of.Qtype != dns.TypePTR:
		return none(m, zone)
	default:
		m.Answer = []dns.RR{&dns.PTR{Hdr: header(of.Name, dns.TypePTR), Ptr: strings.ToLower(pod) + "." + t.base.suffixes[0]}}
	}
	return m
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// none says for how long it may be remembered that there is nothing.
func none(m *dns.Msg, zone string) *dns.Msg {
	m.Ns = []dns.RR{soa(zone)}
	return m
}

func soa(zone string) dns.RR {
	return &dns.SOA{Hdr: header(zone, dns.TypeSOA), Ns: "ns." + zone, Mbox: "nobody." + zone, Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: ttl}
}

// minimal is the answer to who asks for all there is (RFC 8482).
func minimal(name string) dns.RR {
	return &dns.HINFO{Hdr: header(name, dns.TypeHINFO), Cpu: "RFC8482"}
}

// replyWith makes an upstream's answer the asker's. Without one it says that there is none.
func replyWith(q, answer *dns.Msg) *dns.Msg {
	if answer == nil {
		return replyTo(q, dns.RcodeServerFailure)
	}
	m := replyTo(q, answer.Rcode)
	m.Answer, m.Ns = answer.Answer, answer.Ns
	m.Truncated, m.AuthenticatedData = answer.Truncated, answer.AuthenticatedData
	for _, rr := range answer.Extra {
		if kind := rr.Header().Rrtype; kind != dns.TypeOPT && kind != dns.TypeTSIG { // which are between us and the upstream
			m.Extra = append(m.Extra, rr)
		}
	}
	if m.Rcode > 0xF && m.IsEdns0() == nil {
		m.Rcode = dns.RcodeServerFailure // it has no room without EDNS0
	}
	return m
}

// pack makes a message a packet, over UDP of at most what the asker takes.
func pack(m, q *dns.Msg, tcp bool, buf []byte) ([]byte, error) {
	size := dns.MaxMsgSize
	if !tcp {
		size = minUDPSize
		if opt := q.IsEdns0(); opt != nil {
			size = min(max(size, int(opt.UDPSize())), udpSize)
		}
	}
	m.Compress = true
	out, err := m.PackBuffer(buf)
	if err != nil || len(out) <= size {
		return out, err
	}
	m.Truncate(size)
	return m.PackBuffer(buf)
}
