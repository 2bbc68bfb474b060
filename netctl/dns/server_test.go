package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// local are the addresses of askers on loopback.
func local(n int) netip.Addr { return netip.AddrFrom4([4]byte{127, 53, 9, byte(n)}) }

// served is a server on loopback, whose first three askers are in overlays 1, 2 and 1.
func served(t testing.TB, upstreams ...netip.AddrPort) (*Server, string) {
	t.Helper()
	return servedWithin(t, tryWithin, upstreams...)
}

func servedWithin(t testing.TB, try time.Duration, upstreams ...netip.AddrPort) (*Server, string) {
	t.Helper()
	udp, tcp := listen(t)
	s := NewServer(udp.LocalAddr().(*net.UDPAddr).AddrPort())
	s.try = try
	s.Set(testBase(upstreams...))
	s.SetPods(map[netip.Addr][]uint32{local(1): {1}, local(2): {2}, local(3): {1}})
	for _, o := range testOverlays() {
		s.SetOverlay(o.VNI, o.Members)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, udp, tcp) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, udp.LocalAddr().String()
}

// ask asks a server from an address.
func ask(network, server string, from netip.Addr, q *dns.Msg) (*dns.Msg, error) {
	d := &net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.UDPAddr{IP: from.AsSlice()}}
	if network == "tcp" {
		d.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
	}
	c := dns.Client{Net: network, Dialer: d, Timeout: time.Second, UDPSize: udpSize}
	m, _, err := c.Exchange(q, server)
	return m, err
}

var listeners atomic.Int32

// listen opens both sockets at an address of loopback that nobody else in this test has.
func listen(t testing.TB) (*net.UDPConn, *net.TCPListener) {
	t.Helper()
	ip := net.IPv4(127, 54, 0, byte(listeners.Add(1)))
	tcp, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: ip})
	must(t, err)
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: ip, Port: tcp.Addr().(*net.TCPAddr).Port})
	must(t, err)
	return udp, tcp
}

// upstreamServer is a resolver of a host, on loopback.
func upstreamServer(t testing.TB, answer func(w dns.ResponseWriter, q *dns.Msg)) netip.AddrPort {
	t.Helper()
	packets, stream := listen(t)
	for _, s := range []*dns.Server{{PacketConn: packets}, {Listener: stream}} {
		s.Handler = dns.HandlerFunc(answer)
		started, done := make(chan struct{}), make(chan error, 1)
		s.NotifyStartedFunc = func() { close(started) }
		go func() { done <- s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			must(t, s.Shutdown())
			must(t, <-done)
		})
	}
	return packets.LocalAddr().(*net.UDPAddr).AddrPort()
}

// a is an answer with one address.
func a(q *dns.Msg, ip string) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(ip)}}
	return m
}

func good(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(a(q, "192.0.2.1")) }

// closed is an address at which nobody is.
func closed(t *testing.T) netip.AddrPort {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	must(t, err)
	must(t, c.Close())
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// silent is an address that answers nothing.
func silent(t *testing.T) netip.AddrPort {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestAnswersOverBothTransports(t *testing.T) {
	_, at := served(t)
	for _, network := range []string{"udp", "tcp"} {
		for n, want := range map[int]string{1: "NOERROR 10.64.0.2", 2: "NOERROR 10.64.0.3", 7: "REFUSED"} {
			q := query("wEb.gantry.INTERNAL.", dns.TypeA)
			m, err := ask(network, at, local(n), q)
			must(t, err)
			packet, err := m.Pack()
			must(t, err)
			if got := words(t, q, packet); got != want {
				t.Errorf("%s, %d: %s, want %s", network, n, got, want)
			}
		}
	}
}

func TestUpstreams(t *testing.T) {
	liar := upstreamServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		for _, lie := range []func(*dns.Msg){
			func(m *dns.Msg) { m.Id++ },
			func(m *dns.Msg) { m.Question[0].Name = "evil." },
			func(m *dns.Msg) { m.Question = nil },
			func(m *dns.Msg) { m.Response = false },
		} {
			m := a(q.Copy(), "192.0.2.66")
			lie(m)
			_ = w.WriteMsg(m)
		}
		_, _ = w.Write([]byte("nonsense"))
		good(w, q)
	})
	unable := upstreamServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
	})
	short := upstreamServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := a(q, "192.0.2.1")
		if w.RemoteAddr().Network() == "udp" {
			m.Answer, m.Truncated = nil, true
		}
		_ = w.WriteMsg(m)
	})
	fine := upstreamServer(t, good)
	const yes = "NOERROR 192.0.2.1"
	for _, c := range []struct {
		what, want string
		upstreams  []netip.AddrPort
	}{
		{"one that is well", yes, []netip.AddrPort{fine}},
		{"nobody there", yes, []netip.AddrPort{closed(t), fine}},
		{"no answer", yes, []netip.AddrPort{silent(t), fine}},
		{"wrong answers first", yes, []netip.AddrPort{liar}},
		{"one that cannot", yes, []netip.AddrPort{unable, fine}},
		{"only one that cannot", "SERVFAIL", []netip.AddrPort{unable}},
		{"too long for UDP", yes, []netip.AddrPort{short}},
		{"none", "SERVFAIL", nil},
		{"all dead", "SERVFAIL", []netip.AddrPort{closed(t), silent(t)}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			_, at := servedWithin(t, 100*time.Millisecond, c.upstreams...)
			for range 2 { // the second time with what was learnt
				q := query("eXample.com.", dns.TypeA)
				m, err := ask("udp", at, local(1), q)
				must(t, err)
				packet, err := m.Pack()
				must(t, err)
				if got := words(t, q, packet); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
			}
		})
	}
}

