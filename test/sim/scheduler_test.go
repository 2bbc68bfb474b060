package sim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/pki"
	"gantry/scheduler"
	"gantry/scheduler/control"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

const (
	keepTerminated = 10 * time.Minute
	lookAtCredit   = 5 * time.Second
)

// process is one life of a scheduler, wired as gantry-scheduler wires it.
type process struct {
	world    *world
	dir      string
	store    *state.Store
	node     *replica.Node
	dispatch *dispatch.Server
	service  *scheduler.Service
	mux      *link.Mux
	grpc     *grpc.Server
	cancel   context.CancelFunc
	done     chan struct{}
	dying    atomic.Bool
}

// unclean says what a dead scheduler leaves of its state file beside the log.
type unclean int

const (
	stateClean   unclean = iota // closed
	stateOpen                   // killed: the file was not closed, the kernel has all writes
	stateDropped                // the machine lost power: the file is not trusted and made anew
)

func raftDir(dir string) string { return filepath.Join(dir, "raft") }

// initialise makes a cluster of one scheduler in dir, as gantry-scheduler init does, with accounts.
func initialise(ctx context.Context, w *world, dir string, accounts []fleet.AccountID) error {
	certs := filepath.Join(dir, "pki")
	for _, d := range []string{certs, raftDir(dir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	if err := pki.NewSealKeyFile(filepath.Join(dir, "seal.key")); err != nil {
		return err
	}
	p, err := openReplica(w, dir)
	if err != nil {
		return err
	}
	defer func() { w.check(errors.Join(p.node.Close(), p.store.Close())) }()
	if err := p.node.Bootstrap(ctx); err != nil {
		return err
	}
	if err := p.waitLead(ctx); err != nil {
		return err
	}
	now := time.Now()
	ca, err := pki.NewCA(fleet.NewID(), now)
	if err != nil {
		return err
	}
	boot, err := scheduler.Bootstrap(p.service.Sealer, ca, now)
	if err != nil {
		return err
	}
	cmds := []state.Command{boot}
	for _, id := range accounts {
		cmds = append(cmds, state.PutAccount{Account: fleet.Account{ID: id, Name: string(id), CreatedAt: now}})
	}
	results, err := p.node.Propose(ctx, cmds...)
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		return err
	}
	store, err := pki.OpenStore(certs)
	if err != nil {
		return err
	}
	return store.Enroll(ca, pki.Identity{Role: pki.RoleScheduler, ID: "scheduler-1"}, 30*24*time.Hour, now)
}

// openReplica opens what is in dir and puts the services together; nothing is served yet.
func openReplica(w *world, dir string) (*process, error) {
	p := &process{world: w, dir: dir, done: make(chan struct{})}
	log := w.log.With("at", "scheduler-1")
	sealer, err := pki.LoadSealer(filepath.Join(dir, "seal.key"))
	if err != nil {
		return nil, err
	}
	p.store, err = state.Open(filepath.Join(raftDir(dir), replica.StateFile), state.Options{BootID: "boot"})
	if err != nil {
		return nil, err
	}
	p.node, err = replica.Open(replica.Config{
		Dir: raftDir(dir), ID: "scheduler-1", Address: linkAddr, Store: p.store, Log: log,
		Fatal:             func(err error) { w.broke("the scheduler cannot go on: %v", err) },
		SnapshotThreshold: w.snapshotEvery, SnapshotInterval: 10 * time.Second, TrailingLogs: w.trailing,
	})
	if err != nil {
		return nil, errors.Join(err, p.store.Close())
	}
	p.dispatch = dispatch.New(dispatch.Config{
		Store: p.store, Node: p.node, Log: log, CertLife: w.certLife,
		CA: func(ctx context.Context) (*pki.CA, error) { return p.service.CA(ctx) },
	})
	p.service = scheduler.New(scheduler.Config{Store: p.store, Node: p.node, Dispatch: p.dispatch, Sealer: sealer, Log: log})
	return p, nil
}

func (p *process) waitLead(ctx context.Context) error {
	led := errors.New("led")
	if err := p.node.WhileLeader(ctx, func(context.Context) error { return led }); !errors.Is(err, led) {
		return err
	}
	return nil
}

// startScheduler starts the scheduler on its files and waits until it leads.
func (w *world) startScheduler(ctx context.Context) error {
	p, err := openReplica(w, w.schedDir)
	if err != nil {
		return err
	}
	fail := func(err error) error { return errors.Join(err, p.node.Close(), p.store.Close()) }
	if err := p.waitLead(ctx); err != nil {
		return fail(err)
	}
	certs, err := pki.OpenStore(filepath.Join(w.schedDir, "pki"))
	if err != nil {
		return fail(err)
	}
	ln, err := w.wire.listen(linkAddr)
	if err != nil {
		return fail(err)
	}
	if p.mux, err = link.NewMux(ln, certs, link.MuxConfig{Log: w.log}); err != nil { //nolint:contextcheck // the mux outlives the call
		return fail(errors.Join(err, ln.Close()))
	}
	p.grpc = p.dispatch.GRPC()
	serving, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go p.serve(serving) //nolint:contextcheck // it lives until it is killed
	w.setScheduler(p)
	return nil
}

// serve runs the scheduler's loops until ctx ends.
func (p *process) serve(ctx context.Context) {
	defer close(p.done)
	purger := &control.Purger{
		Store: p.store, Node: p.node, Keep: keepTerminated, Every: 10 * time.Second, Log: p.world.log,
	}
	accountant := &control.Accountant{
		Store: p.store, Node: p.node, Keep: 400 * 24 * time.Hour, Every: lookAtCredit, Log: p.world.log,
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.grpc.Serve(p.mux.GRPC()) })
	group.Go(func() error {
		return p.node.WhileLeader(ctx, func(lead context.Context) error {
			loops, lead := errgroup.WithContext(lead)
			loops.Go(func() error { return p.dispatch.Lead(lead) })
			loops.Go(func() error { return purger.Run(lead) })
			loops.Go(func() error { return accountant.Run(lead) })
			return loops.Wait()
		})
	})
	group.Go(func() error {
		<-ctx.Done()
		p.grpc.Stop()
		return nil
	})
	if err := group.Wait(); err != nil && !p.dying.Load() && !errors.Is(err, context.Canceled) {
		p.world.broke("the scheduler ended: %v", err)
	}
}

// killScheduler ends the scheduler at once and leaves its files as a crash of the kind would. What
// was asked of it and not answered may have happened or not.
func (w *world) killScheduler(how unclean) {
	p := w.scheduler()
	if p == nil {
		return
	}
	p.dying.Store(true)
	w.wire.killPort(linkAddr)
	if how != stateClean { // in the middle of what it does
		w.check(p.node.Close())
	}
	p.cancel()
	<-p.done
	w.check(p.node.Close())
	w.check(p.mux.Close())
	w.setScheduler(nil)
	w.check(p.store.Close())
	mark := map[unclean]string{stateOpen: "open boot\n", stateDropped: "open another\n"}[how]
	if mark != "" {
		w.check(os.WriteFile(filepath.Join(raftDir(p.dir), replica.StateFile+".mark"), []byte(mark), 0o600))
	}
}
