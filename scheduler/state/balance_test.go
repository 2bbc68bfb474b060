package state

import (
	"math"
	"slices"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

func TestAddCredit(t *testing.T) {
	w := newWorld(t).priced()
	w.create("pod-1", "host-a", 0) // one dollar an hour, and 20 GB of disk
	rate := w.rate(podOn("pod-1", "host-a", 0).Spec)
	if want := fleet.Dollar + 2_739_726; rate != want {
		t.Fatalf("the pod costs %d, should %d", rate, want)
	}
	if got := w.must(AddCredit{Account: "acme", Amount: 10 * fleet.Dollar, At: at(10 + 3600)}); got != 10*fleet.Dollar-rate {
		t.Errorf("balance is %v", got)
	}
	if got := w.must(AddCredit{Account: "acme", Amount: -12 * fleet.Dollar, At: at(10)}); got != -2*fleet.Dollar {
		t.Errorf("balance is %v", got)
	}
	w.refused(fleet.CodeNotFound, AddCredit{Account: "none", Amount: 1, At: at(0)})
	for _, amount := range []fleet.Money{maxCredit + 1, -maxCredit - 1, math.MaxInt64, math.MinInt64} {
		w.refused(fleet.CodeInvalid, AddCredit{Account: "acme", Amount: amount, At: at(0)})
	}
	for range 4 {
		w.must(AddCredit{Account: "other", Amount: maxCredit, At: at(0)})
	}
	w.refused(fleet.CodeConflictRule, AddCredit{Account: "other", Amount: 1, At: at(0)})
	for range 8 {
		w.must(AddCredit{Account: "other", Amount: -maxCredit, At: at(0)})
	}
	w.refused(fleet.CodeConflictRule, AddCredit{Account: "other", Amount: -1, At: at(0)})
	if got := w.balance("other", at(0)); got != -maxBalance {
		t.Errorf("balance is %d", got)
	}
}

func TestHourlyRate(t *testing.T) {
	w := newWorld(t).priced()
	rate := func() (out fleet.Money) {
		w.view(func(v *View) { out = v.HourlyRate("acme") })
		return out
	}
	pod := podOn("pod-1", "host-a", 0)
	pod.Spec.Persistent = &fleet.PersistentMount{SizeGB: 100, Path: "/data"}
	pod.Need.DiskGB = 120
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
	w.create("pod-2", "host-a")
	both := w.rate(pod.Spec) + w.rate(podOn("pod-2", "host-a").Spec)
	if got := rate(); got != both {
		t.Errorf("two run: %d, want %d", got, both)
	}
	w.must(w.act("pod-1", fleet.ActionStop), w.act("pod-2", fleet.ActionStop))
	if want := perHour(100, storage().PersistentStopped); rate() != want {
		t.Errorf("two are stopped: %d, want %d", rate(), want)
	}
	w.must(w.act("pod-1", fleet.ActionTerminate), w.act("pod-2", fleet.ActionTerminate))
	if rate() != 0 || len(w.meters()) != 0 {
		t.Errorf("none is left: %d, %v", rate(), w.meters())
	}
}

func TestCreditIsNeeded(t *testing.T) {
	w := newWorld(t).priced()
	cat := catalog()
	cat.Storage = storage()
	cat.GPUs = append(cat.GPUs, fleet.GPUType{ID: "unpriced", Contributed: true, Secure: 0, Community: 7})
	w.must(PutCatalog{cat})
	rate := w.rate(podOn("pod-1", "host-a", 0).Spec)
	create := func(id fleet.PodID) CreatePods {
		return CreatePods{Pods: []NewPod{{Pod: podOn(id, "host-a", 0), HostEpoch: 1}}}
	}
	w.prepaid(true)
	w.must(AddCredit{Account: "acme", Amount: rate - 1, At: at(0)})
	w.refused(fleet.CodeNoCredit, create("pod-1"))
	w.must(AddCredit{Account: "acme", Amount: 1, At: at(0)})
	w.must(create("pod-1"))
	// What runs counts: a second is spent.
	second := CreatePods{Pods: []NewPod{{Pod: podOn("pod-2", "host-a", 1), HostEpoch: 1}}}
	second.Pods[0].Pod.CreatedAt = at(11)
	w.refused(fleet.CodeNoCredit, second)
	w.must(w.act("pod-1", fleet.ActionStop), w.report("pod-1", fleet.EventExited))
	w.refused(fleet.CodeNoCredit, w.act("pod-1", fleet.ActionStart))
	w.must(AddCredit{Account: "acme", Amount: 2*rate + 2*fleet.Dollar, At: at(0)}) // a start costs two dollars
	w.must(w.act("pod-1", fleet.ActionStart))

	strange := create("pod-3")
	strange.Pods[0].Pod.Spec.GPU.Type, strange.Pods[0].Pod.HourlyRate = "unpriced", 0
	w.refused(fleet.CodeConflictRule, strange)
	strange.Pods[0].Pod.Spec.Cloud = fleet.CloudCommunity // has a price there, but the host has no such GPU
	w.refused(fleet.CodeStale, strange)
	strange.Pods[0].Pod.Spec.Cloud, strange.Pods[0].Pod.Account = fleet.CloudSecure, "other" // is not prepaid
	w.refused(fleet.CodeStale, strange)
	w.inTxn(at(50), func(tx *txn) {
		for hourly, code := range map[fleet.Money]fleet.Code{0: "", 100 * fleet.Dollar: fleet.CodeNoCredit} {
			if err := tx.solvent("acme", hourly, at(50), "too low"); fleet.CodeOf(err) != code {
				t.Errorf("%d an hour: %v", hourly, err)
			}
		}
		if err := tx.solvent("other", fleet.Dollar, at(50), "too low"); err != nil {
			t.Error(err)
		}
	})
}

// exhaustion makes pods of every kind, of an account whose credit ends an hour after at(10).
func exhaustion(t *testing.T) (*world, time.Time) {
	t.Helper()
	w := newWorld(t).priced()
	mount, volume := podOn("mount", "host-a", 0), podOn("volume", "host-a", 1)
	mount.Spec.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}
	mount.Locked = true
	w.must(CreatePods{Pods: []NewPod{{Pod: mount, HostEpoch: 1}}}, CreatePods{Pods: []NewPod{{Pod: volume, HostEpoch: 1}}})
	w.inTxn(at(10), func(t *txn) {
		pod := *t.base.pods.Get(t.Txn, "volume")
		pod.Spec.Network = &fleet.NetworkMount{Volume: "v", Path: "/data"}
		t.putPod(&pod)
	})
	for _, id := range []fleet.PodID{"plain", "stopping", "exited"} {
		w.create(id, "host-b")
	}
	stop := func(id fleet.PodID) ActPod {
		return ActPod{Account: "acme", Pod: id, Action: fleet.ActionStop, At: at(10)}
	}
	w.must(stop("stopping"), stop("exited"), w.report("exited", fleet.EventExited))
	var hourly fleet.Money
	w.view(func(v *View) { hourly = v.HourlyRate("acme") })
	w.must(AddCredit{Account: "acme", Amount: hourly, At: at(10)})
	return w, at(10 + 3600)
}

