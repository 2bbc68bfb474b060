package replica

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"gantry/scheduler/state"
)

func TestTheSizeOfTheLogIsKnown(t *testing.T) {
	s := newLogSize(1000)
	store := func(from, to uint64, bytes int) {
		for i := from; i <= to; i++ {
			s.stored([]*raft.Log{{Index: i, Data: make([]byte, bytes-64)}})
		}
	}
	due := func() bool {
		select {
		case <-s.due:
			return true
		default:
			return false
		}
	}
	for _, step := range []struct {
		name     string
		do       func()
		total    int64
		grown    int64
		trailing uint64 // of at most 8
		due      bool
	}{
		{"empty", func() {}, 0, 0, 1, false},
		{"ten", func() { store(1, 10, 100) }, 1000, 1000, 8, false},
		{"too many", func() { store(11, 11, 100) }, 1100, 1100, 8, true},
		{"a snapshot", func() { s.snapshotted(11); store(12, 12, 100) }, 1200, 100, 8, false},
		{"the first go", func() { s.deleted(1, 7) }, 500, 100, 5, false},
		{"large ones", func() { store(13, 14, 450) }, 1400, 1000, 3, false},
		{"the last go", func() { s.deleted(14, 14) }, 950, 550, 6, false},
		{"another in its place", func() { store(14, 14, 2000) }, 2950, 2550, 1, true},
		{"all go", func() { s.deleted(1, 100) }, 0, 0, 1, false},
		{"after a gap", func() { s.snapshotted(100); store(101, 103, 100) }, 300, 300, 3, false},
		{"an older snapshot", func() { s.snapshotted(50); store(104, 104, 900) }, 1200, 1200, 2, true},
	} {
		step.do()
		total, grown, trailing, is := s.total(), s.grown(), s.trailing(8), due()
		if total != step.total || grown != step.grown || trailing != step.trailing || is != step.due {
			t.Errorf("%s: %d bytes, %d since the snapshot, %d entries may stay, due: %v", step.name, total, grown, trailing, is)
		}
	}
}

// TestAsManyBytesStayAsMay, to the last one.
func TestAsManyBytesStayAsMay(t *testing.T) {
	for most, want := range map[int64]uint64{59: 1, 60: 1, 119: 1, 120: 2, 180: 3, 1000: 3} {
		s := newLogSize(most)
		s.found([]uint64{10, 11, 12}, []int64{60, 60, 60}, 0)
		if got := s.trailing(8); got != want {
			t.Errorf("%d entries take %d bytes", got, most)
		}
	}
}

// Entries that are few and large do not fill the disk before they are many: snapshots are taken by bytes, and as many bytes stay.
func TestTheLogIsBoundedInBytes(t *testing.T) {
	const most = 256 << 10
	var said words
	conf := func(c *Config) {
		c.SnapshotBytes, c.SnapshotThreshold, c.TrailingLogs = most, 1_000_000, 1_000_000
		c.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	m := one(t, conf)
	n := 0
	large := func() int64 {
		var cmds []state.Command
		for range 500 {
			cmds = append(cmds, account(n))
			n++
		}
		if _, err := m.Propose(within(t), cmds...); err != nil {
			t.Fatal(err)
		}
		return m.size.total()
	}
	one := large()
	for m.size.total() < most/2 {
		large()
	}
	before, _ := os.Stat(filepath.Join(m.cfg.Dir, logFile))
	for range int(6 * most / one) {
		large()
		eventually(t, fmt.Sprintf("%d bytes of log are cut", m.size.total()), func() bool { return m.size.total() <= 2*most+2*one })
	}
	if first, err := m.logs.FirstIndex(); err != nil || first < 3 {
		t.Errorf("the log begins at %d: %v", first, err)
	}
	after, err := os.Stat(filepath.Join(m.cfg.Dir, logFile))
	if err != nil || after.Size() > before.Size()+32*most {
		t.Errorf("the file of the log grew from %d to %d bytes", before.Size(), after.Size())
	}
	if got := m.raft.ReloadableConfig().TrailingLogs; got != 1_000_000 && len(m.size.due) == 0 {
		eventually(t, "the setting is as before", func() bool { return m.raft.ReloadableConfig().TrailingLogs == 1_000_000 })
	}
	have, want := m.accounts(), m.hash(t)
	m.stop(t)
	if strings.Contains(said.all(), "too long") {
		t.Errorf("said %s", said.all())
	}
	again := start(t, m.cfg.Dir, "a", "127.0.0.1:0", conf)
	again.ready(t)
	if have != n || again.accounts() != n || again.hash(t) != want {
		t.Errorf("%d accounts, %d after a restart, of %d", have, again.accounts(), n)
	}
	if got := again.LogBytes(); got > most+2*one {
		t.Errorf("after a restart there are %d bytes since the newest snapshot", got)
	}
	if size := again.size.total(); size > 2*most+2*one || size == 0 {
		t.Errorf("after a restart the log has %d bytes", size)
	}
}
