package tunnel

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// looker finds links by their names.
type looker int

func openLooker() (looker, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return looker(fd), err
}

func (l looker) close() { _ = unix.Close(int(l)) }

// index returns a link's index, 0 when there is none of the name.
func (l looker) index(name string) int {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return 0
	}
	if err := unix.IoctlIfreq(int(l), unix.SIOCGIFINDEX, r); err != nil {
		return 0
	}
	return int(r.Uint32())
}

// openTap opens a TAP that is there and stays, with virtio headers and frames of TCP of up to 64 KiB. Only one may have it open.
func openTap(name string) (f *os.File, err error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open the link %s: %w", name, err), unix.Close(fd))
		}
	}()
	r, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, r); err != nil {
		return nil, os.NewSyscallError("TUNSETIFF", err)
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, r); err != nil {
		return nil, os.NewSyscallError("TUNGETIFF", err)
	}
	if r.Uint16()&unix.IFF_PERSIST == 0 {
		return nil, errors.New("it went away, and was about to be made without its settings") // which ends with the descriptor
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetHeader); err != nil {
		return nil, os.NewSyscallError("TUNSETVNETHDRSZ", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4); err != nil {
		return nil, os.NewSyscallError("TUNSETOFFLOAD", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

const vnetHeader = 10 // bytes of struct virtio_net_hdr
