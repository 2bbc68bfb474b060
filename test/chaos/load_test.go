package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/chaos/history"
	"gantry/test/simhosts/simhost"
)

const (
	loaders   = 6
	cells     = 8  // pods that are worked on at a time
	cellCalls = 50 // calls to one pod
	cellDoubt = 6  // unknown writes to one pod: each doubles what a check has to try
	thinkTime = 8 * time.Millisecond
	retryTime = 200 * time.Millisecond // after an answer that asks for another try
)

// cell is a pod to be: a client's key, and the pod that it made once that is known.
type cell struct {
	key string

	mu     sync.Mutex // guards what follows
	pod    string
	calls  int
	doubts int
}

// load is clients that work on pods through all schedulers and record what they are told.
type load struct {
	c    *cluster
	h    *history.History
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex // guards what follows
	live []*cell
	all  []*cell
	made int
	odd  []string // answers that no client should get
}

// startLoad starts clients of the schedulers that there are now.
func (c *cluster) startLoad(t *testing.T) *load {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &load{c: c, h: history.New(), stop: stop}
	asked := slices.Clone(c.members)
	for i := range loaders {
		l.wg.Go(func() { l.client(ctx, i, asked) })
	}
	t.Cleanup(func() { stop(); l.wg.Wait() }) // also after a test that went no further
	return l
}

func (l *load) client(ctx context.Context, n int, asked []*member) {
	random := rand.New(rand.NewPCG(uint64(n), uint64(time.Now().UnixNano())))
	pause := time.NewTicker(thinkTime)
	defer pause.Stop()
	at, lost := asked[n%len(asked)], false
	for ctx.Err() == nil {
		// A client stays with its scheduler while that can be reached at all.
		got := l.one(n, at, l.cell(random), random.IntN(100)) //nolint:contextcheck // a call that began is not cut off by the end
		if at = asked[n%len(asked)]; got.status == 0 {
			at = asked[random.IntN(len(asked))]
		}
		if got.status >= http.StatusInternalServerError || got.status == 0 && lost {
			pause.Reset(retryTime)
		}
		lost = got.status == 0
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Reset(thinkTime)
	}
}

// cell picks one of the live cells, and replaces those that had their calls.
func (l *load) cell(random *rand.Rand) *cell {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live = slices.DeleteFunc(l.live, func(c *cell) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.calls > cellCalls || c.doubts >= cellDoubt
	})
	for len(l.live) < cells {
		l.made++
		c := &cell{key: fmt.Sprintf("%s-%d-%d", l.c.name, time.Now().UnixNano(), l.made)}
		l.live, l.all = append(l.live, c), append(l.all, c)
	}
	return l.live[random.IntN(len(l.live))]
}

// one makes one call; dice decides which.
func (l *load) one(n int, at *member, on *cell, dice int) answer {
	on.mu.Lock()
	pod := on.pod
	on.calls++
	last := on.calls >= cellCalls
	on.mu.Unlock()
	call := history.Call{Client: n, Via: at.name, Key: on.key, Pod: pod}
	var got answer
	switch {
	case pod == "" || dice < 3: // also with a key that made its pod before
		call.Kind, call.Pod, call.Name = history.Create, "", on.key
		got = l.create(at, on, call)
	case last:
		call.Kind = history.Remove
		got = l.remove(at, call)
	case dice < 45:
		call.Kind, call.Name = history.Rename, fmt.Sprintf("n%d-%d", n, time.Now().UnixNano())
		got = l.rename(at, call)
	default:
		call.Kind = history.Read
		got = l.read(at, call)
	}
	on.mu.Lock()
	defer on.mu.Unlock()
	switch {
	case got.result == history.Refused:
		on.calls-- // a pod that nobody got through to is worked on and removed later, so that room is left
	case call.Kind != history.Read && got.result == history.Unknown:
		on.doubts++
	}
	return got
}

func (l *load) ask(at *member, method, path string) ask {
	return ask{base: at.api(), key: l.c.keys.APIKey, method: method, path: path}
}

// finish records a call and returns its answer.
func (l *load) finish(call history.Call, got answer) answer {
	call.End, call.Result, call.Note = l.h.Now(), got.result, got.note
	l.h.Add(call)
	if got.status == http.StatusInternalServerError || got.status == http.StatusTooManyRequests {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.odd = append(l.odd, call.String())
	}
	return got
}

// simPod is the body of a pod that simulated hosts alone can run.
func simPod(name string) v2.CreatePodRequest {
	return v2.CreatePodRequest{Name: name, GPU: &v2.CreateGPUConfig{ID: simhost.DefaultGPU, Count: 1}, PodSettings: v2.PodSettings{Image: new("registry.invalid/any:1")}}
}

