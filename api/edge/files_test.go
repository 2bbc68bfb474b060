package edge

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/api/edge/edgetest"
)

// selfSigned makes a certificate for a name and whatever is below it.
func selfSigned(t *testing.T, name string, from, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name, "*." + name}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// lay puts a certificate and a key into files, as a program that renews does: each is replaced at once.
func lay(t *testing.T, p Pair, cert, key tls.Certificate) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{p.Key: pemOf("PRIVATE KEY", der), p.Cert: pemOf("CERTIFICATE", cert.Certificate[0])} {
		if err := os.WriteFile(path+".new", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

// lines is a log that is read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.buf.String(), text)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// Certificates are changed while requests run, wrong ones in between: no connection is lost and no request fails.
func TestReloadUnderTraffic(t *testing.T) {
	now := time.Now()
	first, second := selfSigned(t, "gantry.test", now.Add(-time.Hour), now.Add(time.Hour)), selfSigned(t, "gantry.test", now.Add(-time.Hour), now.Add(2*time.Hour))
	past := selfSigned(t, "gantry.test", now.Add(-2*time.Hour), now.Add(-time.Hour))
	dir := t.TempDir()
	pair := Pair{filepath.Join(dir, "crt"), filepath.Join(dir, "key")}
	lay(t, pair, first, first)
	said := &lines{}
	files, err := OpenFiles([]Pair{pair}, slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ln, _ := listen(t)
	m := newMember(t, ln)
	m.front.Files = files
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = files.Run(ctx, 5*time.Millisecond) })
	roots := x509.NewCertPool()
	roots.AddCert(first.Leaf)
	roots.AddCert(second.Leaf)
	addr := ln.Addr().String()
	for _, keep := range []bool{true, false} {
		wg.Go(func() { traffic(ctx, t, addr, roots, keep) })
	}
	defer wg.Wait()
	defer cancel()
	shows := func(c tls.Certificate) bool {
		state, err := m.shown(&edgetest.Authority{Users: roots}, "gantry.test")
		return err == nil && state.PeerCertificates[0].Equal(c.Leaf)
	}
	if !shows(first) {
		t.Fatal("not the first certificate")
	}
	lay(t, pair, second, first)
	eventually(t, "the wrong key is told", func() bool { return said.has("private key does not match public key") })
	lay(t, pair, past, past)
	eventually(t, "the end is told", func() bool { return said.has("it ended on") })
	if err := os.Remove(pair.Cert); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the missing file is told", func() bool { return said.has("no such file") })
	if !shows(first) {
		t.Error("not the certificate of before")
	}
	lay(t, pair, second, second)
	eventually(t, "the second certificate counts", func() bool { return shows(second) })
}

// What the log says to do is enough: a key whose mode alone is mended counts, too. Until then it is said once.
func TestAMendedKeyCounts(t *testing.T) {
	now := time.Now()
	first, second := selfSigned(t, "gantry.test", now.Add(-time.Hour), now.Add(time.Hour)), selfSigned(t, "gantry.test", now.Add(-time.Hour), now.Add(2*time.Hour))
	dir := t.TempDir()
	pair := Pair{filepath.Join(dir, "crt"), filepath.Join(dir, "key")}
	lay(t, pair, first, first)
	said := &lines{}
	files, err := OpenFiles([]Pair{pair}, slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	counts := func(c tls.Certificate) bool {
		return files.Certificate(&tls.ClientHelloInfo{}).Leaf.Equal(c.Leaf)
	}
	lay(t, pair, second, second)
	if err := os.Chmod(pair.Key, 0o644); err != nil { //nolint:gosec // that is the point
		t.Fatal(err)
	}
	files.look()
	files.look()
	if !counts(first) || said.count("chmod o=") != 1 {
		t.Errorf("the open key is said %d times, the first certificate counts: %t", said.count("chmod o="), counts(first))
	}
	if err := os.Chmod(pair.Key, 0o600); err != nil {
		t.Fatal(err)
	}
	files.look()
	if !counts(second) {
		t.Error("the mended key does not count")
	}
	later := selfSigned(t, "gantry.test", now.Add(time.Hour), now.Add(3*time.Hour))
	lay(t, pair, later, later)
	files.look()
	if !counts(second) || !said.has("it begins on") {
		t.Error("a certificate counts before its time")
	}
	front := FrontEnd{Files: files}
	if ends := front.Ends(); len(ends) != 1 || !ends["gantry.test"].Equal(second.Leaf.NotAfter) {
		t.Errorf("got %v", ends)
	}
}

// traffic asks again and again, over one connection or a new one each time.
func traffic(ctx context.Context, t *testing.T, addr string, roots *x509.CertPool, keep bool) {
	conns := 0
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{ServerName: "gantry.test", RootCAs: roots}, ForceAttemptHTTP2: true, DisableKeepAlives: !keep,
	}
	defer tr.CloseIdleConnections()
	for n := 0; ctx.Err() == nil; n++ {
		trace := func() (*http.Response, error) {
			req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, "https://"+addr, nil)
			if err != nil {
				return nil, err
			}
			return tr.RoundTrip(req)
		}
		resp, err := trace()
		if err != nil {
			t.Errorf("request %d: %v", n, err)
			return
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || keep && string(body) != "HTTP/2.0" {
			t.Errorf("request %d: %q, %v", n, body, err)
			return
		}
		conns++
	}
	if conns == 0 {
		t.Error("there was no traffic")
	}
}

func TestWrongFilesAreNamed(t *testing.T) {
	now := time.Now()
	one, other := selfSigned(t, "a.test", now, now.Add(time.Hour)), selfSigned(t, "b.test", now, now.Add(time.Hour))
	dir := t.TempDir()
	pair := Pair{filepath.Join(dir, "crt"), filepath.Join(dir, "key")}
	open := func() error { _, err := OpenFiles([]Pair{pair}, slog.New(slog.DiscardHandler)); return err }
	fails := func(text string) {
		t.Helper()
		if err := open(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, and not %q", err, text)
		}
	}
	fails("no such file")
	lay(t, pair, one, other)
	fails("private key does not match public key")
	lay(t, pair, one, one)
	if err := os.Chmod(pair.Key, 0o644); err != nil { //nolint:gosec // that is the point
		t.Fatal(err)
	}
	fails("can be used by everybody: chmod o= " + pair.Key)
	if err := os.WriteFile(pair.Cert, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(pair.Key, 0o600)
	fails("failed to find any PEM data")
}

func TestTheNameChoosesTheCertificate(t *testing.T) {
	now := time.Now()
	dir := t.TempDir()
	var pairs []Pair
	roots := x509.NewCertPool()
	for _, name := range []string{"api.test", "pods.test"} {
		c := selfSigned(t, name, now.Add(-time.Minute), now.Add(time.Hour))
		p := Pair{filepath.Join(dir, name), filepath.Join(dir, name+".key")}
		lay(t, p, c, c)
		pairs = append(pairs, p)
		roots.AddCert(c.Leaf)
	}
	files, err := OpenFiles(pairs, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln, _ := listen(t)
	m := newMember(t, ln)
	m.front.Files = files
	for _, name := range []string{"api.test", "x-80.pods.test"} {
		if _, err := m.shown(&edgetest.Authority{Users: roots}, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	old := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10} //nolint:gosec // refused
	if conn, err := tls.Dial("tcp", ln.Addr().String(), old); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
}

func TestRedirect(t *testing.T) {
	h := Redirect("8443", func(_ http.ResponseWriter, r *http.Request) bool {
		return strings.HasPrefix(r.URL.Path, "/.well-known/")
	})
	ask := func(method, url, key string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, url, nil)
		if key != "" {
			r.Header.Set("Authorization", key)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	if w := ask("GET", "http://api.test:80/v2/pods?a=1", ""); w.Code != 308 || w.Header().Get("Location") != "https://api.test:8443/v2/pods?a=1" {
		t.Errorf("got %d %s", w.Code, w.Header().Get("Location"))
	}
	for url, want := range map[string]string{"http://[::1]:80/a": "https://[::1]:8443/a", "http://[::1]/a": "https://[::1]:8443/a"} {
		if w := ask("GET", url, ""); w.Header().Get("Location") != want {
			t.Errorf("%s leads to %s", url, w.Header().Get("Location"))
		}
	}
	usual := httptest.NewRecorder()
	Redirect("443", func(http.ResponseWriter, *http.Request) bool { return false }).ServeHTTP(usual, httptest.NewRequest("GET", "http://[::1]:80/a", nil))
	if usual.Header().Get("Location") != "https://[::1]/a" {
		t.Errorf("got %s", usual.Header().Get("Location"))
	}
	for _, w := range []*httptest.ResponseRecorder{ask("POST", "http://api.test/v2/pods", ""), ask("GET", "http://api.test/v2/pods", "Bearer k")} {
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "in the clear") {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
	}
	if w := ask("GET", "http://api.test/.well-known/x", ""); w.Code != 200 {
		t.Errorf("a challenge got %d", w.Code)
	}
}
