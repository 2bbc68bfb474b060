package state

import (
	"errors"
	"math"
	"testing"
	"time"

	"gantry/fleet"
)

func TestTheLargestOfTheRest(t *testing.T) {
	disk := func(container int, data *fleet.PersistentMount) error {
		return checkDisks(&fleet.PodSpec{DiskGB: container, Persistent: data})
	}
	member := func(change func(*fleet.Member)) error {
		m := sampleMember()
		m.RemovedAt = time.Time{}
		change(&m)
		return checkMember(&m)
	}
	checkBounds(t, []bound{
		{"the longest id", checkID("$.id", long(maxID)), ""},
		{"a longer id", checkID("$.id", long(maxID+1)), "$.id"},
		{"no id", checkID("$.id", ""), "$.id"},
		{"the largest disks", disk(maxDiskGB, &fleet.PersistentMount{SizeGB: maxDiskGB}), ""},
		{"no disk", disk(0, nil), ""},
		{"less than no disk", disk(-1, nil), "$.disk"},
		{"a larger disk", disk(maxDiskGB+1, nil), "$.disk"},
		{"no data", disk(0, &fleet.PersistentMount{}), "$.mounts.persistent.size"},
		{"more data", disk(0, &fleet.PersistentMount{SizeGB: maxDiskGB + 1}), "$.mounts.persistent.size"},
		{"the longest names of a member", member(func(m *fleet.Member) { m.Name, m.Version, m.Address = long(maxID), long(maxID), long(maxID) }), ""},
		{"a member's longer name", member(func(m *fleet.Member) { m.Name = long(maxID + 1) }), "$.name"},
		{"a member's longer version", member(func(m *fleet.Member) { m.Version = long(maxID + 1) }), "$.name"},
		{"a member's longer address", member(func(m *fleet.Member) { m.Address = long(maxID + 1) }), "$.address"},
		{"a member that is removed", member(func(m *fleet.Member) { m.RemovedAt = at(1) }), "$.removedAt"},
	})
	w := newWorld(t).settle()
	for _, q := range []fleet.Quotas{{Minute: -1}, {Hour: -1}, {Day: -1}} {
		w.refused(fleet.CodeInvalid, UpdateAccount{Account: "acme", Quotas: &q})
	}
	credit := func(amount fleet.Money) AddCredit { return AddCredit{Account: "acme", Amount: amount, At: at(1)} }
	w.refused(fleet.CodeInvalid, credit(maxCredit+1))
	w.refused(fleet.CodeInvalid, credit(-maxCredit-1))
	w.must(credit(maxCredit), credit(-maxCredit))
	name := long(maxTLSName)
	w.must(PutTLSFile{fleet.TLSFile{Name: name, Sealed: make([]byte, 1), UpdatedAt: at(1)}})
	inv := inventory("host-a")
	w.refused(fleet.CodeStale, UpdateInventory{Host: "host-a", Epoch: 9, Inventory: inv, At: at(3)})
	w.refused(fleet.CodeNotFound, UpdateInventory{Host: "host-x", Epoch: 1, Inventory: inv, At: at(3)})
	w.must(SetHostState{Host: "host-a", Epoch: 1, State: fleet.HostUnreachable, At: at(3)})
	w.must(UpdateInventory{Host: "host-a", Epoch: 1, Inventory: inv, At: at(4)})
	w.check()
}

// TestWhatIsNotThere: of what nobody made, a view says so, and gives no empty record; of what is there it gives a copy.
func TestWhatIsNotThere(t *testing.T) {
	w := newWorld(t).settle().furnish()
	m := sampleMember()
	m.RemovedAt = time.Time{}
	w.must(PutMember{m})
	w.view(func(v *View) {
		if h, ok := v.HostUsage("host-x"); ok || h.Host.ID != "" {
			t.Errorf("a host: %+v", h)
		}
		if h, ok := v.HostUsage("host-a"); !ok || h.Host.ID != "host-a" {
			t.Errorf("no host: %+v", h)
		}
		if got, ok := v.Member("nobody"); ok || got.ID != "" {
			t.Errorf("a member: %+v", got)
		}
		if got, ok := v.Member(m.ID); !ok || got.Name != m.Name || len(v.Members()) != 1 {
			t.Errorf("no member: %+v", got)
		}
		if got, ok := v.VolumeRecord("vol-x"); ok || got.ID != "" {
			t.Errorf("a volume: %+v", got)
		}
		if got, ok := v.VolumeRecord("vol-1"); !ok || got.Backend != "b-std" || len(v.AllVolumes()) != 1 {
			t.Errorf("no volume: %+v", got)
		}
		for id, want := range map[fleet.BackendID]int{"b-std": 1, "b-fast": 0, "b-none": 0} {
			n, size := v.BackendUse(id)
			if n != want || len(v.VolumesOn(id)) != want || len(v.StorageWork(id)) != want || (size > 0) != (want > 0) {
				t.Errorf("on %s: %d volumes of %d GB, to do %d", id, n, size, len(v.StorageWork(id)))
			}
		}
	})
}

