// Package storage is the storage role of a host: it makes, measures and removes network volumes as schedulers ask, and reports
// what became of them. The newest set of orders counts. It is worked on while no session stands, too; what is in folders of this
// host is there again after a restart before any scheduler was heard. Everything on a disk is done in helper processes.
package storage

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"gantry/agent/volumes"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
	"gantry/storage/volume"
)

// Provisioner makes, measures and removes network volumes for a host with the storage role. A call waits no longer than
// its context, and may be repeated: what is done counts as success. Errors with a sentence for the volume's owner are
// *volume.Error. Implementations are safe for concurrent use.
type Provisioner interface {
	// Restore has all volumes there again that the root's own folder has, as after a reboot.
	Restore(ctx context.Context, root Root) error
	// Make makes a volume, or gives it another size.
	Make(ctx context.Context, root Root, v Volume) error
	// Remove removes a volume, slowly; what an ended call has left, the next one removes.
	Remove(ctx context.Context, root Root, v Volume) error
	// Used tells how many bytes a volume holds.
	Used(ctx context.Context, root Root, v Volume) (int64, error)
}

// Root is a backend as a host with the storage role reaches it.
type Root struct {
	Backend volume.Backend // with the user and key that may set quotas
	OwnDir  string         // the root as a folder of this host; empty: the backend is mounted
	Fresh   bool           // nobody ever made a volume there: the backend's marker is written when there is none
}

// Volume is what is to be done for a volume.
type Volume struct {
	ID      fleet.VolumeID
	Dir     string
	IDBase  uint32
	SizeGB  int64
	Gone    bool // it is removed
	Measure bool // it is told again and again how much it holds
}

const (
	makeLimit     = 2 * time.Minute
	removeLimit   = 10 * time.Minute // of one call; removing goes on with the next
	measureLimit  = time.Hour
	measureEvery  = time.Minute
	measureShare  = 10 // part of the time that is spent on measuring at most
	workAgain     = time.Second
	workAgainMost = time.Minute
	// setWithin is how long a session may stand without a word on what is to be done, before it is nothing: the host
	// may have lost its role while it was away.
	setWithin = time.Minute
	// maxStorageReports bounds one message, which becomes one log entry.
	maxStorageReports = 256
)

// The kinds of work as metrics name them.
const (
	workMake    = "make"
	workRemove  = "remove"
	workMeasure = "measure"
)

// Kinds are the kinds of work. Each is done for one volume of a backend at a time, beside the others: removing and measuring take
// long, and nobody who wants a volume waits for them.
func Kinds() []string { return []string{workMake, workRemove, workMeasure} }

// Role does what the scheduler asks of a host with the storage role. The newest set counts; it is worked on also
// while no session stands.
type Role struct {
	ctx     context.Context //nolint:containedctx // of the agent: what works ends with it
	does    Provisioner     // nil: the host does none of it
	count   func(kind string, failed bool)
	log     *slog.Logger
	file    string // of kept
	wake    func() // there is something to tell
	working sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	backends map[fleet.BackendID]*backendWork
	kept     kept
	session  int // number of the session that stands
	heard    int // number of the session that told the newest set
}

// backendWork is the work on one backend.
type backendWork struct {
	root     Root
	volumes  map[fleet.VolumeID]*volumeWork
	restored bool
	cancel   context.CancelFunc
	changed  map[string]chan struct{} // by kind of work
}

// volumeWork is what is to be done for one volume, and what was.
type volumeWork struct {
	order    Volume
	madeGB   int64 // size that it has; 0: not known
	gone     bool
	used     int64
	measured bool
	problem  string
	news     bool // since it was told last
	due      map[string]time.Time
	delay    map[string]time.Duration
}

// Config is what a Role is made from.
type Config struct {
	Does  Provisioner // nil: the host does none of it
	File  string      // what is remembered over restarts
	Count func(kind string, failed bool)
	Wake  func() // is called when Next has something to tell
	Log   *slog.Logger
}

// New makes a Role. What works ends with ctx; Wait waits for it.
func New(ctx context.Context, c Config) *Role {
	s := &Role{
		ctx: ctx, does: c.Does, count: c.Count, log: c.Log, file: c.File, wake: c.Wake, backends: map[fleet.BackendID]*backendWork{},
	}
	var err error
	if s.kept, err = readStorage(c.File); err != nil {
		s.log.Error("the network volumes in folders of this host are not there until a scheduler was heard", "err", err)
	}
	return s
}