func TestExhaustedAccounts(t *testing.T) {
	w, end := exhaustion(t)
	exhausted := func(now time.Time, limit int) (out []fleet.AccountID) {
		w.view(func(v *View) { out = v.Exhausted(now, limit) })
		return out
	}
	cmd := ExhaustAccounts{Accounts: []fleet.AccountID{"none", "acme", "other", "acme"}, At: end}
	if got := w.must(cmd); got != 0 || len(exhausted(end, 9)) != 0 {
		t.Fatalf("not prepaid: %v pods were ended", got)
	}
	w.prepaid(true)
	early := cmd
	early.At = end.Add(-time.Second)
	if got := w.must(early); got != 0 || len(exhausted(early.At, 9)) != 0 {
		t.Fatalf("a second too early: %v pods were ended", got)
	}
	if got := exhausted(end, 9); !slices.Equal(got, []fleet.AccountID{"acme"}) || len(exhausted(end, 0)) != 0 {
		t.Fatalf("exhausted are %v", got)
	}
	before := map[fleet.PodID]fleet.Pod{"stopping": w.pod("stopping"), "exited": w.pod("exited")}
	if got := w.must(cmd); got != 3 {
		t.Fatalf("%v pods were ended", got)
	}
	for id, goal := range map[fleet.PodID]fleet.Goal{"mount": fleet.GoalStop, "volume": fleet.GoalStop, "plain": fleet.GoalGone} {
		p := w.pod(id)
		if p.Goal != goal || p.Reason != reasonNoCredit || !p.EndedAt.Equal(end) || (p.Status == fleet.StatusTerminated) != (goal == fleet.GoalGone) {
			t.Errorf("%s: %s, %s, %q, %s", id, p.Status, p.Goal, p.Reason, p.EndedAt)
		}
	}
	for id, p := range before {
		if got := w.pod(id); got.Rev != p.Rev {
			t.Errorf("%s changed: %+v", id, got)
		}
	}
	w.must(w.report("mount", fleet.EventExited), w.report("stopping", fleet.EventExited))
	if p := w.pod("mount"); p.Status != fleet.StatusExited || p.Reason != reasonNoCredit {
		t.Errorf("stopped: %s, %q", p.Status, p.Reason)
	}
	if p := w.pod("stopping"); p.Status != fleet.StatusExited || p.Reason != "" {
		t.Errorf("stopped by its owner: %s, %q", p.Status, p.Reason)
	}
	if got := w.must(cmd); got != 0 || len(exhausted(end, 9)) != 0 {
		t.Errorf("once more: %v pods were ended", got)
	}
	if got := w.balance("acme", end); got != 0 {
		t.Errorf("balance is %d", got)
	}
}

