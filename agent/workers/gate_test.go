package workers

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/internal/agentrpc"
	library "gantry/test/program/worker"
)

// TestWorkersOfAllLibraries: each handler, in the ways of each library, says what it should.
func TestWorkersOfAllLibraries(t *testing.T) {
	const (
		done, failed, progress, chunk = agentrpc.JobReport_DONE, agentrpc.JobReport_FAILED, agentrpc.JobReport_PROGRESS, agentrpc.JobReport_CHUNK
	)
	type want struct {
		kind agentrpc.JobReport_Kind
		body string // it begins so
	}
	for handler, wants := range map[string][]want{
		"echo":     {{done, `{"a":1}`}},
		"empty":    {{done, `{}`}},
		"error":    {{failed, `"{\"error_`}},
		"refresh":  {{done, `{"a":1}`}},
		"stream":   {{chunk, `{"output":"chunk 0"}`}, {chunk, `{"output":"chunk 1"}`}, {chunk, `{"output":"chunk 2"}`}, {done, `[]`}},
		"progress": {{progress, `"half"`}, {done, `{"a":1}`}},
		"lie":      {{done, `{"a":1}`}},
	} {
		for _, version := range []string{"1.6", "1.7.12", "1.10"} {
			for _, many := range []int{1, 3} {
				t.Run(fmt.Sprint(handler, " ", version, " ", many), func(t *testing.T) {
					l := newLab(t)
					l.connected()
					l.work(library.Config{Handler: handler, Library: version, Concurrency: many})
					l.ready(int32(many))
					l.give("job1-u1", 7, `{"id":"job1-u1","input":{"a":1}}`)
					for i, w := range wants {
						r := l.said(i + 1)
						if r.GetKind() != w.kind || !strings.HasPrefix(string(r.GetBody()), w.body) || r.GetAttempt() != 7 || r.GetPodId() != podID ||
							r.GetJobId() != "job1-u1" || r.GetRefresh() != (handler == "refresh") || w.kind == chunk && r.GetChunk() != uint32(i+1) {
							t.Errorf("report %d is %v", i, r)
						}
					}
					l.ready(int32(many)) // and it wants another
					if n := len(l.reports); n != len(wants) {
						t.Errorf("%d reports", n)
					}
				})
			}
		}
	}
}

// TestAnIdleWorkerCostsTheSchedulerNothing: polls end and are asked again, and nobody is told.
func TestAnIdleWorkerCostsTheSchedulerNothing(t *testing.T) {
	l := newLab(t)
	l.times.hold, l.times.again = 20*time.Millisecond, 2*time.Second
	l.connected()
	for range 5 {
		if status, body, _ := l.ask("GET", "job-take/w?x&job_in_progress=0", ""); status != 204 || body != "" {
			t.Fatalf("%d %s", status, body)
		}
	}
	l.until("it wants nothing after a while", func() bool { return len(l.wants) == 2 })
	if l.wants[0].GetSlots() != 1 || l.wants[1].GetSlots() != 0 {
		t.Errorf("%v", l.wants)
	}
}

// TestAHostWithoutWorkersHasNoStream, once it has heard which jobs it is taken to have, and opens one for its next worker.
func TestAHostWithoutWorkersHasNoStream(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.gate.Forget(podID)
	l.until("the stream ends", func() bool { return l.opened == 1 && l.stream == nil })
	must(t, l.gate.Open(podID, 2, true))
	l.until("there is another", func() bool { return l.opened == 2 && l.stream != nil })
	l.work(library.Config{Handler: "echo", Library: "1.10", Concurrency: 1})
	l.ready(1)
}

func TestATakenJobIsTheWholeAnswer(t *testing.T) {
	l := newLab(t)
	l.connected()
	for _, c := range []struct{ path, want string }{
		{"job-take/w?job_in_progress=0", `{"id":"j","input":{},"webhook":"w"}`},
		{"job-take-batch/w?batch_size=1", `[{"id":"j","input":{},"webhook":"w"}]`},
		{"job-take-batch/w?batch_size=x", `[{"id":"j","input":{},"webhook":"w"}]`},
	} {
		var wg sync.WaitGroup
		wg.Go(func() {
			status, body, header := l.ask("GET", c.path, "")
			if status != 200 || body != c.want || header.Get("Content-Type") != "application/json" || header.Get("Content-Length") != fmt.Sprint(len(c.want)) {
				t.Errorf("%s: %d %s %v", c.path, status, body, header)
			}
		})
		l.ready(1)
		l.give("j", 1, `{"id":"j","input":{},"webhook":"w"}`)
		wg.Wait()
		l.note(func() { l.wants = nil })
		if status, _, _ := l.ask("POST", "job-done/w/j?", `{}`); status != 200 {
			t.Errorf("%d", status)
		}
	}
}

