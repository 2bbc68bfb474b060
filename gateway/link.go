package gateway

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/sleep"
	"gantry/scheduler/balance"
	"gantry/scheduler/membership"
	"gantry/scheduler/routes"
)

const (
	silence     = 5 * time.Second // a scheduler that tells nothing for longer is left; it says something each second
	againLeast  = 100 * time.Millisecond
	againMost   = 5 * time.Second
	callTimeout = 2 * time.Second
	certEvery   = time.Second      // between looks at the certificate
	renewEvery  = 30 * time.Second // between tries to renew it
)

// link is what a gateway has to do with schedulers: it watches routes at one of them, asks that one about keys, and tells the leader.
type link struct {
	certs *pki.Store
	table *routes.Table
	keep  func(schedulers []string) error // writes down where schedulers are
	log   *slog.Logger

	mu         sync.Mutex // guards the fields below
	schedulers []string
	control    *agentrpc.RoutesControl // as it was told last; nil: nothing was
	refused    bool                    // a scheduler does not know this gateway
	changes    chan struct{}           // closed and made anew when something above, or watched, has changed
	watched    *grpc.ClientConn        // of the scheduler that tells; nil: none does
	lost       time.Time               // when the last one that told was lost
	leaderAt   string
	leader     *grpc.ClientConn // to leaderAt
	closed     bool             // the leader is connected with no more
}

func newLink(certs *pki.Store, schedulers []string, keep func([]string) error, log *slog.Logger) *link {
	return &link{certs: certs, table: routes.NewTable(), keep: keep, log: log, schedulers: schedulers, changes: make(chan struct{})}
}

// run watches until ctx ends.
func (l *link) run(ctx context.Context) error {
	defer l.close()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { l.keepCertificate(ctx) })
	pause := againLeast
	for i := 0; ctx.Err() == nil; i++ {
		l.mu.Lock()
		all := l.schedulers
		l.mu.Unlock()
		began := time.Now()
		address := all[i%len(all)]
		err := l.watch(ctx, address)
		if time.Since(began) > againMost {
			pause = againLeast
		}
		l.log.Debug("the watch of routes ended", "scheduler", address, "err", err)
		_ = sleep.For(ctx, pause/2+rand.N(pause/2)) //nolint:gosec // no secret
		pause = min(2*pause, againMost)
	}
	return nil
}

// watch takes what the scheduler at an address tells, until it tells nothing for a while.
func (l *link) watch(ctx context.Context, address string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(silence, func() { cancel(errors.New("it tells nothing")) })
	defer quiet.Stop()
	conn, err := membership.Dial(l.certs, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stream, err := agentrpc.NewRoutesClient(conn).Watch(ctx, &agentrpc.WatchRequest{})
	if err != nil {
		return err
	}
	defer l.set(func() { l.watched, l.lost = nil, time.Now() })
	for first := true; ; first = false {
		part, err := stream.Recv()
		if err != nil {
			if status.Code(err) == codes.PermissionDenied {
				l.set(func() { l.refused = true })
				l.log.Error("a scheduler refuses this gateway", "scheduler", address, "err", status.Convert(err).Message())
			}
			return err
		}
		quiet.Reset(silence)
		l.table.Take(part)
		if control := part.GetControl(); control != nil || first {
			l.learn(control, conn)
		}
		if first {
			l.log.Info("watches routes", "scheduler", address)
		}
	}
}

func (l *link) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.changes)
	l.changes = make(chan struct{})
}

// learn takes what a scheduler tells of the control plane.
func (l *link) learn(control *agentrpc.RoutesControl, conn *grpc.ClientConn) {
	var moved []string
	l.set(func() {
		l.watched, l.refused = conn, false
		if control == nil {
			return
		}
		l.control = control
		if now := control.GetSchedulers(); len(now) > 0 && !slices.Equal(now, l.schedulers) {
			l.schedulers, moved = now, now
		}
	})
	if moved != nil {
		if err := l.keep(moved); err != nil {
			l.log.Error("write down where schedulers are", "err", err)
		}
	}
	if control == nil {
		return
	}
	cas, err := pki.ParseTrustDER(control.GetCas())
	if err == nil {
		err = l.certs.Trust(cas...)
	}
	if err != nil && !errors.Is(err, pki.ErrOusted) && !errors.Is(err, pki.ErrEarlier) {
		l.log.Error("take over the cluster's CAs", "err", err)
	}
}

