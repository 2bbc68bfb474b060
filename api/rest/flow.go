package rest

import (
	"net/http"
	"strings"

	"gantry/fleet"
)

// Flow returns the pod whose log, shell or files a request is about. Any scheduler with a way to the pod's host may serve it.
func Flow(r *http.Request) (pod fleet.PodID, ok bool) {
	rest, found := strings.CutPrefix(r.URL.Path, "/v2/pods/")
	id, what, _ := strings.Cut(rest, "/")
	switch {
	case !found || !fleet.ValidID(id):
	case what == "logs" && r.Method == http.MethodGet, what == "exec" && r.Method == http.MethodGet,
		what == "files" && (r.Method == http.MethodGet || r.Method == http.MethodPut):
		return fleet.PodID(id), true
	}
	return "", false
}
