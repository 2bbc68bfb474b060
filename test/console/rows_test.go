package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gantry/api/console"
	"gantry/fleet"
	"gantry/internal/pki"
)

// many answers as the API of an account with so many pods does. Each second a pod changes.
func many(pods int) http.Handler {
	record := func(i, turn int) map[string]any {
		return map[string]any{
			"id": fmt.Sprintf("pod%011d", i), "name": fmt.Sprintf("worker-%05d", i), "status": "RUNNING", "image": "docker.io/library/busybox", "cost": 0.06 + float64(turn),
			"actions": []string{"stop"}, "createdAt": "2026-10-01T12:00:00.000Z", "dataCenterId": "dev-1", "cpu": map[string]any{"id": "cpu3c", "vcpuCount": 2, "memory": 4},
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v2/account", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"id":"a","name":"many","balance":1,"hourlyRate":1,"limits":{"gpus":{"limit":1,"used":0}}}`))
	})
	mux.HandleFunc("/v2/pods", func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.Atoi(r.URL.Query().Get("cursor")) // none is the beginning
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		list, next := []any{}, ""
		for i := from; i < min(from+limit, pods); i++ {
			list = append(list, record(i, 0))
		}
		if from+limit < pods {
			next = strconv.Itoa(from + limit)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"pods": list, "next": next})
	})
	mux.HandleFunc("/v2/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "id: 0-1-1\nevent: ready\ndata: {}\n\n")
		for turn := 1; r.Context().Err() == nil; turn++ {
			data, _ := json.Marshal(map[string]any{"kind": "pod", "id": record(turn%20, 0)["id"], "type": "changed", "at": "2026-10-01T12:00:00.000Z", "record": record(turn%20, turn)})
			_, _ = fmt.Fprintf(w, "id: 0-%d-1\ndata: %s\n\n", turn+1, data)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	return mux
}

// TestTenThousandRowsStaySmooth scrolls, searches and sorts a list of 10,000 pods, fifty of which change each second.
func TestTenThousandRowsStaySmooth(t *testing.T) {
	const pods, mostRows, longest = 10_000, 80, 1500 // ms of a frame; on a quiet machine it is a twentieth of that
	path := filepath.Join(t.TempDir(), "seal.key")
	if err := pki.NewSealKeyFile(path); err != nil {
		t.Fatal(err)
	}
	sealer, err := pki.LoadSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	c := console.New(console.Config{Sealer: sealer, Ours: func(*http.Request) bool { return true }, Now: time.Now})
	s := httptest.NewServer(c.Wrap(many(pods)))
	t.Cleanup(s.Close)
	key := fleet.NewAPIKey()
	b := open(t, s.URL, key.Reveal())
	visit(b, "/pods")
	b.Wait(`document.querySelector(".count").innerText === "10,000"`)
	frames := b.Eval(`(async () => {
		const box = document.querySelector(".table"), end = box.scrollHeight, out = { worst: 0, rows: 0 }
		let last = performance.now()
		for (let i = 0; i <= 60; i++) {
			box.scrollTop = end * i / 60
			await new Promise(requestAnimationFrame)
			const now = performance.now()
			out.worst = Math.max(out.worst, now - last)
			out.rows = Math.max(out.rows, document.querySelectorAll("tbody tr").length)
			last = now
		}
		return out
	})()`)
	var got struct{ Worst, Rows float64 }
	if err := json.Unmarshal([]byte(frames), &got); err != nil {
		t.Fatal(err)
	}
	t.Logf("scrolled: the longest frame took %.0f ms; at most %.0f rows were in the page", got.Worst, got.Rows)
	if got.Rows > mostRows || got.Worst > longest {
		t.Errorf("%s", frames)
	}
	b.Wait(`document.querySelector("tbody").innerText.includes("worker-09999")`)
	begun := time.Now()
	b.Fill("input.search", "worker-04217")
	b.Wait(`document.querySelector(".count").innerText === "1 of 10,000"`)
	t.Logf("searched in %s", time.Since(begun).Round(time.Millisecond))
	b.Fill("input.search", " ")
	b.Click("th button", "USD / h")
	b.Click("th button", "USD / h ↑")
	b.Wait(`Number(document.querySelector("tbody tr:not(.gap) td.number:nth-last-child(2)").innerText.replace(/[$,]/g, "")) > 1`)
	if strings.Contains(b.Eval(`document.querySelector("header.top").innerText`), "broken") {
		t.Error("the events do not arrive")
	}
	quiet(t, b)
}
