package membership

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

const (
	pollTimeout    = 2 * time.Second
	connectTimeout = 2 * time.Second
	maxMessage     = 1 << 20 // bytes of an answer between schedulers
)

// poll is what is known of one member.
type poll struct {
	busy    bool                     // a question is under way
	asked   bool                     // at least one has ended
	at      time.Time                // when the question was put that it answered last
	answer  *agentrpc.StatusResponse // the last one
	address string                   // where it came from
	close   int
	fault   string         // of the last question
	clock   *time.Duration // how far ahead of this one's its clock was at the last answer; nil: not known
}

// heard is what the poll says at a time.
func (p *poll) heard(now time.Time) heard {
	if p.answer == nil {
		return heard{problem: p.fault}
	}
	h := heard{
		answers: now.Sub(p.at) < silentAfter, known: true, close: p.close, applied: p.answer.GetAppliedIndex(),
		level: p.answer.GetLevel(), version: p.answer.GetVersion(), address: p.address,
		problem: p.answer.GetProblem(), full: p.answer.GetDiskFull(), certificate: agentrpc.DecodeCertificate(p.answer.GetCertificate()),
	}
	if !h.answers {
		h.problem, h.close = p.fault, 0
	}
	return h
}

// asker asks the members how far they are. Each has a connection of its own and one question at a time, so
// that one that hangs holds up nobody.
type asker struct {
	k      *Keeper
	ctx    context.Context //nolint:containedctx // ends with the leadership that the asker belongs to
	cancel context.CancelFunc
	wg     sync.WaitGroup
	news   chan struct{} // of capacity 1: somebody answered who did not before

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // by address
}

func newAsker(k *Keeper, ctx context.Context) *asker {
	ctx, cancel := context.WithCancel(ctx)
	return &asker{k: k, ctx: ctx, cancel: cancel, news: make(chan struct{}, 1), conns: map[string]*grpc.ClientConn{}}
}

// close ends every question and connection.
func (a *asker) close() {
	a.cancel()
	a.wg.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.conns {
		_ = c.Close()
	}
}

// round asks everybody who is not being asked.
func (a *asker) round() {
	var members []fleet.Member
	err := a.k.cfg.Store.View(func(v *state.View) error { members = present(v.Members()); return nil })
	if err != nil {
		a.k.cfg.Log.Error("read the schedulers", "err", err)
		return
	}
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	used := map[string]bool{}
	for _, m := range members {
		if m.ID == a.k.cfg.Self.ID {
			continue
		}
		p, address := a.known(m)
		used[address], used[m.Address] = true, true
		if !p.busy {
			p.busy = true
			a.wg.Go(func() { a.ask(m, address) })
		}
	}
	a.forget(members, used)
	a.k.settle()
}

// known returns what is known of a member and where to reach it. The caller holds the keeper's mu.
func (a *asker) known(m fleet.Member) (*poll, string) {
	p := a.k.polls[m.ID]
	if p == nil {
		p = &poll{}
		a.k.polls[m.ID] = p
	}
	if moved, ok := a.k.moved[m.ID]; ok {
		return p, moved
	}
	return p, m.Address
}

// everybody asks all members now and returns when they have answered, or will not.
func (a *asker) everybody(members []fleet.Member) {
	var wg sync.WaitGroup
	a.k.mu.Lock()
	for _, m := range members {
		if m.ID != a.k.cfg.Self.ID {
			_, address := a.known(m)
			wg.Go(func() { a.ask(m, address) })
		}
	}
	a.k.mu.Unlock()
	wg.Wait()
}

