package main

import (
	"context"
	"crypto/tls"
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
		"--tls-cert a --tls-key b --plain-http": "leave one out",
		"--tls-cert a":                          "--tls-cert and --tls-key go together",
		"--listen :443 --tls-cert a --tls-key b --http-listen :80 --redirect-port 443": "",
		"--http-listen :80": "for which there has to be a certificate",
		"--tls-cert a --tls-key b --redirect-port 65536":         "--redirect-port must be",
		"--trusted-proxies 10.0.0.0/24,::1":                      "",
		"--trusted-proxies proxy":                                `--trusted-proxies "proxy" must be an address or a range`,
		acme:                                                     "",
		acme + "--acme-challenge http":                           "--acme-challenge http needs --http-listen",
		acme + "--acme-challenge dns":                            "--acme-challenge dns needs --acme-dns-command",
		acme + "--acme-name Api":                                 `--acme-name "Api" is no name of DNS`,
		acme + "--acme-directory http://ca.test":                 "--acme-directory must be an https address",
		acme + "--acme-dns-command /bin/true --proxy-domain *.x": `--proxy-domain "*.x" is no name`,
		acme + "--acme-dns-wait 6m":                              "--acme-dns-wait must be",
		acme + "--http-listen :80 --acme-dns-command /bin/true --proxy-domain pods.test": "",
		"--acme-dns-command /bin/true": "--acme-name names what to order",
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
}

// secure asks a machine over TLS for one of the names that lead to it.
func secure(t *testing.T, auth *edgetest.Authority, m *machine, host, path, key string) (answer, error) {
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
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.ProtoMajor, resp.Header.Get("Strict-Transport-Security"), string(body)}, err
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
	plain := freePort(t)
	for _, m := range w.all {
		m.kill()
	}
	for i, m := range w.all {
		args := []string{
			"--acme-name", "api.gantry.test", "--acme-directory", auth.URL, "--acme-roots", roots, "--acme-challenge", "tls-alpn",
			"--proxy-domain", "pods.gantry.test", "--acme-dns-command", auth.Command, "--trusted-proxies", "127.0.0.1",
		}
		if i == 0 {
			args = append(args, "--http-listen", plain, "--redirect-port", "443")
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
	redirects(t, plain)
	readyAndAlive(t, w, auth)
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
	for _, verb := range []string{"run", "check-config"} {
		out, err := m.does(verb, "--data-dir", dir, "--listen", "0.0.0.0:0")
		if err == nil || !strings.Contains(out, "is not loopback, so API keys would cross the network in the clear") {
			t.Errorf("%s: %v\n%s", verb, err, out)
		}
		out, err = m.does(verb, "--data-dir", dir, "--tls-cert", "/none.crt", "--tls-key", "/none.key")
		if err == nil || !strings.Contains(out, "the certificate's key: stat /none.key: no such file") {
			t.Errorf("%s: %v\n%s", verb, err, out)
		}
	}
}
