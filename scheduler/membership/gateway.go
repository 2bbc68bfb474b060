package membership

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// JoinGateway implements agentrpc.PeerServer, as JoinMember does. A gateway gets no seal key.
func (s *Server) JoinGateway(ctx context.Context, in *agentrpc.JoinMemberRequest) (*agentrpc.JoinMemberResponse, error) {
	token, request, err := s.askedToJoin(ctx, in)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	id, err := s.gatewayOf(token, request, now)
	if err == nil && id == "" {
		id = fleet.GatewayID(fleet.NewID())
		hash := pki.Hash(token.Secret)
		err = propose(ctx, s.cfg.Node, state.JoinGateway{
			Token: token.ID, Hash: hash[:], Request: request, At: now,
			Gateway: fleet.Gateway{ID: id, Name: in.GetName(), Address: in.GetAddress(), JoinedAt: now},
		})
		if fleet.CodeOf(err) == fleet.CodeUnauthorized { // the same request may have come twice at once
			id, err = s.gatewayOf(token, request, now)
		}
	}
	if err == nil && id == "" {
		err = fleet.Unavailable("the join was not committed", nil)
	}
	if err != nil {
		s.cfg.Log.Warn("a gateway's join was refused", "address", in.GetAddress(), "err", err)
		return nil, s.refusal(ctx, err)
	}
	leaf, ca, err := s.issue(ctx, in.GetCsr(), pki.Identity{Role: pki.RoleGateway, ID: string(id)}, pki.LeafTTL)
	if err != nil {
		return nil, err
	}
	s.cfg.Log.Info("a gateway joined", "gateway", id, "address", in.GetAddress())
	return s.welcome(string(id), nil, leaf.Raw, ca)
}

// gatewayOf refuses a token that is no good for a gateway, and returns the gateway that this very request has made; empty: none.
func (s *Server) gatewayOf(token pki.JoinToken, request []byte, now time.Time) (id fleet.GatewayID, err error) {
	good := false
	err = s.cfg.Store.View(func(v *state.View) error {
		t, ok := v.Token(token.ID)
		good = ok && t.Role == fleet.TokenGateway && pki.HashMatches(token.Secret, t.Hash) && now.Before(t.ExpiresAt) && t.Answers(request)
		if good && t.Joined != "" {
			_, good = v.Gateway(fleet.GatewayID(t.Joined))
			id = fleet.GatewayID(t.Joined)
		}
		return nil
	})
	if err == nil && !good {
		err = &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "the join token is unknown, used or expired"}
	}
	return id, err
}

// RenewGateway implements agentrpc.PeerServer.
func (s *Server) RenewGateway(ctx context.Context, in *agentrpc.RenewRequest) (*agentrpc.RenewResponse, error) {
	if err := s.lead(ctx); err != nil {
		return nil, err
	}
	id, err := GatewayOf(ctx, s.cfg.Store)
	if err != nil {
		return nil, err
	}
	return s.renewed(ctx, in.GetCsr(), pki.Identity{Role: pki.RoleGateway, ID: string(id)}, pki.LeafTTL)
}

// GatewayOf returns the gateway that makes a gRPC call, unless it has no record.
func GatewayOf(ctx context.Context, store *state.Store) (fleet.GatewayID, error) {
	who, err := agentrpc.PeerIdentity(ctx)
	if err != nil || who.Role != pki.RoleGateway {
		return "", status.Error(codes.PermissionDenied, "a gateway's certificate is needed")
	}
	if err := Refuse(store)(who); err != nil {
		return "", status.Error(codes.PermissionDenied, err.Error())
	}
	return fleet.GatewayID(who.ID), nil
}
