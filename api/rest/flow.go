package rest

import (
	"net/http"
	"strings"

	"gantry/api/auth"
	"gantry/fleet"
)

// What the inside of a pod asks of a key.
var (
	logScope    = auth.Read(fleet.GroupPods)
	insideScope = auth.Write(fleet.GroupPods) // of commands and files
)

// Flow returns the pod whose log, shell or files a request is about, and what that asks of a key. Any scheduler with a way to the pod's
// host may serve it.
func Flow(r *http.Request) (pod fleet.PodID, scope auth.Scope, ok bool) {
	rest, found := strings.CutPrefix(r.URL.Path, "/v2/pods/")
	id, what, _ := strings.Cut(rest, "/")
	switch {
	case !found || !fleet.ValidID(id):
	case what == "logs" && r.Method == http.MethodGet:
		return fleet.PodID(id), logScope, true
	case what == "exec" && r.Method == http.MethodGet, what == "files" && (r.Method == http.MethodGet || r.Method == http.MethodPut):
		return fleet.PodID(id), insideScope, true
	}
	return "", auth.Scope{}, false
}
