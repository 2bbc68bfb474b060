package inside

import (
	"context"
	"errors"
	"fmt"
	"io"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/dataconn"
)

// ReadFiles reads a file or folder of a pod's container on the host as a tar stream. The stream is
// complete when Read returns io.EOF; every other end is another error of Read. Close stops the host.
func (open Opener) ReadFiles(ctx context.Context, host fleet.HostID, pod fleet.PodID, path string) (io.ReadCloser, error) {
	c, err := open(ctx, host, &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Files{Files: &agentrpc.FileTarget{PodId: string(pod), Path: path}}})
	if err != nil {
		return nil, err
	}
	r := &fileReader{ctx: ctx, c: c}
	r.stop = context.AfterFunc(ctx, func() { _ = c.Close() })
	return r, nil
}

// fileReader is the data of a tunnel up to its last frame.
type fileReader struct {
	ctx   context.Context //nolint:containedctx // of the transfer, which ends with it
	c     *Stream
	stop  func() bool
	rest  []byte
	ended error
}

// Read implements io.Reader.
func (r *fileReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.ended != nil {
			return 0, r.ended
		}
		f, err := r.c.Recv()
		if err != nil {
			r.ended = lostHost(r.ctx, err, "while files were read")
			continue
		}
		r.rest = f.GetData()
		if r.ended = dataconn.HostError(f); r.ended == nil && f.GetEnd() {
			r.ended = io.EOF
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (r *fileReader) Close() error {
	r.stop()
	return r.c.Close()
}

// WriteFiles unpacks a tar stream below a folder of a pod's container on the host. It returns nil when
// the host has said that everything is there. An error of tar is returned as it is, wrapped, and the
// host then stops where it is.
func (open Opener) WriteFiles(ctx context.Context, host fleet.HostID, pod fleet.PodID, path string, tar io.Reader) error {
	c, err := open(ctx, host, &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Files{Files: &agentrpc.FileTarget{
		PodId: string(pod), Path: path, Write: true,
	}}})
	if err != nil {
		return err
	}
	answered := make(chan struct{})
	var answer error
	go func() {
		defer close(answered)
		answer = writeAnswer(ctx, c)
	}()
	defer func() {
		_ = c.Close()
		<-answered
	}()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := sendFiles(c, tar, answered); err != nil {
		return err
	}
	<-answered
	return answer
}

// writeAnswer waits for the host's last word.
func writeAnswer(ctx context.Context, c *Stream) error {
	for {
		f, err := c.Recv()
		if err != nil {
			return lostHost(ctx, err, "before everything was written")
		}
		if err := dataconn.HostError(f); err != nil || f.GetEnd() {
			return err
		}
	}
}

// sendFiles sends the stream, up to its end or to the host's answer. Its error is that of the stream;
// a tunnel that breaks is the answer's matter.
func sendFiles(c *Stream, tar io.Reader, answered <-chan struct{}) error {
	buf := make([]byte, frameSize)
	for {
		n, err := tar.Read(buf)
		select {
		case <-answered:
			return nil
		default:
		}
		if n > 0 && c.Send(&agentrpc.Frame{Data: buf[:n]}) != nil {
			return nil
		}
		if errors.Is(err, io.EOF) {
			_ = c.Send(&agentrpc.Frame{End: true})
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
	}
}
