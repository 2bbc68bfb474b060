package edge

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/api/edge/edgetest"
	"gantry/api/rest"
)

const patience = 2 * time.Minute

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// member is what a scheduler has of TLS for users, with its listener.
type member struct {
	front FrontEnd
	ln    net.Listener
}

func newMember(t *testing.T, ln net.Listener) *member {
	t.Helper()
	m := &member{ln: ln}
	s := rest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.Proto))
	}), rest.Limits{}, slog.New(slog.DiscardHandler))
	s.TLSConfig = m.front.Config()
	go func() { _ = s.ServeTLS(ln, "", "") }()
	t.Cleanup(func() { _ = s.Close() })
	return m
}

// begin gives a member its ACME, and has it order when it leads.
func (m *member) begin(t *testing.T, cfg ACMEConfig, leads bool) *ACME {
	t.Helper()
	cfg.Leads = func() bool { return leads }
	cfg.Reload, cfg.Log = 10*time.Millisecond, slog.New(slog.NewTextHandler(t.Output(), nil))
	a := NewACME(cfg)
	m.front.ACME.Store(a)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	go func() { _ = a.Run(ctx); done <- struct{}{} }()
	go func() {
		if leads {
			_ = a.Order(ctx)
		}
		done <- struct{}{}
	}()
	t.Cleanup(func() { cancel(); <-done; <-done; a.Close() })
	return a
}

// shown returns the certificate that a client of a name is shown, checked against what the authority signs.
func (m *member) shown(a *edgetest.Authority, name string) (*tls.ConnectionState, error) {
	conn, err := tls.Dial("tcp", m.ln.Addr().String(), &tls.Config{ServerName: name, RootCAs: a.Users, NextProtos: []string{"h2"}})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	state := conn.ConnectionState()
	return &state, nil
}

