package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"gantry/agent/sweep"
	"gantry/fleet"
	"gantry/storage/disk"
)

// diskFlags say what limits the size of pods' disks.
type diskFlags struct {
	DiskMechanism string `default:"auto" help:"What limits the size of pods' disks: auto takes project on xfs with project quotas, else loop." placeholder:"auto|project|loop|none"`

	PodDiskMBps int64 `name:"pod-disk-mbps" help:"Limit what a pod reads, and what it writes, in MB per second on each disk (0 to 1000000); 0: no limit."`
	PodDiskIOPS int64 `name:"pod-disk-iops" help:"Limit a pod's reads, and its writes, per second on each disk (0 to 100000000); 0: no limit."`
}

// validate reports every setting that is out of its range.
func (f *diskFlags) validate() error {
	if !slices.Contains([]string{disk.Auto, disk.Project, disk.Loop, disk.None}, f.DiskMechanism) {
		return fmt.Errorf("--disk-mechanism must be auto, project, loop or none, not %q", f.DiskMechanism)
	}
	if f.PodDiskMBps < 0 || f.PodDiskMBps > 1_000_000 {
		return errors.New("--pod-disk-mbps must be 0 to 1000000")
	}
	if f.PodDiskIOPS < 0 || f.PodDiskIOPS > 100_000_000 {
		return errors.New("--pod-disk-iops must be 0 to 100000000")
	}
	return nil
}

// open opens the disks below the data folder, and tells what an operator should know of them.
func (f *diskFlags) open(dataDir string, log *slog.Logger) (containers, persistent *disk.Pool, conditions []fleet.Condition, err error) {
	at, keptAt := sweep.DisksOf(dataDir)
	containers, err = disk.Open(disk.Config{Dir: at, Mechanism: f.DiskMechanism, Log: log})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open the disks of containers: %w", err)
	}
	persistent, err = disk.Open(disk.Config{Dir: keptAt, Mechanism: f.DiskMechanism, Direct: true, Log: log})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open the persistent disks: %w", err)
	}
	log.Info("disks", "containers", containers.Mechanism(), "persistent", persistent.Mechanism())
	return containers, persistent, f.conditions(containers, persistent), nil
}

// conditions says that nothing limits disks. A host that was not meant to be so takes no pods.
func (f *diskFlags) conditions(pools ...*disk.Pool) []fleet.Condition {
	for _, p := range pools {
		if p.Mechanism() != disk.None {
			continue
		}
		if f.DiskMechanism == disk.None {
			return []fleet.Condition{{Code: "disk_unlimited", Text: "Nothing limits the size of pods' disks, as --disk-mechanism none says."}}
		}
		var why []string
		for _, r := range p.Refused() {
			why = append(why, r.Mechanism+": "+r.Reason.Error())
		}
		return []fleet.Condition{{
			Code: "disk_unlimited", Severe: true,
			Text: "Nothing on this host can limit the size of pods' disks (" + strings.Join(why, "; ") + ").",
		}}
	}
	return nil
}