// keepCertificate renews the certificate in time, and when another CA signs, until ctx ends.
func (l *link) keepCertificate(ctx context.Context) {
	fraction := rand.Float64() //nolint:gosec // no secret
	var tried time.Time
	for sleep.For(ctx, certEvery) == nil {
		leaf, err := l.certs.Leaf()
		due := err != nil || l.certs.Outdated() || l.ousted(leaf) || !time.Now().Before(pki.RenewAt(leaf, fraction))
		address := l.Leader()
		if !due || address == "" || time.Since(tried) < renewEvery {
			continue
		}
		tried = time.Now()
		if err := membership.RenewGateway(ctx, l.certs, address); err != nil {
			l.log.Warn("renew the gateway's certificate", "err", err)
			continue
		}
		l.log.Info("renewed the gateway's certificate")
	}
}

// ousted reports whether the certificate is not of the CA that signs.
func (l *link) ousted(leaf *x509.Certificate) bool {
	cas, err := pki.ParseTrustDER(l.told().GetCas())
	return err == nil && len(cas) > 0 && leaf.CheckSignatureFrom(cas[0]) != nil
}

// told is what a scheduler told last of the control plane.
func (l *link) told() *agentrpc.RoutesControl {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.control
}

// Leads implements forward.Leaders.
func (l *link) Leads() bool { return false }

// Leader implements forward.Leaders.
func (l *link) Leader() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watched == nil && time.Since(l.lost) > silence {
		return ""
	}
	return l.control.GetLeader()
}

// Changes implements forward.Leaders.
func (l *link) Changes() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// askKey asks the scheduler that is watched, or the next one, while ctx lasts.
func (l *link) askKey(ctx context.Context, q *agentrpc.KeyQuestion) (*agentrpc.KeyAnswer, error) {
	for {
		l.mu.Lock()
		conn, changes := l.watched, l.changes
		l.mu.Unlock()
		if conn != nil {
			once, cancel := context.WithTimeout(ctx, callTimeout)
			answer, err := agentrpc.NewRoutesClient(conn).CheckKey(once, q)
			cancel()
			if err == nil {
				return answer, nil
			}
		}
		if _, err := sleep.Or(ctx, callTimeout, changes); err != nil {
			return nil, fleet.Unavailable("no scheduler answers", err)
		}
	}
}

// report tells the leader of requests, and how this gateway is.
func (l *link) report(ctx context.Context, in *agentrpc.GatewayReport) (balance.Word, error) {
	conn, err := l.toLeader()
	if err != nil {
		return balance.Word{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	in.Certificate = agentrpc.EncodeCertificate(agentrpc.OwnCertificate(l.certs))
	out, err := agentrpc.NewRoutesClient(conn).Report(ctx, in)
	if err != nil {
		return balance.Word{}, err
	}
	return balance.DecodeWord(out), nil
}

// noteWrite has the leader record that files are written. Errors: what it says, unavailable.
func (l *link) noteWrite(ctx context.Context, in *agentrpc.FilesWrite) error {
	conn, err := l.toLeader()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := agentrpc.NewRoutesClient(conn).NoteWrite(ctx, in)
	if err != nil {
		return fleet.Unavailable("the audit log cannot be written at the moment; try again", err)
	}
	return refusal(answer)
}

// toLeader returns the connection to the leader, which is kept for as long as it leads.
func (l *link) toLeader() (*grpc.ClientConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	address := l.control.GetLeader()
	switch {
	case address == "" || l.closed:
		return nil, fleet.Unavailable("no leader of the control plane is known", nil)
	case l.leader != nil && l.leaderAt == address:
		return l.leader, nil
	}
	conn, err := membership.Dial(l.certs, address)
	if err != nil {
		return nil, err
	}
	if l.leader != nil {
		_ = l.leader.Close()
	}
	l.leader, l.leaderAt = conn, address
	return conn, nil
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.leader != nil {
		_ = l.leader.Close()
		l.leader = nil
	}
}
