package ctrd

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/fleet"
)

// What control groups tell is what the pod's shim tells, and a pod without one tells nothing.
func TestUsagesAreThoseOfEachPod(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), `sh -c "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 600"`)
	b.start(s)
	defer b.remove(s.Pod)
	err := ctrdtest.Eventually(time.Minute, func() error {
		one, err := b.r.Usage(b.ctx, s.Pod)
		if err != nil {
			return err
		}
		all := b.r.Usages(b.ctx, []fleet.PodID{s.Pod, "none"})
		u, ok := all[s.Pod]
		near := func(a, b, most int64) bool { return max(a, b)-min(a, b) <= most }
		if len(all) != 1 || !ok || u.CPU < 20*time.Millisecond || !near(int64(u.CPU), int64(one.CPU), int64(50*time.Millisecond)) ||
			!near(u.Memory, one.Memory, 1<<20) || u.Disk != one.Disk || u.DiskSize != one.DiskSize {
			return fmt.Errorf("%+v, want %+v", all, one)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestGroupsOfBothVersionsAreRead reads files as the kernel writes them.
func TestGroupsOfBothVersionsAreRead(t *testing.T) {
	for name, c := range map[string]struct {
		unified bool
		files   map[string]string
	}{
		"version 1": {false, map[string]string{
			"cpuacct/p/x/cpuacct.usage": "1500000000\n", "memory/p/x/memory.usage_in_bytes": "5000000\n",
			"memory/p/x/memory.stat": "cache 7\ninactive_file 9\ntotal_cache 8\ntotal_inactive_file 1000000\n",
		}},
		"version 2": {true, map[string]string{
			"p/x/cpu.stat": "usage_usec 1500000\nuser_usec 1\n", "p/x/memory.current": "5000000\n",
			"p/x/memory.stat": "anon 1\ninactive_anon 5\ninactive_file 1000000\n",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, c.files)
			read := groupReader{fs: cgroupFS{root: root, parent: "p"}, unified: c.unified, buf: make([]byte, statBytes)}
			if u, ok := read.usage("x"); !ok || u != (pod.Usage{CPU: 1500 * time.Millisecond, Memory: 4_000_000}) {
				t.Errorf("%+v, %v", u, ok)
			}
			if u, ok := read.usage("y"); ok {
				t.Errorf("of a group that is not there: %+v", u)
			}
		})
	}
}

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
