package workers

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/internal/agentrpc"
	library "gantry/test/program/worker"
)

// TestAJobThatAWorkerSawInPartIsGiven: the worker may run it, so it is not refused. Its result counts.
func TestAJobThatAWorkerSawInPartIsGiven(t *testing.T) {
	l := newLab(t)
	l.connected()
	c, err := net.Dial("tcp", strings.TrimPrefix(l.base, "http://"))
	must(t, err)
	must(t, c.(*net.TCPConn).SetReadBuffer(4096))
	_, err = io.WriteString(c, "GET /v2/e/job-take/w?x HTTP/1.1\r\nHost: h\r\n\r\n")
	must(t, err)
	l.ready(1)
	l.note(func() { l.wants = nil })
	large := `{"id":"j","input":"` + strings.Repeat("x", 3<<20) + `"}`
	l.mu.Lock()
	for i := 0; i < len(large); i += 1 << 20 {
		part := large[i:min(len(large), i+1<<20)]
		l.send(&agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Given{Given: &agentrpc.JobGiven{
			PodId: podID, JobId: "j", Attempt: 1, Body: []byte(part), More: i+1<<20 < len(large),
		}}})
	}
	l.mu.Unlock()
	must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	must(t, c.Close())
	if status, _, _ := l.ask("POST", "job-done/w/j?", `{"output":1}`); status != 200 {
		t.Errorf("%d", status)
	}
	if r := l.said(1); r.GetKind() != agentrpc.JobReport_DONE || len(l.reports) != 1 {
		t.Errorf("%v", l.reports)
	}
}

// TestWithoutRoomOnDiskTheWorkerKeepsItsResult: it is answered 503, says it again, and it counts once.
func TestWithoutRoomOnDiskTheWorkerKeepsItsResult(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.takes("j")
	l.leave()
	must(t, os.RemoveAll(l.dir))
	must(t, os.WriteFile(l.dir, nil, 0o600))
	if status, _, _ := l.ask("POST", "job-done/w/j?", `{"output":1}`); status != 503 {
		t.Errorf("%d", status)
	}
	l.comeBack()
	l.answers(200, "POST", "job-done/w/j?", `{"output":1}`)
	if r := l.said(1); r.GetKind() != agentrpc.JobReport_DONE || len(l.reports) != 1 {
		t.Errorf("%v", l.reports)
	}
}

// TestAWorkerThatDiesLeavesItsResult: who posted it is gone before it is committed, and the agent sends it.
func TestAWorkerThatDiesLeavesItsResult(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.takes("j")
	l.leave()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { l.askCtx(ctx, "POST", "job-done/w/j?", `{"output":"kept"}`) })
	for len(l.files()) == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	wg.Wait()
	l.gate.Close(podID) // its container ended
	l.comeBack()
	if r := l.said(1); string(r.GetBody()) != `"kept"` {
		t.Errorf("%v", r)
	}
}

// TestManyChunksAndLargeBodies: what a worker sends without end is numbered, refused when it is too large, and memory is given back.
func TestManyChunksAndLargeBodies(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.takes("j")
	for n := range 200 {
		if status, _, _ := l.ask("POST", "job-stream/w/j?isStream=false", `{"output":1}`); status != 200 {
			t.Fatalf("%d: %d", n, status)
		}
		if r := l.said(n + 1); r.GetChunk() != uint32(n+1) {
			t.Fatalf("%v", r)
		}
	}
	if status, _, _ := l.ask("POST", "job-done/w/stranger?", `{"output":"`+strings.Repeat("x", 60<<20)+`"}`); status != 413 {
		t.Errorf("%d", status)
	}
	if status, _, _ := l.ask("POST", "job-done/w/j?", `{"output":1}`); status != 200 {
		t.Errorf("%d", status)
	}
	w := l.gate.workers[podID]
	if !w.bytes.TryAcquire(workerBytes) || !l.gate.bytes.TryAcquire(hostBytes) {
		t.Error("room was not given back")
	}
}

// TestACrashedWorkersJobsAreNotCalledUnseen: it may have been the job that ended it.
func TestACrashedWorkersJobsAreNotCalledUnseen(t *testing.T) {
	l := newLab(t)
	l.connected()
	crashed := make(chan int, 1)
	l.work(library.Config{Handler: "crash", Exit: func(code int) { crashed <- code }})
	l.ready(1)
	l.give("j", 1, `{"id":"j","input":{}}`)
	<-crashed
	l.gate.Close(podID)
	must(t, l.gate.Open(podID, 2, true))
	l.leave()
	l.comeBack()
	if r := l.said(1); r.GetKind() != agentrpc.JobReport_LOST || r.GetAttempt() != 1 {
		t.Errorf("%v", r)
	}
}

// TestJobsOfBeforeARebootAreLost, not unseen: the agent is told of them before it starts the pod anew. It says so at once, and in the next
// stream.
func TestJobsOfBeforeARebootAreLost(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.leave()
	l.stopAgent()
	l.note(func() { l.held = []*agentrpc.JobHeld{{PodId: podID, JobId: "j", Attempt: 1}} })
	l.boot(func() {})
	l.comeBack()
	for told := false; !told; time.Sleep(time.Millisecond) {
		l.gate.mu.Lock()
		told = l.gate.held != nil
		l.gate.mu.Unlock()
	}
	must(t, l.gate.Open(podID, 2, true))
	for n := range 2 {
		if r := l.said(n + 1); r.GetKind() != agentrpc.JobReport_LOST || r.GetAttempt() != 1 {
			t.Errorf("%v", r)
		}
		l.leave()
		l.comeBack()
	}
}

// TestManyJobsAtOnce: a batch is at most what was asked for, and each job is answered once.
func TestManyJobsAtOnce(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.work(library.Config{Concurrency: 4})
	const jobs = 40
	for n := range jobs {
		l.until("room", func() bool { return len(l.wants) > 0 && l.wants[len(l.wants)-1].GetSlots() > 0 || len(l.reports) >= n })
		l.give(fmt.Sprint("j", n), 1, fmt.Sprintf(`{"id":"j%d","input":%d}`, n, n))
		l.said(n + 1)
	}
	ended := map[string]bool{}
	for _, r := range l.reports {
		if r.GetKind() != agentrpc.JobReport_DONE || ended[r.GetJobId()] {
			t.Errorf("%v", r)
		}
		ended[r.GetJobId()] = true
	}
}
