package membership

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// JoinMember implements agentrpc.PeerServer: the token is burnt in the same command that creates the member. Who did not hear the answer may
// ask the same again until the token expires, and is the same member.
func (s *Server) JoinMember(ctx context.Context, in *agentrpc.JoinMemberRequest) (*agentrpc.JoinMemberResponse, error) {
	token, request, err := s.askedToJoin(ctx, in)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	id, err := s.newMember(ctx, token, request, in, now)
	if err != nil {
		s.cfg.Log.Warn("a scheduler's join was refused", "address", in.GetAddress(), "err", err)
		return nil, s.refusal(ctx, err)
	}
	leaf, ca, err := s.issue(ctx, in.GetCsr(), pki.Identity{Role: pki.RoleScheduler, ID: string(id)}, CertLife)
	if err != nil {
		return nil, err
	}
	s.cfg.Log.Info("a scheduler joined", "member", id, "address", in.GetAddress())
	return s.welcome(string(id), s.cfg.Sealer.KeyText(), leaf.Raw, ca)
}

// askedToJoin checks what needs no state, and that this member leads.
func (s *Server) askedToJoin(ctx context.Context, in *agentrpc.JoinMemberRequest) (token pki.JoinToken, request []byte, err error) {
	if token, err = pki.ParseJoinToken(in.GetToken()); err != nil {
		return token, nil, status.Error(codes.Unauthenticated, "the join token is not valid")
	}
	if !ValidAddress(in.GetAddress()) || len(in.GetName()) > maxName || len(in.GetVersion()) > maxName {
		return token, nil, status.Error(codes.InvalidArgument, "the address must be host:port as others can reach it, and the name at most 253 characters")
	}
	if err = s.lead(ctx); err != nil {
		return token, nil, err
	}
	if request, err = pki.RequestID(in.GetCsr(), in.GetAddress()); err != nil {
		return token, nil, status.Error(codes.InvalidArgument, "the certificate request is not valid")
	}
	return token, request, nil
}

// newMember makes the member that a request asks for, or returns the one that it has made and that never came.
func (s *Server) newMember(ctx context.Context, token pki.JoinToken, request []byte, in *agentrpc.JoinMemberRequest, now time.Time) (fleet.MemberID, error) {
	again, replaces, err := s.tokenIsGood(token, request, now)
	if err != nil || again != "" {
		return again, err
	}
	m := fleet.Member{
		ID: fleet.MemberID(fleet.NewID()), Name: in.GetName(), Address: in.GetAddress(),
		Level: in.GetLevel(), Version: in.GetVersion(), JoinedAt: now,
	}
	instead, stale, err := s.holder(m.Address, replaces, false)
	if err != nil {
		return "", err
	}
	hash := pki.Hash(token.Secret)
	err = s.admit(ctx, instead, stale, state.JoinMember{Token: token.ID, Hash: hash[:], Request: request, Member: m, At: now})
	if fleet.CodeOf(err) != fleet.CodeUnauthorized {
		return m.ID, err
	}
	again, _, err = s.tokenIsGood(token, request, now) // the same request may have come twice at once
	return again, err
}

// tokenIsGood refuses a token that is unknown, burnt, expired, forged or a host's, and returns which member the
// holder is to replace. The state machine checks it again when it burns it. again is the member that this very request has made, and
// that Raft does not know yet.
func (s *Server) tokenIsGood(token pki.JoinToken, request []byte, now time.Time) (again, replaces fleet.MemberID, err error) {
	good := false
	var made fleet.Member
	err = s.cfg.Store.View(func(v *state.View) error {
		t, ok := v.Token(token.ID)
		good = ok && t.Role == fleet.TokenScheduler && pki.HashMatches(token.Secret, t.Hash) && now.Before(t.ExpiresAt) && t.Answers(request)
		replaces, again = t.Replaces, fleet.MemberID(t.Joined)
		made, _ = v.Member(again)
		return nil
	})
	came := slices.ContainsFunc(s.cfg.Node.Servers(), func(m replica.Server) bool { return m.ID == string(again) })
	if again != "" && (made.ID != again || !made.RemovedAt.IsZero() || came) {
		good = false
	}
	if err == nil && !good {
		err = &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "the join token is unknown, used or expired"}
	}
	return again, replaces, err
}

