package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/alecthomas/kong"
)

// system is what a command has of the world.
type system struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) (string, bool)
	now      func() time.Time
	terminal bool       // err is a terminal
	width    func() int // of the terminal, in columns
}

func (s system) getenv(name string) string {
	value, _ := s.env(name)
	return value
}

// cli is the command line.
type cli struct {
	API        string `name:"api" placeholder:"URL" help:"Address of the API. Else $$GANTRY_API, else that of the last gantry dev."`
	APIKeyFile string `name:"api-key-file" placeholder:"FILE" help:"File with the API key. Else $$GANTRY_API_KEY, else that of the last gantry dev. A key is never given as an argument."`
	Output     string `short:"o" enum:"table,json" default:"table" help:"table for people, json for programs: exactly what the API said."`

	Dev     devCmd     `cmd:"" help:"Run a whole Gantry on this machine: scheduler, agent and containerd."`
	Pod     podCmd     `cmd:"" help:"Create, see and control pods."`
	Catalog catalogCmd `cmd:"" help:"See what can be asked for, and what is free."`
	Key     keyCmd     `cmd:"" help:"Make, list and end the API keys of your account."`
	Host    hostCmd    `cmd:"" help:"See hosts, and let new ones join (for operators)."`
	Account accountCmd `cmd:"" help:"Make and list accounts, and their first keys (for operators)."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

const description = `The command line of Gantry: rent containers with CPUs or GPUs on your own machines.

Where the API is, and the key to it, come from --api and --api-key-file, else from GANTRY_API and GANTRY_API_KEY,
else from the gantry dev that this user started last. Operators' commands take GANTRY_ADMIN_KEY where it is set.

Examples:
  sudo gantry dev
  gantry pod create web docker.io/library/nginx:alpine --cpu cpu3c --vcpu 2 --port 80/http --wait
  gantry pod create train docker.io/me/train:1 --gpu "NVIDIA H100 80GB HBM3" --count 2 -- python train.py
  gantry pod list
  gantry pod logs -f web

Exit status:
  0    done
  1    it failed: the pod went to ERROR, the API had a fault
  2    bad usage: the command line, or a value in it, was refused
  3    not found
  4    refused: no or wrong key, no permission, not allowed in the pod's state, no credit
  5    the API cannot be reached or is not available now
  6    no room now: no host can take the pod
  7    timed out while waiting
  130  interrupted`

// app is what the commands share.
type app struct {
	system
	cli  *cli
	rest []string // what followed -- on the command line
}

// run runs one command line and returns the exit status.
func run(ctx context.Context, args []string, sys system) int {
	a := &app{system: sys, cli: &cli{}}
	if at := slices.Index(args, "--"); at >= 0 {
		args, a.rest = args[:at], args[at+1:]
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	helped := false
	parser, err := kong.New(a.cli,
		kong.Name("gantry"), kong.Description(description), kong.Writers(sys.out, sys.err),
		kong.Exit(func(int) { helped = true }),
		kong.ConfigureHelp(kong.HelpOptions{NoAppDescFormat: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
	)
	if err != nil {
		return a.explain(err)
	}
	parsed, err := parser.Parse(args)
	if helped {
		return exitOK
	}
	if err != nil {
		var parse *kong.ParseError
		if errors.As(err, &parse) && parse.Context != nil {
			return a.explain(&usageError{message: err.Error(), command: parse.Context.Command()})
		}
		return a.explain(&usageError{message: err.Error()})
	}
	if len(a.rest) > 0 && parsed.Command() != createCommand {
		return a.explain(&usageError{message: "only pod create takes arguments after --", command: parsed.Command()})
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	return a.explain(parsed.Run(a))
}
