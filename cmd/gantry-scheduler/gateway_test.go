package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"gantry/api/rest"
	"gantry/gateway"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/scrape"
	"gantry/scheduler/membership"
	"gantry/test/metricstable"
)

const gatewaysPath = "/admin/v1/gateways"

type gatewayView struct {
	ID, Name, State string
	Hosts           int
}

func (w *world) gateways() []gatewayView {
	w.t.Helper()
	var got struct{ Gateways []gatewayView }
	w.admin(http.MethodGet, gatewaysPath, nil, &got)
	return got.Gateways
}

// joinGateway makes a gateway that does not run, and returns the arguments with which it joined.
func (w *world) joinGateway(binary string) (m *machine, args []string) {
	w.t.Helper()
	m = newMachine(w.t, binary)
	var made struct{ Token string }
	w.admin(http.MethodPost, gatewaysPath+"/tokens", map[string]any{}, &made)
	file := filepath.Join(w.t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(made.Token), 0o600); err != nil {
		w.t.Fatal(err)
	}
	args = []string{"gateway", "join", "--data-dir", m.dir, "--token-file", file, "--address", m.link, "--scheduler", w.leader().link, "--name", "edge"}
	m.must(args...)
	return m, args
}

// every returns how a scheduler answers an empty call of each method, by its name.
func every(t *testing.T, conn *grpc.ClientConn) map[string]codes.Code {
	t.Helper()
	out := map[string]codes.Code{}
	for _, service := range []grpc.ServiceDesc{agentrpc.Join_ServiceDesc, agentrpc.Peer_ServiceDesc, agentrpc.Link_ServiceDesc, agentrpc.Routes_ServiceDesc} {
		call := func(name string, f func(ctx context.Context, method string) error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			out[strings.TrimPrefix(service.ServiceName, "gantry.agentrpc.v1.")+"/"+name] = status.Code(f(ctx, "/"+service.ServiceName+"/"+name))
		}
		for _, m := range service.Methods {
			call(m.MethodName, func(ctx context.Context, method string) error {
				return conn.Invoke(ctx, method, &agentrpc.WatchRequest{}, &agentrpc.WatchRequest{})
			})
		}
		for i := range service.Streams {
			call(service.Streams[i].StreamName, func(ctx context.Context, method string) error {
				s, err := conn.NewStream(ctx, &service.Streams[i], method)
				if err == nil {
					err = errors.Join(s.SendMsg(&agentrpc.WatchRequest{}), s.CloseSend())
				}
				if err == nil || errors.Is(err, io.EOF) { // a stream that was refused meanwhile takes nothing; what is received says why
					err = s.RecvMsg(&agentrpc.WatchRequest{})
				}
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return err
			})
		}
	}
	return out
}

