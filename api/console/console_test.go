package console

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"gantry/api/login"
	"gantry/fleet"
	"gantry/internal/pki"
)

var goodKey, adminKey, deadKey = testKey("good"), testKey("admin"), testKey("dead")

// testKey is a key that a word tells.
func testKey(word string) string {
	key := "gk_" + word
	for !fleet.ValidAPIKey(key) {
		key += "0"
	}
	return key
}

// site is a Console before an API that knows two keys and notes what comes.
type site struct {
	t    *testing.T
	c    *Console
	h    http.Handler
	seen *http.Request // by the API
	now  time.Time
	dead map[string]bool

	asked   string // of signing in
	refuses bool
}

func newSite(t *testing.T) *site {
	t.Helper()
	path := filepath.Join(t.TempDir(), "seal.key")
	if err := pki.NewSealKeyFile(path); err != nil {
		t.Fatal(err)
	}
	sealer, err := pki.LoadSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, now: time.Unix(1_800_000_000, 0), dead: map[string]bool{deadKey: true}}
	s.c = &Console{cfg: Config{Sealer: sealer, Ours: func(r *http.Request) bool { return r.Host == "api.test" }, Now: func() time.Time { return s.now }, S3: []string{"https://s3.test"}}, files: fstest.MapFS{"dist/.gitignore": {}}}
	s.h = s.c.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.seen = r
		key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case r.URL.Path == login.SessionsPath:
			body, _ := io.ReadAll(r.Body)
			if s.asked = string(body); s.refuses {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"token":"`+personKey+`","expiresAt":"`+s.now.Add(time.Hour).Format(time.RFC3339)+`"}`)
		case key == "" || s.dead[key]:
			w.Header().Set("X-Request-Id", "r1")
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasPrefix(r.URL.Path, "/admin/") && key != adminKey, strings.HasPrefix(r.URL.Path, "/v2/me") && key != personKey:
			w.WriteHeader(http.StatusForbidden)
		default:
			_, _ = io.WriteString(w, "{}")
		}
	}))
	return s
}

// page is a request that the console's page sends.
func (s *site) page(method, path, body string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequest(method, "https://api.test"+path, strings.NewReader(body))
	r.Header.Set(Header, "1")
	r.Header.Set("Origin", "https://api.test")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	s.seen = nil
	s.h.ServeHTTP(w, r)
	return w
}

func (s *site) login(key string) *http.Cookie {
	s.t.Helper()
	w := s.page("POST", sessionPath, `{"key":"`+key+`"}`)
	cookies := w.Result().Cookies()
	if w.Code != http.StatusNoContent || len(cookies) != 1 {
		s.t.Fatalf("login: %d %s, %d cookies", w.Code, w.Body, len(cookies))
	}
	return cookies[0]
}

func with(c *http.Cookie) func(*http.Request) { return func(r *http.Request) { r.AddCookie(c) } }

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Del(name)
		if value != "" {
			r.Header.Set(name, value)
		}
	}
}

func TestASessionIsTheKeyOfThePage(t *testing.T) {
	s := newSite(t)
	c := s.login(goodKey)
	if !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.MaxAge != int(life/time.Second) || strings.Contains(c.Value, "good") {
		t.Errorf("the cookie is %s", c)
	}
	s.page("GET", "/v2/pods", "", with(c), func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "other", Value: "1"}) })
	if got := s.seen.Header.Get("Authorization"); got != "Bearer "+goodKey {
		t.Errorf("the API is asked with %q", got)
	}
	if got := s.seen.Header["Cookie"]; len(got) != 1 || got[0] != "other=1" {
		t.Errorf("the API is sent the cookies %q", got)
	}
	for path, want := range map[string]string{
		"": `{"signedIn":false,"operator":false,"person":false}`, goodKey: `{"signedIn":true,"operator":false,"person":false}`,
		adminKey: `{"signedIn":true,"operator":true,"person":false}`, personKey: `{"signedIn":true,"operator":false,"person":true}`,
	} {
		var change []func(*http.Request)
		if path != "" {
			change = append(change, with(s.login(path)))
		}
		if got := s.page("GET", sessionPath, "", change...).Body.String(); strings.TrimSpace(got) != want {
			t.Errorf("of the session of %q is said %s", path, got)
		}
	}
	if w := s.page("DELETE", sessionPath, "", with(c)); w.Code != http.StatusNoContent || w.Result().Cookies()[0].MaxAge >= 0 {
		t.Errorf("ending it: %d %s", w.Code, w.Header())
	}
}

func TestASessionEndsWithItsTimeAndItsKey(t *testing.T) {
	s := newSite(t)
	c := s.login(goodKey)
	sent := func() string {
		s.page("GET", "/v2/pods", "", with(c))
		return s.seen.Header.Get("Authorization")
	}
	s.now = s.now.Add(life - time.Second)
	if sent() == "" {
		t.Error("it ended before its time")
	}
	s.dead[goodKey] = true
	if got := s.page("GET", sessionPath, "", with(c)).Body.String(); !strings.Contains(got, `"signedIn":false`) {
		t.Errorf("with a revoked key it is %s", got)
	}
	s.now = s.now.Add(time.Second)
	if got := sent(); got != "" {
		t.Errorf("after its time the API is asked with %q", got)
	}
	other := newSite(t)
	other.page("GET", "/v2/pods", "", with(c))
	if got := other.seen.Header.Get("Authorization"); got != "" {
		t.Errorf("another cluster takes it as %q", got)
	}
	for _, value := range []string{"x", strings.Repeat("A", 4000), c.Value[:len(c.Value)-2] + "AA"} {
		s.page("GET", "/v2/pods", "", with(&http.Cookie{Name: cookieName, Value: value}))
		if got := s.seen.Header.Get("Authorization"); got != "" {
			t.Errorf("the cookie %.10q is taken as %q", value, got)
		}
	}
}

func TestOnlyThePageMayUseASession(t *testing.T) {
	s := newSite(t)
	c := s.login(goodKey)
	socket := func(r *http.Request) {
		r.Header.Set("Upgrade", "WebSocket")
		r.Header.Del(Header)
	}
	for name, row := range map[string]struct {
		change []func(*http.Request)
		ok     bool
	}{
		"the page":                       {nil, true},
		"an old browser":                 {[]func(*http.Request){header("Sec-Fetch-Site", ""), header("Origin", "")}, true},
		"a socket of the page":           {[]func(*http.Request){socket}, true},
		"without the header":             {[]func(*http.Request){header(Header, "")}, false},
		"of a pod's page":                {[]func(*http.Request){header("Origin", "https://p-80.api.test"), header("Sec-Fetch-Site", "")}, false},
		"of the same site":               {[]func(*http.Request){header("Sec-Fetch-Site", "same-site"), header("Origin", "")}, false},
		"by http":                        {[]func(*http.Request){header("Origin", "http://api.test")}, false},
		"of no origin":                   {[]func(*http.Request){header("Origin", "null")}, false},
		"of two origins":                 {[]func(*http.Request){func(r *http.Request) { r.Header.Add("Origin", "https://api.test") }}, false},
		"a socket of another page":       {[]func(*http.Request){socket, header("Origin", "https://evil.test"), header("Sec-Fetch-Site", "")}, false},
		"a socket of nobody":             {[]func(*http.Request){socket, header("Origin", "")}, false},
		"typed into the address":         {[]func(*http.Request){header(Header, ""), header("Origin", ""), header("Sec-Fetch-Site", "none")}, false},
		"a link in what a worker showed": {[]func(*http.Request){header(Header, ""), header("Origin", "")}, false},
	} {
		s.page("POST", "/v2/pods", "{}", append(row.change, with(c))...)
		if got := s.seen.Header.Get("Authorization") != ""; got != row.ok {
			t.Errorf("%s: the key is given: %t", name, got)
		}
		if got := s.seen.Header["Cookie"]; got != nil {
			t.Errorf("%s: the API is sent the cookie", name)
		}
	}
	s.page("GET", "/v2/pods", "", with(c), header("Authorization", "Bearer "+adminKey))
	if got := s.seen.Header.Get("Authorization"); got != "Bearer "+adminKey {
		t.Errorf("a key in the header became %q", got)
	}
	s.page("GET", "/", "", with(c), func(r *http.Request) { r.Host = "p-80.pods.test" })
	if got := s.seen.Header.Get("Authorization"); got != "" || len(s.seen.Header["Cookie"]) != 1 {
		t.Errorf("a request to a pod became %q", s.seen.Header)
	}
	if w := s.page("GET", "/v2/e1/x", ""); w.Header().Get("Content-Security-Policy") != "sandbox" {
		t.Error("an answer of a worker would have the rights of the console")
	}
}

func TestALoginIsRefused(t *testing.T) {
	s := newSite(t)
	for name, row := range map[string]struct {
		method, body string
		change       []func(*http.Request)
		status       int
	}{
		"unknown key":    {"POST", `{"key":"` + deadKey + `"}`, nil, http.StatusUnauthorized},
		"no key":         {"POST", `{"key":"x"}`, nil, http.StatusUnprocessableEntity},
		"no JSON":        {"POST", `key=x`, nil, http.StatusUnprocessableEntity},
		"too much":       {"POST", `{"key":"` + goodKey + `","x":"` + strings.Repeat("x", maxLogin) + `"}`, nil, http.StatusUnprocessableEntity},
		"another origin": {"POST", `{"key":"` + goodKey + `"}`, []func(*http.Request){header("Origin", "https://evil.test")}, http.StatusForbidden},
		"no origin":      {"POST", `{"key":"` + goodKey + `"}`, []func(*http.Request){header("Origin", "")}, http.StatusForbidden},
		"a form":         {"POST", `{"key":"` + goodKey + `"}`, []func(*http.Request){header(Header, "")}, http.StatusForbidden},
		"another method": {"PUT", `{}`, nil, http.StatusMethodNotAllowed},
	} {
		w := s.page(row.method, sessionPath, row.body, row.change...)
		if w.Code != row.status || len(w.Result().Cookies()) != 0 {
			t.Errorf("%s: %d, %d cookies", name, w.Code, len(w.Result().Cookies()))
		}
	}
}

func TestFilesAreServedAsTheBuildWroteThem(t *testing.T) {
	s := newSite(t)
	if w := s.page("GET", "/console/pods", ""); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "built without the console") {
		t.Errorf("without files: %d %s", w.Code, w.Body)
	}
	s.c.files = fstest.MapFS{
		"dist/.gitignore": {Data: []byte("*")}, "dist/index.html": {Data: []byte("<!doctype html>")},
		"dist/assets/a-1.js": {Data: []byte("plain")}, "dist/assets/a-1.js.gz": {Data: []byte("gz")}, "dist/assets/a-1.js.br": {Data: []byte("br")},
	}
	for _, row := range []struct {
		method, path, takes    string
		status                 int
		body, kind, cache, enc string
	}{
		{"GET", "/console", "", 200, "<!doctype html>", "text/html; charset=utf-8", "no-cache", ""},
		{"GET", "/console/pods/p1", "br", 200, "<!doctype html>", "text/html; charset=utf-8", "no-cache", ""},
		{"GET", "/console/assets/a-1.js", "gzip, br", 200, "br", "text/javascript; charset=utf-8", "public, max-age=31536000, immutable", "br"},
		{"GET", "/console/assets/a-1.js", "gzip", 200, "gz", "text/javascript; charset=utf-8", "public, max-age=31536000, immutable", "gzip"},
		{"GET", "/console/assets/a-1.js", "br;q=0", 200, "plain", "text/javascript; charset=utf-8", "public, max-age=31536000, immutable", ""},
		{"HEAD", "/console/assets/a-1.js", "", 200, "", "text/javascript; charset=utf-8", "public, max-age=31536000, immutable", ""},
		{"GET", "/console/assets/../index.html", "", 404, "", "application/problem+json", "no-store", ""},
		{"GET", "/console/assets/.gitignore", "", 404, "", "application/problem+json", "no-store", ""},
		{"POST", "/console", "", 405, "", "application/problem+json", "no-store", ""},
	} {
		w := s.page(row.method, row.path, "", header("Accept-Encoding", row.takes))
		h := w.Header()
		if w.Code != row.status || row.body != "" && w.Body.String() != row.body || h.Get("Content-Type") != row.kind || h.Get("Cache-Control") != row.cache ||
			h.Get("Content-Encoding") != row.enc {
			t.Errorf("%s %s: %d %q %v", row.method, row.path, w.Code, w.Body, h)
		}
		if p := h.Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || !strings.Contains(p, " connect-src 'self' https://s3.test;") || strings.Contains(p, "unsafe") || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: %v", row.method, row.path, h)
		}
	}
}
