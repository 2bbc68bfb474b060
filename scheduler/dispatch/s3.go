package dispatch

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// S3Keys answers what hosts ask of access keys; see feed/s3. Errors: gRPC statuses, or those of the state.
type S3Keys interface {
	// Admit is asked first, and refuses what must cost nothing.
	Admit(host fleet.HostID, in *agentrpc.S3AccessRequest, now time.Time) error
	// Answer is asked once the state has everything that was acknowledged.
	Answer(host fleet.HostID, in *agentrpc.S3AccessRequest, now time.Time) (*agentrpc.S3AccessResponse, error)
}

// S3Access implements agentrpc.LinkServer: it tells a host with the role s3 what an access key may do.
func (s *Server) S3Access(ctx context.Context, in *agentrpc.S3AccessRequest) (*agentrpc.S3AccessResponse, error) {
	who, err := hostOf(ctx)
	if err != nil {
		return nil, err
	}
	if !s.Node.IsLeader() {
		return nil, s.notLeader(ctx)
	}
	if s.S3 == nil {
		return nil, status.Error(codes.NotFound, "there is no such access key")
	}
	host, now := fleet.HostID(who.ID), time.Now()
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	if err := s.S3.Admit(host, in, now); err != nil {
		return nil, grpcOrStatus(err)
	}
	if err := s.Node.Barrier(ctx); err != nil {
		return nil, grpcError(err)
	}
	out, err := s.S3.Answer(host, in, now)
	return out, grpcOrStatus(err)
}
