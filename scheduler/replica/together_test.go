package replica

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// indexed is a state machine that is at an index, and whose snapshots say that they are at another one.
type indexed struct {
	Machine
	index, inner uint64
	err          error
}

func (i indexed) Index() uint64                           { return i.index }
func (i indexed) SnapshotIndex(io.Reader) (uint64, error) { return i.inner, i.err }

// snapshotsAt makes a folder with snapshots at some indexes, of which those of torn are damaged.
func snapshotsAt(t *testing.T, torn map[uint64]bool, indexes ...uint64) *snapStore {
	t.Helper()
	snaps, err := openSnapshots(t.TempDir(), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	for _, index := range indexes {
		sink, err := snaps.Create(1, index, 3, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sink.Write([]byte("state")); err != nil || sink.Close() != nil {
			t.Fatal(err)
		}
		if torn[index] {
			if err := os.WriteFile(filepath.Join(snaps.dir, sink.ID(), "state.bin"), []byte("other"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return snaps
}

// TestWhatLiesTogetherLeavesNothingOut: log, snapshots and state are refused if an entry is missing between them, or if
// the state is ahead of both others. The state is not restored from a snapshot that holds no more.
func TestWhatLiesTogetherLeavesNothingOut(t *testing.T) {
	unread := errors.New("unread")
	for name, c := range map[string]struct {
		from, to    uint64 // of the log
		snapshots   []uint64
		torn        uint64
		have, inner uint64
		err         error
		newer       bool
		says        string
	}{
		"nothing":                            {newer: true},
		"a log":                              {from: 1, to: 5, have: 5, newer: true},
		"a state behind its log":             {from: 1, to: 5, have: 3, newer: true},
		"a state ahead of its log":           {from: 1, to: 5, have: 6, says: "the state is at index 6, but the log beside it ends at 5"},
		"a state ahead of its snapshot":      {snapshots: []uint64{10}, have: 11, inner: 10, says: "ends at 10"},
		"a state at its snapshot":            {snapshots: []uint64{10}, have: 10, inner: 10, newer: true},
		"a state behind its snapshot":        {snapshots: []uint64{10}, have: 9, inner: 10},
		"entries of Raft's own before one":   {snapshots: []uint64{10}, have: 9, inner: 9, newer: true},
		"a log behind its snapshot":          {from: 11, to: 12, snapshots: []uint64{10}, have: 12, inner: 10, newer: true},
		"a log that its snapshot holds":      {from: 8, to: 9, snapshots: []uint64{10}, have: 10, inner: 10, newer: true},
		"a gap behind a snapshot":            {from: 12, to: 13, snapshots: []uint64{10}, have: 13, inner: 10, says: "begins at entry 12, but the newest good snapshot ends at 10"},
		"a log without its beginning":        {from: 2, to: 5, have: 5, says: "begins at entry 2"},
		"a torn snapshot that can be spared": {from: 11, to: 20, snapshots: []uint64{10, 20}, torn: 20, have: 20, inner: 10, newer: true},
		"a torn snapshot":                    {from: 11, to: 19, snapshots: []uint64{10, 20}, torn: 20, have: 19, inner: 10, says: "the newest snapshot is damaged"},
		"a snapshot that cannot be read":     {snapshots: []uint64{10}, have: 10, err: unread, says: "unread"},
	} {
		logs := &sumLog{}
		for i := c.from; i <= c.to && i > 0; i++ {
			logs.found = append(logs.found, i)
		}
		snaps := snapshotsAt(t, map[uint64]bool{c.torn: true}, c.snapshots...)
		newer, err := checkTogether(logs, snaps, indexed{index: c.have, inner: c.inner, err: c.err})
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, ErrDamaged) == (c.err != nil) {
				t.Errorf("%s: %v", name, err)
			}
			if left := names(t, snaps.dir); len(left) != len(c.snapshots) {
				t.Errorf("%s: of %v are left %v", name, c.snapshots, left)
			}
			continue
		}
		want := position{}
		if len(c.snapshots) > 0 {
			want = position{c.snapshots[0], 3} // a second one is torn
		}
		if err != nil || newer != c.newer || snaps.newest != want {
			t.Errorf("%s: the state is newer: %v, than %v; %v", name, newer, snaps.newest, err)
		}
		if left := names(t, snaps.dir); len(left) != min(len(c.snapshots), 1) {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

// TestAWriteThatFailsIsTold as what it is, and nothing of it stays.
func TestAWriteThatFailsIsTold(t *testing.T) {
	if err := writeSynced("/dev/full", []byte("x")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("without room: %v", err)
	}
	path := filepath.Join(t.TempDir(), testFile)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	var failed *os.PathError
	if err := writeAndRead(path); !errors.As(err, &failed) || failed.Op != "open" {
		t.Errorf("where a folder is: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// TestAPanicOfTheDatabaseIsDamage, which a caller is told of.
func TestAPanicOfTheDatabaseIsDamage(t *testing.T) {
	if n, err := recovered(func() (int, error) { panic("page 7 is torn") }); n != 0 || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "page 7 is torn") {
		t.Errorf("%d, %v", n, err)
	}
	failed := fmt.Errorf("no room")
	if n, err := recovered(func() (int, error) { return 7, failed }); n != 7 || !errors.Is(err, failed) || errors.Is(err, ErrDamaged) {
		t.Errorf("%d, %v", n, err)
	}
}
