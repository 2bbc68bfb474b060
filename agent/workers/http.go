package workers

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gantry/agent/pod"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
)

// ServeHTTP answers one request of the worker, whatever endpoint and worker it names: who asks is known from where it asks.
func (w *worker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	verb, id := route(r.URL.Path)
	method := http.MethodGet
	if verb == "job-done" || verb == "job-stream" {
		method = http.MethodPost
	}
	if verb != "" && r.Method != method {
		w.pause(rw, r, http.StatusMethodNotAllowed)
		return
	}
	switch verb {
	case "job-take":
		w.take(rw, r, 1, false)
	case "job-take-batch":
		n, err := strconv.Atoi(r.URL.Query().Get("batch_size"))
		if err != nil || n < 1 {
			n = 1
		}
		w.take(rw, r, min(n, maxSlots), true)
	case "job-stop":
		w.askStops(rw, r)
	case "job-done":
		w.post(rw, r, id, maxResult)
	case "job-stream":
		w.post(rw, r, id, maxChunk)
	case "ping":
		w.pinged(r)
	default:
		w.pause(rw, r, http.StatusNotFound)
	}
}

// route splits /v2/ENDPOINT/VERB/WORKER[/JOB]. The verb is empty when the path is none.
func route(path string) (verb, job string) {
	parts := strings.Split(path, "/")
	const short = 5 // with the empty one before the first slash
	if len(parts) < short || parts[0] != "" || parts[1] != "v2" {
		return "", ""
	}
	switch verb = parts[3]; verb {
	case "job-take", "job-take-batch", "job-stop", "ping":
		if len(parts) == short {
			return verb, ""
		}
	case "job-done", "job-stream":
		if len(parts) == short+1 {
			return verb, parts[5]
		}
	}
	return "", ""
}

// pause answers after a while: workers ask again at once.
func (w *worker) pause(rw http.ResponseWriter, r *http.Request, status int) {
	_ = sleep.For(r.Context(), w.gate.times.pause)
	rw.WriteHeader(status)
}

// take answers a poll for jobs.
func (w *worker) take(rw http.ResponseWriter, r *http.Request, slots int, batch bool) {
	p := w.open(slots)
	if p == nil {
		w.pause(rw, r, http.StatusNoContent)
		return
	}
	timer := time.NewTimer(w.gate.times.hold)
	defer timer.Stop()
	var jobs []*job
	none := http.StatusNoContent
	select {
	case jobs = <-p.got:
		none = http.StatusBadRequest // at this, libraries ask again at once (wire-facts.md, §1.2)
	case <-timer.C:
		jobs = w.leave(p, true)
	case <-w.draining:
		jobs = w.leave(p, false)
	case <-r.Context().Done():
		jobs = w.leave(p, false)
	}
	if len(jobs) == 0 {
		rw.WriteHeader(none)
		return
	}
	var bodies [][]byte
	w.gate.mu.Lock()
	for _, j := range jobs {
		bodies = append(bodies, j.body)
		j.body = nil
	}
	w.gate.mu.Unlock()
	body := bodies[0]
	if batch {
		body = append(append([]byte("["), bytes.Join(bodies, []byte(","))...), ']')
	}
	if w.answer(rw, r, body) {
		return
	}
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	for _, j := range jobs {
		w.refuse(j)
	}
}

// stop is a job that is to be stopped and of which the worker was not told yet.
type stop struct {
	job    *job
	giveUp *time.Timer
}

// stop has the worker told that nobody wants the result of a job any more.
func (w *worker) stop(id string) {
	j := w.jobs[id]
	if j == nil || j.final != nil {
		return
	}
	if w.unwait(j) { // it never saw it
		delete(w.jobs, id)
		w.tell()
		return
	}
	if n := len(w.asks); n > 0 {
		ask := w.asks[n-1]
		w.asks = w.asks[:n-1]
		ask <- []string{id}
		return
	}
	wait := w.gate.times.stop
	if w.drained() || !w.stoppy && !w.old { // its library is older than that channel
		wait = 0
	}
	s := &stop{job: j}
	s.giveUp = time.AfterFunc(wait, func() {
		w.gate.mu.Lock()
		defer w.gate.mu.Unlock()
		for i, have := range w.stops {
			if have == s {
				w.stops = append(w.stops[:i:i], w.stops[i+1:]...)
				w.finish(j, agentrpc.JobReport_UNSTOPPED, "")
				return
			}
		}
	})
	w.stops = append(w.stops, s)
}