// forget drops what is known of members that are none any more. The caller holds the keeper's mu.
func (a *asker) forget(members []fleet.Member, used map[string]bool) {
	for id := range a.k.polls {
		if !isMember(members, id) {
			delete(a.k.polls, id)
			delete(a.k.moved, id)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for address, c := range a.conns {
		if !used[address] {
			_ = c.Close()
			delete(a.conns, address)
		}
	}
}

// settle says that everybody was asked once. The caller holds mu.
func (k *Keeper) settle() {
	for _, p := range k.polls {
		if !p.asked {
			return
		}
	}
	select {
	case <-k.first:
	default:
		close(k.first)
	}
}

// ask puts one question to a member at an address; the one of its record is tried when another does not answer.
func (a *asker) ask(m fleet.Member, address string) {
	last, begun, wall := a.k.cfg.Node.LastIndex(), time.Now(), a.k.cfg.now()
	joined := slices.ContainsFunc(a.k.cfg.Node.Servers(), func(s replica.Server) bool { return s.ID == string(m.ID) })
	answer, err := a.status(m.ID, address)
	if err != nil && address != m.Address && a.ctx.Err() == nil {
		address, wall = m.Address, a.k.cfg.now()
		answer, err = a.status(m.ID, address)
	}
	off := clockOff(answer, wall, a.k.cfg.now())
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	p := a.k.polls[m.ID]
	if p == nil {
		return
	}
	fresh := !p.asked || err == nil && (p.fault != "" || p.close == steady-1)
	p.busy, p.asked = false, true
	if err != nil {
		p.fault = faultText(err)
	} else {
		p.at, p.answer, p.address, p.fault, p.clock = begun, answer, address, "", off
		if joined && isClose(answer.GetAppliedIndex(), last) {
			p.close++
		} else {
			p.close = 0
		}
	}
	a.k.settle()
	if fresh {
		select {
		case a.news <- struct{}{}:
		default:
		}
	}
}

// clockOff is how far ahead of this member's the clock of one was that answered between two moments of this one's:
// nil when it does not say, or when the answer took so long that it says nothing.
func clockOff(answer *agentrpc.StatusResponse, asked, answered time.Time) *time.Duration {
	took := answered.Sub(asked)
	if answer.GetClockNs() == 0 || took < 0 || took > pollTimeout {
		return nil
	}
	off := time.Unix(0, answer.GetClockNs()).Sub(asked.Add(took / 2))
	return &off
}

// isClose reports whether a member that has applied so much is close behind. One that has next to nothing never
// is, however short the log.
func isClose(applied, last uint64) bool {
	return applied+closeBehind > last && applied > last/2
}

// status asks who is at an address, which must be the member.
func (a *asker) status(id fleet.MemberID, address string) (*agentrpc.StatusResponse, error) {
	conn, err := a.conn(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(a.ctx, pollTimeout)
	defer cancel()
	out, err := agentrpc.NewPeerClient(conn).Status(ctx, &agentrpc.StatusRequest{}, grpc.WaitForReady(true))
	if err == nil && out.GetMemberId() != string(id) {
		err = fmt.Errorf("another scheduler is at %s", address)
	}
	return out, err
}

func (a *asker) conn(address string) (*grpc.ClientConn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.conns[address]; c != nil {
		return c, nil
	}
	c, err := a.k.cfg.dial(address)
	if err == nil {
		a.conns[address] = c
	}
	return c, err
}

// faultText says in plain words why a member does not answer.
func faultText(err error) string {
	text := status.Convert(err).Message()
	code := status.Code(err)
	switch {
	case strings.Contains(text, "connection refused"):
		return "it does not answer: connection refused"
	case code == codes.PermissionDenied || code == codes.Unauthenticated:
		return "it refuses this scheduler"
	case strings.Contains(text, "authentication handshake failed"):
		return "it does not answer: it is not a scheduler of this cluster, or its certificate is not valid"
	case strings.Contains(text, "no such host"):
		return "it does not answer: its name is not known"
	case strings.Contains(text, "no route to host"), strings.Contains(text, "network is unreachable"):
		return "it does not answer: no way to its address"
	case code == codes.Unknown:
		return "it does not answer: " + text // of our own
	}
	return "it does not answer: no answer in time"
}

// dial prepares a connection for gRPC with the scheduler at an address; it is made when it is needed.
func (c *Config) dial(address string) (*grpc.ClientConn, error) {
	if c.Dial == nil {
		return dialPeer(c.Certs, address)
	}
	return dialPeer(c.Certs, address, grpc.WithContextDialer(c.Dial))
}

// Dial returns a connection to the scheduler at an address, with the certificate of a scheduler or of a gateway.
func Dial(certs *pki.Store, address string) (*grpc.ClientConn, error) {
	return dialPeer(certs, address)
}

// Dialer returns a function that connects to a scheduler at an address as Dial does, with further options.
func Dialer(certs *pki.Store) func(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return func(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
		return dialPeer(certs, address, opts...)
	}
}

func dialPeer(certs *pki.Store, address string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	creds, err := agentrpc.HostCredentials(certs)
	if err != nil {
		return nil, err
	}
	return connection(address, creds, more...)
}

func connection(address string, creds credentials.TransportCredentials, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: connectTimeout,
		}),
	}, more...)...)
}
