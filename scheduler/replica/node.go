package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// StateFile is the name of the state machine's file in Config.Dir.
const StateFile = "state.db"

// StreamLayer carries Raft's connections between members. It authenticates both ends.
type StreamLayer interface {
	net.Listener
	// Dial connects to the member at an address.
	Dial(address string, timeout time.Duration) (net.Conn, error)
}

// Member is one member of the cluster.
type Member struct {
	ID      string
	Address string
}

// Config configures a Node. Dir, ID, Address, Store or Machine, Log and Fatal are needed.
type Config struct {
	Dir     string // made by Create or Install
	ID      string // of this member, for ever
	Address string // under which other members reach this one
	// Store is the control plane's state, opened from StateFile in Dir. The node only uses it; close it after the node.
	Store *state.Store
	// Machine takes the place of Store in the groups of other state machines, which take no Propose, but Append.
	Machine Machine
	// Streams connects the members. With neither Streams nor Transport the cluster can have but
	// this one member.
	Streams StreamLayer
	// Transport takes the place of Streams, for simulations.
	Transport Transport
	Log       *slog.Logger
	// Fatal is called once, from any goroutine, when this replica cannot go on: the process must
	// exit. It must not wait for the node.
	Fatal func(error)

	HeartbeatTimeout time.Duration // without a word from the leader until an election; 0: 200 ms
	ElectionTimeout  time.Duration // 0: HeartbeatTimeout
	LeaseTimeout     time.Duration // without a majority until a leader steps down; 0: HeartbeatTimeout
	RequestTimeout   time.Duration // longest wait of Propose and Barrier; 0: 10 s
	HangLimit        time.Duration // longest call of log or state before Fatal; 0: 5 s

	SnapshotThreshold uint64        // entries between snapshots; 0: 8192
	SnapshotBytes     int64         // of log between snapshots, and of the log that is kept for followers after one; 0: 64 MiB
	SnapshotInterval  time.Duration // how often that is looked at; 0: 1 min
	TrailingLogs      uint64        // entries kept for followers after a snapshot; 0: 2048

	// DiskLimit is the used share of the disk, in percent, from which on commands are refused with
	// ErrDiskFull and leadership is handed to another voter that MayLead; 3 below it they are taken again; 0: 95.
	DiskLimit int
	// MayLead reports whether a voter is known to have room on its disk: to one that is not, a full leader does not
	// hand leadership. It is called from a goroutine of the node's; nil: to any.
	MayLead func(id string) bool
	// DiskUsed tells that share; nil: of the file system of Dir.
	DiskUsed func() (percent int, err error)
	// Wrote is told how long each write of the log took, from Raft's goroutine; nil: nobody is.
	Wrote func(took time.Duration)
	// WrapLog puts something between Raft and its log, for simulations; nil: nothing.
	WrapLog func(Log) Log
}

// Log is what Raft needs of its log.
type Log interface {
	raft.LogStore
	raft.StableStore
}

// withDefaults fills in what was left zero.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" || c.ID == "" || c.Address == "" || (c.Store == nil) == (c.Machine == nil) || c.Log == nil || c.Fatal == nil {
		return c, errors.New("replica: Dir, ID, Address, either Store or Machine, Log and Fatal must be set")
	}
	c.HeartbeatTimeout = orDefault(c.HeartbeatTimeout, 200*time.Millisecond)
	c.ElectionTimeout = orDefault(c.ElectionTimeout, c.HeartbeatTimeout)
	c.LeaseTimeout = orDefault(c.LeaseTimeout, c.HeartbeatTimeout)
	c.RequestTimeout = orDefault(c.RequestTimeout, 10*time.Second)
	c.HangLimit = orDefault(c.HangLimit, 5*time.Second)
	c.SnapshotThreshold = orDefault(c.SnapshotThreshold, 8192)
	c.SnapshotBytes = orDefault(c.SnapshotBytes, 64<<20)
	c.SnapshotInterval = orDefault(c.SnapshotInterval, time.Minute)
	c.TrailingLogs = orDefault(c.TrailingLogs, 2048)
	c.DiskLimit = int(orDefault(int64(c.DiskLimit), 95))
	if c.DiskUsed == nil {
		dir := c.Dir
		c.DiskUsed = func() (int, error) { return usedShare(dir) }
	}
	return c, nil
}

func orDefault[T ~int64 | ~uint64](v, standard T) T {
	if v == 0 {
		return standard
	}
	return v
}

// logCache is how many of the latest entries stay in memory for followers.
const logCache = 64

