package main

import (
	"context"
	_ "embed" // the description
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"gantry/client"
)

// system is what a command has of the world.
type system struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) (string, bool)
	now      func() time.Time
	terminal bool       // err is a terminal
	width    func() int // of the terminal, in columns
	// Of standard output: its width in columns, 0 when it is no terminal. Nil is 0.
	screenWidth func() int
	lookEvery   time.Duration // between two looks of --watch; 0: two seconds
}

func (s system) getenv(name string) string {
	value, _ := s.env(name)
	return value
}

// cli is the command line.
type cli struct {
	API        string      `name:"api" placeholder:"URL" help:"Address of the API, or several of one cluster, joined by commas."`
	APIKeyFile string      `name:"api-key-file" placeholder:"FILE" help:"File with the API key, or the keys file of gantry-scheduler init, from which operators' commands take the operator's key. A key is never given as an argument."`
	Context    string      `placeholder:"NAME" help:"Context with the address of the API and its keys: see gantry context."`
	Output     string      `short:"o" default:"table" placeholder:"FORMAT" help:"table, wide (never shortened), json (what the API said), yaml, name (ids alone), or jsonpath=TEMPLATE."`
	Quiet      bool        `short:"q" help:"The same as -o name."`
	NoHeaders  bool        `help:"Tables without their heading."`
	SortBy     string      `placeholder:"COLUMN" help:"Sort a table by this column; -COLUMN sorts the other way round."`
	Watch      bool        `short:"w" help:"Show a list or a record again whenever it changes, until Ctrl-C."`
	Version    versionFlag `help:"Print the version."`

	Pod      podCmd        `cmd:"" group:"pods" help:"Create, see, control and enter pods."`
	Cluster  clusterCmd    `cmd:"" group:"pods" help:"Manage instant clusters: pods on many hosts that work as one machine."`
	Template templateCmd   `cmd:"" group:"pods" help:"Manage templates: configurations from which pods are created."`
	Registry registryCmd   `cmd:"" group:"pods" help:"Manage credentials for private images."`
	Secret   secretCmd     `cmd:"" group:"pods" help:"Manage secrets for the environment of pods."`
	Volume   volumeCmd     `cmd:"" group:"pods" help:"Manage network volumes: storage that outlives pods."`
	S3Key    s3KeyCmd      `cmd:"" group:"pods" name:"s3-key" help:"Manage S3 keys, which give S3 clients access to the files of network volumes."`
	Net      netCmd        `cmd:"" group:"pods" help:"See and check the private networks of your pods."`
	Catalog  catalogCmd    `cmd:"" group:"pods" help:"Show GPU types, CPU flavors and data centers, and what is free."`
	Endpoint endpointCmd   `cmd:"" group:"serverless" help:"Manage serverless endpoints: workers that answer jobs, as many as there is need for."`
	Job      jobCmd        `cmd:"" group:"serverless" help:"Submit jobs to endpoints, and follow them."`
	Account  accountCmd    `cmd:"" group:"account" help:"Show your account and its balance; create and change accounts (for operators)."`
	Billing  billingCmd    `cmd:"" group:"account" help:"See what was charged, and for what."`
	Events   eventsCmd     `cmd:"" group:"account" help:"Follow what changes in your account: pods, workers, endpoints, volumes, balance and more."`
	Audit    auditCmd      `cmd:"" group:"account" help:"See who changed what in your account, and from where."`
	Key      keyCmd        `cmd:"" group:"account" help:"Create, list, change and delete the API keys of your account."`
	SSHKey   sshKeyCmd     `cmd:"" group:"account" name:"ssh-key" help:"See and change the SSH keys that pods get."`
	Host     hostCmd       `cmd:"" group:"operators" help:"See hosts, change them, and let new ones join."`
	Image    imageCmd      `cmd:"" group:"operators" help:"List the images on hosts, and prefetch images before pods need them."`
	Raft     raftCmd       `cmd:"" group:"operators" help:"See, add and remove schedulers of the control plane."`
	Person   personCmd     `cmd:"" group:"operators" help:"Create, change, reset and delete people who sign in to the console."`
	Gateway  gatewayCmd    `cmd:"" group:"operators" help:"See, add, drain and remove gateways, which carry requests to pods."`
	Snapshot snapshotCmd   `cmd:"" group:"operators" help:"Save snapshots of the control plane's state, and restore one."`
	Admin    adminCmd      `cmd:"" group:"operators" help:"Describe data centers, GPU types, CPU flavors, storage, private networks and prices."`
	Debug    debugCmd      `cmd:"" group:"operators" help:"Collect diagnostics for a bug report."`
	Dev      devCmd        `cmd:"" group:"program" help:"Run a whole Gantry on this machine: scheduler, agent and containerd."`
	Login    loginCmd      `cmd:"" group:"program" help:"Get a key of this command line's own, which someone lets in on a page of the console."`
	Logout   logoutCmd     `cmd:"" group:"program" help:"Delete the key of a context, which login got."`
	Contexts contextCmd    `cmd:"" group:"program" name:"context" help:"Manage the addresses and keys of several clusters, and choose one."`
	Complete completionCmd `cmd:"" group:"program" name:"completion" help:"Print the completion for bash, zsh or fish."`
	Versions versionCmd    `cmd:"" group:"program" name:"version" help:"Print the version."`

	// What docker's and kubectl's users type without thinking.
	Ps      podListCmd    `cmd:"" group:"program" hidden:""`
	Logs    podLogsCmd    `cmd:"" group:"program" hidden:""`
	Exec    podExecCmd    `cmd:"" group:"program" hidden:""`
	Cp      podCpCmd      `cmd:"" group:"program" hidden:""`
	Stop    podStopCmd    `cmd:"" group:"program" hidden:""`
	Start   podStartCmd   `cmd:"" group:"program" hidden:""`
	Restart podRestartCmd `cmd:"" group:"program" hidden:""`
	Rm      podDeleteCmd  `cmd:"" group:"program" hidden:""`
	Run     podCreateCmd  `cmd:"" group:"program" hidden:""`
	Worker  workerCmd     `cmd:"" group:"program" hidden:"" name:"__worker"`
	Words   wordsCmd      `cmd:"" group:"program" hidden:"" name:"__complete"`
}

