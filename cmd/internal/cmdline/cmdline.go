// Package cmdline is the command line of a daemon: its commands and flags are a struct, flags can stand
// in a TOML file, SIGINT and SIGTERM end the context that a command runs under, and the log goes to
// standard error as JSON.
package cmdline

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// Common are the flags of every daemon. Embed it.
type Common struct {
	Config  File             `help:"TOML file whose keys are flags of the command." placeholder:"FILE"`
	Version kong.VersionFlag `help:"Print the version and exit."`
	Debug   bool             `help:"Log everything."`
}

func (c *Common) debug() bool { return c.Debug }

// Main parses the process's arguments into cli, a pointer to a struct that embeds Common, runs the
// chosen command with a context.Context and a *slog.Logger, and returns the exit status.
func Main(cli interface{ debug() bool }, name, version, description string) int {
	k := kong.Parse(cli, kong.Name(name), kong.UsageOnError(), kong.Vars{"version": version}, kong.Description(description))
	level := slog.LevelInfo
	if cli.debug() {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	k.BindTo(ctx, (*context.Context)(nil))
	if err := k.Run(log); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	return 0
}
