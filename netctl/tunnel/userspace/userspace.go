// Package userspace is the tunnel's process: wireguard-go at a TUN device that is handed to it. It has no rights on the host.
package userspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"gantry/internal/ipc"
	"gantry/netctl/sidecar"
	"gantry/netctl/tunnel"
)

// server has the link's other end. It implements sidecar.Handler.
type server struct {
	device *device.Device
	ended  sync.WaitGroup
}

// Serve begins with the link that the process is handed. It is sidecar.Program.Serve.
func Serve(links []*os.File, fail func(error), log *slog.Logger) (sidecar.Handler, error) {
	defer ipc.CloseAll(links) // the device has a copy
	if len(links) != 1 {
		return nil, errors.New("it wants one link")
	}
	fd, err := unix.FcntlInt(links[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	link, _, err := tun.CreateUnmonitoredTUNFromFD(fd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the link: %w", err), unix.Close(fd))
	}
	s := &server{device: device.NewDevice(link, conn.NewStdNetBind(), &device.Logger{
		Verbosef: device.DiscardLogf,
		Errorf:   func(format string, args ...any) { log.Warn("WireGuard", "says", fmt.Sprintf(format, args...)) },
	})}
	s.ended.Go(func() {
		<-s.device.Wait()
		fail(errors.New("the link was removed"))
	})
	return s, nil
}

// Close implements sidecar.Handler.
func (s *server) Close() {
	s.device.Close()
	s.ended.Wait()
}

// Handle implements sidecar.Handler.
func (s *server) Handle(_ context.Context, verb string, ask []byte, files []*os.File) (any, error) {
	ipc.CloseAll(files) // nobody asked for them
	switch verb {
	case tunnel.VerbGet:
		return s.device.IpcGet()
	case tunnel.VerbSet:
		var c tunnel.Change
		if err := json.Unmarshal(ask, &c); err != nil {
			return nil, err
		}
		return nil, s.set(c)
	default:
		return nil, fmt.Errorf("%q is not known", verb)
	}
}

// set changes the tunnel. Sessions with peers that stay go on.
func (s *server) set(c tunnel.Change) error {
	if err := s.device.IpcSet(c.Text); err != nil {
		return fmt.Errorf("the tunnel does not take its settings: %w", err)
	}
	if err := s.device.Up(); err != nil {
		return err
	}
	for _, key := range c.Greet {
		if len(key) != device.NoisePublicKeySize {
			return errors.New("greet: want keys of 32 bytes")
		}
		if peer := s.device.LookupPeer(device.NoisePublicKey(key)); peer != nil {
			peer.SendKeepalive()
		}
	}
	return nil
}