// groups are the headings of the commands in the help.
func groups() kong.Groups {
	return kong.Groups{
		"pods": "Pods, and what they use:", "serverless": "Serverless:", "account": "Your account:", "operators": "For operators:", "program": "This program:",
	}
}

// aliases are further names of commands, wherever one has the name and no other has the alias.
func aliases() map[string][]string {
	return map[string][]string{
		"list": {"ls", "ps"}, "get": {"describe", "inspect", "show"}, "show": {"get", "describe"}, "delete": {"rm", "remove"},
		"remove": {"rm", "delete"}, "create": {"run", "add", "new"}, "update": {"edit", "set"}, "logs": {"log"}, "ssh": {"shell"},
		"use": {"switch"}, "pod": {"pods", "po"}, "endpoint": {"endpoints"}, "job": {"jobs"}, "status": {"get", "show", "describe"}, "template": {"templates"}, "registry": {"registries"}, "secret": {"secrets"},
		"volume": {"volumes", "vol"}, "s3-key": {"s3-keys"}, "net": {"network", "networks"}, "account": {"accounts"}, "key": {"keys"},
		"ssh-key": {"ssh-keys"}, "host": {"hosts", "node", "nodes"}, "image": {"images"}, "context": {"contexts", "ctx"},
		"snapshot": {"snapshots"}, "datacenters": {"datacenter"}, "gpus": {"gpu"}, "cpus": {"cpu"},
	}
}

//go:embed description.txt
var description string

// app is what the commands share.
type app struct {
	system
	cli    *cli
	parser *kong.Kong
	rest   []string // what followed -- on the command line, or the program of pod exec

	command  *kong.Node // that is run
	operator bool       // the command is an operator's
	guessed  bool       // the user was told that the target was guessed
}

// takeRest lists the commands that take arguments after --.
func takeRest() []string {
	return []string{
		"pod create", "pod update", "pod exec", "template create", "template update", "endpoint create", "endpoint update",
		"cluster create", "cluster exec", "run", "exec", "__complete",
	}
}