// askStops answers a poll for jobs to stop.
func (w *worker) askStops(rw http.ResponseWriter, r *http.Request) {
	ask := make(chan []string, 1)
	w.gate.mu.Lock()
	w.stoppy = true
	if !w.drained() {
		if ids := w.takeStops(); len(ids) > 0 {
			ask <- ids
		} else {
			w.asks = append(w.asks, ask)
		}
	}
	drained := w.drained()
	w.gate.mu.Unlock()
	if drained {
		w.pause(rw, r, http.StatusNoContent)
		return
	}
	timer := time.NewTimer(w.gate.times.hold)
	defer timer.Stop()
	var ids []string
	select {
	case ids = <-ask:
	case <-timer.C:
		ids = w.unask(ask)
	case <-w.draining:
		ids = w.unask(ask)
	case <-r.Context().Done():
		ids = w.unask(ask)
	}
	if len(ids) == 0 {
		rw.WriteHeader(http.StatusNoContent)
		return
	}
	body, _ := json.Marshal(map[string][]string{"jobsToStop": ids}) // strings alone
	w.gate.mu.Lock()
	var jobs []*job
	for _, id := range ids {
		if j := w.jobs[id]; j != nil && j.final == nil {
			jobs = append(jobs, j)
		}
	}
	w.gate.mu.Unlock()
	seen := w.answer(rw, r, body)
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	for _, j := range jobs {
		switch {
		case w.jobs[j.id] != j || j.final != nil: // it ended, or was given again
		case seen:
			delete(w.jobs, j.id)
		default:
			w.finish(j, agentrpc.JobReport_UNSTOPPED, "")
		}
	}
}

func (w *worker) takeStops() (ids []string) {
	for _, s := range w.stops {
		s.giveUp.Stop()
		if s.job.final == nil && w.jobs[s.job.id] == s.job {
			ids = append(ids, s.job.id)
		}
	}
	w.stops = nil
	return ids
}

// unask ends a poll for stops, or returns what it was answered with meanwhile.
func (w *worker) unask(ask chan []string) []string {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	for i, have := range w.asks {
		if have == ask {
			w.asks = append(w.asks[:i:i], w.asks[i+1:]...)
			return nil
		}
	}
	return <-ask
}

// ping is a heartbeat: the jobs that the worker believes it has.
type ping struct {
	at   time.Time
	jobs map[string]bool
}

// pinged takes a heartbeat.
func (w *worker) pinged(r *http.Request) {
	q := r.URL.Query()
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	if q.Get("status") == "unhealthy" {
		w.gate.link.unhealthy[w.id] = &agentrpc.WorkerUnhealthy{
			PodId: string(w.id), Check: plain(q.Get("check"), 64), Reason: plain(q.Get("reason"), 256),
		}
		w.gate.link.ring()
		return
	}
	p := ping{at: time.Now(), jobs: map[string]bool{}}
	for id := range strings.SplitSeq(q.Get("job_id"), ",") {
		if id != "" && len(p.jobs) < maxPingedIDs {
			p.jobs[id] = true
		}
	}
	if w.pings = append(w.pings, p); len(w.pings) > 2 {
		w.pings = w.pings[1:]
	}
	if len(w.pings) < 2 {
		return
	}
	older := w.pings[0]
	for id, j := range w.jobs {
		given := !j.taken.IsZero() && j.taken.Before(older.at)
		if given && j.attempt != 0 && j.busy == 0 && j.final == nil && !older.jobs[id] && !p.jobs[id] {
			w.finish(j, agentrpc.JobReport_LOST, "the worker does not have the job any more")
		}
	}
}

// plain makes text of a worker fit for people: valid UTF-8 of at most limit bytes, without control characters.
func plain(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	return pod.Readable(text, limit)
}
