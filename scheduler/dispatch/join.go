package dispatch

import (
	"context"
	"crypto/x509"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

const maxHostName = 253

// Join implements agentrpc.JoinServer: the token is burnt in the same command that creates the host. Who did not hear the answer may ask the
// same again until the token expires, and is the same host.
func (s *Server) Join(ctx context.Context, in *agentrpc.JoinRequest) (*agentrpc.JoinResponse, error) {
	token, err := pki.ParseJoinToken(in.GetToken())
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, "the join token is not valid")
	}
	if in.GetMachineId() == "" || len(in.GetMachineId()) > maxHostName || in.GetName() == "" || len(in.GetName()) > maxHostName {
		return nil, status.Error(codes.InvalidArgument, "machine id and name must have 1 to 253 characters")
	}
	if len(in.GetHardware()) > maxHostName {
		return nil, status.Error(codes.InvalidArgument, "the hardware's identity must have at most 253 characters")
	}
	if !s.Node.IsLeader() {
		return nil, s.notLeader(ctx)
	}
	request, err := pki.RequestID(in.GetCsr(), in.GetMachineId())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "the certificate request is not valid")
	}
	now := time.Now()
	// Whoever reaches the port gets this far: a look at the state is all that a guess may cost.
	id, err := s.mayJoin(ctx, token, request, in.GetMachineId(), now)
	if err == nil && id == "" {
		id = fleet.HostID(fleet.NewID())
		hash := pki.Hash(token.Secret)
		err = s.proposeJoin(ctx, state.JoinHost{Token: token.ID, Hash: hash[:], Request: request, At: now, Host: fleet.Host{
			ID: id, Name: in.GetName(), MachineID: in.GetMachineId(), Hardware: in.GetHardware(), JoinedAt: now,
		}})
		if fleet.CodeOf(err) == fleet.CodeUnauthorized { // the same request may have come twice at once
			id, err = s.mayJoin(ctx, token, request, in.GetMachineId(), now)
		}
	}
	if err == nil && id == "" {
		err = fleet.Unavailable("the join was not committed", nil)
	}
	if err != nil {
		s.Log.Warn("a join was refused", "name", in.GetName(), "err", err)
		return nil, grpcError(err)
	}
	ca, err := s.CA(ctx)
	if err != nil {
		s.Log.Error("open the CA", "err", err)
		return nil, grpcError(err) // leadership may have ended since
	}
	leaf, err := ca.Issue(in.GetCsr(), pki.Identity{Role: pki.RoleHost, ID: string(id)}, s.CertLife, now)
	if err != nil {
		return nil, status.Error(codes.Internal, "internal error")
	}
	s.Log.Info("host joined", "host", id, "name", in.GetName())
	s.learnMembers()
	return &agentrpc.JoinResponse{
		HostId: string(id), Certificate: leaf.Raw, Ca: ca.Cert().Raw, ClusterId: ca.ClusterID(), Schedulers: *s.members.Load(),
		Cas: s.trust.Load().cas,
	}, nil
}

func (s *Server) proposeJoin(ctx context.Context, cmd state.JoinHost) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	return s.propose(ctx, cmd)
}

// mayJoin refuses a token that is unknown, burnt, expired or forged, which the state machine checks again when it burns it, and
// a machine with the id of a host that has a session now, whatever their hardware: clones of a virtual machine may share that, too.
// again is the host that this very request has made, and that never connected.
func (s *Server) mayJoin(ctx context.Context, token pki.JoinToken, request []byte, machine string, now time.Time) (again fleet.HostID, err error) {
	if err := s.Node.Barrier(ctx); err != nil {
		return "", err
	}
	good := false
	var had []fleet.Host
	err = s.Store.View(func(v *state.View) error {
		t, ok := v.Token(token.ID)
		good = ok && pki.HashMatches(token.Secret, t.Hash) && now.Before(t.ExpiresAt) && t.Answers(request)
		if good && t.Joined != "" {
			host, there := v.Host(fleet.HostID(t.Joined))
			again, good = host.ID, there && host.State == fleet.HostJoining
		}
		had = v.HostsOf(machine)
		return nil
	})
	if err != nil {
		return "", err
	}
	if !good {
		return "", &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "the join token is unknown, used or expired"}
	}
	for i := range had {
		if s.Reachable(had[i].ID) {
			return "", state.CopiedMachine(&had[i], "is connected at this moment")
		}
	}
	return again, nil
}

// Renew implements agentrpc.JoinServer.
func (s *Server) Renew(ctx context.Context, in *agentrpc.RenewRequest) (*agentrpc.RenewResponse, error) {
	who, err := hostOf(ctx)
	if err != nil {
		return nil, err
	}
	if !s.Node.IsLeader() {
		return nil, s.notLeader(ctx)
	}
	known := false
	if err := s.Node.Barrier(ctx); err != nil {
		return nil, grpcError(err)
	}
	err = s.Store.View(func(v *state.View) error {
		h, ok := v.Host(fleet.HostID(who.ID))
		known = ok && h.State != fleet.HostGone
		return nil
	})
	if err != nil || !known {
		return nil, status.Error(codes.PermissionDenied, "this host is not known any more")
	}
	ca, err := s.CA(ctx)
	if err != nil {
		s.Log.Error("open the CA", "err", err)
		return nil, grpcError(err) // leadership may have ended since
	}
	var leaf *x509.Certificate
	if leaf, err = ca.Issue(in.GetCsr(), who, s.CertLife, time.Now()); err != nil {
		return nil, status.Error(codes.InvalidArgument, "the certificate request is not valid")
	}
	s.learnMembers()
	return &agentrpc.RenewResponse{Certificate: leaf.Raw, Cas: s.trust.Load().cas}, nil
}
