package state

import (
	"bytes"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
)

// ledger is the model: what each resource should have been charged, from the commands that were
// accepted and nothing else.
type ledger struct {
	prices  *fleet.StoragePrices
	credit  map[fleet.AccountID]fleet.Money
	books   map[string]*book // by meter key
	volumes map[string]*fleet.Volume
}

type book struct {
	account fleet.AccountID
	done    fleet.Amounts
	mode    mode
	since   int64
	rates   fleet.Amounts
}

// mode is how a resource is charged; the empty one is not at all.
type mode struct {
	what        string
	compute     fleet.Money
	disk, mount int
	fast        bool
}

// perHour is what n GB cost per hour, by the definition.
func perHour(n int, price fleet.Money) fleet.Money {
	return (2*fleet.Money(n)*price + 730) / (2 * 730)
}

func (l *ledger) rates(m mode) (out fleet.Amounts) {
	p := l.prices
	if p == nil {
		p = &fleet.StoragePrices{}
	}
	switch m.what {
	case "gpu":
		out.GPU = m.compute
		out.Disk = perHour(m.disk, p.ContainerDisk) + perHour(m.mount, p.PersistentRunning)
	case "cpu":
		out.CPU = m.compute
		out.Disk = perHour(m.disk, p.ContainerDisk) + perHour(m.mount, p.PersistentRunning)
	case "stopped":
		out.Disk = perHour(m.mount, p.PersistentStopped)
	case "volume":
		first, beyond := min(m.disk, 1000), max(0, m.disk-1000)
		if m.fast {
			out.Fast = perHour(first, p.FastFirst) + perHour(beyond, p.FastBeyond)
		} else {
			out.Standard = perHour(first, p.VolumeFirst) + perHour(beyond, p.VolumeBeyond)
		}
	}
	return out
}

// cost is F.
func cost(rates fleet.Amounts, seconds int64) fleet.Amounts {
	x := fleet.Money(max(0, seconds))
	return fleet.Amounts{
		GPU: rates.GPU * x / 3600, CPU: rates.CPU * x / 3600, Disk: rates.Disk * x / 3600,
		Standard: rates.Standard * x / 3600, Fast: rates.Fast * x / 3600,
	}
}

// turn says that a resource is charged in a mode from a time on.
func (l *ledger) turn(key string, account fleet.AccountID, m mode, when time.Time) {
	b := l.books[key]
	if b == nil {
		if m == (mode{}) {
			return
		}
		b = &book{account: account}
		l.books[key] = b
	}
	if b.mode == m {
		return
	}
	second := max(0, when.Unix())
	if b.mode != (mode{}) {
		second = max(second, b.since)
		b.done = b.done.Plus(cost(b.rates, second-b.since))
	}
	b.mode, b.since, b.rates = m, second, l.rates(m)
}

func (b *book) at(now time.Time) fleet.Amounts {
	if b.mode == (mode{}) {
		return b.done
	}
	return b.done.Plus(cost(b.rates, now.Unix()-b.since))
}

// podMode reads from a record how it should be charged: by status and goal.
func podMode(p *fleet.Pod) mode {
	if p.Status == fleet.StatusTerminated {
		return mode{}
	}
	m := mode{what: "stopped"}
	if p.Spec.Persistent != nil {
		m.mount = p.Spec.Persistent.SizeGB
	}
	if p.Status.Active() && p.Goal == fleet.GoalRun && p.Waiting.IsZero() && (p.Owner.Kind != fleet.OwnerEndpoint || !p.Ready.IsZero() && p.Frozen.IsZero()) {
		m.what, m.disk, m.compute = "cpu", p.Spec.DiskGB, p.HourlyRate
		if p.Spec.GPU != nil {
			m.what = "gpu"
		}
	}
	return m
}

// history is a world with its model and all that was done, to do it again.
type history struct {
	*world
	ledger
	done []func(w *world)
	now  time.Time // of the present proposer's clock
	copy time.Time // when the copy was made that the cluster was last restored from
}

// do1 does a thing and tells the model; when is the time from which it counts.
func (h *history) do1(when time.Time, fn func(w *world)) {
	h.do2(func(*fleet.Pod, *fleet.Pod) time.Time { return when }, fn)
}

// do2 is do1 where the time hangs on what became of a pod; either may be nil.
func (h *history) do2(when func(before, after *fleet.Pod) time.Time, fn func(w *world)) {
	before := h.pods()
	fn(h.world)
	h.done = append(h.done, fn)
	after := h.pods()
	for id, p := range before {
		if after[id] == nil {
			h.turn(podBook(p), "", mode{}, when(p, nil))
		}
	}
	for id, p := range after {
		h.turn(podBook(p), p.Account, podMode(p), when(before[id], p))
	}
}

