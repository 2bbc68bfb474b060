package ctrd

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/typeurl/v2"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"

	"gantry/agent/containerfs"
	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/internal/userns"
)

const testBase = 0x1000_0000

// give lets a pod have a user namespace, which begins at base, by a network that it owns; 0: none.
func (b *bench) give(s *pod.ContainerSpec, base uint32) {
	b.Helper()
	if s.IDBase = base; base == 0 {
		s.NetNS = ""
		return
	}
	held, err := userns.New(base, unix.CLONE_NEWNET)
	b.must(err)
	pinned := filepath.Join(b.TempDir(), "net")
	b.must(userns.Pin(held.Net, pinned))
	b.must(held.Close())
	b.Cleanup(func() { b.must(userns.Unpin(pinned)) })
	s.NetNS = pinned
	if out, err := exec.Command("nsenter", "--net="+s.NetNS, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		b.Fatalf("loopback: %v: %s", err, out)
	}
}

func ownerOf(t *testing.T, path string) uint32 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Error(err)
	}
	return st.Uid
}

// times are those of a file's contents and attributes: a change of owner moves the latter.
func times(t *testing.T, path string) string {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(st.Mtim, st.Ctim, st.Uid, st.Gid, st.Ino)
}

func (b *bench) missing(text string, want ...string) {
	b.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			b.Errorf("no %q in\n%s", w, text)
			return
		}
	}
}

// TestRootOfAContainerIsNobodyOnTheHost is about all that the root of an image does to its own files.
func TestRootOfAContainerIsNobodyOnTheHost(t *testing.T) {
	b := setup(t)
	busybox, err := os.ReadFile("/bin/busybox")
	b.must(err)
	img, err := mutate.AppendLayers(ctrdtest.BusyboxImage(t, nil), layer(t,
		map[string]tar.Header{"bin/sid": {Mode: 0o4755}, "home": {Mode: 0o600, Uid: 1000, Gid: 1001}}, map[string]string{"bin/sid": string(busybox)}))
	b.must(err)
	b.load("example/ids:1", img)
	volume, files := t.TempDir(), t.TempDir()
	b.must(os.WriteFile(filepath.Join(volume, "old"), nil, 0o600))
	for _, name := range []string{"resolv.conf", "profile"} {
		b.must(os.WriteFile(filepath.Join(files, name), []byte("text of "+name+"\n"), 0o644))
	}
	b.must(os.Chmod(filepath.Join(files, "profile"), 0o400))
	b.must(os.Chown(filepath.Join(files, "profile"), testBase, testBase))
	s := b.spec("example/ids:1", `sh -c "stat -c 'at %n %u:%g %a' / /bin/busybox /bin/sid /home /data/old /proc /sys /dev/null /etc/profile.d/00-gantry.sh; touch /made; touch /moved; chown 1000:1001 /moved;
		chmod 700 /bin/sid; touch /data/new; chown 5:6 /data/old; cat /etc/resolv.conf /etc/profile.d/00-gantry.sh; echo by-name > /dev/stdout; echo by-name > /dev/stderr;
		grep ' /data ' /proc/self/mountinfo; grep -c ' /dev/pts\| /dev/mqueue\| /sys \| /dev/shm\| /sys/fs/cgroup' /proc/self/mountinfo; ls /sys/class/net;
		httpd -p 80 -h /www; wget -q -O - http://127.0.0.1/; ping -c 1 127.0.0.1; echo end-of-test; sleep 600"`)
	s.Mounts = []pod.Mount{{Source: volume, Target: "/data"}}
	s.ResolvConf, s.Profile = filepath.Join(files, "resolv.conf"), filepath.Join(files, "profile")
	b.give(&s, testBase)
	b.ways(t, func(t *testing.T) {
		b.must(os.Chown(filepath.Join(volume, "old"), 0, 0))
		s.LogDir = t.TempDir()
		b.must(b.r.Define(b.ctx, s))
		binary := filepath.Join(b.lower(s.Pod)[1], "bin/busybox")
		before := times(t, binary)
		b.must(b.r.Task(b.ctx, s.Pod))
		_, err := b.r.Start(b.ctx, s.Pod)
		b.must(err)
		b.missing(b.log(s, "end-of-test"),
			"at / 0:0 755", "at /bin/busybox 0:0 755", "at /bin/sid 0:0 4755", "at /home 1000:1001 600", "at /data/old 0:0 600", "at /dev/null 65534:65534 666",
			"at /etc/profile.d/00-gantry.sh 0:0 400", "text of resolv.conf", "text of profile", "stdout F by-name", "stderr F by-name", "rw,nosuid,nodev", "stdout F lo",
			"hello", "1 packets received")
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", b.look(s.Pod).PID)); err != nil || strings.Join(strings.Fields(string(text)), " ") != fmt.Sprint("0 ", testBase, " 65536") {
			t.Errorf("ids %s, %v", text, err)
		}
		for path, want := range map[string]uint32{
			filepath.Join(b.upper(s.Pod), "made"): testBase, filepath.Join(b.upper(s.Pod), "moved"): testBase + 1000,
			filepath.Join(b.upper(s.Pod), "bin/sid"): testBase, filepath.Join(volume, "new"): 0, filepath.Join(volume, "old"): 5,
		} {
			if uid := ownerOf(t, path); uid != want {
				t.Errorf("%s is of %d, want %d", path, uid, want)
			}
		}
		if after := times(t, binary); after != before {
			t.Errorf("the image's file was changed from %s to %s", before, after)
		}
		b.remove(s.Pod)
		if _, err := os.Stat(b.r.usersPath(s.Pod)); err == nil {
			t.Error("the user namespace is still held")
		}
	})
}

