package dispatch

import (
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

const (
	// movedAtOnce is how many sessions of hosts the leader ends within a look at all of them, for the hosts to go to another scheduler,
	// while no more than onTheWay have not arrived there.
	movedAtOnce = 16
	onTheWay    = 32
	movesAfter  = 6 // times Settle: not while hosts come to a new leader
	// stays is for how long a host keeps its session with the leader that could not reach the scheduler it was sent to.
	stays = 5 * time.Minute
)

var errMoved = fleet.Unavailable("the host is to have its session at another scheduler", nil)

// through is another scheduler with which hosts have sessions.
type through struct {
	id      fleet.MemberID
	address string       // guarded by Server.mu
	heard   atomic.Int64 // Unix nanoseconds
}

func (t *through) silent(now time.Time, d time.Duration) bool {
	return now.Sub(time.Unix(0, t.heard.Load())) > d
}

// hostsServer is the leader's end of sessions that other schedulers pass on.
type hostsServer struct {
	agentrpc.UnimplementedHostsServer
	*Server
}

// follower returns the scheduler that calls, if this one leads.
func (s *Server) follower(ctx context.Context) (fleet.MemberID, error) {
	who, err := agentrpc.PeerIdentity(ctx)
	if err != nil || who.Role != pki.RoleScheduler {
		return "", status.Error(codes.PermissionDenied, "a scheduler's certificate is needed")
	}
	if s.Refuse != nil {
		if err := s.Refuse(who); err != nil {
			return "", status.Error(codes.PermissionDenied, err.Error())
		}
	}
	if !s.Node.IsLeader() {
		return "", s.notLeader(ctx)
	}
	return fleet.MemberID(who.ID), nil
}

// Vouch implements agentrpc.HostsServer.
func (h hostsServer) Vouch(ctx context.Context, in *agentrpc.VouchRequest) (*agentrpc.VouchResponse, error) {
	id, err := h.follower(ctx)
	if err != nil {
		return nil, err
	}
	if len(in.GetAddress()) > maxWord {
		return nil, status.Error(codes.InvalidArgument, "the address has more than 256 bytes")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lead == nil {
		return nil, h.notLeader(ctx)
	}
	t := h.others[id]
	if t == nil {
		t = &through{id: id}
		h.others[id] = t
	}
	t.address = in.GetAddress()
	t.heard.Store(time.Now().UnixNano())
	return &agentrpc.VouchResponse{}, nil
}

// Session implements agentrpc.HostsServer.
func (h hostsServer) Session(stream agentrpc.Hosts_SessionServer) error {
	id, err := h.follower(stream.Context())
	if err != nil {
		return err
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	host := strings.Join(md.Get(hostHeader), ",")
	if host == "" || len(host) > maxWord {
		return status.Error(codes.InvalidArgument, "a host's id of 1 to 256 bytes is needed")
	}
	h.mu.Lock()
	t := h.others[id]
	h.mu.Unlock()
	if t == nil {
		return status.Error(codes.Unavailable, "this scheduler has not heard that the caller is there")
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	hello, err := recvHello(ctx, stream)
	if err != nil {
		return grpcOrStatus(err)
	}
	x := newSession(h.Server, fleet.HostID(host), hello, cancel)
	x.through = t
	if err = h.hold(ctx, stream, x, hello); errors.Is(err, errNotYet) {
		return h.notLeader(stream.Context())
	}
	return err
}

// elsewhere returns the link address of the scheduler at which a host is to have its session; empty: here.
func (s *Server) elsewhere(host fleet.HostID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := s.reachable(time.Now())
	if len(there) == 0 {
		return ""
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(host))
	return there[int(sum.Sum32()%uint32(len(there)))].address //nolint:gosec // few
}

// reachable returns the schedulers that hosts can have sessions with, in order. The caller holds mu.
func (s *Server) reachable(now time.Time) (out []*through) {
	for _, t := range s.others {
		if t.address != "" && !t.silent(now, s.HeartbeatTimeout/2) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b *through) int { return strings.Compare(string(a.id), string(b.id)) })
	return out
}

// moveSome has a few hosts take their sessions to other schedulers, so that this one, which leads, keeps none. The caller holds mu.
func (s *Server) moveSome(now time.Time) {
	if len(s.reachable(now)) == 0 {
		return
	}
	maps.DeleteFunc(s.moved, func(_ fleet.HostID, at time.Time) bool { return now.Sub(at) > settleFactor*s.Settle })
	n := min(movedAtOnce, onTheWay-len(s.moved))
	for _, x := range s.sessions {
		if n <= 0 {
			return
		}
		least := movesAfter * s.Settle
		if x.place == agentrpc.Place_PLACE_STAYING {
			least = stays
		}
		if x.through == nil && x.place != agentrpc.Place_PLACE_LEADER && x.welcomed.Load() && !x.working.Load() && now.Sub(x.since) > least {
			s.moved[x.host] = now
			x.moves.Store(true)
			x.cancel(errMoved)
			n--
		}
	}
}

// Followers counts the schedulers that hosts can have sessions with beside this one, which leads.
func (s *Server) Followers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.reachable(time.Now()))
}

// HostSessions counts the sessions of hosts: those that this scheduler, which leads, has with them, those that others pass on to it, and
// those that it passes on.
func (s *Server) HostSessions() (direct, through, passed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		if x.through != nil {
			through++
		} else {
			direct++
		}
	}
	return direct, through, int(s.relay.passed.Load())
}

// lostBy is when a host whose session has ended counts as lost, unless it comes back.
func (x *session) lostBy() time.Time {
	s, heard := x.server, time.Unix(0, x.lastSeen.Load())
	switch {
	case x.moves.Load():
		return heard.Add(s.HeartbeatTimeout + settleFactor*s.Settle)
	case x.through == nil || x.left.Load():
		return heard.Add(s.HeartbeatTimeout + s.HostTimeout)
	}
	// What has ended is the scheduler between, of which the host has to notice, to find another.
	if last := time.Unix(0, x.through.heard.Load()); last.After(heard) {
		heard = last
	}
	return heard.Add(s.HeartbeatTimeout + s.Settle)
}
