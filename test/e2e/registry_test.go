package e2e

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	goreg "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

// TestAPullFromADeadRegistryIsNotCharged asks for an image of a registry that is dead, and then is not: meanwhile the pod costs nothing and
// says why it waits, in its record and in its log.
func TestAPullFromADeadRegistryIsNotCharged(t *testing.T) {
	t.Parallel()
	store := goreg.New(goreg.Logger(log.New(io.Discard, "", 0)))
	var dead atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if dead.Load() {
			panic(http.ErrAbortHandler)
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	d := suite.dev
	body := devtest.CPUPod("waits", devtest.Sleeper)
	body.Image = new(strings.TrimPrefix(srv.URL, "http://") + "/made:1")
	if err := remote.Write(must[name.Reference](t)(name.ParseReference(*body.Image)), ctrdtest.BusyboxImage(t, nil)); err != nil {
		t.Fatal(err)
	}
	dead.Store(true)
	pod := create(t, d, body)
	c := user(t, d)
	var now v2.Pod
	await(t, func() error {
		now = must[client.Answer[v2.Pod]](t)(c.Pod(t.Context(), pod.ID)).Value
		if now.Cost != 0 || !strings.Contains(string(now.StatusReason), "cannot be reached") {
			return fmt.Errorf("it costs %g an hour: %q", now.Cost, now.StatusReason)
		}
		return nil
	})
	if pod.Cost == 0 || now.Status != fleet.StatusProvisioning {
		t.Errorf("it cost %g an hour at first, and is %s", pod.Cost, now.Status)
	}
	told := false
	err := c.PodLogs(t.Context(), pod.ID, client.LogQuery{Source: "system", Tail: 100}, client.LogEvents{
		Line: func(l client.LogLine) error { told = told || strings.Contains(l.Line, "cannot be reached"); return nil },
	})
	if err != nil || !told {
		t.Errorf("its log says why: %v, %v", told, err)
	}
	dead.Store(false)
	if now = reach(t, d, pod.ID, fleet.StatusRunning); now.Cost != pod.Cost {
		t.Errorf("it runs for %g an hour, want %g", now.Cost, pod.Cost)
	}
}
