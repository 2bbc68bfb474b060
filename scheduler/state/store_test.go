package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state/table"
)

// busy lets a good deal happen, some of it refused.
func (w *world) busy() *world {
	w.settle()
	w.must(PutKey{fleet.Key{ID: "k1", Account: "acme", Hash: []byte("h1"), Can: map[fleet.Group]fleet.Access{"pods": "write", "account": "read"}}})
	for i := range 4 {
		w.create(fleet.PodID(fmt.Sprintf("pod-%d", i)), "host-a", i)
	}
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: podOn("pod-x", "host-a", 1), HostEpoch: 1}}})
	w.must(w.report("pod-0", fleet.EventRunning), w.report("pod-1", fleet.EventFailed), w.report("pod-2", fleet.EventStarting))
	w.must(w.act("pod-0", fleet.ActionRestart), w.act("pod-2", fleet.ActionTerminate), w.act("pod-3", fleet.ActionStop))
	w.must(w.report("pod-2", ReportGone))
	w.must(ActPod{Account: "acme", Pod: "pod-1", Action: fleet.ActionStart, At: at(60), Bind: &Binding{
		Host: "host-b", HostEpoch: 1, GPUs: []string{"host-b-gpu-0"},
	}})
	w.furnish()
	w.publish("host-b")
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("pod-9", "host-b", 30_000, 1), HostEpoch: 2}}, Once: sampleOnce()})
	return w
}

