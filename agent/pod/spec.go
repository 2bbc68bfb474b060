package pod

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"gantry/fleet"
)

// containerSpec makes the container's description and the small files that it mounts.
func (m *machine) containerSpec(ctx context.Context, want Assignment) (ContainerSpec, error) {
	rec, _ := m.Ledger.Record(m.id)
	dir := filepath.Join(m.Dir, string(m.id))
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return ContainerSpec{}, fmt.Errorf("make the pod's folder: %w", err)
	}
	member := MemberSetup{Hostname: string(m.id)}
	if want.Member != nil {
		member = *want.Member
	}
	files := map[string]string{
		"resolv.conf": m.Resolv(),
		"hosts":       "127.0.0.1 localhost\n::1 localhost ip6-localhost\n" + rec.Addr.String() + " " + string(m.id) + "\n" + member.Hosts,
		"hostname":    member.Hostname + "\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // read by the container's user
			return ContainerSpec{}, fmt.Errorf("write the pod's %s: %w", name, err)
		}
	}
	mounts, err := m.persistent(ctx, want)
	if err != nil {
		return ContainerSpec{}, err
	}
	devices, err := m.devices(ctx, want)
	if err != nil {
		return ContainerSpec{}, err
	}
	env := m.environment(want)
	fabric, err := m.fabric(ctx, want, false)
	if err != nil {
		return ContainerSpec{}, err
	}
	addUnset(env, fabric.Env)
	fabric.Env = nil
	devices = devices.With(fabric)
	if want.Volume != nil {
		mounts = append(mounts, Mount{Source: m.volume.dir, Target: want.VolumePath, AsIs: true})
		if want.Endpoint != "" {
			mounts = append(mounts, Mount{Source: m.volume.dir, Target: fleet.OwnWorkerVolumePath, AsIs: true})
		}
	}
	mounts = append(mounts, modelMounts(m.models)...)
	// One below the other has to be mounted after it.
	slices.SortStableFunc(mounts, func(a, b Mount) int { return cmp.Compare(a.Target, b.Target) })
	base := want.IDBase(m.IDBase, rec.Addr)
	profile, err := m.writeProfile(dir, env, base)
	if err != nil {
		return ContainerSpec{}, err
	}
	notices, err := m.noticesFor(dir, want)
	if err != nil {
		return ContainerSpec{}, err
	}
	shm := int64(shmLeastMB)
	if len(want.GPUs) > 0 {
		shm = max(shm, want.Limits.MemoryMB/2)
	}
	return ContainerSpec{
		Pod: m.id, Account: want.Account, Incarnation: want.Incarnation,
		Image: want.Image, Digest: m.digest, Args: want.Args, Env: env, Hostname: member.Hostname, Files: member.Files,
		NetNS:      m.Network.Namespace(m.id),
		ResolvConf: filepath.Join(dir, "resolv.conf"), Hosts: filepath.Join(dir, "hosts"), HostnameTxt: filepath.Join(dir, "hostname"),
		LogDir: m.Logs.Dir(m.id), Limits: want.Limits, PIDs: min(max(want.Limits.MilliCPU/1000*pidsPerCPU, pidsLeast), pidsMost), ShmMB: shm, Mounts: mounts,
		Kept: kept(want, rec.Addr), DiskGB: want.DiskGB, IDBase: base, CPUs: devices.NUMA, Devices: devices, Profile: profile, Notices: notices,
	}, nil
}
