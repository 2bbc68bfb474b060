package atomicfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"gantry/test/chaos/faultdisk"
)

const childVar = "GANTRY_ATOMICFILE_CHILD" // how many steps a child of this test does before it kills itself

var (
	older = bytes.Repeat([]byte("old "), 100_000)
	newer = bytes.Repeat([]byte("new, and longer "), 100_000)
)

func TestMain(m *testing.M) {
	if text := os.Getenv(childVar); text != "" {
		left, err := strconv.Atoi(text)
		step := func() {
			if left--; left < 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
		name := os.Rename
		if os.Args[1] == "create" {
			name = os.Link
		}
		err = errors.Join(err, put(file{path: os.Args[2], data: newer, mode: 0o600, uid: -1, gid: -1, name: name, step: step}))
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestKilledWriteLeavesOldOrNew kills a writer before each of its steps, and then cuts the power.
func TestKilledWriteLeavesOldOrNew(t *testing.T) {
	for _, how := range []string{"write", "create"} {
		t.Run(how, func(t *testing.T) {
			had := map[string]bool{}
			for steps := 0; ; steps++ {
				after, done := killed(t, how, steps)
				had[after] = true
				if done {
					if after != "new" || steps < 5 || !had["old"] {
						t.Errorf("after %d steps, all of them, the file is %s; before: %v", steps, after, had)
					}
					return
				}
			}
		})
	}
}

// killed lets a child write that ends itself after some steps, and says what the file holds after a power cut.
func killed(t *testing.T, how string, steps int) (after string, done bool) {
	t.Helper()
	dir := t.TempDir()
	disk, err := faultdisk.Mount(filepath.Join(dir, "disk"), filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(disk.Dir, "file")
	if how == "write" {
		if err := Write(path, older, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], how, path)
	cmd.Env = append(os.Environ(), childVar+"="+strconv.Itoa(steps))
	switch err := cmd.Run(); {
	case err == nil:
		done = true
	case cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL:
		t.Fatal(err)
	}
	if now := holds(t, path, how); done && now != "new" {
		t.Errorf("the writer has ended and the file is %s", now)
	}
	if err := disk.Cut(); err != nil {
		t.Fatal(err)
	}
	after = holds(t, path, how)
	if how == "write" { // the next writer is not kept from it
		if err := Write(path, newer, 0o600); err != nil || holds(t, path, how) != "new" {
			t.Errorf("after %d steps the next write: %v", steps, err)
		}
	}
	return after, done
}

func holds(t *testing.T, path, how string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	switch {
	case how == "create" && errors.Is(err, fs.ErrNotExist):
		return "old" // there was none
	case err != nil:
		t.Fatal(err)
	case bytes.Equal(text, newer):
		return "new"
	case !bytes.Equal(text, older):
		t.Fatalf("%d bytes that are neither the old file nor the new one", len(text))
	}
	return "old"
}

func TestWriteReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, data := range []string{"first and longer", "second"} {
		if err := Write(path, []byte(data), 0o640); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != data {
			t.Errorf("read %q, %v", got, err)
		}
	}
	if err := Write(filepath.Join(dir, "none", "f"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("into a missing folder: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "d"), nil, 0o600); err == nil {
		t.Error("replaced a folder")
	}
	if err := Create(path, []byte("third"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("created what is there: %v", err)
	}
	if err := Create(filepath.Join(dir, "c"), nil, 0o600); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 || info.Size() != int64(len("second")) {
		t.Errorf("%v, %v", info, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 3 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestWriteOwnedGivesTheFileAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := WriteOwned(path, []byte("x"), 0o400, 1234, 1235); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if of := info.Sys().(*syscall.Stat_t); of.Uid != 1234 || of.Gid != 1235 || info.Mode() != 0o400 {
		t.Errorf("user %d, group %d, mode %v", of.Uid, of.Gid, info.Mode())
	}
}