// Take is Set of what a session brings.
func (s *Role) Take(_ context.Context, m *agentrpc.Down_Storage) (*agentrpc.Up, error) {
	s.Set(m.Storage) //nolint:contextcheck // what is worked on outlives the session
	return nil, nil
}

// Set takes what is to be done from now on. What is not named any more is left as it is.
func (s *Role) Set(in *agentrpc.StorageSet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heard = s.session; s.ctx.Err() != nil {
		return
	}
	named := map[fleet.BackendID]bool{}
	for _, r := range joinRoots(in.GetRoots()) {
		root := Root{Backend: volumes.DecodeBackend(r.GetBackend()), OwnDir: r.GetOwnDir(), Fresh: r.GetFresh()}
		err := volumes.CheckBackend(root.Backend)
		if err != nil || s.does == nil || root.OwnDir != "" && !volumes.CleanPath(root.OwnDir) {
			s.log.Error("work on a backend of network volumes was refused", "backend", root.Backend.ID, "own_dir", root.OwnDir, "err", err)
			continue
		}
		named[root.Backend.ID] = true
		s.take(root, r.GetVolumes())
	}
	for id, b := range s.backends {
		if !named[id] {
			b.cancel()
			delete(s.backends, id)
		}
	}
	s.remember()
	s.wake()
}

// joinRoots makes one root of those of a backend, which came in parts.
func joinRoots(in []*agentrpc.StorageRoot) (out []*agentrpc.StorageRoot) {
	for _, r := range in {
		if n := len(out); n > 0 && out[n-1].GetBackend().GetId() == r.GetBackend().GetId() {
			out[n-1].Volumes = append(out[n-1].Volumes, r.GetVolumes()...)
			continue
		}
		out = append(out, r)
	}
	return out
}

// take takes what is to be done on one backend. The caller holds mu.
func (s *Role) take(root Root, named []*agentrpc.StorageVolume) {
	b := s.backends[root.Backend.ID]
	if b == nil {
		b = s.begin(root)
	}
	same := sameRoot(b.root, root)
	root.Fresh = root.Fresh && (b.root.Fresh || !same) // the scheduler may not have heard of the first volume yet
	if b.root = root; !same {
		b.restored = false
	}
	next := map[fleet.VolumeID]*volumeWork{}
	for _, v := range named {
		order := Volume{
			ID: fleet.VolumeID(v.GetVolumeId()), Dir: v.GetDir(), IDBase: v.GetIdBase(), SizeGB: v.GetSizeGb(), Gone: v.GetGone(), Measure: v.GetMeasure(),
		}
		if err := volumes.Check(string(order.ID), order.Dir, order.IDBase); err != nil || order.SizeGB <= 0 && !order.Gone {
			s.log.Error("work on a network volume was refused", "volume", order.ID, "size_gb", order.SizeGB, "err", err)
			continue
		}
		w := b.volumes[order.ID]
		if w == nil || w.order.Dir != order.Dir || w.order.IDBase != order.IDBase {
			w = &volumeWork{due: map[string]time.Time{}, delay: map[string]time.Duration{}}
		}
		if w.order != order || !same { // it is tried at once
			clear(w.due)
			clear(w.delay)
		}
		w.order = order
		w.news = w.known() // whoever asks again has not heard it
		next[order.ID] = w
	}
	b.volumes = next
	b.poke()
}

func sameRoot(a, b Root) bool {
	x, y := a.Backend, b.Backend
	return a.OwnDir == b.OwnDir && x.ID == y.ID && x.Kind == y.Kind && x.Server == y.Server && x.Options == y.Options &&
		slices.Equal(x.Monitors, y.Monitors) && x.FileSystem == y.FileSystem && x.User == y.User && x.Key == y.Key &&
		x.Path == y.Path && x.SizedByHost == y.SizedByHost
}

// known reports whether there is anything to tell of the volume.
func (w *volumeWork) known() bool { return w.madeGB > 0 || w.gone || w.measured || w.problem != "" }

// begin starts the work on a backend. The caller holds mu.
func (s *Role) begin(root Root) *backendWork {
	ctx, cancel := context.WithCancel(s.ctx)
	b := &backendWork{root: root, cancel: cancel, changed: map[string]chan struct{}{}}
	for _, kind := range Kinds() {
		b.changed[kind] = make(chan struct{}, 1)
	}
	for _, kind := range Kinds() {
		s.working.Go(func() { s.work(ctx, b, kind) })
	}
	s.backends[root.Backend.ID] = b
	return b
}