// unasked returns the name in the certificate for a client that asks for none, as load balancers do that look after it.
func (m *member) unasked(t *testing.T) string {
	t.Helper()
	conn, err := tls.Dial("tcp", m.ln.Addr().String(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it is looked at
	if err != nil {
		t.Error(err)
		return ""
	}
	defer func() { _ = conn.Close() }()
	return strings.Join(conn.ConnectionState().PeerCertificates[0].DNSNames, " ")
}

// knocks tells of connections that came.
type knocks struct {
	net.Listener
	came chan struct{}
}

func (k *knocks) Accept() (net.Conn, error) {
	conn, err := k.Listener.Accept()
	select {
	case k.came <- struct{}{}:
	default:
	}
	return conn, err
}

func listen(t *testing.T) (net.Listener, int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln, ln.Addr().(*net.TCPAddr).Port
}

// The leader gets a certificate for the API by a TLS connection and one for the pods' ports by a TXT record. Another scheduler
// serves both, without an order of its own, and answers the authority also where the leader does not hear it, and when it
// is asked before it is ready.
func TestCertificatesByTLSAndDNS(t *testing.T) {
	leaderLn, _ := listen(t)
	otherLn, port := listen(t)
	auth := edgetest.NewAuthority(t, port, 24*time.Hour) // which asks the scheduler that does not order
	asked := &knocks{otherLn, make(chan struct{}, 1)}
	leader, other := newMember(t, leaderLn), newMember(t, asked)
	other.front.Orders = true
	cfg := ACMEConfig{
		Directory: auth.URL, Roots: auth.Server, Names: []string{"api.gantry.test"}, Challenge: ChallengeTLS, Wildcard: "pods.gantry.test",
		Command: auth.Command, Listener: leaderLn.Addr(), Store: &shared{files: map[string][]byte{}},
	}
	leader.begin(t, cfg, true)
	select {
	case <-asked.came:
	case <-time.After(patience):
		t.Fatal("the authority does not ask")
	}
	other.begin(t, cfg, false)
	for _, m := range []*member{other, leader} {
		for _, name := range []string{"api.gantry.test", "pod1-8080.pods.gantry.test"} {
			eventually(t, "a certificate for "+name, func() bool { _, err := m.shown(auth, name); return err == nil })
			state, err := m.shown(auth, name)
			if err != nil || state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "h2" {
				t.Errorf("%s: %+v, %v", name, state, err)
			}
		}
		if _, err := m.shown(auth, "other.gantry.test"); err == nil {
			t.Error("a name that nobody ordered has a certificate")
		}
		if name := m.unasked(t); name != "api.gantry.test" {
			t.Errorf("a client that names nobody is shown %q", name)
		}
		if ends := m.front.Ends(); len(ends) != 2 || ends["api.gantry.test"].Before(time.Now()) || ends["*.pods.gantry.test"].Before(time.Now()) {
			t.Errorf("got %v", ends)
		}
	}
	if auth.Orders() != 2 || auth.Set() != 1 || auth.Records() != 0 {
		t.Errorf("%d orders, %d records, of which %d are left", auth.Orders(), auth.Set(), auth.Records())
	}
	next := newMember(t, func() net.Listener { ln, _ := listen(t); return ln }())
	next.begin(t, cfg, true) // another leader finds what there is
	if _, err := next.shown(auth, "api.gantry.test"); err != nil || auth.Orders() != 2 {
		t.Errorf("another leader: %v, %d orders", err, auth.Orders())
	}
}

// A certificate that nears its end is replaced, on connections to come.
func TestCertificateByHTTPIsRenewed(t *testing.T) {
	plainLn, port := listen(t)
	ln, _ := listen(t)
	auth := edgetest.NewAuthority(t, port, 24*time.Hour)
	m := newMember(t, ln)
	plain := rest.NewServer(Redirect("443", func(w http.ResponseWriter, r *http.Request) bool {
		return m.front.ACME.Load().HTTPChallenge(w, r)
	}), rest.Limits{}, slog.New(slog.DiscardHandler))
	store := &shared{files: map[string][]byte{}}
	cfg := ACMEConfig{
		Directory: auth.URL, Roots: auth.Server, Names: []string{"api.gantry.test"}, Challenge: ChallengeHTTP, Listener: plainLn.Addr(), Store: store,
	}
	a := m.begin(t, cfg, true)
	go func() { _ = plain.Serve(plainLn) }()
	defer func() { _ = plain.Close() }()
	eventually(t, "a certificate", func() bool { _, err := m.shown(auth, "api.gantry.test"); return err == nil })
	first, err := m.shown(auth, "api.gantry.test")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sorted(store.files) { // as it will be near its end
		if strings.HasSuffix(name, ".crt") {
			old := selfSigned(t, "api.gantry.test", time.Now().Add(-23*time.Hour), time.Now().Add(time.Hour))
			_ = store.PutTLSFile(t.Context(), name, pemOf("CERTIFICATE", old.Certificate[0]))
		}
	}
	if err := a.one(t.Context(), "api.gantry.test"); err != nil {
		t.Fatal(err)
	}
	second, err := m.shown(auth, "api.gantry.test")
	if err != nil || second.PeerCertificates[0].Equal(first.PeerCertificates[0]) || auth.Orders() != 2 {
		t.Errorf("%d orders: %v", auth.Orders(), err)
	}
}

func TestAnOrderThatFailsSaysWhy(t *testing.T) {
	ln, _ := listen(t)
	_, nobody := listen(t)
	auth := edgetest.NewAuthority(t, nobody, time.Hour)
	m := newMember(t, ln)
	cfg := ACMEConfig{
		Directory: auth.URL, Roots: auth.Server, Wildcard: "pods.gantry.test", Command: "/bin/false", Challenge: ChallengeTLS,
		Listener: ln.Addr(), Store: &shared{files: map[string][]byte{}},
	}
	a := m.begin(t, cfg, false)
	if err := a.one(t.Context(), "*.pods.gantry.test"); err == nil || !strings.Contains(err.Error(), errFollows.Error()) {
		t.Errorf("a follower: %v", err)
	}
	a = NewACME(func() ACMEConfig {
		cfg.Leads, cfg.Log, cfg.Reload = func() bool { return true }, slog.New(slog.DiscardHandler), time.Hour
		return cfg
	}())
	defer a.Close()
	err := a.one(t.Context(), "*.pods.gantry.test")
	if err == nil || !strings.Contains(err.Error(), "/bin/false present _acme-challenge.pods.gantry.test.: exit status 1") {
		t.Errorf("got %v", err)
	}
}

// Leadership is lost in the middle of an order and comes back: the order is given up with its lock and its program, and a new
// one does it.
func TestAnOrderEndsWithLeadership(t *testing.T) {
	ln, _ := listen(t)
	_, nobody := listen(t)
	auth := edgetest.NewAuthority(t, nobody, 24*time.Hour)
	begun := filepath.Join(t.TempDir(), "begun")
	hangs := script(t, `[ -e `+begun+` ] && exec `+auth.Command+` "$@"; [ "$1" = cleanup ] || { echo > `+begun+`; sleep 1000; }`)
	m := newMember(t, ln)
	a := m.begin(t, ACMEConfig{
		Directory: auth.URL, Roots: auth.Server, Wildcard: "pods.gantry.test", Command: hangs, Challenge: ChallengeTLS, Listener: ln.Addr(),
		Store: &shared{files: map[string][]byte{}},
	}, false)
	a.cfg.Leads, a.store.leads = func() bool { return true }, func() bool { return true }
	lead := func() (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Order(ctx) }()
		return func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Error("the order goes on without leadership")
			}
		}
	}
	end := lead()
	eventually(t, "an order is under way", func() bool { _, err := os.Stat(begun); return err == nil })
	end()
	if len(a.store.locks) > 0 {
		t.Errorf("locks stay: %v", a.store.locks)
	}
	end = lead()
	eventually(t, "a certificate", func() bool { _, err := m.shown(auth, "x.pods.gantry.test"); return err == nil })
	end()
	if auth.Records() != -1 { // the first order's, too, was taken away, though it never came to be
		t.Errorf("%d records are left", auth.Records()+1)
	}
}
