package scheduler

import (
	"context"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// deposed is a node that still reads and takes no command any more.
type deposed struct{ dispatch.Proposer }

func (deposed) Propose(context.Context, ...state.Command) ([]entry.Result, error) {
	return nil, fleet.Unavailable("another scheduler leads", nil)
}

// A create that was done must not be refused because nobody could look its key up.
func TestAKeyThatCannotBeLookedUpIsNoRefusal(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 1)
	req := gpuPod(1)
	req.Once = &fleet.Once{Key: "k", Fingerprint: []byte("one")}
	if _, err := w.svc.CreatePod(context.Background(), member(acme), req); err != nil {
		t.Fatal(err)
	}
	w.svc.Node = deposed{w.svc.Node}
	_, err := w.svc.CreatePod(context.Background(), member(acme), req)
	refused(t, err, fleet.CodeUnavailable, "")
}

// TestAKeyOfAnotherRequestIsToldWithoutRoom holds that a reused key is an error of its own, whether or not
// the request could be granted.
func TestAKeyOfAnotherRequestIsToldWithoutRoom(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 1)
	req := gpuPod(1)
	req.Once = &fleet.Once{Key: "k", Fingerprint: []byte("one")}
	if _, err := w.svc.CreatePod(context.Background(), member(acme), req); err != nil {
		t.Fatal(err)
	}
	req.Once = &fleet.Once{Key: "k", Fingerprint: []byte("two")}
	for name, change := range map[string]func(*fleet.PodRequest){
		"no room":     func(*fleet.PodRequest) {},
		"no template": func(r *fleet.PodRequest) { r.Template = "none" },
	} {
		other := req
		change(&other)
		if _, err := w.svc.CreatePod(context.Background(), member(acme), other); fleet.CodeOf(err) != fleet.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		} else {
			refused(t, err, fleet.CodeInvalid, "Idempotency-Key")
		}
	}
	_, err := w.svc.CreatePod(context.Background(), member(other), req)
	refused(t, err, fleet.CodeNoCapacity, "") // another account's key is another key
}