// run runs one command line and returns the exit status.
func run(ctx context.Context, args []string, sys system) int {
	a := &app{system: sys, cli: &cli{}}
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	if at := slices.Index(args, "--"); at >= 0 {
		args, a.rest = args[:at], args[at+1:]
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	args = joinSortBy(args)
	helped := false
	var err error
	if a.parser, err = newParser(a, kong.Exit(func(int) { helped = true })); err != nil {
		return a.explain(err)
	}
	parsed, err := a.parser.Parse(args)
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
	if err = a.check(commandWords(parsed.Command())); err == nil {
		a.command = parsed.Selected()
		parsed.BindTo(ctx, (*context.Context)(nil))
		err = a.perform(ctx, func() error { return a.runCommand(parsed) })
	}
	var bad *usageError
	if errors.As(err, &bad) && bad.command == "" {
		bad.command = parsed.Command()
	}
	return a.explain(err)
}

// runCommand runs the command once, with a client where it wants one.
func (a *app) runCommand(parsed *kong.Context) error {
	var open []*client.Client
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	if err := parsed.BindToProvider(func() (*client.Client, error) {
		c, _, err := a.connect(forOperators(a.command))
		if err == nil {
			open = append(open, c)
		}
		return c, err
	}); err != nil {
		return err
	}
	return parsed.Run(a)
}

// forOperators reports whether a command takes an operator's key: its group says so, or a tag of it.
func forOperators(command *kong.Node) bool {
	for ; command != nil; command = command.Parent {
		if command.Group != nil && command.Group.Key == "operators" || command.Tag != nil && command.Tag.Has("operator") {
			return true
		}
	}
	return false
}

// joinSortBy lets the column of --sort-by begin with -, which would be a flag else. Flags of one letter stay flags.
func joinSortBy(args []string) []string {
	at := slices.Index(args, "--sort-by")
	if at < 0 || at+1 == len(args) || len(args[at+1]) < 3 || args[at+1][0] != '-' || args[at+1][1] == '-' {
		return args
	}
	return slices.Concat(args[:at], []string{"--sort-by=" + args[at+1]}, args[at+2:])
}

// check refuses what the command does not go with.
func (a *app) check(command string) error {
	if len(a.rest) > 0 && !slices.Contains(takeRest(), command) {
		return usage("this command takes no arguments after --")
	}
	words := strings.Fields(command)
	if a.cli.Watch && !slices.Contains(watchable(), words[len(words)-1]) {
		return usage("--watch goes with commands that list or show something")
	}
	return a.checkFormat()
}

func newParser(a *app, more ...kong.Option) (*kong.Kong, error) {
	parser, err := kong.New(a.cli, append(more,
		kong.Name("gantry"), kong.Description(strings.TrimSpace(description)), kong.Writers(a.out, a.err), groups(), kong.Help(help),
		kong.ConfigureHelp(kong.HelpOptions{NoAppDescFormat: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
	)...)
	if err != nil {
		return nil, err
	}
	addAliases(parser.Model.Node)
	nameArguments(parser.Model.Node)
	return parser, addDetails(parser.Model.Node)
}

// addAliases gives the commands below node the further names that none of them has itself.
func addAliases(node *kong.Node) {
	taken := map[string]bool{}
	for _, child := range node.Children {
		taken[child.Name] = true
	}
	for _, child := range node.Children {
		for _, alias := range aliases()[child.Name] {
			if !taken[alias] {
				taken[alias] = true
				child.Aliases = append(child.Aliases, alias)
			}
		}
		addAliases(child)
	}
}

// help prints the help of the program, or of a command, which leaves out the flags that all commands have.
func help(options kong.HelpOptions, ctx *kong.Context) error {
	command := ctx.Selected()
	if command == nil {
		options.FlagsLast, options.Compact = true, true
	}
	hideAliases(ctx.Model.Node)
	for _, flag := range ctx.Model.Flags {
		flag.Hidden = command != nil && flag.Name != "help"
	}
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil || command == nil {
		return err
	}
	_, err := fmt.Fprint(ctx.Stdout, "\nFlags of all commands (--api, --context, -o, --watch and others) and exit statuses: gantry --help\n")
	return err
}

// hideAliases takes the further names away, which the help would repeat in every line.
func hideAliases(node *kong.Node) {
	node.Aliases = nil
	for _, child := range node.Children {
		hideAliases(child)
	}
}
