package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/sleep"
	"gantry/scheduler"
	"gantry/scheduler/control"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/feed"
	"gantry/scheduler/feed/networks"
	"gantry/scheduler/feed/storage"
	"gantry/scheduler/feed/volumes"
	"gantry/scheduler/jobs"
	"gantry/scheduler/membership"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
	"gantry/scheduler/workers"
)

const (
	keepTerminated = 10 * time.Minute
	lookAtCredit   = 5 * time.Second
	raftTimeout    = time.Second
	hangLimit      = 5 * time.Second

	snapshotInterval = 10 * time.Second
)

// member is a scheduler with its folder, whether it runs or not.
type member struct {
	world   *world
	name    string // of its machine on the wire
	id      string
	addr    string // of its link port; Raft's too
	dir     string
	disk    *disk
	clock   atomic.Int64 // how far its wall clock is off, in nanoseconds
	drift   atomic.Int64 // by how many millionths it is too fast
	removed bool         // of the driver alone
}

// process is one life of a scheduler, wired as gantry-scheduler wires it.
type process struct {
	*member
	store    *state.Store
	node     *replica.Node
	raft     *raftEnd
	jobs     jobs.Group // nothing: the cluster has no serverless endpoints
	jobRaft  *raftEnd
	workers  *workers.Workers
	dispatch *dispatch.Server
	service  *scheduler.Service
	mux      *agentrpc.Mux
	grpc     *agentrpc.Server
	certs    *pki.Store // nil before it serves
	cancel   context.CancelFunc
	done     chan struct{}
	dying    atomic.Bool
	halt     sync.Once
	unmute   func() // after halt
	halted   atomic.Bool
}

// unclean says what a dead scheduler leaves of its state file beside the log.
type unclean int

const (
	stateClean   unclean = iota // closed
	stateOpen                   // killed: the file was not closed, the kernel has all writes
	stateDropped                // the machine lost power: the file is not trusted and made anew
	stateTorn                   // so, and half of what is in it was never written
	stateLost                   // the file is not there
	uncleanKinds
)

func raftDir(dir string) string { return filepath.Join(dir, "raft") }

// off is how far the member's wall clock is off.
func (m *member) off() time.Duration {
	return time.Duration(m.clock.Load()) + time.Since(m.world.lines.began)/1_000_000*time.Duration(m.drift.Load())
}

func (m *member) now() time.Time { return time.Now().Add(m.off()) }

// newMember makes a member on a machine of its own.
func (w *world) newMember() (*member, error) {
	w.mu.Lock()
	w.lastMember++
	name := fmt.Sprintf("scheduler-%d", w.lastMember)
	w.mu.Unlock()
	m, err := w.memberAt(name, name)
	if err != nil {
		return nil, err
	}
	return m, errors.Join(replica.Create(raftDir(m.dir)), m.createJobs())
}