// Node is one member of the cluster. Its methods may be called from any number of goroutines.
type Node struct {
	cfg       Config
	machine   Machine
	exports   *exporter
	log       *slog.Logger
	raft      *raft.Raft
	trans     *inbound
	acks      *acks
	logs      *sumLog
	streams   *streams // nil without Config.Streams
	watch     *watchdog
	size      *logSize
	fatalOnce sync.Once
	handover  atomic.Bool // it is being watched; see watchHandover

	queue    chan *proposal
	queued   atomic.Int64 // bytes in queue
	diskFull atomic.Bool
	diskUsed atomic.Int64  // percent
	inFlight chan struct{} // one for each entry that Raft has not decided

	verifying verifier
	applied   progress
	changing  chan struct{} // held by the one change of the membership that is under way

	mu      sync.Mutex
	lead    *leadership   // nil unless this node leads and has applied all of its predecessors
	changed chan struct{} // closed when lead changes
	// leaderChanged is closed when another may lead.
	leaderChanged chan struct{}

	closing   context.Context // done when Close begins
	stopped   chan struct{}   // closed when Raft has shut down
	close     context.CancelFunc
	wg        sync.WaitGroup // every goroutine of ours
	closeOnce sync.Once
	closeErr  error
}

// Open starts a member from what is in Config.Dir, which Create or Install made. A member that Create made waits
// until it is bootstrapped or added to a cluster. Open reads the whole log, and the newest snapshots, and fails when the
// disk does not work, when the files are in use, or, matching ErrDamaged, when they are damaged, incomplete
// or do not belong together.
func Open(cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, log: cfg.Log,
		queue: make(chan *proposal, maxQueue), inFlight: make(chan struct{}, maxInFlight),
		machine: cfg.Machine, changed: make(chan struct{}), leaderChanged: make(chan struct{}), changing: make(chan struct{}, 1),
	}
	if cfg.Store != nil {
		n.machine = storeMachine{cfg.Store}
	}
	n.closing, n.close = context.WithCancel(context.Background())
	n.stopped = make(chan struct{})
	n.watch, n.size = newWatchdog(cfg.HangLimit, n.fatal), newLogSize(cfg.SnapshotBytes)
	n.applied.init()
	n.verifying.ask = n.ask
	if err := n.open(); err != nil {
		return nil, fmt.Errorf("open replica: %w", err)
	}
	n.wg.Go(func() { n.carry(n.trans) })
	n.wg.Go(func() { n.watch.run(n.closing) })
	n.wg.Go(n.followLeadership)
	n.wg.Go(n.followLeader)
	n.wg.Go(n.watchDisk)
	n.wg.Go(n.submit)
	n.wg.Go(n.watchSize)
	return n, nil
}

// open opens the log and starts Raft on it.
func (n *Node) open() (err error) {
	if err := checkFiles(n.cfg.Dir); err != nil {
		return err
	}
	if err := selfTest(n.cfg.Dir, n.cfg.HangLimit); err != nil {
		return err
	}
	n.logs, err = openLog(n.cfg.Dir)
	if err != nil {
		return err
	}
	n.raft, err = recovered(n.startRaft)
	if err != nil {
		return errors.Join(err, n.logs.Close())
	}
	return nil
}

// startRaft starts Raft on the opened log.
func (n *Node) startRaft() (*raft.Raft, error) {
	hlog := newLogger(n.log)
	snaps, err := openSnapshots(n.cfg.Dir, hlog)
	if err != nil {
		return nil, err
	}
	stateIsNewer, err := checkTogether(n.logs, snaps, n.machine)
	if err != nil {
		return nil, err
	}
	if len(snaps.damaged) > 0 {
		n.log.Error("damaged snapshots were removed; what is left holds all that was in them", "snapshots", snaps.damaged)
	}
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(n.cfg.ID)
	conf.HeartbeatTimeout = n.cfg.HeartbeatTimeout
	conf.ElectionTimeout = n.cfg.ElectionTimeout
	conf.LeaderLeaseTimeout = n.cfg.LeaseTimeout
	conf.SnapshotThreshold = n.cfg.SnapshotThreshold
	conf.SnapshotInterval = n.cfg.SnapshotInterval
	conf.TrailingLogs = n.cfg.TrailingLogs
	conf.NoLegacyTelemetry = true
	conf.Logger = hlog
	conf.NoSnapshotRestoreOnStart = stateIsNewer
	n.size.found(n.logs.found, n.logs.sizes, snaps.newest.index)
	var logs Log = n.logs
	if n.cfg.WrapLog != nil {
		logs = n.cfg.WrapLog(n.logs)
	}
	watched := &watchedLog{store: &tailLog{Log: logs}, watch: n.watch, size: n.size, wrote: n.cfg.Wrote}
	cache, err := raft.NewLogCache(logCache, watched)
	if err != nil {
		return nil, err
	}
	n.acks = newAcks(n.transport(hlog))
	trans := &inbound{Transport: n.acks, calls: make(chan raft.RPC), entries: cache, during: n.during}
	if snaps.newest != (position{}) {
		trans.newest.Store(&snaps.newest)
	}
	snaps.made = func(made position) {
		trans.newest.Store(&made)
		n.size.snapshotted(made.index)
	}
	n.exports = &exporter{snapStore: snaps, machine: n.machine}
	n.exports.restored.Store(stateIsNewer)
	r, err := raft.NewRaft(conf, &fsm{n, n.machine.Apply}, cache, watched, n.exports, trans)
	if err != nil {
		return nil, errors.Join(err, trans.Close())
	}
	n.trans = trans
	return r, nil
}

