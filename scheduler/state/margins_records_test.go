package state

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

// TestVolumesOfTheFirstVersion have no backend and no ids: no report is about them, and they are in nobody's way.
func TestVolumesOfTheFirstVersion(t *testing.T) {
	w := storing(t)
	w.inTxn(at(3), func(tx *txn) {
		v := sampleVolume()
		tx.base.volumes.Put(tx.Txn, v.ID, &v)
		if base, ok := tx.takeBase("dc-1"); !ok || base == fleet.VolumeIDsFirst {
			t.Errorf("it takes base %#x", base) // that is vol-1's
		}
	})
	tb, old := newTables(Level), sampleVolume()
	if tb.countBase(&old, 1); len(tb.baseUses) != 0 {
		t.Error("it uses a base")
	}
	before := w.hash()
	w.must(ReportVolumes{Host: "host-a", Epoch: w.host("host-a").Epoch, Volumes: []VolumeReport{{Volume: "volume00000001", Gone: true}}, At: at(9)})
	if string(before) != string(w.hash()) {
		t.Error("a report of it wrote")
	}
	for base, want := range map[uint32]bool{
		fleet.VolumeIDsFirst - 1: false, fleet.VolumeIDsFirst: true, fleet.VolumeIDsLast: true, fleet.VolumeIDsLast + 1: false,
	} {
		if _, ok := slotOf(&fleet.Volume{IDBase: base}); ok != want {
			t.Errorf("%#x is a volume's: %t", base, ok)
		}
	}
	w.check()
}

// TestTheFirstBaseComesAfterTheLast: what is before the place from which the search starts is found, the first slot too.
func TestTheFirstBaseComesAfterTheLast(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.inTxn(at(3), func(tx *txn) {
		v := *tx.base.volumes.Get(tx.Txn, "vol-1")
		for i := range volumeSlots {
			if i > 0 {
				next := v
				next.ID, next.Dir, next.IDBase = fleet.VolumeID(fmt.Sprintf("n-%05d", i)), fmt.Sprintf("%026d", i), fleet.VolumeIDsFirst+uint32(i)*fleet.VolumeIDs
				tx.putVolume(&next)
			}
		}
	})
	w.inTxn(at(4), func(tx *txn) {
		if base, ok := tx.takeBase("dc-1"); ok {
			t.Errorf("all are in use, and %#x is free", base)
		}
		tx.base.volumes.Drop(tx.Txn, "vol-1")
		tx.Keep()
		if base, ok := tx.takeBase("dc-1"); !ok || base != fleet.VolumeIDsFirst {
			t.Errorf("the first is free, and the next is %#x, %t", base, ok)
		}
	})
}

func TestPrepaidAndTheCatalog(t *testing.T) {
	spec := &fleet.PodSpec{GPU: &fleet.GPURequest{Type: "new"}}
	listed := func(price fleet.Money) *fleet.Catalog {
		return &fleet.Catalog{GPUs: []fleet.GPUType{{ID: "new", Contributed: true, Secure: price}}}
	}
	for name, c := range map[string]struct {
		catalog *fleet.Catalog
		want    bool
	}{"none": {nil, false}, "without the type": {&fleet.Catalog{}, false}, "without a price": {listed(0), true}, "with one": {listed(1), false}} {
		if got := unpriced(c.catalog, spec); got != c.want {
			t.Errorf("a catalog %s: %t", name, got)
		}
	}
	if storagePrices(nil) != nil {
		t.Error("without a catalog storage has prices")
	}
}

func TestWhatRunsUpBeyondAllNumbers(t *testing.T) {
	huge := new(big.Int).Lsh(big.NewInt(1), 90)
	if got := (&tally{rate: 1, settled: huge}).running(0); got != math.MinInt64/2 {
		t.Errorf("far ahead: %d", got)
	}
	if got := (&tally{rate: 1, settled: new(big.Int).Neg(huge)}).running(0); got != math.MaxInt64/2 {
		t.Errorf("far behind: %d", got)
	}
	if got := (&tally{rate: 7, settled: big.NewInt(7 * 3600)}).running(3600); got != 0 {
		t.Errorf("settled: %d", got)
	}
}

