package ctrd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gantry/agent/pod"
)

// volumeBase is above 2^31, as those of all network volumes are.
const volumeBase = 0x8003_0000

// attached is a folder of root's host that is mounted for a pod, as network volumes are: with its files' ids as they are.
func attached(t *testing.T, dir string, readOnly bool) string {
	t.Helper()
	at := t.TempDir()
	flags := uint64(unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID)
	if readOnly {
		flags |= unix.MOUNT_ATTR_RDONLY
	}
	if err := attachTree(dir, at, mountAttr(nil, flags)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmountAll(at); err != nil {
			t.Error(err)
		}
	})
	return at
}

// TestTwoPodsShareANetworkVolume: root in both is the owner of its files, and nobody's ids are translated.
func TestTwoPodsShareANetworkVolume(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	dir := t.TempDir()
	b.must(os.Chmod(dir, 0o755))
	b.must(os.Chown(dir, volumeBase, volumeBase))
	pods := []pod.ContainerSpec{
		b.spec(ref, `sh -c "stat -c 'root %u:%g %a' /workspace; echo hello > /workspace/a; touch /workspace/b; chown 1000:1001 /workspace/b; mknod /workspace/dev b 1 1;
			grep ' /workspace ' /proc/self/mountinfo; ping -c 1 127.0.0.1; ls -A /workspace; echo end-of-test; sleep 600"`),
		b.spec(ref, `sh -c "stat -c '%n %u:%g' /workspace/a /workspace/b; cat /workspace/a; echo world >> /workspace/a; echo end-of-test; sleep 600"`),
	}
	pods[1].Pod += "-second"
	for i := range pods {
		s := &pods[i]
		b.give(s, volumeBase)
		s.Mounts = []pod.Mount{{Source: attached(t, dir, false), Target: "/workspace", AsIs: true}}
		b.start(*s)
		said := b.log(*s, "end-of-test")
		if i == 0 {
			b.missing(said, "root 0:0 755", "rw,nosuid,nodev")
			if strings.Contains(said, "shared:") || strings.Contains(said, "master:") || strings.Contains(said, "idmapped") {
				t.Errorf("the mount is not private, or has other ids:\n%s", said)
			}
		} else {
			b.missing(said, "/workspace/a 0:0", "/workspace/b 1000:1001", "hello")
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(text) != "hello\nworld\n" {
		t.Errorf("%q, %v", text, err)
	}
	for name, want := range map[string]uint32{"a": volumeBase, "b": volumeBase + 1000} {
		if uid := ownerOf(t, filepath.Join(dir, name)); uid != want {
			t.Errorf("%s is of %d, want %d", name, uid, want)
		}
	}
	if len(entries(b.r.volumesDir(pods[0].Pod))) != 0 {
		t.Error("the volume was mounted a second time on the host")
	}
	for _, s := range pods {
		b.remove(s.Pod)
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); err != nil {
		t.Errorf("after the pods: %v", err)
	}
}

// TestAReadOnlyNetworkVolume: a container can be made on one, and cannot write.
func TestAReadOnlyNetworkVolume(t *testing.T) {
	b := setup(t)
	dir := t.TempDir()
	b.must(os.Chown(dir, volumeBase, volumeBase))
	s := b.spec(b.local(nil), `sh -c "touch /workspace/a || echo refused; echo end-of-test; sleep 600"`)
	b.give(&s, volumeBase)
	s.Mounts = []pod.Mount{{Source: attached(t, dir, true), Target: "/workspace", AsIs: true}}
	b.start(s)
	b.missing(b.log(s, "end-of-test"), "refused")
	b.remove(s.Pod)
}
