package tunnel_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/netctl"
)

const (
	red    = 4096
	blue   = 4097
	secret = "a word that must not be read on the wire"
)

// capture counts what crosses the wire between hosts, and what of it holds the secret.
type capture struct{ frames, plain atomic.Int64 }

func (w *world) capture(t *testing.T) *capture {
	t.Helper()
	c, fd := &capture{}, -1
	must(t, w.wire.do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(htons(unix.ETH_P_ALL)))
		return err
	}))
	f := os.NewFile(uintptr(fd), "capture")
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<17)
		for {
			n, err := f.Read(buf)
			if err != nil {
				return
			}
			c.frames.Add(1)
			if bytes.Contains(buf[:n], []byte(secret)) {
				c.plain.Add(1)
			}
		}
	}()
	t.Cleanup(func() { _ = f.Close(); <-done })
	return c
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// TestHostsReachEachOther: pods of an overlay on three hosts reach each other, and nobody of another overlay with the same
// addresses, and what they say cannot be read between hosts.
func TestHostsReachEachOther(t *testing.T) {
	w := newWorld(t, 3).withAgents(t)
	var reds, blues []*pod
	for i, h := range w.hosts {
		a := fmt.Sprint("10.64.0.", 2+i)
		reds, blues = append(reds, h.newPod(t, red, a)), append(blues, h.newPod(t, blue, a))
	}
	w.join(t, red, reds...)
	w.join(t, blue, blues...)
	w.set(t, w.hosts...)
	seen := w.capture(t)
	for i := range reds {
		reds[i].listenUDP(t, "red ")
		blues[i].listenUDP(t, "blue ")
	}
	big := strings.Repeat(secret, 100) // in fragments
	for i, from := range reds {
		for j := range reds {
			if i == j {
				continue
			}
			if got, ok := from.echo(t, reds[j], secret, 3*time.Second); got != "red "+secret || !ok {
				t.Errorf("red %d to %d: %q", i, j, got)
			}
			if got, ok := blues[i].echo(t, blues[j], big, 3*time.Second); got != "blue "+big || !ok {
				t.Errorf("blue %d to %d: %d bytes", i, j, len(got))
			}
		}
	}
	stream(t, reds[0], reds[1], 8<<20)
	if seen.frames.Load() == 0 || seen.plain.Load() > 0 {
		t.Errorf("%d frames on the wire, %d of them readable", seen.frames.Load(), seen.plain.Load())
	}
	for _, h := range w.hosts {
		for _, p := range h.ask(t, ask{Do: "peers"}).Peers {
			if p.Handshake.IsZero() || p.Received == 0 || p.Sent == 0 || !p.Endpoint.IsValid() {
				t.Errorf("host %d: %+v", h.i, p)
			}
		}
	}
}

// stream sends bytes over TCP, which come back, and compares them.
func stream(t testing.TB, from, to *pod, size int64) {
	t.Helper()
	var l net.Listener
	must(t, to.ns.do(func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(to.addr, 9).String())
		return err
	}))
	defer func() { _ = l.Close() }()
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	var c net.Conn
	must(t, from.ns.do(func() (err error) {
		c, err = net.DialTimeout("tcp4", l.Addr().String(), 3*time.Second)
		return err
	}))
	defer func() { _ = c.Close() }()
	must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	sent, got := sha256.New(), sha256.New()
	done := make(chan error, 1)
	go func() {
		random := rand.NewChaCha8([32]byte{1})
		_, err := io.CopyN(io.MultiWriter(c, sent), io.MultiReader(strings.NewReader(secret), random), size)
		if tcp, ok := c.(*net.TCPConn); ok {
			err = errors.Join(err, tcp.CloseWrite())
		}
		done <- err
	}()
	n, err := io.Copy(got, c)
	if err := errors.Join(err, <-done); err != nil || n != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("%d bytes came back of %d: %v", n, size, err)
	}
}

// pair is two hosts with a pod each, of which the second one echoes.
func pair(t *testing.T) (w *world, a, b *pod) {
	t.Helper()
	w = newWorld(t, 2).withAgents(t)
	a, b = w.hosts[0].newPod(t, red, "10.64.0.2"), w.hosts[1].newPod(t, red, "10.64.0.3")
	w.join(t, red, a, b)
	b.listenUDP(t, "")
	return w, a, b
}

