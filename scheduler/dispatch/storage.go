package dispatch

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/sleep"
	"gantry/scheduler/state"
)

// storagePause is the least time between two times at which is worked out what there is to do for network volumes.
const storagePause = 50 * time.Millisecond

// desk shares out the work for network volumes, and knows what was last heard of them. It begins anew with each time
// of leading.
type desk struct {
	stir chan struct{} // something changed

	mu    sync.Mutex // guards the fields below
	seen  map[fleet.VolumeID]seenVolume
	hosts map[fleet.BackendID]fleet.HostID // that look after backends
}

// seenVolume is what a host with the storage role last said of a volume.
type seenVolume struct {
	measured bool
	used     int64 // bytes
	problem  string
}

func newDesk() *desk {
	d := &desk{stir: make(chan struct{}, 1)}
	d.reset()
	return d
}

// reset forgets everything: another scheduler may have led in between.
func (d *desk) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen, d.hosts = map[fleet.VolumeID]seenVolume{}, map[fleet.BackendID]fleet.HostID{}
	d.poke()
}

// poke has the work shared out anew.
func (d *desk) poke() {
	select {
	case d.stir <- struct{}{}:
	default:
	}
}

// heed takes note of what changed in the state.
func (d *desk) heed(events []state.Event, all bool) {
	if all || slices.ContainsFunc(events, func(e state.Event) bool { return e.Kind == state.KindStorage }) {
		d.poke()
	}
}

// StorageHost returns the connected host that looks after the volumes of a backend; empty: there is none.
func (s *Server) StorageHost(backend fleet.BackendID) fleet.HostID {
	s.desk.mu.Lock()
	id := s.desk.hosts[backend]
	s.desk.mu.Unlock()
	if id == "" || s.session(id) == nil {
		return ""
	}
	return id
}

// SeenVolume returns the bytes that a network volume held when it was measured last, nil when that is not known, and
// why what is to be done for it could not be done so far.
func (s *Server) SeenVolume(id fleet.VolumeID) (used *int64, problem string) {
	s.desk.mu.Lock()
	defer s.desk.mu.Unlock()
	seen := s.desk.seen[id]
	if seen.measured {
		used = &seen.used
	}
	return used, seen.problem
}

// watchStorage keeps hosts told of what there is to do for network volumes, until ctx ends.
func (s *Server) watchStorage(ctx context.Context) {
	for {
		select {
		case <-s.desk.stir:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		if err := s.shareStorage(ctx); err != nil {
			s.Log.Error("share out the work for network volumes", "err", err)
		}
		if sleep.For(ctx, max(storagePause, 8*time.Since(began))) != nil { // of many volumes it takes its time
			return
		}
	}
}

// shareStorage works out what there is to do, and has each host told that is to do another thing than it knows.
func (s *Server) shareStorage(ctx context.Context) error {
	work := storageWork{server: s, hosts: map[fleet.BackendID]fleet.HostID{}, sets: map[fleet.HostID]*link.StorageSet{}}
	var backends []fleet.Backend
	err := s.Store.View(func(v *state.View) error {
		if backends = v.Backends(); len(backends) > 0 {
			work.gather(v, backends)
		}
		s.desk.take(v, work.hosts)
		return nil
	})
	if err != nil {
		return err
	}
	for _, x := range s.standing() {
		x.tellStorage(work.sets[x.host], len(backends) > 0) // comparing large sets takes its time
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range work.lifted {
		if x := s.sessions[l.host]; x != nil && x.welcomed.Load() && s.lead != nil {
			x.note(ctx, []state.VolumeReport{l.report})
		}
	}
	return nil
}

// standing returns the sessions that are welcomed.
func (s *Server) standing() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*session, 0, len(s.sessions))
	for _, x := range s.sessions {
		if x.welcomed.Load() {
			out = append(out, x)
		}
	}
	return out
}

// take keeps who looks after what, and forgets volumes that are no more.
func (d *desk) take(v *state.View, hosts map[fleet.BackendID]fleet.HostID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hosts = hosts
	for id := range d.seen {
		if _, there := v.VolumeRecord(id); !there {
			delete(d.seen, id)
		}
	}
}

// storageWork is what there is to do for network volumes.
type storageWork struct {
	server *Server
	hosts  map[fleet.BackendID]fleet.HostID
	sets   map[fleet.HostID]*link.StorageSet
	lifted []lifted
}

// lifted is a volume that was read-only and need not be any more.
type lifted struct {
	host   fleet.HostID
	report state.VolumeReport
}

// gather works out who does what.
func (w *storageWork) gather(v *state.View, backends []fleet.Backend) {
	var able []fleet.Host // by id
	for _, id := range v.HostsWith(fleet.RoleStorage) {
		if host, ok := v.Host(id); ok && w.server.session(id) != nil {
			able = append(able, host)
		}
	}
	for i := range backends {
		b := &backends[i]
		at := slices.IndexFunc(able, func(h fleet.Host) bool { return state.LooksAfter(&h, b) })
		if at < 0 {
			continue
		}
		opened := w.server.Backends.Open(b, true)
		if opened == nil {
			continue
		}
		host := able[at].ID
		w.hosts[b.ID] = host
		if w.sets[host] == nil {
			w.sets[host] = &link.StorageSet{}
		}
		w.sets[host].Roots = append(w.sets[host].Roots, &link.StorageRoot{
			Backend: opened, OwnDir: b.StoragePath, Volumes: w.volumes(v, b, host), Fresh: !b.Used,
		})
	}
}

// volumes is what there is to do for the volumes of a backend. What a pod may still have is not removed.
func (w *storageWork) volumes(v *state.View, b *fleet.Backend, host fleet.HostID) (out []*link.StorageVolume) {
	since := v.Unsettled(b.DataCenter)
	for _, volume := range v.StorageWork(b.ID) {
		gone := volume.State == fleet.VolumeDeleting
		if gone && (v.VolumeHeld(volume.Account, volume.ID) || volume.CreatedAt.Before(since)) {
			continue
		}
		out = append(out, &link.StorageVolume{
			VolumeId: string(volume.ID), Dir: volume.Dir, IdBase: volume.IDBase, SizeGb: int64(volume.SizeGB),
			Gone: gone, Measure: b.Measured() && volume.State == fleet.VolumeReady,
		})
		if used, _ := w.server.SeenVolume(volume.ID); used != nil && volume.ReadOnly && !gone {
			// It may have grown beyond what it held when it was measured last.
			if r := readOnly(&volume, b, *used); r != nil {
				w.lifted = append(w.lifted, lifted{host, state.VolumeReport{Volume: volume.ID, ReadOnly: r}})
			}
		}
	}
	return out
}

// noStorage is the set of a host that has nothing to do for network volumes. It is for all sessions and never changed.
var noStorage = &link.StorageSet{}

// tellStorage has the host told of a set, unless it knows it; nil: it has nothing to do. Where there are backends, it
// is told that too: it may remember a set of an earlier session.
func (x *session) tellStorage(set *link.StorageSet, backends bool) {
	old := x.storage.Load()
	if set == nil {
		if old == nil && !backends {
			return
		}
		set = noStorage
	}
	if old == set || old != nil && proto.Equal(old, set) {
		return
	}
	x.storage.Store(set)
	x.poke()
}
