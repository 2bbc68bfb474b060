package hostile

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/storage/disk"
)

// TestNothingOfOthersIsShown reads every file below /proc and /sys of a pod, and looks for what another account's pod,
// its volume and the host have left there: as a pod is on a host of today, without a user namespace, and with a volume that is a plain
// folder. The kernel names that folder in the list of mounts; there, it names the pod's own folder and those that it lies in.
func TestNothingOfOthersIsShown(t *testing.T) {
	name := "host-" + fleet.NewID()
	named(t, name)
	h := newHost(t)
	digest := h.mustLoad("example/snoop:1", image(t, nil))
	volumes, err := disk.Open(disk.Config{Dir: filepath.Join(h.dir, "volumes"), Mechanism: "loop", Direct: true})
	must(t, err)
	plain := func(s *pod.ContainerSpec) (name string) {
		name = fleet.NewID() + fleet.NewID()[:12]
		dir := filepath.Join(h.dir, "plain", name)
		must(t, os.MkdirAll(dir, 0o755)) //nolint:gosec // the pod's user enters it
		s.Mounts = append(s.Mounts, pod.Mount{Source: dir, Target: "/data"})
		return name
	}
	withVolume := func(s *pod.ContainerSpec) (name string) {
		name = fleet.NewID() + fleet.NewID()[:12]
		dir, err := volumes.Keep(h.ctx, name, 1)
		must(t, err)
		t.Cleanup(func() { must(t, volumes.Remove(h.ctx, name)) })
		s.Mounts = []pod.Mount{{Source: dir, Target: "/workspace"}}
		return name
	}
	other := h.spec(digest, "sleep", "600")
	other.Account = "the-others-account"
	volume, folder := withVolume(&other), plain(&other)
	must(t, h.start(other))
	t.Cleanup(func() { h.remove(other) })

	devices := h.devices()
	if len(devices) != 2 {
		t.Fatalf("the other pod has the devices %q", devices)
	}
	words := slices.Concat(devices, []string{string(other.Pod), string(other.Account), volume, folder, name, filepath.Base(h.dir), filepath.Base(h.d.Dir)})
	cmd := []string{"/evil/attacker", "snoop"}
	for _, w := range words {
		b := []byte(w)
		slices.Reverse(b)
		cmd = append(cmd, string(b))
	}
	mounts := regexp.MustCompile(`SEEN in /proc/\S+/(mountinfo|mounts|mountstats): `)
	for kind, change := range map[string]func(*pod.ContainerSpec){
		"with a user namespace": func(*pod.ContainerSpec) {}, "without": func(s *pod.ContainerSpec) { s.IDBase = 0 },
		plainVolume: func(s *pod.ContainerSpec) { plain(s) },
	} {
		s := h.spec(digest, cmd...)
		withVolume(&s)
		change(&s)
		named := 0
		text, c := h.run(s)
		if c.ExitCode != 0 || !strings.Contains(text, "snooped") {
			t.Errorf("%s: ended with %+v:\n%s", kind, c, text)
		}
		for line := range strings.Lines(text) {
			if kind == plainVolume && mounts.MatchString(line) && strings.Contains(line, cmd[len(cmd)-2]) {
				named++ // the folder in which the pod's own one is
				continue
			}
			if strings.Contains(line, "SEEN") || strings.Contains(line, " F left ") {
				t.Errorf("%s: %s", kind, strings.TrimSpace(line))
			}
		}
		if m := regexp.MustCompile(`read (\d+) files`).FindStringSubmatch(text); m == nil || len(m[1]) < 4 {
			t.Errorf("%s: it has read %q files", kind, m)
		}
		if kind == plainVolume && named == 0 {
			t.Error("the folder of a plain volume is not named any more: docs/security.md says that it is")
		}
	}
}

const plainVolume = "with a volume that is a plain folder"

// named gives what the test starts from here on a machine of that name: its thread is not used for anything else.
func named(t *testing.T, name string) {
	t.Helper()
	runtime.LockOSThread()
	must(t, unix.Unshare(unix.CLONE_NEWUTS))
	must(t, unix.Sethostname([]byte(name)))
}

// devices are the names of the loop devices of the host's disks.
func (h *host) devices() (out []string) {
	h.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	must(h, err)
	for _, f := range files {
		if back, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(back), h.dir+"/") {
			out = append(out, strings.Split(f, "/")[3])
		}
	}
	return out
}