func TestUserOfAnImageInAUserNamespace(t *testing.T) {
	b := setup(t)
	x := &execBench{bench: b}
	s := b.spec(b.local(func(c *v1.Config) { c.User = "worker" }),
		`sh -c "id; echo by-name > /dev/stdout; touch /root/x || echo refused; touch /tmp/x || echo refused; touch /dev/shm/x && echo shared; echo end-of-test; sleep 600"`)
	b.give(&s, testBase)
	x.s = s
	b.start(s)
	b.missing(b.log(s, "end-of-test"), "uid=1000(worker) gid=1001(worker)", "2000(extra)", "stdout F by-name", "refused", "shared")
	out, diag, code := x.run(containerfs.ExecSpec{Command: []string{"sh", "-c", "id; cat /proc/self/uid_map"}}, "")
	if code != 0 || !strings.Contains(out, "uid=1000(worker)") || !strings.Contains(out, fmt.Sprint(testBase)) {
		t.Errorf("a command: %q, %q, %d", out, diag, code)
	}
	var st syscall.Stat_t
	b.must(syscall.Stat(fmt.Sprintf("/proc/%d", b.look(s.Pod).PID), &st))
	if st.Uid != testBase+1000 {
		t.Errorf("on the host, the process is of %d", st.Uid)
	}
	b.remove(s.Pod)
}

func TestUserNamespaceMustBeTheNetworks(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "true")
	s.IDBase = testBase
	wantFault(t, b.r.Define(b.ctx, s), pod.Retry, "user namespace cannot be found")
	s.NetNS = "/proc/self/ns/net"
	wantFault(t, b.r.Define(b.ctx, s), pod.Retry, "made without a user namespace")
	if c := b.look(s.Pod); c.Exists {
		t.Errorf("%+v", c)
	}
	b.noTraces()
}

func TestVolumeWithoutUserNamespaces(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "true")
	s.Mounts = []pod.Mount{{Source: "/proc/sys", Target: "/data"}} // no such file system shows other ids
	b.give(&s, testBase)
	wantFault(t, b.r.Define(b.ctx, s), pod.Retry, "has no user namespaces")
	b.noTraces()
}

func TestRuntimeClasses(t *testing.T) {
	for class, name := range map[string]string{"": runtimeName, "gvisor": "io.containerd.runsc.v1", "kata": "io.containerd.kata.v2"} {
		b := setup(t, func(c *Config) {
			if c.RuntimeClass = class; class != "" {
				c.RuncBinary = "/no/runc"
			}
		})
		if v, err := b.r.Version(b.ctx); err != nil || class != "" && !strings.HasSuffix(v, ", "+class) {
			t.Errorf("%q: %q, %v", class, v, err)
		}
		s := b.spec(b.local(nil), "true")
		b.give(&s, testBase)
		b.must(b.r.Define(b.ctx, s))
		c, err := b.r.client.ContainerService().Get(b.r.in(b.ctx), string(s.Pod))
		b.must(err)
		if c.Runtime.Name != name || (c.Runtime.Options.GetTypeUrl() == "") != (class != "") {
			t.Errorf("%q: %+v", class, c.Runtime)
		}
		joined := strings.Contains(string(c.Spec.GetValue()), `"type":"user"`)
		if joined != (class == "") {
			t.Errorf("%q: a user namespace: %v", class, joined)
		}
		if class == "" {
			var o options.Options
			b.must(typeurl.UnmarshalTo(c.Runtime.Options, &o))
			if o.IoUid != testBase || o.IoGid != testBase {
				t.Errorf("%+v", &o)
			}
		}
		b.remove(s.Pod)
	}
	if _, err := New(Config{Socket: "/x", LoggerPath: "/x", Namespace: "x", RuntimeClass: "other"}); err == nil {
		t.Error("an unknown runtime class")
	}
}
