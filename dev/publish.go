package dev

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"gantry/internal/atomicfile"
)

// publish writes the pointer and, last, dev.json, for which others wait; it keeps dev.json current until unpublish.
func (d *dev) publish(ctx context.Context) error {
	if d.cfg.StateHome != "" {
		at := pointer(d.cfg.StateHome)
		err := os.MkdirAll(filepath.Dir(at), 0o700)
		if err == nil {
			err = atomicfile.Write(at, []byte(d.folder.dir+"\n"), 0o600)
		}
		if err != nil {
			d.cfg.Log.Warn("the command line will not find this instance by itself", "err", err)
		}
	}
	if err := d.writeFile(); err != nil {
		return fmt.Errorf("write dev.json: %w", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.stopFile, d.writing = cancel, make(chan struct{})
	go func() {
		defer close(d.writing)
		var watching sync.WaitGroup
		watching.Go(func() { d.watchLeader(ctx) })
		defer watching.Wait()
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.wake:
			}
			if err := d.writeFile(); err != nil {
				d.cfg.Log.Warn("update dev.json", "err", err)
			}
		}
	}()
	return nil
}

// unpublish ends the keeping of dev.json and removes it.
func (d *dev) unpublish() {
	if d.writing == nil {
		return
	}
	d.stopFile()
	<-d.writing
	if err := removeIfThere(d.folder.path("dev.json")); err != nil {
		d.cfg.Log.Warn("remove dev.json", "err", err)
	}
}

// processesChanged asks for a new dev.json. It never blocks.
func (d *dev) processesChanged() {
	select {
	case d.wake <- struct{}{}:
	default: // one is asked for already, and will see this change
	}
}

func (d *dev) writeFile() error {
	file := File{
		API: d.api, APIKey: d.keys.APIKey, AdminKey: d.keys.AdminKey, DataCenterID: d.state.DataCenter,
		ProxyDomain: ProxyDomain, AccountID: d.keys.AccountID, ClusterID: d.keys.ClusterID, Processes: []Process{},
	}
	for _, c := range slices.Concat(d.schedulers, d.gateways, d.agents, []*child{d.containerd, d.s3}) {
		pid, _ := c.running()
		if pid == 0 {
			continue // dead at this moment; it is listed again once it was started
		}
		p := Process{Role: c.role, ID: d.identityOf(c.part), PID: pid}
		if c.role == roleScheduler {
			p.API, p.Leader = d.apis[c.number-1], int(d.leader.Load()) == c.number
		}
		if c.role == roleGateway {
			p.API = d.gatewayAPIs[c.number-1]
		}
		file.Processes = append(file.Processes, p)
	}
	return writeJSON(d.folder.path("dev.json"), struct {
		File
		APIKey   string `json:"apiKey"` // a Secret would be written as ***
		AdminKey string `json:"adminKey"`
	}{file, file.APIKey.Reveal(), file.AdminKey.Reveal()})
}

// identityOf is the id that the cluster knows a part by: that in its certificate, which ends its one URI.
func (d *dev) identityOf(p part) string {
	text, err := os.ReadFile(d.folder.path(p.name(), "pki", "node.crt"))
	if err != nil {
		return p.name()
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return p.name()
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil || len(leaf.URIs) != 1 {
		return p.name()
	}
	return path.Base(leaf.URIs[0].Path)
}

// tell says what runs and how to go on.
func (d *dev) tell() {
	out := &strings.Builder{}
	fmt.Fprintf(out, "\nGantry is ready (%s).\n\n", seconds(time.Since(d.began)))
	fmt.Fprintf(out, "  API          %s\n", strings.Join(d.apis, "\n               "))
	if len(d.gatewayAPIs) > 0 {
		fmt.Fprintf(out, "  gateways     %s\n", strings.Join(d.gatewayAPIs, "\n               "))
	}
	fmt.Fprintf(out, "  console      %s/console\n", d.api)
	fmt.Fprintf(out, "  data center  %s: %s\n", d.state.DataCenter, d.equipment())
	fmt.Fprintf(out, "  pods' HTTP   http://<pod id>-<port>.%s%s\n", ProxyDomain, d.api[strings.LastIndexByte(d.api, ':'):])
	if d.cfg.S3 != "" {
		fmt.Fprintf(out, "  S3           http://%s, region %s (gantry s3-key create)\n", d.cfg.S3, d.state.DataCenter)
	}
	fmt.Fprintf(out, "  data folder  %s (dev.json, log/)\n\n", d.folder.dir)
	fmt.Fprintf(out, "In another terminal of this user the gantry command finds it by itself. For other programs:\n\n")
	fmt.Fprintf(out, "  export GANTRY_API=%s\n", strings.Join(d.apis, ","))
	fmt.Fprintf(out, "  export GANTRY_API_KEY=$(jq -r .apiKey %s)\n\n", quote(d.folder.path("dev.json")))
	fmt.Fprintf(out, "Try:\n\n")
	fmt.Fprintf(out, "  gantry catalog cpus\n")
	fmt.Fprintf(out, "  gantry pod create web docker.io/library/nginx:alpine --cpu cpu3c --vcpu 2 --port 80/http --wait\n")
	if gpu := d.gpuType(); gpu != "" {
		fmt.Fprintf(out, "  gantry pod create train docker.io/library/busybox --gpu %s --count 1 --wait -- sleep 1d\n", quote(gpu))
	}
	fmt.Fprintf(out, "  gantry volume create data --size 10 --data-center %s\n", quote(d.state.DataCenter))
	if d.cfg.SampleWorker != "" {
		fmt.Fprintf(out, "  gantry endpoint create hello %s --cpu cpu3c\n", SampleImage)
		fmt.Fprintf(out, "  gantry job runsync hello --input '{\"name\": \"you\"}'\n")
		fmt.Fprintf(out, "  gantry admin model put sample-image --endpoint $(gantry endpoint get hello -o jsonpath='{.id}') --request 0.02\n")
		fmt.Fprintf(out, "  curl $GANTRY_API/v2/sample-image/runsync -H \"Authorization: Bearer $GANTRY_API_KEY\" -H 'Content-Type: application/json' \\\n")
		fmt.Fprintf(out, "    -d '{\"input\": {\"prompt\": \"a cat\", \"width\": 256, \"height\": 256}}'\n")
	}
	fmt.Fprintf(out, "  gantry pod list\n  gantry pod logs -f web\n\n")
	fmt.Fprintf(out, "Ctrl-C stops everything. Started again on this folder, it has the same keys and pods.\n")
	_, _ = d.cfg.Out.Write([]byte(out.String()))
}

func (d *dev) gpuType() string {
	for _, h := range d.hosts {
		for _, g := range h.GPUs {
			return g.Type
		}
	}
	return ""
}

// equipment says in a few words what can be used.
func (d *dev) equipment() string {
	words := plural(len(d.schedulers), "scheduler") + ", " + plural(len(d.hosts), "host")
	count := map[string]int{}
	for _, h := range d.hosts {
		for _, g := range h.GPUs {
			name := g.Type
			if g.Simulated {
				name = "simulated " + name
			}
			count[name]++
		}
	}
	var names []string
	for name := range count {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		words += fmt.Sprintf(", %d × %s", count[name], name)
	}
	return words
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// quote makes one word of a POSIX shell.
func quote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
