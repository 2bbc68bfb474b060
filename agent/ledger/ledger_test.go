package ledger

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.etcd.io/bbolt"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/storage"
)

func open(t *testing.T, path string) *Ledger {
	t.Helper()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// allocator hands out 10.0.0.1, 10.0.0.2 and so on, the first that is not used.
func allocator(used map[netip.Addr]bool) (netip.Addr, error) {
	for a := netip.MustParseAddr("10.0.0.1"); ; a = a.Next() {
		if !used[a] {
			return a, nil
		}
	}
}

func want(id fleet.PodID, generation uint64) pod.Assignment {
	return pod.Assignment{
		Pod: id, Account: "a1", Incarnation: 1, Goal: fleet.GoalRun, Generation: generation, Image: "web",
		Env: map[string]string{"K": "V"}, Ports: []fleet.Port{{Number: 80, Protocol: "http"}}, Grace: time.Second,
	}
}

var compare = cmp.Options{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()}

// sameOnDisk checks that a copy of the file, taken as a crash would leave it, holds what memory does.
func sameOnDisk(t *testing.T, path string, l *Ledger) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(copied, data, 0o600); err != nil {
		t.Fatal(err)
	}
	again := open(t, copied)
	if d := cmp.Diff(l.records, again.records, compare); d != "" {
		t.Errorf("on disk (-memory +disk):\n%s", d)
	}
	if l.Generation() != again.Generation() || l.Lineage() != again.Lineage() || l.Subnet() != again.Subnet() {
		t.Errorf("generation %d, on disk %d; cleaned %d, %d; subnet %v, %v",
			l.Generation(), again.Generation(), l.Lineage(), again.Lineage(), l.Subnet(), again.Subnet())
	}
}

func TestEveryCallIsOnDiskWhenItReturns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		sameOnDisk(t, path, l)
	}
	check(l.SetSubnet(netip.MustParsePrefix("10.0.0.0/20")))
	_, err := l.SetFull(4, []pod.Assignment{want("p1", 3), want("p2", 4)}, allocator)
	check(err)
	check(l.Begin(pod.Assignment{Pod: "p1", Incarnation: 1, GPUs: []string{"g"}, Mappings: []fleet.PortMapping{{Private: 22, Public: 3}}}, "boot"))
	if rec, _ := l.Record("p1"); rec.Held == nil || len(rec.Held.GPUs) != 1 || len(rec.Held.Mappings) != 1 {
		t.Errorf("held: %+v", rec.Held)
	}
	code := 3
	check(l.End("p1", pod.Ended{Incarnation: 1, Event: fleet.EventFailed, Reason: "r", ExitCode: &code, At: time.Now().UTC()}))
	third := want("p3", 6)
	third.Endpoint = "abcdefghijklmn"
	_, err = l.Apply(4, 6, []pod.Assignment{third}, []fleet.PodID{"p2"}, allocator)
	check(err)
	check(l.Forget("p2")) // an orphan by now
	check(l.SetLineage(3))
	check(l.Adopt(pod.Record{Assignment: want("p9", 0), Begun: 2}))
	rec, ok := l.Record("p1")
	if !ok || rec.Ended == nil || *rec.Ended.ExitCode != 3 || rec.Begun != 1 || rec.BegunBoot != "boot" {
		t.Errorf("record %+v", rec)
	}
}

func TestAddressesAreKeptAndNotShared(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	if _, err := l.SetFull(1, []pod.Assignment{want("p1", 1), want("p2", 1)}, allocator); err != nil {
		t.Fatal(err)
	}
	first, _ := l.Record("p1")
	second, _ := l.Record("p2")
	if first.Addr == second.Addr || !first.Addr.IsValid() {
		t.Errorf("addresses %v and %v", first.Addr, second.Addr)
	}
	if _, err := l.Apply(1, 2, []pod.Assignment{want("p1", 2)}, nil, allocator); err != nil {
		t.Fatal(err)
	}
	if again, _ := l.Record("p1"); again.Addr != first.Addr {
		t.Errorf("address changed from %v to %v", first.Addr, again.Addr)
	}
}

func TestGapAndOlderSetAreRefusedAndChangeNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path)
	if _, err := l.SetFull(5, []pod.Assignment{want("p1", 5)}, allocator); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Apply(4, 6, []pod.Assignment{want("p2", 6)}, nil, allocator); !errors.Is(err, ErrGap) {
		t.Errorf("a difference from 4: %v", err)
	}
	if _, err := l.Apply(5, 4, nil, nil, allocator); !errors.Is(err, ErrGap) {
		t.Errorf("a difference backwards: %v", err)
	}
	if _, err := l.SetFull(4, nil, allocator); !errors.Is(err, ErrOlder) {
		t.Errorf("an older set: %v", err)
	}
	if got := l.Records(); len(got) != 1 || got[0].Orphan || l.Generation() != 5 {
		t.Errorf("records %+v, generation %d", got, l.Generation())
	}
	sameOnDisk(t, path, l)
}

