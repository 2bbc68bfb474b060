package sim

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"gantry/agent"
	"gantry/agent/gpu"
	"gantry/agent/session"
	"gantry/fleet"
	"gantry/netctl"
)

const linkAddr = "scheduler-1:7000"

// host is a machine with a data folder on which an agent runs, or not.
type host struct {
	world *world
	*machine
	dir   string
	id    fleet.HostID
	gpus  []fleet.GPU
	gear  *gear
	offer fleet.Resources

	// Of the driver alone.
	life *life // nil: no agent runs
}

// life is one agent process.
type life struct {
	cancel context.CancelFunc
	client *client
	done   chan struct{}
	err    error // after done
}

// newHost makes a machine and has it join the cluster.
func (w *world) newHost(ctx context.Context, name string, gpus int) (*host, error) {
	h := &host{
		world: w, dir: filepath.Join(w.dir, name), offer: fleet.Resources{MilliCPU: 8000, MemoryMB: 64_000, DiskGB: 200},
		machine: newMachine(name, w.rng.Uint64(), w),
	}
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return nil, err
	}
	if gpus > 0 {
		var err error
		if h.gpus, err = gpu.Simulate(name, []string{gpuType + ":" + string(rune('0'+gpus))}); err != nil {
			return nil, err
		}
	}
	h.gear = newGear(h.gpus)
	token, _, err := w.scheduler().service.CreateJoinToken(ctx, "dc-1", fleet.CloudSecure, 0)
	if err != nil {
		return nil, err
	}
	id, err := session.Join(ctx, h.dir, w.scheduler().addr, name, token.Reveal(), w.wire.dialer(name))
	if err != nil {
		return nil, err
	}
	h.id = fleet.HostID(id)
	w.addHost(h)
	_, err = w.scheduler().service.SetHostRoles(ctx, h.id, []fleet.HostRole{fleet.RoleStorage})
	return h, err
}

// start starts an agent on the host. It does nothing when one runs.
func (h *host) start() {
	if h.life != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{cancel: cancel, client: &client{m: h.machine}, done: make(chan struct{})}
	h.life = l
	conf := h.config(l.client)
	go func() {
		defer close(l.done)
		l.err = agent.Run(ctx, conf)
		if l.err != nil && !errors.Is(l.err, context.Canceled) && !errors.Is(l.err, errDead) && ctx.Err() == nil {
			h.world.broke("the agent of %s ended: %v", h.name, l.err)
		}
	}()
}

// config is an agent's configuration on the machine as it is now.
func (h *host) config(c *client) agent.Config {
	h.mu.Lock()
	kernel, boot, tunnel := h.kernel, h.boot, h.tunnel
	h.mu.Unlock()
	var listen func(namespace, address string) (net.Listener, error)
	if h.world.serverless {
		listen = h.gates.listen
	}
	return agent.Config{
		ListenIn: listen,
		Dir:      h.dir, Schedulers: h.world.addresses(), Dial: h.world.wire.dialer(h.name), Instance: h.instance,
		Accelerators: h.gear, Offer: h.offer, Overcommit: 1, BootID: bootID(h.name, boot), Hardware: h.name, Version: "sim",
		Containers: c, Network: netctl.NewFake(kernel, h.instance), Meter: h.gear, Publish: publish(),
		Volumes: simVolumes{h.machine}, Provisioner: h.world.store, Private: h.private(tunnel),
		PickSubnet: func(context.Context) (netip.Prefix, error) { return netip.MustParsePrefix("10.88.0.0/20"), nil },
		Ready:      func() {}, Log: h.world.log.With("at", h.name),
	}
}

// publicPorts is how many tcp ports a host publishes: fewer than its pods may want.
const publicPorts = 8

// publish is where every host publishes tcp ports.
func publish() agent.Publish {
	ip := netip.MustParseAddr("203.0.113.7")
	return agent.Publish{IP: ip, At: []netip.Addr{ip}, From: 30_000, To: 30_000 + publicPorts - 1}
}

// kill kills the agent. Its machine may lose power with it, so that nobody is told.
func (h *host) kill(tell bool) {
	if h.life == nil {
		return
	}
	h.life.client.dead.Store(true)
	h.world.wire.kill(h.name, tell)
	h.gates.hangUp()
	h.life.cancel()
	<-h.life.done
	h.life = nil
}

// reboot is a power cut; the agent is to be started afterwards.
func (h *host) reboot() {
	h.kill(false)
	h.machine.reboot()
}

// clone makes another machine with a copy of the host's data folder. Nothing may write to the folder.
func (h *host) clone(name string) (*host, error) {
	c := &host{
		world: h.world, dir: filepath.Join(h.world.dir, name), id: h.id, gpus: h.gpus, gear: newGear(h.gpus), offer: h.offer,
		machine: newMachine(name, h.world.rng.Uint64(), h.world),
	}
	c.instance = h.instance
	return c, copyFolder(c.dir, h.dir)
}

// copyFolder copies a folder with the modes of its files.
func copyFolder(to, from string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil || entry.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(to, rel), 0o700))
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), data, info.Mode().Perm())
	})
}

// folders returns the pods of which the agent keeps files of a kind beside its ledger: logs, or pods.
func (h *host) folders(kind string) (out []fleet.PodID) {
	entries, err := os.ReadDir(filepath.Join(h.dir, kind))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.world.check(err)
	}
	for _, e := range entries {
		out = append(out, fleet.PodID(e.Name()))
	}
	return out
}

func bootID(name string, boot int) string { return name + strings.Repeat("+", boot) }
