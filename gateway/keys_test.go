package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

func question(key string) *agentrpc.KeyQuestion {
	return &agentrpc.KeyQuestion{Key: key, EndpointId: "e1"}
}

// TestKeysAreAskedForOnce: by all who wait for the same answer, and again only after its time; a good one counts for longer while nobody
// can be asked.
func TestKeysAreAskedForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var down error
		good := map[string]bool{"good": true}
		k := newKeys(func(_ context.Context, q *agentrpc.KeyQuestion) (*agentrpc.KeyAnswer, error) {
			time.Sleep(time.Millisecond)
			asked++
			if good[q.GetKey()] {
				return &agentrpc.KeyAnswer{}, down
			}
			return &agentrpc.KeyAnswer{Code: string(fleet.CodeUnauthorized), Text: "invalid api key"}, down
		})
		wants := func(what, key string, code fleet.Code, questions int) {
			t.Helper()
			asked = 0
			if err := k.may(t.Context(), question(key)); fleet.CodeOf(err) != code && (err != nil || code != "") {
				t.Errorf("%s: %v", what, err)
			}
			if asked != questions {
				t.Errorf("%s: asked %d times, want %d", what, asked, questions)
			}
		}
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := k.may(t.Context(), question("good")); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if asked != 1 {
			t.Errorf("a hundred requests asked %d times", asked)
		}
		wants("at once again", "good", "", 0)
		wants("another key", "bad", fleet.CodeUnauthorized, 1)
		wants("at once again", "bad", fleet.CodeUnauthorized, 0)
		time.Sleep(keyBad)
		wants("a refusal of before", "bad", fleet.CodeUnauthorized, 1)
		time.Sleep(keyGood)
		wants("a key of before", "good", "", 1)
		time.Sleep(keyGood)
		down = errors.New("nobody answers")
		wants("nobody answers", "good", "", 1)
		wants("nobody answers, for a new key", "new", fleet.CodeUnavailable, 1)
		time.Sleep(keyAlone)
		wants("nobody has answered for long", "good", fleet.CodeUnavailable, 1)
		down = nil
		wants("they answer again", "good", "", 1)
		delete(good, "good")
		time.Sleep(keyGood)
		wants("a key that ended", "good", fleet.CodeUnauthorized, 1)
		down = errors.New("nobody answers")
		time.Sleep(keyBad)
		wants("a key that ended, and nobody answers", "good", fleet.CodeUnavailable, 1)
	})
}

// TestKeysThatAreRefusedAreBounded: whoever guesses neither fills the memory nor drives out keys that are good, nor asks without bound.
func TestKeysThatAreRefusedAreBounded(t *testing.T) {
	var most, now atomic.Int64
	k := newKeys(func(_ context.Context, q *agentrpc.KeyQuestion) (*agentrpc.KeyAnswer, error) {
		defer now.Add(-1)
		for n := now.Add(1); n > most.Load(); {
			most.Store(n)
		}
		if q.GetKey() == "good" {
			return &agentrpc.KeyAnswer{}, nil
		}
		return &agentrpc.KeyAnswer{Code: string(fleet.CodeUnauthorized)}, nil
	})
	if err := k.may(t.Context(), question("good")); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for part := range 1024 {
		all.Go(func() {
			for i := range 2 * keysKept / 1024 {
				if err := k.may(t.Context(), question(fmt.Sprint(part, i))); fleet.CodeOf(err) != fleet.CodeUnauthorized {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := len(k.bad.young) + len(k.bad.old); n > keysKept || n < keysKept/2 {
		t.Errorf("%d refusals are kept", n)
	}
	if n := most.Load(); n > keysAsked {
		t.Errorf("%d questions at a time", n)
	}
	if _, ok := k.good.get(k.hash(question("good"))); !ok {
		t.Error("a good key was driven out")
	}
	if k.hash(question("good")) == newKeys(nil).hash(question("good")) {
		t.Error("two processes have the same hash of a key")
	}
	port := &agentrpc.KeyQuestion{Key: "good", PodId: "e1", Port: 80}
	if k.hash(question("good")) == k.hash(port) || k.hash(port) == k.hash(&agentrpc.KeyQuestion{Key: "good", PodId: "e1", Port: 81}) {
		t.Error("what a key opens is not told apart")
	}
}
