package dns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"

	"gantry/netctl/sidecar"
)

// What the process is told.
const (
	verbBase     = "base"
	verbPods     = "pods"
	verbOverlay  = "overlay" // whole
	verbChange   = "change"  // of an overlay
	verbForget   = "forget"  // an overlay
	verbOverlays = "overlays"
	verbAnswer   = "answer" // begin to
	verbStats    = "stats"
)

// change is of an overlay.
type change struct {
	VNI  uint32       `json:"vni"`
	Set  []Name       `json:"set,omitempty"`
	Gone []netip.Addr `json:"gone,omitempty"`
}

// life is the answering process. It implements sidecar.Handler.
type life struct {
	server *Server
	begin  func() // once
	stop   context.CancelFunc
	ended  sync.WaitGroup
}

// Serve is the life of the answering process: it answers at its sockets, which are bound, as soon as it is told to.
func Serve(sockets []*os.File, fail func(error), _ *slog.Logger) (sidecar.Handler, error) {
	udp, tcp, err := open(sockets)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	begin := make(chan struct{})
	l := &life{
		server: NewServer(udp.LocalAddr().(*net.UDPAddr).AddrPort()), stop: stop,
		begin: sync.OnceFunc(func() { close(begin) }),
	}
	l.ended.Go(func() {
		defer func() { _, _ = udp.Close(), tcp.Close() }() // they may be closed
		select {
		case <-begin:
		case <-ctx.Done():
			return
		}
		if err := l.server.Serve(ctx, udp, tcp); err != nil {
			fail(err)
		}
	})
	return l, nil
}

func open(sockets []*os.File) (*net.UDPConn, *net.TCPListener, error) {
	defer func() {
		for _, f := range sockets {
			_ = f.Close() // the connections are copies
		}
	}()
	if len(sockets) != 2 {
		return nil, nil, fmt.Errorf("%d sockets, and not two", len(sockets))
	}
	packets, err := net.FilePacketConn(sockets[0])
	if err != nil {
		return nil, nil, fmt.Errorf("the UDP socket: %w", err)
	}
	stream, err := net.FileListener(sockets[1])
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("the TCP socket: %w", err), packets.Close())
	}
	udp, isUDP := packets.(*net.UDPConn)
	tcp, isTCP := stream.(*net.TCPListener)
	if !isUDP || !isTCP {
		return nil, nil, errors.Join(errors.New("the sockets are not those that they should be"), packets.Close(), stream.Close())
	}
	return udp, tcp, nil
}

// Close implements sidecar.Handler. What is under way is finished.
func (l *life) Close() {
	l.stop()
	l.ended.Wait()
}

// Handle implements sidecar.Handler.
func (l *life) Handle(_ context.Context, verb string, ask []byte, files []*os.File) (any, error) {
	for _, f := range files {
		_ = f.Close() // nobody asked for it
	}
	switch verb {
	case verbBase:
		return nil, with(ask, func(b Base) error { l.server.Set(b); return nil })
	case verbPods:
		return nil, with(ask, func(pods map[netip.Addr][]uint32) error { l.server.SetPods(pods); return nil })
	case verbOverlay:
		return nil, with(ask, func(c change) error { l.server.SetOverlay(c.VNI, c.Set); return nil })
	case verbChange:
		return nil, with(ask, func(c change) error { return l.server.ChangeOverlay(c.VNI, c.Set, c.Gone) })
	case verbForget:
		return nil, with(ask, func(vni uint32) error { l.server.RemoveOverlay(vni); return nil })
	case verbOverlays:
		return l.server.Overlays(), nil
	case verbAnswer:
		l.begin()
		return nil, nil
	case verbStats:
		return l.server.Stats(), nil
	default:
		return nil, fmt.Errorf("%q is not known", verb)
	}
}

// with does something with what JSON says.
func with[T any](ask []byte, do func(T) error) error {
	var v T
	if err := json.Unmarshal(ask, &v); err != nil {
		return err
	}
	return do(v)
}