// TestAJobWithoutAPollIsRefused: after a while; and one for a pod that is not there at once.
func TestAJobWithoutAPollIsRefused(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.give("j1", 3, `{}`)
	if r := l.said(1); r.GetKind() != agentrpc.JobReport_REFUSED || r.GetJobId() != "j1" || r.GetAttempt() != 3 {
		t.Errorf("%v", r)
	}
	l.gate.Close(podID)
	l.give("j2", 1, `{}`)
	if r := l.said(2); r.GetKind() != agentrpc.JobReport_REFUSED || r.GetJobId() != "j2" {
		t.Errorf("%v", r)
	}
}

// TestARefusalIsNotSaidOfTheNextTry: a job that was refused, and is given once more before that was answered, stays with the worker.
func TestARefusalIsNotSaidOfTheNextTry(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.note(func() { l.mute = true })
	l.give("j", 1, `{}`)
	l.said(1)
	l.give("j", 1, `{"id":"j"}`)
	if status, body, _ := l.ask("GET", "job-take/w?job_in_progress=0", ""); status != 200 || body != `{"id":"j"}` {
		t.Errorf("%d %s", status, body)
	}
	l.holds("nothing is to be said", func() bool { return len(l.gate.link.pending) == 0 })
	l.note(func() { l.mute = false })
	l.answers(200, "POST", "job-done/w/j?", `{"output":1}`)
	if r := l.said(2); r.GetKind() != agentrpc.JobReport_DONE {
		t.Errorf("%v", r)
	}
}

// TestAFrozenWorkerGetsNoJob: one that comes is refused, its polls say nothing of it; when it is thawed it is told to ask again, and gets
// the job with that.
func TestAFrozenWorkerGetsNoJob(t *testing.T) {
	l := newLab(t)
	l.connected()
	var wg sync.WaitGroup
	wg.Go(func() {
		if status, body, _ := l.ask("GET", "job-take/w?job_in_progress=0", ""); status != 400 || body != "" {
			t.Errorf("the poll of before was answered %d %s", status, body)
		}
	})
	l.ready(1)
	l.gate.Freeze(podID)
	l.ready(0)
	l.give("j1", 3, `{}`)
	if r := l.said(1); r.GetKind() != agentrpc.JobReport_REFUSED || r.GetJobId() != "j1" {
		t.Errorf("%v", r)
	}
	l.gate.Thaw(podID)
	wg.Wait()
	l.gate.Thaw(podID)
	wg.Go(func() {
		if status, body, _ := l.ask("GET", "job-take/w?job_in_progress=0", ""); status != 200 || body != `{"id":"j2"}` {
			t.Errorf("the next poll was answered %d %s", status, body)
		}
	})
	l.ready(1)
	l.give("j2", 1, `{"id":"j2"}`)
	wg.Wait()
	l.gate.Freeze("another")
	l.gate.Thaw("another")
}

// TestADeadPollLosesNoJob: wire-facts 0.4.
func TestADeadPollLosesNoJob(t *testing.T) {
	l := newLab(t)
	l.times.hold = time.Minute
	l.connected()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { l.askCtx(ctx, "GET", "job-take/w?", "") })
	l.ready(1)
	cancel()
	wg.Wait()
	l.ready(0)
	l.give("j", 1, `{"id":"j","input":{}}`)
	if r := l.said(1); r.GetKind() != agentrpc.JobReport_REFUSED {
		t.Errorf("%v", r)
	}
}

