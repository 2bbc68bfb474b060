package dev

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"

	"gantry/api/admin"
	"gantry/client"
	"gantry/fleet"
	"gantry/internal/atomicfile"
	"gantry/netctl/kernel"
)

// namespace is the network namespace in which a part runs; empty: dev's own.
func (d *dev) namespace(p part) string {
	if d.island == nil || p.role != roleAgent {
		return ""
	}
	return d.island.Namespace(p.number)
}

// chooseIsland makes the network of several agents, each of which is a host of its own. Its addresses are of the
// range for tests of network devices (RFC 2544), and those of before.
func (d *dev) chooseIsland(ctx context.Context) error {
	if d.state.Agents == 1 {
		return nil
	}
	sum := sha256.Sum256([]byte(d.cfg.DataDir))
	var last error
	for i := range 256 {
		subnet := d.state.Island
		if !subnet.IsValid() {
			subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, sum[4] + byte(i), 0}), 24)
		}
		island, err := kernel.NewIsland(islandName(d.cfg.DataDir), subnet)
		if err != nil {
			return err
		}
		last = island.Up(ctx, d.state.Agents)
		if last == nil {
			d.island, d.state.Island = island, subnet
			return nil
		}
		last = errors.Join(last, island.Down(ctx))
		if !errors.Is(last, kernel.ErrIslandTaken) || d.state.Island.IsValid() {
			break
		}
	}
	return fmt.Errorf("make the network of the agents: %w", last)
}

// islandName tells the networks of several folders apart.
func islandName(dataDir string) string {
	sum := sha256.Sum256([]byte(dataDir))
	return hex.EncodeToString(sum[:3])
}

// leaveIsland takes the network of the agents away.
func (d *dev) leaveIsland(ctx context.Context) error {
	if d.island == nil {
		return nil
	}
	return d.island.Down(ctx)
}

// startAgents has the agents join that have not yet, starts them and waits until all hosts are ready.
func (d *dev) startAgents(ctx context.Context, operator *client.Client) error {
	for n := 1; n <= d.state.Agents; n++ {
		p := part{roleAgent, n}
		if err := d.joinAgent(ctx, operator, p); err != nil {
			return err
		}
		c := d.child(p, d.cfg.Binaries.Agent, d.agentArgs(p)...)
		d.agents = append(d.agents, c)
		c.start(ctx)
	}
	name := "the agent"
	if d.state.Agents > 1 {
		name = "the agents"
	}
	return d.await(ctx, d.agents[0], name, func(ctx context.Context) error { return d.hostsReady(ctx, operator) })
}

// joinAgent gets an agent its certificate, once.
func (d *dev) joinAgent(ctx context.Context, operator *client.Client, p part) error {
	pki := d.folder.path(p.name(), "pki")
	if d.state.joined(p) {
		if _, err := os.Stat(pki); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.RemoveAll(pki); err != nil {
		return err
	}
	token, err := operator.CreateJoinToken(ctx, admin.CreateTokenRequest{DataCenterID: d.state.DataCenter, TTLSeconds: 600})
	if err != nil {
		return fmt.Errorf("make a join token: %w", err)
	}
	name, err := os.Hostname()
	if err != nil || name == "" {
		name = "dev"
	}
	if p.number > 1 {
		name += "-" + strconv.Itoa(p.number)
	}
	err = d.join(ctx, p, token.Value.Token.Secret(), d.cfg.Binaries.Agent, "join",
		"--data-dir", d.folder.path(p.name()), "--scheduler", d.link(1), "--name", name)
	if err != nil {
		return fmt.Errorf("join the host: %w", err)
	}
	return nil
}

// join runs a program that trades a token. The token goes through a file that nobody else can read.
func (d *dev) join(ctx context.Context, p part, token fleet.Secret, path string, args ...string) error {
	file := d.folder.path("run", "join-token")
	if err := atomicfile.Write(file, []byte(token.Reveal()+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the join token: %w", err)
	}
	err := d.oneShot(p).run(ctx, path, append(args, "--token-file", file)...)
	if err := errors.Join(err, removeIfThere(file)); err != nil {
		return err
	}
	d.state.Joined = append(d.state.Joined, p.name())
	return d.folder.setState(d.state)
}

// modelCache is what each host has for models: hosts of one machine share its disk.
const modelCache = "1GB"

func (d *dev) agentArgs(p part) []string {
	args := []string{"run", "--data-dir", d.folder.path(p.name())}
	for n := 1; n <= d.state.Schedulers; n++ {
		args = append(args, "--scheduler", d.link(n))
	}
	ports := portRange(d.state.PodPorts)
	args = append(args, "--containerd", d.containerdSocket(), "--logger", d.cfg.Binaries.Logger, "--net", d.cfg.Binaries.Net,
		"--port-range", ports, "--loopback-registries", "--metrics", "")
	if d.cfg.Overcommit > 0 {
		args = append(args, "--overcommit", strconv.Itoa(d.cfg.Overcommit))
	}
	for _, gpus := range d.cfg.SimulateGPUs {
		args = append(args, "--simulate-gpus", gpus)
	}
	if d.cfg.ModelHub != "" {
		args = append(args, "--model-cache-size", modelCache)
	}
	for _, file := range d.cfg.ImageArchives {
		args = append(args, "--image-archive", file)
	}
	return args
}

func (d *dev) hostsReady(ctx context.Context, operator *client.Client) error {
	hosts, err := operator.Hosts(ctx)
	if err != nil {
		return err
	}
	var ready []admin.Host
	for _, h := range hosts.Value.Hosts {
		if h.State != "joining" && h.State != "unreachable" {
			ready = append(ready, h)
		}
	}
	if len(ready) < d.state.Agents {
		return fmt.Errorf("%d of %d hosts are connected", len(ready), d.state.Agents)
	}
	d.hosts = ready
	return nil
}
