package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gantry/internal/scrape"
)

// selfMade lays down a certificate that vouches for itself, for a name that is none of this machine's, and its key.
func selfMade(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name + ".gantry.test"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	leaf, err := x509.CreateCertificate(rand.Reader, form, form, &pair.PublicKey, pair)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(pair)
	if err != nil {
		t.Fatal(err)
	}
	write := func(file, kind string, der []byte) string {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write(name+".crt", "CERTIFICATE", leaf), write(name+".key", "PRIVATE KEY", secret)
}

// TestMetricsOverTLSAreRead: the daemon's certificate is for another name, it wants a token, and a client's certificate.
func TestMetricsOverTLSAreRead(t *testing.T) {
	dir := t.TempDir()
	cert, key := selfMade(t, dir, "agent")
	other, _ := selfMade(t, dir, "other")
	clientCert, clientKey := selfMade(t, dir, "prometheus")
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("a-token-of-16-characters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	flags := scrape.Flags{TLSCert: cert, TLSKey: key, ClientCA: clientCert, TokenFile: token}
	done := make(chan struct{})
	ctx := t.Context()
	go func() {
		defer close(done)
		scrape.Server{Addr: fmt.Sprintf("0.0.0.0:%d", port), Registry: scrape.NewRegistry(), Log: slog.New(slog.DiscardHandler), Secure: flags.Source()}.Run(ctx)
	}()
	t.Cleanup(func() { <-done })
	settings := fmt.Sprintf("metrics = \"0.0.0.0:%d\"\nmetrics-tls-cert = %q\nmetrics-tls-key = %q\nmetrics-client-ca = %q\nmetrics-token-file = %q\n", port, cert, key, clientCert, token)
	if err := os.WriteFile(filepath.Join(dir, "agent.toml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	from := metricsOf(dir)
	if len(from) != 1 || from[0].url != fmt.Sprintf("https://127.0.0.1:%d/metrics", port) {
		t.Fatalf("%+v", from)
	}
	pair, err := debugBundleCmd{MetricsClientCert: clientCert, MetricsClientKey: clientKey}.clientPair()
	if err != nil {
		t.Fatal(err)
	}
	read := func(s scraped, pair *tls.Certificate, want string) {
		t.Helper()
		text, err := s.fetch(ctx, pair)
		if got := string(text) + fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	deadline := time.Now().Add(time.Minute)
	for { // it is being started
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	read(from[0], pair, "process_start_time_seconds")
	read(from[0], nil, "--metrics-client-cert")
	noToken, another := from[0], from[0]
	noToken.tokenFile, another.cert = "", other
	read(noToken, pair, "401")
	read(another, pair, "does not show the certificate of "+other)
}

func TestWhereMetricsOfThisMachineAreReached(t *testing.T) {
	for addr, want := range map[string]string{
		"0.0.0.0:9412": "127.0.0.1:9412", "[::]:9412": "[::1]:9412", ":9412": "127.0.0.1:9412", "10.0.0.1:9412": "10.0.0.1:9412", "[fd00::1]:9412": "[fd00::1]:9412",
	} {
		if got := hereOf(addr); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

func TestClientCertificatesForMetricsThatAreRefused(t *testing.T) {
	s := newSite(t)
	path := filepath.Join(t.TempDir(), "a.tar.gz")
	var out strings.Builder
	if code, text := s.run(t.Context(), io.Writer(&out), "debug bundle "+path+" --metrics-client-cert c.crt"); code != exitUsage || !strings.Contains(text, "go together") {
		t.Errorf("%d %s", code, text)
	}
	s.bad(exitUsage, "debug bundle "+path+" --metrics-client-cert /no/crt --metrics-client-key /no/key")
}
