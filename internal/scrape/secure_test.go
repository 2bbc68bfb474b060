package scrape

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gantry/internal/share"
)

// folder is where a test keeps certificates.
type folder struct {
	*testing.T
	dir string
	ca  tls.Certificate
}

func newFolder(t *testing.T) *folder {
	f := &folder{T: t, dir: t.TempDir()}
	f.ca = f.issue("ca", nil)
	return f
}

func (f *folder) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// issue makes NAME.crt and NAME.key, by the CA, or the CA itself.
func (f *folder) issue(name string, by *tls.Certificate) tls.Certificate {
	f.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	f.must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: by == nil, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	parent, signer := template, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	f.must(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	f.must(err)
	crt := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pkcs8 := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	f.write(name+".crt", string(crt), 0o644)
	f.write(name+".key", string(pkcs8), 0o600)
	pair, err := tls.X509KeyPair(crt, pkcs8)
	f.must(err)
	return pair
}

func (f *folder) write(name, text string, mode os.FileMode) {
	f.Helper()
	f.must(os.WriteFile(f.at(name), []byte(text), mode))
	f.must(os.Chmod(f.at(name), mode))
}

func (f *folder) at(name string) string { return filepath.Join(f.dir, name) }

// serve serves metrics with the flags and returns the address.
func (f *folder) serve(flags Flags) string {
	f.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	f.must(err)
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan error, 1)
	s := Server{Registry: NewRegistry(), Log: slog.New(slog.DiscardHandler), Secure: flags.Source()}
	go func() { done <- s.Serve(ctx, l) }()
	f.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			f.Error(err)
		}
	})
	return l.Addr().String()
}

// ask asks for metrics; 0: the connection was refused.
func (f *folder) ask(addr, token string, certs ...tls.Certificate) int {
	f.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(f.ca.Leaf)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certs}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(f.Context(), http.MethodGet, "https://"+addr+"/metrics", nil)
	f.must(err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Do(req)
	if err != nil {
		return 0
	}
	text, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if (resp.StatusCode == http.StatusOK) != strings.Contains(string(text), "go_goroutines") {
		f.Errorf("%d: %.80q", resp.StatusCode, text)
	}
	return resp.StatusCode
}

// TestOnlyWhoIsNamedReadsMetrics: by a certificate, by a token, by both.
func TestOnlyWhoIsNamedReadsMetrics(t *testing.T) {
	f := newFolder(t)
	f.issue("daemon", &f.ca)
	prometheus := f.issue("prometheus", &f.ca)
	stranger := newFolder(t).ca
	const token = "0123456789abcdef"
	f.write("token", token+"\n", 0o600)
	plain := Flags{TLSCert: f.at("daemon.crt"), TLSKey: f.at("daemon.key")}
	byCert, byToken, byBoth := plain, plain, plain
	byCert.ClientCA, byToken.TokenFile = f.at("ca.crt"), f.at("token")
	byBoth.ClientCA, byBoth.TokenFile = f.at("ca.crt"), f.at("token")

	at := f.serve(byCert)
	for name, got := range map[string][2]int{
		"a certificate": {f.ask(at, "", prometheus), 200}, "none": {f.ask(at, "")}, "a stranger's": {f.ask(at, "", stranger)}, "a token": {f.ask(at, token)},
	} {
		if got[0] != got[1] {
			t.Errorf("by certificate, %s: %d", name, got[0])
		}
	}
	at = f.serve(byToken)
	for name, got := range map[string][2]int{
		"the token": {f.ask(at, token), 200}, "none": {f.ask(at, ""), 401}, "another": {f.ask(at, token+"x"), 401}, "a certificate": {f.ask(at, "", prometheus), 401},
	} {
		if got[0] != got[1] {
			t.Errorf("by token, %s: %d", name, got[0])
		}
	}
	at = f.serve(byBoth)
	if a, b, c := f.ask(at, token, prometheus), f.ask(at, "", prometheus), f.ask(at, token); a != 200 || b != 401 || c != 0 {
		t.Errorf("by both: %d %d %d", a, b, c)
	}
}

