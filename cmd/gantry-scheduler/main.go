// Command gantry-scheduler is the control plane's daemon: it holds the replicated state, places pods
// and serves every API.
package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"gantry/api/limit"
	"gantry/cmd/internal/cmdline"
	"gantry/fleet"
	"gantry/internal/scrape"
	"gantry/scheduler/membership"
)

// Set by the build. level is the feature level that this program announces, to try an upgrade between two builds of
// one source: up to one above what it understands, which then has nothing of its own. Empty: what it understands.
var (
	version = "dev"
	level   = ""
)

var errAddress = errors.New("--address must be HOST:PORT as other machines reach it")

type cli struct {
	cmdline.Common

	Init    initCmd    `cmd:"" help:"Make a new cluster of one scheduler: its CA, its first accounts and keys."`
	Join    joinCmd    `cmd:"" help:"Make this machine another scheduler of a cluster, with a token from gantry raft add. Start it with run afterwards."`
	Run     runCmd     `cmd:"" help:"Run the scheduler in the foreground, as systemd does."`
	Rebuild rebuildCmd `cmd:"" help:"Give a scheduler whose data is damaged or lost a new identity and an empty copy, which the others fill when it runs. The cluster must have a leader without it."`
	Recover recoverCmd `cmd:"" help:"Make this scheduler's copy a cluster of its own when a majority of the schedulers is lost for good. What they acknowledged and this one never received is gone."`
	Restore restoreCmd `cmd:"" help:"Make a cluster of one scheduler from a file of gantry snapshot save."`

	Gateway gatewayCmd `cmd:"" help:"Carry requests to pods without a copy of the state: join a cluster as a gateway, and run."`

	CheckConfig checkConfigCmd `cmd:"" help:"Check the configuration that run would use, report errors, and exit."`
}

type initCmd struct {
	DataDir    string `required:"" type:"path" help:"Folder for the cluster's data." placeholder:"DIR"`
	KeysFile   string `required:"" type:"path" help:"File, made with mode 0600, that receives the operator's and the first account's API keys as JSON, for gantry --api-key-file. They are shown nowhere else." placeholder:"FILE"`
	DataCenter string `default:"dc-1" help:"Name of the first data center."`
	Address    string `help:"Address under which hosts and other schedulers reach this one's link port. Without it 127.0.0.1 and the link port, which only this machine reaches; run --address changes it." placeholder:"HOST:PORT"`
	Name       string `help:"Name of this scheduler, for people; by default the machine's."`
}

// frontFlags are those of what serves users, a scheduler or a gateway.
type frontFlags struct {
	Listen      string       `default:"127.0.0.1:8080" help:"Address of the API and of the proxy to pods' http ports. One that is not loopback needs a certificate, or --plain-http." placeholder:"HOST:PORT"`
	ProxyDomain string       `default:"proxy.localhost" help:"Pods' http ports appear at POD-PORT.DOMAIN."`
	Metrics     string       `default:"127.0.0.1:9413" help:"Address at which Prometheus reads metrics (/metrics), of loopback unless --metrics-tls-cert is given; empty: none." placeholder:"HOST:PORT"`
	Edge        edgeFlags    `embed:""`
	Shares      shareFlags   `embed:""`
	Scrape      scrape.Flags `embed:""`
}

func (c *frontFlags) validate() error {
	return errors.Join(c.Shares.validate(), c.Scrape.Validate(c.Metrics), c.Edge.validate(c.Listen, c.ProxyDomain))
}