// recovered turns a panic of the log's database over a damaged file into an error.
func recovered[T any](fn func() (T, error)) (out T, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = damaged("the log cannot be read: %v", r)
		}
	}()
	return fn()
}

// Empty reports whether this member has never been part of a cluster.
func (n *Node) Empty() bool { return n.raft.CurrentTerm() == 0 && n.raft.LastIndex() == 0 }

// Bootstrap makes a cluster of members, or of this node alone when none are given. One member of a
// new cluster is bootstrapped, which is among members; the others learn it from that one. Errors: exists when the node is part of a
// cluster already, unavailable.
func (n *Node) Bootstrap(ctx context.Context, members ...Member) error {
	if len(members) == 0 {
		members = []Member{{ID: n.cfg.ID, Address: n.cfg.Address}}
	}
	var conf raft.Configuration
	for _, m := range members {
		conf.Servers = append(conf.Servers, raft.Server{ID: raft.ServerID(m.ID), Address: raft.ServerAddress(m.Address)})
	}
	err := n.bounded(ctx, func() error { return n.raft.BootstrapCluster(conf).Error() })
	if errors.Is(err, raft.ErrCantBootstrap) {
		return &fleet.Error{Code: fleet.CodeExists, Msg: "this node is part of a cluster already", Err: err}
	}
	return err
}

// Snapshot writes a snapshot now, so that the log before it can be forgotten. Having nothing new to
// write is not an error.
func (n *Node) Snapshot(ctx context.Context) error {
	err := n.bounded(ctx, func() error { return n.raft.Snapshot().Error() })
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	return err
}

// bounded runs a call on Raft until it returns, ctx ends or the node closes. The call itself ends at
// the latest when Raft is shut down.
func (n *Node) bounded(ctx context.Context, call func() error) error {
	done := make(chan error, 1)
	n.spawn(func() { done <- call() })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fleet.Unavailable("the request may or may not have been done", errors.Join(ErrUnknown, ctx.Err()))
	case <-n.closing.Done():
		return fleet.Unavailable("the request may or may not have been done", errors.Join(ErrUnknown, errClosed))
	}
}

// spawn runs fn in a goroutine that Close waits for; it does nothing once Close has begun.
func (n *Node) spawn(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing.Err() == nil {
		n.wg.Go(fn)
	}
}

// during runs fn, which Close waits for; it does nothing, and returns false, once Close has begun.
func (n *Node) during(fn func()) bool {
	n.mu.Lock()
	if n.closing.Err() != nil {
		n.mu.Unlock()
		return false
	}
	n.wg.Add(1)
	n.mu.Unlock()
	defer n.wg.Done()
	fn()
	return true
}

// Stalled returns for how long the log's or state machine's slowest call has been under way; 0 when
// none is. A watchdog is fed only while it is small.
func (n *Node) Stalled() time.Duration {
	_, d := n.watch.slowest(time.Now())
	return d
}

// fatal reports, once, that this replica cannot go on.
func (n *Node) fatal(err error) {
	n.fatalOnce.Do(func() {
		n.log.Error("replica cannot go on", "err", err)
		n.cfg.Fatal(err)
	})
}

var errClosed = errors.New("replica is closed")

// closeTimeout bounds how long Close waits for a Raft that does not react.
const closeTimeout = 10 * time.Second

// Close ends leadership, refuses what is queued, stops Raft and closes the log. Commands whose
// outcome it does not wait for are reported as unknown. It may be called more than once. It fails
// when Raft does not stop in 10 s, which leaves goroutines and the log open.
func (n *Node) Close() error {
	n.closeOnce.Do(func() { n.closeErr = n.shutdown(closeTimeout) })
	return n.closeErr
}

func (n *Node) shutdown(limit time.Duration) error {
	n.setLead(nil)
	n.mu.Lock()
	n.close() // nothing is spawned any more
	n.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		down := n.raft.Shutdown()
		var err error
		if n.streams != nil {
			err = n.streams.Close() // what still waits for another member need not
		}
		err = errors.Join(err, down.Error())
		close(n.stopped)
		n.wg.Wait()
		done <- errors.Join(err, n.logs.Close())
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return errors.New("close replica: Raft does not stop")
	}
}
