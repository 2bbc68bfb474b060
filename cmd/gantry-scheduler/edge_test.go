package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gantry/api/edge/edgetest"
)

func TestEdgeFlags(t *testing.T) {
	const acme = "--listen :443 --acme-name api.gantry.test "
	for args, fault := range map[string]string{
		"":                                      "",
		"--listen localhost:80":                 "",
		"--listen [::1]:80":                     "",
		"--listen 127.9.9.9:80":                 "",
		"--listen 0.0.0.0:80":                   "--listen 0.0.0.0:80 is not loopback, so API keys would cross the network in the clear: give --tls-cert and --tls-key, or --acme-name;",
		"--listen :80":                          "--plain-http",
		"--listen api.gantry.test:80":           "--plain-http",
		"--listen 0.0.0.0:80 --plain-http":      "",
		"--tls-cert a --tls-key b --plain-http": "exclude each other",
		"--tls-cert a":                          "--tls-cert and --tls-key go together",
		"--listen :443 --tls-cert a --tls-key b --http-listen :80 --redirect-port 443": "",
		"--http-listen :80": "which needs a certificate",
		"--tls-cert a --tls-key b --redirect-port 65536":         "--redirect-port must be",
		"--trusted-proxies 10.0.0.0/24,::1":                      "",
		"--trusted-proxies ::ffff:10.0.0.0/104,::ffff:1.2.3.4":   "",
		"--trusted-proxies proxy":                                `--trusted-proxies "proxy" must be an address or a range`,
		acme:                                                     "",
		acme + "--acme-challenge http":                           "--acme-challenge http needs --http-listen",
		acme + "--acme-challenge dns":                            "--acme-challenge dns needs --acme-dns-command",
		acme + "--acme-name Api":                                 `--acme-name "Api" is not a lower-case DNS name`,
		acme + "--acme-directory http://ca.test":                 "--acme-directory must be an https address",
		acme + "--acme-dns-command /bin/true --proxy-domain *.x": `--proxy-domain "*.x" is not a lower-case DNS name`,
		acme + "--acme-dns-wait 6m":                              "--acme-dns-wait must be",
		acme + "--http-listen :80 --acme-dns-command /bin/true --proxy-domain pods.test": "",
		"--acme-dns-command /bin/true":                                    "--acme-name is required",
		"--model-hub http://10.0.0.1":                                     "--model-hub must be https",
		"--model-hub http://[::1]:80":                                     "",
		"--s3-url EU-RO-1=https://s3.test/ --s3-url dc=http://[::1]:9000": "",
		"--s3-url https://s3.test":                                        "--s3-url \"https://s3.test\" must be",
		"--s3-url dc=s3.test":                                             "--s3-url",
		"--s3-url dc=https://s3.test/path":                                "--s3-url",
		"--s3-url dc=https://me@s3.test":                                  "--s3-url",
		"--s3-url dc=https://s3.test;script-src":                          "--s3-url",
		"--s3-url dc=https://*":                                           "--s3-url",
		"--s3-url =https://s3.test":                                       "--s3-url",
	} {
		c := settings(t, strings.Fields(args)...)
		if err := c.validate(); (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// answer is what a machine said over TLS.
type answer struct {
	status, proto int
	strict, body  string
	id            string
}

// secure asks a machine over TLS for one of the names that lead to it.
func secure(t *testing.T, auth *edgetest.Authority, m *machine, host, path, key string, id ...string) (answer, error) {
	t.Helper()
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: auth.Users}, ForceAttemptHTTP2: true, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", m.api)
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+path, nil)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header["X-Request-Id"] = id
	req.Header.Set("X-Forwarded-For", "6.6.6.6, 192.0.2.9") // as a trusted proxy says it, to whom a client has told a lie
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.ProtoMajor, resp.Header.Get("Strict-Transport-Security"), string(body), resp.Header.Get("X-Request-Id")}, err
}

