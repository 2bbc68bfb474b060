package overlay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	echoes     = 3           // to each address
	echoLimit  = time.Second // for the last to be answered
	echoNext   = 300 * time.Millisecond
	echoLength = 24 // bytes of one, with its head of ICMP
	echoAsk    = 8  // types of ICMP messages
	echoAnswer = 0
)

// Pinger sends echoes from one network namespace.
type Pinger struct {
	conn *net.IPConn
	id   uint16
}

// OpenPinger opens it in the thread's namespace; see netctl/kernel.Within. It needs rights over that namespace, which the
// pod itself need not have.
func OpenPinger() (*Pinger, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)
	if err != nil {
		return nil, fmt.Errorf("open a socket for echoes: %w", err)
	}
	f := os.NewFile(uintptr(fd), "icmp")
	defer func() { _ = f.Close() }() // the connection has a copy
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, fmt.Errorf("open a socket for echoes: %w", err)
	}
	conn, ok := c.(*net.IPConn)
	if !ok {
		return nil, errors.Join(errors.New("open a socket for echoes: it is of another kind"), c.Close())
	}
	return &Pinger{conn: conn, id: uint16(rand.Uint32())}, nil
}

// Close closes it.
func (p *Pinger) Close() { _ = p.conn.Close() }

// Ping sends three echoes to each address and returns how long the fastest answer of each took; those without one are missing.
// Each echo has at least a second to be answered.
func (p *Pinger) Ping(ctx context.Context, to []netip.Addr) (map[netip.Addr]time.Duration, error) {
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	r := round{began: time.Now(), tokens: make(map[netip.Addr]uint64, len(to)), best: map[netip.Addr]time.Duration{}}
	for _, addr := range to {
		r.tokens[addr] = rand.Uint64()
	}
	for r.seq = 1; r.seq <= echoes && ctx.Err() == nil; r.seq++ {
		limit := echoNext
		if r.seq == echoes {
			limit = echoLimit
		}
		if err := p.ask(ctx, &r, limit); err != nil {
			return r.best, err
		}
	}
	return r.best, ctx.Err()
}

// round is one echo to each address, and what came of all until now.
type round struct {
	began  time.Time
	seq    uint16
	tokens map[netip.Addr]uint64 // by which answers are told from what pods send
	best   map[netip.Addr]time.Duration
}

// ask sends one echo to each and waits until all are answered, at most for a time.
func (p *Pinger) ask(ctx context.Context, r *round, limit time.Duration) error {
	waiting := make(map[netip.Addr]bool, len(r.tokens))
	if err := p.conn.SetReadDeadline(time.Now().Add(limit)); err != nil || ctx.Err() != nil {
		return err
	}
	for addr, token := range r.tokens {
		if err := p.send(addr, r.seq, token, time.Since(r.began)); err == nil { // what has no route has no answer
			waiting[addr] = true
		}
	}
	buf := make([]byte, 1500)
	for len(waiting) > 0 {
		n, from, err := p.conn.ReadFromIP(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive echoes: %w", err)
		}
		addr, ok := netip.AddrFromSlice(from.IP.To4())
		token, asked := r.tokens[addr]
		if !ok || !asked {
			continue
		}
		if seq, sent, mine := p.answer(buf[:n], token); mine {
			took := time.Since(r.began) - sent
			if old, had := r.best[addr]; !had || took < old {
				r.best[addr] = took
			}
			if seq == r.seq {
				delete(waiting, addr)
			}
		}
	}
	return nil
}

func (p *Pinger) send(addr netip.Addr, seq uint16, token uint64, sent time.Duration) error {
	_, err := p.conn.WriteToIP(echo(p.id, seq, token, sent), &net.IPAddr{IP: addr.AsSlice()})
	return err
}

// echo is the ICMP message that asks for an answer (RFC 792).
func echo(id, seq uint16, token uint64, sent time.Duration) []byte {
	out := []byte{echoAsk, 0, 0, 0}
	out = binary.BigEndian.AppendUint16(out, id)
	out = binary.BigEndian.AppendUint16(out, seq)
	out = binary.BigEndian.AppendUint64(out, token)
	out = binary.BigEndian.AppendUint64(out, uint64(sent)) //nolint:gosec // not negative
	sum := uint32(0)
	for i := 0; i < len(out); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(out[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(out[2:], ^uint16(sum+sum>>16)) //nolint:gosec // folded
	return out
}

// answer reads which echo a packet answers, and when that was sent.
func (p *Pinger) answer(packet []byte, token uint64) (seq uint16, sent time.Duration, mine bool) {
	if len(packet) != echoLength || packet[0] != echoAnswer || packet[1] != 0 ||
		binary.BigEndian.Uint16(packet[4:]) != p.id || binary.BigEndian.Uint64(packet[8:]) != token {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(packet[6:]), time.Duration(binary.BigEndian.Uint64(packet[16:])), true //nolint:gosec // as it was sent
}