// TestResultsThatCannotBeKept: the worker is told to drop them, and the scheduler why.
func TestResultsThatCannotBeKept(t *testing.T) {
	l := newLab(t)
	l.connected()
	for i, c := range []struct {
		path, body string
		status     int
		reason     string
	}{
		{"job-done", `[1]`, 400, "what the worker sent is no JSON object"},
		{"job-done", `null`, 400, "what the worker sent is no JSON object"},
		{"job-done", `{"output":NaN}`, 400, "what the worker sent is no JSON object"},
		{"job-done", "{\"output\":\"\xff\"}", 400, "what the worker sent is no UTF-8"},
		{"job-done", ``, 400, "what the worker sent is no JSON object"},
		{"job-done", `{"output":"` + strings.Repeat("x", maxResult) + `"}`, 413, "what the worker sent is larger than 21037056 bytes"},
		{"job-stream", `{"output":"` + strings.Repeat("x", maxChunk) + `"}`, 413, "what the worker sent is larger than 1052672 bytes"},
		{"job-stream", `"text"`, 400, "what the worker sent is no JSON object"},
	} {
		id := fmt.Sprint("j", i)
		l.takes(id)
		if status, _, _ := l.ask("POST", c.path+"/w/"+id+"?isStream=false", c.body); status != c.status {
			t.Errorf("%d: %d", i, status)
		}
		if r := l.said(i + 1); r.GetKind() != agentrpc.JobReport_DISCARDED || r.GetReason() != c.reason || len(r.GetBody()) != 0 {
			t.Errorf("%d: %v", i, r)
		}
		l.note(func() { l.wants = nil })
	}
}

// TestWhatNobodyWantsToHearIsDropped: with 200, which is what the library stops at without a complaint.
func TestWhatNobodyWantsToHearIsDropped(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.takes("j")
	for _, path := range []string{"job-done/w/other?", "job-stream/w/other?", "job-done/w/?", "job-done/w/" + strings.Repeat("x", 4000) + "?"} {
		if status, _, _ := l.ask("POST", path, `{"output":1}`); status != 200 {
			t.Errorf("%s: %d", path, status)
		}
	}
	for _, body := range []string{`{"output":1}`, `{"output":1}`, `{"status":"IN_PROGRESS","output":2}`} {
		if status, _, _ := l.ask("POST", "job-done/w/j?", body); status != 200 {
			t.Errorf("%s: %d", body, status)
		}
	}
	if len(l.reports) != 1 {
		t.Errorf("%v", l.reports)
	}
}

// TestAResultIsKeptWhileNoSchedulerListens: the worker is answered 503, and 200 once it is committed; there is one report.
func TestAResultIsKeptWhileNoSchedulerListens(t *testing.T) {
	for name, restart := range map[string]bool{"the agent lives": false, "the agent is restarted": true} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.times.keep = 50 * time.Millisecond
			l.connected()
			l.takes("j")
			l.leave()
			for range 2 {
				if status, _, _ := l.ask("POST", "job-done/w/j?isStream=false", `{"output":"precious","stopPod":true}`); status != 503 {
					t.Errorf("%d", status)
				}
			}
			if files := l.files(); len(files) != 1 {
				t.Fatalf("%v", files)
			}
			l.note(func() { l.reports = nil })
			if restart {
				l.stopAgent()
				l.start(false)
			}
			l.times.keep = 5 * time.Second
			var wg sync.WaitGroup
			wg.Go(func() {
				if status, _, _ := l.ask("POST", "job-done/w/j?isStream=false", `{"output":"precious","stopPod":true}`); status != 200 {
					t.Errorf("%d", status)
				}
			})
			l.comeBack()
			r := l.said(1)
			wg.Wait()
			if r.GetKind() != agentrpc.JobReport_DONE || string(r.GetBody()) != `"precious"` || !r.GetRefresh() || r.GetAttempt() != 1 || len(l.reports) != 1 {
				t.Errorf("%v", l.reports)
			}
			if files := l.files(); len(files) != 0 {
				t.Errorf("%v", files)
			}
		})
	}
}

func (l *lab) files() []string {
	out, err := filepath.Glob(filepath.Join(l.dir, "*", "*"))
	must(l.T, err)
	return out
}

// TestAReportIsSaidAgainInTheNextStream: what was sent and not kept; parts of large ones come together.
func TestAReportIsSaidAgainInTheNextStream(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.takes("j")
	l.note(func() { l.mute = true })
	large := `"` + strings.Repeat("y", 3*partBytes) + `"`
	var wg sync.WaitGroup
	wg.Go(func() {
		if status, _, _ := l.ask("POST", "job-done/w/j?", `{"output":`+large+`}`); status != 200 {
			t.Errorf("%d", status)
		}
	})
	l.said(1)
	l.leave()
	l.comeBack()
	if r := l.said(2); string(r.GetBody()) != large || r.GetNumber() != 1 {
		t.Errorf("%d bytes, number %d", len(r.GetBody()), r.GetNumber())
	}
	wg.Wait()
}