// TestAnUpstreamThatIsSilentIsAskedLast: it costs its wait once, until it has rested.
func TestAnUpstreamThatIsSilentIsAskedLast(t *testing.T) {
	dead, well := netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.2:53")
	own := netip.MustParseAddrPort("10.88.0.1:53")
	u := newUpstreams([]netip.AddrPort{own, dead, well}, own)
	if len(u.all) != 2 {
		t.Fatal("the server would ask itself")
	}
	first := func(now int64) netip.AddrPort { return u.order(now)[0].addr }
	if first(1) != dead {
		t.Error("not in order")
	}
	u.all[0].rest.Store(100)
	if first(50) != well {
		t.Error("it is asked although it does not answer")
	}
	if first(101) != dead || first(101) != well {
		t.Error("not one question has found out")
	}
	u.all[0].rest.Store(0)
	if first(102) != dead {
		t.Error("not asked again although it is well")
	}
}

// TestLongAnswers: what does not fit goes to who asks over TCP.
func TestLongAnswers(t *testing.T) {
	long := upstreamServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		for i := range 200 {
			m.Answer = append(m.Answer, a(q, fmt.Sprintf("192.0.2.%d", i)).Answer...)
		}
		if w.RemoteAddr().Network() == "udp" {
			m.Truncate(udpSize)
		}
		_ = w.WriteMsg(m)
	})
	_, at := served(t, long)
	q := query("example.com.", dns.TypeA)
	m, err := ask("udp", at, local(1), q)
	must(t, err)
	m.Compress = true
	if !m.Truncated || m.Len() > udpSize {
		t.Errorf("%d bytes, cut %v", m.Len(), m.Truncated)
	}
	plain := new(dns.Msg).SetQuestion("example.com.", dns.TypeA)
	m, err = ask("udp", at, local(1), plain)
	must(t, err)
	m.Compress = true
	if !m.Truncated || m.Len() > minUDPSize || m.IsEdns0() != nil {
		t.Errorf("without EDNS0: %d bytes, cut %v", m.Len(), m.Truncated)
	}
	m, err = ask("tcp", at, local(1), q)
	must(t, err)
	if len(m.Answer) != 200 || m.Truncated {
		t.Errorf("%d addresses over TCP", len(m.Answer))
	}
}

