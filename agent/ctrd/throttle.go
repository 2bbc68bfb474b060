package ctrd

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// device is a disk by its number.
type device struct{ major, minor uint32 }

// throttle limits what a container may read and write of the disks that its files are on, its image's and its volumes'
// among them; nil: nothing is to be limited, or nothing can be. What is not on a disk of the host has no limit.
func (r *Runtime) throttle(p *root) *specs.LinuxBlockIO {
	if r.cfg.DiskRate <= 0 && r.cfg.DiskOps <= 0 || !r.cgroups.throttles() {
		return nil
	}
	paths := slices.Clone(p.files)
	for _, m := range p.spec.Mounts {
		paths = append(paths, m.Source)
	}
	var disks []device
	for _, path := range paths {
		if d, ok := diskOf(path, "/sys"); ok && !slices.Contains(disks, d) {
			disks = append(disks, d)
		}
	}
	out := &specs.LinuxBlockIO{}
	for _, d := range disks {
		limit := func(rate int64) []specs.LinuxThrottleDevice {
			if rate <= 0 {
				return nil
			}
			one := specs.LinuxThrottleDevice{Rate: uint64(rate)}
			one.Major, one.Minor = int64(d.major), int64(d.minor)
			return []specs.LinuxThrottleDevice{one}
		}
		out.ThrottleReadBpsDevice = append(out.ThrottleReadBpsDevice, limit(r.cfg.DiskRate)...)
		out.ThrottleWriteBpsDevice = append(out.ThrottleWriteBpsDevice, limit(r.cfg.DiskRate)...)
		out.ThrottleReadIOPSDevice = append(out.ThrottleReadIOPSDevice, limit(r.cfg.DiskOps)...)
		out.ThrottleWriteIOPSDevice = append(out.ThrottleWriteIOPSDevice, limit(r.cfg.DiskOps)...)
	}
	return out
}

// diskOf returns the whole disk on which a file is. Some file systems are on none, or on several: they do not tell.
func diskOf(path, sys string) (device, bool) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return device{}, false
	}
	d := device{unix.Major(st.Dev), unix.Minor(st.Dev)}
	return d, d.major != 0 && d.whole(sys)
}

// whole turns a partition into its disk, and reports whether there is one.
func (d *device) whole(sys string) bool {
	dir, err := filepath.EvalSymlinks(filepath.Join(sys, "dev/block", strconv.Itoa(int(d.major))+":"+strconv.Itoa(int(d.minor))))
	if err != nil {
		return false
	}
	if _, err := os.Stat(filepath.Join(dir, "partition")); err != nil {
		return true
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "dev"))
	major, minor, ok := strings.Cut(strings.TrimSpace(string(text)), ":")
	a, err1 := strconv.ParseUint(major, 10, 32)
	b, err2 := strconv.ParseUint(minor, 10, 32)
	if err != nil || !ok || err1 != nil || err2 != nil {
		return false
	}
	d.major, d.minor = uint32(a), uint32(b)
	return true
}

// throttles reports whether the kernel can limit what a group does with a disk.
func (c cgroupFS) throttles() bool {
	if !c.unified() {
		_, err := os.Stat(filepath.Join(c.root, "blkio", "blkio.throttle.read_bps_device"))
		return err == nil
	}
	text, _ := os.ReadFile(filepath.Join(c.root, "cgroup.controllers"))
	if !slices.Contains(strings.Fields(string(text)), "io") {
		return false
	}
	for _, name := range entries(c.root) { // the root itself has no limits
		if _, err := os.Stat(filepath.Join(c.root, name, "io.stat")); err == nil {
			_, err = os.Stat(filepath.Join(c.root, name, "io.max"))
			return err == nil
		}
	}
	return true
}
