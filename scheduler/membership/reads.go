package membership

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

const readTimeout = 5 * time.Second // of a read at a member that does not lead

// Reads lets a member read what was acknowledged anywhere before, whether it leads or not. It is safe for concurrent use.
type Reads struct {
	cfg Config

	mu   sync.Mutex // guards the fields below
	at   string     // the address of conn
	conn *grpc.ClientConn
}

// NewReads makes the Reads of a member. Close must be called.
func NewReads(cfg Config) *Reads { return &Reads{cfg: cfg} }

// Barrier returns when a view of the member's store shows everything that was acknowledged before the call. A member that does not lead
// asks the leader up to where that is. Errors: as of replica.Node, and unavailable when no leader can be asked.
func (r *Reads) Barrier(ctx context.Context) error {
	err := r.cfg.Node.Barrier(ctx)
	if !errors.Is(err, replica.ErrNotLeader) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	leader, ok := r.leader(ctx)
	if !ok {
		return err
	}
	conn, dialErr := r.to(leader.Address)
	if dialErr != nil {
		return dialErr
	}
	out, callErr := agentrpc.NewPeerClient(conn).ReadIndex(ctx, &agentrpc.ReadIndexRequest{})
	if callErr != nil {
		return fleet.Unavailable("the leader of the control plane does not answer", callErr)
	}
	if out.GetIndex() == 0 {
		return nil
	}
	if err := r.cfg.Store.Wait(ctx, out.GetIndex()-1); err != nil {
		return fleet.Unavailable("this scheduler lags behind the leader", err)
	}
	return nil
}

// leader waits until it is known who leads, while ctx lasts, and reports whether that is another member.
func (r *Reads) leader(ctx context.Context) (replica.Member, bool) {
	for {
		changes := r.cfg.Node.LeaderChanges()
		if m, ok := r.cfg.Node.Leader(); ok {
			return m, m.ID != string(r.cfg.Self.ID)
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return replica.Member{}, false
		}
	}
}

// to returns the connection to the leader, which is kept for as long as it leads.
func (r *Reads) to(address string) (*grpc.ClientConn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil && r.at == address {
		return r.conn, nil
	}
	conn, err := dialPeer(r.cfg.Certs, address)
	if err != nil {
		return nil, fleet.Unavailable("the leader of the control plane cannot be asked", err)
	}
	if r.conn != nil {
		_ = r.conn.Close()
	}
	r.at, r.conn = address, conn
	return conn, nil
}

// Requests tells the leader, which is another member, of requests to endpoints. Errors: unavailable when none is known, or it does not
// answer.
func (r *Reads) Requests(ctx context.Context, in *agentrpc.RequestsReport) (*agentrpc.RequestsWord, error) {
	leader, ok := r.cfg.Node.Leader()
	if !ok || leader.ID == string(r.cfg.Self.ID) {
		return nil, fleet.Unavailable("no leader of the control plane is known", nil)
	}
	conn, err := r.to(leader.Address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	return agentrpc.NewPeerClient(conn).Requests(ctx, in)
}

// Requests implements agentrpc.PeerServer.
func (s *Server) Requests(ctx context.Context, in *agentrpc.RequestsReport) (*agentrpc.RequestsWord, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if s.cfg.Requests == nil || !s.cfg.Node.IsLeader() {
		return nil, s.notLeader(ctx)
	}
	return s.cfg.Requests(who, in), nil
}

// Close ends what is kept.
func (r *Reads) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil {
		_ = r.conn.Close()
		r.conn = nil
	}
}

// ReadIndex implements agentrpc.PeerServer.
func (s *Server) ReadIndex(ctx context.Context, _ *agentrpc.ReadIndexRequest) (*agentrpc.ReadIndexResponse, error) {
	if _, err := s.caller(ctx); err != nil {
		return nil, err
	}
	if err := s.lead(ctx); err != nil {
		return nil, err
	}
	out := &agentrpc.ReadIndexResponse{}
	return out, s.cfg.Store.View(func(v *state.View) error { out.Index = v.Index(); return nil })
}
