package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/pki"
)

const (
	helloTimeout     = 10 * time.Second
	reconnectLeast   = 50 * time.Millisecond
	reconnectMost    = 5 * time.Second
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	maxMessage       = 64 << 20 // bytes of the largest full set
	upQueue          = 64
	renewRetry       = time.Minute
)

// sessions keeps one session with a scheduler, whichever answers.
type sessions struct {
	addrs    []string
	dial     Dialer
	store    *pki.Store
	ledger   *ledger.Ledger
	pods     *pod.Pods
	reports  *reports
	live     *sampler
	tunnels  *tunnels
	hello    func() *link.Hello
	allocate ledger.Allocate
	heard    *atomic.Bool
	log      *slog.Logger
}

// run connects again and again until ctx ends.
func (s *sessions) run(ctx context.Context) {
	delay := reconnectLeast
	for n := 0; ctx.Err() == nil; n++ {
		began := time.Now()
		err := s.once(ctx, s.addrs[n%len(s.addrs)])
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > reconnectMost {
			delay = reconnectLeast
		}
		wait := delay/2 + rand.N(delay)
		s.log.Warn("session with the scheduler ended", "err", err, "again_in", wait)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		delay = min(2*delay, reconnectMost)
	}
}

// Dialer opens the network connection to a scheduler.
type Dialer func(ctx context.Context, addr string) (net.Conn, error)

// DialTCP is the Dialer of every real agent.
func DialTCP(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// connect prepares a connection that presents the host's certificate.
func connect(addr string, store *pki.Store, dial Dialer) (*grpc.ClientConn, error) {
	conf, err := link.HostClientTLS(store)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
}

// once holds one session until it breaks.
func (s *sessions) once(ctx context.Context, addr string) error {
	conn, err := connect(addr, s.store, s.dial)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	late := time.AfterFunc(helloTimeout, func() { cancel(errors.New("the scheduler did not answer in time")) })
	stream, err := link.NewLinkClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&link.Up{Kind: &link.Up_Hello{Hello: s.hello()}}); err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return cause(ctx, err)
	}
	if !late.Stop() {
		return context.Cause(ctx)
	}
	welcome := first.GetWelcome()
	if welcome == nil {
		return errors.New("the scheduler's first message is not a welcome")
	}
	s.log.Info("session with the scheduler", "addr", addr, "epoch", welcome.GetEpoch())
	return s.serve(ctx, conn, stream, welcome)
}

func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// serve runs the session's two directions. Only one goroutine sends. The session's tunnels are told
// of its end, which does not wait for them: some take long, and the host cannot be reached meanwhile.
func (s *sessions) serve(ctx context.Context, conn *grpc.ClientConn, stream link.Link_SessionClient, welcome *link.Welcome) error {
	group, ctx := errgroup.WithContext(ctx)
	up := make(chan *link.Up, upQueue)
	s.reports.newSession(func(id fleet.PodID) bool { _, ok := s.ledger.Record(id); return ok })
	group.Go(func() error { return s.sendAll(ctx, stream, up) })
	group.Go(func() error { return s.renewInTime(ctx, conn) })
	beat := time.Duration(welcome.GetHeartbeatMs()) * time.Millisecond
	group.Go(func() error { return s.heartbeats(ctx, beat, up) })
	group.Go(func() error {
		for {
			msg, err := stream.Recv()
			if err != nil {
				return fmt.Errorf("receive: %w", err)
			}
			if t := msg.GetOpenTunnel(); t != nil {
				s.tunnels.start(ctx, conn, t)
				continue
			}
			if err := s.receive(ctx, msg, up); err != nil {
				return err
			}
		}
	})
	return group.Wait()
}