// reaches waits for an answer. WireGuard sends the first message of a handshake again after more than 5 s, and the other end may not
// know the sender's key yet when the first one comes.
func (p *pod) reaches(t *testing.T, to *pod) {
	t.Helper()
	if _, ok := p.echo(t, to, "hello", 20*time.Second); !ok {
		t.Fatalf("%s does not reach %s", p.addr, to.addr)
	}
}

// TestForeignAddress: a host cannot send with an address in the tunnel that is another host's.
func TestForeignAddress(t *testing.T) {
	w := newWorld(t, 3).withAgents(t)
	w.set(t, w.hosts...)
	first, second, third := w.hosts[0], w.hosts[1], w.hosts[2]
	var inbox net.PacketConn
	must(t, first.ns.do(func() (err error) {
		inbox, err = net.ListenPacket("udp4", netip.AddrPortFrom(first.addr, vxPort).String())
		return err
	}))
	defer func() { _ = inbox.Close() }()
	third.ns.addr(t, netctl.TunnelLink(instance), netip.PrefixFrom(second.addr, 32))
	say := func(from netip.Addr) {
		must(t, third.ns.do(func() error {
			c, err := net.DialUDP("udp4", &net.UDPAddr{IP: from.AsSlice()}, &net.UDPAddr{IP: first.addr.AsSlice(), Port: vxPort})
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			_, err = c.Write([]byte(from.String()))
			return err
		}))
	}
	hear := func() string {
		buf := make([]byte, 64)
		must(t, inbox.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		n, _, err := inbox.ReadFrom(buf)
		if err != nil {
			return ""
		}
		return string(buf[:n])
	}
	eventually(t, "the host's own address is heard", func() bool { say(third.addr); return hear() == third.addr.String() })
	say(second.addr)
	say(third.addr)
	for {
		switch hear() {
		case second.addr.String():
			t.Fatal("a host speaks for another")
		case third.addr.String():
			return // what was sent before it was dropped
		case "":
			t.Fatal("what is the host's own was lost")
		}
	}
}

// TestKeysAndPlacesChange: a host gets a new key and another address on the wire; what others have of it goes on.
func TestKeysAndPlacesChange(t *testing.T) {
	w, a, b := pair(t)
	w.set(t, w.hosts...)
	a.reaches(t, b)
	before := w.hosts[0].ask(t, ask{Do: "peers"}).Peers[0].Handshake
	w.set(t, w.hosts...) // what is right is left alone
	if now := w.hosts[0].ask(t, ask{Do: "peers"}).Peers[0].Handshake; !now.Equal(before) {
		t.Error("the session did not go on")
	}
	w.hosts[1].newKey(t)
	w.set(t, w.hosts...)
	a.reaches(t, b)
	// The host moves on the wire; others learn it from what it sends.
	l := link(t, w.hosts[1].ns, "eth0")
	addrs, err := w.hosts[1].ns.nl.AddrList(l, unix.AF_INET)
	must(t, err)
	for _, one := range addrs {
		must(t, w.hosts[1].ns.nl.AddrDel(l, &one))
	}
	w.hosts[1].ns.addr(t, "eth0", netip.MustParsePrefix("192.0.2.77/24"))
	a.listenUDP(t, "")
	b.reaches(t, a)
	a.reaches(t, b)
	if at := w.hosts[0].ask(t, ask{Do: "peers"}).Peers[0].Endpoint.Addr().String(); at != "192.0.2.77" {
		t.Errorf("the host was heard at %s", at)
	}
	w.set(t, w.hosts[0]) // it is not called where it was
	a.reaches(t, b)
}

// TestBehindNAT: a host that cannot be called calls, and is reached from then on.
func TestBehindNAT(t *testing.T) {
	w, a, b := pair(t)
	one, other := w.config(w.hosts[0]), w.config(w.hosts[1])
	one.Peers[0].Endpoint = netip.AddrPort{}
	other.Peers[0].Keepalive = time.Second
	w.hosts[0].ask(t, ask{Do: "set", Config: &one, KeyFile: w.hosts[0].keyFile})
	w.hosts[1].ask(t, ask{Do: "set", Config: &other, KeyFile: w.hosts[1].keyFile})
	a.reaches(t, b)
}

// processes are those of a host's tunnel.
func (h *host) processes(t *testing.T) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must(t, err)
	for _, e := range entries {
		exe, _ := os.Readlink("/proc/" + e.Name() + "/exe")
		if strings.TrimSuffix(exe, " (deleted)") != h.program {
			continue
		}
		ns, _ := os.Readlink("/proc/" + e.Name() + "/ns/net")
		var here string
		must(t, h.ns.do(func() (err error) { here, err = os.Readlink("/proc/thread-self/ns/net"); return err }))
		if ns == here {
			var pid int
			_, err := fmt.Sscan(e.Name(), &pid)
			must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestProcessEnds: a process that is killed is started again at the same link, and told all; a link that was removed is made anew.
func TestProcessEnds(t *testing.T) {
	w, a, b := pair(t)
	w.set(t, w.hosts...)
	a.reaches(t, b)
	for _, h := range w.hosts {
		pids := h.processes(t)
		if len(pids) != 1 {
			t.Fatalf("host %d has processes %v", h.i, pids)
		}
		confined(t, pids[0])
		before := link(t, h.ns, netctl.TunnelLink(instance))
		must(t, syscall.Kill(pids[0], syscall.SIGKILL))
		a.reaches(t, b)
		if now := link(t, h.ns, netctl.TunnelLink(instance)).Attrs().Index; now != before.Attrs().Index {
			t.Errorf("host %d: the link %d is another, %d", h.i, before.Attrs().Index, now)
		}
		must(t, h.ns.nl.LinkDel(before))
		a.reaches(t, b)
	}
	for _, h := range w.hosts {
		if pids := h.processes(t); len(pids) != 1 {
			t.Errorf("host %d has processes %v", h.i, pids)
		}
	}
}

// confined says whether a process has no rights on the host.
func confined(t *testing.T, pid int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for _, want := range []string{
		"Uid:\t2147287042\t2147287042\t2147287042\t2147287042\n", "Gid:\t2147287042\t2147287042\t2147287042\t2147287042\n", "Groups:\t \n",
		"CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the process is not %q", want)
		}
	}
	if left, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid)); err != nil || len(left) > 0 {
		t.Errorf("the process has files: %v %v", left, err)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.HasPrefix(string(line), "gantry-net\x00wireguard\x00") {
		t.Errorf("the process is %q: %v", line, err)
	}
}

