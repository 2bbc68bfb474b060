package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"gantry/api/v2"
)

// A request waits for a worker at the scheduler that it came to, and counts at the leader, whichever that is.
func TestRequestsCountAtTheLeader(t *testing.T) {
	w := three(t)
	status, out, err := w.ask(w.leader(), w.keys.APIKey, http.MethodPost, "/v2/serverless", map[string]any{
		"name": "web", "type": "LOAD_BALANCER", "image": "web:1", "cpu": []any{map[string]any{"id": "cpu3c", "vcpuCount": 2}},
		"scaling": map[string]any{"type": "REQUEST_COUNT", "requestCount": 4},
	})
	var e v2.Endpoint
	if err != nil || status != http.StatusCreated || json.Unmarshal(out, &e) != nil {
		t.Fatalf("%d %s %v", status, out, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var requests sync.WaitGroup
	defer requests.Wait()
	defer cancel()
	for _, m := range w.all {
		requests.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.api+"/x", nil)
			if err != nil {
				t.Error(err)
				return
			}
			r.Host = e.ID + ".proxy.localhost"
			r.Header.Set("Authorization", "Bearer "+w.keys.APIKey)
			resp, err := browser.Do(r)
			if err == nil {
				t.Errorf("it was answered: %d", resp.StatusCode)
				_ = resp.Body.Close()
			}
		})
	}
	count := func(n int) func() bool {
		return func() bool {
			for _, m := range w.running() {
				if _, out, err := w.ask(m, w.keys.APIKey, http.MethodGet, "/v2/"+e.ID+"/health", nil); err != nil || !strings.Contains(string(out), fmt.Sprintf(`"inQueue":%d`, n)) {
					return false
				}
			}
			return true
		}
	}
	w.eventually("all three wait", count(3))
	w.leader().kill()
	w.eventually("the next leader is told", count(2))
	cancel()
	requests.Wait()
	w.eventually("none waits", count(0))
}
