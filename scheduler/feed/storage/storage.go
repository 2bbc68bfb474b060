// Package storage has hosts with the role storage look after network volumes: it shares out what there is to do for them among the
// hosts that are connected, hears what they say of it, and has recorded what the state is to know. Nothing else of it is durable.
package storage

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
	"gantry/scheduler/feed"
	"gantry/scheduler/feed/volumes"
	"gantry/scheduler/state"
)

// storagePause is the least time between two times at which is worked out what there is to do for network volumes.
const storagePause = 50 * time.Millisecond

// Storage is the feed of the work for network volumes, and knows what was last heard of them. It begins anew with each time
// of leading.
type Storage struct {
	store    *state.Store
	backends volumes.Backends
	log      *slog.Logger
	stir     chan struct{} // something changed

	mu    sync.Mutex // guards the fields below; it may be taken within a view, and no view begins under it
	lines map[fleet.HostID]*line
	seen  map[fleet.VolumeID]seenVolume
	hosts map[fleet.BackendID]fleet.HostID // that look after backends
}

// seenVolume is what a host with the storage role last said of a volume.
type seenVolume struct {
	measured bool
	used     int64 // bytes
	problem  string
}

// New returns a feed that has shared out nothing.
func New(store *state.Store, backends volumes.Backends, log *slog.Logger) *Storage {
	return &Storage{
		store: store, backends: backends, log: log, stir: make(chan struct{}, 1), lines: map[fleet.HostID]*line{},
		seen: map[fleet.VolumeID]seenVolume{}, hosts: map[fleet.BackendID]fleet.HostID{},
	}
}

// Learn implements feed.Feed.
func (s *Storage) Learn(*state.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen, s.hosts = map[fleet.VolumeID]seenVolume{}, map[fleet.BackendID]fleet.HostID{}
	s.poke()
}

// poke has the work shared out anew.
func (s *Storage) poke() {
	select {
	case s.stir <- struct{}{}:
	default:
	}
}

// Heed implements feed.Feed.
func (s *Storage) Heed(events []state.Event, all bool) {
	if all || slices.ContainsFunc(events, func(e state.Event) bool { return e.Kind == state.KindStorage }) {
		s.poke()
	}
}

// Begin implements feed.Feed.
func (s *Storage) Begin(session feed.Session) feed.Line {
	l := &line{of: s, session: session}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines[session.Host()] = l
	s.poke()
	return l
}

func (s *Storage) leave(l *line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := l.session.Host(); s.lines[id] == l {
		delete(s.lines, id)
	}
	s.poke()
}

// StorageHost returns the connected host that looks after the volumes of a backend; empty: there is none.
func (s *Storage) StorageHost(backend fleet.BackendID) fleet.HostID {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := s.hosts[backend]; s.lines[id] != nil {
		return id
	}
	return ""
}

// SeenVolume returns the bytes that a network volume held when it was measured last, nil when that is not known, and
// why what is to be done for it could not be done so far.
func (s *Storage) SeenVolume(id fleet.VolumeID) (used *int64, problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen[id]
	if seen.measured {
		used = &seen.used
	}
	return used, seen.problem
}

// Run implements feed.Feed: it keeps hosts told of what there is to do.
func (s *Storage) Run(ctx context.Context) {
	for {
		select {
		case <-s.stir:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		if err := s.share(ctx); err != nil {
			s.log.Error("share out the work for network volumes", "err", err)
		}
		if sleep.For(ctx, max(storagePause, 8*time.Since(began))) != nil { // of many volumes it takes its time
			return
		}
	}
}

// share works out what there is to do, and has each host told that is to do another thing than it knows.
func (s *Storage) share(ctx context.Context) error {
	w := work{feed: s, hosts: map[fleet.BackendID]fleet.HostID{}, sets: map[fleet.HostID]*agentrpc.StorageSet{}}
	var backends []fleet.Backend
	err := s.store.View(func(v *state.View) error {
		if backends = v.Backends(); len(backends) > 0 {
			w.gather(v, backends)
		}
		s.take(v, w.hosts)
		return nil
	})
	if err != nil {
		return err
	}
	for _, l := range s.open() {
		l.tell(w.sets[l.session.Host()], len(backends) > 0) // comparing large sets takes its time
	}
	for _, up := range w.lifted {
		if l := s.line(up.host); l != nil {
			l.note(ctx, []state.VolumeReport{up.report})
		}
	}
	return nil
}

func (s *Storage) line(host fleet.HostID) *line {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines[host]
}

// open returns the lines of hosts that are connected.
func (s *Storage) open() []*line {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.lines))
}

