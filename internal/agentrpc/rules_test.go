package agentrpc

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/internal/share"
)

func TestWhatIsToldOfACertificate(t *testing.T) {
	a, b, long := strings.Repeat("a", maxDigest), strings.Repeat("0b", 32), strings.Repeat("a", maxDigest+1)
	last := time.Unix(1<<37-1, 0).UTC()
	for name, c := range map[string]struct {
		in   *NodeCertificate
		want fleet.NodeCertificate
	}{
		"nothing":             {nil, fleet.NodeCertificate{}},
		"all":                 {&NodeCertificate{Ca: a, Trusts: []string{a, b}, Ends: 7}, fleet.NodeCertificate{CA: a, Trusts: []string{b, a}, EndsAt: time.Unix(7, 0).UTC()}},
		"digests of no kind":  {&NodeCertificate{Ca: "A", Trusts: []string{"", "x", long, b}}, fleet.NodeCertificate{Trusts: []string{b}}},
		"a long digest":       {&NodeCertificate{Ca: long}, fleet.NodeCertificate{}},
		"five CAs":            {&NodeCertificate{Ca: a, Trusts: []string{"1", "2", "3", "4", "0"}}, fleet.NodeCertificate{CA: a, Trusts: []string{"1", "2", "3", "4"}}},
		"an end before 1970":  {&NodeCertificate{Ca: a, Ends: -1}, fleet.NodeCertificate{CA: a}},
		"the last end":        {&NodeCertificate{Ca: a, Ends: 1<<37 - 1}, fleet.NodeCertificate{CA: a, EndsAt: last}},
		"an end after all":    {&NodeCertificate{Ca: a, Ends: 1 << 37}, fleet.NodeCertificate{CA: a}},
		"an end at the begin": {&NodeCertificate{Ca: a, Ends: 0}, fleet.NodeCertificate{CA: a}},
	} {
		if d := cmp.Diff(c.want, DecodeCertificate(c.in)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if got := EncodeCertificate(fleet.NodeCertificate{Trusts: []string{a}}); got != nil {
		t.Errorf("a node without a certificate tells %v", got)
	}
	r := newRotation(t)
	store := r.both(r.next, hostID)
	own := OwnCertificate(store)
	leaf, err := store.Leaf()
	r.must(err)
	want := fleet.NodeCertificate{CA: r.next.Digest().String(), Trusts: []string{r.old.Digest().String(), r.next.Digest().String()}, EndsAt: leaf.NotAfter.UTC()}
	slices.Sort(want.Trusts)
	if d := cmp.Diff(want, own); d != "" {
		t.Errorf("of itself (-want +got):\n%s", d)
	}
	if d := cmp.Diff(own, DecodeCertificate(EncodeCertificate(own))); d != "" {
		t.Errorf("there and back (-want +got):\n%s", d)
	}
}

// wire is a session's stream that answers from a list.
type wire struct {
	grpc.ClientStream
	sent []*Up
	down []*Down
}

func (w *wire) Send(up *Up) error { w.sent = append(w.sent, up); return nil }

func (w *wire) Recv() (*Down, error) {
	if len(w.down) == 0 {
		return nil, io.EOF
	}
	msg := w.down[0]
	w.down = w.down[1:]
	return msg, nil
}

func TestAHostGreetsInBrief(t *testing.T) {
	welcome, beat, whole := &Down{Kind: &Down_Welcome{Welcome: &Welcome{Lineage: 3}}}, &Down{Kind: &Down_Beat{Beat: &Beat{}}}, &Down{Kind: &Down_Whole{Whole: &Whole{}}}
	sealed := &Hello{MachineId: "m", Generation: 4, Inventory: Seal(&Inventory{Kernel: "6.1"})}
	for name, c := range map[string]struct {
		hello *Hello
		down  []*Down
		sent  []bool // of each hello: whether it was whole
		heard int
		says  string // empty: a welcome
	}{
		"known":                {sealed, []*Down{welcome}, []bool{false}, 0, ""},
		"asked for all":        {sealed, []*Down{beat, whole, beat, welcome}, []bool{false, true}, 3, ""},
		"without a digest":     {&Hello{Inventory: &Inventory{Kernel: "6.1"}}, []*Down{welcome}, []bool{true}, 0, ""},
		"asked for all twice":  {sealed, []*Down{whole, whole, welcome}, []bool{false, true}, 1, "not a welcome"},
		"orders come first":    {sealed, []*Down{set(1, 0, false, "p"), welcome}, []bool{false}, 0, "not a welcome"},
		"the stream ends":      {sealed, []*Down{beat}, []bool{false}, 1, "EOF"},
		"a message of no kind": {sealed, []*Down{{}, welcome}, []bool{false}, 0, "not a welcome"},
	} {
		w := &wire{down: c.down}
		heard := 0
		got, err := Greet(t.Context(), w, c.hello, func() { heard++ })
		if ok := c.says == ""; ok != (err == nil) || ok != (got.GetLineage() == 3) || !ok && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		var sent []bool
		for _, up := range w.sent {
			hello := up.GetHello()
			sent = append(sent, hello.GetInventory().GetKernel() != "")
			if hello.GetGeneration() != c.hello.GetGeneration() || hello.GetMachineId() != c.hello.GetMachineId() || hello.GetBrief() == sent[len(sent)-1] {
				t.Errorf("%s: it said %v", name, hello)
			}
		}
		if heard != c.heard || !slices.Equal(sent, c.sent) {
			t.Errorf("%s: heard %d, said %v", name, heard, sent)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("another session began")
	cancel(gone)
	if got, err := Greet(ctx, &wire{down: []*Down{welcome}}, sealed, func() {}); got != nil || !errors.Is(err, gone) {
		t.Errorf("ended: %v, %v", got, err)
	}
}

// call is a gRPC call as its handler sees it.
type call struct{ trailer metadata.MD }

func (*call) Method() string                    { return "m" }
func (*call) SetHeader(metadata.MD) error       { return nil }
func (*call) SendHeader(metadata.MD) error      { return nil }
func (c *call) SetTrailer(md metadata.MD) error { c.trailer = metadata.Join(c.trailer, md); return nil }

func TestWhoDoesNotLeadNamesTheLeader(t *testing.T) {
	for _, leader := range []string{"", "10.0.0.1:7"} {
		var c call
		err := NotLeader(grpc.NewContextWithServerTransportStream(t.Context(), &c), leader)
		if status.Code(err) != codes.Unavailable || LeaderHint(c.trailer) != leader || !NothingWasDone(c.trailer) || len(c.trailer[leaderTrailer]) > 1 {
			t.Errorf("leader %q: %v, trailer %v", leader, err, c.trailer)
		}
		if leader == "" && len(c.trailer[leaderTrailer]) != 0 {
			t.Errorf("a leader of no name is named: %v", c.trailer)
		}
	}
	if md := metadata.Pairs(leaderTrailer, "a", leaderTrailer, "b"); LeaderHint(md) != "" {
		t.Error("one of two leaders was taken")
	}
	if !NothingWasDone(metadata.Pairs(leaderTrailer, "a")) || NothingWasDone(nil) {
		t.Error("a refusal that names the leader did nothing, and one without a trailer may have done something")
	}
}

// option reads a TCP option of a connection.
func option(t *testing.T, conn net.Conn, name int) int {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	value := -1
	if err := raw.Control(func(fd uintptr) { value, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name) }); err != nil {
		t.Fatal(err)
	}
	return value
}

// TestThinConnectionsSendAgainEvenly, from whichever side and through whatever lies around them.
func TestThinConnectionsSendAgainEvenly(t *testing.T) {
	p := newPort(t, MuxConfig{})
	for name, make := range map[string]func() (net.Conn, error){
		"dialled": func() (net.Conn, error) { return DialThin(testContext(t), p.addr, 3*time.Second) },
		"made":    func() (net.Conn, error) { conn := dialTCP(t, p.addr); Thin(conn, 3*time.Second); return conn, nil },
		"below": func() (net.Conn, error) {
			conn := dialTCP(t, p.addr)
			Thin(tls.Client(share.NewConn(conn), nobody()), 3*time.Second)
			return conn, nil
		},
		"of a server": func() (net.Conn, error) {
			conn := dialTCP(t, p.addr)
			handshake := ThinServerCredentials(3 * time.Second).(thinHandshake)
			handshake.TransportCredentials = insecure.NewCredentials()
			_, _, err := handshake.Clone().ServerHandshake(conn)
			return conn, err
		},
		"for as long as the system has it": func() (net.Conn, error) { conn := dialTCP(t, p.addr); Thin(conn, 0); return conn, nil },
	} {
		conn, err := make()
		if err != nil {
			t.Fatal(err)
		}
		want := 3000
		if name == "for as long as the system has it" || name == "accepted" {
			want = 0
		}
		if linear, bound := option(t, conn, unix.TCP_THIN_LINEAR_TIMEOUTS), option(t, conn, unix.TCP_USER_TIMEOUT); linear != 1 || bound != want {
			t.Errorf("%s: linear %d, unconfirmed for %d ms", name, linear, bound)
		}
		_ = conn.Close()
		if raw, err := conn.(*net.TCPConn).SyscallConn(); err == nil && (ThinSocket(raw, 0) == nil || breakUnconfirmed("", "", raw) == nil) {
			t.Errorf("%s: a closed socket was made thin", name)
		}
	}
	near, far := net.Pipe()
	Thin(near, time.Second) // which has no options
	_, _ = near.Close(), far.Close()
}

// TestWhatAConnectionMaySendGoesByWhoItIs: little before its handshake, some without a certificate, any with one.
func TestWhatAConnectionMaySendGoesByWhoItIs(t *testing.T) {
	for name, c := range map[string]struct {
		done bool
		who  *pki.Identity
		may  int // bytes; -1: any
	}{
		"in its handshake": {false, nil, handshakeBytes}, "nobody": {true, nil, strangerBytes},
		"a host": {true, &hostID, -1}, "a scheduler": {true, &schedulerID, -1},
	} {
		crowds := newCrowds(4)
		near, far := net.Pipe()
		conn, ration := crowds.take(t.Context(), far)
		if c.done {
			if err := crowds.known(conn, ration, c.who); err != nil {
				t.Fatal(err)
			}
		}
		if got := crowds.strangers.Counts().Open; got == 1 != (c.may >= 0) {
			t.Errorf("%s: %d strangers", name, got)
		}
		go func() {
			_, _ = near.Write(make([]byte, 2*strangerBytes))
			_ = near.Close()
		}()
		n, err := io.Copy(io.Discard, conn)
		if c.may < 0 {
			c.may = 2 * strangerBytes
		} else if !errors.Is(err, errTooMuch) {
			t.Errorf("%s: ended with %v", name, err)
		}
		if int(n) != c.may {
			t.Errorf("%s sent %d bytes, not %d", name, n, c.may)
		}
		_, _ = conn.Close(), near.Close()
	}
}

// TestConnectionsOfOneHostAreBounded and those of a scheduler are not.
func TestConnectionsOfOneHostAreBounded(t *testing.T) {
	for _, who := range []pki.Identity{hostID, schedulerID} {
		crowds := newCrowds(4)
		for i := range hostConnections + 1 {
			near, far := net.Pipe()
			conn, ration := crowds.take(t.Context(), far)
			err := crowds.known(conn, ration, &who)
			var refused *refusedError
			if want := who == hostID && i == hostConnections; errors.As(err, &refused) != want || (err != nil) != want {
				t.Errorf("connection %d of %s: %v", i, who, err)
			}
			t.Cleanup(func() { _, _ = near.Close(), conn.Close() })
		}
	}
}

// TestHandshakesEndAfterTheirTime which is the one that was set; nobody is counted as a stranger when he is known.
func TestHandshakesEndAfterTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, MuxConfig{HandshakeTimeout: 3 * time.Second})
		raw, err := g.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, _ = io.Copy(io.Discard, raw)
		if took := time.Since(began); took != 3*time.Second { // in virtual time
			t.Errorf("closed after %v", took)
		}
		_ = raw.Close()
		conf, err := HostClientTLS(newStore(t, g.ca, hostID))
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			conf *tls.Config
			want int
		}{"nobody": {nobody(), 1}, "a host": {conf, 0}} {
			raw, err := g.dial(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			secure := tls.Client(raw, c.conf)
			if err := secure.Handshake(); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, secure) }()
			synctest.Wait()
			if got := g.mux.Strangers().Open; got != c.want {
				t.Errorf("%s: %d strangers", name, got)
			}
			_ = raw.Close()
			synctest.Wait()
		}
	})
}

