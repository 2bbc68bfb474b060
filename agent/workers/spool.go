package workers

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/atomicfile"
)

const maxFiles = 256 // of one worker

// spool is the folder of results that no scheduler has committed: one file for a job, in a folder for its pod. Its size is bounded as
// the bodies in memory are.
type spool struct {
	dir string
	log *slog.Logger

	mu    sync.Mutex // comes after those of the gate and of reports
	pods  map[fleet.PodID]*stored
	bytes int64
}

// stored is how much of one worker is on disk.
type stored struct {
	files int
	bytes int64
}

// header is the first line of a file; the body follows.
type header struct {
	Pod     fleet.PodID `json:"pod"`
	Job     string      `json:"job"`
	Attempt uint32      `json:"attempt"`
	Kind    int32       `json:"kind"`
	Reason  string      `json:"reason,omitempty"`
	Refresh bool        `json:"refresh,omitempty"`
}

func newSpool(dir string, log *slog.Logger) *spool {
	return &spool{dir: dir, log: log, pods: map[fleet.PodID]*stored{}}
}

var errSpoolFull = errors.New("the worker's or the host's results that wait for a scheduler take too much room")

// count adds to what is on disk, within the bounds.
func (s *spool) count(id fleet.PodID, files int, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[id]
	if p == nil {
		p = &stored{}
		s.pods[id] = p
	}
	if files > 0 && (p.files >= maxFiles || p.bytes+size > workerBytes || s.bytes+size > hostBytes) {
		return errSpoolFull
	}
	p.files += files
	p.bytes += size
	s.bytes += size
	if p.files == 0 {
		delete(s.pods, id)
	}
	return nil
}

// write puts a report on disk, and its body out of memory. A settled one is not written.
func (s *spool) write(r *report, h header) error {
	r.disk.Lock()
	defer r.disk.Unlock()
	if r.settled || r.file != "" {
		return nil
	}
	head, err := json.Marshal(h)
	if err != nil {
		return err
	}
	text := append(append(head, '\n'), r.body...)
	if err := s.count(r.Pod, 1, int64(len(text))); err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(r.Job))
	file := filepath.Join(s.dir, string(r.Pod), hex.EncodeToString(sum[:]))
	if err = os.MkdirAll(filepath.Dir(file), 0o700); err == nil {
		err = atomicfile.Write(file, text, 0o600)
	}
	if err == nil {
		err = atomicfile.SyncDir(s.dir)
	}
	if err != nil {
		_ = s.count(r.Pod, -1, -int64(len(text))) // never refused
		return err
	}
	r.file, r.size, r.body = file, int64(len(text)), nil
	return nil
}

// body returns a report's body, from disk if it is there.
func (s *spool) body(r *report) ([]byte, error) {
	r.disk.Lock()
	defer r.disk.Unlock()
	if r.file == "" || r.settled {
		return r.body, nil
	}
	_, body, err := readFile(r.file)
	return body, err
}

// remove removes a report's file, also one that is being written.
func (s *spool) remove(r *report) {
	r.disk.Lock()
	defer r.disk.Unlock()
	r.settled = true
	if r.file == "" {
		return
	}
	if err := os.Remove(r.file); err != nil {
		s.log.Warn("remove a committed result", "err", err)
	}
	_ = s.count(r.Pod, -1, -r.size) // never refused
	_ = os.Remove(filepath.Dir(r.file))
}

// forget removes what is left of a pod.
func (s *spool) forget(id fleet.PodID) {
	if !fleet.ValidID(string(id)) {
		return
	}
	if err := os.RemoveAll(filepath.Join(s.dir, string(id))); err != nil {
		s.log.Warn("remove a worker's results", "pod", id, "err", err)
	}
}

// load returns the reports that an earlier agent kept. What cannot be read is removed.
func (s *spool) load() (out []*report) {
	files, _ := filepath.Glob(filepath.Join(s.dir, "*", "*")) // the pattern is right
	for _, file := range files {
		head, body, err := readFile(file)
		if err == nil {
			err = s.count(head.Pod, 1, int64(len(body)))
		}
		if err != nil {
			s.log.Error("read a worker's result that was kept", "file", file, "err", err)
			_ = os.Remove(file)
			continue
		}
		out = append(out, &report{
			header: head, kind: agentrpc.JobReport_Kind(head.Kind), kept: make(chan struct{}), file: file, size: int64(len(body)),
		})
	}
	return out
}

// readFile reads a file of the spool.
func readFile(file string) (head header, body []byte, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return head, nil, err
	}
	return parse(text)
}

// parse splits a file of the spool.
func parse(text []byte) (head header, body []byte, err error) {
	line, body, whole := bytes.Cut(text, []byte("\n"))
	if !whole {
		return head, nil, errors.New("the file is cut short")
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return head, nil, fmt.Errorf("its header: %w", err)
	}
	switch agentrpc.JobReport_Kind(head.Kind) {
	case agentrpc.JobReport_DONE, agentrpc.JobReport_FAILED, agentrpc.JobReport_DISCARDED:
	default:
		return head, nil, fmt.Errorf("its header: kind %d is no result", head.Kind)
	}
	if head.Pod == "" || head.Job == "" {
		return head, nil, errors.New("its header names no pod or no job")
	}
	return head, body, nil
}
