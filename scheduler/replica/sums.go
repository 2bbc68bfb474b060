package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"gantry/internal/boltfile"
)

// ErrDamaged is matched by the error of Open when this member's data is damaged or incomplete, so that it has
// to be filled anew from the other members or from a snapshot.
var ErrDamaged = errors.New("this member's copy is damaged: run gantry-scheduler rebuild, or restore a snapshot with gantry snapshot restore")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w; %w", fmt.Errorf(format, args...), ErrDamaged)
}

// sumSize is how many bytes a sum takes.
const sumSize = crc32.Size

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// keySums holds the index from which on every entry has a sum. Where it is, every other key has one, too.
const keySums = "GantrySums"

// sumLog is the log with a sum behind the extensions of every entry and behind every value of the stable
// store: bbolt sums none of its pages but the two roots.
type sumLog struct {
	*raftboltdb.BoltStore
	from  uint64   // entries before it may have been written without a sum
	found []uint64 // the entries that were there when it was opened
	sizes []int64  // of those, see entrySize
}

var _ Log = (*sumLog)(nil)

// openLog opens the log in dir, checks its file and reads every entry once.
func openLog(dir string) (*sumLog, error) {
	path := filepath.Join(dir, logFile)
	kept, err := checkLogFile(path)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	store, err := recovered(func() (*raftboltdb.BoltStore, error) {
		return raftboltdb.New(raftboltdb.Options{
			Path:        path,
			BoltOptions: &bbolt.Options{Timeout: time.Second, FreelistType: bbolt.FreelistMapType},
		})
	})
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l := &sumLog{BoltStore: store, found: kept.indexes}
	_, err = recovered(func() (struct{}, error) {
		return struct{}{}, errors.Join(l.checkKeys(kept), l.checkEntries(kept))
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open log: %w", err), store.Close())
	}
	return l, nil
}

// boltContent is what the log's file holds, but for the entries' bytes.
type boltContent struct {
	conf    map[string][]byte
	indexes []uint64
}

// readBolt reads the log's file.
func readBolt(f *os.File) (boltContent, error) {
	out := boltContent{conf: map[string][]byte{}}
	err := boltfile.Read(f, []string{"conf", "logs"}, func(bucket string, key, value []byte) error {
		switch {
		case bucket == "conf":
			out.conf[string(key)] = bytes.Clone(value)
		case len(key) != 8:
			return fmt.Errorf("%w (a key is of another kind)", boltfile.ErrDamaged)
		default:
			out.indexes = append(out.indexes, binary.BigEndian.Uint64(key))
		}
		return nil
	})
	return out, err
}

// checkLogFile checks the structure of the file while nobody else has it open.
func checkLogFile(path string) (boltContent, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return boltContent{}, nil
	}
	if err != nil {
		return boltContent{}, err
	}
	defer func() { _ = f.Close() }() // which also lets the lock go
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		return boltContent{}, fmt.Errorf("%s is in use by another process: %w", path, err)
	}
	c, err := readBolt(f)
	if err != nil {
		return c, damaged("%s: %w", filepath.Base(path), err)
	}
	return c, nil
}

// checkKeys checks the stable store. A log of before there were sums gets them.
func (l *sumLog) checkKeys(kept boltContent) error {
	for key := range kept.conf {
		switch key {
		case keyTerm, keyVoteTerm, keyVote, keySums:
		default:
			return damaged("%s holds an unknown key", logFile)
		}
	}
	if _, ok := kept.conf[keySums]; !ok {
		return l.beginSums(kept)
	}
	for key, value := range kept.conf {
		value, ok := unsum([]byte(key), value)
		if !ok {
			return damaged("the value of %s in %s has a wrong sum", key, logFile)
		}
		if key == keySums {
			if len(value) != 8 {
				return damaged("the value of %s in %s is damaged", key, logFile)
			}
			l.from = binary.BigEndian.Uint64(value)
		}
	}
	if _, ok := kept.conf[keyTerm]; !ok && len(kept.indexes) > 0 {
		return damaged("%s holds entries but no term", logFile)
	}
	return nil
}

