package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
)

// TestAStartThatIsOverIsAbandonedNoMore: what it worked with ends, and a later order finds nothing to break off.
func TestAStartThatIsOverIsAbandonedNoMore(t *testing.T) {
	_, m, want := stepper(t, nil)
	ctx, done := m.starting(t.Context(), want)
	if ctx.Err() != nil || m.abandon == nil {
		t.Errorf("it begins: %v", ctx.Err())
	}
	done()
	if ctx.Err() == nil || m.abandon != nil {
		t.Error("it is over, and may still be broken off")
	}
	if err := context.Cause(ctx); errors.Is(err, ErrUnwanted) {
		t.Errorf("its end was one that nobody wanted: %v", err)
	}
}

// TestWhoWaitsIsPokedOnlyThen, and what it waits for is told.
func TestWhoWaitsIsPokedOnlyThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m, want := stepper(t, func(d *Deps) { d.claims = newClaims() })
		m.want.GPUs, want.GPUs = []string{"GPU-1"}, []string{"GPU-1"}
		other := Assignment{Pod: "other", Incarnation: 1, Goal: fleet.GoalRun, GPUs: want.GPUs}
		f.records["other"] = Record{Assignment: other, Begun: 1, Held: &Holding{GPUs: want.GPUs}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if waited, err := m.waited(ctx, StepStart, want); !waited || err != nil {
			t.Errorf("%v, %v", waited, err)
		}
		if !strings.HasPrefix(f.doing, "waits for ") || !strings.HasSuffix(f.doing, " to be free") {
			t.Errorf("told is %q", f.doing)
		}
		if len(m.claims.waiting) != 0 {
			t.Error("it is poked for good")
		}
	})
}

// TestAPodThatIsWantedAgainKeepsAll that it has: its log, its files and its data are the new incarnation's, too.
func TestAPodThatIsWantedAgainKeepsAll(t *testing.T) {
	f, m, want := stepper(t, nil)
	folder := filepath.Join(m.Dir, string(m.id))
	data, err := MakeData(m.Data, m.id)
	must(t, errors.Join(err, os.MkdirAll(folder, 0o700)))
	gone := want
	gone.Goal = fleet.GoalGone // of before; the ledger has another
	if err := m.forget(t.Context(), t.Context(), gone); !errors.Is(err, errSuperseded) {
		t.Errorf("%v", err)
	}
	if err := m.dropData(t.Context()); !errors.Is(err, errSuperseded) {
		t.Errorf("its data: %v", err)
	}
	exists(t, folder, true)
	exists(t, data, true)
	if slices.Contains(f.lines, "log removed") || len(f.reports) != 0 {
		t.Errorf("its log: %v, reports %+v", f.lines, f.reports)
	}
}

// TestWhoseLogIsLeft: that of a pod that is elsewhere, and of no other.
func TestWhoseLogIsLeft(t *testing.T) {
	for what, c := range map[string]struct {
		orphan, keep bool
		want         string
	}{
		"it is elsewhere":                {true, true, "log left"},
		"it is listed no more":           {true, false, "log removed"},
		"it is to go, and is listed":     {false, false, "log removed"},
		"it is to go, after it had left": {false, true, "log removed"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // one that is listed waits until it is not
			defer cancel()
			f, m, want := stepper(t, func(d *Deps) { d.claims = newClaims() })
			want.Goal = fleet.GoalGone
			f.records[m.id] = Record{Assignment: want, Orphan: c.orphan, KeepLog: c.keep}
			if err := m.forget(ctx, ctx, want); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if !slices.Contains(f.lines, c.want) || slices.Contains(f.lines, "log left") && slices.Contains(f.lines, "log removed") {
				t.Errorf("%s: %v", what, f.lines)
			}
		})
	}
}

// TestAWorkerOnAHostWithoutGate fails, before anything is got for it.
func TestAWorkerOnAHostWithoutGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for what, change := range map[string]func(*Assignment){
			"a worker":        func(a *Assignment) { a.Endpoint = "abcdefghijklmn" },
			"a refused order": func(a *Assignment) { a.Refused = "too large" },
		} {
			f := newFakeHost(t)
			pods, _, stop := agentLife(t, f, boot1)
			a := assignment(1, fleet.GoalRun)
			change(&a)
			pods.Set(f.order(a))
			settle(time.Minute)
			if len(f.auths) != 0 || len(f.specs) != 0 || len(f.reports) == 0 || f.last().Event != fleet.EventFailed || f.last().Reason == "" {
				t.Errorf("%s: %d pulls, %d containers, reports %+v", what, len(f.auths), len(f.specs), f.reports)
			}
			stop()
		}
	})
}

// TestTheMomentOfAStartIsTheRuntimes, where it says one.
func TestTheMomentOfAStartIsTheRuntimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, untimed := range []bool{false, true} {
			f, m, want := stepper(t, nil)
			f.untimed = untimed
			f.boxes[m.id] = &fakeBox{Container: Container{Exists: true, Incarnation: want.Incarnation, Task: TaskCreated}, done: make(chan struct{})}
			began := time.Now()
			if err := m.do(t.Context(), t.Context(), StepStart, want, Seen{Record: f.records[want.Pod]}); err != nil {
				t.Fatal(err)
			}
			if at := m.steps[fleet.StepStarted]; !at.Equal(began) || len(f.reports) == 0 || !f.last().At.Equal(began) {
				t.Errorf("started at %v, reported %+v", at, f.reports)
			}
		}
	})
}

// TestAnOrderThatCameWhileItsMachineEnded has a machine of its own.
func TestAnOrderThatCameWhileItsMachineEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, deps, _ := agentLife(t, f, boot1)
		want := f.order(assignment(1, fleet.GoalRun))
		deps.claims = newClaims()
		pods.drop(newMachine(deps, want))
		settle(time.Second)
		if f.starts[1] != 1 {
			t.Errorf("starts %v", f.starts)
		}
		none := want
		none.Pod = "none"
		pods.drop(newMachine(deps, none)) // the ledger has no order for it
		settle(time.Second)
		if len(pods.machines) != 1 {
			t.Errorf("%d machines", len(pods.machines))
		}
	})
}

// TestDataWithoutDisks is in folders, and so is all that is asked of it.
func TestDataWithoutDisks(t *testing.T) {
	d := Data{Dir: t.TempDir()}
	path, err := d.Make(t.Context(), "p", 1)
	must(t, err)
	exists(t, path, true)
	wantPods(t, d, "p")
	aside, err := d.SetAside(t.Context(), "p", time.Unix(5, 0))
	must(t, err)
	exists(t, aside, true)
	wantPods(t, d)
	all, err := d.Lost()
	if err != nil || len(all) != 1 || all[0].Pod != "p" || !all[0].At.Equal(time.Unix(5, 0)) {
		t.Errorf("%+v, %v", all, err)
	}
	must(t, d.RemoveLost(t.Context(), all[0]))
	exists(t, aside, false)
	path, err = d.Make(t.Context(), "p", 1)
	must(t, errors.Join(err, d.Remove(t.Context(), "p")))
	exists(t, path, false)
}
