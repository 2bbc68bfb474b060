package hostile

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

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

// TestListsOfUsersThatAreNone: what the host reads of an image itself is a plain file of bounded size. A pipe would be
// opened for ever, and some devices take being opened for an order.
func TestListsOfUsersThatAreNone(t *testing.T) {
	h := newHost(t)
	for i, list := range []entry{
		{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "etc/passwd", Mode: 0o666}},
		{Header: tar.Header{Typeflag: tar.TypeChar, Name: "etc/passwd", Mode: 0o666, Devmajor: 1, Devminor: 5}},
		{Header: tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, body: strings.Repeat("x:x:1:1::/:/\n", 400_000)},
	} {
		digest := h.mustLoad("example/users"+strconv.Itoa(i)+":1", image(t, func(c *v1.Config) { c.User = "worker" }, []entry{list}))
		s, ended := h.spec(digest, "id"), make(chan error, 1)
		go func() { ended <- h.start(s) }()
		select {
		case err := <-ended:
			var e *pod.Error
			if !errors.As(err, &e) || e.Class != pod.Fatal || !strings.Contains(e.Sentence, "user") {
				t.Errorf("image %d: %v", i, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("image %d: it is not known who its user is", i)
		}
	}
	h.other()
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
