package state

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// TestNothingIsInTheOrderOfAMap: every replica does the same things in the same order, and so to the same rows where there is a
// limit. Of twelve rows a map gives no sorted order by chance.
func TestNothingIsInTheOrderOfAMap(t *testing.T) {
	w := newWorld(t).settle().furnish()
	const many = 12
	w.inTxn(at(5), func(tx *txn) {
		for i := range many {
			p := podOn(fleet.PodID(fmt.Sprintf("pod-%02d", i)), "host-a")
			p.Status, p.Goal, p.Held, p.Spec.Network = fleet.StatusRunning, fleet.GoalRun, true, &fleet.NetworkMount{Volume: "vol-1", Path: "/net"}
			tx.putPod(&p)
			v := newVolume(fleet.VolumeID(fmt.Sprintf("vol-a%02d", i)), "b-std")
			tx.putVolume(&v)
		}
		var of []fleet.PodID
		for _, p := range tx.podsWith("vol-1") {
			of = append(of, p.ID)
		}
		on, ends := tx.base.volumesOn.Keys(tx.Txn, "b-std"), tx.base.endableOf.Keys(tx.Txn, "acme")
		if len(of) != many || !slices.IsSorted(of) || len(ends) != many || !slices.IsSorted(ends) || len(on) != many+1 || !slices.IsSorted(on) {
			t.Errorf("pods %v, volumes %v, pods to end %v", of, on, ends)
		}
		tx.Keep()
		tx.Discard()
		all := func(*fleet.Pod) bool { return true }
		first, some := tx.base.pods.Keys(tx.Txn, 0, all), tx.base.pods.Keys(tx.Txn, 3, all)
		if len(first) != many || !slices.IsSorted(first) || !slices.Equal(some, first[:3]) {
			t.Errorf("first %v, three of them %v", first, some)
		}
		if keys := tx.base.pods.Keys(tx.Txn, 0, table.All); !slices.Equal(keys, first) || tx.base.pods.Count(tx.Txn, all) != many {
			t.Errorf("keys %v", keys)
		}
	})
}

// TestWhoHasNothingIsForgotten: what is derived of an account goes with the last thing that it has.
func TestWhoHasNothingIsForgotten(t *testing.T) {
	w := newWorld(t).settle()
	had := func() (pods, tally bool) {
		w.view(func(v *View) { _, pods = v.tb.ofAccount["acme"]; _, tally = v.tb.tallies["acme"] })
		return pods, tally
	}
	w.create("pod-1", "host-a")
	w.create("pod-2", "host-a")
	for i, id := range []fleet.PodID{"pod-1", "pod-2"} {
		if pods, tally := had(); !pods || !tally {
			t.Errorf("%d pods are gone: pods %t, tally %t", i, pods, tally)
		}
		w.must(w.act(id, fleet.ActionTerminate), w.report(id, ReportGone), PurgePods{Pods: []fleet.PodID{id}, Before: at(1000)})
	}
	if pods, tally := had(); pods || tally {
		t.Errorf("pods %t, tally %t", pods, tally)
	}
	w.check()
}

func TestWhichHostMountsAVolume(t *testing.T) {
	w := newWorld(t).settle().furnish()
	gone := newVolume("vol-gone", "b-std")
	lost := newVolume("vol-lost", "b-none")
	w.inTxn(at(5), func(tx *txn) {
		gone.State = fleet.VolumeDeleting
		tx.base.volumes.Put(tx.Txn, gone.ID, &gone)
		tx.base.volumes.Put(tx.Txn, lost.ID, &lost)
		for name, c := range map[string]struct {
			volume fleet.VolumeID
			change func(*fleet.Host)
			code   fleet.Code
			says   string
		}{
			"it does":             {"vol-1", func(*fleet.Host) {}, "", ""},
			"an unknown volume":   {"vol-x", func(*fleet.Host) {}, fleet.CodeInvalid, "data center"},
			"another data center": {"vol-1", func(h *fleet.Host) { h.DataCenter = "dc-9" }, fleet.CodeInvalid, "data center"},
			"one being deleted":   {"vol-gone", func(*fleet.Host) {}, fleet.CodeStale, "is gone"},
			"without a backend":   {"vol-lost", func(*fleet.Host) {}, fleet.CodeStale, "is gone"},
			"another cloud":       {"vol-1", func(h *fleet.Host) { h.Cloud = fleet.CloudCommunity }, fleet.CodeStale, "secure cloud"},
			"no way to mount it":  {"vol-1", func(h *fleet.Host) { h.Inventory.Volumes = []fleet.BackendKind{fleet.BackendCeph} }, fleet.CodeStale, "cannot mount"},
		} {
			h, _ := tx.host("host-a")
			c.change(&h)
			err := tx.mountable(&fleet.NetworkMount{Volume: c.volume}, &h)
			if c.code == "" && err != nil || c.code != "" && (fleet.CodeOf(err) != c.code || !strings.Contains(said(err), c.says)) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := tx.mountable(nil, &fleet.Host{}); err != nil {
			t.Errorf("no volume: %v", err)
		}
	})
}

// said returns all that a refusal says.
func said(err error) string {
	var e *fleet.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Msg + strings.Join(e.Details, "")
}

// TestAGPUIsReplacedByOneOfItsType: what takes the place of a GPU that is taken is what the pod was made for.
func TestAGPUIsReplacedByOneOfItsType(t *testing.T) {
	host := fleet.Host{ID: "host-a", Inventory: inventory("host-a")}
	for i := 1; i < 3; i++ {
		host.Inventory.GPUs[i].Type = "other"
	}
	taken := podOn("p", "host-a", 0)
	taken.Status, taken.Held = fleet.StatusRunning, true
	on := []*fleet.Pod{&taken}
	if got, err := instead(&host, on, taken.GPUs, 1); err != nil || !slices.Equal(got, []string{"host-a-gpu-3"}) {
		t.Errorf("%v %v", got, err)
	}
	if got, err := instead(&host, on, taken.GPUs, 2); err == nil {
		t.Errorf("two of one: %v", got)
	}
}

func TestATunnelLiesBesideTheNetworks(t *testing.T) {
	s := smallNetworks()
	s.Pool, s.Tunnel = netip.MustParsePrefix("100.64.0.0/26"), netip.MustParsePrefix("100.127.0.0/16")
	w := networked(t, s)
	w.connect("host-a")
	w.joins("p1", "acme", "host-a", at(5))
	s.Pool = netip.MustParsePrefix("10.64.0.0/26")
	w.must(PutNetworkSettings{s})
	s.Tunnel = netip.MustParsePrefix("100.64.0.0/10") // holds the hosts' addresses, and the network that is there
	over := PutNetworkSettings{s}
	w.refused(fleet.CodeConflictRule, over)
	if msg := w.message(over); !strings.Contains(msg, "overlap a private network") {
		t.Errorf("it says %q", msg)
	}
	s.Tunnel = netip.MustParsePrefix("172.30.0.0/16")
	away := PutNetworkSettings{s}
	w.refused(fleet.CodeConflictRule, away)
	if msg := w.message(away); !strings.Contains(msg, "that hosts have") {
		t.Errorf("it says %q", msg)
	}
}

func TestACordonOfNoHost(t *testing.T) {
	w := newWorld(t).settle()
	w.refused(fleet.CodeNotFound, OpenGPU{Host: "host-x", GPU: "host-a-gpu-0"})
	w.refused(fleet.CodeNotFound, CordonGPU{Host: "host-x", GPU: "host-a-gpu-0", Reason: "fan", At: at(2)})
}
