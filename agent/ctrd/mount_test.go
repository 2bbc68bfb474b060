package ctrd

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
)

// withEntries returns a busybox image with further entries.
func withEntries(t *testing.T, entries ...tar.Header) v1.Image {
	t.Helper()
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for _, h := range entries {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(ctrdtest.BusyboxImage(t, nil), layer)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func (b *bench) load(ref string, img v1.Image) {
	b.Helper()
	path := filepath.Join(b.TempDir(), "image.tar")
	ctrdtest.WriteDockerArchive(b, path, map[string]v1.Image{ref: img})
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := b.r.Import(b.ctx, f); err != nil {
		b.Fatal(err)
	}
}

func TestMountOutlivesItsContainers(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	folder := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	s := b.spec(ref, `sh -c "grep ' /some/where ' /proc/self/mountinfo; cat /some/where/note; echo first >> /some/where/note"`)
	s.Mounts = []pod.Mount{{Source: folder, Target: "/some/where"}}
	b.start(s)
	b.finish(s.Pod)
	line := b.log(s, "/some/where")
	for _, want := range []string{"rw,nosuid,nodev"} {
		if !strings.Contains(line, want) {
			t.Errorf("mounted without %s: %s", want, line)
		}
	}
	if strings.Contains(line, "shared:") || strings.Contains(line, "master:") {
		t.Errorf("not private: %s", line)
	}
	b.remove(s.Pod)
	s.Incarnation, s.LogDir = 2, t.TempDir()
	b.start(s)
	b.finish(s.Pod)
	b.log(s, "first")
	b.remove(s.Pod)
	if text, err := os.ReadFile(filepath.Join(folder, "note")); err != nil || string(text) != "first\nfirst\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestMountTargetCannotLeadOutside runs images in which the mount's path is a link.
func TestMountTargetCannotLeadOutside(t *testing.T) {
	b := setup(t)
	root := t.TempDir()
	folder, victim := filepath.Join(root, "data"), filepath.Join(root, "victim")
	for _, f := range []string{folder, victim} {
		if err := os.Mkdir(f, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	up := strings.Repeat("../", 30)
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for name, link := range map[string]string{
		"etc": "/etc", "up": up + strings.TrimPrefix(victim, "/"), "absolute": victim, "dots": up, "proc": "/proc/1/root", "self": "/data",
		"fd": "/proc/self/fd", "dev": "/dev",
	} {
		t.Run(name, func(t *testing.T) {
			ref := "example/hostile:" + name
			b.load(ref, withEntries(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "data", Linkname: link, Mode: 0o777}))
			s := b.spec(ref, `sh -c "echo mark > /data/mark; echo done"`)
			s.Mounts = []pod.Mount{{Source: folder, Target: "/data"}}
			if err := b.r.Define(b.ctx, s); err != nil {
				t.Fatal(err)
			}
			if err := b.r.Task(b.ctx, s.Pod); err == nil {
				if _, err := b.r.Start(b.ctx, s.Pod); err == nil {
					b.finish(s.Pod)
				}
			} else {
				wantFault(t, err, pod.Fatal, "mount")
			}
			b.remove(s.Pod)
			if left, err := os.ReadDir(victim); err != nil || len(left) != 0 {
				t.Errorf("outside: %v, %v", left, err)
			}
			if _, err := os.Stat("/mark"); err == nil {
				t.Error("the host's root was written")
			}
		})
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(after)) {
		if !strings.Contains(string(before), line) && strings.Contains(line, root) {
			t.Errorf("mounted on the host: %s", line)
		}
	}
}

func TestMountOverAFileIsFinal(t *testing.T) {
	b := setup(t)
	b.load("example/file:1", withEntries(t, tar.Header{Typeflag: tar.TypeReg, Name: "data", Mode: 0o644}))
	s := b.spec("example/file:1", "true")
	s.Mounts = []pod.Mount{{Source: t.TempDir(), Target: "/data"}}
	if err := b.r.Define(b.ctx, s); err != nil {
		t.Fatal(err)
	}
	wantFault(t, b.r.Task(b.ctx, s.Pod), pod.Fatal, "stand in the way")
	b.remove(s.Pod)
}

func TestMountsThatAreRefused(t *testing.T) {
	for _, m := range []pod.Mount{
		{Source: "data", Target: "/data"},
		{Source: "/a/../b", Target: "/data"},
		{Source: "/data", Target: "data"},
		{Source: "/data", Target: "/"},
		{Source: "/data", Target: "/a/../etc"},
		{Source: "/data", Target: "/a/"},
		{Source: "/data", Target: "/a\x00"},
		{Source: "/data", Target: "/proc"},
		{Source: "/data", Target: "/etc/x"},
		{Source: "/data", Target: "/var/run/x"},
		{Source: "/data", Target: ""},
	} {
		wantFault(t, checkPaths(pod.ContainerSpec{Mounts: []pod.Mount{m}}), pod.Fatal, "")
	}
	s := pod.ContainerSpec{Mounts: []pod.Mount{{Source: "/srv/x", Target: "/workspace"}, {Source: "/srv/x", Target: "/etcetera"}}}
	if err := checkPaths(s); err != nil {
		t.Error(err)
	}
	all := mounts(s)
	if m := all[len(all)-2]; m.Destination != "/workspace" || !slices.Equal(m.Options, []string{"bind", "rw", "rprivate", "nosuid", "nodev"}) {
		t.Errorf("%+v", m)
	}
}

// TestAReadOnlyMountStaysSo below a mount of the container's own, which keeps the rest of its files: its root can write to it neither
// through it nor by mounting it anew, and all users of the container may read it.
func TestAReadOnlyMountStaysSo(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	volume, model := filepath.Join(t.TempDir(), "volume"), filepath.Join(t.TempDir(), "model")
	for dir, mode := range map[string]os.FileMode{volume: 0o777, model: 0o755} {
		b.must(os.Mkdir(dir, mode))
		b.must(os.Chmod(dir, mode))
	}
	b.must(os.WriteFile(filepath.Join(model, "weights"), []byte("seven"), 0o444))
	b.must(os.WriteFile(filepath.Join(volume, "own"), []byte("mine"), 0o666))
	s := b.spec(ref, `sh -c "cat /v/own /v/cache/hub/m/weights; grep ' /v/cache/hub/m ' /proc/self/mountinfo; echo x > /v/cache/hub/m/weights || echo kept;
		touch /v/cache/hub/m/new || echo none; mount -o remount,rw /v/cache/hub/m || echo stays; umount /v/cache/hub/m || echo there; rm -f /v/cache/hub/m/weights || echo not-removed;
		touch /v/cache/hub/other && echo others-may; stat -c 'mode %a of %u' /v/cache/hub/m/weights; echo end-of-test"`)
	s.Mounts = []pod.Mount{{Source: volume, Target: "/v"}, {Source: model, Target: "/v/cache/hub/m", ReadOnly: true}}
	b.give(&s, testBase)
	b.start(s)
	b.finish(s.Pod)
	b.missing(b.log(s, "end-of-test"), "mine", "seven", "ro,nosuid,nodev", "kept", "none", "stays", "there", "not-removed", "others-may", "mode 444 of 0")
	b.remove(s.Pod)
	if text, err := os.ReadFile(filepath.Join(model, "weights")); err != nil || string(text) != "seven" {
		t.Errorf("%q, %v", text, err)
	}
	for _, left := range []string{"weights", "new"} {
		if _, err := os.Stat(filepath.Join(volume, "cache/hub/m", left)); err == nil {
			t.Errorf("%s is on the volume", left)
		}
	}
}
