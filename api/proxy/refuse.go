package proxy

import (
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"strings"

	"gantry/fleet"
)

const (
	textNoTarget = "no such pod, or no such http port of it"
	textNoAnswer = "the pod's port does not answer; the application may still be starting"
	textBrokeOff = "the pod took the request and broke off before it answered"
	textUnknown  = "it is not known at the moment where the pod is; try again"
	textBusy     = "the pod has too many requests at a time; try again"
	textGreedy   = "there are too many requests to pods at a time from your address; try again"
	textPopular  = "the pods of this pod's owner have too many requests at a time; try again"
	textFull     = "there are too many requests to pods at a time; try again"
)

// meaning returns what a client is told of an error.
func meaning(err error) (int, string) {
	var e *fleet.Error
	known := errors.As(err, &e) && e.Msg != ""
	switch code := fleet.CodeOf(err); {
	case code == fleet.CodeNotFound:
		return http.StatusNotFound, textNoTarget
	case code == fleet.CodeNotAllowed && known:
		return http.StatusBadGateway, e.Msg
	case code == fleet.CodeUnavailable && known:
		return http.StatusBadGateway, textNoAnswer + " (" + e.Msg + ")"
	}
	return http.StatusBadGateway, textBrokeOff
}

// page is what a person sees. It holds nothing but the text, and loads nothing.
var page = template.Must(template.New("page").Parse(`<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{{.Status}} {{.Title}}</title>
<style>body{font:1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem;color:#222}p{color:#555}</style>
<h1>{{.Status}} {{.Title}}</h1>
<p>{{.Detail}}</p>
`))

// refusal is the same for programs; see RFC 9457.
type refusal struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

// refuse answers a request in place of the pod: as a page, as JSON or as plain text, as the client accepts it.
func refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept")
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		h.Set("Retry-After", "1")
	}
	answer := refusal{status, http.StatusText(status), text}
	// A client that left is not told.
	switch accept := strings.ToLower(strings.Join(r.Header.Values("Accept"), ",")); {
	case strings.Contains(accept, "text/html"):
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		w.WriteHeader(status)
		_ = page.Execute(w, answer)
	case strings.Contains(accept, "json"):
		h.Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer)
	default:
		h.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text + "\n"))
	}
}
