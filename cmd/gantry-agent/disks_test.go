package main

import (
	"log/slog"
	"strings"
	"testing"

	"gantry/agent/ctrd"
	"gantry/agent/pod"
	"gantry/agent/sweep"
	"gantry/storage/disk"
)

// Both users of disks take a pool.
var (
	_ ctrd.Disks           = (*disk.Pool)(nil)
	_ sweep.ContainerDisks = (*disk.Pool)(nil)
	_ pod.Disks            = (*disk.Pool)(nil)
)

func TestDiskFlags(t *testing.T) {
	for _, c := range []struct {
		mechanism, containers, persistent string
		conditions                        int
	}{
		{"auto", disk.Loop, disk.Loop, 0},
		{"loop", disk.Loop, disk.Loop, 0},
		{"none", disk.None, disk.None, 1},
		{"project", "", "", 0},
	} {
		f := diskFlags{DiskMechanism: c.mechanism}
		if err := f.validate(); err != nil {
			t.Error(err)
		}
		containers, persistent, conditions, err := f.open(t.TempDir(), slog.New(slog.DiscardHandler))
		if c.containers == "" {
			if err == nil {
				t.Errorf("%s is offered", c.mechanism)
			}
			continue
		}
		if err != nil || containers.Mechanism() != c.containers || persistent.Mechanism() != c.persistent || len(conditions) != c.conditions {
			t.Errorf("%s: %v, %v", c.mechanism, conditions, err)
		}
		for _, n := range conditions {
			if n.Code != "disk_unlimited" || n.Severe {
				t.Errorf("condition %+v", n)
			}
		}
	}
	for flag, f := range map[string]diskFlags{
		"--pod-disk-mbps": {DiskMechanism: "auto", PodDiskMBps: -1}, "--pod-disk-iops": {DiskMechanism: "auto", PodDiskIOPS: 100_000_001},
	} {
		if err := f.validate(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%+v: %v", f, err)
		}
	}
	if err := (&diskFlags{DiskMechanism: "auto", PodDiskMBps: 1_000_000, PodDiskIOPS: 100_000_000}).validate(); err != nil {
		t.Error(err)
	}
	for _, mechanism := range []string{"zfs", "btrfs"} {
		if err := (&diskFlags{DiskMechanism: mechanism}).validate(); err == nil || !strings.Contains(err.Error(), "--disk-mechanism must be auto, project, loop or none") {
			t.Errorf("%s: %v", mechanism, err)
		}
	}
}
