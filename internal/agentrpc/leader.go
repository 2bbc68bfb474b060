package agentrpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Names of gRPC trailers.
const (
	leaderTrailer  = "gantry-leader"       // the link address of the leader
	nothingTrailer = "gantry-nothing-done" // "1" when a refused call changed nothing, nor will
)

// NotLeader returns the error with which a scheduler that does not lead refuses the gRPC call of ctx, and tells the
// caller the leader's link address; empty: it is not known.
func NotLeader(ctx context.Context, leader string) error {
	if leader != "" {
		// It fails only outside of a call, where nobody is to be told.
		_ = grpc.SetTrailer(ctx, metadata.Pairs(leaderTrailer, leader))
	}
	NothingDone(ctx)
	return status.Error(codes.Unavailable, "this scheduler does not lead")
}

// LeaderHint returns the link address of the leader from the trailer of a call that was refused; empty: the
// scheduler named none.
func LeaderHint(trailer metadata.MD) string {
	if v := trailer.Get(leaderTrailer); len(v) == 1 {
		return v[0]
	}
	return ""
}

// NothingDone tells the caller of the gRPC call of ctx, which fails, that nothing was done and that it may be made again.
func NothingDone(ctx context.Context) {
	_ = grpc.SetTrailer(ctx, metadata.Pairs(nothingTrailer, "1"))
}

// NothingWasDone reports whether a call that was refused with this trailer may be made again.
func NothingWasDone(trailer metadata.MD) bool {
	return len(trailer.Get(nothingTrailer)) > 0 || LeaderHint(trailer) != ""
}