func TestCreditInTimeSavesAnAccount(t *testing.T) {
	w, end := exhaustion(t)
	w.prepaid(true)
	cmd := ExhaustAccounts{Accounts: []fleet.AccountID{"acme"}, At: end}
	res, err := w.s.Apply([]entry.Entry{w.entry(AddCredit{Account: "acme", Amount: 1, At: end}), w.entry(cmd)})
	if err != nil || res[1][0].Value != 0 {
		t.Fatalf("got %v, %v", res, err)
	}
	cmd.At = end.Add(time.Second)
	if got := w.must(cmd); got != 3 {
		t.Fatalf("a second later %v pods were ended", got)
	}
}

// A pod that was made in the same batch is ended with the others.
func TestExhaustionSeesItsBatch(t *testing.T) {
	w := newWorld(t).priced()
	w.prepaid(true)
	rate := w.rate(podOn("pod-1", "host-a").Spec)
	w.must(AddCredit{Account: "acme", Amount: rate, At: at(0)})
	res, err := w.s.Apply([]entry.Entry{w.entry(
		CreatePods{Pods: []NewPod{{Pod: podOn("pod-1", "host-a"), HostEpoch: 1}}},
		ExhaustAccounts{Accounts: []fleet.AccountID{"acme"}, At: at(10 + 3600)},
	)})
	if err != nil || res[0][0].Err != nil || res[0][1].Value != 1 {
		t.Fatalf("got %v, %v", res, err)
	}
	if got := w.balance("acme", at(9_999_999)); got != 0 {
		t.Errorf("balance is %d", got)
	}
}

// A volume grows only if an hour of the larger one can be paid, as when it is created.
func TestAVolumeGrowsOnCredit(t *testing.T) {
	w := newWorld(t).settle().furnish()
	prices := samplePrices()
	prices.VolumeFirst = 70_000_000
	hour := perHour(20, prices.VolumeFirst)
	w.must(UpdateAccount{Account: "acme", Prepaid: ptr(true)}, PutStoragePrices{prices})
	credit := func(amount fleet.Money) AddCredit { return AddCredit{Account: "acme", Amount: amount, At: at(2)} }
	grow := UpdateVolume{Account: "acme", Volume: "vol-1", SizeGB: ptr(20), At: at(2)}
	w.must(credit(hour - 1 - w.balance("acme", at(2))))
	w.refused(fleet.CodeNoCredit, grow)
	w.must(UpdateVolume{Account: "acme", Volume: "vol-1", SizeGB: ptr(10), Name: ptr("same size"), At: at(2)}, credit(1), grow)
	if v := w.volume("vol-1"); v.SizeGB != 20 || v.Name != "same size" {
		t.Errorf("got %+v", v)
	}
	w.check()
}
