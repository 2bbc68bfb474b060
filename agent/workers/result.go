package workers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/faultpoint"
)

// report is one that the scheduler has not taken yet. What is in its header stays on disk if it must.
type report struct {
	header
	kind  agentrpc.JobReport_Kind
	chunk uint32
	body  []byte // nil: in file, if there is one
	order uint64 // among all reports

	kept chan struct{} // closed when the scheduler has taken it, or it makes no difference any more

	disk    sync.Mutex // guards the fields below; it comes after the gate's mutex
	file    string     // its copy in the spool
	size    int64      // of the file
	settled bool
}

func newReport(id fleet.PodID, j *job, kind agentrpc.JobReport_Kind) *report {
	return &report{header: header{Pod: id, Job: j.id, Attempt: j.attempt, Kind: int32(kind)}, kind: kind, kept: make(chan struct{})}
}

// ends reports whether it is the last that is said of a job.
func (r *report) ends() bool {
	return r.kind != agentrpc.JobReport_CHUNK && r.kind != agentrpc.JobReport_PROGRESS
}

// said is what a worker said of a job.
type said struct {
	kind    agentrpc.JobReport_Kind
	body    []byte
	refresh bool
}

// decode reads the body of job-done or, with stream, of job-stream, whatever its content type.
func decode(body []byte, stream bool) (said, error) {
	if !utf8.Valid(body) {
		return said{}, errors.New("what the worker sent is no UTF-8")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return said{}, errors.New("what the worker sent is no JSON object")
	}
	if stream {
		return said{kind: agentrpc.JobReport_CHUNK, body: body}, nil
	}
	out := said{kind: agentrpc.JobReport_DONE, body: fields["output"], refresh: string(fields["stopPod"]) == "true"}
	if out.body == nil { // the handler returned an empty dict
		out.body = []byte("{}")
	}
	var status string
	if json.Unmarshal(fields["status"], &status) == nil && status == "IN_PROGRESS" {
		return said{kind: agentrpc.JobReport_PROGRESS, body: out.body}, nil
	}
	if fault := fields["error"]; fault != nil && string(fault) != "null" {
		out.kind, out.body = agentrpc.JobReport_FAILED, text(fault)
	}
	return out, nil
}

