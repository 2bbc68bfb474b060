package dispatch

import (
	"context"
	"errors"
	"io"

	"gantry/fleet"
)

var errPending = errors.New("pending")

// Exec starts a process in a pod's container on the host.
func (s *Server) Exec(ctx context.Context, host fleet.HostID, pod fleet.PodID, req fleet.ExecRequest) (fleet.ExecSession, error) {
	return nil, errPending
}

// ReadFiles reads files of a pod's container on the host.
func (s *Server) ReadFiles(ctx context.Context, host fleet.HostID, pod fleet.PodID, path string) (io.ReadCloser, error) {
	return nil, errPending
}

// WriteFiles writes files of a pod's container on the host.
func (s *Server) WriteFiles(ctx context.Context, host fleet.HostID, pod fleet.PodID, path string, tar io.Reader) error {
	return errPending
}