// Again has everything tried at once that failed: a backend may answer again.
func (s *Role) Again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.backends {
		for _, w := range b.volumes {
			for kind := range w.delay {
				delete(w.due, kind)
			}
		}
		b.poke()
	}
}

func (b *backendWork) poke() {
	for _, c := range b.changed {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Wait returns when nothing is worked on any more, after the agent's context has ended.
func (s *Role) Wait() { s.working.Wait() }

// work does one kind of work on a backend, one volume after the other, until ctx ends.
func (s *Role) work(ctx context.Context, b *backendWork, kind string) {
	for ctx.Err() == nil {
		s.mu.Lock()
		w, wait := b.next(kind, time.Now())
		var order Volume
		if w != nil {
			order = w.order
		}
		root, restored := b.root, b.restored
		s.mu.Unlock()
		if w == nil {
			_, _ = sleep.Or(ctx, wait, b.changed[kind])
			continue
		}
		began := time.Now()
		used, err := s.do(ctx, b, kind, root, restored, order)
		if ctx.Err() != nil {
			return
		}
		s.note(b, w, kind, order, outcome{used, time.Since(began), err})
	}
}

// next returns the volume for which a kind of work is due first, or nil and how long there is none. The caller holds mu.
func (b *backendWork) next(kind string, now time.Time) (*volumeWork, time.Duration) {
	var out *volumeWork
	for _, id := range slices.Sorted(maps.Keys(b.volumes)) {
		w := b.volumes[id]
		if w.wants(kind) && (out == nil || w.due[kind].Before(out.due[kind])) {
			out = w
		}
	}
	switch {
	case out == nil:
		return nil, time.Hour
	case out.due[kind].After(now):
		return nil, out.due[kind].Sub(now)
	}
	return out, 0
}

// wants reports whether a kind of work is left to do for the volume, now or later.
func (w *volumeWork) wants(kind string) bool {
	switch kind {
	case workMake:
		return !w.order.Gone && w.madeGB != w.order.SizeGB
	case workRemove:
		return w.order.Gone && !w.gone
	}
	return w.order.Measure && !w.order.Gone && w.madeGB > 0
}

// do does one piece of work.
func (s *Role) do(ctx context.Context, b *backendWork, kind string, root Root, restored bool, v Volume) (used int64, err error) {
	limit := map[string]time.Duration{workMake: makeLimit, workRemove: removeLimit, workMeasure: measureLimit}[kind]
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if root.OwnDir != "" && !root.Fresh && !restored && kind == workMake {
		if err := s.does.Restore(ctx, root); err != nil {
			return 0, err
		}
		s.mu.Lock()
		b.restored = b.restored || sameRoot(b.root, root)
		s.mu.Unlock()
	}
	switch kind {
	case workMake:
		return 0, s.does.Make(ctx, root, v)
	case workRemove:
		return 0, s.does.Remove(ctx, root, v)
	}
	return s.does.Used(ctx, root, v)
}

// outcome is what came of a piece of work.
type outcome struct {
	used int64
	took time.Duration
	err  error
}

// note keeps what came of a piece of work for a volume, and says when there is more to do.
func (s *Role) note(b *backendWork, w *volumeWork, kind string, did Volume, o outcome) {
	s.count(kind, o.err != nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.err != nil {
		w.delay[kind] = min(max(2*w.delay[kind], workAgain), workAgainMost)
		w.due[kind] = time.Now().Add(w.delay[kind])
		s.log.Warn("work on a network volume will be tried again", "work", kind, "backend", b.root.Backend.ID, "volume", did.ID, "in", w.delay[kind], "err", o.err)
		problem := sentenceOf(kind, o.err)
		w.news = w.news || problem != w.problem
		w.problem = problem
		if o.used > w.used { // it was not seen to its end, and holds at least so much
			w.used, w.measured, w.news = o.used, true, true
		}
		s.wake()
		return
	}
	delete(w.delay, kind)
	switch w.news, w.problem = true, ""; kind {
	case workMake:
		w.madeGB = did.SizeGB
		b.root.Fresh = false
		b.poke() // it may be measured now
	case workRemove:
		w.gone = true
	case workMeasure:
		w.used, w.measured = o.used, true
		w.due[kind] = time.Now().Add(max(measureEvery, measureShare*o.took))
	}
	if kind != workMeasure {
		s.log.Info("network volume", "work", kind, "backend", b.root.Backend.ID, "volume", did.ID, "size_gb", did.SizeGB, "took", o.took)
	}
	s.wake()
}
