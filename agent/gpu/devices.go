package gpu

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"gantry/agent/gpu/wire"
	"gantry/agent/pod"
)

// Where containers find the driver. Nothing of the image is looked at to put it there.
const (
	driverDir  = "/usr/local/nvidia"
	libraryDir = driverDir + "/lib64"
	programDir = driverDir + "/bin"
)

// programs of the driver that containers get.
var programs = []string{"nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}

// environment of every container with GPUs. The last keeps NVIDIA's own runtime, should it be there, from adding
// devices.
var environment = []string{"LD_LIBRARY_PATH=" + libraryDir, "PATH=" + programDir, "NVIDIA_VISIBLE_DEVICES=void"}

// driverFile is a file of the driver and the names that containers find it under.
type driverFile struct {
	path  string
	names []string // below driverDir
}

// describe has the GPUs described to containers, when they or the driver are others than before.
func (h *Host) describe(ctx context.Context, p *helper) error {
	uuids := h.offered()
	h.mu.Lock()
	want := append([]string{h.driver}, uuids...)
	fresh := h.spec != nil && h.specBad == "" && slices.Equal(want, h.specFor)
	h.mu.Unlock()
	if fresh || len(uuids) == 0 {
		return nil
	}
	reply, err := p.ask(ctx, h.Answer, wire.Request{Ask: wire.AskSpec, UUIDs: uuids})
	var spec *cdi.Spec
	if err == nil {
		spec, err = h.writeSpec(reply.Spec)
	}
	if p.failure() != nil {
		return err
	}
	if err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.specBad != err.Error() {
			h.Log.Error("describe the GPUs to containers", "err", err)
		}
		h.specBad = err.Error()
		return nil
	}
	h.adopt(spec)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.specFor, h.specBad = want, ""
	return nil
}

// writeSpec stores a specification and reads it again as CDI does, with its checks.
func (h *Host) writeSpec(b []byte) (*cdi.Spec, error) {
	if err := writeFile(h.specPath(), b, 0o644); err != nil {
		return nil, fmt.Errorf("write the device descriptions: %w", err)
	}
	spec, err := cdi.ReadSpec(h.specPath(), 0)
	if err != nil {
		return nil, fmt.Errorf("read the device descriptions: %w", err)
	}
	if len(spec.ContainerEdits.Hooks) > 0 || slices.ContainsFunc(spec.Devices, hasHooks) {
		return nil, errors.New("the device descriptions ask for programs to be run on the host")
	}
	return spec, nil
}

// adopt makes a specification the one that devices are given by.
func (h *Host) adopt(spec *cdi.Spec) {
	var files []driverFile
	taken := map[string]bool{}
	for _, m := range spec.ContainerEdits.Mounts {
		f := driverFile{path: m.HostPath}
		for _, name := range placed(m.HostPath) {
			if !taken[name] {
				taken[name] = true
				f.names = append(f.names, name)
			}
		}
		if len(f.names) > 0 {
			files = append(files, f)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spec, h.files = spec, files
}

// placed returns the names that containers find a file of the driver under; none for one that they do not get, such as
// firmware, settings of a desktop, and libraries for 32 bits.
func placed(path string) []string {
	base := filepath.Base(path)
	if slices.Contains(programs, base) {
		return []string{programDir + "/" + base}
	}
	if !strings.Contains(base, ".so") {
		return nil
	}
	f, err := elf.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if f.Class != elf.ELFCLASS64 {
		return nil
	}
	out := []string{libraryDir + "/" + base}
	sonames, err := f.DynString(elf.DT_SONAME)
	if err != nil || len(sonames) == 0 || strings.ContainsRune(sonames[0], '/') {
		return out
	}
	out = append(out, libraryDir+"/"+sonames[0])
	if sonames[0] == "libcuda.so.1" { // some programs ask for it without a version
		out = append(out, libraryDir+"/libcuda.so")
	}
	return out
}

// Devices returns what a container with these GPUs gets. Pretended ones give it nothing.
func (h *Host) Devices(_ context.Context, uuids []string) (pod.Devices, error) {
	uuids = slices.DeleteFunc(slices.Clone(uuids), simulated)
	if len(uuids) == 0 {
		return pod.Devices{}, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.spec == nil {
		return pod.Devices{}, &pod.Error{Class: pod.Retry, Sentence: "the host's GPUs are not ready yet", Err: errors.New(h.specBad)}
	}
	out := pod.Devices{Env: slices.Clone(environment), NUMA: h.processors(uuids)}
	if err := addNodes(&out, h.spec.ContainerEdits); err != nil {
		return pod.Devices{}, err
	}
	for _, uuid := range uuids {
		if err := h.usable(uuid); err != nil {
			return pod.Devices{}, err
		}
		dev := h.spec.GetDevice(uuid)
		if dev == nil {
			return pod.Devices{}, &pod.Error{Class: pod.Retry, Sentence: "the host cannot give its GPU to a container", Err: fmt.Errorf("%s is not described", uuid)}
		}
		if err := addNodes(&out, dev.ContainerEdits); err != nil {
			return pod.Devices{}, err
		}
	}
	for _, f := range h.files {
		for _, name := range f.names {
			out.Files = append(out.Files, pod.Mount{Source: f.path, Target: name})
		}
	}
	return out, nil
}

// usable says why a GPU cannot be used, as an error for the pod that has it. h.mu is held.
func (h *Host) usable(uuid string) error {
	g, ok := h.gpus[uuid]
	if !ok || g.MIG {
		return &pod.Error{Class: pod.Retry, Sentence: "the pod's GPU is not on its host any more", Err: fmt.Errorf("%s is not found", uuid)}
	}
	if why := h.sickness(g); why != "" {
		return &pod.Error{Class: pod.Retry, Sentence: "the pod's GPU is out of service", Err: fmt.Errorf("%s: %s", uuid, why)}
	}
	return nil
}

// processors returns those near all of the GPUs, as the kernel lists them; "" when they have none in common.
func (h *Host) processors(uuids []string) string {
	node := h.numa[uuids[0]]
	for _, uuid := range uuids {
		if n, ok := h.numa[uuid]; !ok || n < 0 || n != node {
			return ""
		}
	}
	return readWord(filepath.Join(h.Sys, fmt.Sprintf("devices/system/node/node%d/cpulist", node)))
}

// addNodes adds the device nodes of a description.
func addNodes(to *pod.Devices, edits specs.ContainerEdits) error {
	for _, n := range edits.DeviceNodes {
		node := pod.DeviceNode{Host: n.HostPath, Path: n.Path, Major: n.Major, Minor: n.Minor}
		if node.Host == "" {
			node.Host = n.Path
		}
		if node.Major == 0 && node.Minor == 0 {
			var st unix.Stat_t
			if err := unix.Stat(node.Host, &st); err != nil {
				return &pod.Error{Class: pod.Retry, Sentence: "a device of the pod's GPU is missing on its host", Err: fmt.Errorf("%s: %w", node.Host, err)}
			}
			node.Major, node.Minor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
		}
		if !slices.ContainsFunc(to.Nodes, func(o pod.DeviceNode) bool { return o.Path == node.Path }) {
			to.Nodes = append(to.Nodes, node)
		}
	}
	return nil
}

func hasHooks(d specs.Device) bool { return len(d.ContainerEdits.Hooks) > 0 }

// simulated reports whether a UUID is that of a GPU that an operator pretends.
func simulated(uuid string) bool { return strings.HasPrefix(uuid, simulatedPrefix) }
