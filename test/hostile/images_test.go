package hostile

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
)

// TestNoWayOut runs every attempt of the attacker, as root and as a user of the image.
func TestNoWayOut(t *testing.T) {
	h := newHost(t)
	devices := []entry{
		{Header: tar.Header{Typeflag: tar.TypeChar, Name: "evil/mem", Mode: 0o666, Devmajor: 1, Devminor: 1}},
		{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "evil/disk", Mode: 0o666, Devmajor: 254}},
	}
	busybox, err := os.ReadFile("/bin/busybox")
	must(t, err)
	suid := []entry{{Header: tar.Header{Typeflag: tar.TypeReg, Name: "evil/suid", Mode: 0o4755}, body: string(busybox)}}
	for name, user := range map[string]string{"root": "", "a user": "worker"} {
		digest := h.mustLoad("example/"+map[string]string{"": "root", "worker": "worker"}[user]+":1",
			image(t, func(c *v1.Config) { c.User = user }, devices, suid))
		text, c := h.run(h.spec(digest, "/evil/attacker", "escape"))
		if c.ExitCode != 0 || !strings.Contains(text, "done") {
			t.Errorf("as %s: the attacker ended with %+v:\n%s", name, c, text)
		}
		for line := range strings.Lines(text) {
			if strings.Contains(line, "SUCCEEDED") {
				t.Errorf("as %s: %s", name, strings.TrimSpace(line))
			}
		}
		if n := strings.Count(text, "refused"); n < 40 {
			t.Errorf("as %s: only %d attempts were made", name, n)
		}
	}
	h.other()
}

// TestSetUserIDGivesNothing runs a program that belongs to root and has the set-user-id bit.
func TestSetUserIDGivesNothing(t *testing.T) {
	h := newHost(t)
	busybox, err := os.ReadFile("/bin/busybox")
	must(t, err)
	digest := h.mustLoad("example/suid:1", image(t, func(c *v1.Config) { c.User = "worker" },
		[]entry{{Header: tar.Header{Typeflag: tar.TypeReg, Name: "evil/id", Mode: 0o4755}, body: string(busybox)}}))
	text, c := h.run(h.spec(digest, "/evil/id", "-u"))
	if c.ExitCode != 0 || !strings.Contains(text, "1000") {
		t.Errorf("ended with %+v and wrote %q", c, text)
	}
}

// TestLinksInPlaceOfSystemFolders gives the container an image whose /proc, /dev, /sys or /etc leads elsewhere. The
// container starts with the real ones or not at all, and nothing of the host is touched.
func TestLinksInPlaceOfSystemFolders(t *testing.T) {
	h := newHost(t)
	bait := t.TempDir()
	victim := filepath.Join(bait, "victim")
	must(t, os.WriteFile(victim, []byte("untouched"), 0o666))
	link := func(name, to string) entry {
		return entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}}
	}
	for i, entries := range [][]entry{
		{link("proc", bait)},
		{link("proc", "/../../../../.."+bait)},
		{link("sys", bait)},
		{link("dev", bait)},
		{link("etc/hosts", victim), link("etc/resolv.conf", "../../../../../.."+victim), link("etc/hostname", "/proc/self/exe")},
		{link("etc/profile.d", bait)},
	} {
		digest := h.mustLoad("example/link"+strconv.Itoa(i)+":1", image(t, nil, entries))
		s := h.spec(digest, "sh", "-c", "cat /proc/1/status /proc/mounts; echo x > /etc/hosts; echo x > /dev/null; ls / /dev")
		err := h.start(s)
		if err == nil {
			must(t, h.r.Wait(h.ctx, s.Pod))
			if text := h.written(s); strings.Contains(text, "victim") {
				t.Errorf("image %d sees the host:\n%s", i, text)
			}
		} else {
			var e *pod.Error
			if !errors.As(err, &e) || e.Class != pod.Fatal {
				t.Errorf("image %d: %v", i, err)
			}
		}
		h.remove(s)
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "untouched" {
		t.Errorf("a file of the host holds %q, %v", text, err)
	}
	if left, err := os.ReadDir(bait); err != nil || len(left) != 1 {
		t.Errorf("a folder of the host holds %v, %v", left, err)
	}
	h.other()
}

