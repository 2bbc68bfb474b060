package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/fleet"
)

// flaky answers the first requests with failures.
type flaky struct {
	mu       sync.Mutex
	failures []http.HandlerFunc
	keys     []string // Idempotency-Key of each request
	bodies   []string
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.keys, f.bodies = append(f.keys, r.Header.Get("Idempotency-Key")), append(f.bodies, string(body))
	var fail http.HandlerFunc
	if len(f.failures) > 0 {
		fail, f.failures = f.failures[0], f.failures[1:]
	}
	f.mu.Unlock()
	if fail != nil {
		fail(w, r)
		return
	}
	w.Header().Set("Idempotent-Replayed", "true")
	_, _ = io.WriteString(w, `{"id":"a","balance":3}`)
}

// seen returns the keys and bodies of all requests.
func (f *flaky) seen() (keys, bodies []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.keys), slices.Clone(f.bodies)
}

func status(code int, retryAfter string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.WriteHeader(code)
	}
}

func drop(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func TestCallsAreRepeatedOnlyWhereThatIsSafe(t *testing.T) {
	ctx := context.Background()
	read := func(c *Client) error { _, err := c.Pod(ctx, "p"); return err }
	make := func(c *Client) error { _, err := c.CreatePod(ctx, v2.CreatePodRequest{Name: "web"}); return err }
	credit := func(c *Client) error { _, err := c.AddCredit(ctx, "a", 3); return err }
	act := func(c *Client) error { _, err := c.ActPod(ctx, "p", fleet.ActionStop); return err }
	remove := func(c *Client) error { return c.DeletePod(ctx, "p") }
	key := func(c *Client) error {
		_, err := c.CreateKey(ctx, v2.CreateKeyRequest{KeyFields: v2.KeyFields{Name: "k"}})
		return err
	}
	away, lost, limited := status(503, ""), http.HandlerFunc(drop), status(429, "")
	tests := []struct {
		name     string
		call     func(*Client) error
		failures []http.HandlerFunc
		requests int
		ok       bool
	}{
		{"a read, away for a moment", read, []http.HandlerFunc{away, status(502, ""), status(504, "")}, 4, true},
		{"a read, connection lost", read, []http.HandlerFunc{lost}, 2, true},
		{"a read, away for long", read, []http.HandlerFunc{away, away, away, away, away}, 4, false},
		{"a read, a fault", read, []http.HandlerFunc{status(500, "")}, 1, false},
		{"a read, refused", read, []http.HandlerFunc{status(404, "")}, 1, false},
		{"a create with a key", make, []http.HandlerFunc{away, lost}, 3, true},
		{"credit with a key", credit, []http.HandlerFunc{lost}, 2, true},
		{"a create, no room", make, []http.HandlerFunc{status(400, "")}, 1, false},
		{"an action, away", act, []http.HandlerFunc{away}, 1, false},
		{"an action, connection lost", act, []http.HandlerFunc{lost}, 1, false},
		{"an action, limited", act, []http.HandlerFunc{limited, limited}, 3, true},
		{"a delete, away", remove, []http.HandlerFunc{away}, 1, false},
		{"a create without a key, away", key, []http.HandlerFunc{away}, 1, false},
		{"limited for a second", key, []http.HandlerFunc{status(429, "1")}, 2, true},
		{"limited for long", read, []http.HandlerFunc{status(429, "60")}, 1, false},
		{"away for long, as it says", read, []http.HandlerFunc{status(503, "60")}, 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &flaky{failures: tt.failures}
			err := tt.call(serve(t, f.ServeHTTP))
			keys, bodies := f.seen()
			if (err == nil) != tt.ok || len(keys) != tt.requests {
				t.Errorf("%d requests: %v", len(keys), err)
			}
			for i := range keys {
				if keys[i] != keys[0] || bodies[i] != bodies[0] {
					t.Errorf("request %d is another one: %q %s", i, keys[i], bodies[i])
				}
			}
		})
	}
}

func TestOnceRepeatsNothing(t *testing.T) {
	f := &flaky{failures: []http.HandlerFunc{status(503, "")}}
	_, err := serve(t, f.ServeHTTP).Once().Pod(context.Background(), "p")
	if keys, _ := f.seen(); err == nil || len(keys) != 1 {
		t.Errorf("%d requests: %v", len(keys), err)
	}
}

func TestRepeatingEndsWithItsContext(t *testing.T) {
	f := &flaky{failures: []http.HandlerFunc{status(503, "5")}}
	ctx, cancel := context.WithCancelCause(context.Background())
	enough := errors.New("enough")
	timer := time.AfterFunc(50*time.Millisecond, func() { cancel(enough) })
	defer timer.Stop()
	if _, err := serve(t, f.ServeHTTP).Pod(ctx, "p"); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
}