type runCmd struct {
	DataDir           string        `required:"" type:"path" help:"Folder that init, join or restore made." placeholder:"DIR"`
	LinkListen        string        `help:"Address for agents and other schedulers (mutual TLS); when not given, 0.0.0.0 and the port of --address, as given now, to init or to join, else 8443." placeholder:"HOST:PORT"`
	Address           string        `help:"Address under which hosts and other schedulers reach the link port, when it is another one than before. It is kept." placeholder:"HOST:PORT"`
	ProxyURL          string        `name:"proxy-url" help:"The proxy domain as users reach it, as in https://proxy.example.com, when a load balancer has another scheme or port than --listen." placeholder:"URL"`
	APIURL            string        `name:"api-url" help:"The API as users reach it, as in https://api.example.com, for the addresses of files in results of public models; when not given, the address of --listen." placeholder:"URL"`
	S3URL             []string      `name:"s3-url" help:"Data center and address of its S3 server as users reach it, as in EU-RO-1=https://s3.example.com; may be repeated. Links to files of network volumes and the console use it. Each scheduler must have the same." placeholder:"DATA-CENTER=URL"`
	ModelHub          string        `default:"https://huggingface.co" help:"Address that hosts fetch the models of endpoints from: the public hub, or a mirror of its API. Each scheduler must have the same." placeholder:"URL"`
	PodsMovable       bool          `name:"pods-movable" help:"Let drains move pods whose owners did not say whether they may be moved."`
	StopGrace         time.Duration `default:"10s" help:"Time between SIGTERM and SIGKILL when a pod is stopped (at most 2m)."`
	KeepTerminat      time.Duration `name:"keep-terminated" default:"10m" help:"How long a terminated pod stays readable."`
	KeepUsage         time.Duration `default:"9600h" help:"How long hourly usage, which billing shows, is kept (400 days)."`
	KeepAudit         time.Duration `default:"2160h" help:"How long lines of the audit log are kept (90 days)."`
	HeartbeatTimeout  time.Duration `default:"3200ms" help:"A host that is silent for longer has lost its session."`
	HostTimeout       time.Duration `default:"1600ms" help:"A host that lost its session for longer is unreachable."`
	RaftTimeout       time.Duration `default:"200ms" help:"Time without a word from the leader after which the schedulers elect another (50ms to 10s). Longer for slow links between them; all need the same."`
	ClockLeap         time.Duration `default:"10m" help:"A leader's clock that is further from the log's time holds back everything final (charges, ends for want of credit, purges) until the schedulers' clocks agree, or an operator confirms it (1m to 24h)."`
	SnapshotEvery     uint64        `default:"8192" help:"Log entries between snapshots of the state."`
	SnapshotBytes     int64         `default:"67108864" help:"Bytes of log between snapshots, and of the log that is kept for followers after one (1 MiB to 16 GiB)." placeholder:"BYTES"`
	RateMinute        int           `default:"180" help:"API requests that an account may make in a minute; 0: any number." placeholder:"N"`
	RateHour          int           `default:"7200" help:"The same for an hour." placeholder:"N"`
	RateDay           int           `default:"100000" help:"The same for a day." placeholder:"N"`
	RequestsPerWorker int           `default:"100" help:"Requests about jobs of an endpoint that each of its running workers adds to those that an account may make in 10 seconds, and at a time (1 to 100000)." placeholder:"N"`
	RateFailures      int           `default:"60" help:"Requests without a valid key, and for paths that do not exist, that one client address may make in a minute before they get 429; 0: any number. Requests with a valid key always pass. Clients behind a proxy have the proxy's address unless it is one of --trusted-proxies." placeholder:"N"`

	Hooks      webhookFlags `embed:""`
	People     peopleFlags  `embed:""`
	frontFlags `embed:""`
}

type checkConfigCmd struct {
	Settings runCmd `embed:""`
}

// Run says that the flags could be read: kong has said what could not.
func (c *checkConfigCmd) Run() error {
	return checked(c.Settings.validate(), c.Settings.DataDir, &c.Settings.Edge)
}

// checked says that a configuration is fine, after a look at the files that it names.
func checked(valid error, dataDir string, front *edgeFlags) error {
	if valid != nil {
		return valid
	}
	if _, err := readAddress(dataDir); err != nil {
		return fmt.Errorf("the data folder cannot be read: %w", err)
	}
	if _, err := front.files(slog.Default()); err != nil {
		return err
	}
	if err := front.check(); err != nil {
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
	if c.HeartbeatTimeout < minHeartbeatTimeout {
		faults = append(faults, errors.New("--heartbeat-timeout must be at least 3s, two heartbeats"))
	}
	if c.RaftTimeout < minRaftTimeout || c.RaftTimeout > maxRaftTimeout {
		faults = append(faults, errors.New("--raft-timeout must be 50ms to 10s"))
	}
	if c.ClockLeap < minClockLeap || c.ClockLeap > maxClockLeap {
		faults = append(faults, errors.New("--clock-leap must be 1m to 24h"))
	}
	if c.SnapshotBytes < minSnapshotBytes || c.SnapshotBytes > maxSnapshotBytes {
		faults = append(faults, fmt.Errorf("--snapshot-bytes must be %d to %d", minSnapshotBytes, maxSnapshotBytes))
	}
	if c.Address != "" && !membership.ValidAddress(c.Address) {
		faults = append(faults, errAddress)
	}
	for flag, d := range map[string]time.Duration{
		"--keep-terminated": c.KeepTerminat, "--keep-usage": c.KeepUsage, "--keep-audit": c.KeepAudit, "--host-timeout": c.HostTimeout,
	} {
		if d <= 0 {
			faults = append(faults, fmt.Errorf("%s must be above 0", flag))
		}
	}
	if err := c.rates().Validate(); err != nil {
		faults = append(faults, fmt.Errorf("--rate-minute, --rate-hour, --rate-day: %w", err))
	}
	if _, err := c.Hooks.sender(); err != nil {
		return err
	}
	if c.RequestsPerWorker < 1 || c.RequestsPerWorker > 100_000 {
		return errors.New("--requests-per-worker must be 1 to 100000")
	}
	if c.RateFailures < 0 || c.RateFailures > limit.MaxQuota {
		faults = append(faults, fmt.Errorf("--rate-failures must be 0 to %d", limit.MaxQuota))
	}
	if err := fleet.CheckModelHub(c.ModelHub); err != nil {
		faults = append(faults, fmt.Errorf("--model-hub %w", err))
	}
	faults = append(faults, c.checkProxyURL(), c.checkAPIURL(), c.checkS3URLs(), c.People.check())
	return errors.Join(append(faults, c.frontFlags.validate())...)
}

func (c *runCmd) rates() limit.Quotas {
	return limit.Quotas{Minute: c.RateMinute, Hour: c.RateHour, Day: c.RateDay}
}

func main() {
	os.Exit(cmdline.Main(&cli{}, "gantry-scheduler", version, "The control plane of a Gantry cluster. It needs no privileges."))
}
