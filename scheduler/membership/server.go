package membership

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/entry"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

const (
	// CertLife is how long a scheduler's certificate is good.
	CertLife = 30 * 24 * time.Hour

	proposeTimeout = 10 * time.Second
	changeTimeout  = 10 * time.Second // of a change of Raft's configuration
	maxName        = 253
)

// Node is the replica of this member; see replica.Node.
type Node interface {
	Group
	Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error)
	LeaderChanges() <-chan struct{}
	AppliedIndex() uint64
	DiskFull() bool
}

// Jobs is this member's replica of the group that has the jobs; see replica.Node.
type Jobs interface {
	Group
	WhileLeader(ctx context.Context, fn func(context.Context) error) error
	Acked(id string) uint64
}

// Group is a Raft group with its members; see replica.Node.
type Group interface {
	Barrier(ctx context.Context) error
	IsLeader() bool
	Leader() (replica.Member, bool)
	LastIndex() uint64
	Servers() []replica.Server
	AddNonVoter(ctx context.Context, m replica.Member) error
	Promote(ctx context.Context, m replica.Member) error
	Demote(ctx context.Context, id string) error
	Remove(ctx context.Context, id string) error
	Transfer(ctx context.Context, id string) error
}

// Self is this member, as it says itself.
type Self struct {
	ID      fleet.MemberID
	Address string // host:port at which the others reach its link port
	Name    string
	Level   uint64 // newest feature level that its program understands
	Version string
	Problem func() string // in one sentence; empty: none. nil: never one
}

// Config is what Server, Keeper and Presence are made from.
type Config struct {
	Self   Self
	Store  *state.Store
	Node   Node
	Jobs   Jobs // nil: there is no such group
	Sealer *pki.Sealer
	Certs  *pki.Store
	CA     func(ctx context.Context) (*pki.CA, error)
	Log    *slog.Logger
	Dial   func(ctx context.Context, address string) (net.Conn, error) // without TLS; nil: over TCP
	Clock  func() time.Time                                            // the wall clock; nil: time.Now
	// Joined are the schedulers by which this member joined. It asks them while its own state knows no other member: one
	// that is removed before it has caught up hears of it from nobody else.
	Joined []string
	// Requests takes what another member tells of requests to endpoints; nil: nobody does.
	Requests func(from fleet.MemberID, in *agentrpc.RequestsReport) *agentrpc.RequestsWord
}

// now returns the time of the wall clock.
func (c *Config) now() time.Time {
	if c.Clock != nil {
		return c.Clock()
	}
	return time.Now()
}

// Server answers the other schedulers. Its methods are safe for concurrent use.
type Server struct {
	agentrpc.UnimplementedPeerServer
	cfg    Config
	keeper *Keeper
}

// NewServer returns the server of a member whose keeper is given.
func NewServer(cfg Config, keeper *Keeper) *Server { return &Server{cfg: cfg, keeper: keeper} }

// Status implements agentrpc.PeerServer. It needs no leader and reads no state but who was removed.
func (s *Server) Status(ctx context.Context, in *agentrpc.StatusRequest) (*agentrpc.StatusResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if address := in.GetAddress(); address != "" && ValidAddress(address) {
		s.keeper.announce(who, address)
	}
	return s.cfg.status(), nil
}

// status is what this member says of itself.
func (c *Config) status() *agentrpc.StatusResponse {
	out := &agentrpc.StatusResponse{
		MemberId: string(c.Self.ID), LastIndex: c.Node.LastIndex(), AppliedIndex: c.Node.AppliedIndex(),
		Level: c.Self.Level, Version: c.Self.Version, Address: c.Self.Address, DiskFull: c.Node.DiskFull(),
		Certificate: agentrpc.EncodeCertificate(agentrpc.OwnCertificate(c.Certs)), ClockNs: c.now().UnixNano(),
	}
	if c.Self.Problem != nil {
		out.Problem = c.Self.Problem()
	}
	return out
}

// caller returns the scheduler that calls, unless it was removed.
func (s *Server) caller(ctx context.Context) (fleet.MemberID, error) {
	who, err := agentrpc.PeerIdentity(ctx)
	if err != nil || who.Role != pki.RoleScheduler {
		return "", status.Error(codes.PermissionDenied, "a scheduler's certificate is needed")
	}
	if err := Refuse(s.cfg.Store)(who); err != nil {
		return "", status.Error(codes.PermissionDenied, err.Error())
	}
	return fleet.MemberID(who.ID), nil
}

// errRemoved is what a removed member is told.
var errRemoved = errors.New("this scheduler was removed from the cluster")

// errNoGateway is what a gateway without a record is told.
var errNoGateway = errors.New("this gateway was removed from the cluster, or is not known here yet")

