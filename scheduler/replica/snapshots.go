package replica

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"gantry/internal/atomicfile"
)

// Files of a snapshot. Raft sums the state in it, but not the description, where index, term and members are.
const (
	metaFile    = "meta.json"
	metaSumFile = "meta.sum" // of ours; snapshots of before have none
	snapSuffix  = ".tmp"     // Raft did not finish it
)

// snapStore is Raft's store of snapshots with a sum over each description.
type snapStore struct {
	*raft.FileSnapshotStore
	dir     string
	damaged []string // the names of those that check found to be
	newest  position // the newest that was there at the start; zero: there was none
	made    func(position)
}

func openSnapshots(dir string, log hclog.Logger) (*snapStore, error) {
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, log)
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	return &snapStore{FileSnapshotStore: files, dir: filepath.Join(dir, snapshotDir), made: func(position) {}}, nil
}

// Create begins a snapshot.
func (s *snapStore) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.FileSnapshotStore.Create(version, index, term, conf, confIndex, trans)
	if err != nil {
		return nil, err
	}
	return &summedSink{SnapshotSink: sink, dir: filepath.Join(s.dir, sink.ID()), made: func() { s.made(position{index, term}) }}, nil
}

// summedSink adds the description's sum to a snapshot that is complete.
type summedSink struct {
	raft.SnapshotSink
	dir  string
	over bool
	made func()
}

// Cancel throws the snapshot away.
func (s *summedSink) Cancel() error {
	s.over = true
	return s.SnapshotSink.Cancel()
}

// Close makes the snapshot complete; Raft calls it more than once.
func (s *summedSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil || s.over {
		return err
	}
	s.over = true
	meta, err := os.ReadFile(filepath.Join(s.dir, metaFile))
	if err != nil {
		return err
	}
	// A crash leaves the whole sum or none.
	if err = atomicfile.Write(filepath.Join(s.dir, metaSumFile), metaSum(meta), 0o600); err == nil {
		s.made()
	}
	return err
}

func metaSum(meta []byte) []byte {
	return fmt.Appendf(nil, "%08x\n", crc32.Checksum(meta, castagnoli))
}

// check reads every snapshot and remembers the damaged ones. It returns the index of the newest that is
// good, 0 when there is none, and the highest index that a damaged one is named for.
func (s *snapStore) check() (good, lost uint64, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		id := e.Name()
		if !e.IsDir() || strings.HasSuffix(id, snapSuffix) {
			continue
		}
		index, err := s.checkOne(id)
		if err != nil {
			s.damaged = append(s.damaged, id)
			lost = max(lost, index)
			continue
		}
		good = max(good, index)
	}
	return good, lost, nil
}

// drop removes the damaged ones, without which there is everything: Raft would believe their descriptions
// and count them among those that it keeps.
func (s *snapStore) drop() error {
	for _, id := range s.damaged {
		if err := os.RemoveAll(filepath.Join(s.dir, id)); err != nil {
			return err
		}
	}
	return nil
}

// checkOne reads a snapshot and returns its index, also when it is damaged.
func (s *snapStore) checkOne(id string) (index uint64, err error) {
	parts := strings.Split(id, "-") // term, index, time
	if len(parts) != 3 {
		return 0, errors.New("its name is wrong")
	}
	term, err := strconv.ParseUint(parts[0], 10, 64)
	if err != nil {
		return 0, err
	}
	if index, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return 0, err
	}
	meta, err := os.ReadFile(filepath.Join(s.dir, id, metaFile))
	if err != nil {
		return index, err
	}
	sum, err := os.ReadFile(filepath.Join(s.dir, id, metaSumFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return index, err
	}
	if err == nil && !bytes.Equal(sum, metaSum(meta)) {
		return index, errors.New("its description has a wrong sum")
	}
	have, r, err := s.Open(id)
	if err != nil {
		return index, err
	}
	if have.ID != id || have.Index != index || have.Term != term {
		err = errors.New("its description is another one's")
	}
	return index, errors.Join(err, r.Close())
}