// TestTheNextAgentTakesOver: an agent ends without warning and the next one takes the tunnel over; nothing is lost. One of another
// build replaces the process.
func TestTheNextAgentTakesOver(t *testing.T) {
	w, a, b := pair(t)
	w.set(t, w.hosts...)
	a.reaches(t, b)
	h := w.hosts[0]
	before := h.processes(t)
	stop, lost := make(chan struct{}), make(chan int, 1)
	var pings atomic.Int64
	c := a.dialUDP(t, b)
	go func() {
		missing, buf := 0, make([]byte, 64)
		for ; ; pings.Add(1) {
			select {
			case <-stop:
				lost <- missing
				return
			default:
			}
			_, _ = c.Write([]byte("ping"))
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := c.Read(buf); err != nil {
				missing++
			}
		}
	}()
	some := func() {
		t.Helper()
		from := pings.Load()
		eventually(t, "pings go on", func() bool { return pings.Load() > from+20 })
	}
	some()
	h.killAgent(t)
	some()
	h.startAgent(t)
	w.set(t, h)
	some()
	close(stop)
	if missing := <-lost; missing > 0 {
		t.Errorf("%d of %d pings were lost", missing, pings.Load())
	}
	if now := h.processes(t); len(now) != 1 || len(before) != 1 || now[0] != before[0] {
		t.Errorf("processes %v, before %v", now, before)
	}
	h.killAgent(t)
	h.program += "-next"
	must(t, exec.Command("sh", "-c", "cp "+program+" "+h.program+" && echo >> "+h.program).Run())
	h.startAgent(t)
	w.set(t, h)
	a.reaches(t, b)
	if now := h.processes(t); len(now) != 1 || now[0] == before[0] {
		t.Errorf("processes %v, before %v", now, before)
	}
}