// TestChunksAreNumberedFromWhatIsKept: also by an agent that did not see the first ones, and none twice when its answer was lost on the way
// from the scheduler.
func TestChunksAreNumberedFromWhatIsKept(t *testing.T) {
	l := newLab(t)
	l.stopAgent()
	l.note(func() { l.held = []*agentrpc.JobHeld{{PodId: podID, JobId: "j", Attempt: 4, Chunks: 2}} })
	l.start(false)
	l.connected()
	for n := range 2 {
		if status, _, _ := l.ask("POST", "job-stream/w/j?", `{"output":1}`); status != 200 {
			t.Errorf("%d", status)
		}
		if r := l.said(n + 1); r.GetChunk() != uint32(n+3) || r.GetAttempt() != 4 {
			t.Errorf("%v", r)
		}
	}
	l.note(func() { l.mute = true })
	var wg sync.WaitGroup
	wg.Go(func() {
		if status, _, _ := l.ask("POST", "job-stream/w/j?", `{"output":1}`); status != 200 {
			t.Errorf("%d", status)
		}
	})
	l.said(3)
	l.note(func() { l.held[0].Chunks = 5 }) // it was committed
	l.leave()
	l.comeBack()
	wg.Wait()
	if len(l.reports) != 3 {
		t.Errorf("%v", l.reports)
	}
}

// TestWhatTheClusterBelievesIsCompared: a job that was given in a stream that broke is refused; a worker that was there before the agent may
// have it.
func TestWhatTheClusterBelievesIsCompared(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.leave()
	l.note(func() { l.held = []*agentrpc.JobHeld{{PodId: podID, JobId: "lost", Attempt: 2}} })
	l.comeBack()
	if r := l.said(1); r.GetKind() != agentrpc.JobReport_REFUSED || r.GetAttempt() != 2 {
		t.Errorf("%v", r)
	}
	l.stopAgent()
	l.note(func() { l.held[0].JobId = "running" })
	l.start(false)
	if status, _, _ := l.ask("POST", "job-done/w/running?", `{"output":1}`); status != 200 {
		t.Errorf("%d", status)
	}
	if r := l.said(2); r.GetKind() != agentrpc.JobReport_DONE || r.GetAttempt() != 2 && r.GetAttempt() != 0 {
		t.Errorf("%v", r)
	}
}

// TestAJobThatTheWorkerForgotIsLost: two heartbeats without it, that began after it was given; once.
func TestAJobThatTheWorkerForgotIsLost(t *testing.T) {
	l := newLab(t)
	l.connected()
	ping := func(query string) {
		if status, _, _ := l.ask("GET", "ping/w?gpu="+query+"&runpod_version=1.6", ""); status != 200 {
			t.Errorf("%d", status)
		}
	}
	ping("") // before it had the job
	l.takes("j")
	ping("")
	ping("&job_id=j,k")
	ping("")
	if len(l.reports) != 0 {
		t.Fatalf("%v", l.reports)
	}
	ping("")
	ping("")
	if r := l.said(1); r.GetKind() != agentrpc.JobReport_LOST || r.GetReason() == "" {
		t.Errorf("%v", r)
	}
	ping("&status=unhealthy&check=gpu&reason=" + strings.Repeat("bad%07", 100))
	l.until("it is unhealthy", func() bool { return len(l.sick) == 1 })
	if s := l.sick[0]; s.GetCheck() != "gpu" || len(s.GetReason()) > 256 || !strings.HasPrefix(s.GetReason(), "badbad") {
		t.Errorf("%v", s)
	}
	if len(l.reports) != 1 {
		t.Errorf("%v", l.reports)
	}
}

