package edge

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/mholt/acmez/v3/acme"
)

const (
	commandWithin = 3 * time.Minute
	toldOfCommand = 1 << 10 // bytes of what it wrote, in an error
)

// command is the DNS challenge by a program of the operator's: PROGRAM present NAME VALUE sets a TXT record, and
// PROGRAM cleanup NAME VALUE takes it away. There may be two values of one name at a time.
type command struct {
	path string
	wait time.Duration // after a record was set
}

// Present implements acmez.Solver.
func (c *command) Present(ctx context.Context, ch acme.Challenge) error {
	return c.run(ctx, "present", ch)
}

// Wait implements acmez.Waiter.
func (c *command) Wait(ctx context.Context, _ acme.Challenge) error {
	select {
	case <-time.After(c.wait):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// CleanUp implements acmez.Solver. It is done also when the order was given up.
func (c *command) CleanUp(ctx context.Context, ch acme.Challenge) error {
	return c.run(context.WithoutCancel(ctx), "cleanup", ch)
}

func (c *command) run(ctx context.Context, verb string, ch acme.Challenge) error {
	ctx, cancel := context.WithTimeout(ctx, commandWithin)
	defer cancel()
	name := strings.TrimSuffix(ch.DNS01TXTRecordName(), ".") + "."
	cmd := exec.CommandContext(ctx, c.path, verb, name, ch.DNS01KeyAuthorization()) //nolint:gosec // the operator's own program
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s %s: %w: %s", c.path, verb, name, err, strings.TrimSpace(string(out[:min(len(out), toldOfCommand)])))
	}
	return nil
}