func TestCountsOfTheControlPlane(t *testing.T) {
	w := newWorld(t).settle()
	for i, id := range []fleet.MemberID{"m1", "m2", "m3"} {
		m := sampleMember()
		m.ID, m.Address, m.RemovedAt, m.Replaces, m.NonVoter = id, string(id)+":1", time.Time{}, "", i == 2
		w.must(PutMember{m})
	}
	if c := w.counts(3); c.Voters != 2 || c.Alarms != 0 || c.Behind != 0 {
		t.Errorf("%+v", c)
	}
	w.inTxn(at(4), func(tx *txn) {
		m := *tx.base.members.Get(tx.Txn, fleet.MemberID("m1"))
		m.RemovedAt = at(4)
		tx.base.members.Put(tx.Txn, m.ID, &m)
		h, _ := tx.host("host-a")
		h.Alarm, h.Behind = "clock", true
		tx.putHost(h)
	})
	if c := w.counts(5); c.Voters != 1 || c.Alarms != 1 || c.Behind != 1 || c.Hosts[fleet.HostReady] != 2 {
		t.Errorf("%+v", c)
	}
}

// TestDamagedKeysOfUsage: a key that is none is a damaged file, not a record of an hour or an account that nobody has.
func TestDamagedKeysOfUsage(t *testing.T) {
	good := usageKey{"acme", 12345, MeterID{fleet.ChargePod, "p"}}
	if got, err := parseUsage(good.text()); err != nil || got != good {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := parseUsage("004acme00012345"); err != nil { // the shortest: of nothing in particular
		t.Error(err)
	}
	for _, text := range []string{"", "00", "004", "004acme0001234", "xyzacme00012345p", "004acme000123x5p", "0ffacme00012345p"} {
		if got, err := parseUsage(text); !errors.Is(err, errUsageKey) {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
	q := &usageQuery{account: "acme"}
	for _, text := range []string{"004acme", "004acme0001234", "004acme000123x5p"} {
		if err := q.row([]byte(text), &fleet.Amounts{}); !errors.Is(err, errUsageKey) {
			t.Errorf("a row %q: %v", text, err)
		}
	}
}

func TestTimesThatAreNone(t *testing.T) {
	for name, tt := range map[string]struct{ now, want time.Time }{
		"a while later":  {at(1), at(1).Add(time.Hour)},
		"the last year":  {time.Date(9999, 12, 31, 1, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 2, 0, 0, 0, time.UTC)},
		"after all time": {time.Date(9999, 12, 31, 23, 30, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 30, 0, 0, time.UTC)},
	} {
		if got := freeAt(tt.now, time.Hour); !got.Equal(tt.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := freeAt(time.Time{}, 0); got.IsZero() {
		t.Error("free at no time")
	}
	c := &Clock{At: at(10), Offset: time.Minute, Leap: time.Second * math.MaxInt16}
	if got, leaps := c.Of(time.Time{}); !got.IsZero() || leaps {
		t.Errorf("no time is %s", got)
	}
	if got, leaps := (*Clock)(nil).Of(at(5)); !got.Equal(at(5)) || leaps {
		t.Errorf("without a clock: %s", got)
	}
	r := ReportPods{Reports: []PodReport{{}, {At: at(5)}}}
	r.shift(time.Second)
	if !r.Reports[0].At.IsZero() || !r.Reports[1].At.Equal(at(6)) {
		t.Errorf("%+v", r.Reports)
	}
}
