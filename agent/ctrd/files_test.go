package ctrd

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gantry/agent/containerfs"
	"gantry/agent/ctrd/ctrdtest"
	"gantry/fleet"
)

// readFiles reads a path of a pod: content by name of what are files.
func (b *bench) readFiles(id fleet.PodID, path string) (map[string]string, error) {
	b.Helper()
	root, err := b.r.Root(b.ctx, id, 1)
	b.must(err)
	defer root.Close()
	found, err := root.Find(path)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var packed bytes.Buffer
	if err := found.Pack(b.ctx, &packed); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for r := tar.NewReader(&packed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		b.must(err)
		data, err := io.ReadAll(r)
		b.must(err)
		out[h.Name] = string(data)
	}
}

// writeFile unpacks one file below a folder of a pod.
func (b *bench) writeFile(ctx context.Context, id fleet.PodID, folder, name, text string) error {
	b.Helper()
	root, err := b.r.Root(ctx, id, 1)
	b.must(err)
	defer root.Close()
	into, err := root.Into(folder)
	if err != nil {
		return err
	}
	defer into.Close()
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	b.must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o640, Size: int64(len(text)), Uid: 1000}))
	_, err = io.WriteString(w, text)
	b.must(errors.Join(err, w.Close()))
	return into.Unpack(ctx, &packed)
}

func TestFilesOfAContainer(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), `sh -c "mkdir -p /own; echo mine > /own/f; cd /own; for l in /proc/1/root /proc/1 /proc /sys /dev/zero; do busybox ln -s $l l$((n=n+1)); done; echo up; sleep 600"`)
	s.HostnameTxt = filepath.Join(b.TempDir(), "hostname")
	b.must(os.WriteFile(s.HostnameTxt, []byte("of the host\n"), 0o644))
	b.start(s)
	b.log(s, "up")
	got, err := b.readFiles(s.Pod, "/own")
	if err != nil || got["own/f"] != "mine\n" || len(got) != 7 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, folder := range []string{"/tmp", "/own", "/"} {
		if err := b.writeFile(b.ctx, s.Pod, folder, "deep/new", "text for "+folder); err != nil {
			t.Errorf("%s: %v", folder, err)
		}
		p, err := b.r.Exec(b.ctx, s.Pod, 1, containerfs.ExecSpec{Command: []string{"sh", "-c", "cd " + folder + "/deep; cat new; stat -c ' %u %a' new"}})
		b.must(err)
		out, err := io.ReadAll(p.Stdout())
		if err != nil || string(out) != "text for "+folder+" 1000 640\n" {
			t.Errorf("%s holds %q, %v", folder, out, err)
		}
		b.must(p.Close())
	}
	for path, want := range map[string]fleet.Code{
		"/proc/1/environ": fleet.CodeNotAllowed, "/own/l1/etc": fleet.CodeNotAllowed, "/own/l2/environ": fleet.CodeNotAllowed, "/own/l3/version": fleet.CodeNotAllowed,
		"/own/l4/kernel": fleet.CodeNotAllowed, "/own/l5": fleet.CodeNotAllowed, "/dev/null": fleet.CodeNotAllowed, "/nothing": fleet.CodeNotFound,
	} {
		if got, err := b.readFiles(s.Pod, path); fleet.CodeOf(err) != want {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
	for _, folder := range []string{"/proc", "/sys", "/own/l2", "/own/l3/sys/kernel", "/own/l4", "/sys/fs/cgroup", "/dev/shm", "/dev"} {
		if err := b.writeFile(b.ctx, s.Pod, folder, "x", "y"); fleet.CodeOf(err) != fleet.CodeNotAllowed {
			t.Errorf("%s was written: %v", folder, err)
		}
	}
	for name, folder := range map[string]string{"proc/sys/kernel/hostname": "/", "hostname": "/etc", "dev/shm/x": "/", "shm/y": "/dev"} {
		if err := b.writeFile(b.ctx, s.Pod, folder, name, "y"); fleet.CodeOf(err) != fleet.CodeNotAllowed {
			t.Errorf("%s was written: %v", name, err)
		}
	}
	if text, err := os.ReadFile(s.HostnameTxt); err != nil || string(text) != "of the host\n" {
		t.Errorf("the host's file is %q, %v", text, err)
	}
	b.remove(s.Pod)
}

// TestFilesOfAnImageWithoutPrograms uses one with a single static program.
func TestFilesOfAnImageWithoutPrograms(t *testing.T) {
	b := setup(t)
	binary, err := os.ReadFile("/bin/busybox")
	b.must(err)
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	b.must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "busybox", Mode: 0o755, Size: int64(len(binary))}))
	_, err = w.Write(binary)
	b.must(errors.Join(err, w.Close()))
	packed, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	b.must(err)
	img, err := mutate.AppendLayers(empty.Image, packed)
	b.must(err)
	config, err := ctrdtest.BusyboxImage(b, nil).ConfigFile()
	b.must(err)
	mine, err := img.ConfigFile()
	b.must(err)
	mine = mine.DeepCopy()
	mine.OS, mine.Architecture = config.OS, config.Architecture
	mine.Config = v1.Config{Cmd: []string{"/busybox", "sleep", "600"}}
	img, err = mutate.ConfigFile(img, mine)
	b.must(err)
	path := filepath.Join(b.TempDir(), "image.tar")
	ctrdtest.WriteDockerArchive(b, path, map[string]v1.Image{"example/static:1": img})
	f, err := os.Open(path)
	b.must(err)
	defer f.Close()
	_, err = b.r.Import(b.ctx, f)
	b.must(err)
	s := b.spec("example/static:1", "")
	b.start(s)
	b.must(b.writeFile(b.ctx, s.Pod, "/", "data/in", "text"))
	if got, err := b.readFiles(s.Pod, "/data/"); err != nil || got["data/in"] != "text" {
		t.Errorf("got %v, %v", got, err)
	}
	b.remove(s.Pod)
}

