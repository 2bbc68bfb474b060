package proxy

import (
	"net/http"
	"net/url"
	"strings"

	"gantry/api/forward"
	"gantry/fleet"
)

const textLocked = "this port needs a key of the pod's account, as a bearer token, or a link that one made"

// admit reports whether a request may pass to a port that needs a key, and answers it otherwise. What let it pass does not reach the
// pod. A link that is opened becomes a cookie, so that what the page loads passes, too, and its token leaves the address.
func (p *Proxy) admit(w http.ResponseWriter, r *http.Request, target Target) bool {
	opens := func(credential string) bool {
		return credential != "" && p.cfg.Targets.OpensPort(r.Context(), target.Pod, target.Port, fleet.Secret(credential))
	}
	token, _ := bearer(r)
	keyed := opens(token)
	if fleet.ValidAPIKey(token) { // whoever's it is
		r.Header.Del("Authorization")
	}
	link := takeLink(r)
	cookie := TakeCookie(r.Header, fleet.LinkName)
	switch {
	case opens(link) && (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == "":
		http.SetCookie(w, &http.Cookie{
			Name: fleet.LinkName, Value: link, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: forward.Scheme(r) == "https",
		})
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer")
		// A path that begins with two slashes would lead to another host.
		w.Header().Set("Location", "/"+strings.TrimLeft(r.URL.RequestURI(), `/\`))
		w.WriteHeader(http.StatusSeeOther)
		return false
	case keyed || opens(link) || opens(cookie):
		return true
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	refuse(w, r, http.StatusUnauthorized, textLocked)
	return false
}

func bearer(r *http.Request) (string, bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "Bearer")
}

// takeLink takes the token of a link out of a query, whose other members stay as they were written.
func takeLink(r *http.Request) (token string) {
	kept := []string{}
	for member := range strings.SplitSeq(r.URL.RawQuery, "&") {
		value, ours := strings.CutPrefix(member, fleet.LinkName+"=")
		if ours {
			token, _ = url.QueryUnescape(value)
			continue
		}
		kept = append(kept, member)
	}
	r.URL.RawQuery = strings.Join(kept, "&")
	return token
}

// TakeCookie takes a cookie out of the header of a request and returns its value, "" where there is none. The other cookies stay as
// they were written.
func TakeCookie(h http.Header, name string) (value string) {
	lines := h["Cookie"]
	h.Del("Cookie")
	for _, line := range lines {
		kept := []string{}
		for cookie := range strings.SplitSeq(line, ";") {
			text, ours := strings.CutPrefix(strings.TrimSpace(cookie), name+"=")
			if ours {
				value = text
				continue
			}
			kept = append(kept, cookie)
		}
		if line = strings.TrimSpace(strings.Join(kept, ";")); line != "" {
			h.Add("Cookie", line)
		}
	}
	return value
}
