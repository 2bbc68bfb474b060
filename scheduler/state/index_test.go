package state

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// A key's hash may go from one key to another within a batch, whatever the order of its rows.
func TestAHashMovesWithinABatch(t *testing.T) {
	for range 20 { // rows are published in the order of a map
		w := newWorld(t).settle()
		key := func(id fleet.KeyID, hash string) PutKey {
			return PutKey{fleet.Key{ID: id, Account: "acme", Hash: []byte(hash)}}
		}
		w.must(key("k1", "h1"))
		res, err := w.s.Apply([]entry.Entry{w.entry(
			key("k2", "h1"), key("k1", "h2"), key("k3", "h2"), key("k2", "h1"), DeleteKey{Account: "acme", Key: "k1"}, key("k3", "h2"), key("k4", "h1"),
		)})
		if err != nil {
			t.Fatal(err)
		}
		var codes []fleet.Code
		for _, r := range res[0] {
			codes = append(codes, fleet.CodeOf(r.Err))
		}
		if want := []fleet.Code{fleet.CodeExists, "", fleet.CodeExists, "", "", "", fleet.CodeExists}; !slices.Equal(codes, want) {
			t.Fatalf("got %v", codes)
		}
		w.view(func(v *View) {
			for hash, id := range map[string]fleet.KeyID{"h1": "k2", "h2": "k3"} {
				if got, ok := v.KeyByHash([]byte(hash)); !ok || got.ID != id {
					t.Fatalf("%s is that of %q", hash, got.ID)
				}
			}
			if keys := v.Keys("acme"); len(keys) != 2 || keys[0].ID != "k2" {
				t.Fatalf("keys %+v", keys)
			}
		})
		w.check()
	}
}

// What an account has is counted as the batch has it.
func TestLimitsSeeTheirBatch(t *testing.T) {
	w := newWorld(t).settle()
	var cmds []Command
	for i := range maxKeys {
		id := fmt.Sprintf("k%03d", i)
		cmds = append(cmds, PutKey{fleet.Key{ID: fleet.KeyID(id), Account: "acme", Hash: []byte(id)}})
	}
	more := PutKey{fleet.Key{ID: "more", Account: "acme", Hash: []byte("more")}}
	cmds = append(cmds, more, DeleteKey{Account: "acme", Key: "k000"}, more)
	res, err := w.s.Apply([]entry.Entry{w.entry(cmds...)})
	if err != nil {
		t.Fatal(err)
	}
	last := res[0][maxKeys:]
	if fleet.CodeOf(last[0].Err) != fleet.CodeConflictRule || last[1].Err != nil || last[2].Err != nil {
		t.Errorf("got %v", last)
	}
	w.check()
}

// Accounts without credit are ended piece by piece, and what one batch does to one costs nothing for another.
func TestExhaustionIsBounded(t *testing.T) {
	const accounts, pods = 8, 300
	w := newWorld(t).priced()
	var ids []fleet.AccountID
	for i := range accounts {
		ids = append(ids, fleet.AccountID(fmt.Sprintf("acc-%d", i)))
		w.must(PutAccount{fleet.Account{ID: ids[i], CreatedAt: at(0), Prepaid: true}})
	}
	w.inTxn(at(0), func(tx *txn) {
		for i := range accounts * pods {
			tx.putPod(&fleet.Pod{
				ID: fleet.PodID(fmt.Sprintf("pod%011d", i)), Account: ids[i%accounts], Status: fleet.StatusRunning, Goal: fleet.GoalRun,
				Host: "host-a", HourlyRate: fleet.Dollar, Incarnation: 1, Held: true, Steps: firstStep(at(0)), CreatedAt: at(0),
				Spec: fleet.PodSpec{CPU: &fleet.CPURequest{}},
			})
		}
	})
	for n, want := range []int{maxEnded, accounts*pods - maxEnded, 0} {
		if got := w.must(ExhaustAccounts{Accounts: ids, At: at(3600 + n)}); got != want {
			t.Errorf("%d: %v pods were ended, want %d", n, got, want)
		}
	}
	w.view(func(v *View) {
		if left := v.Exhausted(at(9999), 100); len(left) != 0 {
			t.Errorf("left are %v", left)
		}
	})
	w.check()
}

// taken fills GPUs of a host of eight: four on each of two islands.
func islands(t *testing.T, taken ...int) *world {
	w := newWorld(t).settle()
	inv := inventory("host-a")
	inv.GPUs = nil
	for i := range 8 {
		inv.GPUs = append(inv.GPUs, fleet.GPU{UUID: fmt.Sprintf("host-a-gpu-%d", i), Type: h100, Island: i / 4})
	}
	w.must(ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: inv, At: at(3)})
	for _, i := range taken {
		p := podOn(fleet.PodID(fmt.Sprintf("taken-%d", i)), "host-a", i)
		p.Need = fleet.Resources{}
		w.must(CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 2}}})
	}
	return w
}

func TestAGPUThatIsTakenIsReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		taken, asked, want []int
	}{
		"none is taken":                     {[]int{0}, []int{2, 1}, []int{2, 1}},
		"on the island of the others":       {[]int{0, 4}, []int{4, 5}, []int{6, 5}},
		"elsewhere when the island is full": {[]int{0, 1, 2}, []int{3, 0}, []int{3, 4}},
		"on the island that has all":        {[]int{0, 1, 2}, []int{0, 1}, []int{4, 5}},
		"on the one that is nearly full":    {[]int{0, 1, 2}, []int{0}, []int{3}},
		"as many as there are":              {[]int{0, 1, 2, 3}, []int{0, 1, 2, 3}, []int{4, 5, 6, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			w := islands(t, c.taken...)
			got := w.must(CreatePods{Pods: []NewPod{{Pod: podOn("pod-1", "host-a", c.asked...), HostEpoch: 2}}}).([]fleet.Pod)[0]
			if want := podOn("pod-1", "host-a", c.want...).GPUs; !slices.Equal(got.GPUs, want) {
				t.Errorf("got %v, want %v", got.GPUs, want)
			}
			w.check()
		})
	}
	w := islands(t, 0, 1, 2, 3, 4, 5, 6)
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: podOn("pod-1", "host-a", 0, 1), HostEpoch: 2}}})
}

// Creates that all picked the same GPU and the same public port fill a host in one batch.
func TestConcurrentPicksFillAHost(t *testing.T) {
	w := islands(t)
	inv := w.host("host-a").Inventory
	inv.PublicIP, inv.PortFrom, inv.PortTo = "192.0.2.1", 30_000, 30_009
	w.must(ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: inv, At: at(3)})
	var batch []entry.Entry
	for i := range 10 {
		p := podOn(fleet.PodID(fmt.Sprintf("pod-%d", i)), "host-a", 3)
		p.Spec.Ports = []fleet.Port{{Number: 22, Protocol: "tcp"}}
		p.Mappings = []fleet.PortMapping{{Private: 22, Public: 30_008}}
		batch = append(batch, w.entry(CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 3}}}))
	}
	res, err := w.s.Apply(batch)
	if err != nil {
		t.Fatal(err)
	}
	gpus, ports := map[string]bool{}, map[int]bool{}
	for i, r := range slices.Concat(res...) {
		if i >= 8 {
			if fleet.CodeOf(r.Err) != fleet.CodeStale {
				t.Errorf("%d: %v, want stale", i, r.Err)
			}
			continue
		}
		if r.Err != nil {
			t.Fatalf("%d: %v", i, r.Err)
		}
		p := r.Value.([]fleet.Pod)[0]
		gpus[p.GPUs[0]], ports[p.Mappings[0].Public] = true, true
	}
	if len(gpus) != 8 || len(ports) != 8 {
		t.Errorf("GPUs %v, ports %v", gpus, ports)
	}
	w.check()
}

// A reader that takes long does not stop the writer while the file grows.
func TestApplyGoesOnBesideALongReader(t *testing.T) {
	w := newWorld(t).priced()
	if size := mapped(t, w.path); strconv.IntSize == 64 && size < 64<<30 {
		t.Errorf("the file is mapped with %d bytes", size)
	}
	if info, err := os.Stat(w.path); err != nil || info.Size() > 1<<20 {
		t.Fatalf("an empty file has %d bytes: %v", info.Size(), err)
	}
	snap, err := w.s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.fillUsage(1000, 140)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("the writer waits for the reader")
	}
	if err := snap.Release(); err != nil {
		t.Error(err)
	}
	<-done
	if info, err := os.Stat(w.path); err != nil || info.Size() < 17<<20 {
		t.Errorf("the file has %d bytes: %v", info.Size(), err)
	}
	// One that is mapped with less is as good, but for that.
	path := filepath.Join(t.TempDir(), "small.db")
	small, err := Open(path, Options{MapSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if size := mapped(t, path); size != 1<<20 {
		t.Errorf("mapped with %d bytes", size)
	}
	if err := small.Close(); err != nil {
		t.Error(err)
	}
}

// mapped returns how many bytes of address space a file is mapped with.
func mapped(t *testing.T, path string) (size int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(strings.TrimSpace(line), path) {
			continue
		}
		from, to, _ := strings.Cut(strings.Fields(line)[0], "-")
		begin, err1 := strconv.ParseInt(from, 16, 64)
		end, err2 := strconv.ParseInt(to, 16, 64)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		size += end - begin
	}
	return size
}
