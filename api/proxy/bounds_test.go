package proxy_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"gantry/api/proxy"
	"gantry/api/rest"
	"gantry/fleet"
)

// held is a pod's application that begins to answer and holds each request until the test ends.
func held(t *testing.T) http.Handler {
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-end
	})
}

// visit makes a request to a pod from 127.0.0.n, and returns when the answer has begun.
func (s *site) visit(t *testing.T, n byte, pod fleet.PodID) *http.Response {
	t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, n)}}).DialContext(ctx, "tcp", s.addr)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+string(pod)+"-8080."+proxy.DefaultDomain, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// TestRequestsToPodsAreBounded: of one address, so that a visitor does not make a pod's page unavailable; for one pod; for the pods
// of one account, so that many of them are no way to take what all share; and in all.
func TestRequestsToPodsAreBounded(t *testing.T) {
	s := newSite(t, held(t), rest.Limits{}, func(c *proxy.Config) {
		c.PerAddress, c.PerPod, c.PerAccount, c.All = 2, 3, 4, 20
		c.Trusted = func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.99") }
	})
	second := newPod(t, s.plane)
	s.plane.Serve(second, 8080, serve(t, &http.Server{Handler: held(t), ReadHeaderTimeout: time.Minute}))
	for i, step := range []struct {
		from byte
		pod  fleet.PodID
		want int
	}{
		{2, s.pod, 200},
		{2, s.pod, 200},
		{2, s.pod, 429},
		{2, second, 429}, // the visitor has its share
		{3, s.pod, 200},
		{4, s.pod, 503}, // the pod has
		{5, second, 200},
		{6, second, 503}, // its owner has
	} {
		resp := s.visit(t, step.from, step.pod) //nolint:bodyclose // visit has it closed at the end
		if resp.StatusCode != step.want || (resp.Header.Get("Retry-After") != "") != (step.want >= 400) {
			text, _ := io.ReadAll(resp.Body)
			t.Errorf("step %d: %d %v %s", i, resp.StatusCode, resp.Header, text)
		}
	}
	if got := s.proxy.Counts(); got != (proxy.Counts{Open: 4, Address: 2, Pod: 1, Account: 1}) {
		t.Errorf("%+v", got)
	}
}

// TestRequestsToPodsAreBoundedInAll, also those that come through a load balancer that is trusted.
func TestRequestsToPodsAreBoundedInAll(t *testing.T) {
	s := newSite(t, held(t), rest.Limits{}, func(c *proxy.Config) {
		c.PerAddress, c.All = 1, 3
		c.Trusted = func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.99") }
	})
	for i, want := range []int{200, 200, 200, 503} {
		if resp := s.visit(t, 99, s.pod); resp.StatusCode != want { //nolint:bodyclose // visit has it closed at the end
			t.Errorf("request %d: %d, want %d", i, resp.StatusCode, want)
		}
	}
	if got := s.proxy.Counts(); got.All != 1 || got.Open != 3 {
		t.Errorf("%+v", got)
	}
}

// TestAPodsCookiesAreItsOwn: none is for the pages of other pods, which are below the same domain.
func TestAPodsCookiesAreItsOwn(t *testing.T) {
	cookies := map[string]string{
		"a=1":                                   "a=1",
		"a=1; Path=/; Secure; HttpOnly":         "a=1; Path=/; Secure; HttpOnly",
		"a=1; Domain=proxy.localhost; Path=/":   "a=1; Path=/",
		"a=1; domain=.proxy.localhost":          "a=1",
		"a=1;DOMAIN = localhost ;Secure":        "a=1;Secure",
		"a=1;\tDomain\t=x; Domain=y; Max-Age=5": "a=1; Max-Age=5",
		"a=1; Domain":                           "a=1",
		"a=Domain=x; Path=/Domain=y":            "a=Domain=x; Path=/Domain=y",
		"domain=1; Path=/":                      "domain=1; Path=/", // its name is no attribute
	}
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for c := range cookies {
			w.Header().Add("Set-Cookie", c)
		}
	}), rest.Limits{}, nil)
	resp, _ := s.get(t, s.host(8080))
	var want []string
	for _, c := range cookies {
		want = append(want, c)
	}
	got := resp.header.Values("Set-Cookie")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
