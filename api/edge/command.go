package edge

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"gantry/internal/sleep"
)

const (
	commandWithin = 3 * time.Minute
	cleanupWithin = 10 * time.Second // after the order was given up
	toldOfCommand = 1 << 10          // bytes of what it wrote, in an error
)

// command is the DNS challenge by a program of the operator's: PROGRAM present NAME VALUE sets a TXT record, and
// PROGRAM cleanup NAME VALUE takes it away. There may be two values of one name at a time.
type command struct {
	path string
	wait time.Duration // after a record was set

	grace time.Duration // for cleanup, after the order was given up
}

// Present implements acmez.Solver.
func (c *command) Present(ctx context.Context, ch acme.Challenge) error {
	return c.run(ctx, "present", ch)
}

// Wait implements acmez.Waiter.
func (c *command) Wait(ctx context.Context, _ acme.Challenge) error {
	return sleep.For(ctx, c.wait)
}

// CleanUp implements acmez.Solver. It is done also when the order was given up, but not for long then: the next leader, or
// the end of the daemon, waits for it.
func (c *command) CleanUp(ctx context.Context, ch acme.Challenge) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		if sleep.For(life, c.grace) == nil {
			end()
		}
	})()
	return c.run(life, "cleanup", ch)
}

func (c *command) run(ctx context.Context, verb string, ch acme.Challenge) error {
	ctx, cancel := context.WithTimeout(ctx, commandWithin)
	defer cancel()
	name := strings.TrimSuffix(ch.DNS01TXTRecordName(), ".") + "."
	cmd := exec.CommandContext(ctx, c.path, verb, name, ch.DNS01KeyAuthorization()) //nolint:gosec // the operator's own program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // with what it has begun
	cmd.WaitDelay = time.Second
	said := &beginning{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return fmt.Errorf("%s %s %s: %w: %s", c.path, verb, name, err, strings.ToValidUTF8(strings.TrimSpace(string(*said)), ""))
	}
	return nil
}

// beginning keeps what is written first, up to toldOfCommand bytes.
type beginning []byte

// Write implements io.Writer.
func (b *beginning) Write(p []byte) (int, error) {
	*b = append(*b, p[:min(len(p), toldOfCommand-len(*b))]...)
	return len(p), nil
}