func TestEventsOfAnotherLineageAreLost(t *testing.T) {
	w := newWorld(t).settle()
	if upTo, lost := w.s.Changes(fleet.EventPlace{Lineage: 9}, 10, func(fleet.EventPlace, *fleet.Event) bool { return true }); !lost || upTo != w.s.EndOfChanges() {
		t.Errorf("up to %v, lost is %t", upTo, lost)
	}
	w.must(UpdateAccount{Account: "acme", Webhook: &fleet.AccountWebhook{URL: "https://x", Kinds: []fleet.EventKind{fleet.EventPod}}})
	w.must(restore(7), NoteWebhooks{Done: fleet.EventPlace{Lineage: 7, Index: 1}})
	w.view(func(v *View) {
		places, done, _ := v.Webhooks()
		if done.Lineage != 7 || places["acme"] != done {
			t.Errorf("%v, done %v", places, done)
		}
	})
}

func TestTicksThatAreRefused(t *testing.T) {
	w := clockWorld(t)
	for _, bad := range []TickClock{
		{Leap: leap}, {At: at(1)}, {At: at(1), Leap: -1}, {At: at(1), Leap: leap, Operator: true}, {At: at(1), Leap: leap, Confirmed: true, Doubted: true},
	} {
		w.refused(fleet.CodeInvalid, bad)
	}
	w.must(TickClock{At: at(1), Leap: 1})
	w.ticks(at(1), at(600))
	w.must(TickClock{At: at(540), Leap: leap, Confirmed: true, Operator: true})
	if c := w.clock(); !c.At.Equal(at(540)) { // though it is near
		t.Errorf("an operator's word: %+v", c)
	}
}

func TestCordonsBeyondWhatAHostHas(t *testing.T) {
	w := cordonWorld(t)
	gpu := "host-a-gpu-3"
	w.must(CordonGPU{Host: "host-a", GPU: gpu, Reason: "one", At: at(1)})
	w.must(w.says(func(inv *fleet.Inventory) { inv.GPUs = inv.GPUs[:3] }))
	w.must(CordonGPU{Host: "host-a", GPU: gpu, Reason: "two", At: at(2)}) // it is gone, and the word about it can be changed
	if h := w.host("host-a"); len(h.GPUCordons) != 1 || h.GPUCordons[0].Reason != "two" || h.GPUCordons[0].Type != h100 {
		t.Errorf("%+v", h.GPUCordons)
	}
	cordons := func(n int) {
		w.inTxn(at(3), func(tx *txn) {
			h, _ := tx.host("host-a")
			h.GPUCordons = nil
			for i := range n {
				h.GPUCordons = append(h.GPUCordons, fleet.GPUCordon{UUID: fmt.Sprintf("gone-%04d", i), Reason: "x"})
			}
			tx.putHost(h)
		})
	}
	more := CordonGPU{Host: "host-a", GPU: "host-a-gpu-0", Reason: "x", At: at(4)}
	cordons(maxGPUs)
	w.refused(fleet.CodeConflictRule, more)
	w.must(CordonGPU{Host: "host-a", GPU: "gone-0000", Reason: "again", At: at(4)})
	cordons(maxGPUs - 1)
	w.must(more)
}

