package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gantry/agent/gpu/wire"
	"gantry/agent/pod"
)

// Busy says which process still holds one of the GPUs: one that the driver lists, or one that has its device node
// open. A service of the host's that watches GPUs has it open all the time and does not count: it is in the host's
// own process namespace, and does not have the node open that computing needs.
func (h *Host) Busy(ctx context.Context, uuids []string) (string, error) {
	uuids = slices.DeleteFunc(slices.Clone(uuids), simulated)
	if len(uuids) == 0 {
		return "", nil
	}
	h.mu.Lock()
	p, trouble := h.helper, h.trouble
	var err error
	for _, uuid := range uuids {
		err = errors.Join(err, h.usable(uuid))
	}
	nodes := h.own(uuids)
	h.mu.Unlock()
	if err != nil {
		return "", err
	}
	if p == nil {
		return "", notKnown(errors.New(cmp.Or(trouble, "there is no GPU helper yet")))
	}
	reply, err := p.ask(ctx, h.Answer, wire.Request{Ask: wire.AskHolders, UUIDs: uuids})
	if err != nil {
		return "", notKnown(err)
	}
	for _, holder := range reply.Holders {
		return fmt.Sprintf("%s still works on GPU %s", h.process(holder.PID), holder.UUID), nil
	}
	return h.opened(ctx, nodes)
}

func notKnown(err error) error {
	return &pod.Error{Class: pod.Retry, Sentence: "it is not known whether the pod's GPU is free", Err: err}
}

// computing is the device node that programs have open that compute on any GPU.
const computing = "/dev/nvidia-uvm"

// own returns, by number, the device nodes that belong to these GPUs and to no others, and who they belong to. The
// number of the node for computing leads to "". h.mu is held.
func (h *Host) own(uuids []string) map[uint64]string {
	out := map[uint64]string{}
	if h.spec == nil {
		return out
	}
	users := map[string]int{}
	for _, d := range h.spec.Devices {
		for _, n := range d.ContainerEdits.DeviceNodes {
			users[n.Path]++
		}
	}
	number := func(path, host string) (uint64, bool) {
		var st unix.Stat_t
		if host == "" {
			host = path
		}
		return st.Rdev, unix.Stat(host, &st) == nil
	}
	for _, n := range h.spec.ContainerEdits.DeviceNodes {
		if n.Path != computing {
			continue
		}
		if dev, ok := number(n.Path, n.HostPath); ok {
			out[dev] = ""
		}
	}
	for _, d := range h.spec.Devices {
		if !slices.Contains(uuids, d.Name) {
			continue
		}
		for _, n := range d.ContainerEdits.DeviceNodes {
			if users[n.Path] > 1 || !strings.HasPrefix(n.Path, "/dev/nvidia") {
				continue
			}
			if dev, ok := number(n.Path, n.HostPath); ok {
				out[dev] = d.Name
			}
		}
	}
	return out
}

// opened looks through the open files of all processes for one that holds one of the nodes.
func (h *Host) opened(ctx context.Context, nodes map[uint64]string) (string, error) {
	entries, err := os.ReadDir(h.Proc)
	if err != nil {
		return "", notKnown(err)
	}
	host := h.namespace("self")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return "", notKnown(err)
		}
		gpu, computes := h.holds(pid, nodes)
		if gpu != "" && (computes || h.namespace(e.Name()) != host) {
			return fmt.Sprintf("%s still has GPU %s open", h.process(pid), gpu), nil
		}
	}
	return "", nil
}

// holds says which GPU a process has open, and whether it has the node for computing open too.
func (h *Host) holds(pid int, nodes map[uint64]string) (gpu string, computes bool) {
	dir, err := os.Open(filepath.Join(h.Proc, strconv.Itoa(pid), "fd"))
	if err != nil {
		return "", false // it has ended
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), name, &st, 0) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		uuid, ok := nodes[st.Rdev]
		computes = computes || ok && uuid == ""
		if uuid != "" {
			gpu = uuid
		}
	}
	return gpu, computes
}

func (h *Host) namespace(pid string) string {
	name, _ := os.Readlink(filepath.Join(h.Proc, pid, "ns/pid"))
	return name
}

// process names a process.
func (h *Host) process(pid int) string {
	name := readWord(filepath.Join(h.Proc, strconv.Itoa(pid), "comm"))
	if name == "" {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, pod.Readable(name, 64))
}
