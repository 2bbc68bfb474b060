package ctrd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/test/program"
)

func TestExitCodesAndLogs(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	for _, tc := range []struct {
		args string
		code int
	}{{`sh -c "echo out; echo err >&2"`, 0}, {`sh -c "echo out; echo err >&2; exit 3"`, 3}} {
		s := b.spec(ref, tc.args)
		if c := b.look(s.Pod); c.Exists {
			t.Fatalf("before: %+v", c)
		}
		b.start(s)
		c := b.finish(s.Pod)
		if c.Incarnation != 1 || c.OOMKilled || c.StartedAt.IsZero() || c.ExitedAt.Before(c.StartedAt.Add(-time.Second)) {
			t.Errorf("%s: %+v", tc.args, c)
		}
		if c.ExitCode != tc.code {
			t.Errorf("%s: exit code %d", tc.args, c.ExitCode)
		}
		b.log(s, "stdout F out")
		b.log(s, "stderr F err")
		b.remove(s.Pod)
		b.remove(s.Pod)
	}
}

func TestEveryCallMayBeRepeated(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "sleep 600")
	for range 2 {
		if err := b.r.Define(b.ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	if c := b.look(s.Pod); !c.Exists || c.Task != pod.TaskNone {
		t.Fatalf("defined: %+v", c)
	}
	for range 2 {
		if err := b.r.Task(b.ctx, s.Pod); err != nil {
			t.Fatal(err)
		}
	}
	if c := b.look(s.Pod); c.Task != pod.TaskCreated || c.PID == 0 {
		t.Fatalf("with a task: %+v", c)
	}
	for range 2 {
		if at, err := b.r.Start(b.ctx, s.Pod); err != nil || time.Since(at) > 2*time.Minute {
			t.Fatal(at, err)
		}
	}
	if c := b.look(s.Pod); c.Task != pod.TaskRunning || c.PID == 0 || c.StartedAt.IsZero() {
		t.Fatalf("started: %+v", c)
	}
	if ids, err := b.r.List(b.ctx); err != nil || len(ids) != 1 || ids[0] != s.Pod {
		t.Fatal(ids, err)
	}
	newer := s
	newer.Incarnation = 2
	wantFault(t, b.r.Define(b.ctx, newer), pod.Retry, "earlier container")
	for range 2 {
		if err := b.r.Signal(b.ctx, s.Pod, int(syscall.SIGKILL)); err != nil {
			t.Fatal(err)
		}
		b.finish(s.Pod)
	}
	b.remove(s.Pod)
	if err := b.r.Signal(b.ctx, s.Pod, int(syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	if err := b.r.Wait(b.ctx, s.Pod); err != nil {
		t.Fatal(err)
	}
}

func TestTaskAfterTheAgentDied(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "sleep 600")
	if err := b.r.Define(b.ctx, s); err != nil {
		t.Fatal(err)
	}
	b.r.forget(s.Pod)
	if err := b.r.Task(b.ctx, s.Pod); err != nil {
		t.Fatal(err)
	}
	if _, err := b.r.Start(b.ctx, s.Pod); err != nil {
		t.Fatal(err)
	}
	b.remove(s.Pod)
}

func TestCommandsThatCannotRun(t *testing.T) {
	b := setup(t)
	ref := b.local(func(c *v1.Config) { c.Cmd = nil })
	wantFault(t, b.r.Define(b.ctx, b.spec(ref, "")), pod.Fatal, "neither the image nor the pod's args name a command")
	for args, want := range map[string]string{
		"nosuch --flag":   `command "nosuch" was not found in the image`,
		"/bin/nosuch":     `command "/bin/nosuch" was not found in the image`,
		"/etc/passwd":     `command "/etc/passwd" of the image may not be executed`,
		"/etc":            `command "/etc" of the image may not be executed`,
		`"quote\"d name"`: `command "quote`,
	} {
		s := b.spec(ref, args)
		if err := b.r.Define(b.ctx, s); err != nil {
			t.Fatal(err)
		}
		err := b.r.Task(b.ctx, s.Pod)
		if err == nil {
			_, err = b.r.Start(b.ctx, s.Pod)
		}
		wantFault(t, err, pod.Fatal, want)
		if c := b.look(s.Pod); c.Task == pod.TaskRunning {
			t.Errorf("%s: %+v", args, c)
		}
		b.remove(s.Pod)
	}
}

func TestOOMKillIsRecognised(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "tail -c 299999999 /dev/zero")
	s.Limits.MemoryMB = 32
	b.start(s)
	if c := b.finish(s.Pod); !c.OOMKilled || c.ExitCode != 137 {
		t.Fatalf("%+v", c)
	}
	b.remove(s.Pod)
}

// TestOOMKillOfAChildIsRecognised: the first process lives on and ends by itself, with a code of its own.
func TestOOMKillOfAChildIsRecognised(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	for code, killed := range map[int]bool{3: true, 0: false} {
		s := b.spec(ref, fmt.Sprintf(`sh -c "tail -c 299999999 /dev/zero; exit %d"`, code))
		s.Limits.MemoryMB = 32
		b.start(s)
		c := b.finish(s.Pod)
		if c.OOMKilled != killed || c.ExitCode != code || killed && (c.MemoryPeak < 16e6 || c.MemoryPeak > 33e6) {
			t.Errorf("exit code %d: %+v", code, c)
		}
		b.remove(s.Pod)
	}
}

func TestUserOfImage(t *testing.T) {
	b := setup(t)
	ref := b.local(func(c *v1.Config) { c.User = "worker"; c.WorkingDir = "/www" })
	s := b.spec(ref, `sh -c "id; cat index.html; touch /root/x || echo refused"`)
	b.start(s)
	b.finish(s.Pod)
	b.log(s, "uid=1000")
	b.log(s, "gid=1001")
	b.log(s, "2000")
	b.log(s, "hello")
	b.log(s, "refused")
	b.remove(s.Pod)
	ref = b.local(func(c *v1.Config) { c.User = "nobodyhere" })
	wantFault(t, b.r.Define(b.ctx, b.spec(ref, "id")), pod.Fatal, "user that the image names does not exist")
}

func TestLimitsAreSet(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), `sh -c "while true; do :; done"`)
	b.start(s)
	read := func(controller, file string) string {
		t.Helper()
		dir := filepath.Join(cgroupMount, controller, b.r.cgroups.path(s.Pod))
		if b.r.cgroups.unified() {
			dir = filepath.Join(cgroupMount, b.r.cgroups.path(s.Pod))
		}
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	want := map[[2]string]string{
		{"memory", "memory.limit_in_bytes"}: "128000000", {"pids", "pids.max"}: "64",
		{"cpu", "cpu.cfs_quota_us"}: "50000", {"cpu", "cpu.cfs_period_us"}: "100000", {"cpu", "cpu.shares"}: "512",
	}
	if b.r.cgroups.limitsSwap() {
		want[[2]string{"memory", "memory.memsw.limit_in_bytes"}] = "128000000"
	}
	if b.r.cgroups.unified() {
		want = map[[2]string]string{{"", "memory.max"}: "128000000", {"", "pids.max"}: "64", {"", "cpu.max"}: "50000 100000", {"", "memory.swap.max"}: "0"}
	}
	for file, value := range want {
		if got := read(file[0], file[1]); got != value {
			t.Errorf("%s is %s, want %s", file[1], got, value)
		}
	}
	err := ctrdtest.Eventually(time.Minute, func() error {
		u, err := b.r.Usage(b.ctx, s.Pod)
		if err == nil && (u.CPU < 50*time.Millisecond || u.Memory <= 0 || u.Memory > 128e6) {
			err = fmt.Errorf("usage %+v", u)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	b.remove(s.Pod)
	_, err = b.r.Usage(b.ctx, s.Pod)
	wantFault(t, err, pod.Retry, "")
}

func TestContainerIsConfined(t *testing.T) {
	b := setup(t)
	files := b.TempDir()
	for _, name := range []string{"resolv.conf", "hosts", "hostname"} {
		if err := os.WriteFile(filepath.Join(files, name), []byte("text of "+name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ref := b.local(func(c *v1.Config) {
		c.Env = []string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "FROM=image", "BOTH=image"}
	})
	s := b.spec(ref, `sh -c "cat /proc/self/status; env; cat /etc/resolv.conf /etc/hosts /etc/hostname; hostname; mount; ls /dev; ulimit -n; ulimit -Hn; wc -c /proc/kcore;
		echo x > /etc/hosts || echo hosts-refused; mount -t tmpfs x /tmp || echo mount-refused; echo 1 > /proc/sys/kernel/ns_last_pid || echo sys-refused;
		cat /proc/1/oom_score_adj; ls /proc | grep -c '^[0-9]'; ls /sys/class/net; echo end-of-test"`)
	s.ResolvConf, s.Hosts, s.HostnameTxt = filepath.Join(files, "resolv.conf"), filepath.Join(files, "hosts"), filepath.Join(files, "hostname")
	s.Env = map[string]string{"BOTH": "pod", "OWN": "a b=c"}
	b.start(s)
	if c := b.finish(s.Pod); c.ExitCode != 0 {
		t.Errorf("%+v", c)
	}
	text := b.log(s, "end-of-test")
	for _, want := range []string{
		"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t00000000a00425fb", "CapBnd:\t00000000a00425fb", "CapAmb:\t0000000000000000",
		"FROM=image", "BOTH=pod", "OWN=a b=c", "text of resolv.conf", "text of hosts", "text of hostname", "stdout F testpod",
		"hosts-refused", "mount-refused", "sys-refused", "/dev/shm type tmpfs (rw,nosuid,nodev,noexec,relatime,size=15628k",
		"sysfs on /sys type sysfs (ro,", "stdout F " + strconv.FormatUint(b.r.limits().files, 10), "stdout F lo",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing: %s", want)
		}
	}
	for _, bad := range []string{"NVIDIA_", "BOTH=image", "CapEff:\t000001ffffffffff", "stdout F eth", "stdout F sda", "stdout F kmsg"} {
		if strings.Contains(text, bad) {
			t.Errorf("present: %s", bad)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	b.remove(s.Pod)
}

func TestTermThenKill(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), `sh -c "trap 'echo got-term' TERM; echo ready; while true; do sleep 0.1; done"`)
	b.start(s)
	b.log(s, "ready")
	if err := b.r.Signal(b.ctx, s.Pod, int(syscall.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	b.log(s, "got-term")
	ctx, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
	wantFault(t, b.r.Wait(ctx, s.Pod), pod.Retry, "")
	cancel()
	if c := b.look(s.Pod); c.Task != pod.TaskRunning {
		t.Fatalf("after SIGTERM: %+v", c)
	}
	if err := b.r.Signal(b.ctx, s.Pod, int(syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	if c := b.finish(s.Pod); c.ExitCode != 137 || c.OOMKilled {
		t.Fatalf("after SIGKILL: %+v", c)
	}
	b.remove(s.Pod)
}

func TestVersion(t *testing.T) {
	b := setup(t)
	v, err := b.r.Version(b.ctx)
	if err != nil || !strings.HasPrefix(v, "containerd ") || !strings.Contains(v, ", runc 1.") {
		t.Fatalf("%q, %v", v, err)
	}
	t.Log(v)
}

// TestRuncIsAskedOncePerProgram: the agent asks for versions every few seconds.
func TestRuncIsAskedOncePerProgram(t *testing.T) {
	dir := t.TempDir()
	runc := filepath.Join(dir, "runc")
	install := func(version string) {
		t.Helper()
		text := "#!/bin/sh\necho x >> " + dir + "/asked\necho runc version " + version + "\necho libseccomp: 2\n"
		program.Write(t, runc+".new", text)
		if err := os.Rename(runc+".new", runc); err != nil {
			t.Fatal(err)
		}
	}
	var says runcSays
	for _, version := range []string{"1.1.5", "1.2.8"} {
		install(version)
		for range 3 {
			if v, seccomp, err := says.ask(t.Context(), runc); err != nil || v != version || !seccomp {
				t.Errorf("%q, %v, %v, want %s", v, seccomp, err, version)
			}
		}
	}
	if asked, err := os.ReadFile(filepath.Join(dir, "asked")); err != nil || string(asked) != "x\nx\n" {
		t.Errorf("asked %q, %v", asked, err)
	}
	program.Write(t, runc, "#!/bin/sh\nexec sleep 60\n")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := says.ask(ctx, runc); err == nil {
		t.Error("a program that does not answer passed")
	}
}
