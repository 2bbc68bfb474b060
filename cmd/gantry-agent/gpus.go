package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"gantry/agent/gpu"
)

// gpuFlags say where the machine's GPUs are found.
type gpuFlags struct {
	Gpus       string `name:"gpus" default:"auto" enum:"auto,none" help:"GPUs of this machine to offer: auto, those that NVIDIA's driver finds, or none."`
	DriverRoot string `name:"driver-root" default:"/" help:"Folder below which NVIDIA's driver is installed, for a driver in a folder of its own." placeholder:"DIR"`
	GpuHelper  string `name:"gpu-helper" type:"path" help:"The gantry-gpu program; default: beside this one." placeholder:"FILE"`

	// For tests, which bring a library and devices of their own.
	NvmlLibrary string `name:"nvml-library" hidden:"" type:"path"`
	DeviceRoot  string `name:"device-root" hidden:"" default:"/"`
}

func (f gpuFlags) validate() error {
	var faults []error
	for name, path := range map[string]string{"--driver-root": f.DriverRoot, "--device-root": f.DeviceRoot} {
		if path != "" && !filepath.IsAbs(path) {
			faults = append(faults, fmt.Errorf("%s must be an absolute path", name))
		}
	}
	for name, path := range map[string]string{"--gpu-helper": f.GpuHelper, "--nvml-library": f.NvmlLibrary} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(faults...)
}

// open looks for the machine's GPUs and goes on looking after them until the host that it returns is closed. It returns
// nil when none are to be offered.
func (f gpuFlags) open(ctx context.Context, dataDir string, log *slog.Logger) (*gpu.Host, error) {
	if f.Gpus == "none" {
		return nil, nil
	}
	helper := f.GpuHelper
	if helper == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		helper = filepath.Join(filepath.Dir(self), "gantry-gpu")
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	var env []string
	if script, ok := os.LookupEnv("FAKE_NVML"); ok && f.NvmlLibrary != "" { // what the tests' library says
		env = append(env, "FAKE_NVML="+script)
	}
	return gpu.Open(ctx, gpu.Config{
		Data: dataDir, Helper: helper, Library: f.NvmlLibrary, DriverRoot: f.DriverRoot, DevRoot: f.DeviceRoot,
		Wanted: f.GpuHelper != "" || f.NvmlLibrary != "", Boot: strings.TrimSpace(string(boot)), Env: env, Log: log,
	})
}
