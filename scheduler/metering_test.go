package scheduler

import (
	"context"
	"math"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// metered is a world with a host of four GPUs, and prices that are easily told apart.
func metered(t failer, dir string) *world {
	w := openWorld(t, dir)
	w.addHost("host-a", "dc-1", h100, 4)
	w.priceGPU(3600 * 1000)
	storage := fleet.StoragePrices{
		ContainerDisk: 730 * 3600, PersistentRunning: 730 * 3600 * 2, PersistentStopped: 730 * 3600 * 5, // per GB and second: 1, 2 and 5
	}
	if err := w.svc.PutStoragePrices(context.Background(), storage); err != nil {
		t.Fatal(err)
	}
	return w
}

// A second of a GPU costs 1000 and one of a GB of a container's disk 1; see metered.
const (
	gpuSecond  fleet.Money = 1000
	diskSecond fleet.Money = 1
	dataSecond fleet.Money = 2 // of a host-local mount
	kept       fleet.Money = 5 // of one whose pod is stopped
)

func (w *world) priceGPU(hourly fleet.Money) {
	w.t.Helper()
	t := fleet.GPUType{ID: h100, Name: "H100 SXM", Manufacturer: "NVIDIA", MemoryGB: 80, Secure: hourly, Community: hourly}
	if err := w.svc.PutGPUType(context.Background(), t); err != nil {
		w.t.Fatal(err)
	}
}

// settle moves what was run up to the last full hour into the books, as the leader does.
func (w *world) settle() {
	w.t.Helper()
	cmd := state.SettleMeters{At: w.clock().Truncate(time.Hour)}
	w.view(func(v *state.View) { cmd.Meters = v.OpenMeters(cmd.At, math.MaxInt) })
	w.must(cmd)
}

func (w *world) prepay(credit fleet.Money) {
	w.t.Helper()
	if _, err := w.svc.UpdateAccount(context.Background(), acme, fleet.AccountUpdate{Prepaid: ptr(true)}); err != nil {
		w.t.Fatal(err)
	}
	if credit == 0 {
		return
	}
	if _, _, err := w.svc.AddCredit(context.Background(), acme, credit, nil); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) money() fleet.AccountView {
	w.t.Helper()
	view, err := w.svc.Account(context.Background(), member(acme))
	if err != nil {
		w.t.Fatal(err)
	}
	return view
}

func (w *world) billed(account fleet.AccountID, q fleet.BillingQuery) fleet.Amounts {
	w.t.Helper()
	view, err := w.svc.Billing(context.Background(), member(account), q)
	if err != nil {
		w.t.Fatal(err)
	}
	var sum fleet.Amounts
	for _, r := range view.Records {
		sum = sum.Plus(r.Amounts)
	}
	return sum
}

// books returns what acme was charged since the world began, which is the same in buckets of every size,
// by pod and in all, and what its credit lacks.
func (w *world) books(credit fleet.Money) fleet.Amounts {
	w.t.Helper()
	want := w.billed(acme, fleet.BillingQuery{Start: begin().Add(-time.Hour), Bucket: fleet.BucketHour})
	for _, size := range sizes() {
		for _, kind := range []fleet.ChargeKind{"", fleet.ChargePod} {
			if got := w.billed(acme, fleet.BillingQuery{Start: begin().Add(-time.Hour), Bucket: size, Kind: kind}); got != want {
				w.t.Errorf("by %s of kind %q: %+v, by hour %+v", size, kind, got, want)
			}
		}
	}
	if left := w.money().Balance; left != credit-want.Total() {
		w.t.Errorf("of %d are left %d, and %d were charged", credit, left, want.Total())
	}
	return want
}

func (w *world) act(id fleet.PodID, action fleet.Trigger) {
	w.t.Helper()
	if _, err := w.svc.ActPod(context.Background(), member(acme), id, action); err != nil {
		w.t.Fatalf("%s: %v", action, err)
	}
}

func newMetered(t *testing.T) *world {
	w := metered(t, t.TempDir())
	t.Cleanup(w.close)
	return w
}

func TestAPrepaidPodIsChargedFromItsCreationToItsStop(t *testing.T) {
	w := newMetered(t)
	credit := fleet.Dollar
	w.prepay(credit)
	p := w.create(gpuPod(2))
	disk := fleet.Money(p.Spec.DiskGB)
	perSecond := 2*gpuSecond + disk*diskSecond
	if p.HourlyRate != 7200*gpuSecond || disk == 0 {
		t.Fatalf("it costs %d and has %d GB", p.HourlyRate, disk)
	}
	if got := w.money().HourlyRate; got != 3600*perSecond {
		t.Errorf("the account spends %d per hour, want %d", got, 3600*perSecond)
	}
	w.pass(10 * time.Second) // the image is pulled: the GPUs are taken all the same
	w.report(p.ID, fleet.EventStarting)
	w.report(p.ID, fleet.EventRunning)
	w.pass(100 * time.Minute)
	if got := w.books(credit).Total(); got != 6010*perSecond {
		t.Errorf("while it runs %d are charged, want %d", got, 6010*perSecond)
	}
	w.settle()
	w.books(credit)
	w.pass(30 * time.Hour)
	w.settle()
	w.act(p.ID, fleet.ActionStop)
	seconds := fleet.Money(6010 + 30*3600)
	w.pass(9 * time.Second)
	w.report(p.ID, fleet.EventExited)
	for range 3 { // a stopped pod that keeps nothing costs nothing
		if got, want := w.books(credit), (fleet.Amounts{GPU: seconds * 2 * gpuSecond, Disk: seconds * disk * diskSecond}); got != want {
			t.Errorf("%+v are charged, want %+v", got, want)
		}
		w.pass(100 * time.Hour)
		w.settle()
	}
	if got := w.money().HourlyRate; got != 0 {
		t.Errorf("a stopped pod costs %d per hour", got)
	}
}

func TestAPriceCountsFromTheNextStart(t *testing.T) {
	w := newMetered(t)
	p := w.create(gpuPod(1))
	disk := fleet.Money(p.Spec.DiskGB) * diskSecond
	w.report(p.ID, fleet.EventRunning)
	w.pass(1000 * time.Second)
	w.priceGPU(3600 * 7)
	if err := w.svc.PutStoragePrices(context.Background(), fleet.StoragePrices{}); err != nil {
		t.Fatal(err)
	}
	w.pass(1000 * time.Second)
	w.act(p.ID, fleet.ActionRestart) // the interval goes on
	w.report(p.ID, fleet.EventRunning)
	w.pass(1000 * time.Second)
	old := fleet.Amounts{GPU: 3000 * gpuSecond, Disk: 3000 * disk}
	if got := w.books(0); got != old {
		t.Errorf("%+v are charged, want %+v", got, old)
	}
	w.act(p.ID, fleet.ActionStop)
	w.report(p.ID, fleet.EventExited)
	w.act(p.ID, fleet.ActionStart)
	if rate := w.pod(p.ID).HourlyRate; rate != 3600*7 {
		t.Errorf("after the start it costs %d", rate)
	}
	w.pass(time.Minute)
	if got, want := w.books(0), old.Plus(fleet.Amounts{GPU: 60 * 7}); got != want {
		t.Errorf("%+v are charged, want %+v", got, want)
	}
}

func TestAFailedPodIsChargedNoMore(t *testing.T) {
	w := newMetered(t)
	p := w.create(cpuPod(2))
	w.pass(90 * time.Second)
	w.report(p.ID, fleet.EventFailed)
	want := w.books(0)
	if now := w.pod(p.ID); now.Status != fleet.StatusError || want.CPU != p.HourlyRate*90/3600 || want.GPU != 0 {
		t.Errorf("%s was charged %+v", now.Status, want)
	}
	w.pass(time.Hour)
	if got := w.books(0); got != want {
		t.Errorf("%+v are charged, want %+v", got, want)
	}
}

func TestAHostLocalMountIsChargedUntilItsPodIsTerminated(t *testing.T) {
	w := newMetered(t)
	req := gpuPod(1)
	req.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}
	p := w.create(req)
	disk := fleet.Money(p.Spec.DiskGB) * diskSecond
	w.pass(time.Minute)
	w.act(p.ID, fleet.ActionStop)
	w.report(p.ID, fleet.EventExited)
	want := fleet.Amounts{GPU: 60 * gpuSecond, Disk: 60 * (disk + 10*dataSecond)}
	if got := w.books(0); got != want {
		t.Fatalf("%+v are charged, want %+v", got, want)
	}
	w.pass(5 * time.Hour)
	want.Disk += 5 * 3600 * 10 * kept
	if got := w.books(0); got != want || w.money().HourlyRate != 3600*10*kept {
		t.Errorf("stopped: %+v are charged, want %+v", got, want)
	}
	grown := fleet.PersistentMount{SizeGB: 20, Path: "/data"}
	if _, err := w.svc.UpdatePod(context.Background(), member(acme), p.ID, fleet.PodUpdate{Persistent: &grown}); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Hour)
	want.Disk += 3600 * 20 * kept
	if got := w.books(0); got != want {
		t.Errorf("grown: %+v are charged, want %+v", got, want)
	}
	w.act(p.ID, fleet.ActionTerminate)
	w.pass(50 * time.Hour)
	w.settle()
	w.report(p.ID, state.ReportGone)
	if got := w.books(0); got != want || w.money().HourlyRate != 0 {
		t.Errorf("terminated: %+v are charged, want %+v", got, want)
	}
}

