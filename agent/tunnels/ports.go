package tunnels

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// port carries a connection to a port of a pod.
func (t *Tunnels) port(ctx context.Context, stream agentrpc.Link_TunnelClient, ask *agentrpc.OpenTunnel) error {
	target := ask.GetPort()
	addr, ok := t.address(fleet.PodID(target.GetPodId()))
	if !ok {
		return stream.Send(&agentrpc.Frame{Id: ask.GetId(), Error: "the pod does not run here"})
	}
	d := net.Dialer{Timeout: podDialTimeout}
	c, err := d.DialTCP(ctx, "tcp", netip.AddrPort{}, netip.AddrPortFrom(addr, uint16(target.GetPort()))) //nolint:gosec // a port
	if err != nil {
		return stream.Send(&agentrpc.Frame{Id: ask.GetId(), Error: "nothing accepts connections on that port of the pod"})
	}
	defer func() { _ = c.Close() }()
	if err := stream.Send(&agentrpc.Frame{Id: ask.GetId()}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	down := make(chan error, 1)
	go func() { down <- fromStream(stream, c) }()
	upErr := toStream(c, stream)
	if upErr != nil {
		_ = c.Close()
	}
	downErr := <-down
	return errors.Join(upErr, downErr)
}

// toStream copies what the pod writes into the tunnel.
func toStream(c io.Reader, stream agentrpc.Link_TunnelClient) error {
	buf := make([]byte, frameSize)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			if sendErr := stream.Send(&agentrpc.Frame{Data: buf[:n]}); sendErr != nil {
				return sendErr
			}
		}
		if err != nil { // a reset ends the pod's side as a close does
			return stream.Send(&agentrpc.Frame{End: true})
		}
	}
}

// fromStream copies what comes through the tunnel to the pod.
func fromStream(stream agentrpc.Link_TunnelClient, c *net.TCPConn) error {
	for {
		f, err := stream.Recv()
		if err != nil {
			_ = c.Close() // the scheduler let go of the tunnel
			return err
		}
		if len(f.GetData()) > 0 {
			if _, err := c.Write(f.GetData()); err != nil {
				return err
			}
		}
		if f.GetEnd() {
			_ = c.CloseWrite()
		}
	}
}
