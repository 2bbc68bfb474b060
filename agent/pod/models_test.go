package pod

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
)

// fakeModels are models that take a minute to come.
type fakeModels struct {
	asked  []ModelOrder
	fails  error
	takes  time.Duration
	before func()
}

func (f *fakeModels) Get(ctx context.Context, _ fleet.PodID, want ModelOrder, progress func(string, int64, int64)) (out []Model, err error) {
	f.asked = append(f.asked, want)
	if f.before != nil {
		f.before()
	}
	if f.fails != nil {
		return nil, f.fails
	}
	progress("org/name", 63, 100)
	select {
	case <-time.After(f.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for _, ref := range want.Models {
		out = append(out, Model{Folder: ref.Folder(), Dir: "/cache/" + ref.Folder()})
	}
	return out, nil
}

func modelOrder() Assignment {
	want := assignment(1, fleet.GoalRun)
	want.ModelHub, want.Models = "https://hub.example", []fleet.ModelRef{{Repo: "org/name", Revision: "main"}}
	want.Env = map[string]string{"HF_TOKEN": "secret"}
	return want
}

// TestAContainerWaitsForItsModels: it is told what comes, nothing of the container is made before, and it finds each model read-only
// below both places of a network volume.
func TestAContainerWaitsForItsModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, models := newFakeHost(t), &fakeModels{takes: time.Minute}
		f.models = models
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(modelOrder()))
		settle(30 * time.Second)
		f.mu.Lock()
		if f.doing != "fetching model org/name" || len(f.specs)+len(f.nets) > 0 {
			t.Errorf("doing %q, containers %+v", f.doing, f.specs)
		}
		f.mu.Unlock()
		settle(time.Minute)
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(models.asked) != 1 || models.asked[0].Hub != "https://hub.example" || models.asked[0].Token != "secret" || models.asked[0].Models[0].Repo != "org/name" {
			t.Errorf("asked for %+v", models.asked)
		}
		want := []Mount{
			{Source: "/cache/models--org--name", Target: "/gantry-volume/huggingface-cache/hub/models--org--name", ReadOnly: true},
			{Source: "/cache/models--org--name", Target: "/runpod-volume/huggingface-cache/hub/models--org--name", ReadOnly: true},
		}
		if len(f.specs) != 1 || !slices.Equal(f.specs[0].Mounts, want) || f.starts[1] != 1 {
			t.Errorf("%+v", f.specs)
		}
		if strings.Contains(strings.Join(f.lines, "\n"), "secret") {
			t.Errorf("the token is in the log: %v", f.lines)
		}
	})
}

// TestModelsThatCannotBeHad: what may come later is waited for, and reported as such once; what cannot come ends the pod with the sentence,
// as does a host without a cache.
func TestModelsThatCannotBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, models := newFakeHost(t), &fakeModels{fails: &Error{Class: Retry, Sentence: "model org/name:main does not arrive"}}
		f.models = models
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(modelOrder()))
		settle(time.Minute)
		f.mu.Lock()
		waiting := 0
		for _, r := range f.reports {
			if r.Event == fleet.EventWaiting {
				waiting++
			}
		}
		if waiting != 1 || len(models.asked) < 3 || f.doing != "model org/name:main does not arrive"+fleet.TryingAgain {
			t.Errorf("waiting was told %d times, %d tries, doing %q", waiting, len(models.asked), f.doing)
		}
		models.fails = &Error{Class: Fatal, Sentence: "model org/name:main is not there"}
		f.mu.Unlock()
		settle(time.Minute)
		if last := f.last(); last.Event != fleet.EventFailed || last.Reason != "model org/name:main is not there" {
			t.Errorf("%+v", last)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(modelOrder()))
		settle(time.Minute)
		if last := f.last(); last.Event != fleet.EventFailed || !strings.Contains(last.Reason, "the host keeps no models") {
			t.Errorf("%+v", last)
		}
	})
}

// TestARefusedOrderGetsNoModels: neither does one that is not wanted any more wait for them.
func TestARefusedOrderGetsNoModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, models := newFakeHost(t), &fakeModels{takes: 30 * time.Minute}
		f.models, f.images["web"] = models, true
		pods, _, _ := agentLife(t, f, boot1)
		want := modelOrder()
		want.Refused = "too large"
		pods.Set(f.order(want))
		settle(time.Minute)
		if last := f.last(); last.Reason != "too large" || len(models.asked) > 0 {
			t.Errorf("%+v, asked for %+v", last, models.asked)
		}
		again := modelOrder()
		again.Incarnation, again.Generation = 2, want.Generation+1
		pods.Set(f.order(again))
		settle(time.Minute)
		stop := again
		stop.Goal, stop.Generation = fleet.GoalStop, again.Generation+1
		pods.Set(f.order(stop))
		settle(10 * time.Second)
		if last := f.last(); last.Incarnation != 2 || last.Event != fleet.EventExited || len(models.asked) != 1 {
			t.Errorf("%+v, asked for %+v", last, models.asked)
		}
	})
}
