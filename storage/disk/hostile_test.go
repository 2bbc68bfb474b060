package disk

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAFullHostHarmsNoOtherDisk fills the file system that sparse files are on.
func TestAFullHostHarmsNoOtherDisk(t *testing.T) {
	base := t.TempDir()
	image, host := filepath.Join(base, "host"), filepath.Join(base, "mnt")
	must(t, os.Mkdir(host, 0o755))
	f, err := os.Create(image)
	must(t, err)
	must(t, f.Truncate(96<<20))
	must(t, f.Close())
	if out, err := exec.CommandContext(t.Context(), "/usr/sbin/mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dev, err := attach(image, true)
	must(t, err)
	must(t, unix.Mount(dev.Name(), host, "ext4", 0, ""))
	must(t, dev.Close())
	t.Cleanup(func() { must(t, unix.Unmount(host, 0)) })
	p, err := Open(Config{Dir: filepath.Join(host, "pool"), Mechanism: Loop})
	must(t, err)
	t.Cleanup(func() { must(t, p.Release(context.Background())) }) // the test's has ended

	ctx := t.Context()
	greedy, err := p.Make(ctx, "greedy", 1)
	must(t, err)
	other, err := p.Make(ctx, "other", 1)
	must(t, err)
	write(t, other, "note", "kept")
	if err := writeZeros(filepath.Join(greedy, "f"), 128<<20); err == nil {
		t.Error("more was written than the host has")
	}
	wantFile(t, other, "note", "kept")
	if _, err := p.Make(ctx, "late", 1); !errors.Is(err, ErrFull) {
		t.Errorf("a disk on a full host: %v", err)
	}
	must(t, p.Remove(ctx, "greedy"))
	write(t, other, "more", "there is room again")
	must(t, p.Remove(ctx, "late"))
	_, err = p.Make(ctx, "late", 1)
	must(t, err)
	for _, name := range []string{"late", "other"} {
		must(t, p.Remove(ctx, name))
	}
	wantNothing(t, p)
}

func writeZeros(path string, size int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	block := make([]byte, 1<<20)
	for ; size > 0 && err == nil; size -= len(block) {
		_, err = f.Write(block)
	}
	if err == nil {
		err = f.Sync()
	}
	return err
}

// TestHostileContentGoesWithTheDisk leaves on a disk what its removal could follow or stumble over.
func TestHostileContentGoesWithTheDisk(t *testing.T) {
	for _, k := range benchKinds {
		t.Run(k.name, func(t *testing.T) {
			p := openPool(t, k.mechanism, k.direct)
			outside := t.TempDir()
			write(t, outside, "precious", "kept")
			dir, err := p.Make(t.Context(), "d", 1)
			must(t, err)
			must(t, os.Symlink(outside, filepath.Join(dir, "link")))
			must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0))
			must(t, unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
			must(t, os.Mkdir(filepath.Join(dir, strings.Repeat("n", 255)), 0))
			must(t, os.WriteFile(filepath.Join(dir, "suid"), nil, 0o600))
			must(t, os.Chmod(filepath.Join(dir, "suid"), 0o755|os.ModeSetuid))
			at := dir
			for range 40 {
				at = filepath.Join(at, strings.Repeat("d", 80))
				must(t, os.Mkdir(at, 0o755))
			}
			must(t, os.Chmod(dir, 0))
			if k.direct { // device nodes and setuid programs are inert
				if _, err := os.Open(filepath.Join(dir, "null")); !errors.Is(err, unix.EACCES) {
					t.Errorf("a device of a persistent disk: %v", err)
				}
			}
			for range 2 {
				must(t, p.Remove(t.Context(), "d"))
			}
			wantFile(t, outside, "precious", "kept")
			for _, name := range []string{"", ".", "..", "../d", "a/b", ".loop", ".removed-d", strings.Repeat("n", 300)} {
				if _, err := p.Make(t.Context(), name, 1); err == nil {
					t.Errorf("a disk called %q", name)
				}
			}
		})
	}
}
