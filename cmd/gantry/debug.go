package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"gantry/client"
	"gantry/fleet"
)

type debugCmd struct {
	Bundle debugBundleCmd `cmd:"" help:"Collect diagnostics for a bug report into one file, without secrets."`
}

type debugBundleCmd struct {
	File              string        `arg:"" placeholder:"FILE" help:"File to write, a tar.gz."`
	Metrics           []string      `placeholder:"URL" help:"Where metrics are read; those of this machine's daemons, as their settings in /etc/gantry say, when not given. May be repeated."`
	MetricsClientCert string        `placeholder:"FILE" help:"Certificate (PEM) for metrics that ask for one; with --metrics-client-key."`
	MetricsClientKey  string        `placeholder:"FILE" help:"Key of that certificate (PEM)."`
	Since             time.Duration `default:"2h" placeholder:"TIME" help:"How far back the journals of this machine's daemons are taken, such as 2h; 0 takes none."`
	Include           []string      `sep:"none" type:"path" placeholder:"FILE" help:"Add the end of a daemon's log or settings file, what looks like a secret left out. May be repeated."`
	Within            time.Duration `default:"2m" help:"What has not come by then is left out."`
	Force             bool          `help:"Replace a file that is there."`
}

const (
	bundleFolder  = "gantry-bundle/"
	bundleLog     = 1 << 20  // bytes of the end of a file
	bundleMetrics = 16 << 20 // bytes of an answer
	bundleMost    = 64 << 20 // bytes of all, before they are packed
	bundleHosts   = 50       // whose pods are asked for
	bundleCall    = 15 * time.Second
)

const bundleReadme = `A report of a Gantry cluster, made by gantry debug bundle.

manifest.json   what is here with size and SHA-256, and what is missing with the reason
version.json    the command line's version, and when this was made
cluster.json    the schedulers: roles, versions, how far each has applied the log, problems
health-N.json   the conditions of the scheduler behind each API address
hosts.json      hosts with their conditions, GPUs and versions
pods-HOST.json  for up to 50 hosts, those that are not well first: ids and states of their pods, and when each came to which step of its start
network-HOST.json  for those that are not well, as far as they answer: what their network should be and is
events.json     what these records say happened, and when: hosts, drains, alarms, GPUs, schedulers, steps of pods' starts, pods that a drain waits for or moves
settings-*.json data centers, storage backends, networks, GPU types, CPU flavors
metrics-N.txt   metrics of daemons on the machine where this was made
journal-UNIT.txt  the journals of these daemons
files/          ends of files that were named with --include

Secrets are left out: "(left out)" stands in their place. Still, look through it before you send it: it names your hosts and addresses.
`

// part is a file of a bundle.
type part struct {
	Name    string `json:"name"`
	Bytes   int    `json:"bytes,omitempty"`
	SHA256  string `json:"sha256,omitempty"`
	Missing string `json:"missing,omitempty"` // why it is not here
}

// bundle is a bundle that is being written.
type bundle struct {
	tar   *tar.Writer
	at    time.Time
	scrub scrubber
	parts []part
	size  int
}

// add writes a file, or notes why it is not there.
func (b *bundle) add(name string, text []byte, err error) error {
	if err == nil && b.size+len(text) > bundleMost {
		err = fmt.Errorf("with its %d bytes the bundle would have more than %d MiB", len(text), bundleMost>>20)
	}
	if err != nil {
		b.parts = append(b.parts, part{Name: name, Missing: b.scrub.text(err.Error())})
		return nil
	}
	b.size += len(text)
	return b.write(name, text)
}

