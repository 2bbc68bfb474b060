//go:build cgo

package nvml

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gantry/agent/gpu/wire"
)

const mb = 1_000_000

// one is a GPU with what the library calls it.
type one struct {
	dev  nvml.Device
	uuid string
}

// handles returns the GPUs that can be named.
func (l *Library) handles() []one {
	n, ret := l.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var out []one
	for i := range n {
		dev, ret := l.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		if uuid, ret := dev.GetUUID(); ret == nvml.SUCCESS {
			out = append(out, one{dev, uuid})
		}
	}
	return out
}

// inventory lists the GPUs that the driver can name, and their instances. One that fell off the bus is not
// among them: whoever knew it misses it.
func (l *Library) inventory() (*wire.Inventory, error) {
	out := &wire.Inventory{GPUs: []wire.GPU{}}
	var ret nvml.Return
	if out.Driver, ret = l.lib.SystemGetDriverVersion(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("ask for the driver's version: %s", ret.Error())
	}
	if cuda, ret := l.lib.SystemGetCudaDriverVersion_v2(); ret == nvml.SUCCESS {
		out.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	}
	if _, ret := l.lib.DeviceGetCount(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count the GPUs: %s", ret.Error())
	}
	all := l.handles()
	l.watch.register(all)
	var addresses []string
	var links [][]string
	for _, g := range all {
		found := l.describe(g)
		out.GPUs = append(out.GPUs, found)
		addresses, links = append(addresses, found.PCI), append(links, l.peers(g.dev))
	}
	for i, island := range islands(addresses, links) {
		out.GPUs[i].Island = island
	}
	for i, g := range all {
		out.GPUs = append(out.GPUs, l.instances(g.dev, &out.GPUs[i])...)
	}
	return out, nil
}

// describe reads one GPU. What cannot be read makes it sick.
func (l *Library) describe(g one) wire.GPU {
	out := wire.GPU{UUID: g.uuid}
	var ret nvml.Return
	if out.Name, ret = g.dev.GetName(); ret != nvml.SUCCESS {
		out.Sick = unread("name", ret)
	}
	wrapped, err := l.devices.NewDevice(g.dev)
	if err == nil {
		out.PCI, err = wrapped.GetPCIBusID()
	}
	if err != nil && out.Sick == "" {
		out.Sick = "the driver does not tell its PCI address"
	}
	memory, ret := g.dev.GetMemoryInfo()
	if ret != nvml.SUCCESS && out.Sick == "" {
		out.Sick = unread("memory", ret)
	}
	out.MemoryMB = int64(memory.Total / mb) //nolint:gosec // below 2^63
	if out.Sick == "" {
		out.Sick, out.Reset = l.health(g.dev)
	}
	return out
}

func unread(what string, ret nvml.Return) string {
	if ret == nvml.ERROR_GPU_IS_LOST {
		return lost
	}
	return fmt.Sprintf("the driver does not tell its %s: %s", what, ret.Error())
}

// instances returns the MIG instances of a GPU, which parent describes, and notes in it that it has the mode on.
// They share its health, address and island.
func (l *Library) instances(dev nvml.Device, parent *wire.GPU) []wire.GPU {
	whole, err := l.devices.NewDevice(dev)
	if err != nil {
		return nil
	}
	if on, err := whole.IsMigEnabled(); err != nil || !on {
		return nil
	}
	parent.MIG = true
	var out []wire.GPU
	err = whole.VisitMigDevices(func(_ int, mig device.MigDevice) error {
		uuid, ret := mig.GetUUID()
		if ret != nvml.SUCCESS {
			return nil //nolint:nilerr // it is being made or removed: the next look tells
		}
		x := wire.GPU{UUID: uuid, Name: instanceName(mig, parent.Name), PCI: parent.PCI, Island: parent.Island, Parent: parent.UUID, Sick: parent.Sick, Reset: parent.Reset}
		memory, ret := mig.GetMemoryInfo()
		if ret != nvml.SUCCESS && x.Sick == "" {
			x.Sick = unread("memory", ret)
		}
		x.MemoryMB = int64(memory.Total / mb) //nolint:gosec // below 2^63
		out = append(out, x)
		return nil
	})
	if err != nil {
		l.Log.Warn("list MIG instances", "gpu", parent.UUID, "err", err)
	}
	return out
}

// instanceName returns "<name of the GPU> MIG 1g.10gb". Drivers name instances so by themselves, old ones do not.
func instanceName(mig device.MigDevice, parent string) string {
	name, ret := mig.GetName()
	if ret == nvml.SUCCESS && strings.Contains(name, " MIG ") {
		return name
	}
	profile, err := mig.GetProfile()
	if err != nil {
		return parent + " MIG"
	}
	return parent + " MIG " + profile.String()
}

// use reads how busy all GPUs and instances are. Those that cannot be read are left out.
func (l *Library) use() []wire.Use {
	out := []wire.Use{}
	for _, g := range l.handles() {
		rates, ret := g.dev.GetUtilizationRates()
		if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		out = append(out, wire.Use{UUID: g.uuid, Util: int(rates.Gpu), Memory: fill(g.dev)})
		whole, err := l.devices.NewDevice(g.dev)
		if err != nil {
			continue
		}
		_ = whole.VisitMigDevices(func(_ int, mig device.MigDevice) error {
			if uuid, ret := mig.GetUUID(); ret == nvml.SUCCESS {
				out = append(out, wire.Use{UUID: uuid, Memory: fill(mig)})
			}
			return nil
		})
	}
	return out
}

// fill is how much of the memory is in use, in percent.
func fill(dev nvml.Device) int {
	memory, ret := dev.GetMemoryInfo()
	if ret != nvml.SUCCESS || memory.Total == 0 {
		return 0
	}
	return int(100 * memory.Used / memory.Total) //nolint:gosec // at most 100
}

// holders lists the processes that work on GPUs.
func (l *Library) holders(uuids []string) ([]wire.Holder, error) {
	out := []wire.Holder{}
	for _, uuid := range uuids {
		dev, ret := l.lib.DeviceGetHandleByUUID(uuid)
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("find %s: %s", uuid, ret.Error())
		}
		for i, list := range []func() ([]nvml.ProcessInfo, nvml.Return){dev.GetComputeRunningProcesses, dev.GetGraphicsRunningProcesses, dev.GetMPSComputeRunningProcesses} {
			processes, ret := list()
			if ret != nvml.SUCCESS && (i == 0 || ret != nvml.ERROR_NOT_SUPPORTED) {
				return nil, fmt.Errorf("list the processes on %s: %s", uuid, ret.Error())
			}
			for _, p := range processes {
				out = append(out, wire.Holder{UUID: uuid, PID: int(p.Pid)})
			}
		}
	}
	return out, nil
}