// TestLayersThatReachOut unpacks layers whose names or links lead out of the image.
func TestLayersThatReachOut(t *testing.T) {
	h := newHost(t)
	bait := t.TempDir()
	file := func(name string) entry {
		return entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, body: "evil"}
	}
	link := entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: bait, Mode: 0o777}}
	hard := entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: "hard", Linkname: "../../../../../../etc/shadow", Mode: 0o644}}
	for i, layers := range [][][]entry{
		{{file("../../../../../../../.." + bait + "/one")}},
		{{link}, {file("out/two")}},
		{{link, file("out/three")}},
		{{hard}},
	} {
		ref := "example/out" + strconv.Itoa(i) + ":1"
		digest, err := h.load(ref, image(t, nil, layers...))
		if err != nil {
			continue // refused as a whole
		}
		if text, c := h.run(h.spec(digest, "sh", "-c", "cat /hard; echo ran")); c.ExitCode != 0 || strings.Contains(text, "root:") {
			t.Errorf("image %d ended with %+v and wrote %q", i, c, text)
		}
	}
	if left, err := os.ReadDir(bait); err != nil || len(left) != 0 {
		t.Errorf("a folder of the host holds %v, %v", left, err)
	}
}

// TestEnvironmentReachesTheContainerAlone sets what would change programs of the host that start the container.
func TestEnvironmentReachesTheContainerAlone(t *testing.T) {
	h := newHost(t)
	bad := []string{
		"LD_PRELOAD=/evil/attacker", "LD_LIBRARY_PATH=/evil", "GODEBUG=netdns=9", "GOTRACEBACK=crash", "NVIDIA_VISIBLE_DEVICES=all",
		"NVIDIA_DRIVER_CAPABILITIES=all", "CUDA_VERSION=1", "PATH=/evil:/bin", "BASH_ENV=/evil/x", "_LIBCONTAINER_INITPIPE=3", "RUNC_DEBUG=1",
	}
	digest := h.mustLoad("example/env:1", image(t, func(c *v1.Config) { c.Env = bad }))
	s := h.spec(digest, "sh", "-c", "env; sleep 60")
	s.Env = map[string]string{"LD_PRELOAD": "/evil/attacker", "LD_AUDIT": "/evil/attacker", "SHELL_IS": "here"}
	must(t, h.start(s))
	text := h.wait(s, "SHELL_IS=here")
	if strings.Contains(text, "NVIDIA_") {
		t.Errorf("the image asks for GPUs:\n%s", text)
	}
	c, err := h.r.Look(h.ctx, s.Pod)
	must(t, err)
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	must(t, err)
	own := namespaceOf(t, c.PID)
	for _, f := range files {
		env, err := os.ReadFile(f)
		pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
		if err == nil && strings.Contains(string(env), "/evil/attacker") && namespaceOf(t, pid) != own {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "comm"))
			t.Errorf("process %d (%s) of the host has the container's environment", pid, strings.TrimSpace(string(name)))
		}
	}
	h.remove(s)
}

func namespaceOf(t *testing.T, pid int) string {
	t.Helper()
	ns, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", "pid")) // it may have ended
	return ns
}

// TestHugeEnvironment gives the container more than a program can be started with: that is said, and final.
func TestHugeEnvironment(t *testing.T) {
	h := newHost(t)
	digest := h.mustLoad("example/huge:1", image(t, func(c *v1.Config) {
		for i := range 64 {
			c.Env = append(c.Env, "BIG"+strconv.Itoa(i)+"="+strings.Repeat("x", 120_000))
		}
	}))
	s := h.spec(digest, "true")
	err := h.start(s)
	var e *pod.Error
	if !errors.As(err, &e) || e.Class != pod.Fatal || !strings.Contains(e.Sentence, "environment") {
		t.Errorf("7 MB of environment: %v", err)
	}
	h.remove(s)
	h.other()
}