func (b *bundle) write(name string, text []byte) error {
	sum := sha256.Sum256(text)
	b.parts = append(b.parts, part{Name: name, Bytes: len(text), SHA256: hex.EncodeToString(sum[:])})
	if err := b.tar.WriteHeader(&tar.Header{Name: bundleFolder + name, Mode: 0o600, Size: int64(len(text)), ModTime: b.at, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := b.tar.Write(text)
	return err
}

// json adds what the API said.
func (b *bundle) json(name string, raw json.RawMessage, err error) error {
	if err == nil {
		raw, err = b.scrub.json(raw)
	}
	return b.add(name, raw, err)
}

// Run makes a bundle.
func (cmd debugBundleCmd) Run(ctx context.Context, a *app) error {
	pair, err := cmd.clientPair()
	if err != nil {
		return err
	}
	c, conn, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	out, err := newWhole(cmd.File, cmd.Force)
	if err != nil {
		return err
	}
	defer out.drop()
	packed := gzip.NewWriter(out)
	b := &bundle{tar: tar.NewWriter(packed), at: a.now(), scrub: newScrubber(
		conn.key.Reveal(), a.getenv("GANTRY_API_KEY"), a.getenv("GANTRY_ADMIN_KEY"), conn.dev.APIKey.Reveal(), conn.dev.AdminKey.Reveal())}
	if err := cmd.collect(ctx, c, conn, b, pair); err != nil {
		return err
	}
	manifest, err := json.MarshalIndent(b.parts, "", "  ")
	if err != nil {
		return err
	}
	if err := errors.Join(b.write("manifest.json", append(manifest, '\n')), b.tar.Close(), packed.Close()); err != nil {
		return err
	}
	if err := out.keep(); err != nil {
		return err
	}
	missing := 0
	for _, p := range b.parts {
		if p.Missing != "" {
			missing++
			_, _ = fmt.Fprintf(a.err, "without %s: %s\n", printable(p.Name), printable(p.Missing))
		}
	}
	if missing > 0 {
		return &exitError{exitFailed, fmt.Errorf("%s is written, but lacks %d of %s", printable(cmd.File), missing, count(len(b.parts), "part"))}
	}
	return nil
}

// collect writes all but the manifest. It fails when nothing can be written, or ctx ends.
func (cmd debugBundleCmd) collect(ctx context.Context, c *client.Client, conn connection, b *bundle, pair *tls.Certificate) error {
	user := ctx
	ctx, cancel := context.WithTimeout(ctx, cmd.Within)
	defer cancel()
	about, err := json.Marshal(map[string]string{"gantry": version, "at": b.at.UTC().Format(time.RFC3339)})
	faults := []error{b.write("README", []byte(bundleReadme)), b.json("version.json", about, err)}
	for i, api := range strings.Split(conn.api, ",") {
		text, err := fetch(ctx, strings.TrimRight(strings.TrimSpace(api), "/")+"/healthz?verbose=true", nil, nil)
		faults = append(faults, b.json(fmt.Sprintf("health-%d.json", i+1), text, err))
	}
	raw := func(name string, get func(context.Context) (json.RawMessage, error)) {
		if user.Err() == nil {
			ctx, cancel := context.WithTimeout(ctx, bundleCall)
			defer cancel()
			text, err := get(ctx)
			faults = append(faults, b.json(name, text, err))
		}
	}
	var happened events
	raw("cluster.json", func(ctx context.Context) (json.RawMessage, error) {
		cluster, err := c.Cluster(ctx)
		happened.members(&cluster.Value)
		return cluster.Raw, err
	})
	raw("settings-datacenters.json", rawOf(c.Centers))
	raw("settings-network.json", rawOf(c.NetworkSettings))
	raw("settings-placement.json", rawOf(c.Placement))
	raw("capacity.json", rawOf(c.Capacity))
	raw("settings-volume-backends.json", rawOf(c.Backends))
	raw("settings-gpu-types.json", rawOf(c.GPUTypes))
	raw("settings-models.json", rawOf(c.Models))
	raw("settings-object-storage.json", rawOf(c.ObjectStore))
	raw("settings-cpu-flavors.json", rawOf(c.CPUFlavors))
	var sick, well []string
	raw("hosts.json", func(ctx context.Context) (json.RawMessage, error) {
		hosts, err := c.Hosts(ctx)
		for _, h := range hosts.Value.Hosts {
			happened.host(&h)
			switch {
			case !fleet.ValidID(h.ID):
			case h.State != fleet.HostReady || len(h.Conditions) > 0 || h.TakesNoPods != "":
				sick = append(sick, h.ID)
			default:
				well = append(well, h.ID)
			}
		}
		return hosts.Raw, err
	})
	hosts := slices.Concat(sick, well)
	for i, id := range hosts[:min(len(hosts), bundleHosts)] {
		raw("pods-"+id+".json", func(ctx context.Context) (json.RawMessage, error) {
			pods, err := c.HostPods(ctx, id)
			for _, p := range pods.Value.Pods {
				happened.pod(b.at, id, &p)
			}
			return pods.Raw, err
		})
		if i >= len(sick) {
			continue
		}
		raw("network-"+id+".json", func(ctx context.Context) (json.RawMessage, error) {
			network, err := c.HostNetwork(ctx, id)
			return network.Raw, err
		})
	}
	raw("events.json", func(context.Context) (json.RawMessage, error) { return happened.text() })
	faults = append(faults, cmd.machine(ctx, b, conn.dev.API == "", pair)) // a gantry dev serves no metrics, and its daemons are no units
	for i, path := range cmd.Include {
		text, err := tail(path)
		faults = append(faults, b.add(fmt.Sprintf("files/%d-%s", i+1, filepath.Base(path)), []byte(b.scrub.text(text)), err))
	}
	return errors.Join(append(faults, user.Err())...)
}

// machine adds metrics and journals of the daemons of this machine, where there are any.
func (cmd debugBundleCmd) machine(ctx context.Context, b *bundle, any bool, pair *tls.Certificate) error {
	var faults []error
	var from []scraped
	var units []string
	if any {
		from, units = metricsOf(settingsFolder), unitsOf(settingsFolder)
	}
	if len(cmd.Metrics) > 0 {
		from = nil
	}
	for _, url := range cmd.Metrics {
		from = append(from, scraped{url: url})
	}
	for i, one := range from {
		text, err := one.fetch(ctx, pair)
		faults = append(faults, b.add(fmt.Sprintf("metrics-%d.txt", i+1), []byte(b.scrub.text(string(text))), err))
	}
	for _, unit := range units {
		if cmd.Since > 0 {
			text, err := journal(ctx, unit, cmd.Since)
			faults = append(faults, b.add("journal-"+unit+".txt", []byte(b.scrub.text(text)), err))
		}
	}
	return errors.Join(faults...)
}

// clientPair reads the certificate that is shown where metrics ask for one; nil: none was given.
func (cmd debugBundleCmd) clientPair() (*tls.Certificate, error) {
	if cmd.MetricsClientCert == "" && cmd.MetricsClientKey == "" {
		return nil, nil //nolint:nilnil // there may be none
	}
	if cmd.MetricsClientCert == "" || cmd.MetricsClientKey == "" {
		return nil, usage("--metrics-client-cert and --metrics-client-key go together")
	}
	pair, err := tls.LoadX509KeyPair(cmd.MetricsClientCert, cmd.MetricsClientKey)
	if err != nil {
		return nil, usage("--metrics-client-cert: %v", err)
	}
	return &pair, nil
}

func rawOf[T any](get func(context.Context) (client.Answer[T], error)) func(context.Context) (json.RawMessage, error) {
	return func(ctx context.Context) (json.RawMessage, error) {
		answer, err := get(ctx)
		return answer.Raw, err
	}
}

// fetch reads an address that needs no API key. An answer that is a failure is one all the same where it has a body: health has.
func fetch(ctx context.Context, url string, config *tls.Config, header http.Header) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, bundleCall)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, bundleMetrics+1))
	if len(text) > bundleMetrics {
		return nil, fmt.Errorf("it answers more than %d MiB", bundleMetrics>>20)
	}
	if err == nil && res.StatusCode != http.StatusOK && res.StatusCode != http.StatusServiceUnavailable {
		err = fmt.Errorf("it answers %s", res.Status)
	}
	return text, err
}

// tail reads the end of a file, from the begin of a line on: half a secret has not the form of one.
func tail(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe nobody writes to is not waited for
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("it is not a file")
	}
	from := max(0, info.Size()-bundleLog)
	text, err := io.ReadAll(io.NewSectionReader(f, from, bundleLog))
	if from > 0 {
		_, rest, _ := strings.Cut(string(text), "\n")
		return rest, err
	}
	return string(text), err
}