func TestTheSameLogGivesTheSameState(t *testing.T) {
	a := newWorld(t).busy()
	for _, size := range []int{1, 3, len(a.log)} {
		c := newWorld(t)
		for batch := range slices.Chunk(a.log, size) {
			if _, err := c.s.Apply(batch); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(a.hash(), c.hash()) {
			t.Errorf("batches of %d give another state", size)
		}
		same(t, a.dump(), c.dump())
	}
}

func TestEntriesAtOrBelowTheIndexAreSkipped(t *testing.T) {
	w := newWorld(t).busy()
	before, index := w.hash(), w.s.Index()
	res, err := w.s.Apply(w.log)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range res {
		if r != nil {
			t.Errorf("entry %d was decided again", i)
		}
	}
	if !bytes.Equal(before, w.hash()) || w.s.Index() != index {
		t.Error("applying again changed something")
	}
	// Half old, half new.
	last := w.log[len(w.log)-1]
	res, err = w.s.Apply([]entry.Entry{last, w.entry(PutAccount{fleet.Account{ID: "new"}})})
	if err != nil || res[0] != nil || len(res[1]) != 1 || res[1][0].Err != nil {
		t.Fatalf("got %v, %v", res, err)
	}
}

func TestCommandsOfOneEntryAreDecidedOneByOne(t *testing.T) {
	w := newWorld(t).settle()
	res, err := w.s.Apply([]entry.Entry{
		w.entry(
			CreatePods{Pods: []NewPod{{Pod: podOn("pod-1", "host-a", 0, 1, 2), HostEpoch: 1}}},
			CreatePods{Pods: []NewPod{{Pod: podOn("pod-2", "host-a", 0, 1), HostEpoch: 1}}}, // taken by the one before
			CreatePods{Pods: []NewPod{{Pod: podOn("pod-1", "host-a", 3), HostEpoch: 1}}},    // its id too
			CreatePods{Pods: []NewPod{{Pod: podOn("pod-3", "host-a", 3), HostEpoch: 1}}},
		),
		w.entry(CreatePods{Pods: []NewPod{{Pod: podOn("pod-4", "host-a", 3), HostEpoch: 1}}}), // taken by the entry before
	})
	if err != nil {
		t.Fatal(err)
	}
	var codes []fleet.Code
	for _, r := range slices.Concat(res...) {
		codes = append(codes, fleet.CodeOf(r.Err))
	}
	if want := []fleet.Code{"", fleet.CodeStale, fleet.CodeExists, "", fleet.CodeStale}; !slices.Equal(codes, want) {
		t.Errorf("got %v", codes)
	}
	if g := w.host("host-a").Generation; g != 2 {
		t.Errorf("generation %d", g)
	}
	w.check()
}

// Joined entries are one entry with the commands of both: how proposals are packed.
func TestEntriesCanBeJoined(t *testing.T) {
	w := newWorld(t).settle()
	a, err := Encode(PutAccount{fleet.Account{ID: "a"}}, PutAccount{fleet.Account{ID: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Encode(PutAccount{})
	if err != nil {
		t.Fatal(err)
	}
	w.index++
	res, err := w.s.Apply([]entry.Entry{{Index: w.index, Data: slices.Concat(a, b, a)}})
	if err != nil || len(res[0]) != 5 || res[0][2].Err == nil || res[0][4].Err != nil {
		t.Errorf("got %v, %v", res, err)
	}
}

func TestAnEntryThatIsNotUnderstoodStopsTheStore(t *testing.T) {
	good, err := Encode(PutAccount{fleet.Account{ID: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"unknown type":  {0x82, 0x18, 0x63, 0xa0},
		"not CBOR":      {0xff, 0x00},
		"cut short":     good[:len(good)-1],
		"a good before": append(slices.Clone(good), 0x82, 0x18, 0x63, 0xa0),
		"unknown field": {0x82, 0x02, 0xa1, 0x18, 0x63, 0x00},
		"field twice":   {0x82, 0x02, 0xa2, 0x01, 0xa0, 0x01, 0xa0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).settle()
			before, index := w.hash(), w.s.Index()
			if _, err := w.s.Apply([]entry.Entry{w.entry(PutAccount{fleet.Account{ID: "b"}}), {Index: w.index + 1, Data: data}}); err == nil {
				t.Fatal("applied")
			}
			if _, err := w.s.Apply([]entry.Entry{w.entry(PutAccount{fleet.Account{ID: "c"}})}); err == nil {
				t.Fatal("went on")
			}
			if !bytes.Equal(before, w.hash()) || w.s.Index() != index {
				t.Error("part of the batch was written")
			}
		})
	}
}

func TestReopenAfterClose(t *testing.T) {
	w := newWorld(t).busy()
	want, hash := w.dump(), w.hash()
	if err := w.s.Close(); err != nil {
		t.Fatal(err)
	}
	w.open("boot-2")
	if why := w.s.Discarded(); why != "" {
		t.Fatal(why)
	}
	same(t, want, w.dump())
	if !bytes.Equal(hash, w.hash()) {
		t.Error("hash differs")
	}
	if _, _, ok := w.s.Events(w.s.Index() - 1); ok {
		t.Error("a new ring knows the past")
	}
	if _, _, ok := w.s.Events(w.s.Index()); !ok {
		t.Error("a new ring does not know the present")
	}
}

// copyTo copies the store's files as they are, as if its process had been killed.
func (w *world) copyTo(t *testing.T) string {
	to := t.TempDir() + "/state.db"
	for _, suffix := range []string{"", ".mark"} {
		data, err := os.ReadFile(w.path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+suffix, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func openAt(t *testing.T, path, boot string) *Store {
	t.Helper()
	s, err := Open(path, Options{BootID: boot})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestReopenAfterKill(t *testing.T) {
	w := newWorld(t).busy()
	s := openAt(t, w.copyTo(t), "boot-1")
	if s.Discarded() != "" || s.Index() != w.s.Index() {
		t.Fatalf("%s, index %d of %d", s.Discarded(), s.Index(), w.s.Index())
	}
	same(t, w.dump(), dumpOf(t, s))
}

func TestAFileThatMayHaveLostWritesIsThrownAway(t *testing.T) {
	w := newWorld(t).busy()
	for name, make := range map[string]func(path string) (boot string){
		"another boot": func(string) string { return "boot-2" },
		"unknown boot": func(string) string { return "" },
		"no mark":      func(p string) string { _ = os.Remove(p + ".mark"); return "boot-1" },
		"odd mark":     func(p string) string { _ = os.WriteFile(p+".mark", []byte("?"), 0o600); return "boot-1" },
		"not a file":   func(p string) string { _ = os.WriteFile(p, []byte("nonsense"), 0o600); return "boot-1" },
		"empty":        func(p string) string { _ = os.Truncate(p, 0); return "boot-1" },
	} {
		t.Run(name, func(t *testing.T) {
			path := w.copyTo(t)
			s := openAt(t, path, make(path))
			if name != "empty" && s.Discarded() == "" {
				t.Error("the file was kept")
			}
			if s.Index() != 0 {
				t.Fatalf("index %d", s.Index())
			}
			if _, err := s.Apply(w.log); err != nil {
				t.Fatal(err)
			}
			same(t, w.dump(), dumpOf(t, s))
		})
	}
}

// A closed file is used only as it was closed; not one flipped bit goes unseen.
func TestADamagedClosedFileIsThrownAway(t *testing.T) {
	w := newWorld(t).busy()
	if err := w.s.Close(); err != nil {
		t.Fatal(err)
	}
	size := int64(0)
	if info, err := os.Stat(w.path); err == nil {
		size = info.Size()
	}
	for off := int64(0); off < size; off += size / 16 {
		path := w.copyTo(t)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[off] ^= 1
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if s := openAt(t, path, "boot-1"); s.Discarded() == "" || s.Index() != 0 {
			t.Errorf("a flipped bit at %d went unseen", off)
		}
	}
}

// A damaged file of a killed process has no sum; it may be found out late, but nothing panics.
func TestADamagedOpenFileDoesNotPanic(t *testing.T) {
	w := newWorld(t).busy()
	orig, err := os.ReadFile(w.path)
	if err != nil {
		t.Fatal(err)
	}
	for page := 0; page < len(orig)/4096; page++ {
		// The header of a page, then what it says of its first and second entry. Of a length only three bytes are
		// changed: for one of 4 GB the race detector takes many times as much memory.
		for off, n := range map[int]int{8: 8, 10: 6, 12: 4, 16: 3, 20: 3, 24: 3, 28: 3, 36: 3, 40: 3, 44: 3} {
			path := w.copyTo(t)
			data := slices.Clone(orig)
			for i := range n {
				data[page*4096+off+i] = 0xff
			}
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Open(path, Options{BootID: "boot-1"})
			if err != nil {
				t.Fatalf("page %d offset %d: %v", page, off, err)
			}
			_ = s.Close()
		}
		if page > 12 {
			break
		}
	}
}

func TestASecondUserOfTheFileIsRefused(t *testing.T) {
	w := newWorld(t).settle()
	if _, err := Open(w.path, Options{BootID: "boot-1"}); err == nil {
		t.Fatal("two stores on one file")
	}
	w.create("pod-1", "host-a") // the first one is unharmed
}

func TestWait(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got := make(chan error)
	go func() { got <- w.s.Wait(ctx, 0) }()
	w.must(PutAccount{fleet.Account{ID: "a"}})
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if err := w.s.Wait(ctx, 0); err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithCancel(ctx)
	go func() { got <- w.s.Wait(short, 1) }()
	stop()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	go func() { got <- w.s.Wait(ctx, 1) }()
	if err := w.s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; !errors.Is(err, table.ErrClosed) {
		t.Fatal(err)
	}
	if err := w.s.View(func(*View) error { return nil }); !errors.Is(err, table.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := w.s.Apply(nil); !errors.Is(err, table.ErrClosed) {
		t.Fatal(err)
	}
}

// What a view returned is the caller's: changing it changes nothing here.
func TestViewsGiveCopies(t *testing.T) {
	w := newWorld(t).busy()
	before := w.dump()
	d := w.dump()
	for _, pods := range d.Pods {
		for i := range pods {
			pods[i].Spec.Env["A"] = "changed"
			pods[i].Steps["x"] = at(0)
			for j := range pods[i].GPUs {
				pods[i].GPUs[j] = "changed"
			}
			pods[i].Spec.GPU.Count = 99
		}
	}
	for i := range d.Hosts {
		d.Hosts[i].Host.Inventory.GPUs[0].UUID = "changed"
		d.Hosts[i].Host.Inventory.Images[0] = "changed"
	}
	d.Keys["acme"][0].Can["pods"] = "none"
	d.Keys["acme"][0].Hash[0]++
	d.Catalog.GPUs[0].ID = "changed"
	d.Catalog.Storage.VolumeFirst = 99
	d.Centers[1].Compliance[0] = "changed"
	d.Accounts[0].Quotas.Day = 99
	d.Keys["acme"][1].Invoke[0] = "changed"
	d.SSHKeys["acme"][0] = "changed"
	d.Registries["acme"][0].Sealed[0]++
	m := &d.Templates["acme"][0]
	m.Ports[0].Number, m.Env["A"], m.Persistent.SizeGB, m.AllowedCUDA[0] = 1, "changed", 99, "changed"
	p := d.Pods["acme"][len(d.Pods["acme"])-1]
	p.Spec.Persistent.SizeGB, p.Spec.CUDA.Allowed[0], p.Mappings[0].Public, p.Spec.Ports[0].Number = 99, "changed", 99, 99
	d.Cluster.CA[0]++
	d.S3Keys["acme"][0].Sealed[0]++
	d.Backends[0].Local.Path, d.Backends[1].NFS.Server = "changed", "changed"
	d.Hosts[0].Host.Inventory.Volumes[0] = "changed"
	same(t, before, w.dump())

	got := w.must(w.act("pod-0", fleet.ActionTerminate)).(fleet.Pod)
	got.Spec.Env["A"] = "changed"
	if w.pod("pod-0").Spec.Env["A"] != "1" {
		t.Error("a result is shared with the tables")
	}
}

func TestEncodeRefusesWhatCannotBeRead(t *testing.T) {
	_, err := Encode(PutAccount{fleet.Account{ID: "a", CreatedAt: time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)}})
	if fleet.CodeOf(err) != fleet.CodeInvalid {
		t.Errorf("got %v", err)
	}
	_, err = Encode(PutAccount{fleet.Account{ID: "a", Name: strings.Repeat("x", MaxCommand)}})
	if fleet.CodeOf(err) != fleet.CodeTooLarge {
		t.Errorf("got %v", err)
	}
	odd := PutAccount{fleet.Account{ID: "a", Name: "\xff\xfe"}}
	data, err := Encode(odd)
	if err != nil {
		t.Fatal(err)
	}
	cmds, err := Decode(data)
	if err != nil || len(cmds) != 1 || !reflect.DeepEqual(cmds[0], Command(odd)) {
		t.Errorf("got %v, %v", cmds, err)
	}
}
