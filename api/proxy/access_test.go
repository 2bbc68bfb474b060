package proxy_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// lockedSite is a site whose backend says what reached it, and whose port is set.
func lockedSite(t *testing.T, setting fleet.HTTPSetting) *site {
	t.Helper()
	backend := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"uri": r.URL.RequestURI(), "authorization": r.Header.Values("Authorization"), "cookie": r.Header.Values("Cookie"),
		})
	})
	s := newSite(t, backend, rest.Limits{}, nil)
	setting.Port = 8080
	if _, err := s.plane.UpdatePod(t.Context(), s.plane.Who(plane.User), s.pod, fleet.PodUpdate{HTTP: &[]fleet.HTTPSetting{setting}}); err != nil {
		t.Fatal(err)
	}
	return s
}

// knock sends a request to the port, and returns the status, the answer's headers, and what reached the pod.
func (s *site) knock(t *testing.T, method, path string, headers ...string) (int, http.Header, string) {
	t.Helper()
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Add(headers[i], headers[i+1])
	}
	got, body := s.do(t, s.host(8080), method, path, nil, h)
	return got.status, got.header, strings.TrimSpace(body)
}

func (s *site) link(t *testing.T, port int) string {
	t.Helper()
	_, token, _, err := s.plane.LinkPort(t.Context(), s.plane.Who(plane.User), s.pod, port, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return token.Reveal()
}

// TestAPortThatNeedsAKey lets a key of the account pass, which the pod does not see, and nobody else.
func TestAPortThatNeedsAKey(t *testing.T) {
	s := lockedSite(t, fleet.HTTPSetting{Keyed: true})
	bearer := func(name string) []string { return []string{"Authorization", "Bearer " + plane.KeyText(name).Reveal()} }
	for _, c := range []struct {
		name    string
		headers []string
		status  int
	}{
		{"nobody", nil, 401},
		{"a key of the account", bearer(plane.User), 200},
		{"a key that only reads", bearer(plane.Reader), 401},
		{"another account's", bearer(plane.Other), 401},
		{"an operator's", bearer(plane.Operator), 401},
		{"no key at all", []string{"Authorization", "Bearer abc"}, 401},
		{"an empty link", []string{"Cookie", "gantry-link="}, 401},
	} {
		status, header, got := s.knock(t, http.MethodGet, "/a?b=c", c.headers...)
		if status != c.status {
			t.Errorf("%s: %d %s", c.name, status, got)
		}
		if status == 200 && got != `{"authorization":null,"cookie":null,"uri":"/a?b=c"}` {
			t.Errorf("%s: %s reached the pod", c.name, got)
		}
		if status == 401 && header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: %v", c.name, header)
		}
	}
	if status, _, _ := s.knock(t, http.MethodGet, "/"); status != 401 {
		t.Errorf("the key of another request let one pass: %d", status)
	}
}

// TestAPortThatNeedsAKeyTellsNobodyElseOfItsPod: how the pod is, the account alone is told.
func TestAPortThatNeedsAKeyTellsNobodyElseOfItsPod(t *testing.T) {
	s := lockedSite(t, fleet.HTTPSetting{Keyed: true})
	if err := s.plane.Report(s.pod, fleet.EventFailed); err != nil {
		t.Fatal(err)
	}
	if status, _, got := s.knock(t, http.MethodGet, "/"); status != 401 || strings.Contains(got, "code") {
		t.Errorf("%d %s", status, got)
	}
	if status, _, got := s.knock(t, http.MethodGet, "/", "Authorization", "Bearer "+plane.KeyText(plane.User).Reveal()); status != 502 {
		t.Errorf("%d %s", status, got)
	}
}

// TestALinkToAPort is a cookie after it was opened. Neither reaches the pod, and what the pod's own pages say does.
func TestALinkToAPort(t *testing.T) {
	s := lockedSite(t, fleet.HTTPSetting{Keyed: true})
	link := s.link(t, 8080)
	status, header, _ := s.knock(t, http.MethodGet, "//evil.example/a%2Fb?x=1&gantry-link="+link+"&y=%20")
	if status != http.StatusSeeOther || header.Get("Location") != "/evil.example/a%2Fb?x=1&y=%20" || header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v", status, header)
	}
	if got := header.Get("Set-Cookie"); got != "gantry-link="+link+"; Path=/; HttpOnly; SameSite=Lax" {
		t.Errorf("the cookie is %q", got)
	}
	const own = "Token of-the-app"
	status, _, got := s.knock(t, http.MethodPost, "/a?x=1", "Cookie", "a=b; gantry-link="+link+"; c=d", "Authorization", own)
	if status != 200 || got != `{"authorization":["`+own+`"],"cookie":["a=b; c=d"],"uri":"/a?x=1"}` {
		t.Errorf("%d %s", status, got)
	}
	status, _, got = s.knock(t, http.MethodPost, "/a?gantry-link="+link)
	if status != 200 || got != `{"authorization":null,"cookie":null,"uri":"/a"}` {
		t.Errorf("%d %s", status, got)
	}
	until, mac, _ := strings.Cut(link, ".")
	later, err := strconv.ParseInt(until, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"of another port": s.link(t, 8081), "with a later end": strconv.FormatInt(later+1, 10) + "." + mac, "cut": link[:len(link)-1],
		"without an end": "." + mac, "another text of its end": "0" + link,
	} {
		if status, _, _ := s.knock(t, http.MethodGet, "/?gantry-link="+bad); status != 401 {
			t.Errorf("a link %s: %d", name, status)
		}
	}
	s.plane.Advance(time.Hour)
	if status, _, _ := s.knock(t, http.MethodGet, "/", "Cookie", "gantry-link="+link); status != 401 {
		t.Errorf("a link that expired: %d", status)
	}
}

// TestTheTimeOfAPort ends a request that takes longer.
func TestTheTimeOfAPort(t *testing.T) {
	s := lockedSite(t, fleet.HTTPSetting{Most: 1})
	if status, _, got := s.knock(t, http.MethodGet, "/slow"); status != http.StatusGatewayTimeout || !strings.Contains(got, "longer than the pod's owner allows") {
		t.Errorf("%d %s", status, got)
	}
	if status, _, got := s.knock(t, http.MethodGet, "/"); status != 200 {
		t.Errorf("%d %s", status, got)
	}
}
