package pod

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDataIsMadeOnceAndClosedToOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "persistent")
	path, err := MakeData(dir, "p1")
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]fs.FileMode{dir: 0o700, path: 0o755} {
		if info, err := os.Stat(at); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", at, info.Mode(), err)
		}
	}
	writeTree(t, path, "kept")
	if again, err := MakeData(dir, "p1"); err != nil || again != path {
		t.Fatalf("again: %q, %v", again, err)
	}
	if _, err := os.Stat(filepath.Join(path, "kept")); err != nil {
		t.Error(err)
	}
	if ids, err := DataOf(dir); err != nil || len(ids) != 1 || ids[0] != "p1" {
		t.Errorf("data of %v, %v", ids, err)
	}
	if ids, err := DataOf(filepath.Join(dir, "none")); err != nil || len(ids) != 0 {
		t.Errorf("data of %v, %v", ids, err)
	}
}

// TestRemoveDataTakesHostileTrees removes what a tenant could leave, and nothing that it points at.
func TestRemoveDataTakesHostileTrees(t *testing.T) {
	root := t.TempDir()
	dir, outside := filepath.Join(root, "persistent"), filepath.Join(root, "outside")
	must(t, os.Mkdir(outside, 0o755))
	writeTree(t, outside, "precious")
	path, err := MakeData(dir, "p1")
	must(t, err)
	_, err = MakeData(dir, "p2")
	must(t, err)
	must(t, os.Symlink(outside, filepath.Join(path, "link")))
	must(t, os.Symlink("../../outside", filepath.Join(path, "relative")))
	must(t, os.Mkdir(filepath.Join(path, "locked"), 0o000))
	must(t, os.Mkdir(filepath.Join(path, "locked", "inner"), 0o000))
	must(t, unix.Mkfifo(filepath.Join(path, "fifo"), 0o600))
	sock, err := net.Listen("unix", filepath.Join(path, "s"))
	must(t, err)
	sock.(*net.UnixListener).SetUnlinkOnClose(false)
	must(t, sock.Close())
	for i := range 3000 { // more than one read of a folder gives, with names like those of moved folders
		must(t, os.Mkdir(filepath.Join(path, strconv.Itoa(i)), 0o755))
		writeTree(t, filepath.Join(path, strconv.Itoa(i)), "f")
	}
	deep(t, filepath.Join(path, "deep"), 5000)
	for range 2 {
		must(t, RemoveData(t.Context(), dir, "p1"))
	}
	if ids, err := DataOf(dir); err != nil || len(ids) != 1 || ids[0] != "p2" {
		t.Errorf("left: %v, %v", ids, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
		t.Error("a link was followed:", err)
	}
}

func TestRemoveDataGoesOnAfterAnInterruption(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "persistent")
	path, err := MakeData(dir, "p1")
	must(t, err)
	deep(t, filepath.Join(path, "deep"), 20)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := RemoveData(ended, dir, "p1"); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a folder whose removal began keeps its name:", err)
	}
	if ids, err := DataOf(dir); err != nil || len(ids) != 1 || ids[0] != "p1" {
		t.Errorf("data of %v, %v", ids, err)
	}
	// The same id, wanted again meanwhile, starts empty; both go.
	path, err = MakeData(dir, "p1")
	must(t, err)
	writeTree(t, path, "new")
	must(t, RemoveData(t.Context(), dir, "p1"))
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestRemoveDataEntersNoMount(t *testing.T) {
	root := t.TempDir()
	dir, outside := filepath.Join(root, "persistent"), filepath.Join(root, "outside")
	must(t, os.Mkdir(outside, 0o755))
	writeTree(t, outside, "precious")
	path, err := MakeData(dir, "p1")
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(path, "a", "mnt"), 0o755))
	must(t, unix.Mount(outside, filepath.Join(path, "a", "mnt"), "", unix.MS_BIND, ""))
	err = RemoveData(t.Context(), dir, "p1")
	mounted := filepath.Join(dir, removed+"p1", "a", "mnt")
	if uerr := unix.Unmount(mounted, 0); uerr != nil {
		must(t, unix.Unmount(filepath.Join(path, "a", "mnt"), 0))
	}
	if err == nil {
		t.Error("a folder with a mount in it was removed")
	}
	if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
		t.Error("the mount was entered:", err)
	}
	must(t, RemoveData(t.Context(), dir, "p1"))
}

// deep makes a chain of folders, each in the one before.
func deep(t *testing.T, path string, levels int) {
	t.Helper()
	must(t, os.Mkdir(path, 0o755))
	at, err := os.Open(path)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(int(at.Fd()), "d", 0o755))
		fd, err := unix.Openat(int(at.Fd()), "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, at.Close())
		at = os.NewFile(uintptr(fd), "d")
	}
	must(t, at.Close())
}

func writeTree(t *testing.T, dir, name string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
