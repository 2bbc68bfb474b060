package main

import (
	"errors"
	"net"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"gantry/internal/confine"
)

// filtered runs f on a thread that is filtered, and ends it.
func filtered(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = confine.Filter(servingAs())
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	must(t, <-done)
}

// TestTheListenerReachesNobody: the host's sockets that the serving process has can be made to connect, but for the filter.
func TestTheListenerReachesNobody(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	to := &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	listening := func() int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
		must(t, unix.Listen(fd, 1))
		must(t, unix.Shutdown(fd, unix.SHUT_RDWR)) // no longer
		return fd
	}
	must(t, unix.Connect(listening(), to))
	one, other := listening(), listening()
	filtered(t, func() {
		if err := unix.Connect(one, to); !errors.Is(err, unix.EPERM) {
			t.Errorf("connect: %v", err)
		}
		if err := unix.Sendto(other, []byte("x"), unix.MSG_FASTOPEN, to); !errors.Is(err, unix.EPERM) {
			t.Errorf("send and connect: %v", err)
		}
		if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("socket: %v", err)
		}
		if err := unix.Unshare(unix.CLONE_NEWUSER); !errors.Is(err, unix.EPERM) {
			t.Errorf("a user namespace: %v", err)
		}
		if _, err := unix.KeyctlInt(unix.KEYCTL_GET_KEYRING_ID, unix.KEY_SPEC_SESSION_KEYRING, 0, 0, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("keys: %v", err)
		}
		if err := unix.Unshare(unix.CLONE_FS); err != nil { // which opens folders
			t.Errorf("a working directory: %v", err)
		}
	})
}