// TestStops: a worker that asks what to stop is told, at once or when it asks next; of one that never asks nobody waits.
func TestStops(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.takes("j0")
	l.stop("j0")
	if r := l.said(1); r.GetKind() != agentrpc.JobReport_UNSTOPPED {
		t.Errorf("%v", r)
	}
	l.set(func(to *times) { to.hold = 20 * time.Millisecond })
	if status, _, _ := l.ask("GET", "job-stop/w?", ""); status != 204 {
		t.Errorf("%d", status)
	}
	l.set(func(to *times) { to.hold, to.stop = 20*time.Second, 20*time.Second })
	for _, early := range []bool{true, false} {
		l.note(func() { l.wants = nil })
		l.takes("j")
		if early {
			l.stop("j")
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if status, body, _ := l.ask("GET", "job-stop/w?", ""); status != 200 || body != `{"jobsToStop":["j"]}` {
				t.Errorf("%d %s", status, body)
			}
		})
		if !early {
			l.asks()
			l.stop("j")
		}
		wg.Wait()
	}
	l.note(func() { l.wants = nil })
	l.takes("j") // and nobody asks
	l.set(func(to *times) { to.stop = 50 * time.Millisecond })
	l.stop("j")
	if r := l.said(2); r.GetKind() != agentrpc.JobReport_UNSTOPPED {
		t.Errorf("%v", r)
	}
}

// answers asks again while there is no room, as a library does, and wants another answer then.
func (l *lab) answers(want int, method, path, body string) {
	l.Helper()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		status, _, _ := l.ask(method, path, body)
		if status != 0 && status != 503 || time.Now().After(limit) {
			if status != want {
				l.Errorf("%s %s: %d", method, path, status)
			}
			return
		}
	}
}

// set changes how long things take.
func (l *lab) set(f func(*times)) {
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	f(l.times)
}