// TestMetricsBeyondLoopbackNeedTLSAndProof of who asks.
func TestMetricsBeyondLoopbackNeedTLSAndProof(t *testing.T) {
	f := newFolder(t)
	f.issue("daemon", &f.ca)
	f.write("token", "0123456789abcdef", 0o600)
	f.write("short", "0123456789", 0o600)
	f.write("open", "0123456789abcdef", 0o644)
	f.write("empty.crt", "", 0o644)
	pair := Flags{TLSCert: f.at("daemon.crt"), TLSKey: f.at("daemon.key")}
	with := func(change func(*Flags)) Flags {
		x := pair
		change(&x)
		return x
	}
	token := with(func(x *Flags) { x.TokenFile = f.at("token") })
	for _, good := range []struct {
		flags Flags
		addr  string
	}{
		{Flags{}, ""},
		{Flags{}, "127.0.0.1:9412"},
		{Flags{}, "127.0.0.7:1"},
		{Flags{}, "[::1]:9412"},
		{pair, "127.0.0.1:9412"},
		{token, "0.0.0.0:9412"},
		{token, "[::]:1"},
		{with(func(x *Flags) { x.ClientCA = f.at("ca.crt") }), "10.0.0.1:9412"},
	} {
		if err := good.flags.Validate(good.addr); err != nil {
			t.Errorf("%+v %s: %v", good.flags, good.addr, err)
		}
	}
	for want, bad := range map[string]struct {
		flags Flags
		addr  string
	}{
		"loopback, such as 127.0.0.1:9412":                           {pair, "0.0.0.0:9412"},
		"--metrics must be an address and a port of this host, such": {token, "9412"},
		"go together":                        {with(func(x *Flags) { x.TLSKey = "" }), "127.0.0.1:1"},
		"need --metrics-tls-cert":            {Flags{TokenFile: f.at("token")}, "127.0.0.1:1"},
		"fewer than 16 characters":           {with(func(x *Flags) { x.TokenFile = f.at("short") }), "10.0.0.1:1"},
		"--metrics-token-file: ":             {with(func(x *Flags) { x.TokenFile = f.at("open") }), "10.0.0.1:1"},
		"--metrics-client-ca holds no cert":  {with(func(x *Flags) { x.ClientCA = f.at("empty.crt") }), "10.0.0.1:1"},
		"--metrics-client-ca: open":          {with(func(x *Flags) { x.ClientCA = f.at("none") }), "10.0.0.1:1"},
		"--metrics-tls-cert and --metrics-t": {with(func(x *Flags) { x.TLSKey, x.TokenFile = f.at("ca.key"), f.at("token") }), "10.0.0.1:1"},
	} {
		if err := bad.flags.Validate(bad.addr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, bad := range []string{"9412", ":9412", "0.0.0.0:9412", "[::]:9412", "192.0.2.1:9412", "localhost:9412", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000"} {
		if (Flags{}).Validate(bad) == nil {
			t.Errorf("%s passes", bad)
		}
	}
}

// TestChangedFilesCountAndBrokenOnesDoNot until they are whole again.
func TestChangedFilesCountAndBrokenOnesDoNot(t *testing.T) {
	f := newFolder(t)
	f.issue("daemon", &f.ca)
	f.write("token", "0123456789abcdef", 0o600)
	k := &keeper{read: Flags{TLSCert: f.at("daemon.crt"), TLSKey: f.at("daemon.key"), TokenFile: f.at("token")}.Read}
	shown := func() string {
		k.at = time.Now().Add(-2 * reload)
		m, _, err := k.current()
		f.must(err)
		return string(m.Token)
	}
	first := shown()
	f.write("token", "short", 0o600)
	second := shown()
	f.write("token", "fedcba9876543210", 0o600)
	if third := shown(); first != "0123456789abcdef" || second != first || third != "fedcba9876543210" {
		t.Errorf("%q %q %q", first, second, third)
	}
}

// TestScrapersAreBounded: in connections, of an address and in all, and in the bytes and the time of a request's head.
func TestScrapersAreBounded(t *testing.T) {
	f := newFolder(t)
	addr := f.serve(Flags{})
	dial := func(n byte) net.Conn {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, n)}}).Dial("tcp", addr)
		f.must(err)
		t.Cleanup(func() { _ = c.Close() })
		f.must(c.SetDeadline(time.Now().Add(time.Minute)))
		return c
	}
	closed := func(c net.Conn) bool {
		_, err := c.Read(make([]byte, 1))
		return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	}
	for range PerAddress {
		dial(2)
	}
	if !closed(dial(2)) {
		t.Error("an address has more than its connections")
	}
	other := dial(3)
	status := func(head string) int {
		if _, err := io.WriteString(other, head); err != nil {
			return 0
		}
		resp, err := http.ReadResponse(bufio.NewReader(other), nil)
		if err != nil {
			return 0
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if got := status("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"); got != http.StatusOK {
		t.Errorf("another address: %d", got)
	}
	if got := status("GET /metrics HTTP/1.1\r\nX: " + strings.Repeat("x", 16<<10) + "\r\n\r\n"); got != 0 && got != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a large head: %d", got)
	}
	if share.Of("127.0.0.2:1") == share.Of("127.0.0.3:1") {
		t.Error("they count as one")
	}
}
