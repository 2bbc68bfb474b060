package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gantry/agent/models"
	"gantry/agent/session"
	"gantry/fleet"
	"gantry/internal/outbound"
	"gantry/netctl"
)

// modelFlags say how much room models of hubs may take.
type modelFlags struct {
	ModelCacheSize string `default:"0" help:"Room for models that endpoints name, on the disk of the data folder: a part of the disk such as 20%, or as many GB (10^9 bytes) such as 500GB. Pods are not offered it. 0: the host keeps no models, and runs no workers that need some." placeholder:"SIZE"`
}

var errModelCacheSize = errors.New("--model-cache-size must be 0, 1% to 90%, or 1GB to 1000000GB")

// modelCacheBytes returns the size of the cache on a disk of so many bytes.
func (f *modelFlags) modelCacheBytes(disk int64) (int64, error) {
	if f.ModelCacheSize == "0" {
		return 0, nil
	}
	number, percent := strings.CutSuffix(f.ModelCacheSize, "%")
	number, gb := strings.CutSuffix(number, "GB")
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil || percent == gb || n < 1 || percent && n > 90 || n > 1_000_000:
		return 0, errModelCacheSize
	case percent:
		return disk / 100 * n, nil
	}
	return n * fleet.GB, nil
}

// models returns what the agent is told of its cache.
func (c *runCmd) models() (out models.Settings, err error) {
	var disk unix.Statfs_t
	if err = unix.Statfs(c.DataDir, &disk); err != nil {
		return out, fmt.Errorf("read the size of the disk: %w", err)
	}
	if out.Size, err = c.modelCacheBytes(int64(disk.Blocks) * disk.Bsize); err != nil { //nolint:gosec // blocks of a disk
		return out, err
	}
	out.Guard.Bridge = netctl.BridgeName(c.instance())
	out.Guard.Never = outbound.Resolve(func() []string { return session.KnownSchedulers(c.DataDir, c.Scheduler) })
	out.Guard.Allow, out.Guard.Deny, err = c.ranges()
	return out, err
}
