package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

// logOf makes a log with some entries, and the term 9, whose file a test then changes.
func logOf(t *testing.T, entries []*raft.Log, change func(conf, logs *bbolt.Bucket) error) string {
	t.Helper()
	dir := t.TempDir()
	l, err := openLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.StoreLogs(entries), l.SetUint64([]byte(keyTerm), 9), l.Close()); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(filepath.Join(dir, logFile), 0o600, &bbolt.Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return change(tx.Bucket([]byte("conf")), tx.Bucket([]byte("logs"))) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAnEntryIsItsOwn: an entry that cannot be read, has a wrong sum, or is stored under another index is damage.
func TestAnEntryIsItsOwn(t *testing.T) {
	key := func(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }
	for name, c := range map[string]struct {
		change func(conf, logs *bbolt.Bucket) error
		says   string
	}{
		"good":       {func(_, _ *bbolt.Bucket) error { return nil }, ""},
		"unreadable": {func(_, logs *bbolt.Bucket) error { return logs.Put(key(4), []byte{0xc1}) }, "entry 4 of the log cannot be read"},
		"elsewhere": {func(_, logs *bbolt.Bucket) error {
			return logs.Put(key(4), bytes.Clone(logs.Get(key(3))))
		}, "entry 4 of the log is another one"},
		"another sum": {func(_, logs *bbolt.Bucket) error {
			return logs.Put(key(2), bytes.Replace(bytes.Clone(logs.Get(key(2))), []byte("second"), []byte("Second"), 1))
		}, "entry 2 of the log has a wrong sum"},
	} {
		entries := []*raft.Log{{Index: 1, Term: 1}, {Index: 2, Term: 1, Data: []byte("second")}, {Index: 3, Term: 2}}
		l, err := openLog(logOf(t, entries, c.change))
		if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = l.Close()
		}
	}
}

// TestALogGetsItsSumsOnce: a crash after some values had theirs leaves the others without, and none gets two.
func TestALogGetsItsSumsOnce(t *testing.T) {
	dir := logOf(t, entriesOf(1, 2, 9), func(conf, _ *bbolt.Bucket) error {
		return errors.Join(conf.Delete([]byte(keySums)), conf.Put([]byte(keyVote), []byte("me")))
	})
	for range 2 {
		l, err := openLog(dir)
		if err != nil {
			t.Fatal(err)
		}
		term, err := l.GetUint64([]byte(keyTerm))
		vote, voteErr := l.Get([]byte(keyVote))
		if term != 9 || string(vote) != "me" || l.from != 3 {
			t.Errorf("term %d, %v; vote %q, %v; sums from %d on", term, err, vote, voteErr, l.from)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
