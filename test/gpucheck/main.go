// Command gpucheck shows that a container sees exactly its GPU, on a machine with NVIDIA's driver and nothing of Gantry
// installed. It is part of what `make gpu-check` puts together: the folder with this program also has gantry-gpu,
// gantry-logger, containerd, its shim, runc, busybox and cudaprobe. It needs root, starts a containerd of its own, goes the way
// of the agent (agent/gpu, agent/ctrd), prints what it saw, and leaves nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gantry/agent/ctrd"
	"gantry/agent/gpu"
	"gantry/fleet"
	"gantry/internal/userns"
)

const (
	limit    = 5 * time.Minute
	userBase = 1 << 20 // first id of the user namespace that a container is tried in
)

type settings struct {
	parts string // folder of the programs
	gpu   string // UUID; empty: the first one in service
	// Of tests, with a driver that is none.
	library, driverRoot, deviceRoot string
}

func main() {
	self, err := os.Executable()
	if err != nil {
		fail(err)
	}
	s := settings{parts: filepath.Dir(self)}
	flag.StringVar(&s.gpu, "gpu", "", "UUID of the GPU to check with; default: the first one in service")
	flag.StringVar(&s.driverRoot, "driver-root", "/", "folder below which the driver is installed")
	flag.StringVar(&s.library, "nvml-library", "", "for tests")
	flag.StringVar(&s.deviceRoot, "device-root", "/", "for tests")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, limit)
	defer cancel()
	if err := check(ctx, s); err != nil {
		fail(err)
	}
	fmt.Println("gpu-check: a container sees exactly its GPU")
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "gpu-check:", err)
	os.Exit(1)
}

// check runs a container with one GPU, without and with a user namespace of its own.
func check(ctx context.Context, s settings) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("it needs root")
	}
	dir, err := os.MkdirTemp("", "gpu") // short: sockets lie in it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // a container's root in a user namespace goes through it
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	host, err := gpu.Open(ctx, gpu.Config{
		Data: dir, Helper: filepath.Join(s.parts, "gantry-gpu"), Library: s.library, DriverRoot: s.driverRoot, DevRoot: s.deviceRoot,
		Wanted: true, Env: testEnv(s), First: time.Minute, Log: log,
	})
	if err != nil {
		return err
	}
	defer host.Close()
	picked, err := pick(host.Found(), s.gpu)
	if err != nil {
		return err
	}
	devices, err := host.Devices(ctx, []string{picked.UUID})
	if err != nil {
		return fmt.Errorf("what a container gets: %w", err)
	}
	who, err := host.Busy(ctx, []string{picked.UUID})
	if err != nil {
		return fmt.Errorf("whether the GPU is free: %w", err)
	}
	if who != "" {
		return fmt.Errorf("the GPU is not free: %s", who)
	}
	d, err := startContainerd(ctx, s.parts, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	rt, err := ctrd.New(ctrd.Config{
		Socket: d.socket, Namespace: "gpucheck", LoggerPath: filepath.Join(s.parts, "gantry-logger"), RuncBinary: filepath.Join(s.parts, "runc"),
		RuncRoot: filepath.Join(dir, "runc"), RootDir: filepath.Join(dir, "roots"), RunDir: filepath.Join(dir, "run"),
		CgroupRoot: "gantry-" + filepath.Base(dir), Log: log,
	})
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, rt.Clean(last, true), rt.Close())
	}()
	c := checker{settings: s, dir: dir, rt: rt, devices: devices, gpu: picked, all: host.Found().GPUs}
	if err := c.image(ctx); err != nil {
		return err
	}
	if err := c.container(ctx, "without a user namespace", 0); err != nil {
		return err
	}
	if err := userns.Probe(dir); err != nil {
		fmt.Println("not tried in a user namespace, which this kernel has no mounts for:", err)
		return nil
	}
	return c.container(ctx, "in a user namespace", userBase)
}

// pick prints what was found, and returns the GPU to check with.
func pick(found gpu.Found, uuid string) (fleet.GPU, error) {
	for _, n := range found.Conditions {
		fmt.Println("condition:", n.Text)
	}
	if len(found.GPUs) == 0 {
		return fleet.GPU{}, errors.New("this machine has no GPU that NVIDIA's driver shows: the check needs one")
	}
	fmt.Printf("driver %s, CUDA %s\n", found.Driver, found.CUDA)
	var picked *fleet.GPU
	for i, g := range found.GPUs {
		fmt.Printf("GPU %s: %s, %d MB, PCI %s, NUMA node %d, island %d", g.UUID, g.Type, g.MemoryMB, g.PCI, g.NUMA, g.Island)
		if g.Sick != "" {
			fmt.Printf(", out of service: %s", g.Sick)
		}
		fmt.Println()
		if picked == nil && (g.UUID == uuid || uuid == "" && g.Sick == "") {
			picked = &found.GPUs[i]
		}
	}
	if picked == nil {
		return fleet.GPU{}, errors.New("none of the GPUs can be checked with")
	}
	return *picked, nil
}

// testEnv is what a library that is none needs.
func testEnv(s settings) []string {
	if script := os.Getenv("FAKE_NVML"); s.library != "" && script != "" {
		return []string{"FAKE_NVML=" + script}
	}
	return nil
}

// others are the UUIDs that the container must not see.
func (c checker) others() []string {
	var out []string
	for _, g := range c.all {
		if g.UUID != c.gpu.UUID {
			out = append(out, g.UUID)
		}
	}
	return out
}

// verify says what is wrong with what the container printed.
func (c checker) verify(text string) error {
	if !strings.Contains(text, c.gpu.UUID) {
		return fmt.Errorf("it does not see its GPU %s", c.gpu.UUID)
	}
	for _, uuid := range c.others() {
		if strings.Contains(text, uuid) && uuid != c.gpu.Parent {
			return fmt.Errorf("it sees GPU %s of others", uuid)
		}
	}
	if !strings.Contains(text, "CUDA sees 1 GPU\n") {
		return errors.New("CUDA does not see one GPU")
	}
	if strings.Count(text, "NVIDIA_") != 1 || !strings.Contains(text, "NVIDIA_VISIBLE_DEVICES=void\n") {
		return errors.New("the image's settings for NVIDIA's own runtime are in its environment")
	}
	for _, n := range c.devices.Nodes {
		if !strings.Contains(text, "node "+n.Path+"\n") {
			return fmt.Errorf("it has no %s", n.Path)
		}
	}
	if got := strings.Count(text, "node "); got != len(c.devices.Nodes) {
		return fmt.Errorf("it has %d of NVIDIA's device nodes, and should have %d", got, len(c.devices.Nodes))
	}
	return nil
}