func TestWithoutCreditAPrepaidAccountRentsNothing(t *testing.T) {
	w := newMetered(t)
	ctx := context.Background()
	w.prepay(0)
	try := func(req fleet.PodRequest) (planned, created error) {
		_, planned = w.svc.PlanPod(ctx, member(acme), req)
		_, created = w.svc.CreatePod(ctx, member(acme), req)
		return planned, created
	}
	planned, created := try(gpuPod(1))
	refused(t, planned, fleet.CodeNoCredit, "too low to rent a pod")
	refused(t, created, fleet.CodeNoCredit, "too low to rent a pod")
	if _, err := w.svc.PlanPod(ctx, member(other), gpuPod(1)); err != nil {
		t.Errorf("an account that is not prepaid: %v", err)
	}
	if _, _, err := w.svc.AddCredit(ctx, acme, fleet.Dollar, nil); err != nil {
		t.Fatal(err)
	}
	view, err := w.svc.PlanPod(ctx, member(acme), gpuPod(1))
	if err != nil {
		t.Fatal(err)
	}
	hour := view.Pod.HourlyRate + 3600*fleet.Money(view.Pod.Spec.DiskGB)*diskSecond
	if _, _, err := w.svc.AddCredit(ctx, acme, hour-1-fleet.Dollar, nil); err != nil {
		t.Fatal(err)
	}
	planned, created = try(gpuPod(1))
	refused(t, planned, fleet.CodeNoCredit, "too low")
	refused(t, created, fleet.CodeNoCredit, "too low")
	if got := w.books(hour - 1); got.Total() != 0 {
		t.Errorf("refusals cost %+v", got)
	}
	if balance, _, err := w.svc.AddCredit(ctx, acme, 1, nil); err != nil || balance != hour {
		t.Fatalf("balance %d, %v", balance, err)
	}
	p := w.create(gpuPod(1))
	w.pass(time.Second)
	w.act(p.ID, fleet.ActionStop)
	w.report(p.ID, fleet.EventExited)
	_, err = w.svc.ActPod(ctx, member(acme), p.ID, fleet.ActionStart)
	refused(t, err, fleet.CodeNoCredit, "too low")
}