// holder returns the member that is at an address; empty: none. Raft knows members by their addresses, so that a
// new one there could be taken for it: it is an error unless that is the one to be replaced. stale are members that
// are over with it: one that it has replaced in Raft, and, with again, those that were to replace it and never came.
func (s *Server) holder(address string, replaces fleet.MemberID, again bool) (id fleet.MemberID, stale []fleet.MemberID, err error) {
	came := map[fleet.MemberID]bool{}
	for _, server := range s.cfg.Node.Servers() {
		came[fleet.MemberID(server.ID)] = true
	}
	var members []fleet.Member
	if err := s.cfg.Store.View(func(v *state.View) error { members = present(v.Members()); return nil }); err != nil {
		return "", nil, err
	}
	var before fleet.MemberID
	for _, m := range members {
		if m.ID == replaces {
			before = m.Replaces
		}
	}
	for _, m := range members {
		switch {
		case m.ID == replaces:
			if m.Address == address {
				id = m.ID
			}
		case !came[m.ID] && (m.ID == before || again && m.Replaces == replaces):
			stale = append(stale, m.ID)
		case m.Address == address:
			text := "the scheduler " + string(m.ID) + " has this address"
			if !came[m.ID] {
				text += " and never came: take it out with gantry raft remove " + string(m.ID) + ", then join anew"
			}
			return "", nil, &fleet.Error{Code: fleet.CodeExists, Msg: text}
		}
	}
	return id, stale, nil
}

// admit commits what makes a member. One whose place it takes leaves Raft before the new one is told that it is a
// member: whoever answers there from then on knows nothing of what the old one promised.
func (s *Server) admit(ctx context.Context, instead fleet.MemberID, stale []fleet.MemberID, cmd state.Command) error {
	if instead != "" {
		return s.keeper.replace(ctx, instead, cmd, stale)
	}
	return propose(ctx, s.cfg.Node, cmd)
}

// Rejoin implements agentrpc.PeerServer.
func (s *Server) Rejoin(ctx context.Context, in *agentrpc.RejoinRequest) (*agentrpc.JoinMemberResponse, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if !ValidAddress(in.GetAddress()) || len(in.GetVersion()) > maxName {
		return nil, status.Error(codes.InvalidArgument, "the address must be host:port as others can reach it")
	}
	if err := s.lead(ctx); err != nil {
		return nil, err
	}
	if err := s.understands(in.GetLevel()); err != nil {
		return nil, s.refusal(ctx, err)
	}
	old, ok, err := s.member(who)
	if err != nil || !ok {
		return nil, status.Error(codes.PermissionDenied, "this scheduler is not known")
	}
	if who == s.cfg.Self.ID {
		return nil, status.Error(codes.FailedPrecondition, "this scheduler runs and leads: its data is not lost")
	}
	m := fleet.Member{
		ID: fleet.MemberID(fleet.NewID()), Name: old.Name, Address: in.GetAddress(), NonVoter: old.NonVoter,
		Level: in.GetLevel(), Version: in.GetVersion(), JoinedAt: time.Now(), Replaces: who,
	}
	leaf, ca, err := s.issue(ctx, in.GetCsr(), pki.Identity{Role: pki.RoleScheduler, ID: string(m.ID)}, CertLife)
	if err != nil {
		return nil, err
	}
	_, stale, err := s.holder(m.Address, who, true)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	if err := s.admit(ctx, who, stale, state.PutMember{Member: m}); err != nil {
		return nil, s.refusal(ctx, err)
	}
	s.cfg.Log.Info("a scheduler rejoins as a new member", "member", m.ID, "before", who, "address", m.Address)
	return s.welcome(string(m.ID), s.cfg.Sealer.KeyText(), leaf.Raw, ca)
}

// understands refuses a program that is older than the cluster.
func (s *Server) understands(level uint64) error {
	var force uint64
	err := s.cfg.Store.View(func(v *state.View) error {
		c, _ := v.Cluster()
		force = c.Level
		return nil
	})
	if err == nil && level < force {
		err = fleet.BreaksRule("the program is too old: it understands feature level %d, the cluster is at %d", level, force)
	}
	return err
}

// welcome is the answer to a scheduler, or with no seal key to a gateway, that joined.
func (s *Server) welcome(id string, sealKey []byte, leaf []byte, ca *pki.CA) (*agentrpc.JoinMemberResponse, error) {
	out := &agentrpc.JoinMemberResponse{
		MemberId: id, Certificate: leaf, Ca: ca.Cert().Raw, ClusterId: ca.ClusterID(), SealKey: sealKey,
	}
	err := s.cfg.Store.View(func(v *state.View) error {
		out.Schedulers = Addresses(v)
		return nil
	})
	if err != nil {
		return nil, status.Error(codes.Internal, "internal error")
	}
	trusted, err := trusted(s.cfg.Store)
	if err != nil {
		return nil, status.Error(codes.Internal, "internal error")
	}
	out.Cas = pki.RawCerts(trusted)
	return out, nil
}

// Addresses returns the link addresses of the members.
func Addresses(v *state.View) []string {
	var out []string
	for _, m := range v.Members() {
		if m.RemovedAt.IsZero() {
			out = append(out, m.Address)
		}
	}
	return out
}

func propose(ctx context.Context, n Node, cmds ...state.Command) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	results, err := n.Propose(ctx, cmds...)
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
