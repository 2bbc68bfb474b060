package nfslab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const emulator = "qemu-system-x86_64"

// machine is a guest that runs.
type machine struct {
	line   io.ReadCloser // its second serial line
	log    string        // file of its console
	cancel context.CancelFunc
	ended  chan error
}

// start starts a guest. It ends by itself, at the deadline, with the context, or with this process.
func start(ctx context.Context, kernel, initrd string, deadline time.Duration) (*machine, error) {
	name, err := exec.LookPath(emulator)
	if err != nil {
		return nil, fmt.Errorf("the guest needs QEMU (package qemu-system-x86): %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	m := &machine{log: filepath.Join(filepath.Dir(initrd), "console"), cancel: cancel, ended: make(chan error, 1)}
	// QEMU 7.2 leaves nonsense in the flags after cmpxchg16b, which kernels may die of.
	cmd := exec.CommandContext(ctx, name, "-M", "pc", "-accel", "tcg,thread=multi", "-cpu", "max,cx16=off", "-m", "4G", "-smp", "2",
		"-nodefaults", "-display", "none", "-no-reboot", "-kernel", kernel, "-initrd", initrd,
		"-append", "console=ttyS0 panic=-1 oops=panic", "-serial", "file:"+m.log, "-serial", "stdio")
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	cmd.WaitDelay = 5 * time.Second
	var faults strings.Builder
	cmd.Stderr = &faults
	line, end, err := os.Pipe()
	if err != nil {
		cancel()
		return nil, err
	}
	m.line, cmd.Stdout = line, end
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // QEMU dies with the thread that started it
		err := cmd.Start()
		_ = end.Close() // QEMU has its own
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		if cause := context.Cause(ctx); cause != nil && err != nil {
			err = fmt.Errorf("killed after at most %v: %w", deadline, cause)
		}
		if err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(faults.String()))
		}
		m.ended <- err
	}()
	if err := <-started; err != nil {
		cancel()
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	return m, nil
}

// end waits until the guest has turned itself off, which it does right after its last test.
func (m *machine) end() error {
	defer m.cancel()
	select {
	case err := <-m.ended:
		return err
	case <-time.After(10 * time.Second):
		m.cancel()
		return errors.Join(errors.New("it did not turn itself off"), <-m.ended)
	}
}

// console returns the end of what the guest's kernel said.
func (m *machine) console() string {
	text, err := os.ReadFile(m.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-6000):])
}
