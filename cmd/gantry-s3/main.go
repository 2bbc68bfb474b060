// Command gantry-s3 serves the network volumes of one data center over the S3 protocol. It asks the agent of its host what
// access keys may do and for the volumes' folders. What talks to clients is a process of its own, without any right on the host.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"gantry/cmd/internal/cmdline"
	"gantry/cmd/internal/watchdog"
	"gantry/fleet"
	"gantry/internal/confine"
	"gantry/internal/scrape"
)

var version = "dev" // set by the build

type cli struct {
	cmdline.Common

	Run         runCmd         `cmd:"" help:"Serve S3 in the foreground, as systemd does."`
	CheckConfig checkConfigCmd `cmd:"" help:"Check the configuration that run would use, report errors, and exit."`
}

type runCmd struct {
	AgentSocket   string   `type:"path" help:"Socket of this host's agent for gantry-s3, instead of --agent-data-dir." placeholder:"FILE"`
	AgentDataDir  string   `type:"path" help:"Data folder of this host's agent, as the agent has it." placeholder:"DIR"`
	Region        string   `required:"" help:"The data center, which is the region of clients." placeholder:"DATA-CENTER"`
	Listen        string   `required:"" help:"Address for clients." placeholder:"HOST:PORT"`
	TLSCert       string   `name:"tls-cert" type:"path" help:"Certificate chain, PEM; without it clients are answered over plain HTTP. A changed file counts within a minute." placeholder:"FILE"`
	TLSKey        string   `name:"tls-key" type:"path" help:"Key of the certificate, PEM." placeholder:"FILE"`
	Domain        []string `help:"A bucket is also named by a host name BUCKET.DOMAIN; may be repeated." placeholder:"DOMAIN"`
	ConsoleOrigin []string `help:"Origin of the web console, as in https://api.example.com, whose pages may list, read and write files; may be repeated." placeholder:"URL"`
	Metrics       string   `default:"127.0.0.1:9414" help:"Address at which Prometheus reads metrics (/metrics), of loopback unless --metrics-tls-cert is given; empty: none." placeholder:"HOST:PORT"`
	MaxPerAddress int      `default:"512" help:"Connections of one client address (an IPv6 /64 is one) at a time, of 4096 in all." placeholder:"N"`
	User          string   `help:"User on the host that the serving process is, by name or number, who must own nothing; default: gantry-s3 where there is one, else 2147287040." placeholder:"NAME|UID"`

	Scrape scrape.Flags `embed:""`
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

func main() {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case confineCommand:
			os.Exit(ended(confine.Become(servingAs())))
		case serveCommand:
			os.Exit(ended(serve()))
		}
	}
	os.Exit(cmdline.Main(&cli{}, "gantry-s3", version, "Serves network volumes over S3. It is started as root, beside the agent of a host with the role s3; what talks to clients has no rights on the host."))
}

// ended reports the end of one of the processes that this one starts.
func ended(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "gantry-s3:", err)
	return 1
}

// validate reports every setting that is out of its range.
func (c *runCmd) validate() error {
	var faults []error
	if (c.AgentSocket == "") == (c.AgentDataDir == "") {
		faults = append(faults, errors.New("one of --agent-socket and --agent-data-dir must be given"))
	}
	if c.Region == "" || strings.ContainsFunc(c.Region, func(r rune) bool { return r <= ' ' || r == '/' || r > '~' }) {
		faults = append(faults, errors.New("--region must be the id of a data center"))
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		faults = append(faults, fmt.Errorf("--listen: %w", err))
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		faults = append(faults, errors.New("--tls-cert and --tls-key go together"))
	} else if c.TLSCert != "" {
		if _, err := c.readTLS(); err != nil {
			faults = append(faults, err)
		}
	}
	if c.MaxPerAddress < 1 || c.MaxPerAddress > maxClients {
		faults = append(faults, fmt.Errorf("--max-per-address must be 1 to %d", maxClients))
	}
	faults = append(faults, c.Scrape.Validate(c.Metrics))
	for _, o := range c.ConsoleOrigin {
		if u, err := url.Parse(o); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || o != u.Scheme+"://"+u.Host {
			faults = append(faults, fmt.Errorf("--console-origin %q must be an http or https address of a host, without a path", o))
		}
	}
	for _, d := range c.Domain {
		if strings.Trim(d, ".") == "" || strings.ContainsAny(d, "/: ") {
			faults = append(faults, fmt.Errorf("--domain %q is not a domain name", d))
		}
	}
	if _, err := c.who(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// socket is where the agent listens. Its name is made as the agent makes it.
func (c *runCmd) socket() string {
	if c.AgentSocket != "" {
		return c.AgentSocket
	}
	sum := sha256.Sum256([]byte(c.AgentDataDir))
	return filepath.Join("/run/gantry-"+hex.EncodeToString(sum[:2]), "s3", "agent.sock")
}

// Run is the daemon's life.
func (c *runCmd) Run(ctx context.Context, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("must be started as root: it makes a process for clients that has no rights")
	}
	if err := c.validate(); err != nil {
		return err
	}
	who, err := c.who()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return errors.New("the listener is not TCP")
	}
	defer func() { _ = tcp.Close() }()
	file, err := tcp.File()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	s := &supervisor{
		conf: servingConfig{
			Region: c.Region, Domains: c.Domain, Origins: c.ConsoleOrigin, TLS: c.TLSCert != "", Addr: l.Addr().String(), Metrics: c.Metrics, Version: version,
			Debug: log.Enabled(ctx, slog.LevelDebug), Alive: watchdog.Every(), PerAddress: c.MaxPerAddress, ScrapeTLS: c.Scrape.Used(),
		},
		who:    who,
		listen: file,
		socket: c.socket(),
		tls:    c.readTLS,
		scrape: c.Scrape.Read,
		log:    log,
	}
	return s.run(ctx)
}

// Of the ids on the host, the serving process has those of the files of network volumes, and one as its own root.
const (
	volumeIDs   = int(fleet.VolumeIDsFirst)
	volumeIDsTo = int(fleet.VolumeIDsLast) + fleet.VolumeIDs // excluded
	defaultID   = 0x7FFD0000
)