// TestAServerOfTwoHalves serves all methods to whom it knows, and to others those that are open.
func TestAServerOfTwoHalves(t *testing.T) {
	p := newPort(t, MuxConfig{})
	s := NewServer(grpc.Creds(ServerCredentials()), []string{healthpb.Health_Check_FullMethodName})
	healthpb.RegisterHealthServer(s, newHealthServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(p.mux.GRPC()) }()
	dial := func(creds credentials.TransportCredentials) healthpb.HealthClient {
		conn, err := grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return healthpb.NewHealthClient(conn)
	}
	host, nobody := dial(hostCreds(t, newStore(t, p.ca, hostID))), dial(credentials.NewTLS(nobody()))
	for name, c := range map[string]struct {
		client      healthpb.HealthClient
		check, list codes.Code
	}{"a host": {host, codes.OK, codes.OK}, "nobody": {nobody, codes.OK, codes.PermissionDenied}} {
		_, check := c.client.Check(testContext(t), &healthpb.HealthCheckRequest{})
		_, list := c.client.List(testContext(t), &healthpb.HealthListRequest{})
		if status.Code(check) != c.check || status.Code(list) != c.list {
			t.Errorf("%s: %v; %v", name, check, list)
		}
	}
	watch, err := host.Watch(testContext(t), &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Error(err)
	}
	s.Stop() // which ends its call
	if _, err := watch.Recv(); err == nil || status.Code(err) == codes.DeadlineExceeded {
		t.Errorf("a call goes on after the stop: %v", err)
	}
	if _, err := nobody.Check(testContext(t), &healthpb.HealthCheckRequest{}); err == nil {
		t.Error("a stopped server answers who it does not know")
	}
	if err := <-served; err != nil {
		t.Errorf("stopped: %v", err)
	}
}