func TestTheMostModelsAndJobs(t *testing.T) {
	w := modelWorld(t)
	fill := func(n int) {
		w.inTxn(at(3), func(tx *txn) {
			for i := range n {
				m := model()
				m.ID = fleet.ModelID(fmt.Sprintf("m-%d", i))
				tx.base.models.Put(tx.Txn, m.ID, &m)
			}
		})
	}
	m := model()
	m.ID = "more"
	fill(maxModels - 1) // and draw
	w.refused(fleet.CodeConflictRule, PutModel{m})
	w.must(PutModel{model()}, DeleteModel{ID: "m-0"}, PutModel{m})

	held := func(account fleet.AccountID, model fleet.ModelID, from, to int) {
		w.inTxn(at(4), func(tx *txn) {
			for i := from; i < to; i++ {
				h := fleet.CreditHold{ID: fmt.Sprintf("%s-%s-%d", account, model, i), Account: account, Model: model, At: at(4)}
				tx.base.holds.Put(tx.Txn, h.ID, &h)
			}
		})
	}
	held("other", "m-1", 0, fleet.MaxModelJobs-1)
	w.must(hold("last")) // of another model than the others
	w.refused(fleet.CodeLimited, hold("more"))
	held("acme", "m-1", 0, maxHolds-fleet.MaxModelJobs)
	w.must(UpdateAccount{Account: "acme", Prepaid: ptr(false)}, SettleHolds{Holds: []SettledHold{{ID: "last"}}, At: at(5)}, hold("last"))
	w.must(PutAccount{fleet.Account{ID: "third", CreatedAt: at(0)}})
	third := hold("third")
	third.Hold.Account = "third"
	w.refused(fleet.CodeLimited, third)
	w.must(SettleHolds{Holds: []SettledHold{{ID: "last"}}, At: at(5)}, third)
}

func TestFilesFillTheirRoomToTheLastByte(t *testing.T) {
	w := newWorld(t).settle()
	s := sampleStore()
	s.AccountBytes, s.AllBytes = 10, 15
	w.must(PutObjectStore{s})
	w.refused(fleet.CodeLimited, keeps(resultFile("a", 11)))
	w.must(keeps(resultFile("a", 10)))
	other := func(id string, bytes int64) fleet.ResultFile {
		f := resultFile(id, bytes)
		f.Account = "other"
		return f
	}
	w.refused(fleet.CodeLimited, keeps(other("b", 6)))
	w.must(keeps(other("b", 5)), DropFiles{Files: []fleet.ResultFile{resultFile("a", 0)}})
	w.view(func(v *View) {
		if len(v.tb.fileSums.Rows) != 1 {
			t.Errorf("sums of accounts without files: %v", v.tb.fileSums.Rows)
		}
	})
}

func TestMetersThatAreDue(t *testing.T) {
	w := newWorld(t).priced()
	for i := range 4 {
		w.must(CreatePods{Pods: []NewPod{{Pod: podOn(fleet.PodID(fmt.Sprintf("p-%d", i)), "host-a", i), HostEpoch: 1}}})
	}
	open := func(before time.Time, limit int) (n int) {
		w.view(func(v *View) { n = len(v.OpenMeters(before, limit)) })
		return n
	}
	w.must(SettleMeters{Meters: []MeterID{{fleet.ChargePod, "p-0"}}, At: at(7200)}) // due in another hour than the others
	for _, c := range [][3]int{{10, 9, 0}, {11, 9, 3}, {7200, 9, 3}, {7201, 9, 4}, {7201, 3, 3}, {7201, 2, 2}, {7201, 0, 0}, {-7200, 9, 0}} {
		if got := open(at(c[0]), c[1]); got != c[2] {
			t.Errorf("before %d, at most %d: %d are due, want %d", c[0], c[1], got, c[2])
		}
	}
	id := MeterID{fleet.ChargePod, "p-1"}
	w.inTxn(at(7200), func(tx *txn) { // what is beyond a command's room is the next one's
		before := *tx.base.meters.Get(tx.Txn, id.key())
		for room, want := range map[int64]int64{0: before.Settled, 1: before.Settled + 3600} {
			tx.room = room
			if _, err := (SettleMeters{Meters: []MeterID{id}, At: at(100_000)}).apply(tx); err != nil {
				t.Fatal(err)
			}
			if got := tx.base.meters.Get(tx.Txn, id.key()); got.Settled != want {
				t.Errorf("with room for %d it is settled up to %d, want %d", room, got.Settled-before.Settled, want-before.Settled)
			}
			tx.Discard()
		}
	})
	q := usageQuery{account: "acme"}
	if err := q.row([]byte(strings.Repeat("0", accountDigits)+"acme"+"123"), nil); err == nil {
		t.Error("a key without its hour is one")
	}
	q.want.Kind = fleet.ChargePod
	if err := q.row([]byte(strings.Repeat("0", accountDigits)+"acme"+strings.Repeat("1", hourDigits)), nil); err != nil {
		t.Errorf("a key that ends with its hour: %v", err)
	}
}

