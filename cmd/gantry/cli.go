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
	API        string `name:"api" placeholder:"URL" help:"Address of the API, or several of one cluster, joined by commas. Else $$GANTRY_API, else that of the last gantry dev."`
	APIKeyFile string `name:"api-key-file" placeholder:"FILE" help:"File with the API key, or with the keys that gantry-scheduler init wrote: then operators' commands take the operator's. Else $$GANTRY_API_KEY, else that of the last gantry dev. A key is never given as an argument."`
	Output     string `short:"o" enum:"table,json" default:"table" help:"table for people, json for programs: exactly what the API said."`

	Dev      devCmd      `cmd:"" help:"Run a whole Gantry on this machine: scheduler, agent and containerd."`
	Pod      podCmd      `cmd:"" help:"Create, see, control and enter pods."`
	Template templateCmd `cmd:"" help:"Keep configurations that pods are made from."`
	Registry registryCmd `cmd:"" help:"Keep credentials for private images."`
	Volume   volumeCmd   `cmd:"" help:"Keep network volumes: storage that outlives pods."`
	S3Key    s3KeyCmd    `cmd:"" name:"s3-key" help:"Keep keys with which S3 clients reach the files of network volumes."`
	Net      netCmd      `cmd:"" help:"See the private networks of your pods, check them, and look at a host's (for operators)."`
	Catalog  catalogCmd  `cmd:"" help:"See what can be asked for, and what is free."`
	Billing  billingCmd  `cmd:"" help:"See what was charged, and for what."`
	Account  accountCmd  `cmd:"" help:"Show your account and its balance; make and change accounts (for operators)."`
	Key      keyCmd      `cmd:"" help:"Make, list, change and end the API keys of your account."`
	SSHKey   sshKeyCmd   `cmd:"" name:"ssh-key" help:"See and change the SSH keys that pods get."`
	Secret   secretCmd   `cmd:"" help:"Keep secrets that the environment of pods refers to."`
	Host     hostCmd     `cmd:"" help:"See hosts, change them, and let new ones join (for operators)."`
	Image    imageCmd    `cmd:"" help:"See which images hosts have, and have them get some ahead of pods (for operators)."`
	Raft     raftCmd     `cmd:"" help:"See, add and remove schedulers of the control plane (for operators)."`
	Snapshot snapshotCmd `cmd:"" help:"Save copies of the control plane's state, and restore it from one (for operators)."`
	Debug    debugCmd    `cmd:"" help:"Collect what a report of a fault needs (for operators)."`
	Admin    adminCmd    `cmd:"" help:"Describe data centers, GPU types, CPU flavors, storage, private networks and prices (for operators)."`
	Version  versionCmd  `cmd:"" help:"Print the version."`
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
  gantry pod exec -it web -- sh
  gantry billing --last 7

Exit status:
  0    done
  1    it failed: the pod went to ERROR, the API had a fault
  2    bad usage: the command line, or a value in it, was refused
  3    not found
  4    refused: no or wrong key, no permission, not allowed in the pod's state, no credit
  5    the API cannot be reached or is not available now
  6    no room now: no host can take the pod
  7    timed out while waiting
  130  interrupted

pod exec and pod ssh end with the status of the program that ran.`

// app is what the commands share.
type app struct {
	system
	cli  *cli
	rest []string // what followed -- on the command line
}

// takeRest lists the commands that take arguments after --.
var takeRest = []string{"pod create", "pod update", "pod exec", "template create", "template update"}

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
	parser, err := newParser(a, kong.Exit(func(int) { helped = true }))
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
	if len(a.rest) > 0 && !slices.Contains(takeRest, commandWords(parsed.Command())) {
		return a.explain(&usageError{message: "this command takes no arguments after --", command: parsed.Command()})
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	err = parsed.Run(a)
	var bad *usageError
	if errors.As(err, &bad) && bad.command == "" {
		bad.command = parsed.Command()
	}
	return a.explain(err)
}

func newParser(a *app, more ...kong.Option) (*kong.Kong, error) {
	return kong.New(a.cli, append(more,
		kong.Name("gantry"), kong.Description(description), kong.Writers(a.out, a.err),
		kong.ConfigureHelp(kong.HelpOptions{NoAppDescFormat: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
	)...)
}