// beginSums gives a log that has no sums yet what it needs; doing it again after a crash does no harm.
func (l *sumLog) beginSums(kept boltContent) error {
	for key, value := range kept.conf {
		if _, ok := unsum([]byte(key), value); ok {
			continue
		}
		if err := l.Set([]byte(key), value); err != nil {
			return err
		}
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	l.from = last + 1
	return l.SetUint64([]byte(keySums), l.from)
}

// checkEntries reads every entry.
func (l *sumLog) checkEntries(kept boltContent) error {
	for _, index := range kept.indexes {
		var entry raft.Log
		if err := l.GetLog(index, &entry); err != nil {
			return err
		}
		l.sizes = append(l.sizes, entrySize(&entry))
	}
	return nil
}

// entrySum sums what Raft and the state machine use of an entry.
func entrySum(e *raft.Log, extensions []byte) []byte {
	var head [25]byte
	binary.BigEndian.PutUint64(head[:], e.Index)
	binary.BigEndian.PutUint64(head[8:], e.Term)
	binary.BigEndian.PutUint64(head[16:], uint64(len(e.Data)))
	head[24] = byte(e.Type)
	sum := crc32.Update(0, castagnoli, head[:])
	sum = crc32.Update(sum, castagnoli, e.Data)
	sum = crc32.Update(sum, castagnoli, extensions)
	return binary.BigEndian.AppendUint32(nil, sum)
}

// StoreLog implements raft.LogStore.
func (l *sumLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// StoreLogs implements raft.LogStore. It leaves what it is given as it is: Raft sends it to others.
func (l *sumLog) StoreLogs(entries []*raft.Log) error {
	out := make([]*raft.Log, len(entries))
	for i, e := range entries {
		summed := *e
		summed.Extensions = append(append(make([]byte, 0, len(e.Extensions)+sumSize), e.Extensions...), entrySum(e, e.Extensions)...)
		out[i] = &summed
	}
	return l.BoltStore.StoreLogs(out)
}

// GetLog implements raft.LogStore.
func (l *sumLog) GetLog(index uint64, e *raft.Log) error {
	if err := l.BoltStore.GetLog(index, e); err != nil {
		if errors.Is(err, raft.ErrLogNotFound) {
			return err
		}
		return damaged("entry %d of the log cannot be read: %w", index, err)
	}
	if e.Index != index {
		return damaged("entry %d of the log is another one", index)
	}
	cut := len(e.Extensions) - sumSize
	if cut < 0 && index < l.from {
		return nil
	}
	if cut < 0 || string(entrySum(e, e.Extensions[:cut])) != string(e.Extensions[cut:]) {
		return damaged("entry %d of the log has a wrong sum", index)
	}
	e.Extensions = e.Extensions[:cut:cut]
	if cut == 0 {
		e.Extensions = nil
	}
	return nil
}

// valueSum sums a key with its value.
func valueSum(key, value []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value))
}

// unsum takes the sum off a value; false when it is wrong.
func unsum(key, value []byte) ([]byte, bool) {
	cut := len(value) - sumSize
	if cut < 0 {
		return nil, false
	}
	return value[:cut], string(valueSum(key, value[:cut])) == string(value[cut:])
}

// Set implements raft.StableStore.
func (l *sumLog) Set(key, value []byte) error {
	return l.BoltStore.Set(key, append(append(make([]byte, 0, len(value)+sumSize), value...), valueSum(key, value)...))
}

// Get implements raft.StableStore.
func (l *sumLog) Get(key []byte) ([]byte, error) {
	value, err := l.BoltStore.Get(key)
	if err != nil {
		return nil, err
	}
	value, ok := unsum(key, value)
	if !ok {
		return nil, damaged("the value of %s in %s has a wrong sum", key, logFile)
	}
	return value, nil
}

// SetUint64 implements raft.StableStore.
func (l *sumLog) SetUint64(key []byte, value uint64) error {
	return l.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// GetUint64 implements raft.StableStore.
func (l *sumLog) GetUint64(key []byte) (uint64, error) {
	value, err := l.Get(key)
	if err != nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, damaged("the value of %s in %s is not a number", key, logFile)
	}
	return binary.BigEndian.Uint64(value), nil
}
