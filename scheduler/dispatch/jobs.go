package dispatch

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// Jobs implements agentrpc.LinkServer: it carries jobs to the serverless workers of a host that has a session here.
func (s *Server) Jobs(stream agentrpc.Link_JobsServer) error {
	who, err := hostOf(stream.Context())
	if err != nil {
		return err
	}
	if !s.Node.IsLeader() {
		return s.notLeader(stream.Context())
	}
	if s.Workers == nil {
		return status.Error(codes.Unimplemented, "this scheduler has no serverless workers")
	}
	host := fleet.HostID(who.ID)
	s.mu.Lock()
	x := s.sessions[host]
	s.mu.Unlock()
	if x == nil || !x.welcomed.Load() {
		return status.Error(codes.FailedPrecondition, "the host has no session with this scheduler")
	}
	return grpcOrStatus(s.Workers(host, x.done, stream))
}