// Three schedulers share what one of them has ordered, whichever the certificate authority asks.
func TestSchedulersShareTheirCertificates(t *testing.T) {
	w := three(t)
	_, port, err := net.SplitHostPort(w.all[0].api)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	auth := edgetest.NewAuthority(t, number, 24*time.Hour)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, auth.ServerPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	plain, metrics := freePort(t), freePort(t)
	for _, m := range w.all {
		m.kill()
	}
	for i, m := range w.all {
		args := []string{
			"--acme-name", "api.gantry.test", "--acme-directory", auth.URL, "--acme-roots", roots, "--acme-challenge", "tls-alpn",
			"--debug", "--proxy-domain", "pods.gantry.test", "--acme-dns-command", auth.Command, "--trusted-proxies", "127.0.0.1",
		}
		if i == 0 {
			args = append(args, "--http-listen", plain, "--redirect-port", "443", "--metrics", metrics)
		}
		m.start(args...)
	}
	for _, m := range w.all {
		var last string
		w.eventually("a certificate at each scheduler", func() bool {
			got, err := secure(t, auth, m, "api.gantry.test", "/admin/v1/accounts", w.keys.AdminKey)
			_, err2 := secure(t, auth, m, "pod-80.pods.gantry.test", "/", "")
			last = fmt.Sprint(got, err, err2)
			return err == nil && err2 == nil && got.status == http.StatusOK && got.proto == 2 && got.strict == "max-age=31536000"
		}, func() string { return last })
	}
	if got, err := secure(t, auth, w.all[0], "pod-80.pods.gantry.test", "/livez", ""); err != nil || got.status == http.StatusOK || got.strict != "" {
		t.Errorf("a pod's own answers are not the scheduler's: %+v, %v", got, err)
	}
	if auth.Orders() != 2 || auth.Set() != 1 || auth.Records() != 0 {
		t.Errorf("%d orders, %d records, %d left", auth.Orders(), auth.Set(), auth.Records())
	}
	for name, text := range map[string]string{"api.gantry.test": `{name="api.gantry.test"}`, "*.pods.gantry.test": `{name="*.pods.gantry.test"}`} {
		if !strings.Contains(scraped(t, metrics), "\ngantry_scheduler_user_certificate_expiry_timestamp_seconds"+text+" 1.") {
			t.Errorf("metrics do not tell when the certificate of %s ends", name)
		}
	}
	traces(t, w, auth)
	redirects(t, plain)
	readyAndAlive(t, w, auth)
}

// traces finds a request in the log of the scheduler that was asked, and in the leader's, under the id that its client gave it.
// An id that could be anything else than one is none.
func traces(t *testing.T, w *world, auth *edgetest.Authority) {
	t.Helper()
	for i, m := range w.all {
		id := fmt.Sprintf("trace-%d", i)
		got, err := secure(t, auth, m, "api.gantry.test", "/admin/v1/accounts", w.keys.AdminKey, id)
		if err != nil || got.status != http.StatusOK || got.id != id {
			t.Errorf("%+v, %v", got, err)
		}
		w.eventually("the request is in the log", func() bool { return logs(m, "request answered", id) == 1 })
	}
	w.eventually("two of three requests were sent on to the leader", func() bool {
		onward := 0
		for i := range w.all {
			for _, m := range w.all {
				onward += logs(m, "request came by way of another scheduler", fmt.Sprintf("trace-%d", i))
			}
		}
		return onward == 2
	})
	for _, bad := range []string{"a\tb", strings.Repeat("a", 65), `a","level":"ERROR`} {
		if got, err := secure(t, auth, w.all[0], "api.gantry.test", "/admin/v1/accounts", w.keys.AdminKey, bad); err != nil || got.id == "" || got.id == bad {
			t.Errorf("%q: %+v, %v", bad, got, err)
		}
	}
}

// logs counts the lines of a scheduler's log, all of which are JSON, with a message about a request.
func logs(m *machine, message, id string) (n int) {
	m.t.Helper()
	for line := range strings.Lines(m.log.String()) {
		var x struct{ Msg, Request, Client string }
		if err := json.Unmarshal([]byte(line), &x); err != nil && strings.HasSuffix(line, "\n") {
			m.t.Errorf("no JSON: %s", line)
		}
		if x.Msg == message && x.Request == id {
			if n++; x.Client != "192.0.2.9:0" {
				m.t.Errorf("the client is not what the proxy said: %s", line)
			}
		}
	}
	return n
}