// asks waits for a poll for stops.
func (l *lab) asks() {
	for {
		l.gate.mu.Lock()
		n := len(l.gate.workers[podID].asks)
		l.gate.mu.Unlock()
		if n > 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestASleepingJobIsStopped: in the way of the newest library.
func TestASleepingJobIsStopped(t *testing.T) {
	l := newLab(t)
	l.connected()
	began := make(chan struct{}, 2)
	l.work(library.Config{Handler: "sleep", Say: func(string) { began <- struct{}{} }})
	l.ready(1)
	l.give("j", 1, `{"id":"j","input":{"seconds":30}}`)
	l.asks()
	<-began // a library does not heed a stop of a job that it has not read yet
	l.note(func() { l.wants = nil })
	l.stop("j")
	l.ready(1)
	if len(l.reports) != 0 {
		t.Errorf("%v", l.reports)
	}
}

// TestADrainedWorkerEndsAtOnce: polls are held for a minute, and SIGTERM waits for them (wire-facts 0.7).
func TestADrainedWorkerEndsAtOnce(t *testing.T) {
	l := newLab(t)
	l.times.hold = time.Hour
	l.connected()
	end := l.work(library.Config{})
	l.ready(1)
	l.asks()
	l.gate.Drain(podID)
	end() // it would wait for ever
	l.ready(0)
	l.give("late", 1, "{}")
	if r := l.said(1); r.GetKind() != agentrpc.JobReport_REFUSED {
		t.Errorf("%v", r)
	}
}

// TestALyingWorkerHarmsItselfAlone: connections, slow bodies, wrong words.
func TestALyingWorkerHarmsItselfAlone(t *testing.T) {
	l := newLab(t)
	l.times.body = 100 * time.Millisecond
	l.connected()
	address := strings.TrimPrefix(l.base, "http://")
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for i := range maxConns + 20 {
		c, err := net.Dial("tcp", address)
		must(t, err)
		open = append(open, c)
		if i >= maxConns {
			must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
			text := make([]byte, 64)
			if n, _ := c.Read(text); !strings.HasPrefix(string(text[:n]), "HTTP/1.1 503") {
				t.Fatalf("connection %d: %q", i, text[:n])
			}
		}
	}
	slow := open[0]
	_, err := slow.Write([]byte("POST /v2/e/job-done/w/j?x HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n{"))
	must(t, err)
	must(t, slow.SetReadDeadline(time.Now().Add(time.Minute)))
	text := make([]byte, 64)
	if n, _ := slow.Read(text); !strings.HasPrefix(string(text[:n]), "HTTP/1.1 503") {
		t.Errorf("a slow body: %q", text[:n])
	}
	for _, c := range open {
		_ = c.Close()
	}
	for _, c := range []struct {
		method, path string
		status       int
	}{{"PUT", "job-take/w", 405}, {"GET", "job-done/w/j", 405}, {"GET", "nothing/w", 404}, {"GET", "job-take/w/x/y", 404}, {"GET", "../..", 404}} {
		l.answers(c.status, c.method, c.path, "")
	}
}

// TestBodiesInFlightAreBounded: what is beyond is answered 503, and room comes back.
func TestBodiesInFlightAreBounded(t *testing.T) {
	l := newLab(t)
	l.connected()
	w := l.gate.workers[podID]
	if !w.bytes.TryAcquire(workerBytes - 10) {
		t.Fatal("no room")
	}
	if status, _, header := l.ask("POST", "job-done/w/j?", `{"output":"larger"}`); status != 503 || header.Get("Retry-After") == "" {
		t.Errorf("%d %v", status, header)
	}
	w.bytes.Release(workerBytes - 10)
	if status, _, _ := l.ask("POST", "job-done/w/j?", `{"output":"larger"}`); status != 200 {
		t.Errorf("%d", status)
	}
	if !w.bytes.TryAcquire(workerBytes) || !l.gate.bytes.TryAcquire(hostBytes) {
		t.Error("room was not given back")
	}
}

// TestTheSpoolIsBounded: a worker has so many files, and what was changed on disk is not sent.
func TestTheSpoolIsBounded(t *testing.T) {
	l := newLab(t)
	l.stopAgent()
	s := newSpool(l.dir, l.gate.Log)
	for i := range maxFiles + 1 {
		r := newReport(podID, &job{id: fmt.Sprint("j", i), attempt: 1}, agentrpc.JobReport_DONE)
		r.body = []byte("1")
		if err := s.write(r, r.header); (err != nil) != (i == maxFiles) {
			t.Fatalf("%d: %v", i, err)
		}
	}
	files := l.files()
	must(t, os.WriteFile(files[0], []byte("{"), 0o600))
	must(t, os.WriteFile(files[1], []byte("{\"pod\":\"p\"}\n1"), 0o600))
	if got := newSpool(l.dir, l.gate.Log).load(); len(got) != maxFiles-2 {
		t.Errorf("%d files are read", len(got))
	}
	l.start(false)
	l.gate.Forget(podID)
	if files := l.files(); len(files) != 0 {
		t.Errorf("%d files are left", len(files))
	}
}

// TestErrorsAreText: whatever JSON they are.
func TestErrorsAreText(t *testing.T) {
	for in, want := range map[string]string{
		`{"error":"x"}`:                   `"x"`,
		`{"error":{"a": "<b>"}}`:          `"{\"a\":\"<b>\"}"`,
		`{"error":[1, 2],"output":{}}`:    `"[1,2]"`,
		`{"error":false}`:                 `"false"`,
		`{"error":7,"stopPod":"true"}`:    `"7"`,
		`{"error":"", "output":{"a":1}} `: `""`,
	} {
		got, err := decode([]byte(in), false)
		if err != nil || string(got.body) != want || got.kind != agentrpc.JobReport_FAILED || got.refresh {
			t.Errorf("%s: %s %v", in, got.body, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, text := range []string{`{}`, `{"output":1}`, `{"error":{"a":[1]}}`, `{"status":"IN_PROGRESS","output":null}`, `[`, "{\"a\":\"\xff\"}", `{"stopPod":true,"stopPod":1}`} {
		f.Add([]byte(text), false)
		f.Add([]byte(text), true)
	}
	f.Fuzz(func(t *testing.T, body []byte, stream bool) {
		got, err := decode(body, stream)
		if err != nil {
			return
		}
		if !json.Valid(got.body) {
			t.Errorf("%q became %q", body, got.body)
		}
		var s string
		if got.kind == agentrpc.JobReport_FAILED && json.Unmarshal(got.body, &s) != nil {
			t.Errorf("%q: the error is %q", body, got.body)
		}
	})
}

func FuzzRoute(f *testing.F) {
	f.Add("/v2/e/job-take/w")
	f.Add("/v2/e/job-done/w/j")
	f.Add("//v2////")
	f.Fuzz(func(t *testing.T, path string) {
		if verb, _ := route(path); verb != "" && !strings.HasPrefix(path, "/v2/") {
			t.Errorf("%q is %s", path, verb)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("{\"pod\":\"p\",\"job\":\"j\",\"kind\":1}\n{}"))
	f.Add([]byte("{\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if head, _, err := parse(text); err == nil && (head.Pod == "" || head.Job == "") {
			t.Errorf("%q names nothing", text)
		}
	})
}
