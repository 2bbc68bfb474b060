//go:build cgo

package nvml

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

const nodesTimeout = 20 * time.Second

// library is the path of NVML; empty: the loader knows it.
func (c Config) library() string {
	if c.Library != "" || c.DriverRoot == "/" {
		return c.Library
	}
	found, err := lookup.NewLibraryLocator(lookup.WithLogger(quiet{c.Log}), lookup.WithRoot(c.DriverRoot)).Locate("libnvidia-ml.so.1")
	if err != nil || len(found) == 0 {
		return ""
	}
	return found[0]
}

// spec describes the driver and these GPUs to containers, without hooks: nothing is to run as the host's root in a
// file system that an image made. A GPU that cannot be described is left out.
func (l *Library) spec(uuids []string) (json.RawMessage, error) {
	l.makeNodes()
	byUUID, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, err
	}
	gen, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithNvmlLib(l.lib), nvcdi.WithDeviceLib(l.devices),
		nvcdi.WithDriverRoot(l.DriverRoot), nvcdi.WithDevRoot(l.DevRoot), nvcdi.WithLogger(quiet{l.Log}),
		nvcdi.WithDeviceNamers(byUUID), nvcdi.WithDisabledHooks(nvcdi.AllHooks),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils, nvcdi.FeatureDisableIPCDiscoverer, nvcdi.FeatureNoAdditionalGIDsForDeviceNodes),
	)
	if err != nil {
		return nil, fmt.Errorf("describe the driver: %w", err)
	}
	common, err := gen.GetCommonEdits()
	if err != nil {
		return nil, fmt.Errorf("describe the driver: %w", err)
	}
	out := specs.Spec{Version: specs.CurrentVersion, Kind: "nvidia.com/gpu", ContainerEdits: *common.ContainerEdits, Devices: []specs.Device{}}
	for _, uuid := range uuids {
		devices, err := gen.GetDeviceSpecsByID(uuid)
		if err != nil {
			l.Log.Warn("write the CDI entry of a GPU", "gpu", uuid, "err", err)
			continue
		}
		out.Devices = append(out.Devices, devices...)
	}
	return json.Marshal(out)
}

// makeNodes has NVIDIA's own program make the device nodes that a driver without a desktop makes at first use only.
func (l *Library) makeNodes() {
	const program = "/usr/bin/nvidia-modprobe"
	if l.DevRoot != "/" {
		return
	}
	if _, err := os.Stat(filepath.Join(l.DevRoot, "dev/nvidia-uvm")); err == nil {
		return
	}
	if _, err := os.Stat(program); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), nodesTimeout)
	defer cancel()
	if out, err := exec.CommandContext(ctx, program, "-u", "-c", "0").CombinedOutput(); err != nil {
		l.Log.Warn("make the driver's device nodes", "err", err, "said", string(out))
	}
}

// quiet is the logger of NVIDIA's packages: what they say of parts that are not there is for those who look closely.
type quiet struct{ log *slog.Logger }

func (q quiet) Debugf(string, ...any) {}
func (q quiet) Tracef(string, ...any) {}
func (q quiet) Infof(string, ...any)  {}

func (q quiet) Warningf(format string, args ...any) {
	q.log.Debug("nvcdi", "said", fmt.Sprintf(format, args...))
}

func (q quiet) Errorf(format string, args ...any) {
	q.log.Warn("nvcdi", "said", fmt.Sprintf(format, args...))
}