// text makes a JSON string of any JSON.
func text(v json.RawMessage) []byte {
	if v[0] == '"' {
		return v
	}
	var short bytes.Buffer
	if err := json.Compact(&short, v); err != nil {
		return []byte(`""`) // not of what was decoded
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(short.String()) // a string
	return bytes.TrimSpace(out.Bytes())
}

var errTooLarge = errors.New("too large")

// read reads a body of at most limit bytes. done gives its room back.
func (w *worker) read(rw http.ResponseWriter, r *http.Request, limit int64) (body []byte, done func(), err error) {
	size := r.ContentLength
	if size > limit {
		return nil, nil, errTooLarge
	}
	if size < 0 {
		size = limit
	}
	var taken []*semaphore.Weighted
	done = func() {
		for _, s := range taken {
			s.Release(size)
		}
	}
	for _, s := range []*semaphore.Weighted{w.bytes, w.gate.bytes} {
		if !s.TryAcquire(size) {
			done()
			return nil, nil, errBusy
		}
		taken = append(taken, s)
	}
	control := http.NewResponseController(rw)
	_ = control.SetReadDeadline(time.Now().Add(w.gate.times.body))
	body, err = io.ReadAll(io.LimitReader(r.Body, limit+1))
	_ = control.SetReadDeadline(time.Time{})
	if err == nil && int64(len(body)) > limit {
		err = errTooLarge
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return body, done, nil
}

var errBusy = errors.New("busy")

// post takes what a worker says of a job. The worker is answered 200 when that is committed.
func (w *worker) post(rw http.ResponseWriter, r *http.Request, id string, limit int64) {
	j, release := w.about(id)
	defer release()
	body, done, err := w.read(rw, r, limit)
	switch {
	case errors.Is(err, errBusy):
		rw.Header().Set("Retry-After", "1")
		rw.WriteHeader(http.StatusServiceUnavailable)
		return
	case errors.Is(err, errTooLarge):
		w.discard(rw, r, j, http.StatusRequestEntityTooLarge, fmt.Sprintf("what the worker sent is larger than %d bytes", limit))
		return
	case err != nil: // the connection broke, or the worker was too slow; its library tries again
		rw.Header().Set("Connection", "close")
		rw.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer done()
	faultpoint.Hit("worker.result.received")
	if j == nil {
		w.gate.Log.Info("a worker speaks of a job that it does not have", "pod", w.id, "job", plain(id, maxIDBytes))
		return // 200: the library would drop a result that is refused all the same, and complain
	}
	what, err := decode(body, limit == maxChunk)
	switch {
	case err != nil:
		w.discard(rw, r, j, http.StatusBadRequest, err.Error())
	case what.kind == agentrpc.JobReport_PROGRESS && len(body) > maxChunk:
		rw.WriteHeader(http.StatusRequestEntityTooLarge)
	default:
		rw.WriteHeader(w.report(r, j, what, ""))
	}
}

// about returns the job that a request is about, nil if the worker has none such.
func (w *worker) about(id string) (j *job, release func()) {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	if j = w.jobs[id]; j == nil && !w.known && id != "" && len(id) <= maxIDBytes && len(w.jobs) < maxUnsure {
		j = &job{id: id, turn: make(chan struct{}, 1)}
		w.jobs[id] = j
	}
	if j == nil && w.known {
		j = w.recall(id)
	}
	if j == nil {
		return nil, func() {}
	}
	j.busy++
	return j, func() {
		w.gate.mu.Lock()
		defer w.gate.mu.Unlock()
		if j.busy--; j.late && j.busy == 0 && j.final == nil && w.jobs[id] == j {
			w.giveUp(j) // the worker may say it again
		}
	}
}

// discard says that a result cannot be kept.
func (w *worker) discard(rw http.ResponseWriter, r *http.Request, j *job, status int, reason string) {
	control := http.NewResponseController(rw)
	_ = control.SetReadDeadline(time.Now().Add(w.gate.times.body))
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, workerBytes)) // who still writes would not see the answer
	_ = control.SetReadDeadline(time.Time{})
	if j != nil {
		if got := w.report(r, j, said{kind: agentrpc.JobReport_DISCARDED}, reason); got != http.StatusOK {
			status = got
		}
	}
	rw.Header().Set("Connection", "close")
	rw.WriteHeader(status)
}

// report says something of a job to the scheduler, and returns what the worker is answered.
func (w *worker) report(req *http.Request, j *job, what said, reason string) (status int) {
	timer := time.NewTimer(w.gate.times.keep)
	defer timer.Stop()
	select {
	case j.turn <- struct{}{}:
		defer func() { <-j.turn }()
	case <-timer.C:
		return http.StatusServiceUnavailable
	case <-req.Context().Done():
		return http.StatusServiceUnavailable
	}
	if what.kind == agentrpc.JobReport_CHUNK || what.kind == agentrpc.JobReport_PROGRESS { // its number is not known before
		select {
		case <-w.sure:
		case <-timer.C:
			return http.StatusServiceUnavailable
		case <-req.Context().Done():
			return http.StatusServiceUnavailable
		}
	}
	r, cut := w.begin(j, what, reason)
	if r == nil && what.kind == agentrpc.JobReport_DONE { // the job was given up, or given again, while the worker spoke
		if now, release := w.about(j.id); now != nil {
			defer release()
			return w.report(req, now, what, reason)
		}
	}
	if r == nil {
		return http.StatusOK // after its end
	}
	stored := !r.ends()
	for waiting := true; waiting; {
		select {
		case <-r.kept:
			return http.StatusOK
		case <-cut:
			cut = nil
		case <-timer.C:
			waiting = false
		case <-req.Context().Done():
			waiting = false
		}
		if !stored {
			if stored = w.gate.store(r); !stored {
				waiting = false
			}
		}
	}
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	if !r.ends() || !stored { // the worker says it again
		w.gate.link.drop(r)
		if j.final == r {
			j.final = nil
		}
	}
	return http.StatusServiceUnavailable
}

// begin makes a report, or returns the one that ends the job already; nil: nobody wants to hear it any more. cut is closed while no
// stream stands.
func (w *worker) begin(j *job, what said, reason string) (r *report, cut <-chan struct{}) {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	success := what.kind == agentrpc.JobReport_DONE
	if w.jobs[j.id] != j || j.late && !success {
		return nil, nil
	}
	if j.final != nil && success && (j.final.kind == agentrpc.JobReport_LOST || j.final.kind == agentrpc.JobReport_REFUSED) {
		w.gate.link.drop(j.final) // it was not lost, or the worker has done an earlier try
		j.final = nil
	}
	chunky := what.kind == agentrpc.JobReport_CHUNK || what.kind == agentrpc.JobReport_PROGRESS
	if j.final != nil {
		if chunky {
			return nil, nil
		}
		return j.final, nil
	}
	r = newReport(w.id, j, what.kind)
	r.body, r.Refresh, r.Reason = what.body, what.refresh, reason
	if what.kind == agentrpc.JobReport_CHUNK {
		r.chunk = j.chunks + 1
	}
	if r.ends() {
		j.final = r
	}
	w.gate.link.add(r)
	return r, w.gate.link.down
}

// store keeps a result on disk, and no longer in memory.
func (g *Gate) store(r *report) bool {
	g.mu.Lock()
	head := r.header
	g.mu.Unlock()
	err := g.spool.write(r, head)
	if err != nil {
		g.Log.Error("keep a worker's result", "pod", r.Pod, "job", r.Job, "err", err)
		return false
	}
	faultpoint.Hit("worker.result.spooled")
	return true
}

// settle ends a report: it is committed, or makes no difference any more. The gate's mutex is held.
func (g *Gate) settle(r *report) {
	if _, ok := g.link.pending[r]; !ok {
		return
	}
	g.link.drop(r)
	if w := g.workers[r.Pod]; w != nil {
		switch j := w.jobs[r.Job]; {
		case j == nil:
		case j.final == r && (r.kind == agentrpc.JobReport_LOST || w.old):
			w.giveUp(j)
		case j.final == r:
			delete(w.jobs, r.Job)
		case r.kind == agentrpc.JobReport_CHUNK && j.attempt == r.Attempt:
			j.chunks = max(j.chunks, r.chunk)
		}
	}
	close(r.kept)
	g.spool.remove(r)
	faultpoint.Hit("worker.result.kept")
}
