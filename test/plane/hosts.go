package plane

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/scheduler"
)

var _ scheduler.Hosts = (*hosts)(nil)

// hosts are the hosts' side of the sessions, as the test plays it.
type hosts struct {
	mu       sync.Mutex
	live     map[fleet.PodID]fleet.Live
	lines    map[fleet.PodID][]fleet.LogLine
	runs     map[fleet.PodID][]int // where each run of a container begins in lines
	broken   map[fleet.PodID]bool
	ports    map[target]string // address behind a pod's port
	files    map[fleet.PodID]map[string]string
	lost     map[fleet.HostID]bool
	storage  map[fleet.BackendID]fleet.HostID
	volumes  map[fleet.VolumeID]measured
	networks map[fleet.HostID]fleet.HostNetwork
	mute     map[fleet.PodID]string // why they answer no probe
	fetched  []string               // images that they were asked to get
	open     int
	changed  chan struct{} // closed and replaced at every change
}

type target struct {
	pod  fleet.PodID
	port int
}

func newHosts() *hosts {
	return &hosts{
		live: map[fleet.PodID]fleet.Live{}, lines: map[fleet.PodID][]fleet.LogLine{}, runs: map[fleet.PodID][]int{}, broken: map[fleet.PodID]bool{},
		ports: map[target]string{}, files: map[fleet.PodID]map[string]string{}, lost: map[fleet.HostID]bool{},
		storage: map[fleet.BackendID]fleet.HostID{}, volumes: map[fleet.VolumeID]measured{},
		networks: map[fleet.HostID]fleet.HostNetwork{}, mute: map[fleet.PodID]string{}, changed: make(chan struct{}),
	}
}

// change runs fn under the lock and wakes those who follow.
func (h *hosts) change(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn()
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hosts) setLost(id fleet.HostID, lost bool) { h.change(func() { h.lost[id] = lost }) }

func (h *hosts) setLive(id fleet.PodID, live fleet.Live) { h.change(func() { h.live[id] = live }) }

func (h *hosts) breakLog(id fleet.PodID) { h.change(func() { h.broken[id] = true }) }

func (h *hosts) serve(id fleet.PodID, port int, addr string) {
	h.change(func() { h.ports[target{id, port}] = addr })
}

func (h *hosts) log(id fleet.PodID, source, line string, now time.Time) {
	h.change(func() {
		n := len(h.lines[id])
		at := now.Add(time.Duration(n) * time.Millisecond)
		h.lines[id] = append(h.lines[id], fleet.LogLine{
			ID: fmt.Sprintf("%s/%d", at.Format("2006-01-02T15:04:05.000Z"), n+1), Source: source, Line: line, At: at,
		})
	})
}

func errLost() error { return fleet.Unavailable("the pod's host cannot be reached", nil) }

// reach fails when the host's session is lost. The caller does not hold mu.
func (h *hosts) reach(host fleet.HostID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost[host] {
		return errLost()
	}
	return nil
}

// Live returns what SetLive said.
func (h *hosts) Live(host fleet.HostID, pod fleet.PodID) *fleet.Live {
	h.mu.Lock()
	defer h.mu.Unlock()
	live, ok := h.live[pod]
	if !ok || h.lost[host] {
		return nil
	}
	live.GPUs = slices.Clone(live.GPUs)
	return &live
}

// Logs sends the lines that Log wrote.
func (h *hosts) Logs(ctx context.Context, host fleet.HostID, pod fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error {
	if q.Previous {
		return h.previous(pod, q, sink)
	}
	h.mu.Lock()
	next := first(h.lines[pod], q)
	h.mu.Unlock()
	for {
		h.mu.Lock()
		lines, changed, failed := slices.Clone(h.lines[pod][next:]), h.changed, h.broken[pod]
		lost := h.lost[host]
		h.mu.Unlock()
		if lost {
			return errLost()
		}
		next += len(lines)
		for _, l := range lines {
			if q.Source != "" && q.Source != l.Source {
				continue
			}
			if err := sink(l); err != nil {
				return err
			}
		}
		if failed {
			return fleet.Unavailable("the pod's host was lost while its log was read", nil)
		}
		if !q.Follow {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// previous sends the lines between the last two calls of BeginRun.
func (h *hosts) previous(pod fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error {
	h.mu.Lock()
	runs := h.runs[pod]
	if len(runs) < 2 {
		h.mu.Unlock()
		return fleet.NotAllowed("the pod's host has no log of an earlier run of its container")
	}
	lines := slices.Clone(h.lines[pod][runs[len(runs)-2]:runs[len(runs)-1]])
	h.mu.Unlock()
	for _, l := range lines[max(0, len(lines)-q.Tail):] {
		if q.Source == "" || q.Source == l.Source {
			if err := sink(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// first returns the index of the first line that q asks for.
func first(lines []fleet.LogLine, q fleet.LogQuery) int {
	switch {
	case q.After != "":
		return slices.IndexFunc(lines, func(l fleet.LogLine) bool { return l.ID == q.After }) + 1
	case !q.Since.IsZero():
		if i := slices.IndexFunc(lines, func(l fleet.LogLine) bool { return !l.At.Before(q.Since) }); i >= 0 {
			return i
		}
		return len(lines)
	}
	return max(0, len(lines)-q.Tail)
}

// OpenPort connects to what Serve put there.
func (h *hosts) OpenPort(ctx context.Context, host fleet.HostID, pod fleet.PodID, port int) (fleet.Stream, error) {
	if err := h.reach(host); err != nil {
		return nil, err
	}
	h.mu.Lock()
	addr := h.ports[target{pod, port}]
	h.mu.Unlock()
	if addr == "" {
		return nil, fleet.Unavailable(fleet.NothingListens, nil)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fleet.Unavailable(fleet.NothingListens, err)
	}
	return conn.(*net.TCPConn), nil
}