// podBook names the book of a pod, which is part of its owner's where it has one.
func podBook(p *fleet.Pod) string {
	key := "pod/" + string(p.ID)
	if p.Owner != (fleet.Owner{}) {
		key += "@" + string(p.Owner.Kind) + "/" + p.Owner.ID
	}
	return key
}

// owned is what is charged to an account for a resource.
type owned struct {
	resource string
	account  fleet.AccountID
}

// charges sums the books up by account and by what the charges are recorded for.
func (h *history) charges(now time.Time) map[owned]fleet.Amounts {
	out := map[owned]fleet.Amounts{}
	for key, b := range h.books {
		resource := key[strings.Index(key, "@")+1:]
		at := owned{resource, b.account}
		out[at] = out[at].Plus(b.at(now))
	}
	return out
}

func (h *history) pods() map[fleet.PodID]*fleet.Pod {
	out := map[fleet.PodID]*fleet.Pod{}
	h.view(func(v *View) { maps.Copy(out, v.tb.pods.Rows) })
	return out
}

// step draws one thing that happens.
func (h *history) step(t *rapid.T) {
	h.now = h.now.Add(time.Duration(rapid.OneOf(rapid.IntRange(0, 600), rapid.IntRange(-7200, 20_000)).Draw(t, "seconds")) * time.Second)
	now := h.now
	apply := func(cmd Command) func(w *world) { return func(w *world) { w.do(cmd) } }
	switch rapid.IntRange(0, 20).Draw(t, "what") {
	case 17, 18, 19, 20:
		h.onFleet(t, now)
	case 0, 1, 2, 3, 4, 5, 6, 7, 8:
		cmd := h.drawCommand(t, now)
		when := now
		switch c := cmd.(type) {
		case CreatePods:
			for i := range c.Pods {
				pod := &c.Pods[i].Pod
				if rapid.Bool().Draw(t, "mount") {
					pod.Spec.Persistent = &fleet.PersistentMount{SizeGB: rapid.IntRange(10, 500).Draw(t, "GB"), Path: "/data"}
					pod.Need.DiskGB = int64(pod.Spec.Persistent.SizeGB)
				}
				pod.HourlyRate = fleet.Money(rapid.Int64Range(0, 1e10).Draw(t, "rate"))
			}
		case ActPod:
			if c.Bind != nil {
				c.Bind.HourlyRate = fleet.Money(rapid.Int64Range(0, 1e10).Draw(t, "rate"))
			}
			cmd = c
		case ReportPods:
			when = h.reported(t, now, &c)
			cmd = c
		}
		h.do2(h.resumed(h.compared(cmd, when), now), apply(cmd))
	case 9, 10:
		h.settleSome(t)
	case 11:
		prices := *storage()
		prices.ContainerDisk = fleet.Money(rapid.Int64Range(0, 1e9).Draw(t, "disk price"))
		prices.PersistentStopped = fleet.Money(rapid.Int64Range(0, 1e9).Draw(t, "mount price"))
		h.do1(now, func(w *world) { w.price(&prices) })
		h.prices = &prices
	case 12:
		amount := fleet.Money(rapid.Int64Range(-1e9, 1e11).Draw(t, "credit"))
		h.do1(now, apply(AddCredit{Account: "acme", Amount: amount, At: now}))
		h.credit["acme"] += amount
	case 13:
		prepaid := rapid.Bool().Draw(t, "prepaid")
		h.do1(now, func(w *world) { w.prepaid(prepaid) })
	case 14:
		h.do1(now, apply(ExhaustAccounts{Accounts: []fleet.AccountID{"acme", "none", "other"}, At: now}))
	case 15:
		h.volume(t, now)
	case 16:
		h.grow(t, now)
	}
}

// onFleet does what is done to hosts and the cluster. What a restored cluster does not find on its host is
// charged up to when the copy was made, as nobody knows of more.
func (h *history) onFleet(t *rapid.T, now time.Time) {
	cmd := h.drawFleet(t, now)
	var was, is Cluster
	h.view(func(v *View) { was, _ = v.Cluster() })
	h.do2(h.compared(cmd, now), func(w *world) { w.do(cmd) })
	h.view(func(v *View) { is, _ = v.Cluster() })
	if c, ok := cmd.(RestoreCluster); ok && was.Lineage != is.Lineage {
		h.copy = c.SnapshotAt
	}
}

