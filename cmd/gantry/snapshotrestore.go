package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	schedulerName = "gantry-scheduler"
	restoreStop   = 10 * time.Second // between the signal that ends a restore and the one that kills it
)

type snapshotRestoreCmd struct {
	File    string `arg:"" placeholder:"FILE" help:"File that gantry snapshot save wrote."`
	DataDir string `required:"" placeholder:"DIR" help:"Folder for the new scheduler's data; it must be empty or not be there."`
	SealKey string `required:"" placeholder:"FILE" help:"The seal.key of the cluster that the copy is of."`
	Address string `required:"" placeholder:"HOST:PORT" help:"Where hosts and other schedulers will reach the new scheduler."`
	Name    string `placeholder:"NAME" help:"Name of the new scheduler, for people."`
	snapshotKeys
}

// Run restores a copy.
func (cmd snapshotRestoreCmd) Run(ctx context.Context, a *app) error {
	if err := cmd.check(); err != nil {
		return err
	}
	path, err := a.scheduler()
	if err != nil {
		return err
	}
	run := exec.CommandContext(ctx, path, cmd.arguments()...)
	run.Stdin, run.Stdout, run.Stderr = a.in, a.out, a.err
	run.Cancel = func() error { return run.Process.Signal(syscall.SIGTERM) }
	run.WaitDelay = restoreStop
	err = run.Run()
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &ended) && ended.Exited():
		return processExit(ended.ExitCode())
	case err != nil:
		return fmt.Errorf("run %s: %w", path, err)
	}
	return nil
}

func (cmd snapshotRestoreCmd) arguments() []string {
	out := []string{"restore", cmd.File, "--data-dir", cmd.DataDir, "--seal-key", cmd.SealKey, "--address", cmd.Address}
	for _, more := range [][2]string{{"--name", cmd.Name}, {"--identity-file", cmd.Identity}, {"--passphrase-file", cmd.PassphraseFile}} {
		if more[1] != "" {
			out = append(out, more[0], more[1])
		}
	}
	return out
}

// scheduler finds the scheduler's program.
func (a *app) scheduler() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program's own folder: %w", err)
	}
	for _, dir := range append([]string{filepath.Dir(self)}, filepath.SplitList(a.getenv("PATH"))...) {
		if found, err := exec.LookPath(filepath.Join(dir, schedulerName)); err == nil && filepath.IsAbs(dir) {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s not found, neither beside %s nor in PATH", schedulerName, self)
}
