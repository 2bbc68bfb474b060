package state

import (
	"cmp"
	"io"

	"gantry/scheduler/entry"
	"gantry/scheduler/state/table"
)

// Options configures a Store.
type Options struct {
	BootID  string // these three as table.Options has them
	Events  int
	MapSize int
	// Level is the newest feature level that is understood; 0: Level.
	Level uint64
}

// Store is the state machine. Views, events and Wait may be used from any number of goroutines,
// beside one caller of Apply, Snapshot and Restore.
type Store struct {
	*table.Store[*tables]
	codec *codec
}

// Open opens the state in the file at path, or makes an empty one; see table.Open.
func Open(path string, opts Options) (*Store, error) {
	c, err := wire()
	if err != nil {
		return nil, err
	}
	level := cmp.Or(opts.Level, Level)
	s, err := table.Open(path, table.Options{BootID: opts.BootID, Events: opts.Events, MapSize: opts.MapSize}, c.Encoding, func() *tables { return newTables(level) })
	if err != nil {
		return nil, err
	}
	return &Store{s, c}, nil
}

// Apply decides the commands of a batch of entries; see table.Store.
func (s *Store) Apply(entries []entry.Entry) ([][]entry.Result, error) {
	return s.Store.Apply(entries, func(tb *tables, batch *table.Txn) func(entry.Entry) ([]entry.Result, error) {
		t := newTxn(tb, batch)
		return func(e entry.Entry) ([]entry.Result, error) {
			cmds, err := s.codec.Decode(e.Data)
			if err != nil {
				return nil, err
			}
			return t.run(cmds), nil
		}
	})
}

// Snapshot is all of the state at an index.
type Snapshot = table.Snapshot

// SnapshotIndex reads the index of the snapshot that r begins with. It checks nothing else.
func SnapshotIndex(r io.Reader) (uint64, error) { return table.SnapshotIndex(r) }
