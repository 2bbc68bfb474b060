package edge

import (
	"net"
	"net/http"
	"net/url"
	"strings"
)

// strict tells browsers to come by https alone for a year. Names below this one are not meant.
const strict = "max-age=31536000"

// Strict has answers tell browsers to come by https alone, where applies says so of the request.
func Strict(applies func(*http.Request) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if applies(r) {
			w.Header().Set("Strict-Transport-Security", strict)
		}
		next.ServeHTTP(w, r)
	})
}

// Redirect answers plain HTTP: challenges of the certificate authority by challenge, which tells whether it was one, and
// anything else with the way to https, whose port is given. A request that is no GET or HEAD is refused: it has shown
// already what it carries, and must not go on as if nothing were wrong.
func Redirect(port string, challenge func(http.ResponseWriter, *http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if challenge(w, r) {
			return
		}
		host := nameOf(r)
		if host == "" || r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Authorization") != "" {
			http.Error(w, "This is plain HTTP: use https. A key that was sent here went over the network in the clear: replace it.", http.StatusForbidden)
			return
		}
		switch {
		case port != "443":
			host = net.JoinHostPort(host, port)
		case strings.Contains(host, ":"):
			host = "[" + host + "]"
		}
		http.Redirect(w, r, "https://"+host+r.URL.RequestURI(), http.StatusPermanentRedirect)
	})
}

// nameOf returns the name or address that a request asks for, without port and brackets.
func nameOf(r *http.Request) string { return (&url.URL{Host: r.Host}).Hostname() }
