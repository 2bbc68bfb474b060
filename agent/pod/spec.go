package pod

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gantry/fleet"
)

// containerSpec makes the container's description and the small files that it mounts.
func (m *machine) containerSpec(want Assignment) (ContainerSpec, error) {
	rec, _ := m.Ledger.Record(m.id)
	dir := filepath.Join(m.Dir, string(m.id))
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return ContainerSpec{}, fmt.Errorf("make the pod's folder: %w", err)
	}
	host := string(m.id)
	files := map[string]string{
		"resolv.conf": m.Resolv,
		"hosts":       "127.0.0.1 localhost\n::1 localhost ip6-localhost\n" + rec.Addr.String() + " " + host + "\n",
		"hostname":    host + "\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // read by the container's user
			return ContainerSpec{}, fmt.Errorf("write the pod's %s: %w", name, err)
		}
	}
	var mounts []Mount
	if p := want.Persistent; p != nil {
		folder, err := MakeData(m.Data, m.id)
		if err != nil {
			return ContainerSpec{}, err
		}
		mounts = append(mounts, Mount{Source: folder, Target: p.Path})
	}
	shm := int64(shmLeastMB)
	if len(want.GPUs) > 0 {
		shm = max(shm, want.Limits.MemoryMB/2)
	}
	return ContainerSpec{
		Pod: m.id, Account: want.Account, Incarnation: want.Incarnation,
		Image: want.Image, Digest: m.digest, Args: want.Args, Env: m.environment(want), Hostname: host,
		NetNS:      m.Network.Namespace(m.id),
		ResolvConf: filepath.Join(dir, "resolv.conf"), Hosts: filepath.Join(dir, "hosts"), HostnameTxt: filepath.Join(dir, "hostname"),
		LogDir: m.Logs.Dir(m.id), Limits: want.Limits, PIDs: pidsLimit, ShmMB: shm, Mounts: mounts,
	}, nil
}

// environment merges the owner's variables with those that every pod gets, each under its public
// name (wire-facts 6.1) and as GANTRY_*. The owner cannot set the latter, nor NVIDIA_*: which
// devices a container sees is decided by its assignment alone.
func (m *machine) environment(want Assignment) map[string]string {
	out := make(map[string]string, len(want.Env)+16)
	for k, v := range want.Env {
		if !strings.HasPrefix(k, "NVIDIA_") {
			out[k] = v
		}
	}
	gpu := ""
	if len(want.GPUs) > 0 {
		gpu = m.GPUName(want.GPUs[0])
	}
	vars := map[string]string{}
	for _, p := range want.Mappings {
		vars["PUBLIC_IP"] = m.PublicIP()
		vars["TCP_PORT_"+strconv.Itoa(p.Private)] = strconv.Itoa(p.Public)
	}
	cpus := (want.Limits.MilliCPU + 999) / 1000
	for name, value := range map[string]string{
		"POD_ID":       string(want.Pod),
		"DC_ID":        string(want.DataCenter),
		"POD_HOSTNAME": string(want.Pod),
		"GPU_COUNT":    strconv.Itoa(len(want.GPUs)),
		"GPU_NAME":     gpu,
		"CPU_COUNT":    strconv.FormatInt(cpus, 10),
		"MEM_GB":       strconv.FormatInt(want.Limits.MemoryMB*1_000_000/fleet.GB, 10),
	} {
		vars[name] = value
	}
	for name, value := range vars {
		out["RUNPOD_"+name] = value
		out["GANTRY_"+name] = value
	}
	return out
}
