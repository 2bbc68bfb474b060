package console

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gantry/api/login"
	"gantry/fleet"
)

var personKey = testKey("person")

func TestAPersonsSessionIsTheCookieOfThePage(t *testing.T) {
	s := newSite(t)
	w := s.page("POST", sessionPath, `{"login":"ada","password":"secret","code":"123456","assertion":"forged"}`)
	cookies := w.Result().Cookies()
	if w.Code != http.StatusNoContent || len(cookies) != 1 || cookies[0].MaxAge != 3600 || !cookies[0].HttpOnly || strings.Contains(w.Body.String(), personKey) {
		t.Fatalf("%d %v %s", w.Code, cookies, w.Body)
	}
	if want := `{"login":"ada","password":"secret","code":"123456","newPassword":"","assertion":""}`; s.asked != want {
		t.Errorf("the API is asked %s", s.asked)
	}
	s.page("GET", "/v2/pods", "", with(cookies[0]))
	if got := s.seen.Header.Get("Authorization"); got != "Bearer "+personKey {
		t.Errorf("the API is asked with %q", got)
	}
	s.page("DELETE", sessionPath, "", with(cookies[0]))
	if s.seen == nil || s.seen.Method != http.MethodDelete || s.seen.URL.Path != "/v2/me/session" {
		t.Errorf("signing out asks %v", s.seen)
	}
	s.page("DELETE", sessionPath, "", with(s.login(goodKey)))
	if s.seen.Method == http.MethodDelete {
		t.Error("signing out deletes a key that was pasted")
	}
	s.refuses = true
	if w := s.page("POST", sessionPath, `{"login":"ada","password":"wrong"}`); w.Code != http.StatusForbidden || len(w.Result().Cookies()) > 0 {
		t.Errorf("refused: %d %v", w.Code, w.Result().Cookies())
	}
	if w := s.page("POST", sessionPath, `{"login":"ada","password":"secret"}`, header("Sec-Fetch-Site", "cross-site")); w.Code != http.StatusForbidden {
		t.Errorf("another page signs in: %d", w.Code)
	}
}

// oracle is a provider that knows one code.
type oracle struct{ state, nonce, verifier string }

func (o *oracle) Begin(_ context.Context, state, nonce, verifier string) (string, error) {
	o.state, o.nonce, o.verifier = state, nonce, verifier
	return "https://id.example.com/auth", nil
}

func (o *oracle) Finish(_ context.Context, code, nonce, verifier string) (fleet.Assertion, error) {
	if code != "good" || nonce != o.nonce || verifier != o.verifier {
		return fleet.Assertion{}, errors.New("not this one")
	}
	return fleet.Assertion{Subject: "iss 1", Email: "ada@example.com"}, nil
}

func TestASignInThroughTheProviderEndsInItsBrowser(t *testing.T) {
	s := newSite(t)
	get := func(path string, cookies ...*http.Cookie) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "https://api.test"+path, nil)
		for _, c := range cookies {
			r.AddCookie(c)
		}
		w := httptest.NewRecorder()
		s.h.ServeHTTP(w, r)
		return w
	}
	if w := get(oidcPath); w.Code != http.StatusNotFound {
		t.Errorf("without a provider: %d", w.Code)
	}
	o := &oracle{}
	s.c.cfg.Provider, s.c.cfg.ProviderName = o, "Dex"
	w := get(oidcPath)
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "https://id.example.com/auth" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	try := w.Result().Cookies()[0]
	if !try.HttpOnly || !try.Secure || try.SameSite != http.SameSiteLaxMode || strings.Contains(try.Value, o.verifier) {
		t.Errorf("the cookie is %s", try)
	}
	back := callbackPath + "?code=good&state=" + o.state
	for name, w := range map[string]*httptest.ResponseRecorder{
		"another browser": get(back), "another state": get(callbackPath+"?code=good&state=x", try), "no state": get(callbackPath+"?code=good", try),
		"another code": get(callbackPath+"?code=bad&state="+o.state, try), "a session's cookie": get(back, &http.Cookie{Name: triesCookie, Value: s.login(goodKey).Value}),
	} {
		if to := w.Header().Get("Location"); to != root+"?signin=failed" || s.asked != "" {
			t.Errorf("%s: led to %q, asked %s", name, to, s.asked)
		}
	}
	w = get(back, try)
	cookies := w.Result().Cookies()
	if w.Header().Get("Location") != root || len(cookies) != 2 || cookies[0].MaxAge >= 0 || cookies[1].Name != cookieName || cookies[1].SameSite != http.SameSiteStrictMode {
		t.Fatalf("%v", w.Header())
	}
	var asked login.SignIn
	var said fleet.Assertion
	if err := json.Unmarshal([]byte(s.asked), &asked); err != nil {
		t.Fatal(err)
	}
	sealed, err := base64.RawURLEncoding.DecodeString(asked.Assertion.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	plain, err := s.c.cfg.Sealer.Open(fleet.AssertionPurpose, sealed)
	if err != nil || json.Unmarshal(plain, &said) != nil || said.Subject != "iss 1" || !said.Until.Equal(s.now.Add(assertLife)) || len(s.asked) > maxLogin {
		t.Errorf("%+v, %v, %d bytes", said, err, len(s.asked))
	}
	s.refuses = true
	if w := get(back, try); w.Header().Get("Location") != root+"?signin=refused" {
		t.Errorf("refused: %v", w.Header())
	}
	s.now = s.now.Add(triesLife + time.Second)
	if w := get(back, try); w.Header().Get("Location") != root+"?signin=failed" {
		t.Errorf("too late: %v", w.Header())
	}
}
