package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/jobs"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
)

// workplace is a world with a group that has jobs, and a queue endpoint.
type workplace struct {
	*world
	endpoint fleet.EndpointID
	who      fleet.Principal
}

func newWorkplace(t *testing.T) *workplace {
	t.Helper()
	w := &workplace{world: newWorld(t), who: member(acme)}
	w.who.Invoke = []string{fleet.InvokeAll}
	dir := t.TempDir()
	m, err := jobs.Open(dir)
	if err == nil {
		err = replica.Create(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	node, err := replica.Open(replica.Config{
		Dir: dir, ID: "a", Address: "a", Machine: m, Log: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
		_ = m.Close()
	})
	if err := node.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	for node.Barrier(t.Context()) != nil {
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the group has no leader")
		}
	}
	w.svc.Jobs = jobs.Group{Node: node, Jobs: m}
	made, _, err := w.svc.CreateEndpoint(t.Context(), w.who, "", onCPUs, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.endpoint = made.ID
	return w
}

// submit submits a job whose body is given.
func (w *workplace) submit(body string, change func(*fleet.JobRequest)) fleet.JobView {
	w.t.Helper()
	req := fleet.JobRequest{Body: []byte(body)}
	change(&req)
	v, err := w.svc.SubmitJob(context.Background(), w.who, w.endpoint, req)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

func asIs(*fleet.JobRequest) {}

// do commits a command about jobs.
func (w *workplace) do(cmd jobs.Command) {
	w.t.Helper()
	if _, err := jobs.One[any](context.Background(), w.svc.Jobs, cmd); err != nil {
		w.t.Fatal(err)
	}
}

// take gives jobs to a worker.
func (w *workplace) take(n int) {
	w.t.Helper()
	w.do(jobs.Take{Take: queue.Take{At: queue.At(w.clock()), Endpoint: w.endpoint, Worker: "worker00000001", Max: n}})
}

// from is what a worker says of a job.
func (w *workplace) from(v fleet.JobView) queue.From {
	id, _ := jobs.ParseID(v.ID)
	return queue.From{At: queue.At(w.clock()), Job: id, Worker: "worker00000001"}
}

func (w *workplace) finish(v fleet.JobView, failed bool, output string) {
	w.t.Helper()
	w.do(jobs.Finish{Finish: queue.Finish{From: w.from(v), Failed: failed}, Content: jobs.Content{Data: []byte(output)}})
}

func (w *workplace) job(v fleet.JobView) fleet.JobView {
	w.t.Helper()
	got, err := w.svc.Job(context.Background(), w.who, w.endpoint, v.ID, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// TestAJobsLife as its caller sees it.
func TestAJobsLife(t *testing.T) {
	w := newWorkplace(t)
	v := w.submit(`{"input":{}}`, asIs)
	if v.Status != "IN_QUEUE" || v.Ended || v.Delay != nil || strings.HasPrefix(v.ID, "sync-") || !strings.HasSuffix(v.ID, "-u1") {
		t.Errorf("submitted %+v", v)
	}
	w.take(1)
	w.do(jobs.Progress{Progress: queue.Progress{From: w.from(v)}, Content: jobs.Content{Data: []byte(`"half"`)}})
	if got := w.job(v); got.Status != "IN_PROGRESS" || string(got.Output) != `"half"` || got.Delay == nil || got.Worker != "worker00000001" || got.Attempts != 1 {
		t.Errorf("running %+v", got)
	}
	w.finish(v, false, `{"a":1}`)
	if got := w.job(v); got.Status != "COMPLETED" || !got.Ended || string(got.Output) != `{"a":1}` || got.Error != "" || got.Execution == nil {
		t.Errorf("ended %+v", got)
	}
	bad := w.submit(`{"input":{}}`, func(r *fleet.JobRequest) { r.Sync = true })
	if !strings.HasPrefix(bad.ID, "sync-") {
		t.Errorf("submitted %+v", bad)
	}
	w.take(1)
	w.finish(bad, true, "it broke")
	if got := w.job(bad); got.Status != "FAILED" || got.Error != "it broke" || got.Output != nil {
		t.Errorf("failed %+v", got)
	}
	ctx := context.Background()
	if got, err := w.svc.RetryJob(ctx, w.who, w.endpoint, bad.ID); err != nil || got.Status != "IN_QUEUE" {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := w.svc.CancelJob(ctx, w.who, w.endpoint, bad.ID); err != nil || got.Status != "CANCELLED" {
		t.Errorf("%+v %v", got, err)
	}
	_, err := w.svc.RetryJob(ctx, w.who, w.endpoint, v.ID)
	refused(t, err, fleet.CodeNotAllowed, "COMPLETED")
	counts, err := w.svc.JobCounts(ctx, w.who, w.endpoint)
	if want := (fleet.JobCounts{Completed: 1, Failed: 1, Retried: 1}); err != nil || counts != want {
		t.Errorf("%+v %v", counts, err)
	}
	// A shorter retention deletes it.
	if _, err := w.svc.Job(ctx, w.who, w.endpoint, v.ID, 1); err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Error(err)
	}
	w.pass(10 * time.Millisecond)
	_, err = w.svc.Job(ctx, w.who, w.endpoint, v.ID, 0)
	refused(t, err, fleet.CodeNotFound, "job")
}

// TestJobsThatAreNotTheCallers cannot be told from those that there are not.
func TestJobsThatAreNotTheCallers(t *testing.T) {
	w := newWorkplace(t)
	ctx := context.Background()
	v := w.submit(`{"input":{}}`, asIs)
	second, _, err := w.svc.CreateEndpoint(ctx, w.who, "", onCPUs, nil)
	if err != nil {
		t.Fatal(err)
	}
	stranger, limited, pod := member(other), w.who, w.who
	stranger.Invoke, limited.Invoke, pod.Pod = []string{fleet.InvokeAll}, []string{string(second.ID)}, "pod00000000001"
	calls := map[string]func(fleet.Principal, fleet.EndpointID, string) error{
		"submit": func(p fleet.Principal, e fleet.EndpointID, _ string) error {
			_, err := w.svc.SubmitJob(ctx, p, e, fleet.JobRequest{Body: []byte("{}")})
			return err
		},
		"get": func(p fleet.Principal, e fleet.EndpointID, id string) error {
			_, err := w.svc.Job(ctx, p, e, id, 0)
			return err
		},
		"request": func(p fleet.Principal, e fleet.EndpointID, id string) error {
			_, err := w.svc.JobRequest(ctx, p, e, id)
			return err
		},
		"await": func(p fleet.Principal, e fleet.EndpointID, id string) error {
			_, err := w.svc.AwaitJob(ctx, p, e, id, 0)
			return err
		},
		"cancel": func(p fleet.Principal, e fleet.EndpointID, id string) error {
			_, err := w.svc.CancelJob(ctx, p, e, id)
			return err
		},
		"retry": func(p fleet.Principal, e fleet.EndpointID, id string) error {
			_, err := w.svc.RetryJob(ctx, p, e, id)
			return err
		},
		"stream": func(p fleet.Principal, e fleet.EndpointID, id string) error {
			_, _, _, err := w.svc.StreamJob(ctx, p, e, id, 0)
			return err
		},
		"purge": func(p fleet.Principal, e fleet.EndpointID, _ string) error {
			_, err := w.svc.PurgeJobs(ctx, p, e)
			return err
		},
		"counts": func(p fleet.Principal, e fleet.EndpointID, _ string) error {
			_, err := w.svc.JobCounts(ctx, p, e)
			return err
		},
		"list": func(p fleet.Principal, e fleet.EndpointID, _ string) error {
			_, _, err := w.svc.ListJobs(ctx, p, e, fleet.JobPage{Limit: 1})
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			refused(t, call(stranger, w.endpoint, v.ID), fleet.CodeNotFound, "endpoint")
			refused(t, call(w.who, "no-such", v.ID), fleet.CodeNotFound, "endpoint")
			refused(t, call(limited, w.endpoint, v.ID), fleet.CodeForbidden, "may not submit")
			refused(t, call(pod, w.endpoint, v.ID), fleet.CodeForbidden, "may not submit")
			switch name {
			case "submit", "purge", "counts", "list":
				return
			}
			refused(t, call(w.who, second.ID, v.ID), fleet.CodeNotFound, "job") // another endpoint's
			for _, id := range []string{"", "no-job", "sync-" + v.ID, strings.Replace(v.ID, "-u1", "-u2", 1), jobs.IDText(queue.ID{9}, false)} {
				refused(t, call(w.who, w.endpoint, id), fleet.CodeNotFound, "job")
			}
		})
	}
	if got := w.job(v); got.Status != "IN_QUEUE" {
		t.Errorf("what was refused changed the job: %+v", got)
	}
}

// TestSubmitsThatAreRefused put nothing in the queue.
func TestSubmitsThatAreRefused(t *testing.T) {
	w := newWorkplace(t)
	ctx := context.Background()
	balanced, _, err := w.svc.CreateEndpoint(ctx, w.who, "", func(s *fleet.EndpointSpec) {
		onCPUs(s)
		s.Type, s.Scaler = fleet.EndpointBalanced, fleet.Scaler{Type: fleet.ScaleByRequests, Value: 1}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.svc.SubmitJob(ctx, w.who, balanced.ID, fleet.JobRequest{Body: []byte("{}")})
	refused(t, err, fleet.CodeNotAllowed, "LB API")
	_, err = w.svc.SubmitJob(ctx, w.who, w.endpoint, fleet.JobRequest{Body: make([]byte, jobs.MaxBody+1)})
	refused(t, err, fleet.CodeTooLarge, "too large")
	if _, err := w.svc.UpdateEndpoint(ctx, w.who, w.endpoint, func(s *fleet.EndpointSpec) { s.Workers.Max = 0 }); err != nil {
		t.Fatal(err)
	}
	for range leastWaiting {
		w.submit(`{"input":{}}`, asIs)
	}
	_, err = w.svc.SubmitJob(ctx, w.who, w.endpoint, fleet.JobRequest{Body: []byte("{}")})
	refused(t, err, fleet.CodeLimited, "50 jobs wait")
	if _, err := w.svc.UpdateEndpoint(ctx, w.who, w.endpoint, func(s *fleet.EndpointSpec) { s.Workers.Max = 1 }); err != nil {
		t.Fatal(err)
	}
	w.submit(`{"input":{}}`, asIs) // more workers, more jobs
	w.must(state.UpdateAccount{Account: acme, Prepaid: ptr(true)})
	_, err = w.svc.SubmitJob(ctx, w.who, w.endpoint, fleet.JobRequest{Body: []byte("{}")})
	refused(t, err, fleet.CodeNoCredit, "balance")
	if n, err := w.svc.PurgeJobs(ctx, w.who, w.endpoint); err != nil || n != leastWaiting+1 {
		t.Errorf("%d purged, %v", n, err)
	}
}

// TestAJobIsSubmittedOnce under an idempotency key.
func TestAJobIsSubmittedOnce(t *testing.T) {
	w := newWorkplace(t)
	once := func(r *fleet.JobRequest) { r.Once = &fleet.Once{Key: "k"} }
	first := w.submit(`{"input":{"a":1}}`, once)
	if again := w.submit(`{"input":{"a":1}}`, once); again.ID != first.ID {
		t.Errorf("%+v, then %+v", first, again)
	}
	large := strings.Repeat("x", jobs.MaxInline+1)
	_, err := w.svc.SubmitJob(context.Background(), w.who, w.endpoint, fleet.JobRequest{Body: []byte(large), Once: &fleet.Once{Key: "k"}})
	refused(t, err, fleet.CodeInvalid, "Idempotency-Key")
	w.take(1)
	w.finish(first, false, `"out"`)
	if again := w.submit(`{"input":{"a":1}}`, once); again.ID != first.ID || string(again.Output) != `"out"` {
		t.Errorf("after its end: %+v", again)
	}
	if n, err := w.svc.PurgeJobs(context.Background(), w.who, w.endpoint); err != nil || n != 0 {
		t.Errorf("%d others were made, %v", n, err)
	}
}

// TestWhatHoldsForAJob is what its caller says, or else its endpoint.
func TestWhatHoldsForAJob(t *testing.T) {
	day := uint32(24 * time.Hour / time.Millisecond)
	for name, row := range map[string]struct {
		timeout int64
		req     fleet.JobRequest
		want    queue.Policy
	}{
		"endpoint": {300_000, fleet.JobRequest{}, queue.Policy{Execution: 300_000, Life: day, Retention: 1_800_000, Retries: 2}},
		"none":     {0, fleet.JobRequest{Low: true}, queue.Policy{Execution: 7 * day, Life: day, Retention: 1_800_000, Retries: 2, Low: true}},
		"caller": {300_000, fleet.JobRequest{Execution: 5000, Life: 10_000, Sync: true, Webhook: true}, queue.Policy{
			Execution: 5000, Life: 10_000, Retention: 60_000, Retries: 2, Sync: true, Webhook: true,
		}},
		"too long": {1 << 50, fleet.JobRequest{Life: 1 << 40}, queue.Policy{Execution: 7 * day, Life: 7 * day, Retention: 1_800_000, Retries: 2}},
	} {
		if got := jobPolicy(&fleet.EndpointSpec{TimeoutMS: row.timeout, Retries: 2}, &row.req); got != row.want {
			t.Errorf("%s: %+v, want %+v", name, got, row.want)
		}
	}
}

// TestAwaitJob returns at the end of the job, or of the wait.
func TestAwaitJob(t *testing.T) {
	w := newWorkplace(t)
	ctx := context.Background()
	v := w.submit(`{"input":{}}`, asIs)
	if got, err := w.svc.AwaitJob(ctx, w.who, w.endpoint, v.ID, time.Millisecond); err != nil || got.Status != "IN_QUEUE" {
		t.Errorf("%+v %v", got, err)
	}
	done := make(chan fleet.JobView, 1)
	go func() {
		got, _ := w.svc.AwaitJob(ctx, w.who, w.endpoint, v.ID, time.Minute)
		done <- got
	}()
	w.take(1)
	w.finish(v, false, `"out"`)
	select {
	case got := <-done:
		if got.Status != "COMPLETED" || string(got.Output) != `"out"` {
			t.Errorf("%+v", got)
		}
	case <-time.After(time.Minute):
		t.Fatal("the end of the job did not end the wait")
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	next := w.submit(`{"input":{}}`, asIs)
	if _, err := w.svc.AwaitJob(gone, w.who, w.endpoint, next.ID, time.Minute); err == nil {
		t.Error("a caller that is gone is waited for")
	}
}

// TestAJobsStream gives each chunk once, in order, and tells of more.
func TestAJobsStream(t *testing.T) {
	w := newWorkplace(t)
	ctx := context.Background()
	v := w.submit(`{"input":{}}`, asIs)
	w.take(1)
	chunk := func(n int) {
		w.do(jobs.Chunk{Chunk: queue.Chunk{From: w.from(v), Number: uint32(n)}, Content: jobs.Content{Data: fmt.Appendf(nil, "%d", n)}})
	}
	read := func(want int, status string, wantMore bool) {
		t.Helper()
		got, chunks, more, err := w.svc.StreamJob(ctx, w.who, w.endpoint, v.ID, time.Millisecond)
		if err != nil || len(chunks) != want || got.Status != status || more != wantMore {
			t.Fatalf("%d chunks, want %d; %s, more %v: %v", len(chunks), want, got.Status, more, err)
		}
	}
	read(0, "IN_PROGRESS", false)
	for n := range 3 {
		chunk(n + 1)
	}
	read(3, "IN_PROGRESS", false)
	read(0, "IN_PROGRESS", false)
	for n := 4; n <= maxStreamed+5; n++ {
		chunk(n)
	}
	w.finish(v, false, `[]`)
	got, chunks, more, err := w.svc.StreamJob(ctx, w.who, w.endpoint, v.ID, 0)
	if err != nil || len(chunks) != maxStreamed || !more || string(chunks[0]) != "4" || got.Status != "COMPLETED" {
		t.Fatalf("%d chunks, more %v: %v", len(chunks), more, err)
	}
	read(2, "COMPLETED", false)
	read(0, "COMPLETED", false)
}

// TestListJobs pages through them, the newest first.
func TestListJobs(t *testing.T) {
	w := newWorkplace(t)
	ctx := context.Background()
	var all []fleet.JobView
	for range 5 {
		all = append(all, w.submit(`{"input":{}}`, asIs))
		w.pass(time.Second)
	}
	w.take(2)
	page, next, err := w.svc.ListJobs(ctx, w.who, w.endpoint, fleet.JobPage{Limit: 3})
	if err != nil || len(page) != 3 || next == 0 || page[0].ID != all[4].ID {
		t.Fatalf("%+v %d %v", page, next, err)
	}
	page, next, err = w.svc.ListJobs(ctx, w.who, w.endpoint, fleet.JobPage{Limit: 3, Before: next})
	if err != nil || len(page) != 2 || next != 0 || page[1].ID != all[0].ID {
		t.Fatalf("%+v %d %v", page, next, err)
	}
	page, _, err = w.svc.ListJobs(ctx, w.who, w.endpoint, fleet.JobPage{Limit: 9, Statuses: []string{"IN_PROGRESS"}})
	if err != nil || len(page) != 2 {
		t.Errorf("%+v %v", page, err)
	}
	page, _, err = w.svc.ListJobs(ctx, w.who, w.endpoint, fleet.JobPage{Limit: 9, From: all[1].Submitted, To: all[3].Submitted})
	if err != nil || len(page) != 2 || page[1].ID != all[1].ID {
		t.Errorf("%+v %v", page, err)
	}
	_, _, err = w.svc.ListJobs(ctx, w.who, w.endpoint, fleet.JobPage{Limit: 9, Statuses: []string{"RUNNING"}})
	refused(t, err, fleet.CodeInvalid, "IN_QUEUE")
}

// countedBarriers counts the barriers of a node.
type countedBarriers struct {
	dispatch.Proposer
	n int
}

func (c *countedBarriers) Barrier(ctx context.Context) error {
	c.n++
	return c.Proposer.Barrier(ctx)
}

// TestOneBarrierForEachStepOfARequest: what its key was looked up behind serves its first read, and its submission the next.
func TestOneBarrierForEachStepOfARequest(t *testing.T) {
	w := newWorkplace(t)
	_, key, err := w.svc.CreateKey(t.Context(), w.who, fleet.KeyRequest{Name: "k", Preset: "all"})
	if err != nil {
		t.Fatal(err)
	}
	counted := &countedBarriers{Proposer: w.svc.Node}
	w.svc.Node = counted
	ctx := fleet.WithFresh(t.Context())
	if _, err := w.svc.Authenticate(ctx, key); err != nil {
		t.Fatal(err)
	}
	v, err := w.svc.SubmitJob(ctx, w.who, w.endpoint, fleet.JobRequest{Body: []byte(`{"input":{}}`)})
	for looks, want := range []int{1, 1, 2, 3} {
		if err != nil || counted.n != want {
			t.Errorf("%d barriers after %d looks: %v", counted.n, looks, err)
		}
		_, err = w.svc.AwaitJob(ctx, w.who, w.endpoint, v.ID, 0)
	}
}