// compared tells from when on counts what a command does: what a host does not run that is compared with the
// state, from when the copy was made on; of a host that is only ahead, from when the state last heard of it on.
func (h *history) compared(cmd Command, when time.Time) func(before, after *fleet.Pod) time.Time {
	c, connect := cmd.(ConnectHost)
	since := h.copy
	h.view(func(v *View) {
		host, _ := v.Host(c.Host)
		if cluster, _ := v.Cluster(); host.Lineage == cluster.Lineage && host.State != fleet.HostFenced && host.State != fleet.HostJoining {
			since = host.SeenAt
		}
	})
	return func(_, after *fleet.Pod) time.Time {
		if connect && after != nil && !after.Status.Active() {
			return latest(since, after.Steps[fleet.StepCreated]) // the clock may have gone back since
		}
		return when
	}
}

// resumed has the charge of a pod whose image could not be had go on when the cluster hears of it.
func (h *history) resumed(when func(before, after *fleet.Pod) time.Time, now time.Time) func(before, after *fleet.Pod) time.Time {
	return func(before, after *fleet.Pod) time.Time {
		if before != nil && after != nil && !before.Waiting.IsZero() && after.Waiting.IsZero() && podMode(after).what != "stopped" {
			return now
		}
		if before != nil && after != nil && before.Ready != after.Ready && after.Status.Active() {
			return now // of a worker that is ready, or begins anew
		}
		if before != nil && after != nil && before.Frozen != after.Frozen && after.Status.Active() {
			return now
		}
		return when(before, after)
	}
}

// reported draws the time of a report by the host's clock, which may be anything, and returns when it
// counts from.
func (h *history) reported(t *rapid.T, now time.Time, c *ReportPods) time.Time {
	reported := rapid.OneOf(
		rapid.Just(now), rapid.SampledFrom([]time.Time{{}, dawn, dusk, now.Add(-400 * time.Hour)}),
		rapid.Custom(func(t *rapid.T) time.Time {
			return now.Add(time.Duration(rapid.IntRange(-10_000, 1000).Draw(t, "off")) * time.Second)
		}),
	).Draw(t, "reported at")
	c.Reports[0].At = reported
	if reported.IsZero() || reported.After(now) {
		reported = now
	}
	if reach := now.Add(-24 * time.Hour); reported.Before(reach) {
		reported = reach
	}
	if p := h.pods()[c.Reports[0].Pod]; p != nil && reported.Before(p.Steps[fleet.StepCreated]) {
		reported = p.Steps[fleet.StepCreated]
	}
	return reported
}

// settleSome settles drawn meters at a drawn time.
func (h *history) settleSome(t *rapid.T) {
	cmd := SettleMeters{At: h.now.Add(time.Duration(rapid.IntRange(-50_000, 50_000).Draw(t, "settle")) * time.Second)}
	for _, key := range slices.Sorted(maps.Keys(h.meters())) {
		if rapid.Bool().Draw(t, "this") {
			cmd.Meters = append(cmd.Meters, meterIDOf(key))
		}
	}
	cmd.Meters = append(cmd.Meters, MeterID{fleet.ChargePod, "none"})
	h.do1(h.now, func(w *world) { w.do(cmd) })
}

// volume creates, resizes or deletes a network volume.
func (h *history) volume(t *rapid.T, now time.Time) {
	id := rapid.SampledFrom([]string{"v1", "v2"}).Draw(t, "volume")
	before := h.volumes[id]
	var after *fleet.Volume
	if rapid.IntRange(0, 2).Draw(t, "gone") > 0 {
		after = &fleet.Volume{ID: fleet.VolumeID(id), Account: "other", SizeGB: rapid.IntRange(10, 3000).Draw(t, "GB"), Type: fleet.VolumeStandard}
		if id == "v2" {
			after.Type = fleet.VolumeFast
		}
	}
	h.do1(now, func(w *world) { w.inTxn(now, func(t *txn) { t.meterVolume(before, after, now) }) })
	h.volumes[id] = after
	m := mode{}
	if after != nil {
		m = mode{what: "volume", disk: after.SizeGB, fast: after.Type == fleet.VolumeFast}
	}
	h.turn("volume/"+id, "other", m, now)
}

// grow changes the disks of a pod.
func (h *history) grow(t *rapid.T, now time.Time) {
	pods := h.pods()
	ids := slices.Sorted(maps.Keys(pods))
	if len(ids) == 0 {
		return
	}
	id := rapid.SampledFrom(ids).Draw(t, "pod that grows")
	if pods[id].Status == fleet.StatusTerminated {
		return
	}
	disk, mount := rapid.IntRange(5, 50).Draw(t, "disk"), rapid.IntRange(0, 100).Draw(t, "mount")
	h.do1(now, func(w *world) { w.resize(id, disk, mount, now) })
}

