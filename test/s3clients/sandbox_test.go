package s3clients

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// child returns the process that serves.
func (s *server) child() int {
	s.t.Helper()
	var pid int
	waitFor(s.t, "the serving process", func() bool {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.cmd.Process.Pid))
		for _, list := range lists {
			text, _ := os.ReadFile(list)
			for _, field := range strings.Fields(string(text)) {
				line, _ := os.ReadFile("/proc/" + field + "/cmdline")
				if bytes.Contains(line, []byte("serve-confined")) {
					pid, _ = strconv.Atoi(field)
				}
			}
		}
		return pid != 0
	})
	return pid
}

func proc(t testing.TB, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	must(t, err)
	return string(text)
}

func TestServingProcessHasNothingOfTheHost(t *testing.T) {
	s := start(t)
	s.put("in/file", "hello")
	pid := s.child()
	mounts := strings.Split(strings.TrimSpace(proc(t, pid, "mountinfo")), "\n")
	if len(mounts) != 1 || !strings.Contains(mounts[0], " / ro,nosuid,nodev,noexec") || !strings.Contains(mounts[0], " tmpfs ") {
		t.Errorf("it has mounted %q", mounts)
	}
	root, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/", pid))
	if err != nil || len(root) != 0 {
		t.Errorf("its root holds %v, %v", root, err)
	}
	if got := strings.Fields(proc(t, pid, "uid_map")); strings.Join(got, " ") != "0 2147287040 1 2147483648 2147483648 2147352576" {
		t.Errorf("its users are %q", got)
	}
	if a, b := proc(t, pid, "uid_map"), proc(t, pid, "gid_map"); a != b {
		t.Errorf("its groups are %q", b)
	}
	status := proc(t, pid, "status")
	// CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_SETGID and CAP_SETUID, of its own user namespace
	for _, want := range []string{
		"CapInh:\t0000000000000000", "CapPrm:\t00000000000000ca", "CapBnd:\t00000000000000ca", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
		"Uid:\t2147287040\t2147287040\t2147287040", "Gid:\t2147287040\t2147287040\t2147287040", "Groups:\t \n",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("its status lacks %q:\n%s", want, status)
		}
	}
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		must(t, err)
		if ours, err := os.Readlink("/proc/self/ns/" + kind); err != nil || ours == theirs {
			t.Errorf("it shares the namespace %s: %v", kind, err)
		}
	}
	onlyNeeded(t, pid)
	if devices := strings.Count(proc(t, pid, "net/dev"), ":"); devices != 1 {
		t.Errorf("it has %d network devices", devices)
	}
	if limits := proc(t, pid, "limits"); !strings.Contains(limits, "Max core file size        0                    0") {
		t.Errorf("its limits are\n%s", limits)
	}
	info, err := os.Stat(filepath.Join(s.dir, "in/file"))
	must(t, err)
	if st := info.Sys().(*syscall.Stat_t); st.Uid != ownerID || st.Gid != ownerID {
		t.Errorf("the file is user %d's and group %d's", st.Uid, st.Gid)
	}
}

// onlyNeeded fails when the process has something open but sockets, the runtime's own and the volume.
func onlyNeeded(t testing.TB, pid int) {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(t, err)
	for _, link := range links {
		to, err := os.Readlink(link)
		if err != nil {
			continue // it was closed
		}
		switch {
		case strings.HasPrefix(to, "socket:"), strings.HasPrefix(to, "anon_inode:"), strings.HasPrefix(to, "pipe:"), to == "/dev/null":
		case to == "/": // of the detached mount, where it is the root
			var in unix.Stat_t
			if err := unix.Stat(link, &in); err == nil && in.Uid != ownerID {
				t.Errorf("it has the folder of user %d open", in.Uid)
			}
		default:
			t.Errorf("it has %s open", to)
		}
	}
}

// TestServingProcessEnds: with the supervisor it ends; without it another one is started.
func TestServingProcessEnds(t *testing.T) {
	s := start(t)
	s.put("a", "1")
	first := s.child()
	must(t, syscall.Kill(first, syscall.SIGKILL))
	waitFor(t, "another serving process", func() bool { return s.child() != first })
	waitFor(t, "an answer of it", func() bool { return s.tryGet("a") == "1" })
	s.ends()
	s.serveAgent()
	s.put("b", "2") // through the new agent
	second := s.child()
	must(t, s.cmd.Process.Kill())
	if err := <-s.ended; err == nil {
		t.Error("the killed supervisor ended well")
	}
	s.cmd = nil
	waitFor(t, "the end of the serving process", func() bool { return syscall.Kill(second, 0) != nil })
}

func TestDoesNotStartUnconfined(t *testing.T) {
	// A user namespace in which the ids of volumes are not.
	cmd := unshared(program, "run", "--agent-socket", "/none", "--region", region, "--listen", "127.0.0.1:0")
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("refuses a user namespace")) {
		t.Errorf("%v: %s", err, out)
	}
}
