// Command gantry-scheduler is the control plane's daemon: it holds the replicated state, places pods
// and serves every API.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"gantry/api/limit"
	"gantry/cmd/internal/cmdline"
)

var version = "dev" // set by the build

type cli struct {
	cmdline.Common

	Init initCmd `cmd:"" help:"Make a new cluster of one scheduler: its CA, its first accounts and keys."`
	Run  runCmd  `cmd:"" help:"Run the scheduler in the foreground, as systemd does."`

	CheckConfig checkConfigCmd `cmd:"" help:"Read the configuration as run would, say what is wrong with it, and start nothing."`
}

type initCmd struct {
	DataDir    string `required:"" type:"path" help:"Folder for the cluster's data." placeholder:"DIR"`
	KeysFile   string `required:"" type:"path" help:"File, made with mode 0600, that receives the operator's and the first account's API keys as JSON. They are shown nowhere else." placeholder:"FILE"`
	DataCenter string `default:"dc-1" help:"Name of the first data center."`
}

type runCmd struct {
	DataDir       string        `required:"" type:"path" help:"Folder that init made." placeholder:"DIR"`
	Listen        string        `default:"127.0.0.1:8080" help:"Address of the HTTP API and of the proxy to pods' http ports." placeholder:"HOST:PORT"`
	LinkListen    string        `default:"0.0.0.0:8443" help:"Address for agents and other schedulers (mutual TLS)." placeholder:"HOST:PORT"`
	ProxyDomain   string        `default:"proxy.localhost" help:"Pods' http ports appear at POD-PORT.DOMAIN."`
	StopGrace     time.Duration `default:"10s" help:"Time between SIGTERM and SIGKILL when a pod is stopped (at most 2m)."`
	KeepTerminat  time.Duration `name:"keep-terminated" default:"10m" help:"How long a terminated pod stays readable."`
	KeepUsage     time.Duration `default:"9600h" help:"How long hourly usage, which billing shows, is kept (400 days)."`
	HostSilence   time.Duration `default:"5s" help:"A host that is silent for longer has lost its session."`
	HostPatience  time.Duration `default:"5s" help:"A host that lost its session for longer is unreachable."`
	SnapshotEvery uint64        `default:"8192" help:"Log entries between snapshots of the state."`
	RateMinute    int           `default:"180" help:"API requests that an account may make in a minute; 0: any number." placeholder:"N"`
	RateHour      int           `default:"7200" help:"The same for an hour." placeholder:"N"`
	RateDay       int           `default:"100000" help:"The same for a day." placeholder:"N"`
	RateFailures  int           `default:"60" help:"Requests without a good key that one client address may make in a minute before it is refused unheard; 0: any number. Clients behind a proxy have the proxy's address." placeholder:"N"`
}

type checkConfigCmd struct {
	Settings runCmd `embed:""`
}

// Run says that the flags could be read: kong has said what could not.
func (c *checkConfigCmd) Run() error {
	if err := c.Settings.validate(); err != nil {
		return err
	}
	fmt.Println("the configuration is fine")
	return nil
}

// validate reports every setting that is out of its range.
func (c *runCmd) validate() error {
	var faults []error
	if c.StopGrace < time.Second || c.StopGrace > maxStopGrace {
		faults = append(faults, errors.New("--stop-grace must be 1s to 2m"))
	}
	if c.HostSilence < minHostSilence {
		faults = append(faults, errors.New("--host-silence must be at least 4s, two heartbeats"))
	}
	for flag, d := range map[string]time.Duration{
		"--keep-terminated": c.KeepTerminat, "--keep-usage": c.KeepUsage, "--host-patience": c.HostPatience,
	} {
		if d <= 0 {
			faults = append(faults, fmt.Errorf("%s must be above 0", flag))
		}
	}
	if err := c.rates().Validate(); err != nil {
		faults = append(faults, fmt.Errorf("--rate-minute, --rate-hour, --rate-day: %w", err))
	}
	if c.RateFailures < 0 || c.RateFailures > limit.MaxQuota {
		faults = append(faults, fmt.Errorf("--rate-failures must be 0 to %d", limit.MaxQuota))
	}
	return errors.Join(faults...)
}

func (c *runCmd) rates() limit.Quotas {
	return limit.Quotas{Minute: c.RateMinute, Hour: c.RateHour, Day: c.RateDay}
}

func main() {
	os.Exit(cmdline.Main(&cli{}, "gantry-scheduler", version, "The control plane of a Gantry cluster. It needs no privileges."))
}
