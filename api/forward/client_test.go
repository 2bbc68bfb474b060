package forward

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

func TestBelieve(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}
	for what, c := range map[string]struct {
		from         string
		hops, protos []string
		client       string
		scheme       string
	}{
		"a proxy":                       {"10.0.0.1:7", []string{"192.0.2.1"}, []string{"https"}, "192.0.2.1:0", "https"},
		"two proxies":                   {"10.0.0.1:7", []string{"6.6.6.6, 192.0.2.1", "10.0.0.2"}, nil, "192.0.2.1:0", "http"},
		"with ports":                    {"10.0.0.1:7", []string{"192.0.2.1:80, [fd00::1]:80"}, nil, "192.0.2.1:0", "http"},
		"IPv4 in IPv6":                  {"[::ffff:10.0.0.1]:7", []string{"::ffff:192.0.2.1"}, []string{"HTTPS"}, "192.0.2.1:0", "https"},
		"what the client said of it":    {"10.0.0.1:7", []string{"192.0.2.1"}, []string{"https, http"}, "192.0.2.1:0", "http"},
		"nonsense":                      {"10.0.0.1:7", []string{"192.0.2.1, me"}, nil, "10.0.0.1:7", "http"},
		"nonsense behind a proxy":       {"10.0.0.1:7", []string{"me, 10.0.0.2"}, nil, "10.0.0.2:0", "http"},
		"a proxy that says nothing":     {"10.0.0.1:7", nil, nil, "10.0.0.1:7", "http"},
		"a client that says what it is": {"192.0.2.7:7", []string{"127.0.0.1"}, []string{"https"}, "192.0.2.7:7", "http"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.from
		r.Header["X-Forwarded-For"], r.Header["X-Forwarded-Proto"] = c.hops, c.protos
		var client, scheme string
		Believe(trusted, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			client, scheme = r.RemoteAddr, Scheme(r)
		})).ServeHTTP(httptest.NewRecorder(), r)
		if client != c.client || scheme != c.scheme {
			t.Errorf("%s: got %s %s", what, client, scheme)
		}
		if r.RemoteAddr != c.from {
			t.Errorf("%s: the request itself was changed", what)
		}
	}
}

// FuzzBelieve: whatever the headers say, a client is an address, a scheme one of two, and who is not trusted stays what it is.
func FuzzBelieve(f *testing.F) {
	for _, hops := range []string{"192.0.2.1", "6.6.6.6, 192.0.2.1:80", "[fd00::1]:80,me", "::ffff:1.2.3.4%eth0", ",,", "[", "]:1", "10.0.0.2,10.0.0.3"} {
		f.Add("10.0.0.1:7", hops, "https,http")
		f.Add("192.0.2.7:7", hops, "HTTPS")
	}
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}
	f.Fuzz(func(t *testing.T, from, hops, protos string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = from
		r.Header["X-Forwarded-For"], r.Header["X-Forwarded-Proto"] = []string{hops}, []string{protos}
		Believe(trusted, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			scheme := Scheme(r)
			if scheme != "http" && scheme != "https" {
				t.Errorf("a scheme is %q", scheme)
			}
			peer, err := netip.ParseAddrPort(from)
			known := err == nil && (trusted[0].Contains(peer.Addr().Unmap()) || trusted[1].Contains(peer.Addr().Unmap()))
			if !known && (r.RemoteAddr != from || scheme != "http") {
				t.Errorf("%q is believed: %q %s", from, r.RemoteAddr, scheme)
			}
			if at, err := netip.ParseAddrPort(r.RemoteAddr); known && (err != nil || at.Addr().Is4In6() || at.Addr().Zone() != "") && r.RemoteAddr != from {
				t.Errorf("%q makes the client %q", hops, r.RemoteAddr)
			}
		})).ServeHTTP(httptest.NewRecorder(), r)
	})
}
