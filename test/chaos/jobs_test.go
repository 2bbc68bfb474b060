package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/test/chaos/history"
	"gantry/test/simhosts/simhost"
)

const (
	jobClients = 3
	jobThink   = 40 * time.Millisecond // keeps the clients below the limits of an endpoint
	jobRuns    = 2                     // the policy: a job is given out again once
	heldTime   = 2 * time.Minute       // for which a worker waits at most
)

// jobLoad is an endpoint on the simulated hosts, and clients that submit jobs through all schedulers, look at them and cancel some.
type jobLoad struct {
	c        *cluster
	endpoint string
	began    time.Time
	stop     context.CancelFunc
	wg       sync.WaitGroup

	mu        sync.Mutex // guards what follows
	runs      map[string]int
	ops       map[string][]porcupine.Operation
	inputs    map[string]string // of the jobs that were accepted
	cancelled map[string]bool
	odd       []string
	entered   chan int      // the place where a job that is held is done
	release   chan struct{} // closed: it is held no longer
}

// startJobs makes an endpoint and its clients.
func (c *cluster) startJobs(t *testing.T) *jobLoad {
	t.Helper()
	l := &jobLoad{c: c, began: time.Now(), runs: map[string]int{}, ops: map[string][]porcupine.Operation{}, inputs: map[string]string{}, cancelled: map[string]bool{}}
	var kind v2.GPUType
	must(t, c.user(http.MethodGet, "/v2/catalog/gpus/"+url.PathEscape(simhost.DefaultGPU), nil, &kind))
	answer := l.work
	c.answer.Store(&answer)
	var made v2.Endpoint
	must(t, c.user(http.MethodPost, "/v2/serverless", v2.CreateEndpointRequest{
		Name: "chaos", Type: "QUEUE", Scaling: v2.Scaling{Type: "QUEUE_DELAY", QueueDelay: new(1.0)},
		EndpointSettings: v2.EndpointSettings{
			Image: new("registry.invalid/any:1"), GPU: &v2.WantedEndpointGPU{Pools: []string{string(kind.Pool)}}, Workers: &v2.WantedWorkers{Min: new(6), Max: new(6)},
		},
	}, &made))
	l.endpoint = made.ID
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	for n := range jobClients {
		l.wg.Go(func() { l.client(ctx, n) })
	}
	t.Cleanup(func() {
		stop()
		l.wg.Wait()
		must(t, c.user(http.MethodDelete, "/v2/serverless/"+l.endpoint, nil, nil))
		must(t, until(upTime, func() error {
			if left := l.workers(); left > 0 {
				return fmt.Errorf("%d workers are left", left)
			}
			return nil
		}))
	})
	await(t, upTime, func() error {
		if n := l.workers(); n < 6 {
			return fmt.Errorf("%d workers", n)
		}
		return nil
	})
	return l
}

// workers counts the endpoint's workers by what the scheduler says; all are gone with it.
func (l *jobLoad) workers() int {
	var list v2.WorkerList
	_ = l.c.user(http.MethodGet, "/v2/serverless/"+l.endpoint+"/workers", nil, &list) // it may be deleted
	return len(list.Workers)
}

// work does a job.
func (l *jobLoad) work(place int, text []byte) []byte {
	var job struct {
		ID    string
		Input json.RawMessage
	}
	_ = json.Unmarshal(text, &job) // ours
	l.mu.Lock()
	l.runs[job.ID]++
	entered, release := l.entered, l.release
	held := entered != nil && strings.Contains(string(job.Input), `"held":true`)
	if held {
		l.entered = nil // another worker is not held
	}
	l.mu.Unlock()
	if held {
		entered <- place // it has room
		select {
		case <-release:
		case <-time.After(heldTime):
		}
	}
	return job.Input
}

// submit submits a job under a key until it is accepted; an unknown outcome would not let jobs be counted.
func (l *jobLoad) submit(key, input string) (id string) {
	ctx, cancel := context.WithTimeout(context.Background(), heldTime)
	defer cancel()
	for {
		got := l.c.web.call(ctx, l.ask(http.MethodPost, "run", v2.JobRequest{Input: json.RawMessage(input)}, key))
		var made v2.Job
		if got.result == history.OK && json.Unmarshal(got.body, &made) == nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.inputs[made.ID] = input
			return made.ID
		}
		if sleep.For(ctx, retryTime) != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.odd = append(l.odd, "run: "+got.note)
			return ""
		}
	}
}