// TestWhatAGatewayMayAsk: of all that schedulers can be asked, with its certificate: routes, keys, its report and its renewal; and nobody
// else may ask these. Once it is removed, nothing.
func TestWhatAGatewayMayAsk(t *testing.T) {
	binary := build(t, "")
	w := newWorld(t, binary)
	m, args := w.joinGateway(binary)
	link := w.all[0].link
	if out, err := m.does(args...); err == nil || !strings.Contains(out, "already") {
		t.Errorf("joined twice: %v %s", err, out)
	}
	other := newMachine(t, binary)
	args[slices.Index(args, "--data-dir")+1], args[slices.Index(args, "--address")+1] = other.dir, other.link
	if out, err := other.does(args...); err == nil || !strings.Contains(out, "used") {
		t.Errorf("the token was used again: %v %s", err, out)
	}
	certs, err := pki.OpenStore(filepath.Join(m.dir, certFolder))
	if err != nil {
		t.Fatal(err)
	}
	dial := func(dir string) *grpc.ClientConn {
		store, err := pki.OpenStore(filepath.Join(dir, certFolder))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := membership.Dial(store, link)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	mine := map[string]codes.Code{ // an empty request for a certificate is none
		"Routes/Watch": codes.OK, "Routes/CheckKey": codes.OK, "Routes/NoteWrite": codes.OK, "Routes/Report": codes.OK, "Peer/RenewGateway": codes.InvalidArgument,
	}
	joins := []string{"Join/Join", "Peer/JoinMember", "Peer/JoinGateway"} // they ask for a token
	got := every(t, dial(m.dir))
	if len(got) < 12 {
		t.Fatalf("methods: %v", got)
	}
	for method, code := range got {
		want, ok := mine[method]
		switch {
		case slices.Contains(joins, method):
			want = codes.Unauthenticated
		case !ok:
			want = codes.PermissionDenied
		}
		if code != want {
			t.Errorf("a gateway calls %s: %s, want %s", method, code, want)
		}
	}
	host := w.host(w.hostToken().Token)
	nobody, err := grpc.NewClient("passthrough:///"+link, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}))) //nolint:gosec // nobody knows whom to trust
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	for name, conn := range map[string]*grpc.ClientConn{"a host": dial(host.dir), "a scheduler": dial(w.all[0].dir), "nobody": nobody} {
		for method, code := range every(t, conn) {
			if _, ok := mine[method]; ok && code != codes.PermissionDenied {
				t.Errorf("%s calls %s: %s", name, method, code)
			}
		}
	}

	// What it may ask it is told.
	routes := agentrpc.NewRoutesClient(dial(m.dir))
	check := func(key, endpoint string) string {
		answer, err := routes.CheckKey(t.Context(), &agentrpc.KeyQuestion{Key: key, EndpointId: endpoint})
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetCode()
	}
	if code := check("rpa_nobodys", "e2345678901234"); code != "unauthorized" {
		t.Errorf("a key of nobody: %q", code)
	}
	if code := check(w.keys.APIKey, "e2345678901234"); code != "not_found" {
		t.Errorf("an endpoint that is none: %q", code)
	}
	if code := check(strings.Repeat("k", 4096), "e2345678901234"); code != "unauthorized" {
		t.Errorf("a long key: %q", code)
	}
	if err := membership.RenewGateway(t.Context(), certs, link); err != nil {
		t.Errorf("renew: %v", err)
	}
	if who, err := certs.Identity(); err != nil || who.Role != pki.RoleGateway || len(w.gateways()) != 1 || who.ID != w.gateways()[0].ID {
		t.Errorf("renewed as %v, %v", who, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := agentrpc.DialHTTP(ctx, certs, link)
	if err != nil {
		t.Fatalf("forwarding: %v", err)
	}
	_ = conn.Close()

	stream, err := routes.Watch(ctx, &agentrpc.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := stream.Recv(); err != nil || !first.GetAnew() || !first.GetWhole() || len(first.GetHosts()) != 1 || first.GetControl().GetLeader() != link {
		t.Errorf("told %v, %v", first, err)
	}
	w.admin(http.MethodDelete, gatewaysPath+"/"+w.gateways()[0].ID, nil, nil)
	for err = nil; err == nil; _, err = stream.Recv() {
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("the watch of a gateway that was removed: %v", err)
	}
	for method, code := range every(t, dial(m.dir)) {
		if !slices.Contains(joins, method) && code != codes.PermissionDenied {
			t.Errorf("a gateway that was removed calls %s: %s", method, code)
		}
	}
	conn, err = agentrpc.DialHTTP(ctx, certs, link)
	if err == nil { // in TLS 1.3 a refusal shows at the first read
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	if err == nil || errors.Is(err, io.EOF) {
		t.Errorf("forwarding after its removal: %v", err)
	}
}

// TestGatewaysFollowTheClustersCA: the CA's replacement waits for a gateway as it waits for hosts, and the gateway takes requests all the time.
func TestGatewaysFollowTheClustersCA(t *testing.T) {
	binary := build(t, "")
	w := newWorld(t, binary)
	m, _ := w.joinGateway(binary)
	id := w.gateways()[0].ID
	w.admin(http.MethodPost, caPath+"/rotate", nil, nil)
	w.awaitCA("spreads", id)
	m.runs("gateway", "run", "--data-dir", m.dir, "--listen", m.api, "--metrics", "")
	w.eventually("the gateway is connected", func() bool { return w.gateways()[0].State == "connected" })
	w.awaitCA("")
	if status, _, err := w.ask(m, w.keys.AdminKey, http.MethodGet, gatewaysPath, nil); err != nil || status != http.StatusOK {
		t.Errorf("the API by way of the gateway: %d %v", status, err)
	}
	store, err := pki.OpenStore(filepath.Join(m.dir, certFolder))
	if err != nil {
		t.Fatal(err)
	}
	if cas, err := store.Trusted(); err != nil || len(cas) != 1 || pki.DigestOf(cas[0]).String() != w.ca().CAs[0].Digest {
		t.Errorf("it trusts %d CAs, %v", len(cas), err)
	}
	m.stop()
}

// TestGatewayMetricsAreWhatTheManualSays: the table of docs/metrics.md has every metric of a gateway, and no other.
func TestGatewayMetricsAreWhatTheManualSays(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ca, err := pki.NewCA("cluster-1", time.Now())
	must(err)
	certs, err := pki.OpenStore(t.TempDir())
	must(err)
	must(certs.Enroll(ca, pki.Identity{Role: pki.RoleGateway, ID: "g1"}, time.Hour, time.Now()))
	g, err := gateway.New(gateway.Config{
		Certs: certs, Schedulers: []string{"127.0.0.1:1"}, Domain: "p.test", DrainLimit: time.Minute, Log: log, PerAddress: 1, PerAccount: 1, All: 1,
	})
	must(err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	mux, err := agentrpc.NewMux(ln, certs, agentrpc.MuxConfig{Log: log, DataOnly: true})
	must(err)
	defer func() { must(mux.Close()) }()
	front := &apiServer{server: rest.NewServer(http.NotFoundHandler(), rest.Limits{Connections: 64, PerAddress: 64}, log)}
	r, api, pods := gatewayMetrics(g, front, mux)
	for _, face := range []*scrape.Requests{api, pods} {
		face.Serve(http.NotFoundHandler(), httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	metricstable.Check(t, r, "gantry_gateway_")
}

func TestSettingsOfAGateway(t *testing.T) {
	c := gatewayRunCmd{DrainLimit: 200 * time.Hour, frontFlags: frontFlags{Listen: "0.0.0.0:80"}}
	err := c.validate()
	for _, name := range []string{"--drain-limit", "--listen", "--max-proxied"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not among %v", name, err)
		}
	}
}

func TestFilesOfTLSInAFolder(t *testing.T) {
	d := tlsFolder(filepath.Join(t.TempDir(), "tls"))
	if names, err := d.TLSFiles(""); err != nil || len(names) != 0 {
		t.Errorf("%v %v", names, err)
	}
	if _, _, err := d.TLSFile("acme/a"); err == nil {
		t.Error("a file that is not there")
	}
	for _, name := range []string{"acme/b", "acme/a"} {
		if err := d.PutTLSFile(t.Context(), name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"../a", "/etc/a", ""} {
		if err := d.PutTLSFile(t.Context(), bad, nil); err == nil {
			t.Errorf("%q was written", bad)
		}
	}
	if names, err := d.TLSFiles("acme/"); err != nil || !slices.Equal(names, []string{"acme/a", "acme/b"}) {
		t.Errorf("%v %v", names, err)
	}
	if text, at, err := d.TLSFile("acme/a"); err != nil || string(text) != "acme/a" || at.IsZero() {
		t.Errorf("%q %v %v", text, at, err)
	}
	if err := errors.Join(d.DeleteTLSFile(t.Context(), "acme/a"), d.DeleteTLSFile(t.Context(), "acme/a")); err != nil {
		t.Error(err)
	}
	if _, _, err := d.TLSFile("acme/a"); err == nil {
		t.Error("it was not deleted")
	}
}