// TestListsOfUsersThatAreNone: what the host and runc read of an image is a plain file of bounded size, whoever its user
// is. A pipe would be opened for ever, and some devices take being opened for an order.
func TestListsOfUsersThatAreNone(t *testing.T) {
	h := newHost(t)
	lists := map[string]tar.Header{
		"a pipe": {Typeflag: tar.TypeFifo, Mode: 0o666}, "a device": {Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 5},
		"a folder": {Typeflag: tar.TypeDir, Mode: 0o755}, "too large": {Typeflag: tar.TypeReg, Mode: 0o644},
		"a link to a pipe": {Typeflag: tar.TypeSymlink, Linkname: "../../pipe", Mode: 0o777},
	}
	pipe := entry{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o666}}
	for what, header := range lists {
		for name, user := range map[string]string{"etc/passwd": "worker", "etc/group": ""} {
			list := entry{Header: header}
			if list.Name = name; what == "too large" {
				list.body = strings.Repeat("x:x:1:1::/:/\n", 400_000)
			}
			ref := "example/users-" + strings.ReplaceAll(what, " ", "-") + user + ":1"
			digest := h.mustLoad(ref, image(t, func(c *v1.Config) { c.User = user }, []entry{pipe, list}))
			s, ended := h.spec(digest, "id"), make(chan error, 1)
			go func() { ended <- h.start(s) }()
			select {
			case err := <-ended:
				var e *pod.Error
				if !errors.As(err, &e) || e.Class != pod.Fatal || !strings.Contains(e.Sentence, "/"+name) {
					t.Errorf("%s is %s: %v", name, what, err)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s is %s: it is still being started", name, what)
			}
			h.remove(s)
		}
	}
	h.other()
}

// TestLinksInPlaceOfFilesOfTheHost: an image leaves no place for a file that every container gets. That is said at once,
// with the path; a link to what is not there is none of these.
func TestLinksInPlaceOfFilesOfTheHost(t *testing.T) {
	h := newHost(t)
	files := filepath.Join(h.dir, "files")
	must(t, os.Mkdir(files, 0o755))
	for _, name := range []string{"resolv.conf", "hosts", "hostname", "profile"} {
		must(t, os.WriteFile(filepath.Join(files, name), []byte("of the host\n"), 0o644))
	}
	for i, c := range []struct{ name, to, says string }{
		{"etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf", ""},
		{"etc/hosts", "/nowhere/at/all", ""},
		{"etc", "/nowhere", ""},
		{"etc/hosts", "/sys/nowhere", "/etc/hosts leads into /sys"},
		{"etc/hosts", "/proc/nowhere", "/etc/hosts leads into /proc"},
		{"etc/hostname", "/dev/null", "/etc/hostname leads into /dev"},
		{"etc", "/proc", "/etc/resolv.conf leads into /proc"},
		{"etc/hosts", "hosts", "the links of /etc/hosts lead nowhere"},
		{"etc/resolv.conf", "/bin/busybox/x", "the links of /etc/resolv.conf lead nowhere"},
		{"etc/hostname", "/", "/etc/hostname is a folder"},
	} {
		link := entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: c.name, Linkname: c.to, Mode: 0o777}}
		s := h.spec(h.mustLoad("example/place"+strconv.Itoa(i)+":1", image(t, nil, []entry{link})), "cat", "/etc/hosts")
		s.ResolvConf, s.Hosts = filepath.Join(files, "resolv.conf"), filepath.Join(files, "hosts")
		s.HostnameTxt, s.Profile = filepath.Join(files, "hostname"), filepath.Join(files, "profile")
		err := h.start(s)
		var e *pod.Error
		switch {
		case c.says == "" && err == nil:
			if text := h.wait(s, "of the host"); strings.Contains(text, "stderr") {
				t.Errorf("%s -> %s: it wrote %q", c.name, c.to, text)
			}
		case c.says == "" || !errors.As(err, &e) || e.Class != pod.Fatal || !strings.Contains(e.Sentence, c.says):
			t.Errorf("%s -> %s: %v", c.name, c.to, err)
		}
		h.remove(s)
	}
}

