package state

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

func (w *world) clusterNow() (c Cluster) {
	w.t.Helper()
	w.view(func(v *View) { c, _ = v.Cluster() })
	return c
}

func nextCA() BeginRotation {
	return BeginRotation{CA: []byte("next"), SealedKey: []byte("next key"), Bridge: []byte("bridge"), At: at(10)}
}

func TestTheCAIsReplacedStepByStep(t *testing.T) {
	w := newWorld(t).settle()
	was := w.clusterNow()
	if !bytes.Equal(was.Trusted(), was.CA) {
		t.Errorf("trusted is %q", was.Trusted())
	}
	w.refused(fleet.CodeStale, AdvanceRotation{From: fleet.RotationSpreads, BegunAt: at(10), At: at(11)})
	w.must(nextCA())
	w.refused(fleet.CodeConflictRule, nextCA())
	is := was
	is.Rotation = &Rotation{Step: fleet.RotationSpreads, Other: []byte("next"), SealedKey: []byte("next key"), Bridge: []byte("bridge"), BegunAt: at(10)}
	if d := cmp.Diff(is, w.clusterNow()); d != "" {
		t.Error(d)
	}
	if got := string(is.Trusted()); got != string(was.CA)+"next" {
		t.Errorf("trusted is %q", got)
	}
	for _, wrong := range []AdvanceRotation{
		{From: fleet.RotationRenews, BegunAt: at(10), At: at(11)},
		{From: fleet.RotationSpreads, BegunAt: at(9), At: at(11)},
	} {
		w.refused(fleet.CodeStale, wrong)
	}
	w.must(AdvanceRotation{From: fleet.RotationSpreads, BegunAt: at(10), At: at(12)})
	w.refused(fleet.CodeStale, AdvanceRotation{From: fleet.RotationSpreads, BegunAt: at(10), At: at(12)})
	is.CA, is.SealedCAKey = []byte("next"), []byte("next key")
	is.Rotation = &Rotation{Step: fleet.RotationRenews, Other: was.CA, Bridge: []byte("bridge"), BegunAt: at(10), SignsAt: at(12)}
	if d := cmp.Diff(is, w.clusterNow()); d != "" {
		t.Error(d)
	}
	// A copy has the same step, also as a cluster of its own.
	w.must(RestoreCluster{ID: "c2", Lineage: 7, Member: member("m7"), SnapshotAt: at(12), At: at(13)})
	if d := cmp.Diff(is.Rotation, w.clusterNow().Rotation); d != "" {
		t.Error(d)
	}
	w.must(AdvanceRotation{From: fleet.RotationRenews, BegunAt: at(10), At: at(14)})
	if c := w.clusterNow(); c.Rotation != nil || string(c.Trusted()) != "next" {
		t.Errorf("it is %+v", c)
	}
	w.check()
}

func TestACAThatCannotBeOneIsRefused(t *testing.T) {
	w := newWorld(t)
	w.refused(fleet.CodeNotFound, nextCA())
	w.settle()
	for name, spoil := range map[string]func(*BeginRotation){
		"no certificate": func(c *BeginRotation) { c.CA = nil },
		"no key":         func(c *BeginRotation) { c.SealedKey = nil },
		"no bridge":      func(c *BeginRotation) { c.Bridge = nil },
		"too large":      func(c *BeginRotation) { c.Bridge = make([]byte, maxCA+1) },
		"the same":       func(c *BeginRotation) { c.CA = w.clusterNow().CA },
		"no time":        func(c *BeginRotation) { c.At = time.Time{} },
	} {
		cmd := nextCA()
		spoil(&cmd)
		if res := w.do(cmd); fleet.CodeOf(res.Err) != fleet.CodeInvalid {
			t.Errorf("%s: %v", name, res.Err)
		}
	}
}

func TestAHostsCertificateIsOfItsInventory(t *testing.T) {
	w := newWorld(t).settle()
	says := w.says(func(inv *fleet.Inventory) {
		inv.Certificate = fleet.NodeCertificate{CA: "b", Trusts: []string{"b", "a", "b"}, EndsAt: at(99)}
	})
	w.must(says)
	want := fleet.NodeCertificate{CA: "b", Trusts: []string{"a", "b"}, EndsAt: at(99)}
	if d := cmp.Diff(want, w.host(says.Host).Inventory.Certificate); d != "" {
		t.Error(d)
	}
	rev := w.host(says.Host).Rev
	w.must(says)
	if now := w.host(says.Host).Rev; now != rev {
		t.Error("the same certificate wrote a record")
	}
	says.Inventory.Certificate.Trusts = []string{"1", "2", "3", "4", "5"}
	w.refused(fleet.CodeInvalid, says)
}
