package agentrpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"gantry/internal/pki"
)

const testDeadline = 2 * time.Minute

var (
	hostID      = pki.Identity{Role: pki.RoleHost, ID: "host1"}
	schedulerID = pki.Identity{Role: pki.RoleScheduler, ID: "sched1"}
)

// checkLeaks fails the test if a goroutine outlives all its other clean-ups. Call it first.
func checkLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	t.Cleanup(cancel)
	return ctx
}

// newCA makes a CA two days old, so that it can have issued certificates which are expired now.
func newCA(t *testing.T) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA("cluster-1", time.Now().Add(-48*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func newStore(t *testing.T, ca *pki.CA, id pki.Identity) *pki.Store {
	t.Helper()
	return newStoreAt(t, ca, id, time.Now())
}

func newStoreAt(t *testing.T, ca *pki.CA, id pki.Identity, issued time.Time) *pki.Store {
	t.Helper()
	store, err := pki.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Enroll(ca, id, time.Hour, issued); err != nil {
		t.Fatal(err)
	}
	return store
}

// certWith issues a certificate of ca for a fresh key and presents it with the given chain behind it.
func certWith(t *testing.T, ca *pki.CA, id pki.Identity, issued time.Time, chain ...*x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(csr, id, time.Hour, issued)
	if err != nil {
		t.Fatal(err)
	}
	cert := tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return cert
}

// handshake runs both ends over loopback TCP until both ends know the outcome, and returns their errors.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx := testContext(t)
	result := make(chan error, 1)
	go func() {
		raw, err := ln.Accept()
		if err != nil {
			result <- err
			return
		}
		defer raw.Close()
		conn := tls.Server(raw, server)
		if err = conn.HandshakeContext(ctx); err == nil {
			_, err = conn.Write([]byte("x"))
		}
		result <- err
	}()
	dialer := tls.Dialer{Config: client}
	conn, clientErr := dialer.DialContext(ctx, "tcp", ln.Addr().String())
	if clientErr == nil {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testDeadline))
		// The server's refusal arrives after the client's own handshake has ended.
		_, clientErr = io.ReadFull(conn, make([]byte, 1))
	}
	return <-result, clientErr
}

func TestClientsVerifyServer(t *testing.T) {
	checkLeaks(t)
	ca, twin := newCA(t), newCA(t)
	now, past := time.Now(), time.Now().Add(-30*time.Hour)
	host := newStore(t, ca, hostID)
	tests := []struct {
		name   string
		server tls.Certificate
		host   bool // a host accepts it
		join   bool // a joining node accepts it
	}{
		{"scheduler", certWith(t, ca, schedulerID, now, ca.Cert()), true, true},
		{"CA behind another certificate", certWith(t, ca, schedulerID, now, twin.Cert(), ca.Cert()), true, true},
		{"without the CA in its chain", certWith(t, ca, schedulerID, now), true, false},
		{"host", certWith(t, ca, hostID, now, ca.Cert()), false, false},
		{"expired", certWith(t, ca, schedulerID, past, ca.Cert()), false, false},
		{"another CA of the same name", certWith(t, twin, schedulerID, now, twin.Cert()), false, false},
		{"another CA, with the right one shown behind it", certWith(t, twin, schedulerID, now, ca.Cert()), false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := &tls.Config{Certificates: []tls.Certificate{tt.server}, NextProtos: []string{ALPNGRPC}}
			config, err := HostClientTLS(host)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := handshake(t, server, config); (err == nil) != tt.host {
				t.Errorf("host: %v", err)
			}
			config.InsecureSkipVerify = true // our own check holds without the standard one
			if _, err := handshake(t, server, config); (err == nil) != tt.host {
				t.Errorf("host, own check alone: %v", err)
			}
			join := JoinClientTLS(pki.NewJoinToken(ca.Digest()))
			if _, err := handshake(t, server, join.Config()); (err == nil) != tt.join {
				t.Errorf("join: %v", err)
			}
			if got := join.CA(); tt.join != (got != nil) || (got != nil && !got.Equal(ca.Cert())) {
				t.Errorf("CA after joining: %v", got)
			}
		})
	}
}

func TestJoinSaysThatTokenIsForAnotherCluster(t *testing.T) {
	checkLeaks(t)
	ca := newCA(t)
	server := &tls.Config{Certificates: []tls.Certificate{certWith(t, ca, schedulerID, time.Now(), ca.Cert())}}
	_, err := handshake(t, server, JoinClientTLS(pki.NewJoinToken(newCA(t).Digest())).Config())
	if err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("error %v", err)
	}
}