func TestAServerThatIsStoppedBeforeItServes(t *testing.T) {
	s := NewServer(grpc.Creds(ServerCredentials()), nil)
	s.Stop()
	l := newMuxListener(&net.UnixAddr{Name: "l", Net: "unix"})
	if err := s.Serve(l); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("its listener is open: %v", err)
	}
	s = NewServer(grpc.Creds(ServerCredentials()), nil)
	if err := s.Serve(l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a listener that was closed under it: %v", err)
	}
	s.Stop()
}

// TestAPortThatWasClosedUnderTheMux ends its listeners, and is no secret.
func TestAPortThatWasClosedUnderTheMux(t *testing.T) {
	p := newPort(t, MuxConfig{})
	if err := p.mux.ln.Close(); err != nil {
		t.Fatal(err)
	}
	for i, l := range []net.Listener{p.mux.GRPC(), p.mux.Raft(), p.mux.Jobs(), p.mux.HTTP()} {
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("listener %s: %v", strconv.Itoa(i), err)
		}
	}
	if log := p.log.String(); !strings.Contains(log, "port was closed under the mux") {
		t.Errorf("the log says %q", log)
	}
}

// unclosable is a listener whose port cannot be closed.
type unclosable struct{ net.Listener }

func (u unclosable) Close() error { return errors.Join(u.Listener.Close(), errors.New("no")) }

func TestAPortThatCannotBeClosedIsToldOf(t *testing.T) {
	p := newPort(t, MuxConfig{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewMux(unclosable{ln}, p.store, p.mux.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err == nil || err.Error() != "no" {
		t.Errorf("closed: %v", err)
	}
}