func (l *load) create(at *member, on *cell, call history.Call) answer {
	a := l.ask(at, http.MethodPost, "/v2/pods")
	a.body, a.once = simPod(call.Name), on.key
	call.Start = l.h.Now()
	got := l.c.web.call(context.Background(), a)
	var made v2.Pod
	if got.result == history.OK && json.Unmarshal(got.body, &made) == nil {
		call.Pod = made.ID
		on.mu.Lock()
		on.pod = made.ID
		on.mu.Unlock()
	}
	return l.finish(call, got)
}

func (l *load) rename(at *member, call history.Call) answer {
	a := l.ask(at, http.MethodPatch, "/v2/pods/"+call.Pod)
	a.body = v2.UpdatePodRequest{Name: &call.Name}
	call.Start = l.h.Now()
	return l.finish(call, l.c.web.call(context.Background(), a))
}

func (l *load) remove(at *member, call history.Call) answer {
	call.Start = l.h.Now()
	got := l.c.web.call(context.Background(), l.ask(at, http.MethodDelete, "/v2/pods/"+call.Pod))
	if got.status == http.StatusNotFound {
		call.Absent, got.result = true, history.OK
	}
	return l.finish(call, got)
}

func (l *load) read(at *member, call history.Call) answer {
	call.Start = l.h.Now()
	got := l.c.web.call(context.Background(), l.ask(at, http.MethodGet, "/v2/pods/"+call.Pod))
	var pod v2.Pod
	switch {
	case got.status == http.StatusNotFound:
		call.Absent, got.result = true, history.OK
	case got.result == history.OK && json.Unmarshal(got.body, &pod) == nil:
		call.Name, call.Absent = pod.Name, pod.Status == fleet.StatusTerminated
	}
	return l.finish(call, got)
}

// end stops the clients, reads every pod once more through every scheduler, and checks everything: the history, that
// nothing ran twice, and that there was traffic: so many acknowledged writes that began after a moment.
func (l *load) end(t *testing.T, since time.Duration, least int) {
	t.Helper()
	_ = until(upTime, func() error { // a busy machine needs longer for them; that they came is checked below
		if n := l.h.Writes(since); n < least {
			return fmt.Errorf("%d writes", n)
		}
		return nil
	})
	l.stop()
	l.wg.Wait()
	if err := l.c.heal(); err != nil {
		t.Errorf("after the fault: %v", err)
	}
	for _, on := range l.all {
		if on.pod == "" {
			continue
		}
		for _, m := range l.c.members {
			l.read(m, history.Call{Client: loaders, Via: m.name, Kind: history.Read, Key: on.key, Pod: on.pod})
		}
	}
	if n := l.h.Writes(since); n < least {
		t.Errorf("%d writes were acknowledged since the fault, which proves nothing: at least %d are needed", n, least)
	}
	if err := l.h.Check(time.Minute); err != nil {
		t.Error(err)
	}
	for _, text := range l.odd[:min(len(l.odd), 5)] {
		t.Errorf("an answer that no client should get: %s", text)
	}
	if err := l.c.simFaults(); err != nil {
		t.Error(err)
	}
	if _, err := l.c.simRuns(); err != nil {
		t.Error(err)
	}
	l.tell(t)
	l.clean(t)
}

func (l *load) tell(t *testing.T) {
	t.Helper()
	counts := map[history.Result]int{}
	for _, c := range l.h.Calls() {
		counts[c.Result]++
	}
	t.Logf("%d pods; calls: %v", len(l.all), counts)
}

// clean takes the load's pods away, so that the next has room.
func (l *load) clean(t *testing.T) {
	t.Helper()
	for _, on := range l.all {
		if on.pod != "" {
			l.c.web.call(context.Background(), l.ask(l.c.members[0], http.MethodDelete, "/v2/pods/"+on.pod))
		}
	}
	var left v2.PodList
	err := until(upTime, func() error {
		if err := l.c.web.read(context.Background(), l.ask(l.c.members[0], http.MethodGet, "/v2/pods"), &left); err != nil {
			return err
		}
		for _, p := range left.Pods {
			for _, on := range l.all {
				if p.ID == on.pod {
					return fmt.Errorf("pod %s is still %s (%s)", p.ID, p.Status, p.StatusReason)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("the pods do not go away: %v", err)
	}
}

// warm waits until so many writes were acknowledged.
func (l *load) warm(t *testing.T, writes int) {
	t.Helper()
	began := l.h.Now()
	await(t, upTime, func() error {
		if n := l.h.Writes(began); n < writes {
			return fmt.Errorf("%d writes", n)
		}
		return nil
	})
}
