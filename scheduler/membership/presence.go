package membership

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

const (
	showEvery   = 2 * time.Second // while no leader is known, or it has another address of this member
	recallEvery = time.Minute     // otherwise
	callTimeout = 5 * time.Second
)

// Presence is what every member does for itself, whether it leads or not: it tells the others where it is, it
// finds out that it was removed, and it keeps its certificate fresh.
type Presence struct {
	cfg     Config
	removed atomic.Bool
}

// NewPresence returns the presence of a member.
func NewPresence(cfg Config) *Presence { return &Presence{cfg: cfg} }

// Removed reports whether this member was removed from the cluster, as far as it knows.
func (p *Presence) Removed() bool { return p.removed.Load() }

// Run goes on until ctx ends.
func (p *Presence) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { p.keepCertificate(ctx) })
	var shown time.Time
	var told replica.Member // the leader that knows this member's address
	for {
		changes := p.cfg.Node.LeaderChanges()
		leader, known := p.cfg.Node.Leader()
		now := time.Now()
		pause := recallEvery
		if !known || leader != told {
			pause = showEvery
		}
		if now.Sub(shown) >= pause || leader != told {
			shown = now
			told = p.show(ctx, leader, known)
		}
		if _, err := sleep.Or(ctx, showEvery, changes); err != nil {
			return nil
		}
	}
}

// show tells the leader, or while none is known everybody, where this member is. It returns the leader that was
// told.
func (p *Presence) show(ctx context.Context, leader replica.Member, known bool) (told replica.Member) {
	var others []string
	gone := false
	err := p.cfg.Store.View(func(v *state.View) error {
		for _, m := range v.Members() {
			switch {
			case m.ID == p.cfg.Self.ID:
				gone = !m.RemovedAt.IsZero()
			case m.RemovedAt.IsZero():
				others = append(others, m.Address)
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return told
	case gone:
		p.learnRemoved()
		return told
	case known && leader.ID == string(p.cfg.Self.ID):
		return leader
	case known:
		others = []string{leader.Address}
	case len(others) == 0:
		others = p.cfg.Joined
	}
	for _, address := range others {
		err := p.tell(ctx, address)
		switch {
		case err == nil && known:
			return leader
		case err != nil && ctx.Err() == nil:
			p.cfg.Log.Debug("tell where this scheduler is", "to", address, "err", err)
		}
	}
	return told
}

// tell says to the scheduler at an address where this one is.
func (p *Presence) tell(ctx context.Context, address string) error {
	return p.call(ctx, address, func(ctx context.Context, c agentrpc.PeerClient) error {
		_, err := c.Status(ctx, &agentrpc.StatusRequest{Address: p.cfg.Self.Address})
		if status.Code(err) == codes.PermissionDenied {
			p.learnRemoved() // its certificate is a scheduler's: nothing else is refused
		}
		return err
	})
}

func (p *Presence) learnRemoved() {
	if !p.removed.Swap(true) {
		p.cfg.Log.Error("this scheduler was removed from the cluster: it serves nothing. To bring it back, join anew with a token and an empty data folder",
			"member", p.cfg.Self.ID)
	}
}

func (p *Presence) call(ctx context.Context, address string, fn func(context.Context, agentrpc.PeerClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := p.cfg.dial(address)
	if err != nil {
		return err
	}
	return errors.Join(fn(ctx, agentrpc.NewPeerClient(conn)), conn.Close())
}