func (s *sessions) sendAll(ctx context.Context, stream link.Link_SessionClient, up <-chan *link.Up) error {
	for {
		if r := s.reports.unsent(time.Now()); r != nil {
			r.SentNs = time.Now().UnixNano()
			if err := stream.Send(&link.Up{Kind: &link.Up_Reports{Reports: r}}); err != nil {
				return fmt.Errorf("send reports: %w", err)
			}
		}
		select {
		case <-s.reports.wake:
		case msg := <-up:
			if err := stream.Send(msg); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *sessions) heartbeats(ctx context.Context, every time.Duration, up chan<- *link.Up) error {
	if every <= 0 {
		return errors.New("the scheduler named no heartbeat interval")
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := push(ctx, up, &link.Up{Kind: &link.Up_Heartbeat{Heartbeat: s.live.heartbeat()}}); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-s.live.hurry:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func push(ctx context.Context, up chan<- *link.Up, msg *link.Up) error {
	select {
	case up <- msg:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// receive writes what is wanted into the ledger, then hands it to the machines, then acknowledges.
func (s *sessions) receive(ctx context.Context, msg *link.Down, up chan<- *link.Up) error {
	switch {
	case msg.GetFull() != nil:
		full := msg.GetFull()
		changed, err := s.ledger.SetFull(full.GetGeneration(), s.decodeAll(full.GetAssignments()), s.allocate)
		if err != nil {
			return fmt.Errorf("take the full set: %w", err)
		}
		s.order(changed)
		return push(ctx, up, applied(full.GetGeneration()))
	case msg.GetDifference() != nil:
		d := msg.GetDifference()
		gone := make([]fleet.PodID, len(d.GetGone()))
		for i, id := range d.GetGone() {
			gone[i] = fleet.PodID(id)
		}
		changed, err := s.ledger.Apply(d.GetFrom(), d.GetTo(), s.decodeAll(d.GetPut()), gone, s.allocate)
		if errors.Is(err, ledger.ErrGap) {
			return push(ctx, up, &link.Up{Kind: &link.Up_Resync{Resync: &link.Resync{}}})
		}
		if err != nil {
			return fmt.Errorf("take a difference: %w", err)
		}
		s.order(changed)
		return push(ctx, up, applied(d.GetTo()))
	case msg.GetReportsKept() != nil:
		s.reports.kept(msg.GetReportsKept().GetSequence())
	}
	return nil
}

func applied(generation uint64) *link.Up {
	return &link.Up{Kind: &link.Up_Applied{Applied: &link.Applied{Generation: generation}}}
}

// order hands changed assignments to the machines. The first one in an agent's life lets them start
// new containers: until then another host may have been given the work. They have all their orders
// before they are let: those of the ledger lack what is never on disk.
func (s *sessions) order(changed []pod.Assignment) {
	for _, a := range changed {
		s.pods.Set(a)
	}
	if s.heard.CompareAndSwap(false, true) {
		s.pods.Poke()
	}
}

func (s *sessions) decodeAll(in []*link.Assignment) []pod.Assignment {
	out := make([]pod.Assignment, len(in))
	for i, a := range in {
		out[i] = s.decode(a)
	}
	return out
}

func (s *sessions) decode(a *link.Assignment) pod.Assignment {
	out := pod.Assignment{
		Pod: fleet.PodID(a.GetPodId()), Account: fleet.AccountID(a.GetAccountId()),
		Incarnation: a.GetIncarnation(), Goal: fleet.Goal(a.GetGoal()), Generation: a.GetGeneration(),
		Name: a.GetName(), Image: a.GetImage(), Args: a.GetArgs(), Env: a.GetEnv(), DiskGB: a.GetDiskGb(),
		GPUs: a.GetGpus(), DataCenter: fleet.DataCenterID(a.GetDataCenter()),
		Limits: fleet.Resources{
			MilliCPU: a.GetLimits().GetMilliCpu(), MemoryMB: a.GetLimits().GetMemoryMb(), DiskGB: a.GetLimits().GetDiskGb(),
		},
		Grace: time.Duration(a.GetGraceMs()) * time.Millisecond,
	}
	for _, p := range a.GetPorts() {
		out.Ports = append(out.Ports, fleet.Port{Number: int(p.GetNumber()), Protocol: p.GetProtocol()})
		if p.GetPublic() != 0 {
			out.Mappings = append(out.Mappings, fleet.PortMapping{Private: int(p.GetNumber()), Public: int(p.GetPublic())})
		}
	}
	if a.GetPersistentGb() > 0 {
		out.Persistent = &fleet.PersistentMount{SizeGB: int(a.GetPersistentGb()), Path: a.GetPersistentPath()}
	}
	if c := a.GetRegistry(); c != nil {
		out.Registry = &fleet.Credential{Username: c.GetUsername(), Password: fleet.Secret(c.GetPassword())}
	}
	return out
}

// renewInTime trades the certificate for a fresh one at a random point between half and four fifths
// of its life, and again every minute while that fails.
func (s *sessions) renewInTime(ctx context.Context, conn *grpc.ClientConn) error {
	for {
		leaf, err := s.store.Leaf()
		if err != nil {
			return err
		}
		wait := max(time.Until(pki.RenewAt(leaf, rand.Float64())), renewRetry)
		for {
			if err := pause(ctx, wait); err != nil {
				return err
			}
			if err = renew(ctx, conn, s.store); err == nil {
				break
			}
			s.log.Warn("renew the host's certificate", "err", err)
			wait = renewRetry
		}
		s.log.Info("host certificate renewed")
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// nextAddr returns an allocator for a subnet.
func nextAddr(subnet netip.Prefix, next func(netip.Prefix, map[netip.Addr]bool) (netip.Addr, error)) ledger.Allocate {
	return func(used map[netip.Addr]bool) (netip.Addr, error) { return next(subnet, used) }
}