func TestCreatesCarryAKey(t *testing.T) {
	f := &flaky{}
	c := serve(t, f.ServeHTTP)
	ctx := context.Background()
	for _, err := range []error{
		second(c.CreatePod(ctx, v2.CreatePodRequest{Name: "a"})), second(c.CreatePod(ctx, v2.CreatePodRequest{Name: "a"})),
		second(c.CreateTemplate(ctx, v2.CreateTemplateRequest{})), second(c.CreateRegistry(ctx, v2.CreateRegistryRequest{UpdateRegistryRequest: v2.UpdateRegistryRequest{Password: "hush"}})),
		second(c.AddCredit(ctx, "a", 1)), second(c.Keyed("mine").CreatePod(ctx, v2.CreatePodRequest{})),
		second(c.Keyed("mine").PlanPod(ctx, v2.CreatePodRequest{})),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	keys, bodies := f.seen()
	seen := map[string]bool{}
	for _, key := range keys[:5] {
		if len(key) < 20 || seen[key] {
			t.Errorf("key %q", key)
		}
		seen[key] = true
	}
	if keys[5] != "mine" || keys[6] != "" {
		t.Errorf("keys %q", keys)
	}
	if !strings.Contains(bodies[3], `"password":"hush"`) {
		t.Errorf("the password is not sent: %s", bodies[3])
	}
	pod, err := c.CreatePod(ctx, v2.CreatePodRequest{Name: "a"})
	if err != nil || !pod.Replayed {
		t.Errorf("replayed %v %v", pod.Replayed, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestBodies(t *testing.T) {
	tests := []struct {
		name string
		body any
		want string
	}{
		{"pod", v2.CreatePodRequest{Name: "a", GPU: &v2.CreateGPUConfig{ID: "x", Count: 1}}, `{"name":"a","gpu":{"id":"x","count":1}}`},
		{"pod against its template", v2.CreatePodRequest{
			Name: "a", GPU: &v2.CreateGPUConfig{ID: "x", AllowedCUDA: []string{}},
			PodSettings: v2.PodSettings{Args: new(""), Ports: []string{}, Registry: v2.Null[string](), TemplateID: "t"},
		}, `{"args":"","ports":[],"registry":null,"templateId":"t","name":"a","gpu":{"id":"x","allowedCudaVersions":[]}}`},
		{"pod with a credential", v2.CreatePodRequest{Name: "a", PodSettings: v2.PodSettings{Args: new("x"), Registry: v2.Value("r3g8k2m7q1w4z9")}}, `{"args":"x","registry":"r3g8k2m7q1w4z9","name":"a"}`},
		{"pod change", v2.UpdatePodRequest{Locked: new(bool), PodSettings: v2.PodSettings{Env: map[string]string{}, Ports: []string{}, Registry: v2.Null[string]()}}, `{"ports":[],"env":{},"registry":null,"locked":false}`},
		{"nothing to change", v2.UpdatePodRequest{}, `{}`},
		{"account", admin.UpdateAccountRequest{Quotas: v2.Null[admin.AccountQuotas]()}, `{"quotas":null}`},
		{"key for all endpoints", v2.CreateKeyRequest{KeyFields: v2.KeyFields{Name: "k", Invoke: v2.Invoke{All: true}}}, `{"name":"k","invoke":"all"}`},
		{"key for none", v2.CreateKeyRequest{KeyFields: v2.KeyFields{Name: "k", Invoke: v2.Invoke{IDs: []string{}}}}, `{"name":"k","invoke":[]}`},
	}
	for _, tt := range tests {
		got, err := json.Marshal(tt.body)
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %s %v", tt.name, got, err)
		}
	}
}

func TestRecords(t *testing.T) {
	var key v2.Key
	for text, want := range map[string]string{`"all"`: `"all"`, `["a","b"]`: `["a","b"]`, `[]`: `[]`, `null`: `[]`} {
		if err := json.Unmarshal([]byte(`{"invoke":`+text+`}`), &key); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(key.Invoke); err != nil || string(got) != want {
			t.Errorf("%s: %s %v", text, got, err)
		}
	}
	var bill Billing
	const text = `{"records":[{"startTime":"2026-10-01T00:00:00.000Z","endTime":"2026-10-02T00:00:00.000Z","podId":"p","totalAmount":3.5,"gpuAmount":3,"diskAmount":0.5}],
		"metadata":{"query":{"startTime":"2026-10-01T00:00:00Z","endTime":"2026-10-02T00:00:00Z","bucketSize":"day","podId":null},"recordCount":1,"totals":{"totalAmount":3.5,"gpuAmount":3}}}`
	if err := json.Unmarshal([]byte(text), &bill); err != nil {
		t.Fatal(err)
	}
	r := bill.Records[0]
	if r.ID != "p" || r.Amounts["gpuAmount"] != 3 || len(r.Amounts) != 3 || r.End.Sub(r.Start) != 24*time.Hour || bill.Metadata.Totals["totalAmount"] != 3.5 {
		t.Errorf("%+v", bill)
	}
	if err := json.Unmarshal([]byte(`{"records":[{"gpuAmount":"much"}]}`), &bill); err == nil {
		t.Error("an amount that is text was taken")
	}
}
