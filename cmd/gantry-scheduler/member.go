package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/atomicfile"
	"gantry/internal/pki"
	"gantry/scheduler/jobs"
	"gantry/scheduler/membership"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// The files of a data folder.
const (
	sealFile    = "seal.key"
	idFile      = "node-id"
	addressFile = "address"
	joinedFile  = "joined-by"
	lockFile    = "lock"
	certFolder  = "pki"
	raftFolder  = "raft"
	jobsFolder  = "jobs"
)

// member is one scheduler's replica with what it is made of.
type member struct {
	id      string
	address string
	level   uint64
	sealer  *pki.Sealer
	store   *state.Store
	node    *replica.Node
	jobs    jobs.Group
}

// opening is what a member is opened with.
type opening struct {
	dir           string
	address       string
	streams       replica.StreamLayer // nil: it is alone
	jobStreams    replica.StreamLayer // of the group that has the jobs
	snapshotEvery uint64
	snapshotBytes int64
	timeout       time.Duration
	mayLead       func(id string) bool
	fatal         func(error)
	wrote         func(time.Duration) // the log; nil: nobody asks
	log           *slog.Logger
}

// The bounds of --snapshot-bytes.
const (
	minSnapshotBytes int64 = 1 << 20
	maxSnapshotBytes int64 = 16 << 30
)

// openMember opens the replica in a data folder.
func openMember(o opening) (*member, error) {
	id, err := os.ReadFile(filepath.Join(o.dir, idFile))
	if err != nil {
		return nil, fmt.Errorf("read the scheduler's id: %w", err)
	}
	m := &member{id: strings.TrimSpace(string(id)), address: o.address}
	if m.level, err = programLevel(); err != nil {
		return nil, err
	}
	if m.sealer, err = pki.LoadSealer(filepath.Join(o.dir, sealFile)); err != nil {
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	raftDir := filepath.Join(o.dir, raftFolder)
	m.store, err = state.Open(filepath.Join(raftDir, replica.StateFile), state.Options{
		BootID: strings.TrimSpace(string(boot)), Level: m.level,
	})
	if err != nil {
		return nil, err
	}
	m.node, err = replica.Open(replica.Config{
		Dir: raftDir, ID: m.id, Address: m.address, Store: m.store, Streams: o.streams,
		SnapshotThreshold: o.snapshotEvery, SnapshotBytes: o.snapshotBytes,
		HeartbeatTimeout: o.timeout, MayLead: o.mayLead, Log: o.log, Fatal: o.fatal, Wrote: o.wrote,
	})
	if err != nil {
		return nil, errors.Join(err, m.store.Close())
	}
	if m.jobs, err = openJobs(o, m.id); err != nil {
		return nil, errors.Join(err, m.node.Close(), m.store.Close())
	}
	return m, nil
}

// jobSnapshotBytes is how much log of jobs, whose bodies are in it, there is between snapshots, which have only the heads.
const jobSnapshotBytes = 256 << 20

// openJobs opens the member's part in the group that has the jobs.
func openJobs(o opening, id string) (g jobs.Group, err error) {
	dir := filepath.Join(o.dir, jobsFolder)
	if g.Jobs, err = jobs.Open(dir); err != nil {
		return g, err
	}
	g.Node, err = replica.Open(replica.Config{
		Dir: dir, ID: id, Address: o.address, Machine: g.Jobs, Streams: o.jobStreams, SnapshotBytes: jobSnapshotBytes,
		HeartbeatTimeout: o.timeout, MayLead: o.mayLead, Log: o.log.With("group", "jobs"), Fatal: o.fatal,
	})
	if err != nil {
		return g, errors.Join(fmt.Errorf("jobs: %w", err), g.Jobs.Close())
	}
	return g, nil
}

// createJobs makes the member's part in the group that has the jobs. With first, the group begins with this member, and has none;
// otherwise the leader of the group fills it.
func createJobs(ctx context.Context, dir string, first *replica.Member) (err error) {
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, jobsFolder), 0o700), replica.Create(filepath.Join(dir, jobsFolder))); err != nil || first == nil {
		return err
	}
	g, err := openJobs(opening{
		dir: dir, address: first.Address, log: slog.New(slog.DiscardHandler), fatal: func(error) {},
	}, first.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeJobs(g)) }()
	if err := g.Bootstrap(ctx); err != nil && fleet.CodeOf(err) != fleet.CodeExists {
		return err
	}
	return nil
}

func closeJobs(g jobs.Group) error { return errors.Join(g.Close(), g.Jobs.Close()) }

// programLevel is the newest feature level that this program understands.
func programLevel() (uint64, error) {
	if level == "" {
		return state.Level, nil
	}
	n, err := strconv.ParseUint(level, 10, 64)
	if err != nil || n == 0 || n > state.Level+1 {
		return 0, fmt.Errorf("this program was built for feature level %q; it must be 1 to %d", level, state.Level+1)
	}
	return n, nil
}

// alone opens the member in a data folder without its peers, for a command that works on it offline.
func alone(dir, address string, log *slog.Logger) (*member, error) {
	return openMember(opening{
		dir: dir, address: address, log: log,
		fatal: func(err error) { log.Error("replica", "err", err); os.Exit(1) },
	})
}

