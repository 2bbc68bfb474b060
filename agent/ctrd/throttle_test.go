package ctrd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gantry/agent/pod"
)

// TestDisksAreThrottled reads what the kernel has of a container's limits: for the disk of its files, once.
func TestDisksAreThrottled(t *testing.T) {
	b := setup(t, func(c *Config) { c.DiskRate, c.DiskOps = 7_000_000, 300 })
	if !b.r.cgroups.throttles() {
		t.Fatal("the kernel of this machine has no limits of disks")
	}
	s := b.spec(b.local(nil), "sleep 600")
	s.Mounts = []pod.Mount{{Source: t.TempDir(), Target: "/data"}}
	b.start(s)
	d, ok := diskOf(b.r.cfg.RootDir, "/sys")
	if !ok {
		t.Fatalf("the files of this machine are on no disk: %v", d)
	}
	number := fmt.Sprintf("%d:%d", d.major, d.minor)
	want := map[string]string{
		"blkio/%s/blkio.throttle.read_bps_device": number + " 7000000", "blkio/%s/blkio.throttle.write_bps_device": number + " 7000000",
		"blkio/%s/blkio.throttle.read_iops_device": number + " 300", "blkio/%s/blkio.throttle.write_iops_device": number + " 300",
	}
	if b.r.cgroups.unified() {
		want = map[string]string{"%s/io.max": number + " rbps=7000000 wbps=7000000 riops=300 wiops=300"}
	}
	for name, text := range want {
		path := filepath.Join(b.r.cgroups.root, fmt.Sprintf(name, b.r.cgroups.path(s.Pod)))
		if got, err := os.ReadFile(path); err != nil || !strings.Contains(string(got), text) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, text)
		}
	}
	b.remove(s.Pod)
	b.r.cfg.DiskRate, b.r.cfg.DiskOps = 0, 0
	if got := b.r.throttle(&root{files: []string{"/"}}); got != nil {
		t.Errorf("without a setting: %+v", got)
	}
}

// TestAPartitionIsThrottledAsItsDisk: the kernel takes limits of whole disks alone.
func TestAPartitionIsThrottledAsItsDisk(t *testing.T) {
	sys := t.TempDir()
	disk, part := filepath.Join(sys, "devices/sda"), filepath.Join(sys, "devices/sda/sda1")
	must(t, os.MkdirAll(part, 0o755))
	must(t, os.MkdirAll(filepath.Join(sys, "dev/block"), 0o755))
	must(t, os.WriteFile(filepath.Join(disk, "dev"), []byte("8:16\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(part, "partition"), []byte("1\n"), 0o644))
	must(t, os.Symlink(disk, filepath.Join(sys, "dev/block/8:16")))
	must(t, os.Symlink(part, filepath.Join(sys, "dev/block/8:17")))
	for _, minor := range []uint32{16, 17} {
		if d := (device{8, minor}); !d.whole(sys) || d != (device{8, 16}) {
			t.Errorf("8:%d: %v", minor, d)
		}
	}
	if d := (device{9, 0}); d.whole(sys) {
		t.Errorf("a disk that is not there: %v", d)
	}
	if d, ok := diskOf("/proc", sys); ok {
		t.Errorf("/proc is on %v", d)
	}
}

// TestThrottlesOfVersion2 looks for what groups offer.
func TestThrottlesOfVersion2(t *testing.T) {
	for name, c := range map[string]struct {
		controllers string
		files       []string
		want        bool
	}{
		"no group has the controller yet": {"cpu io memory", []string{"system.slice/cpu.max"}, true},
		"limits":                          {"cpu io memory", []string{"system.slice/io.stat", "system.slice/io.max"}, true},
		"a kernel without":                {"cpu io memory", []string{"system.slice/io.stat"}, false},
		"no controller":                   {"cpu memory", nil, false},
	} {
		c2 := cgroupFS{root: t.TempDir()}
		must(t, os.WriteFile(filepath.Join(c2.root, "cgroup.controllers"), []byte(c.controllers+"\n"), 0o644))
		for _, f := range c.files {
			must(t, os.MkdirAll(filepath.Join(c2.root, filepath.Dir(f)), 0o755))
			must(t, os.WriteFile(filepath.Join(c2.root, f), nil, 0o644))
		}
		if got := c2.throttles(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