// verify compares what views say with the model at some time.
func (h *history) verify(t *rapid.T, now time.Time) {
	charged := map[fleet.AccountID]fleet.Money{}
	for of, want := range h.charges(now) {
		id := meterIDOf(of.resource)
		hours := h.usage(of.account, id.Kind, id.ID, now)
		if got := sum(hours); got != want {
			t.Fatalf("%s of %s at %s: charged %+v, should be %+v", of.resource, of.account, now, got, want)
		}
		for _, u := range hours {
			if u.Amounts.Total() < 0 {
				t.Fatalf("%s at %s: hour %s is %+v", of.resource, now, u.Hour, u.Amounts)
			}
		}
		charged[of.account] += want.Total()
	}
	for _, account := range []fleet.AccountID{"acme", "other"} {
		if got := sum(h.usage(account, "", "", now)).Total(); got != charged[account] {
			t.Fatalf("usage of %s is %d, that of its resources %d", account, got, charged[account])
		}
		if got, want := h.balance(account, now), h.credit[account]-charged[account]; got != want {
			t.Fatalf("balance of %s is %d, should be %d", account, got, want)
		}
	}
	for key, m := range h.meters() {
		if m.Owner != (fleet.Owner{}) {
			key += "@" + m.resource(MeterID{}).key()
		}
		if h.books[key] == nil || h.books[key].mode == (mode{}) {
			t.Fatalf("%s is not charged and has a meter", key)
		}
		if m.Settled < m.Begin {
			t.Fatalf("%s is settled up to before it began: %+v", key, m)
		}
	}
}

// splits checks that what a window says is what its parts say, and that a store's answer is a view's.
func (h *history) splits(t *rapid.T) {
	day := func(name string) time.Time {
		return at(rapid.IntRange(-200, 800).Draw(t, name) * 3600).Truncate(time.Hour)
	}
	cuts := []time.Time{day("from"), day("split"), day("to")}
	slices.SortFunc(cuts, time.Time.Compare)
	ask := func(from, to time.Time) []UsageHour {
		out, err := h.s.UsageBy("acme", "", "", from, to, h.now, nil, true)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	whole, parts := ask(cuts[0], cuts[2]), slices.Concat(ask(cuts[0], cuts[1]), ask(cuts[1], cuts[2]))
	if !slices.Equal(whole, parts) {
		t.Fatalf("%v\nis not\n%v", whole, parts)
	}
	if all, again := h.usage("acme", "", "", h.now), ask(dawn, dusk); !slices.Equal(all, again) {
		t.Fatalf("%v\nis not\n%v", all, again)
	}
}

func TestEverythingIsChargedExactlyOnce(t *testing.T) {
	dir := t.TempDir
	rapid.Check(t, func(t *rapid.T) {
		h := &history{world: newRapidWorld(t, dir), now: at(100), ledger: ledger{
			prices: storage(), credit: map[fleet.AccountID]fleet.Money{}, books: map[string]*book{}, volumes: map[string]*fleet.Volume{},
		}}
		defer func() { _ = h.s.Close() }()
		h.do1(h.now, func(w *world) { w.priced() })
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			h.step(t)
			h.verify(t, h.now.Add(time.Duration(rapid.IntRange(-100_000, 100_000).Draw(t, "asked"))*time.Second))
		}
		h.splits(t)
		h.verify(t, h.now)
		settled := h.usage("acme", "", "", h.now)
		h.check()
		again := newRapidWorld(t, dir)
		defer func() { _ = again.s.Close() }()
		for _, fn := range h.done {
			fn(again)
		}
		if !bytes.Equal(h.hash(), again.hash()) || !reflect.DeepEqual(h.meters(), again.meters()) {
			t.Fatal("the same history gives another state")
		}
		if !slices.Equal(settled, again.usage("acme", "", "", h.now)) {
			t.Fatal("the same history gives another usage")
		}
		h.terminateAll(t)
	})
}

// terminateAll ends every pod: no meter of one is left.
func (h *history) terminateAll(t *rapid.T) {
	for id, p := range h.pods() {
		if p.Status != fleet.StatusTerminated {
			end := ActPod{Account: p.Account, Owner: p.Owner, Pod: id, Action: fleet.ActionTerminate, At: h.now}
			h.do1(h.now, func(w *world) { w.must(end) })
		}
	}
	for key := range h.meters() {
		if meterIDOf(key).Kind == fleet.ChargePod {
			t.Fatalf("%s is open, all pods are terminated", key)
		}
	}
	h.verify(t, h.now)
}