// take keeps who looks after what, and forgets volumes that are no more.
func (s *Storage) take(v *state.View, hosts map[fleet.BackendID]fleet.HostID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts = hosts
	for id := range s.seen {
		if _, there := v.VolumeRecord(id); !there {
			delete(s.seen, id)
		}
	}
}

// work is what there is to do for network volumes.
type work struct {
	feed   *Storage
	hosts  map[fleet.BackendID]fleet.HostID
	sets   map[fleet.HostID]*agentrpc.StorageSet
	lifted []lifted
}

// lifted is a volume that was read-only and need not be any more.
type lifted struct {
	host   fleet.HostID
	report state.VolumeReport
}

// gather works out who does what.
func (w *work) gather(v *state.View, backends []fleet.Backend) {
	var able []fleet.Host // by id
	for _, id := range v.HostsWith(fleet.RoleStorage) {
		if host, ok := v.Host(id); ok && w.feed.line(id) != nil {
			able = append(able, host)
		}
	}
	for i := range backends {
		b := &backends[i]
		at := slices.IndexFunc(able, func(h fleet.Host) bool { return state.LooksAfter(&h, b) })
		if at < 0 {
			continue
		}
		opened := w.feed.backends.Open(b, true)
		if opened == nil {
			continue
		}
		host := able[at].ID
		w.hosts[b.ID] = host
		if w.sets[host] == nil {
			w.sets[host] = &agentrpc.StorageSet{}
		}
		w.sets[host].Roots = append(w.sets[host].Roots, &agentrpc.StorageRoot{
			Backend: opened, OwnDir: b.StoragePath, Volumes: w.volumes(v, b, host), Fresh: !b.Used,
		})
	}
}

// volumes is what there is to do for the volumes of a backend. What a pod may still have is not removed.
func (w *work) volumes(v *state.View, b *fleet.Backend, host fleet.HostID) (out []*agentrpc.StorageVolume) {
	since := v.Unsettled(b.DataCenter)
	for _, volume := range v.StorageWork(b.ID) {
		gone := volume.State == fleet.VolumeDeleting
		if gone && (v.VolumeHeld(volume.Account, volume.ID) || volume.CreatedAt.Before(since)) {
			continue
		}
		out = append(out, &agentrpc.StorageVolume{
			VolumeId: string(volume.ID), Dir: volume.Dir, IdBase: volume.IDBase, SizeGb: int64(volume.SizeGB),
			Gone: gone, Measure: b.Measured() && volume.State == fleet.VolumeReady,
		})
		if used, _ := w.feed.SeenVolume(volume.ID); used != nil && volume.ReadOnly && !gone {
			// It may have grown beyond what it held when it was measured last.
			if r := readOnly(&volume, b, *used); r != nil {
				w.lifted = append(w.lifted, lifted{host, state.VolumeReport{Volume: volume.ID, ReadOnly: r}})
			}
		}
	}
	return out
}

// noStorage is the set of a host that has nothing to do for network volumes. It is for all sessions and never changed.
var noStorage = &agentrpc.StorageSet{}

// line is what a session's host was told of the work, and what is to be recorded of what it says.
type line struct {
	of      *Storage
	session feed.Session
	set     atomic.Pointer[agentrpc.StorageSet] // what the host has to do; nil: it need not be told
	told    *agentrpc.StorageSet                // of Next and Forget
	notes   notes
}

// tell has the host told of a set, unless it knows it; nil: it has nothing to do. Where there are backends, it
// is told that too: it may remember a set of an earlier session.
func (l *line) tell(set *agentrpc.StorageSet, backends bool) {
	old := l.set.Load()
	if set == nil {
		if old == nil && !backends {
			return
		}
		set = noStorage
	}
	if old == set || old != nil && proto.Equal(old, set) {
		return
	}
	l.set.Store(set)
	l.session.Wake()
}

// Next implements feed.Line.
func (l *line) Next(*state.View, *feed.Host) []*agentrpc.Down {
	set := l.set.Load()
	if set == l.told {
		return nil
	}
	l.told = set
	return []*agentrpc.Down{{Kind: &agentrpc.Down_Storage{Storage: set}}}
}

// Forget implements feed.Line. A host that asks for its assignments anew has not forgotten this.
func (l *line) Forget() {}

// End implements feed.Line.
func (l *line) End() { l.of.leave(l) }