func TestCreditUnderAKeyIsAddedOnce(t *testing.T) {
	w := newMetered(t)
	ctx := context.Background()
	once := &fleet.Once{Key: "invoice-1", Fingerprint: []byte("5 dollars")}
	for i := range 3 {
		balance, replayed, err := w.svc.AddCredit(ctx, acme, 5*fleet.Dollar, once)
		if err != nil || balance != 5*fleet.Dollar || replayed != (i > 0) {
			t.Errorf("balance %d, replayed %v, %v", balance, replayed, err)
		}
		w.pass(time.Hour)
	}
	_, _, err := w.svc.AddCredit(ctx, acme, 6*fleet.Dollar, &fleet.Once{Key: "invoice-1", Fingerprint: []byte("6 dollars")})
	refused(t, err, fleet.CodeInvalid, "another request")
	if balance, _, err := w.svc.AddCredit(ctx, other, fleet.Dollar, once); err != nil || balance != fleet.Dollar {
		t.Errorf("another account's key: balance %d, %v", balance, err)
	}
	w.books(5 * fleet.Dollar)
}

func TestBillingShowsNothingOfOtherAccounts(t *testing.T) {
	w := newMetered(t)
	p := w.create(gpuPod(1))
	w.pass(3 * time.Hour)
	w.settle()
	w.pass(time.Minute)
	ask := func(account fleet.AccountID, id string) fleet.BillingView {
		t.Helper()
		view, err := w.svc.Billing(context.Background(), member(account), fleet.BillingQuery{Kind: fleet.ChargePod, ID: id})
		if err != nil {
			t.Fatal(err)
		}
		return view
	}
	if got := ask(acme, string(p.ID)); len(got.Records) != 1 || got.Records[0].ID != string(p.ID) {
		t.Errorf("its owner sees %+v", got.Records)
	}
	theirs, nobodys := ask(other, string(p.ID)), ask(other, "no-such-pod")
	if len(theirs.Records) != 0 || len(nobodys.Records) != 0 || !theirs.Start.Equal(nobodys.Start) || !theirs.End.Equal(nobodys.End) {
		t.Errorf("another account sees %+v, and of a pod that is not %+v", theirs, nobodys)
	}
	if got := w.billed(other, fleet.BillingQuery{}); got != (fleet.Amounts{}) {
		t.Errorf("another account is charged %+v", got)
	}
}