func TestClientsRefuseTLS12Server(t *testing.T) {
	checkLeaks(t)
	ca := newCA(t)
	server := &tls.Config{
		Certificates: []tls.Certificate{certWith(t, ca, schedulerID, time.Now(), ca.Cert())},
		MaxVersion:   tls.VersionTLS12,
	}
	config, err := HostClientTLS(newStore(t, ca, hostID))
	if err != nil {
		t.Fatal(err)
	}
	for name, client := range map[string]*tls.Config{"host": config, "join": JoinClientTLS(pki.NewJoinToken(ca.Digest())).Config()} {
		if _, err := handshake(t, server, client); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestServerVerifiesClient(t *testing.T) {
	checkLeaks(t)
	ca, twin := newCA(t), newCA(t)
	now, past := time.Now(), time.Now().Add(-30*time.Hour)
	server, err := ServerTLS(newStore(t, ca, schedulerID))
	if err != nil {
		t.Fatal(err)
	}
	host, scheduler := certWith(t, ca, hostID, now), certWith(t, ca, schedulerID, now)
	expired, foreign := certWith(t, ca, hostID, past), certWith(t, twin, hostID, now, ca.Cert())
	foreignPeer := certWith(t, twin, schedulerID, now, twin.Cert())
	nameless := signed(t, ca, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	tests := []struct {
		name   string
		cert   *tls.Certificate
		protos []string
		max    uint16
		ok     bool
	}{
		{"host, gRPC", &host, []string{ALPNGRPC}, 0, true},
		{"nobody, gRPC", nil, []string{ALPNGRPC}, 0, true},
		{"scheduler, gRPC", &scheduler, []string{ALPNGRPC}, 0, true},
		{"scheduler, raft", &scheduler, []string{ALPNRaft}, 0, true},
		{"scheduler, jobs", &scheduler, []string{ALPNJobs}, 0, true},
		{"host, jobs", &host, []string{ALPNJobs}, 0, false},
		{"nobody, jobs", nil, []string{ALPNJobs}, 0, false},
		{"host, data", &host, []string{ALPNData}, 0, true},
		{"scheduler, data", &scheduler, []string{ALPNData}, 0, false},
		{"nobody, data", nil, []string{ALPNData}, 0, false},
		{"host of another CA, data", &foreign, []string{ALPNData}, 0, false},
		{"expired host, data", &expired, []string{ALPNData}, 0, false},
		{"host, raft", &host, []string{ALPNRaft}, 0, false},
		{"nobody, raft", nil, []string{ALPNRaft}, 0, false},
		{"scheduler of another CA, raft", &foreignPeer, []string{ALPNRaft}, 0, false},
		{"expired host", &expired, []string{ALPNGRPC}, 0, false},
		{"host of another CA", &foreign, []string{ALPNGRPC}, 0, false},
		{"TLS 1.2", &host, []string{ALPNGRPC}, tls.VersionTLS12, false},
		{"a certificate without a name", &nameless, []string{ALPNGRPC}, 0, false},
		{"no protocol", &host, nil, 0, false},
		{"HTTP/1.1", &host, []string{"http/1.1"}, 0, false},
		{"unknown protocol", &scheduler, []string{"other"}, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client := &tls.Config{InsecureSkipVerify: true, NextProtos: tt.protos, MaxVersion: tt.max}
			if tt.cert != nil {
				client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return tt.cert, nil }
			}
			serverErr, clientErr := handshake(t, server, client)
			if (serverErr == nil) != tt.ok || (clientErr == nil) != tt.ok {
				t.Errorf("server: %v; client: %v", serverErr, clientErr)
			}
		})
	}
}

func TestServerOffersNoResumption(t *testing.T) {
	checkLeaks(t)
	ca := newCA(t)
	server, err := ServerTLS(newStore(t, ca, schedulerID))
	if err != nil {
		t.Fatal(err)
	}
	client, err := HostClientTLS(newStore(t, ca, hostID))
	if err != nil {
		t.Fatal(err)
	}
	client.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	verify := client.VerifyConnection
	client.VerifyConnection = func(state tls.ConnectionState) error {
		if state.DidResume {
			t.Error("resumed")
		}
		return verify(state)
	}
	for range 3 {
		if serverErr, clientErr := handshake(t, server, client); serverErr != nil || clientErr != nil {
			t.Fatal(serverErr, clientErr)
		}
	}
}

func TestStoreThatHasNotJoined(t *testing.T) {
	checkLeaks(t)
	store, err := pki.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, serverErr := ServerTLS(store)
	_, clientErr := HostClientTLS(store)
	_, dialErr := DialRaft(testContext(t), store, "127.0.0.1:1")
	for _, err := range []error{serverErr, clientErr, dialErr} {
		if !errors.Is(err, pki.ErrNotJoined) {
			t.Errorf("error %v", err)
		}
	}
}

// TestServerCredentialsRefuseUnprotectedConnection gives the server's credentials a listener that is not behind a mux.
func TestServerCredentialsRefuseUnprotectedConnection(t *testing.T) {
	checkLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := serveHealth(t, ln)
	if _, err := whoami(t, addr, insecure.NewCredentials()); err == nil {
		t.Error("a plain connection was served")
	}
	if _, _, err := ServerCredentials().ClientHandshake(context.Background(), "", nil); err == nil {
		t.Error("the credentials work for a client")
	}
}

func TestPeerIdentityWithoutPeer(t *testing.T) {
	for name, ctx := range map[string]context.Context{
		"no call": t.Context(), "no TLS": peer.NewContext(t.Context(), &peer.Peer{}),
	} {
		if _, err := PeerIdentity(ctx); !errors.Is(err, ErrNoIdentity) {
			t.Errorf("%s: %v", name, err)
		}
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if _, err := ConnIdentity(near); !errors.Is(err, ErrNoIdentity) {
		t.Errorf("a connection without TLS: %v", err)
	}
	if _, _, err := ServerCredentials().ServerHandshake(tls.Server(near, &tls.Config{})); err == nil {
		t.Error("a handshake that was not made was taken")
	}
}

// signed makes a certificate with a CA's own key that the CA would not.
func signed(t *testing.T, ca *pki.CA, template *x509.Certificate) tls.Certificate {
	t.Helper()
	text, err := ca.EncodeKey()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	caKey, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(7), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, public := ca.Cert(), any(&key.PublicKey)
	if template.IsCA { // it signs itself with the CA's key
		parent, public = template, ca.Cert().PublicKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, caKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestWhatIsToBeTrustedHasTheSchedulersOwnCA by its key and by its cluster.
func TestWhatIsToBeTrustedHasTheSchedulersOwnCA(t *testing.T) {
	ca := newCA(t)
	join := JoinClientTLS(pki.NewJoinToken(ca.Digest()))
	join.ca.Store(ca.Cert())
	for _, raw := range [][][]byte{nil, {ca.Cert().Raw}} {
		if trust, err := join.Trusted(raw); err != nil || len(trust) != 1 || !trust[0].Equal(ca.Cert()) {
			t.Errorf("%d named: %d, %v", len(raw), len(trust), err)
		}
	}
	other := signed(t, ca, &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster-2"}},
	})
	if _, err := join.Trusted(other.Certificate); err == nil || !strings.Contains(err.Error(), "own CA is none of those") {
		t.Errorf("the same key for another cluster: %v", err)
	}
}

func TestOtherProtocolsAreNotDialled(t *testing.T) {
	checkLeaks(t)
	ca := newCA(t)
	server := &tls.Config{Certificates: []tls.Certificate{certWith(t, ca, schedulerID, time.Now(), ca.Cert())}} // names no protocol
	ln, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ended := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			_, _ = io.Copy(io.Discard, conn)
			err = conn.Close()
		}
		ended <- err
	}()
	if _, err := DialHTTP(testContext(t), newStore(t, ca, schedulerID), ln.Addr().String()); err == nil || !strings.Contains(err.Error(), "it does not speak gantry-http") {
		t.Errorf("%v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// serveHealth runs a gRPC server with the health service on ln, whose answers carry what PeerIdentity said in the header "peer".
func serveHealth(t *testing.T, ln net.Listener) string {
	t.Helper()
	tell := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		text := "nobody"
		if id, err := PeerIdentity(ctx); err == nil {
			text = id.String()
		} else if !errors.Is(err, ErrNoIdentity) {
			text = err.Error()
		}
		if err := grpc.SetHeader(ctx, metadata.Pairs("peer", text)); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
	server := grpc.NewServer(grpc.Creds(ServerCredentials()), grpc.UnaryInterceptor(tell))
	healthpb.RegisterHealthServer(server, newHealthServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	return ln.Addr().String()
}

// whoami calls the health service at addr and returns who the server thinks the caller is.
func whoami(t *testing.T, addr string, creds credentials.TransportCredentials) (string, error) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var header metadata.MD
	_, err = healthpb.NewHealthClient(conn).Check(testContext(t), &healthpb.HealthCheckRequest{}, grpc.Header(&header))
	return strings.Join(header.Get("peer"), ","), err
}