// memberAt makes a member's folder on a machine. The first one makes the seal key, the others have a copy of it.
func (w *world) memberAt(name, id string) (*member, error) {
	m := &member{world: w, name: name, id: id, addr: name + ":7000", dir: filepath.Join(w.dir, id), disk: &disk{}}
	for _, d := range []string{filepath.Join(m.dir, "pki"), raftDir(m.dir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	seal, key := filepath.Join(m.dir, "seal.key"), filepath.Join(w.dir, "scheduler-1", "seal.key")
	if seal == key {
		return m, pki.NewSealKeyFile(seal)
	}
	data, err := os.ReadFile(key)
	if err != nil {
		return nil, err
	}
	return m, os.WriteFile(seal, data, 0o600)
}

// record is the member's record.
func (m *member) record() fleet.Member {
	return fleet.Member{
		ID: fleet.MemberID(m.id), Name: m.name, Address: m.addr, Level: state.Level, Version: "sim", JoinedAt: m.now(),
	}
}

// found makes a cluster of n schedulers with accounts, as gantry-scheduler init and join do, and leaves
// them running.
func (w *world) found(ctx context.Context, n int, accounts []fleet.AccountID) error {
	var all []replica.Member
	for range n {
		m, err := w.newMember()
		if err != nil {
			return err
		}
		w.members = append(w.members, m)
		all = append(all, replica.Member{ID: m.id, Address: m.addr})
	}
	var open []*process
	for _, m := range w.members {
		p, err := m.open() //nolint:contextcheck // its parts end with the member
		if err != nil {
			return err
		}
		open = append(open, p)
	}
	if err := open[0].node.Bootstrap(ctx, all...); err != nil {
		return err
	}
	if w.serverless {
		if err := open[0].jobs.Bootstrap(ctx, all...); err != nil {
			return err
		}
	}
	lead, err := awaitLeader(ctx, open)
	if err != nil {
		return err
	}
	now := time.Now()
	if w.ca, err = pki.NewCA(fleet.NewID(), now); err != nil {
		return err
	}
	boot, err := scheduler.Bootstrap(lead.service.Sealer, w.ca, now)
	if err != nil {
		return err
	}
	cmds := []state.Command{boot}
	for _, id := range accounts {
		cmds = append(cmds, state.PutAccount{Account: fleet.Account{ID: id, Name: string(id), CreatedAt: now}})
	}
	for _, m := range w.members {
		cmds = append(cmds, state.PutMember{Member: m.record()})
	}
	cmds = append(cmds, state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-1", Name: "dc-1", Region: "UNKNOWN", GlobalNetwork: true}}, putBackend())
	results, err := lead.node.Propose(ctx, cmds...)
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	for _, p := range open {
		err = errors.Join(err, p.enroll(), p.begin()) //nolint:contextcheck // its port outlives the call
	}
	return err
}

// enroll gives a member its certificate.
func (m *member) enroll() error {
	store, err := pki.OpenStore(filepath.Join(m.dir, "pki"))
	if err != nil {
		return err
	}
	return store.Enroll(m.world.ca, pki.Identity{Role: pki.RoleScheduler, ID: m.id}, 30*24*time.Hour, time.Now())
}

// open opens what is in the member's folder and puts the services together; nothing is served yet.
func (m *member) open() (*process, error) {
	w := m.world
	p := &process{member: m, done: make(chan struct{}), unmute: func() {}}
	log := w.log.With("at", m.name)
	sealer, err := pki.LoadSealer(filepath.Join(m.dir, "seal.key"))
	if err != nil {
		return nil, err
	}
	p.store, err = state.Open(filepath.Join(raftDir(m.dir), replica.StateFile), state.Options{BootID: "boot"})
	if err != nil {
		return nil, err
	}
	m.disk.whole()
	p.raft = w.rafts.open(m.addr)
	p.node, err = replica.Open(replica.Config{
		Dir: raftDir(m.dir), ID: m.id, Address: m.addr, Store: p.store, Transport: p.raft, Log: log, Fatal: p.fatal,
		HeartbeatTimeout: raftTimeout, HangLimit: hangLimit, DiskUsed: m.disk.used,
		WrapLog:           func(l replica.Log) replica.Log { return simLog{l, m.disk} },
		SnapshotThreshold: w.snapshotEvery, SnapshotInterval: snapshotInterval, TrailingLogs: w.trailing,
	})
	if err != nil {
		return nil, errors.Join(err, p.raft.Close(), p.store.Close())
	}
	if err := p.openJobs(); err != nil {
		return nil, errors.Join(err, p.node.Close(), p.raft.Close(), p.store.Close())
	}
	backends := volumes.Backends{Log: log, Secrets: func(b *fleet.Backend) (fleet.BackendSecrets, error) {
		return p.service.BackendSecrets(b)
	}}
	disks := storage.New(p.store, backends, log)
	conf := dispatch.Config{
		Store: p.store, Node: byClock{p.node, m}, Log: log, CertLife: w.certLife,
		CA:      func(ctx context.Context) (*pki.CA, error) { return p.service.CA(ctx) },
		Leader:  func() string { l, _ := p.node.Leader(); return l.Address },
		Address: m.addr, Dial: p.dialPeer,
		Environment: func(rec *fleet.Pod) (map[string]string, error) { return p.service.Environment(rec) },
		Member:      func(rec *fleet.Pod) (*fleet.MemberSetup, error) { return p.service.MemberSetup(rec) },
		Backends:    backends, Feeds: []feed.Feed{networks.New(p.store, log), disks},
	}
	if w.serverless {
		conf.Workers = func(host fleet.HostID, session <-chan struct{}, stream agentrpc.Link_JobsServer) error {
			return p.workers.Serve(host, session, stream)
		}
	}
	p.dispatch = dispatch.New(conf)
	p.service = scheduler.New(scheduler.Config{
		Store: p.store, Node: p.node, Dispatch: p.dispatch, Storage: disks, Sealer: sealer, Log: log, Now: m.now, Version: "sim", Jobs: p.jobs,
	})
	p.newWorkers()
	return p, nil
}

// dialPeer connects to another scheduler's link port.
func (p *process) dialPeer(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if p.certs == nil {
		return nil, errors.New("this scheduler has no certificate yet")
	}
	return membership.Dialer(p.certs)(address, append(opts, grpc.WithContextDialer(p.world.wire.dialer(p.name)))...)
}

// fatal implements replica.Config.Fatal: the process exits. The driver clears up behind it.
func (p *process) fatal(err error) {
	if p.dying.Load() {
		return
	}
	if p.disk.hangsFor() == 0 && !errors.Is(err, replica.ErrHandover) {
		p.world.broke("scheduler %s cannot go on: %v", p.name, err)
	}
	p.world.log.Info("scheduler exits", "at", p.name, "err", err)
	p.stopTalking()
	p.halted.Store(true)
}

// stopTalking is the moment in which the process is gone for everybody else.
func (p *process) stopTalking() {
	p.halt.Do(func() {
		p.dying.Store(true)
		p.unmute = p.world.wire.block(way{p.name, everyone}, way{everyone, p.name})
		p.world.wire.kill(p.name, true)
		_ = p.raft.Close()
		if p.jobRaft != nil {
			_ = p.jobRaft.Close()
		}
	})
}

// begin serves.
func (p *process) begin() error {
	var err error
	if p.certs, err = pki.OpenStore(filepath.Join(p.dir, "pki")); err != nil {
		return err
	}
	ln, err := p.world.wire.listen(p.addr)
	if err != nil {
		return err
	}
	if p.mux, err = agentrpc.NewMux(ln, p.certs, agentrpc.MuxConfig{Log: p.world.log}); err != nil {
		return errors.Join(err, ln.Close())
	}
	p.grpc = p.dispatch.GRPC()
	serving, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go p.serve(serving)
	p.world.runs(p.member, p)
	return nil
}

// serve runs the scheduler's loops until ctx ends.
func (p *process) serve(ctx context.Context) {
	defer close(p.done)
	keeper := &control.Timekeeper{
		Store: p.store, Node: p.node, Clocks: p, Leap: clockLeap, Log: p.world.log, Now: p.now, Synced: func() bool { return p.off().Abs() < time.Second },
	}
	purger := &control.Purger{
		Store: p.store, Node: p.node, Keep: keepTerminated, Every: 10 * time.Second, Log: p.world.log, Clock: p.now, Sure: keeper.Sure,
	}
	accountant := &control.Accountant{
		Store: p.store, Node: p.node, Keep: 400 * 24 * time.Hour, Every: lookAtCredit, Log: p.world.log, Clock: p.now, Sure: keeper.Sure,
	}
	drainer := &control.Drainer{Store: p.store, Node: p.node, Pods: p.service, Every: 5 * time.Second, Log: p.world.log}
	ender := &control.Ender{Store: p.store, Node: p.node, Pods: p.service, Every: time.Second, Log: p.world.log, Clock: p.now, Sure: keeper.Sure}
	clusters := &control.Clusters{Store: p.store, Node: p.node, Pods: p.service, Every: clustersEvery, Log: p.world.log, Clock: p.now}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.dispatch.Relay(ctx) })
	group.Go(func() error { return p.grpc.Serve(p.mux.GRPC()) }) //nolint:contextcheck // connections have contexts of their own
	group.Go(func() error {
		return p.node.WhileLeader(ctx, func(lead context.Context) error {
			loops, lead := errgroup.WithContext(lead)
			loops.Go(func() error { return p.dispatch.Lead(lead) })
			loops.Go(func() error { return keeper.Run(lead) })
			loops.Go(func() error { return purger.Run(lead) })
			loops.Go(func() error { return accountant.Run(lead) })
			loops.Go(func() error { return drainer.Run(lead) })
			loops.Go(func() error { return ender.Run(lead) })
			loops.Go(func() error { return clusters.Run(lead) })
			if p.workers != nil {
				loops.Go(func() error { return p.workers.Lead(lead) })
			}
			return loops.Wait()
		})
	})
	if p.workers != nil {
		group.Go(func() error { return p.leadJobs(ctx) })
	}
	group.Go(func() error {
		<-ctx.Done()
		p.grpc.Stop()
		return nil
	})
	if err := group.Wait(); err != nil && !p.dying.Load() && !errors.Is(err, context.Canceled) {
		p.world.broke("scheduler %s ended: %v", p.name, err)
	}
}

// start starts the scheduler on its files. It does nothing when it runs.
func (m *member) start() error {
	if m.world.process(m) != nil {
		return nil
	}
	p, err := m.open()
	if err != nil {
		return err
	}
	if err := p.begin(); err != nil {
		return errors.Join(err, p.raft.Close(), p.node.Close(), p.closeJobs(), p.store.Close())
	}
	return nil
}

// kill ends the scheduler at once and leaves its files as a crash of the kind would. What was asked of
// it and not answered may have happened or not.
func (m *member) kill(how unclean) {
	w := m.world
	p := w.process(m)
	if p == nil {
		return
	}
	p.stopTalking()
	m.disk.die()
	if how != stateClean { // in the middle of what it does
		w.check(p.node.Close())
		if p.jobs.Node != nil {
			w.check(p.jobs.Close())
		}
	}
	p.cancel()
	<-p.done
	w.check(p.node.Close())
	w.check(p.mux.Close())
	w.runs(m, nil)
	w.check(p.closeJobs())
	w.learn(p) // what it applied last, hosts may have been told of
	w.check(p.store.Close())
	p.unmute()
	m.leave(how)
}

// leave makes of the closed state file what a crash leaves.
func (m *member) leave(how unclean) {
	file := filepath.Join(raftDir(m.dir), replica.StateFile)
	mark := map[unclean]string{stateOpen: "open boot\n", stateDropped: "open another\n", stateTorn: "open another\n"}[how]
	if mark != "" {
		m.world.check(os.WriteFile(file+".mark", []byte(mark), 0o600))
	}
	switch how {
	case stateLost:
		m.world.check(errors.Join(os.Remove(file), os.Remove(file+".mark")))
	case stateTorn:
		data, err := os.ReadFile(file)
		m.world.check(err)
		const page = 4096
		torn := rand.New(rand.NewPCG(uint64(len(data)), uint64(len(m.name))))
		for at := 0; at+page <= len(data); at += page {
			if torn.IntN(2) == 0 {
				clear(data[at : at+page])
			}
		}
		m.world.check(os.WriteFile(file, data, 0o600))
	}
}

// awaitLeader waits until one of the processes leads for sure.
func awaitLeader(ctx context.Context, among []*process) (*process, error) {
	for {
		for _, p := range among {
			if p.node.IsLeader() && p.node.Barrier(ctx) == nil {
				return p, nil
			}
		}
		if err := sleep.For(ctx, 50*time.Millisecond); err != nil {
			return nil, errors.Join(errors.New("no scheduler leads"), err)
		}
	}
}
