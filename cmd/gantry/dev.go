package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"gantry/dev"
)

type devCmd struct {
	DataDir      string   `placeholder:"DIR" help:"Folder for everything that lasts, below the state folder of this user when not given."`
	Listen       string   `default:"127.0.0.1:8080" placeholder:"HOST:PORT" help:"Address of the API and of the pods' HTTP ports. Port 0 takes a free one."`
	DataCenter   string   `placeholder:"ID" help:"Data center of this machine; dev-1 when not given."`
	SimulateGPUs []string `name:"simulate-gpus" sep:"none" placeholder:"TYPE:COUNT" help:"Pretend to have GPUs, for example \"NVIDIA H100 80GB HBM3:8\". May be repeated."`
	Containerd   string   `placeholder:"SOCKET" help:"Use this containerd instead of starting a private one."`
	ImageArchive []string `sep:"none" placeholder:"FILE" help:"OCI or Docker image archive to import. May be repeated, or followed by more files."`
	SampleWorker bool     `help:"Have the image of a worker to try serverless endpoints with, localhost/hello-worker:1, made without a network."`
	Schedulers   int      `placeholder:"N" help:"Number of schedulers, which form a cluster: 1, 3 or 5; 1 when not given."`
	Gateways     int      `placeholder:"N" help:"Number of gateways, which carry requests to pods beside the schedulers, 0 to 8; as many as the folder has when not given."`
	Agents       int      `placeholder:"N" help:"Number of agents, 1 to 16; 1 when not given. Each of several is a host of its own, in a network namespace."`
	ModelHub     string   `placeholder:"URL" help:"Address that models of endpoints are fetched from, such as https://huggingface.co. Each host keeps 1 GB of them; none when not given."`
	S3           string   `name:"s3" placeholder:"HOST:PORT" help:"Serve network volumes over S3 at this address; not when not given."`
	SchedulerArg []string `sep:"none" placeholder:"ARG" help:"Give each scheduler this argument, too, for example --scheduler-arg=--oidc-issuer=https://id.example.com. May be repeated."`
	Overcommit   int      `default:"16" placeholder:"N" help:"Offer this machine's processors, memory and disk N times, so that a small one has room for several pods."`
	MoreArchives []string `arg:"" optional:"" hidden:"" name:"file"`
}

// Run runs a whole Gantry until ctx ends.
func (cmd devCmd) Run(ctx context.Context, a *app) error {
	cfg := dev.Config{
		DataDir: cmd.DataDir, Listen: cmd.Listen, DataCenter: cmd.DataCenter, SimulateGPUs: cmd.SimulateGPUs,
		Containerd: cmd.Containerd, ImageArchives: append(cmd.ImageArchive, cmd.MoreArchives...),
		Schedulers: cmd.Schedulers, Gateways: cmd.Gateways, Agents: cmd.Agents, S3: cmd.S3, ModelHub: cmd.ModelHub, SchedulerArgs: cmd.SchedulerArg, Overcommit: cmd.Overcommit, StateHome: a.stateHome(), Out: a.out, Log: slog.New(slog.NewTextHandler(a.err, nil)), Version: version,
	}
	if cfg.DataDir == "" {
		if cfg.StateHome == "" {
			return usage("there is no home folder to keep data in: give --data-dir")
		}
		cfg.DataDir = dev.DefaultDataDir(cfg.StateHome)
	}
	if dir, err := filepath.Abs(cfg.DataDir); err == nil && a.contextsPath() != "" {
		if err := a.addDev(dir); err != nil {
			_, _ = fmt.Fprintf(a.err, "gantry: no context for this dev: %s\n", printable(err.Error()))
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's own folder: %w", err)
	}
	if cmd.SampleWorker {
		cfg.SampleWorker = self
	}
	if cfg.Binaries, err = dev.FindBinaries(self, a.getenv("PATH"), cmd.Containerd == ""); err != nil {
		return err
	}
	// Whoever reads what dev says may go away; dev must live on to take everything down. Caught, not ignored: children
	// inherit what is ignored.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	err = dev.Run(ctx, cfg)
	var bad *dev.ConfigError
	if errors.As(err, &bad) {
		return usage("%v", err)
	}
	return err
}

// workerCmd is what the image of the sample worker runs.
type workerCmd struct{}

// Run answers jobs until ctx ends.
func (workerCmd) Run(ctx context.Context, a *app) error {
	return dev.RunSampleWorker(ctx, a.getenv, a.out)
}
