package ctrd

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/fleet"
)

const (
	testUser     = "robot"
	testPassword = "correct-horse-battery"
	testToken    = "a-token-of-the-registry"
)

func credential(user, password string) *fleet.Credential {
	return &fleet.Credential{Username: user, Password: fleet.Secret(password)}
}

// needsBasic lets in who shows the test's user and password.
func needsBasic(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if user, password, ok := r.BasicAuth(); !ok || user != testUser || password != testPassword {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	next.ServeHTTP(w, r)
}

// needsBearer lets in who shows a token of the realm; "" is the registry itself.
func needsBearer(realm string) badAnswer {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Path == "/token" {
			giveToken(w, r)
			return
		}
		if r.Header.Get("Authorization") != "Bearer "+testToken {
			at := realm
			if at == "" {
				at = "http://" + r.Host + "/token"
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+at+`",service="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// giveToken takes both forms of a login.
func giveToken(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	if r.Method == http.MethodPost {
		user, password = r.FormValue("username"), r.FormValue("password")
	}
	if user != testUser || password != testPassword {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"token": testToken, "access_token": testToken, "expires_in": 300})
}

// seen records everything that a server was sent.
type seen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *seen) note(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.WriteString(r.Method + " " + r.URL.String() + "\n")
	_ = r.Header.Write(&s.text)
	if r.Body != nil {
		body, _ := io.ReadAll(r.Body)
		s.text.Write(body)
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
}

func (s *seen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// wantNothingOf checks that no form of the test's credential is in a text.
func wantNothingOf(t *testing.T, what, text string) {
	t.Helper()
	basic, _ := http.NewRequest(http.MethodGet, "http://x", nil)
	basic.SetBasicAuth(testUser, testPassword)
	for _, secret := range []string{
		testPassword, url.QueryEscape(testPassword), strings.TrimPrefix(basic.Header.Get("Authorization"), "Basic "), testToken,
	} {
		if strings.Contains(text, secret) {
			t.Errorf("%s has the credential in it:\n%s", what, text)
		}
	}
}

func TestPullWithCredential(t *testing.T) {
	var log seen
	b := setup(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
			log.mu.Lock()
			defer log.mu.Unlock()
			return log.text.Write(p)
		}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	reg := newRegistryServer(t)
	img := ctrdtest.BusyboxImage(t, nil)
	for name, guard := range map[string]badAnswer{"basic": needsBasic, "bearer": needsBearer("")} {
		t.Run(name, func(t *testing.T) {
			reg.setFault(nil)
			ref := reg.push(t, "private:"+name, img)
			reg.setFault(guard)
			_, err := b.r.Pull(b.ctx, ref, nil, nil)
			wantFault(t, err, pod.Fatal, "does not exist in its registry or may not be read")
			for _, wrong := range []*fleet.Credential{credential(testUser, "wrong"), credential("other", testPassword)} {
				_, err = b.r.Pull(b.ctx, ref, wrong, nil)
				wantFault(t, err, pod.Fatal, "the registry refused the credentials for image "+ref)
				wantNothingOf(t, "the error", err.Error())
			}
			digest, err := b.r.Pull(b.ctx, ref, credential(testUser, testPassword), nil)
			if err != nil || digest == "" {
				t.Fatalf("%q, %v", digest, err)
			}
			s := b.spec(ref, "true")
			b.start(s)
			b.finish(s.Pod)
			b.remove(s.Pod)
			// What is on the host now is for those whom the registry lets in.
			if d, err := b.r.Image(b.ctx, ref); err != nil || d != "" {
				t.Errorf("found without a credential: %q, %v", d, err)
			}
			_, err = b.r.Pull(b.ctx, ref, nil, nil)
			wantFault(t, err, pod.Fatal, "does not exist in its registry or may not be read")
			_, err = b.r.Pull(b.ctx, ref, credential(testUser, "wrong"), nil)
			wantFault(t, err, pod.Fatal, "the registry refused the credentials")
			reg.setFault(nil) // open to all, from now on
			if again, err := b.r.Pull(b.ctx, ref, nil, nil); err != nil || again != digest {
				t.Errorf("again: %q, %v", again, err)
			}
			if d, err := b.r.Image(b.ctx, ref); err != nil || d != digest {
				t.Errorf("found after an open pull: %q, %v", d, err)
			}
		})
	}
	wantNothingOf(t, "the log", log.String())
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestPullsWithOtherCredentialsAreNotShared holds a download open while others ask for it.
func TestPullsWithOtherCredentialsAreNotShared(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	ref := reg.push(t, "private:1", ctrdtest.BusyboxImage(t, nil))
	began, goOn := make(chan struct{}, 16), make(chan struct{})
	reg.setFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		needsBasic(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/blobs/") {
				began <- struct{}{}
				<-goOn
			}
			next.ServeHTTP(w, r)
		}))
	})
	done := make(chan error, 1)
	go func() {
		_, err := b.r.Pull(b.ctx, ref, credential(testUser, testPassword), nil)
		done <- err
	}()
	<-began
	_, err := b.r.Pull(b.ctx, ref, nil, nil)
	wantFault(t, err, pod.Fatal, "does not exist in its registry or may not be read")
	_, err = b.r.Pull(b.ctx, ref, credential(testUser, "wrong"), nil)
	wantFault(t, err, pod.Fatal, "the registry refused the credentials")
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestCredentialStaysWithItsRegistry leads a pull to other servers in every way that a registry can.
func TestCredentialStaysWithItsRegistry(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	ref := reg.push(t, "private:1", ctrdtest.BusyboxImage(t, nil))
	var elsewhere seen
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.note(r)
		if r.URL.Path == "/token" {
			giveToken(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="test"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer store.Close()
	to := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, store.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}
	for _, c := range []struct {
		name     string
		guard    badAnswer
		sentence string
	}{
		{"blobs elsewhere", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			needsBasic(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/blobs/") {
					to(w, r)
					return
				}
				next.ServeHTTP(w, r)
			}))
		}, ""},
		{"manifest elsewhere", func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			needsBasic(w, r, http.HandlerFunc(to))
		}, ""},
		{"login elsewhere", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.URL.Path == "/token" {
				to(w, r)
				return
			}
			needsBearer("")(w, r, next)
		}, "leads to an address that is not allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg.setFault(c.guard)
			_, err := b.r.Pull(b.ctx, ref, credential(testUser, testPassword), nil)
			wantFault(t, err, pod.Fatal, c.sentence)
		})
	}
	if c := elsewhere.String(); !strings.Contains(c, "/blobs/") || !strings.Contains(c, "/manifests/") {
		t.Errorf("nothing was led elsewhere:\n%s", c)
	}
	wantNothingOf(t, "a request to another server", elsewhere.String())
}

// TestLoginsAreSecure asks the two clients of a registry themselves: tests have no certificate that
// the agent would trust.
func TestLoginsAreSecure(t *testing.T) {
	var sent []string
	record := roundTrip(func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r.URL.String()+" "+r.Header.Get("Authorization"))
		return &http.Response{StatusCode: 200, Body: http.NoBody, TLS: &tls.ConnectionState{}}, nil
	})
	ask := func(rt http.RoundTripper, at string) error {
		req := httptest.NewRequest(http.MethodGet, at, nil)
		req.Header.Set("Authorization", "Basic x")
		resp, err := rt.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	for at, good := range map[string][2]bool{ // of a registry elsewhere, of one on loopback
		"https://auth.example.com/token": {true, true}, "http://auth.example.com/token": {false, false},
		"http://127.0.0.1:5000/token": {false, true}, "http://10.0.0.1/token": {false, false},
	} {
		for i, local := range []bool{false, true} {
			if err := ask(secure{record, local}, at); (err == nil) != good[i] || err != nil && !errors.Is(err, errInsecure) {
				t.Errorf("login at %s, local %v: %v", at, local, err)
			}
		}
	}
	sent = nil
	home := homeOnly{record, "https", "registry.example.com"}
	for _, at := range []string{
		"https://registry.example.com/v2/", "http://registry.example.com/v2/", "https://registry.example.com:8443/v2/",
		"https://cdn.registry.example.com/x", "https://example.com/x",
	} {
		if err := ask(home, at); err != nil {
			t.Error(err)
		}
	}
	for i, s := range sent {
		if has := strings.HasSuffix(s, "Basic x"); has != (i == 0) {
			t.Errorf("%q", s)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestCredentialOfDockerHub holds under which names the registry of short references goes.
func TestCredentialOfDockerHub(t *testing.T) {
	for _, name := range []string{"docker.io", "example.com:443", "127.0.0.1:5000"} {
		s := (&Runtime{cfg: Config{AllowLoopbackRegistries: true}}).newSource(&pull{auth: credential(testUser, testPassword)})
		hosts, err := s.hosts(name)
		if err != nil || len(hosts) != 1 {
			t.Fatal(hosts, err)
		}
		h := hosts[0]
		for host, want := range map[string]bool{h.Host: true, "auth.docker.io": false, "docker.io": false, "example.com": false, "evil.example": false} {
			req := httptest.NewRequest(http.MethodGet, h.Scheme+"://"+host+"/v2/", nil)
			challenge := &http.Response{Request: req, Header: http.Header{"Www-Authenticate": {`Basic realm="x"`}}}
			err := h.Authorizer.AddResponses(t.Context(), []*http.Response{challenge})
			_ = h.Authorizer.Authorize(t.Context(), req)
			if has := req.Header.Get("Authorization") != ""; has != want || (err == nil) != want {
				t.Errorf("%s: credential for %s: %v, %v", name, host, has, err)
			}
		}
	}
}
