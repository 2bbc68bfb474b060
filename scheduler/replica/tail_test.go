package replica

import (
	"errors"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// shakyLog is a log in memory of which a call fails now and then, having done nothing.
type shakyLog struct {
	*raft.InmemStore
	fails func() bool
}

func (l *shakyLog) StoreLogs(entries []*raft.Log) error {
	if l.fails() {
		return syscall.ENOSPC
	}
	return l.InmemStore.StoreLogs(entries)
}

func (l *shakyLog) DeleteRange(from, to uint64) error {
	if l.fails() {
		return syscall.ENOSPC
	}
	return l.InmemStore.DeleteRange(from, to)
}

// entriesOf makes entries of a term.
func entriesOf(from, to, term uint64) (out []*raft.Log) {
	for i := from; i <= to; i++ {
		out = append(out, &raft.Log{Index: i, Term: term})
	}
	return out
}

// terms reads the terms of the log's entries from the first on; it fails where one is missing.
func terms(l raft.LogStore, last uint64) (out []uint64, err error) {
	var e raft.Log
	for i := uint64(1); i <= last; i++ {
		if err := l.GetLog(i, &e); err != nil {
			return out, err
		}
		out = append(out, e.Term)
	}
	return out, nil
}

// What Raft counts on is there whatever failed in between: it believes in its old last entry until what replaces it is written.
func TestAReplacedEndIsNeverMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		under := &shakyLog{InmemStore: raft.NewInmemStore(), fails: func() bool { return false }}
		log := &tailLog{Log: under}
		last := rapid.Uint64Range(2, 8).Draw(t, "last")
		if err := log.StoreLogs(entriesOf(1, last, 1)); err != nil {
			t.Fatal(err)
		}
		under.fails = func() bool { return rapid.Bool().Draw(t, "fails") }
		for term := uint64(2); term < 8; term++ { // each is a leader's message, handled as appendEntries does
			from := rapid.Uint64Range(2, last+1).Draw(t, "from")
			to := from + rapid.Uint64Range(0, 4).Draw(t, "more")
			if from <= last && log.DeleteRange(from, last) != nil {
				continue
			}
			if log.StoreLogs(entriesOf(from, to, term)) == nil {
				last = to
			}
			if _, err := terms(log, last); err != nil {
				t.Fatalf("of %d entries one is missing: %v", last, err)
			}
		}
		under.fails = func() bool { return false }
		from := rapid.Uint64Range(2, last+1).Draw(t, "final")
		if from <= last {
			if err := log.DeleteRange(from, last); err != nil {
				t.Fatal(err)
			}
		}
		if err := log.StoreLogs(entriesOf(from, from, 9)); err != nil {
			t.Fatal(err)
		}
		got, err := terms(log, from)
		if end, _ := log.LastIndex(); err != nil || got[from-1] != 9 || end != from {
			t.Fatalf("terms %v up to %d, want %d with term 9: %v", got, end, from, err)
		}
	})
}

// The beginning of the log goes at once; a cut of the end that nothing was written for is none.
func TestOnlyTheEndWaits(t *testing.T) {
	log := &tailLog{Log: raft.NewInmemStore()}
	for _, err := range []error{
		log.StoreLogs(entriesOf(1, 6, 1)), log.DeleteRange(1, 2), log.DeleteRange(5, 6), log.StoreLogs(nil), log.StoreLogs(entriesOf(7, 7, 2)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var e raft.Log
	for i, there := range map[uint64]bool{2: false, 3: true, 5: true, 6: true, 7: true} {
		if err := log.GetLog(i, &e); (err == nil) != there || err != nil && !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("entry %d: %v", i, err)
		}
	}
}