// scraped returns the metrics that are served at an address.
func scraped(t *testing.T, address string) string {
	t.Helper()
	resp, err := (&http.Client{Timeout: patience}).Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func redirects(t *testing.T, plain string) {
	t.Helper()
	client := &http.Client{
		Timeout:       patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Get("http://" + plain + "/v2/pods")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusPermanentRedirect || resp.Header.Get("Location") != "https://127.0.0.1/v2/pods" {
		t.Errorf("got %d %s", resp.StatusCode, resp.Header.Get("Location"))
	}
}

// A follower that has a leader is ready. One without is not, but it lives.
func readyAndAlive(t *testing.T, w *world, auth *edgetest.Authority) {
	t.Helper()
	status := func(path string) int {
		got, err := secure(t, auth, w.all[0], "api.gantry.test", path, "")
		if err != nil {
			t.Fatal(err)
		}
		return got.status
	}
	if status("/healthz") != http.StatusOK || status("/livez") != http.StatusOK {
		t.Errorf("got %d and %d", status("/healthz"), status("/livez"))
	}
	w.all[1].kill()
	w.all[2].kill()
	w.eventually("it is not ready without a leader", func() bool { return status("/healthz") == http.StatusServiceUnavailable })
	if status("/livez") != http.StatusOK {
		t.Errorf("it is not alive: %d", status("/livez"))
	}
}

func TestPlainHTTPIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	m := &machine{t: t, binary: build(t, "")}
	for _, verb := range []string{"run", "check-config", "gateway run", "gateway check-config"} {
		verb := strings.Fields(verb)
		out, err := m.does(append(verb, "--data-dir", dir, "--listen", "0.0.0.0:0")...)
		if err == nil || !strings.Contains(out, "is not loopback, so API keys would cross the network in the clear") {
			t.Errorf("%s: %v\n%s", verb, err, out)
		}
		out, err = m.does(append(verb, "--data-dir", dir, "--tls-cert", "/none.crt", "--tls-key", "/none.key")...)
		if err == nil || !strings.Contains(out, "the certificate's key: stat /none.key: no such file") {
			t.Errorf("%s: %v\n%s", verb, err, out)
		}
		out, err = m.does(append(verb, "--data-dir", dir, "--acme-name", "api.gantry.test", "--proxy-domain", "pods.gantry.test", "--acme-dns-command", "/none", "--acme-roots", "/none.pem")...)
		if err == nil || !strings.Contains(out, `--acme-dns-command: exec: "/none"`) || !strings.Contains(out, "--acme-roots: open /none.pem") {
			t.Errorf("%s: %v\n%s", verb, err, out)
		}
	}
}

// The address of a pod's http port follows from what the scheduler serves, unless a balancer serves it otherwise.
func TestProxyURL(t *testing.T) {
	with := func(url string, f frontFlags) runCmd { return runCmd{ProxyURL: url, frontFlags: f} }
	for name, c := range map[string]struct {
		listening string
		cmd       runCmd
		want      string
	}{
		"plain":             {"127.0.0.1:18080", with("", frontFlags{ProxyDomain: "p.localhost"}), "http://p.localhost:18080"},
		"plain, port 80":    {"0.0.0.0:80", with("", frontFlags{ProxyDomain: "p.localhost"}), "http://p.localhost"},
		"TLS":               {"[::]:443", with("", frontFlags{ProxyDomain: "p.example.com", Edge: edgeFlags{TLSCert: []string{"c"}}}), "https://p.example.com"},
		"TLS, another port": {"[::]:8443", with("", frontFlags{ProxyDomain: "p.example.com", Edge: edgeFlags{ACMEName: []string{"a"}}}), "https://p.example.com:8443"},
		"behind a balancer": {"127.0.0.1:80", with("https://p.example.com/", frontFlags{ProxyDomain: "p.example.com"}), "https://p.example.com"},
		"no proxy":          {"127.0.0.1:80", runCmd{}, ""},
	} {
		addr, err := net.ResolveTCPAddr("tcp", c.listening)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.cmd.proxyURL(addr); got != c.want || c.cmd.checkProxyURL() != nil {
			t.Errorf("%s: got %q, %v", name, got, c.cmd.checkProxyURL())
		}
	}
	for _, bad := range []string{
		"p.example.com", "ftp://p.example.com", "https://", "https://other.example.com", "https://p.example.com/x", "https://p.example.com?q", "https://me@p.example.com", "://",
	} {
		if err := (&runCmd{frontFlags: frontFlags{ProxyDomain: "p.example.com"}, ProxyURL: bad}).checkProxyURL(); err == nil || !strings.Contains(err.Error(), "--proxy-url") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
