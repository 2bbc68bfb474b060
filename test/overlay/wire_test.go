package overlay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/netctl/kernel"
)

// listener keeps what passes a link, in either direction.
type listener struct {
	fd   int
	done chan struct{}

	mu   sync.Mutex // guards the fields below
	seen int
	hits [][]byte // frames with a mark
}

// htons is a protocol's number as the kernel reads it.
func htons(n uint16) uint16 { return n<<8 | n>>8 }

// packetSocket opens a raw socket on a link of a named namespace; empty: the machine's own.
func packetSocket(namespace, link string) (fd int, err error) {
	open := func() error {
		l, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL))); err != nil {
			return err
		}
		return errors.Join(
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: l.Index}),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
		)
	}
	if namespace == "" {
		err = open()
	} else {
		err = kernel.Within(namespace, open)
	}
	return fd, err
}

// listen captures on a link until the test ends, and keeps frames in which one of the marks is.
func listen(t *testing.T, namespace, link string, marks ...string) *listener {
	t.Helper()
	fd, err := packetSocket(namespace, link)
	if err != nil {
		t.Fatalf("capture on %s of %q: %v", link, namespace, err)
	}
	l := &listener{fd: fd, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	go l.run(ctx, marks)
	t.Cleanup(func() {
		cancel()
		<-l.done
		_ = unix.Close(fd)
	})
	return l
}

func (l *listener) run(ctx context.Context, marks []string) {
	defer close(l.done)
	buf := make([]byte, 1<<16)
	for ctx.Err() == nil {
		n, _, err := unix.Recvfrom(l.fd, buf, 0)
		if err != nil {
			continue // nothing came in time
		}
		l.mu.Lock()
		l.seen++
		for _, mark := range marks {
			if bytes.Contains(buf[:n], []byte(mark)) {
				l.hits = append(l.hits, bytes.Clone(buf[:n]))
			}
		}
		l.mu.Unlock()
	}
}

// heard returns how many frames passed and those that had a mark.
func (l *listener) heard() (int, [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen, l.hits
}

// lost returns how many frames the kernel could not keep for the capture.
func (l *listener) lost() (int, error) {
	st, err := unix.GetsockoptTpacketStats(l.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, err
	}
	return int(st.Drops), nil
}

// frame is an Ethernet frame with a datagram or an ARP message in it.
type frame struct {
	src, dst string // hardware addresses
	vlan     bool
	kind     uint16 // 0: IPv4
	from, to netip.AddrPort
	text     []byte
}

func hardware(s string) []byte {
	mac, err := net.ParseMAC(s)
	if err != nil {
		panic(err) // of a constant of this package
	}
	return mac
}

func (f frame) bytes() []byte {
	out := append(hardware(f.dst), hardware(f.src)...)
	if f.vlan {
		out = append(out, 0x81, 0, 0, 5)
	}
	if f.kind != 0 {
		return append(binary.BigEndian.AppendUint16(out, f.kind), f.text...)
	}
	out = binary.BigEndian.AppendUint16(out, unix.ETH_P_IP)
	return append(out, datagram(f.from, f.to, f.text)...)
}

// datagram is an IPv4 packet with a UDP datagram without a checksum.
func datagram(from, to netip.AddrPort, text []byte) []byte {
	ip := make([]byte, 20, 28+len(text))
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(text)))
	copy(ip[12:], from.Addr().AsSlice())
	copy(ip[16:], to.Addr().AsSlice())
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	ip = binary.BigEndian.AppendUint16(ip, from.Port())
	ip = binary.BigEndian.AppendUint16(ip, to.Port())
	ip = binary.BigEndian.AppendUint16(ip, uint16(8+len(text)))
	return append(append(ip, 0, 0), text...)
}

// arp is an ARP message from src that says who is where, padded with a text.
func arp(op uint16, senderMAC string, sender netip.Addr, target netip.Addr, text string) []byte {
	out := []byte{0, 1, 8, 0, 6, 4}
	out = binary.BigEndian.AppendUint16(out, op)
	out = append(append(out, hardware(senderMAC)...), sender.AsSlice()...)
	out = append(append(out, make([]byte, 6)...), target.AsSlice()...)
	return append(out, text...)
}

// vxlan is a VXLAN datagram's content: a frame of a network (RFC 7348).
func vxlan(vni uint32, inner []byte) []byte {
	out := []byte{8, 0, 0, 0}
	out = binary.BigEndian.AppendUint32(out, vni<<8)
	return append(out, inner...)
}

// inject sends frames from a link of a pod.
func inject(t *testing.T, namespace, link string, frames ...[]byte) {
	t.Helper()
	fd, err := packetSocket(namespace, link)
	if err != nil {
		t.Fatalf("open %s of %q: %v", link, namespace, err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, f := range frames {
		if _, err := unix.Write(fd, f); err != nil {
			t.Fatalf("send from %s of %q: %v", link, namespace, err)
		}
	}
}

// pinger sends an echo request every few milliseconds from a namespace, and counts those that are not answered.
type pinger struct {
	cancel context.CancelFunc
	done   chan struct{}
	sent   int
	lost   []time.Time
	err    error
}

const (
	pingEvery = 20 * time.Millisecond
	pingWait  = time.Second // for the answer of the last ones
)

// ping begins; the result is there after stop.
func ping(t *testing.T, namespace string, to netip.Addr) *pinger {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &pinger{cancel: cancel, done: make(chan struct{})}
	var fd int
	err := kernel.Within(namespace, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)
		return err
	})
	if err != nil {
		t.Fatalf("ping from %s: %v", namespace, err)
	}
	conn, err := net.FilePacketConn(os.NewFile(uintptr(fd), "ping"))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		defer func() { _ = conn.Close() }()
		p.run(ctx, conn, &net.UDPAddr{IP: to.AsSlice()})
	}()
	return p
}

func (p *pinger) run(ctx context.Context, conn net.PacketConn, to net.Addr) {
	var mu sync.Mutex
	open := map[uint16]time.Time{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 1500)
		for {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if n >= 8 && buf[0] == 0 {
				mu.Lock()
				delete(open, binary.BigEndian.Uint16(buf[6:]))
				mu.Unlock()
			}
		}
	}()
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for seq := uint16(1); ctx.Err() == nil; seq++ {
		mu.Lock()
		open[seq] = time.Now()
		mu.Unlock()
		p.sent++
		_, _ = conn.WriteTo([]byte{8, 0, 0, 0, 0, 0, byte(seq >> 8), byte(seq)}, to) // what is not answered counts
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	p.err = conn.SetReadDeadline(time.Now().Add(pingWait))
	<-ended
	for _, at := range open {
		p.lost = append(p.lost, at)
	}
}

// stop ends it and returns how many were sent and when those were that had no answer.
func (p *pinger) stop() (int, []time.Time, error) {
	p.cancel()
	<-p.done
	return p.sent, p.lost, p.err
}

func text(format string, args ...any) []byte { return fmt.Appendf(nil, format, args...) }