// record is what a member of its own making says of itself.
func (m *member) record(name string, now time.Time) fleet.Member {
	return fleet.Member{
		ID: fleet.MemberID(m.id), Name: hostName(name), Address: m.address, Level: m.level, Version: version, JoinedAt: now,
	}
}

// close ends the replica; what was acknowledged is on disk already.
func (m *member) close() error {
	return errors.Join(closeJobs(m.jobs), m.node.Close(), m.store.Close())
}

// waitLead waits until the member leads.
func (m *member) waitLead(ctx context.Context) error {
	led := errors.New("led")
	err := m.node.WhileLeader(ctx, func(context.Context) error { return led })
	if errors.Is(err, led) {
		return nil
	}
	return err
}

// streams is Raft's stream layer on the shared link port.
type streams struct {
	net.Listener
	certs *pki.Store
	dial  func(ctx context.Context, store *pki.Store, address string) (net.Conn, error)
	// expect refuses who is at an address and is not the member that is known to be there.
	expect func(address string, who pki.Identity) error
}

// Dial implements replica.StreamLayer.
func (p streams) Dial(address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := p.dial(ctx, p.certs, address)
	if err != nil {
		return nil, err
	}
	who, err := agentrpc.ConnIdentity(conn)
	if err == nil {
		err = p.expect(address, who)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// propose commits one entry and returns the first refusal in it.
func (m *member) propose(ctx context.Context, cmds ...state.Command) error {
	results, err := m.node.Propose(ctx, cmds...)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// initialised reports whether the member's state holds a cluster.
func (m *member) initialised() (bool, error) {
	var ok bool
	err := m.store.View(func(v *state.View) error { _, ok = v.Cluster(); return nil })
	return ok, err
}

// newNodeID makes the id file unless there is one.
func newNodeID(dir string) (string, error) {
	if id, ok := nodeID(dir); ok {
		return id, nil
	}
	id := fleet.NewID()
	return id, writeNodeID(dir, id)
}

// nodeID reads the id file.
func nodeID(dir string) (string, bool) {
	b, err := os.ReadFile(filepath.Join(dir, idFile))
	id := strings.TrimSpace(string(b))
	return id, err == nil && fleet.ValidID(id)
}

func writeNodeID(dir, id string) error {
	return atomicfile.Write(filepath.Join(dir, idFile), []byte(id+"\n"), 0o600)
}

// readAddress reads the file with the address that was told to the others; empty: there is none.
func readAddress(dir string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, addressFile))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	address := strings.TrimSpace(string(b))
	if err == nil && !membership.ValidAddress(address) {
		err = fmt.Errorf("%s does not hold HOST:PORT", filepath.Join(dir, addressFile))
	}
	return address, err
}

func writeAddress(dir, address string) error {
	return atomicfile.Write(filepath.Join(dir, addressFile), []byte(address+"\n"), 0o600)
}

// keepAddress returns the member's address: a new one, which it writes down, or the one of before, or one that
// only this machine reaches.
func keepAddress(dir, given, linkListen string) (string, error) {
	if given != "" {
		return given, writeAddress(dir, given)
	}
	address, err := readAddress(dir)
	if err != nil || address != "" {
		return address, err
	}
	_, port, err := net.SplitHostPort(linkListen)
	if err != nil {
		return "", fmt.Errorf("link address: %w", err)
	}
	return net.JoinHostPort("127.0.0.1", port), nil
}

const defaultLinkListen = "0.0.0.0:8443"

// linkListen returns where to listen for agents and other schedulers: where it was told to, else at the port of the
// address that others know. Another port than theirs is right only where something between forwards it.
func linkListen(dir, listen, address string, log *slog.Logger) (string, error) {
	if address == "" {
		var err error
		if address, err = readAddress(dir); err != nil {
			return "", err
		}
	}
	if address == "" {
		return cmp.Or(listen, defaultLinkListen), nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", errAddress
	}
	if listen == "" {
		return net.JoinHostPort("0.0.0.0", port), nil
	}
	if _, own, err := net.SplitHostPort(listen); err == nil && own != port {
		log.Warn("--link-listen and the advertised address have different ports: a forwarder is needed", "link", listen, "address", address)
	}
	return listen, nil
}

// readJoined returns the addresses by which a member joined; none for one that was made by init.
func readJoined(dir string) []string {
	text, err := os.ReadFile(filepath.Join(dir, joinedFile))
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(strings.Fields(string(text)), func(a string) bool { return !membership.ValidAddress(a) })
}

// makeFolders makes a data folder.
func makeFolders(dir string) error {
	for _, dir := range []string{dir, filepath.Join(dir, certFolder), filepath.Join(dir, raftFolder), filepath.Join(dir, jobsFolder)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// lockFolder keeps a data folder to this process until the file is closed.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is in use by another gantry-scheduler: %w", dir, err), f.Close())
	}
	return f, nil
}

// hostName is the machine's name, for people.
func hostName(given string) string {
	if given != "" {
		return given
	}
	name, err := os.Hostname()
	if err != nil {
		return "scheduler"
	}
	return name
}
