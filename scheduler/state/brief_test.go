package state

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"gantry/fleet"
)

// brief makes the connection of host-a that says no more than a digest.
func (w *world) brief(digest string) ConnectHost {
	h := w.host("host-a")
	return ConnectHost{
		Host: h.ID, MachineID: h.MachineID, BootID: h.BootID, Generation: h.Generation, Lineage: h.Lineage, At: at(30),
		Inventory: fleet.Inventory{Digest: digest}, Brief: true,
	}
}

func TestAHostConnectsWithWhatTheStateHasOfIt(t *testing.T) {
	w := newWorld(t).settle()
	knows := func(digest string) (ok bool) {
		w.view(func(v *View) { ok = v.Knows("host-a", digest) })
		return ok
	}
	refused := func(what, digest string) {
		t.Helper()
		before := w.hash()
		if err := w.do(w.brief(digest)).Err; !errors.Is(err, ErrBrief) || knows(digest) {
			t.Errorf("%s: %v", what, err)
		}
		if !bytes.Equal(before, w.hash()) {
			t.Errorf("%s: something was written", what)
		}
	}
	refused("no digest", "")
	refused("a digest that nobody said", "d1")
	w.must(w.says(func(inv *fleet.Inventory) { inv.Digest, inv.Images = "d1", []string{"a"} }))
	before := w.host("host-a")
	if !knows("d1") {
		t.Error("what the host said is not known")
	}
	w.must(w.brief("d1"))
	if h := w.host("host-a"); h.Epoch != before.Epoch+1 || !sameInventory(&h.Inventory, &before.Inventory) || len(h.Inventory.GPUs) == 0 || h.State != fleet.HostReady {
		t.Errorf("connected, it is %+v", h)
	}
	refused("another inventory", "d2")
	w.must(SetHostState{Host: "host-a", Epoch: w.host("host-a").Epoch, State: fleet.HostUnreachable, At: at(31)}, w.brief("d1"))
	w.must(w.says(func(inv *fleet.Inventory) { inv.Digest, inv.Images = "d2", []string{"a", "b"} }))
	refused("an inventory of before", "d1")
	w.must(w.says(func(inv *fleet.Inventory) { inv.Digest, inv.Images = "d3", []string{"a", "b"} })) // the same by another name
	w.must(w.brief("d3"))

	// Whatever is compared with the ledger needs the ledger.
	w.must(SetHostState{Host: "host-a", Epoch: w.host("host-a").Epoch, State: fleet.HostUnreachable, At: at(31)}, FenceHost{Host: "host-a", At: at(32)})
	refused("a fenced host", "d3")
	w.check()
}

// A step is never before its incarnation was made, or after it was told.
func TestStepsOfAHostAreKeptWithinTheirTime(t *testing.T) {
	for name, c := range map[string]struct{ said, want time.Time }{
		"between":       {at(15), at(15)},
		"before":        {at(-500), at(10)},
		"in the future": {at(5000), at(20)},
		"long ago":      {time.Unix(0, -1<<62), at(10)},
	} {
		for _, event := range []fleet.Trigger{fleet.EventRunning, fleet.EventExited} {
			t.Run(name+" "+string(event), func(t *testing.T) {
				w := newWorld(t).settle()
				w.create("pod-1", "host-a", 0)
				created := w.pod("pod-1").Steps[fleet.StepCreated]
				cmd := w.report("pod-1", event)
				cmd.At, cmd.Reports[0].At = created.Add(10*time.Second), created.Add(5*time.Second)
				shift := func(x time.Time) time.Time { return created.Add(x.Sub(at(10))) }
				cmd.Reports[0].Steps = map[fleet.Step]time.Time{fleet.StepStarted: shift(c.said), "made up": at(12)}
				w.must(cmd)
				pod := w.pod("pod-1")
				want := shift(c.want)
				if name == "in the future" {
					want = cmd.At
				}
				if !pod.Steps[fleet.StepStarted].Equal(want) || len(pod.Steps) > 3 {
					t.Errorf("steps are %v, made at %v, told at %v", pod.Steps, created, cmd.At)
				}
				if pod.StartedAt.Before(created) || pod.StartedAt.After(cmd.At) {
					t.Errorf("started at %v", pod.StartedAt)
				}
			})
		}
	}
}