// TestLimits: one pod that asks for too much loses its own questions, and the others none.
func TestLimits(t *testing.T) {
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	var waiting atomic.Int32
	slow := upstreamServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		waiting.Add(1)
		<-hold
		good(w, q)
	})
	s, at := served(t, slow)
	conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: local(1).AsSlice()}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
	must(t, err)
	defer func() { _ = conn.Close() }()
	packet, err := query("example.com.", dns.TypeA).Pack()
	must(t, err)
	for i := range 3 * podBurst {
		_, err = conn.Write(packet)
		must(t, err)
		if i%50 == 0 { // more would not fit into the socket
			until(t, func() bool { st := s.Stats(); return st.Forwarded+st.Limited == uint64(i+1) })
		}
	}
	until(t, func() bool { return waiting.Load() == podInFlight })
	until(t, func() bool { st := s.Stats(); return st.Busy+st.Limited == 3*podBurst-podInFlight })
	if st := s.Stats(); st.Busy < podBurst-podInFlight || st.Limited == 0 {
		t.Errorf("%+v", st)
	}
	m, err := ask("udp", at, local(3), query("web.gantry.internal.", dns.TypeA))
	must(t, err)
	if len(m.Answer) != 1 {
		t.Errorf("another pod is answered %v", m)
	}
	release()
	until(t, func() bool { return s.inFlight.Load() == 0 })

	var conns []net.Conn
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: local(2).AsSlice()}}
	for range podConns + 3 {
		c, err := d.Dial("tcp4", at)
		must(t, err)
		defer func() { _ = c.Close() }()
		conns = append(conns, c)
	}
	until(t, func() bool { return s.Stats().Closed == 3 && s.conns.Load() == podConns })
	if _, err := ask("tcp", at, local(3), query("web.gantry.internal.", dns.TypeA)); err != nil {
		t.Errorf("another pod cannot connect: %v", err)
	}
	for _, c := range conns {
		must(t, c.Close())
	}
	until(t, func() bool { return s.conns.Load() == 0 })
}

// until waits for a condition.
func until(t testing.TB, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("it did not become so")
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// TestChangesDoNotHoldUpAnswers asks while a large overlay changes.
func TestChangesDoNotHoldUpAnswers(t *testing.T) {
	s := testServer()
	members := manyMembers(10_000)
	s.SetOverlay(1, members)
	var worst time.Duration
	tab := func() verdict {
		packet, err := query("pod00042.gantry.internal.", dns.TypeA).Pack()
		must(t, err)
		now := s.now.Load()
		return s.judge(now, now.pods[alice], packet)
	}
	for i := range 20 {
		began := time.Now()
		must(t, s.ChangeOverlay(1, []Name{{members[i].Addr, members[i].Pod, fmt.Sprintf("new%d", i)}}, nil))
		worst = max(worst, time.Since(began))
		if v := tab(); v.answer == nil || len(v.answer.Answer) != 1 {
			t.Fatal("no answer")
		}
	}
	t.Logf("a change among 10,000 names takes %v at most", worst)
}

func manyMembers(n int) []Name {
	out := make([]Name, n)
	at := netip.MustParseAddr("10.64.0.2")
	for i := range out {
		out[i] = Name{at, fmt.Sprintf("pod%05d", i), fmt.Sprintf("name-%d", i)}
		at = at.Next()
	}
	return out
}

// BenchmarkChange is one more pod among 10,000.
func BenchmarkChange(b *testing.B) {
	s := testServer()
	s.SetOverlay(1, manyMembers(10_000))
	for i := 0; b.Loop(); i++ {
		must(b, s.ChangeOverlay(1, []Name{{netip.AddrFrom4([4]byte{10, 64, 200, byte(i)}), fmt.Sprintf("x%d", i), "y"}}, nil))
	}
}

// BenchmarkInternalNames asks for internal names over UDP, as fast as answers come, beside a server that knows one answer to everything.
func BenchmarkInternalNames(b *testing.B) {
	s, at := served(b)
	s.SetOverlay(1, manyMembers(10_000))
	bare := upstreamServer(b, good)
	for _, c := range []struct{ name, at string }{{"gantry", at}, {"bare", bare.String()}} {
		b.Run(c.name, func(b *testing.B) {
			packet, err := query("pod04711.gantry.internal.", dns.TypeA).Pack()
			must(b, err)
			b.RunParallel(func(pb *testing.PB) {
				conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: local(1).AsSlice()}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(c.at)))
				if err != nil {
					b.Error(err)
					return
				}
				defer func() { _ = conn.Close() }()
				buf := make([]byte, 1500)
				for pb.Next() {
					s.now.Load().pods[local(1)].budget.due.Store(0) // it is not the limit that is measured
					if _, err := conn.Write(packet); err != nil {
						b.Error(err)
						return
					}
					if _, err := conn.Read(buf); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "questions/s")
		})
	}
}

// TestALongQuestionIsNotRead: over TCP a message says first how long it is, and a pod may say anything.
func TestALongQuestionIsNotRead(t *testing.T) {
	_, server := served(t)
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: local(1).AsSlice()}}).Dial("tcp", server)
	must(t, err)
	defer func() { _ = conn.Close() }()
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Write([]byte{0xff, 0xff})
	must(t, err)
	if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is open: %v", err)
	}
}