func TestFullSetMakesOrphans(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	if _, err := l.SetFull(1, []pod.Assignment{want("p1", 1), want("p2", 1)}, allocator); err != nil {
		t.Fatal(err)
	}
	changed, err := l.SetFull(2, []pod.Assignment{want("p1", 1)}, allocator)
	if err != nil || len(changed) != 2 {
		t.Fatalf("changed %v, %v", changed, err)
	}
	rec, ok := l.Record("p2")
	if !ok || !rec.Orphan || rec.Assignment.Goal != fleet.GoalGone {
		t.Errorf("p2 is %+v", rec)
	}
	// Named again, it is no orphan any more.
	if _, err := l.SetFull(3, []pod.Assignment{want("p1", 1), want("p2", 3)}, allocator); err != nil {
		t.Fatal(err)
	}
	if rec, _ := l.Record("p2"); rec.Orphan || rec.Assignment.Goal != fleet.GoalRun {
		t.Errorf("p2 is %+v", rec)
	}
}

// The log of a pod that leaves stays when the pod had stopped, or was to; not that of one that was removed, or that runs and is not
// known any more.
func TestWhoseLogStays(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	stop, gone := want("stop", 1), want("gone", 1)
	stop.Goal, gone.Goal = fleet.GoalStop, fleet.GoalGone
	if _, err := l.SetFull(1, []pod.Assignment{want("ended", 1), want("runs", 1), stop, gone}, allocator); err != nil {
		t.Fatal(err)
	}
	if err := l.End("ended", pod.Ended{Incarnation: 1, Event: fleet.EventExited}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is no more listed once is not listed the next time either
		if _, err := l.SetFull(l.Generation()+1, nil, allocator); err != nil {
			t.Fatal(err)
		}
		for id, want := range map[fleet.PodID]bool{"ended": true, "stop": true, "runs": false, "gone": false} {
			if rec, _ := l.Record(id); !rec.Orphan || rec.KeepLog != want {
				t.Errorf("%s: an orphan %v, its log stays %v", id, rec.Orphan, rec.KeepLog)
			}
		}
	}
	again := want("ended", 9)
	again.Incarnation = 2
	if _, err := l.SetFull(9, []pod.Assignment{again}, allocator); err != nil {
		t.Fatal(err)
	}
	if rec, _ := l.Record("ended"); rec.Orphan || rec.KeepLog {
		t.Errorf("listed again it is %+v", rec)
	}
}

func TestPodWithoutAddressDoesNotStopTheOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path)
	none := func(map[netip.Addr]bool) (netip.Addr, error) { return netip.Addr{}, errors.New("no address") }
	if _, err := l.SetFull(1, []pod.Assignment{want("p1", 1)}, none); err != nil {
		t.Fatal(err)
	}
	if rec, ok := l.Record("p1"); !ok || rec.Addr.IsValid() {
		t.Errorf("record %+v", rec)
	}
	sameOnDisk(t, path, l)
	if _, err := l.Apply(1, 2, []pod.Assignment{want("p1", 2)}, nil, allocator); err != nil {
		t.Fatal(err)
	}
	if rec, _ := l.Record("p1"); !rec.Addr.IsValid() {
		t.Error("the pod got no address when there was one")
	}
}

func TestForgetSparesAPodThatIsWantedAgain(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	if _, err := l.SetFull(1, []pod.Assignment{want("p1", 1), want("p2", 1)}, allocator); err != nil {
		t.Fatal(err)
	}
	if _, err := l.SetFull(2, []pod.Assignment{want("p1", 1)}, allocator); err != nil {
		t.Fatal(err)
	}
	for _, id := range []fleet.PodID{"p1", "p2"} {
		if err := l.Forget(id); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := l.Record("p1"); !ok {
		t.Error("a wanted pod was forgotten")
	}
	if _, ok := l.Record("p2"); ok {
		t.Error("an orphan was not forgotten")
	}
}

func TestOddTextDoesNotKeepTheLedgerShut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path)
	if _, err := l.SetFull(1, []pod.Assignment{want("p1", 1)}, allocator); err != nil {
		t.Fatal(err)
	}
	if err := l.End("p1", pod.Ended{Incarnation: 1, Reason: "cut \xc3"}); err != nil {
		t.Fatal(err)
	}
	sameOnDisk(t, path, l)
}

func TestSecondAgentIsLockedOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	open(t, path)
	if _, err := Open(path); err == nil || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "another agent has it open") {
		t.Errorf("two agents opened one ledger: %v", err)
	}
}

func TestALedgerThatCannotBeReadIsNoDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(path, "ledger.db")); err == nil || errors.Is(err, ErrDamaged) {
		t.Errorf("below a file: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte("not a database"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "ledger.db")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if l, err := Open(path); err == nil {
			_ = l.Close()
		}
	})
}

