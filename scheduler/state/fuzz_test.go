package state

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// Whatever is on the log, reading it ends in commands or an error; what is read is written again to
// the same meaning.
func FuzzDecode(f *testing.F) {
	for _, cmd := range samples() {
		data, err := Encode(cmd)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cmds, err := Decode(data)
		if err != nil {
			return
		}
		again, err := Encode(cmds...)
		if err != nil {
			return // for example a time of a year that cannot be written
		}
		more, err := Decode(again)
		if err != nil || len(more) != len(cmds) {
			t.Fatalf("read %d commands, wrote them, then read %d, %v", len(cmds), len(more), err)
		}
	})
}

// Whatever is applied, it is decided or refused as a whole, and the state stays readable.
func FuzzApply(f *testing.F) {
	for _, cmd := range samples() {
		data, err := Encode(cmd)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	w := newWorld(f).busy()
	base := w.snapshot()
	f.Fuzz(func(t *testing.T, data []byte) {
		w.t = t
		if err := w.s.Restore(bytes.NewReader(base)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.s.Apply([]entry.Entry{{Index: w.index + 1, Data: data}}); err != nil {
			return
		}
		want := w.dump()
		if err := w.s.Restore(bytes.NewReader(w.snapshot())); err != nil {
			t.Fatal(err)
		}
		same(t, want, w.dump())
	})
}

// Whatever is restored, it is refused and changes nothing, or the state is readable.
func FuzzRestore(f *testing.F) {
	w := newWorld(f)
	w.must(PutAccount{fleet.Account{ID: "a"}}, PutDataCenter{fleet.DataCenter{ID: "d"}})
	good := w.snapshot()
	f.Add(good)
	f.Add(good[:30])
	f.Add([]byte("gantry state\n"))
	f.Add(good[:len(good)-sha256.Size])
	s := w.s
	f.Fuzz(func(t *testing.T, data []byte) {
		// Once as it is, once with a sum that is right, to reach what is behind it.
		sum := sha256.Sum256(data)
		for _, input := range [][]byte{data, append(bytes.Clone(data), sum[:]...)} {
			before := dumpOf(t, s)
			if err := s.Restore(bytes.NewReader(input)); err != nil {
				same(t, before, dumpOf(t, s))
			}
		}
	})
}