func (l *jobLoad) ask(method, path string, body any, once string) ask {
	at := l.c.members[rand.IntN(len(l.c.members))] //nolint:gosec // not secret
	return ask{base: at.api(), key: l.c.keys.APIKey, method: method, path: "/v2/" + l.endpoint + "/" + path, body: body, once: once}
}

// look reads or cancels a job and writes down what was told.
func (l *jobLoad) look(client int, id string, cancel bool) (job v2.Job, err error) {
	a := l.ask(http.MethodGet, "status/"+id, nil, "")
	if cancel {
		a = l.ask(http.MethodPost, "cancel/"+id, struct{}{}, "")
	}
	op := porcupine.Operation{ClientId: client, Input: cancel, Output: "", Call: int64(time.Since(l.began))}
	got := l.c.web.call(context.Background(), a)
	op.Return = int64(time.Since(l.began))
	if got.result == history.OK {
		err = json.Unmarshal(got.body, &job)
		op.Output = job.Status
	} else {
		err = errors.New(got.note)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case got.status == http.StatusNotFound || got.status == http.StatusInternalServerError:
		l.odd = append(l.odd, a.path+": "+got.note)
	case got.result == history.Unknown && cancel:
		op.Return = math.MaxInt64
	case got.result != history.OK:
		return job, err
	}
	l.ops[id] = append(l.ops[id], op)
	return job, err
}

func (l *jobLoad) client(ctx context.Context, n int) {
	for i := 0; ctx.Err() == nil; i++ {
		pad := ""
		if i%20 == 19 { // comes in parts
			pad = strings.Repeat("x", 300<<10)
		}
		id := l.submit(fmt.Sprintf("%d-%d-%d", l.began.UnixNano(), n, i), fmt.Sprintf(`{"n":%d,"pad":%q}`, n*100_000+i, pad)) //nolint:contextcheck // a call that began is not cut off by the end
		for range rand.IntN(3) {                                                                                              //nolint:gosec // not secret
			_, _ = l.look(n, id, false) //nolint:contextcheck // a call that began is not cut off by the end
		}
		if rand.IntN(20) == 0 { //nolint:gosec // not secret
			l.mu.Lock()
			l.cancelled[id] = true
			l.mu.Unlock()
			_, _ = l.look(n, id, true) //nolint:contextcheck // a call that began is not cut off by the end
		}
		_ = sleep.For(ctx, jobThink)
	}
}

// jobSteps are those of a job at which a fault may come.
var jobSteps = []string{"submitted", "taken", "running", "result"}

// at has a fault come at a step of a job, which a worker is at as long as the fault takes, unless its result is what meets the fault.
// place is where the job is done, -1 if it was not begun.
func (l *jobLoad) at(t *testing.T, step string, fault func(id string, place int)) {
	t.Helper()
	l.mu.Lock()
	l.entered, l.release = make(chan int, 1), make(chan struct{})
	entered, release := l.entered, l.release
	l.mu.Unlock()
	over := sync.OnceFunc(func() { close(release) })
	defer over()
	id := l.submit("held-"+step+fmt.Sprint(time.Now().UnixNano()), `{"held":true}`)
	if id == "" {
		t.Fatal("no job was accepted")
	}
	place := -1
	if step == "taken" {
		await(t, upTime, func() error {
			job, err := l.look(jobClients, id, false)
			if err == nil && job.Status != "IN_PROGRESS" {
				err = fmt.Errorf("it is %s", job.Status)
			}
			return err
		})
	}
	if step == "running" || step == "result" {
		select {
		case place = <-entered:
		case <-time.After(heldTime):
			t.Fatal("no worker begins the job")
		}
	}
	if step == "result" {
		over()
	}
	fault(id, place)
	over()
	if job, err := l.ended(id); err != nil || job.Status != "COMPLETED" {
		t.Errorf("%s: %+v, %v", step, job, err)
	}
}

func (l *jobLoad) ended(id string) (job v2.Job, err error) {
	err = until(2*upTime, func() (err error) {
		if job, err = l.look(jobClients, id, false); err == nil && !v2.JobEnded(job.Status) {
			err = fmt.Errorf("job %s is %s: %s", id, job.Status, job.Reason)
		}
		return err
	})
	return job, err
}

// done counts how often workers did a job.
func (l *jobLoad) done(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[id]
}

// more waits until so many more jobs were accepted.
func (l *jobLoad) more(t *testing.T, n int) {
	t.Helper()
	count := func() int { l.mu.Lock(); defer l.mu.Unlock(); return len(l.inputs) }
	before := count()
	await(t, 2*upTime, func() error {
		if now := count(); now < before+n {
			return fmt.Errorf("%d jobs were accepted, want %d", now-before, n)
		}
		return nil
	})
}

