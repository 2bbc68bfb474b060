package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	port       = 53
	udpBacklog = 1 << 20 // bytes of questions that may wait
)

// openSockets opens those at which questions arrive, UDP and TCP, at an address that the host need not have yet.
func openSockets(ctx context.Context, at netip.AddrPort) ([]int, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }), err)
	}}
	packets, err := lc.ListenPacket(ctx, "udp4", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen for questions about names: %w", err)
	}
	defer func() { _ = packets.Close() }() // what is kept are copies
	stream, err := lc.Listen(ctx, "tcp4", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen for questions about names: %w", err)
	}
	defer func() { _ = stream.Close() }()
	udp, isUDP := packets.(*net.UDPConn)
	tcp, isTCP := stream.(*net.TCPListener)
	if !isUDP || !isTCP {
		return nil, errors.New("the sockets are not those that they should be")
	}
	if err := udp.SetReadBuffer(udpBacklog); err != nil {
		return nil, fmt.Errorf("room for questions: %w", err)
	}
	var fds []int
	for _, one := range []syscall.Conn{udp, tcp} {
		fd, err := copied(one)
		if err != nil {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
			return nil, fmt.Errorf("keep the sockets: %w", err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// copied returns a descriptor of one's own. Not File: that would have the socket block, of which another process has copies.
func copied(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	if e := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return -1, e
	}
	return fd, err
}

// boundTo says whether sockets are those of an address.
func boundTo(fds []int, at netip.AddrPort) bool {
	return len(fds) == 2 && !slices.ContainsFunc(fds, func(fd int) bool {
		name, err := unix.Getsockname(fd)
		in4, ok := name.(*unix.SockaddrInet4)
		return err != nil || !ok || netip.AddrPortFrom(netip.AddrFrom4(in4.Addr), uint16(in4.Port)) != at //nolint:gosec // a port
	})
}
