package sidecar

import (
	"os"

	"golang.org/x/sys/unix"
)

const maxMessage = 8 << 20 // bytes

// hello is the answer to what a connection begins with.
type hello struct {
	Build string `json:"build"`
}

const (
	verbHello = "hello"
	verbQuit  = "quit"
)

// copies returns descriptors of one's own, which are closed on exec. They are no files, so that what happens to them wakes nobody here.
func copies(of []int) (fds []int, err error) {
	for _, fd := range of {
		one, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			drop(fds)
			return nil, os.NewSyscallError("dup", err)
		}
		fds = append(fds, one)
	}
	return fds, nil
}

func numbers(files []*os.File) []int {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return fds
}

func drop(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // a copy
	}
}