// TestMeteredLives draws what happens to pods, and holds the books against a model that counts seconds.
func TestMeteredLives(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "")
		if err != nil {
			t.Fatal(err)
		}
		w := metered(t, dir)
		defer w.close()
		credit := 1000 * fleet.Dollar
		w.prepay(credit)
		var want fleet.Amounts
		pods := map[fleet.PodID]*fleet.Pod{}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			d := rapid.OneOf(rapid.Int64Range(0, 10), rapid.Int64Range(0, 10_000)).Draw(t, "seconds")
			for _, p := range pods {
				want = want.Plus(perSecond(p, fleet.Money(d)))
			}
			w.pass(time.Duration(d) * time.Second)
			w.live(t, pods)
			if rapid.IntRange(0, 3).Draw(t, "settle") == 0 {
				w.settle()
			}
		}
		if got := w.books(credit); got != want {
			t.Fatalf("%+v are charged, want %+v", got, want)
		}
	})
}

// perSecond is what a pod costs in so many seconds, at the prices of metered.
func perSecond(p *fleet.Pod, seconds fleet.Money) fleet.Amounts {
	var out fleet.Amounts
	data := fleet.Money(0)
	if p.Spec.Persistent != nil {
		data = fleet.Money(p.Spec.Persistent.SizeGB)
	}
	switch {
	case p.Status.Active() && p.EndedAt.IsZero() && p.Waiting.IsZero():
		out.GPU = seconds * fleet.Money(p.Spec.GPU.Count) * gpuSecond
		out.Disk = seconds * (fleet.Money(p.Spec.DiskGB)*diskSecond + data*dataSecond)
	case p.Status != fleet.StatusTerminated:
		out.Disk = seconds * data * kept
	}
	return out
}

// live makes a pod or does something to one.
func (w *world) live(t *rapid.T, pods map[fleet.PodID]*fleet.Pod) {
	ctx := context.Background()
	if len(pods) == 0 || len(pods) < 4 && rapid.Bool().Draw(t, "create") {
		req := gpuPod(1)
		if rapid.Bool().Draw(t, "data") {
			req.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}
		}
		if view, err := w.svc.CreatePod(ctx, member(acme), req); err == nil {
			pods[view.Pod.ID] = view.Pod
		}
		return
	}
	var ids []fleet.PodID
	w.view(func(v *state.View) {
		for _, p := range v.PodsOf(acme) {
			ids = append(ids, p.ID)
		}
	})
	id := rapid.SampledFrom(ids).Draw(t, "pod")
	switch n := rapid.IntRange(0, 9).Draw(t, "what"); {
	case n < 4: // what is not allowed changes nothing
		_, _ = w.svc.ActPod(ctx, member(acme), id, rapid.SampledFrom(fleet.Actions()).Draw(t, "action"))
	case n == 4:
		disk := rapid.IntRange(1, 50).Draw(t, "disk")
		_, _ = w.svc.UpdatePod(ctx, member(acme), id, fleet.PodUpdate{DiskGB: &disk})
	default:
		w.report(id, rapid.SampledFrom(append(fleet.Events(), state.ReportGone)).Draw(t, "event"))
	}
	now := w.pod(id)
	pods[id] = &now
}
