package forward

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

type schemeKey struct{}

// Scheme tells how the client sent a request: https or http, as the connection has it, or a proxy that is trusted, or
// the scheduler that sent the request on.
func Scheme(r *http.Request) string {
	if s, ok := r.Context().Value(schemeKey{}).(string); ok {
		return s
	}
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

func withScheme(r *http.Request, scheme string) *http.Request {
	if scheme != "https" {
		scheme = "http"
	}
	return r.WithContext(context.WithValue(r.Context(), schemeKey{}, scheme))
}

// Believe returns a handler that takes from X-Forwarded-For and X-Forwarded-Proto who the client is and how it came, where
// the request comes from an address in trusted: the client is the last address that is not a trusted proxy's itself.
// What other clients say in these headers counts nothing.
func Believe(trusted []netip.Prefix, next http.Handler) http.Handler {
	if len(trusted) == 0 {
		return next
	}
	trusts := func(a netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !trusts(peer.Addr().Unmap()) {
			next.ServeHTTP(w, r)
			return
		}
		protos := strings.Split(strings.Join(r.Header.Values("X-Forwarded-Proto"), ","), ",")
		if last := strings.TrimSpace(protos[len(protos)-1]); last != "" {
			r = withScheme(r, strings.ToLower(last))
		} else {
			r = r.WithContext(r.Context()) // a copy, to be changed
		}
		if client, ok := clientOf(r.Header.Values("X-Forwarded-For"), trusts); ok {
			r.RemoteAddr = netip.AddrPortFrom(client, 0).String()
		}
		next.ServeHTTP(w, r)
	})
}

// clientOf reads X-Forwarded-For from its end, where the nearest proxy writes.
func clientOf(headers []string, trusts func(netip.Addr) bool) (client netip.Addr, ok bool) {
	hops := strings.Split(strings.Join(headers, ","), ",")
	for _, hop := range slices.Backward(hops) {
		hop = strings.TrimSpace(hop)
		if host, _, err := net.SplitHostPort(hop); err == nil {
			hop = host
		}
		a, err := netip.ParseAddr(strings.Trim(hop, "[]"))
		if err != nil {
			return client, ok
		}
		client, ok = a.Unmap().WithZone(""), true
		if !trusts(client) {
			return client, true
		}
	}
	return client, ok
}