// TestCredentialIsNeverOnDisk looks for it in the file's bytes.
func TestCredentialIsNeverOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path)
	const user, password = "robot-of-the-registry", "correct-horse-battery"
	a := want("p1", 1)
	a.Registry = &fleet.Credential{Username: user, Password: password}
	changed, err := l.SetFull(1, []pod.Assignment{a}, allocator)
	if err != nil || len(changed) != 1 || changed[0].Registry == nil {
		t.Fatalf("changed %+v, %v", changed, err)
	}
	if err := errors.Join(l.Begin(pod.Assignment{Pod: "p1", Incarnation: 1}, "boot"), l.End("p1", pod.Ended{Incarnation: 1})); err != nil {
		t.Fatal(err)
	}
	// It stays in memory for the life of the agent.
	if rec, _ := l.Record("p1"); rec.Assignment.Registry == nil || rec.Assignment.Registry.Password.Reveal() != password {
		t.Errorf("in memory: %+v", rec.Assignment.Registry)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{user, password, "egistry"} {
		if bytes.Contains(bytes.ToLower(data), []byte(secret)) {
			t.Errorf("%q is on disk", secret)
		}
	}
	again := open(t, path)
	if rec, _ := again.Record("p1"); rec.Assignment.Registry != nil {
		t.Error("a credential was read from disk")
	}
	// The set that follows, though it changes nothing, brings it back.
	changed, err = again.SetFull(1, []pod.Assignment{a}, allocator)
	if err != nil || len(changed) != 1 || changed[0].Registry == nil {
		t.Errorf("after a restart: %+v, %v", changed, err)
	}
}

// TestRecordsOfBeforeAreRead writes a record as agents did before there were mappings, mounts and
// credentials.
func TestRecordsOfBeforeAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true})
	if err != nil {
		t.Fatal(err)
	}
	row, err := cbor.Marshal(map[string]any{
		"assignment": map[string]any{
			"pod": "p1", "account": "a1", "incarnation": 3, "goal": "run", "generation": 7, "name": "n", "image": "web", "disk": 10,
			"ports": []map[int]any{{1: 22, 2: "tcp"}}, "limits": map[int]int{1: 1000, 2: 2000, 3: 10}, "data_center": "dc", "grace": 10_000_000_000,
		},
		"addr": []byte{10, 0, 0, 2}, "begun": 3, "begun_boot": "b",
	})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket(bucketPods)
		if err != nil {
			return err
		}
		_, err = tx.CreateBucket(bucketMeta)
		return errors.Join(err, b.Put([]byte("p1"), summed([]byte("p1"), row)))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	rec, ok := open(t, path).Record("p1")
	want := pod.Record{
		Assignment: pod.Assignment{
			Pod: "p1", Account: "a1", Incarnation: 3, Goal: fleet.GoalRun, Generation: 7, Name: "n", Image: "web", DiskGB: 10,
			Ports: []fleet.Port{{Number: 22, Protocol: "tcp"}}, Limits: fleet.Resources{MilliCPU: 1000, MemoryMB: 2000, DiskGB: 10},
			DataCenter: "dc", Grace: 10 * time.Second,
		},
		Addr: netip.MustParseAddr("10.0.0.2"), Begun: 3, BegunBoot: "b",
	}
	if d := cmp.Diff(want, rec, compare); d != "" || !ok {
		t.Errorf("read (-want +got):\n%s", d)
	}
}

func TestForeignDiskIsRemembered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if n, known := l.ForeignDisk(); known {
		t.Errorf("a new ledger knows %d", n)
	}
	for set, want := range map[int64]int64{1 << 42: 1 << 42, 0: 0, -3: 0} {
		if err := l.SetForeignDisk(set); err != nil {
			t.Fatal(err)
		}
		if n, known := l.ForeignDisk(); !known || n != want {
			t.Errorf("%d, %v; want %d", n, known, want)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if l, err = Open(path); err != nil {
			t.Fatal(err)
		}
		if n, known := l.ForeignDisk(); !known || n != want {
			t.Errorf("%d, %v; want %d", n, known, want)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTheKeyOfAVolumesBackendIsNotOnTheDisk: what else an order says of its network volume is.
func TestTheKeyOfAVolumesBackendIsNotOnTheDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path)
	a := want("p1", 1)
	a.VolumePath = "/workspace"
	a.Volume = &storage.Volume{
		ID: "v1", Dir: "abc", IDBase: 0x8003_0000, Ready: true,
		Backend: storage.Backend{ID: "b1", Kind: fleet.BackendCeph, Monitors: []string{"m"}, FileSystem: "fs", User: "u", Key: "AQB-secret", Path: "/v"},
	}
	if _, err := l.SetFull(1, []pod.Assignment{a, want("without", 1)}, allocator); err != nil {
		t.Fatal(err)
	}
	if rec, _ := l.Record("p1"); rec.Assignment.Volume.Backend.Key != "AQB-secret" {
		t.Error("the pod's machine does not get the key")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || bytes.Contains(text, []byte("AQB-secret")) || bytes.Contains(text, []byte("***")) {
		t.Errorf("the file has the key, or one that is none, %v", err)
	}
	again := open(t, path)
	a.Volume.Backend.Key = ""
	if rec, _ := again.Record("p1"); !cmp.Equal(rec.Assignment, a, compare) {
		t.Errorf("on disk (-want +got):\n%s", cmp.Diff(a, rec.Assignment, compare))
	}
	if rec, ok := again.Record("without"); !ok || rec.Assignment.Volume != nil {
		t.Errorf("a pod without one has %+v", rec.Assignment.Volume)
	}
}
