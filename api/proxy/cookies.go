package proxy

import (
	"net/http"
	"strings"
)

// ownCookies takes the attribute Domain off the cookies that a pod sets. A browser sends a cookie with one to every name below that
// domain, which are the pages of other accounts' pods; without, it goes back to the name alone that set it. The rest of a cookie is
// left as the pod wrote it.
func ownCookies(h http.Header) {
	const name = "Set-Cookie"
	for i, cookie := range h[name] {
		parts := strings.Split(cookie, ";")
		kept := parts[:1]
		for _, part := range parts[1:] {
			attribute, _, _ := strings.Cut(part, "=")
			if !strings.EqualFold(strings.Trim(attribute, " \t"), "domain") {
				kept = append(kept, part)
			}
		}
		if len(kept) < len(parts) {
			h[name][i] = strings.Join(kept, ";")
		}
	}
}
