package s3

import (
	"net/http"
	"slices"
)

// fromPage lets pages of the configured origins read the answer, and answers what a browser asks before it sends such a page's request.
// A request of a page still needs its signature. It reports whether it has answered.
func (h *Handler) fromPage(w http.ResponseWriter, r *http.Request) bool {
	if len(h.origins) == 0 {
		return false
	}
	head := w.Header()
	head.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if !slices.Contains(h.origins, origin) {
		return false
	}
	head.Set("Access-Control-Allow-Origin", origin)
	head.Set("Access-Control-Expose-Headers", "ETag")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	head.Set("Access-Control-Allow-Methods", "GET, PUT, DELETE")
	head.Set("Access-Control-Allow-Headers", "Content-Type")
	head.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}