// Refuse returns a function that gives an error for those who were schedulers of the cluster, and for gateways that are none. A
// scheduler that is not known is not refused: it may have joined after the newest entry that the store has.
func Refuse(store *state.Store) func(pki.Identity) error {
	return func(who pki.Identity) error {
		if who.Role == pki.RoleHost {
			return nil
		}
		removed, gateway := false, who.Role == pki.RoleGateway
		err := store.View(func(v *state.View) error {
			if gateway {
				_, ok := v.Gateway(fleet.GatewayID(who.ID))
				removed = !ok
				return nil
			}
			m, ok := v.Member(fleet.MemberID(who.ID))
			removed = ok && !m.RemovedAt.IsZero()
			return nil
		})
		switch {
		case err != nil:
			return errors.New("the state cannot be read")
		case removed && gateway:
			return errNoGateway
		case removed:
			return errRemoved
		}
		return nil
	}
}

// lead refuses a call unless this member leads and has applied all that its predecessors left.
func (s *Server) lead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	if !s.cfg.Node.IsLeader() {
		return s.notLeader(ctx)
	}
	if err := s.cfg.Node.Barrier(ctx); err != nil {
		return s.refusal(ctx, err)
	}
	return nil
}

func (s *Server) notLeader(ctx context.Context) error {
	leader, _ := s.cfg.Node.Leader()
	return agentrpc.NotLeader(ctx, leader.Address)
}

// refusal turns an error into what another scheduler is told.
func (s *Server) refusal(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, replica.ErrUnknown):
		return status.Error(codes.Aborted, "the outcome is not known")
	case errors.Is(err, replica.ErrNotLeader):
		return s.notLeader(ctx)
	case fleet.NothingDone(err):
		agentrpc.NothingDone(ctx)
	}
	code, ok := map[fleet.Code]codes.Code{
		fleet.CodeUnauthorized: codes.Unauthenticated,
		fleet.CodeNotFound:     codes.NotFound,
		fleet.CodeExists:       codes.AlreadyExists,
		fleet.CodeInvalid:      codes.InvalidArgument,
		fleet.CodeConflictRule: codes.FailedPrecondition,
		fleet.CodeNotAllowed:   codes.FailedPrecondition,
		fleet.CodeUnavailable:  codes.Unavailable,
	}[fleet.CodeOf(err)]
	var e *fleet.Error
	if !ok || !errors.As(err, &e) {
		s.cfg.Log.Error("a scheduler's request failed", "err", err)
		return status.Error(codes.Internal, "internal error")
	}
	text := e.Msg
	for _, d := range e.Details {
		text += " " + d
	}
	return status.Error(code, text)
}

// RenewMember implements agentrpc.PeerServer.
func (s *Server) RenewMember(ctx context.Context, in *agentrpc.RenewRequest) (*agentrpc.RenewResponse, error) {
	if err := s.lead(ctx); err != nil {
		return nil, err
	}
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if _, ok, err := s.member(who); err != nil || !ok {
		return nil, status.Error(codes.PermissionDenied, "this scheduler is not known")
	}
	return s.renewed(ctx, in.GetCsr(), pki.Identity{Role: pki.RoleScheduler, ID: string(who)}, CertLife)
}

// renewed answers a renewal.
func (s *Server) renewed(ctx context.Context, csr []byte, who pki.Identity, life time.Duration) (*agentrpc.RenewResponse, error) {
	leaf, _, err := s.issue(ctx, csr, who, life)
	if err != nil {
		return nil, err
	}
	trusted, err := trusted(s.cfg.Store)
	if err != nil {
		return nil, status.Error(codes.Internal, "internal error")
	}
	return &agentrpc.RenewResponse{Certificate: leaf.Raw, Cas: pki.RawCerts(trusted)}, nil
}

func (s *Server) member(id fleet.MemberID) (m fleet.Member, ok bool, err error) {
	err = s.cfg.Store.View(func(v *state.View) error { m, ok = v.Member(id); return nil })
	return m, ok, err
}

// issue signs the request of a member or a gateway.
func (s *Server) issue(ctx context.Context, csr []byte, who pki.Identity, life time.Duration) (*x509.Certificate, *pki.CA, error) {
	ca, err := s.cfg.CA(ctx)
	if err != nil {
		s.cfg.Log.Error("open the CA", "err", err)
		return nil, nil, status.Error(codes.Internal, "internal error")
	}
	leaf, err := ca.Issue(csr, who, life, time.Now())
	if err != nil {
		return nil, nil, status.Error(codes.InvalidArgument, "the certificate request is not valid")
	}
	return leaf, ca, nil
}

// ValidAddress reports whether a text is an address that others can dial: host:port with both parts given.
func ValidAddress(address string) bool {
	host, port, err := net.SplitHostPort(address)
	n, portErr := strconv.Atoi(port)
	return err == nil && portErr == nil && n > 0 && n < 1<<16 && host != "" && len(host) <= maxName && !net.ParseIP(host).IsUnspecified()
}