func TestS3KeysAndEndpointsThatReferToNothing(t *testing.T) {
	w := newWorld(t).settle().furnish()
	for i, c := range []struct {
		expires time.Time
		code    fleet.Code
	}{{time.Time{}, ""}, {at(1), fleet.CodeInvalid}, {at(0), fleet.CodeInvalid}, {at(2), ""}} {
		k := sampleS3Key()
		k.ID, k.ExpiresAt = fmt.Sprintf("user_%027d", 50+i), c.expires
		if c.code != "" {
			w.refused(c.code, Put[fleet.S3Key]{Record: k})
			continue
		}
		w.must(Put[fleet.S3Key]{Record: k})
	}
	e := endpoint("ep-1")
	e.Spec.Template, e.Spec.Volumes, e.Spec.GPU = "tpl-2", []fleet.VolumeID{"vol-1"}, nil // another's, public
	made := w.must(Put[fleet.Endpoint]{Record: e}).(fleet.Endpoint)
	private := fleet.Template{ID: "tpl-2", Account: "other", Name: "p", Image: "busybox", CreatedAt: at(1), Rev: 1}
	w.must(Put[fleet.Template]{Record: private})
	made.Spec.Name = "newer"
	made = w.must(Put[fleet.Endpoint]{Record: made}).(fleet.Endpoint)
	w.must(Delete[fleet.Template]{Account: "other", ID: "tpl-2"})
	made.Spec.Name = "new"
	made = w.must(Put[fleet.Endpoint]{Record: made}).(fleet.Endpoint) // it has all that it needs
	foreign := endpoint("ep-2")
	foreign.Account, foreign.Spec.Template = "other", "tpl-1"
	w.refused(fleet.CodeStale, Put[fleet.Endpoint]{Record: foreign})
	made.Spec.Volumes = nil
	w.must(Put[fleet.Endpoint]{Record: made})
	w.must(Delete[fleet.Template]{Account: "acme", ID: "tpl-1"}) // an endpoint that does not name it is in nobody's way
	w.view(func(v *View) {
		if got, err := Get[fleet.Endpoint](v, "acme", "ep-1"); err != nil || got.Spec.GPU != nil {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestAddressesBehindTheFirst(t *testing.T) {
	w := networked(t, smallNetworks())
	w.inTxn(at(1), func(tx *txn) {
		o, err := tx.overlayFor(acmeNet, "acme")
		if err != nil {
			t.Fatal(err)
		}
		o.Next = 0
		if n, ok := tx.findAddr(o); !ok || n != firstAddr {
			t.Errorf("from the range's own address on, the first is %d", n)
		}
		o.Next = firstAddr + 4
		for n := o.Next; n < firstWindow && n <= lastAddr(o); n++ {
			m := fleet.OverlayMember{Overlay: o.ID, Addr: addrAt(o.CIDR, n), Pod: "p"}
			tx.base.overlayMembers.Put(tx.Txn, memberKey(o.ID, m.Addr), &m)
		}
		if n, ok := tx.findAddr(o); !ok || n != firstAddr {
			t.Errorf("all behind are in use, and the next is %d", n)
		}
	})
}