// TestAStartThatHangsEndsWithItsGoal: by a link of its image, what runc reads of users is a pipe in the pod's volume. It
// waits until nobody wants the pod any more; then nothing of it is left.
func TestAStartThatHangsEndsWithItsGoal(t *testing.T) {
	h := newHost(t)
	volume := t.TempDir()
	must(t, unix.Mkfifo(filepath.Join(volume, "passwd"), 0o666))
	link := entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "etc", Linkname: "/workspace", Mode: 0o777}}
	s := h.spec(h.mustLoad("example/hangs:1", image(t, nil, []entry{link})), "sleep", "600")
	s.Mounts = []pod.Mount{{Source: volume, Target: "/workspace"}}
	must(t, h.r.Define(h.ctx, s))
	ctx, unwanted := context.WithCancelCause(h.ctx)
	defer unwanted(nil)
	ended := make(chan error, 1)
	go func() { ended <- h.r.Task(ctx, s.Pod) }()
	must(t, ctrdtest.Eventually(time.Minute, func() error { return h.waitsIn(s, "wait_for_partner") })) // of a pipe
	unwanted(pod.ErrUnwanted)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the start that was broken off says that it went well")
		}
	case <-time.After(time.Minute):
		t.Fatal("the start goes on")
	}
	h.remove(s)
	if err := h.waitsIn(s, ""); err == nil {
		t.Error("a process of the pod is left")
	}
	h.other()
}

// waitsIn reports as nil that a process of the pod waits for something in the kernel, by a part of its name.
func (h *host) waitsIn(s pod.ContainerSpec, what string) error {
	groups, err := filepath.Glob("/sys/fs/cgroup/*/gantry-hostile-*/*/" + string(s.Pod) + "/cgroup.procs")
	more, err2 := filepath.Glob("/sys/fs/cgroup/gantry-hostile-*/*/" + string(s.Pod) + "/cgroup.procs")
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	for _, g := range append(groups, more...) {
		text, _ := os.ReadFile(g) // it goes with the pod
		for pid := range strings.FieldsSeq(string(text)) {
			if at, err := os.ReadFile("/proc/" + pid + "/wchan"); err == nil && strings.Contains(string(at), what) {
				return nil
			}
		}
	}
	return fmt.Errorf("no process of the pod waits in %q", what)
}

// TestOddConfigurations starts images whose configuration says what none should.
func TestOddConfigurations(t *testing.T) {
	h := newHost(t)
	for i, change := range []func(*v1.Config){
		func(c *v1.Config) { c.WorkingDir = "../../../../../etc" },
		func(c *v1.Config) { c.WorkingDir = "/proc/self/fd/7" },
		func(c *v1.Config) { c.User = "4294967295:4294967295" },
		func(c *v1.Config) { c.User = "-1" },
		func(c *v1.Config) { c.User = "0:99999999" },
		func(c *v1.Config) { c.Entrypoint, c.Cmd = nil, nil },
		func(c *v1.Config) { c.Volumes = map[string]struct{}{"/etc": {}, "/../..": {}} },
		func(c *v1.Config) { c.StopSignal = "SIGNOTHING" },
	} {
		digest := h.mustLoad("example/odd"+strconv.Itoa(i)+":1", ctrdtest.BusyboxImage(t, change))
		s := h.spec(digest, "sh", "-c", "ls /; pwd")
		err := h.start(s)
		var e *pod.Error
		switch {
		case err == nil:
			must(t, h.r.Wait(h.ctx, s.Pod))
			if text := h.written(s); strings.Contains(text, "containerd") || strings.Contains(text, "boot") {
				t.Errorf("configuration %d shows the host:\n%s", i, text)
			}
		case !errors.As(err, &e) || e.Class != pod.Fatal:
			t.Errorf("configuration %d is tried again: %v", i, err)
		}
		h.remove(s)
	}
}
