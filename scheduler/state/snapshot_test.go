package state

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

func (w *world) snapshot() []byte {
	w.t.Helper()
	snap, err := w.s.Snapshot()
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		if err := snap.Release(); err != nil {
			w.t.Error(err)
		}
	}()
	var buf bytes.Buffer
	n, err := snap.WriteTo(&buf)
	if err != nil || n != int64(buf.Len()) {
		w.t.Fatalf("wrote %d of %d: %v", n, buf.Len(), err)
	}
	return buf.Bytes()
}

func TestSnapshotIsOfOneIndex(t *testing.T) {
	w := newWorld(t).busy()
	want, index := w.dump(), w.s.Index()
	snap, err := w.s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 { // the writer goes on beside it
		w.must(PutAccount{fleet.Account{ID: fleet.AccountID(fmt.Sprintf("later-%d", i)), Name: strings.Repeat("x", 10_000)}})
	}
	var buf bytes.Buffer
	if _, err := snap.WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	if err := snap.Release(); err != nil {
		t.Fatal(err)
	}
	if got, err := SnapshotIndex(bytes.NewReader(buf.Bytes())); err != nil || got != index || snap.Index != index {
		t.Errorf("index %d, %d, %v, want %d", got, snap.Index, err, index)
	}
	into := newWorld(t)
	into.must(PutAccount{fleet.Account{ID: "is replaced"}})
	if err := into.s.Restore(&buf); err != nil {
		t.Fatal(err)
	}
	same(t, want, into.dump())
	if _, _, ok := into.s.Events(1); ok {
		t.Error("events go on across a restore")
	}
	// It goes on from there, and survives a kill.
	if _, err := into.s.Apply(w.log); err != nil {
		t.Fatal(err)
	}
	same(t, w.dump(), into.dump())
	if !bytes.Equal(w.hash(), into.hash()) || !bytes.Equal(w.snapshot(), into.snapshot()) {
		t.Error("equal states have different hashes or snapshots")
	}
	s := openAt(t, into.copyTo(t), "boot-1")
	same(t, w.dump(), dumpOf(t, s))
}

func TestADamagedSnapshotChangesNothing(t *testing.T) {
	w := newWorld(t).busy()
	good := w.snapshot()
	into := newWorld(t).settle()
	want, hash := into.dump(), into.hash()
	bad := [][]byte{nil, good[:7], good[:len(good)/2], good[:len(good)-1], append(slices.Clone(good), 0)}
	for off := 0; off < len(good); off += 97 {
		b := slices.Clone(good)
		b[off] ^= 0x20
		bad = append(bad, b)
	}
	for i, b := range bad {
		if err := into.s.Restore(bytes.NewReader(b)); err == nil {
			t.Fatalf("damaged snapshot %d was taken", i)
		}
	}
	if err := into.s.Restore(failingReader{}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	same(t, want, into.dump())
	if !bytes.Equal(hash, into.hash()) {
		t.Error("hash differs")
	}
	into.create("pod-1", "host-a")
	if _, err := os.Stat(into.path + ".restore"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a temporary file is left: %v", err)
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

// A follower that sends a long snapshot falls far behind meanwhile, and is sent one itself.
func TestARestoreDoesNotWaitForReaders(t *testing.T) {
	source := newWorld(t).settle()
	source.create("pod-1", "host-a", 0)
	file := source.snapshot()
	w := newWorld(t).busy()
	want := w.snapshot()
	held, err := w.s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- w.s.Restore(bytes.NewReader(file)) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the restore waits for a reader")
	}
	same(t, source.dump(), w.dump())
	var old bytes.Buffer
	if _, err := held.WriteTo(&old); err != nil || !bytes.Equal(old.Bytes(), want) {
		t.Errorf("the snapshot of before is another: %v", err)
	}
	if err := held.Release(); err != nil {
		t.Error(err)
	}
}
