package kernel

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// processNS names the namespace that the process began in. Later any of its threads may be elsewhere, the first one too.
var processNS, _ = os.Readlink(threadNS)

// home is the network namespace that a Controller works on.
type home struct {
	file *os.File // nil: it is the process's own, where every thread is
}

// newHome returns the caller's namespace. Close it.
func newHome() (home, error) {
	mine, err := os.Readlink(threadNS)
	if err != nil {
		return home{}, fmt.Errorf("network namespace: %w", err)
	}
	if mine == processNS {
		return home{}, nil
	}
	f, err := os.Open(threadNS)
	if err != nil {
		return home{}, fmt.Errorf("network namespace: %w", err)
	}
	return home{f}, nil
}

func (h home) Close() {
	if h.file != nil {
		_ = h.file.Close() // read-only
	}
}

// in runs f on a thread that is in the namespace; a process that f starts is there too.
func (h home) in(f func() error) error {
	if h.file == nil {
		return f()
	}
	return onOwnThread(func() error {
		if err := unix.Setns(int(h.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace: %w", err)
		}
		return f()
	})
}

// switchOn writes 1 to a kernel setting of the namespace.
func (h home) switchOn(key string) error {
	return h.in(func() error { return setSysctl(key, "1") })
}
