package dataconn

import (
	"errors"
	"sync"

	"gantry/fleet"
)

// windowsMost is how many bytes windows of all streams may have grown by. Each begins with 256 KiB, which the bounds of requests bound.
const windowsMost = 256 << 20

var errNoWindow = errors.New("the windows of streams are as large as they may be")

// windows bounds by how much the windows of streams grow, which is what hosts may have sent that nobody has read. A stream whose window
// may not grow goes on with the one that it has. One host gets no more than what is free then, so half of it at most: pods of one
// host, whoever reads from them slowly, leave room for others.
type windows struct {
	most int

	mu   sync.Mutex // guards the fields below
	sum  int
	host map[fleet.HostID]int
}

func newWindows(most int) *windows { return &windows{most: most, host: map[fleet.HostID]int{}} }

// add changes what a host has by size bytes; it reports false when it may not have more.
func (w *windows) add(host fleet.HostID, size int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if size > 0 && w.host[host]+size > w.most-w.sum-size {
		return false
	}
	w.sum += size
	if w.host[host] += size; w.host[host] == 0 {
		delete(w.host, host)
	}
	return true
}

// span implements agentrpc.Window for one stream, which calls it from one goroutine at a time.
type span struct {
	windows *windows
	host    fleet.HostID
	begun   bool
	grown   int
}

// ReserveMemory implements agentrpc.Window. The first is that of the stream's beginning.
func (s *span) ReserveMemory(size int, _ uint8) error {
	switch {
	case !s.begun:
		s.begun = true
	case !s.windows.add(s.host, size):
		return errNoWindow
	default:
		s.grown += size
	}
	return nil
}

// ReleaseMemory implements agentrpc.Window.
func (s *span) ReleaseMemory(size int) {
	size = min(size, s.grown)
	s.grown -= size
	s.windows.add(s.host, -size)
}

// Done implements agentrpc.Window.
func (s *span) Done() { s.ReleaseMemory(s.grown) }