// end stops the clients and checks what became of all jobs.
func (l *jobLoad) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.wg.Wait()
	must(t, l.c.heal())
	counts := map[string]int{}
	twice := 0
	for _, id := range slices.Sorted(maps.Keys(l.inputs)) {
		job, err := l.ended(id)
		must(t, err)
		counts[job.Status]++
		runs := l.done(id)
		twice += max(0, runs-1)
		switch {
		case runs > jobRuns:
			t.Errorf("job %s was done %d times", id, runs)
		case job.Status == "CANCELLED" && l.cancelled[id]:
		case job.Status != "COMPLETED" || runs == 0 || string(job.Output) != l.inputs[id]:
			t.Errorf("job %s, done %d times, ended as %.300v", id, runs, job)
		}
		if !porcupine.CheckOperations(history.Job, l.ops[id]) {
			t.Errorf("what was seen of job %s has no order in which it makes sense: %v", id, l.ops[id])
		}
		_ = sleep.For(t.Context(), 5*time.Millisecond) // the endpoint's limit
	}
	for _, text := range l.odd[:min(len(l.odd), 5)] {
		t.Errorf("an answer that no client should get: %s", text)
	}
	var health v2.EndpointHealth
	must(t, l.c.user(http.MethodGet, "/v2/"+l.endpoint+"/health", nil, &health))
	if h := health.Jobs; h.Completed != uint64(counts["COMPLETED"]) || h.Failed+uint64(h.InProgress+h.InQueue) != 0 { //nolint:gosec // small
		t.Errorf("%+v, but %v were seen", h, counts)
	}
	must(t, l.c.simFaults())
	t.Logf("%v, of which %d were done a second time; %+v", counts, twice, health.Jobs)
}

// TestJobsWhileLeadersAreKilled: at every step of a job.
func TestJobsWhileLeadersAreKilled(t *testing.T) {
	c := shared(t)
	l := c.startJobs(t)
	for _, step := range jobSteps {
		for range pick(1, 10) {
			l.more(t, 20)
			leader, err := c.awaitLeader(upTime)
			must(t, err)
			l.at(t, step, func(string, int) {
				must(t, leader.proc.Kill())
				_, err := c.awaitLeader(upTime, c.others(leader)...)
				must(t, err)
			})
			must(t, c.begin(leader))
			await(t, upTime, c.whole)
		}
	}
	l.end(t)
	c.sameState(t)
}

// TestJobsOnAFullDisk: the leader's seems to be full, and then is, while jobs come and end.
func TestJobsOnAFullDisk(t *testing.T) {
	c := shared(t)
	l := c.startJobs(t)
	for _, step := range jobSteps {
		for _, full := range []func(*member){func(m *member) { m.disk.Lie(97) }, func(m *member) { m.disk.Full(true) }} {
			l.more(t, 20)
			leader, err := c.awaitLeader(upTime)
			must(t, err)
			l.at(t, step, func(string, int) {
				full(leader)
				await(t, upTime, func() error {
					now, err := c.leader(c.others(leader)...)
					if err == nil && now == leader {
						err = errors.New("it still leads")
					}
					return err
				})
			})
			must(t, c.heal())
		}
	}
	l.end(t)
	c.sameState(t)
}

// TestJobsOfAHostThatIsCutOff: from the schedulers, at every step of a job, until it counts as lost.
func TestJobsOfAHostThatIsCutOff(t *testing.T) {
	c := shared(t)
	l := c.startJobs(t)
	for _, step := range jobSteps {
		l.more(t, 20)
		l.at(t, step, func(id string, place int) {
			cut := slices.Clone(c.simPlace)
			if place >= 0 { // the others take what it had
				cut = cut[place : place+1]
			}
			for _, p := range cut {
				must(t, p.Cut(places(c.members...)...))
			}
			must(t, c.hostBecomes(string(c.sims[max(place, 0)].Host(0).ID()), fleet.HostUnreachable))
			if step == "running" { // another one does it
				if job, err := l.ended(id); err != nil || job.Status != "COMPLETED" || l.done(id) != jobRuns {
					t.Errorf("on a host that is lost: %+v, done %d times; %v", job, l.done(id), err)
				}
			}
			for _, p := range cut {
				must(t, p.Heal())
			}
		})
		await(t, upTime, c.simsConnected)
	}
	l.end(t)
	c.sameState(t)
}