// TestFilesUnderAnAttackFromInside has a process of the pod swap a folder against links that lead to
// a folder of the host.
func TestFilesUnderAnAttackFromInside(t *testing.T) {
	b := setup(t)
	host := b.TempDir()
	b.must(os.WriteFile(filepath.Join(host, "f"), []byte("of the host"), 0o600))
	s := b.spec(b.local(nil), "sh -c \"mkdir -p /w/a; echo mine > /w/a/f; busybox ln -s /../../../../../../.."+host+" /w/l; busybox ln -s /proc/1/root"+host+" /w/m; echo up; "+
		"while true; do busybox mv /w/a /w/b; busybox mv /w/l /w/a; busybox mv /w/a /w/l; busybox mv /w/m /w/a; busybox mv /w/a /w/m; busybox mv /w/b /w/a; done\"")
	b.start(s)
	b.log(s, "up")
	good, bad := 0, 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		got, err := b.readFiles(s.Pod, "/w/a/f")
		if strings.Contains(got["f"], "host") {
			t.Fatal("the host's file was read")
		}
		for _, err := range []error{err, b.writeFile(b.ctx, s.Pod, "/w/a", "new", "x"), b.writeFile(b.ctx, s.Pod, "/w", "a/new", "x")} {
			if err == nil {
				good++
			} else {
				bad++
			}
		}
	}
	if good == 0 || bad == 0 {
		t.Errorf("the attack did not meet the work: %d worked, %d did not", good, bad)
	}
	entries, err := os.ReadDir(host)
	text, _ := os.ReadFile(filepath.Join(host, "f"))
	if err != nil || len(entries) != 1 || string(text) != "of the host" {
		t.Errorf("the host's folder holds %v (%q), %v", entries, text, err)
	}
	b.remove(s.Pod)
}
