package pod

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
)

// TestPinnedDigestDecides starts a pod anew after its tag has moved: it is made of what it was made of before.
func TestPinnedDigestDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(10 * time.Second)
		first := f.last().Digest
		if first != "sha256:web" {
			t.Fatalf("the first start reports %q", first)
		}
		f.mu.Lock()
		f.tagged = "-moved"
		f.mu.Unlock()
		again := assignment(2, fleet.GoalRun)
		again.Digest = first
		pods.Set(f.order(again))
		settle(30 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := len(f.specs); n != 2 || f.specs[1].Digest != first || f.specs[1].Image != "web" || !f.images["web@"+first] {
			t.Errorf("%d containers, images %v, the last of %+v", n, f.images, f.specs[n-1])
		}
	})
}

// TestAnotherImageUnderOneIncarnation is ordered by a control plane that was restored from a copy of before a change.
func TestAnotherImageUnderOneIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.cut = errors.New("no network")
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(10 * time.Second)
		other := assignment(1, fleet.GoalRun)
		other.Image, other.Generation = "other", other.Generation+1
		pods.Set(f.order(other))
		f.mu.Lock()
		f.cut = nil
		f.mu.Unlock()
		settle(30 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := len(f.specs); n != 1 || f.specs[0].Digest != "sha256:other" || f.specs[0].Image != "other" {
			t.Errorf("containers: %+v", f.specs)
		}
	})
}

// TestPinnedImageThatIsGone says what to do when a registry does not have it any more, and nothing new for other
// errors.
func TestPinnedImageThatIsGone(t *testing.T) {
	pinned, floating := assignment(2, fleet.GoalRun), assignment(2, fleet.GoalRun)
	pinned.Digest = "sha256:web"
	gone := &Error{Class: Fatal, Sentence: "it is not there", Err: fmt.Errorf("registry: %w", ErrNotInRegistry)}
	denied := &Error{Class: Fatal, Sentence: "you may not"}
	const clear = "the registry no longer has image web as this pod was made from it (sha256:web); change the pod's image to start it from another"
	for _, tc := range []struct {
		want   Assignment
		err    *Error
		reason string
	}{{pinned, gone, clear}, {floating, gone, gone.Sentence}, {pinned, denied, denied.Sentence}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			f.registry[imageOf(tc.want)] = tc.err
			pods, _, _ := agentLife(t, f, boot1)
			pods.Set(f.order(tc.want))
			settle(time.Minute)
			if r := f.last(); r.Event != fleet.EventFailed || r.Reason != tc.reason {
				t.Errorf("reported %+v, want %q", r, tc.reason)
			}
		})
	}
	if err := pinLost(errors.New("plain"), pinned); err.Error() != "plain" {
		t.Error(err)
	}
}

func TestImageOf(t *testing.T) {
	for _, tc := range [][3]string{
		{"busybox", "", "busybox"},
		{"busybox:1", "sha256:a", "busybox:1@sha256:a"},
		{"r:5000/x@sha256:index", "sha256:a", "r:5000/x@sha256:a"},
	} {
		if got := imageOf(Assignment{Image: tc[0], Digest: tc[1]}); got != tc[2] {
			t.Errorf("%s with %s is %s", tc[0], tc[1], got)
		}
	}
}
