package faultdisk

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// childVar makes this program one that works on a disk: a process that maps files of a file system which it serves
// itself would wait for itself.
const childVar = "GANTRY_FAULTDISK_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childVar); what != "" {
		if err := child(what, os.Args[1:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(what string, args []string) error {
	switch what {
	case "bolt": // commits numbers for ever, and says which are committed
		db, err := bbolt.Open(args[0], 0o600, &bbolt.Options{NoSync: args[1] == "nosync", InitialMmapSize: 16 << 20})
		if err != nil {
			return err
		}
		for i := uint64(1); ; i++ {
			err := db.Update(func(tx *bbolt.Tx) error {
				b, err := tx.CreateBucketIfNotExists([]byte("b"))
				if err != nil {
					return err
				}
				key := binary.BigEndian.AppendUint64(nil, i)
				return b.Put(key, bytes.Repeat(key, 64))
			})
			if err != nil {
				return err
			}
			fmt.Println(i)
		}
	case "check": // counts them, reading all pages through the map
		db, err := bbolt.Open(args[0], 0o600, nil)
		if err != nil {
			return err
		}
		return db.View(func(tx *bbolt.Tx) error {
			for err := range tx.Check() {
				return err
			}
			b, n := tx.Bucket([]byte("b")), uint64(0)
			if b != nil {
				err = b.ForEach(func(k, v []byte) error {
					if n++; binary.BigEndian.Uint64(k) != n || !bytes.Equal(v, bytes.Repeat(k, 64)) {
						return fmt.Errorf("row %d is damaged", n)
					}
					return nil
				})
			}
			fmt.Println(n)
			return err
		})
	case "write": // writes and syncs once
		return os.WriteFile(args[0], []byte("x"), 0o600)
	}
	return fmt.Errorf("unknown work %q", what)
}

func childCommand(what string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childVar+"="+what)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func newDisk(t *testing.T) *Disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	dir := t.TempDir()
	d, err := Mount(filepath.Join(dir, "disk"), filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// put writes a file in one write, and syncs it if told to.
func put(t *testing.T, path, text string, flags int, sync bool) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text)
	if sync && err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func syncDir(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func cut(t *testing.T, d *Disk) {
	t.Helper()
	if err := d.Cut(); err != nil {
		t.Fatal(err)
	}
}

// holds checks what a file reads as; nothing means that it is not there.
func holds(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		got, err = []byte("nothing"), nil
	}
	if err != nil || string(got) != want {
		t.Errorf("%s holds %q (%v), want %q", filepath.Base(path), got, err, want)
	}
}

func TestAPowerCutTakesWhatWasNotSynced(t *testing.T) {
	d := newDisk(t)
	at := func(name string) string { return filepath.Join(d.Dir, name) }
	put(t, at("synced"), "all of it", 0, true)
	put(t, at("never"), "lost", 0, false)
	put(t, at("tail"), "kept,", 0, true)
	put(t, at("tail"), "lost", os.O_APPEND, false)
	put(t, at("named"), "these bytes are lost", 0, false)
	put(t, at("old"), "a", 0, true)
	if err := os.Mkdir(at("dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, at("dir/deep"), "with its folder", 0, true)
	holds(t, at("tail"), "kept,lost")
	syncDir(t, d.Dir)
	if err := os.Rename(at("old"), at("new")); err != nil { // not synced
		t.Fatal(err)
	}

	cut(t, d)
	if want := int64(len("lost" + "lost" + "these bytes are lost")); d.Lost() != want {
		t.Errorf("%d bytes are lost, want %d", d.Lost(), want)
	}

	holds(t, at("synced"), "all of it")
	holds(t, at("never"), "") // the folder was synced, its bytes were not
	holds(t, at("tail"), "kept,")
	holds(t, at("named"), "")
	holds(t, at("old"), "a")
	holds(t, at("new"), "nothing")
	holds(t, at("dir/deep"), "with its folder")

	put(t, at("later"), "no sync at all", 0, false)
	put(t, at("synced"), "B", 0, true)
	if err := os.Remove(at("tail")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(at("old"), at("dir/moved")); err != nil {
		t.Fatal(err)
	}
	syncDir(t, d.Dir)
	syncDir(t, at("dir"))
	put(t, at("last"), "no sync at all", 0, false)
	cut(t, d)
	holds(t, at("synced"), "Bll of it")
	holds(t, at("tail"), "nothing")
	holds(t, at("dir/moved"), "a")
	holds(t, at("last"), "nothing")
	if names, err := os.ReadDir(d.Dir); err != nil || len(names) != 5 {
		t.Errorf("names %v, %v", names, err)
	}
}

func TestTruncationIsLostAndKeptLikeWrites(t *testing.T) {
	d := newDisk(t)
	path := filepath.Join(d.Dir, "f")
	put(t, path, "0123456789", 0, true)
	if err := os.Truncate(path, 4); err != nil {
		t.Fatal(err)
	}
	cut(t, d)
	holds(t, path, "0123456789")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []func() error{
		func() error { return f.Truncate(4) }, func() error { return f.Truncate(8) }, f.Sync, f.Close,
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	cut(t, d)
	holds(t, path, "0123\x00\x00\x00\x00")
	put(t, path, "ab", os.O_TRUNC, true)
	cut(t, d)
	holds(t, path, "ab")
}

// boltUntil commits until so many transactions are reported, kills the process and returns the last number.
func boltUntil(t *testing.T, path, mode string, least int) int {
	t.Helper()
	cmd := childCommand("bolt", path, mode)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Error(lines.Text())
			break
		}
		if last = n; last == least {
			break
		}
	}
	_ = cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	return last
}

func boltRows(t *testing.T, path string) int {
	t.Helper()
	out, err := childCommand("check", path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestADatabaseKeepsWhatItCommittedAndNoMore(t *testing.T) {
	d := newDisk(t)
	path := filepath.Join(d.Dir, "bolt.db")
	last := boltUntil(t, path, "sync", 200)
	if got := boltRows(t, path); got < last {
		t.Errorf("after the kill %d rows, %d were committed", got, last)
	}
	cut(t, d)
	if got := boltRows(t, path); last < 200 || got < last || got > last+1000 {
		t.Errorf("after the power cut %d rows, %d were committed", got, last)
	}

	loose := filepath.Join(d.Dir, "loose.db")
	last = boltUntil(t, loose, "nosync", 200)
	if got := boltRows(t, loose); got < last {
		t.Errorf("without sync, after the kill alone: %d rows of %d", got, last)
	}
	cut(t, d)
	if info, err := os.Stat(loose); err == nil && info.Size() > 0 && boltRows(t, loose) >= last {
		t.Error("commits without any sync survived a power cut")
	}
}

func TestAHangHoldsEveryCallAndLetsTheKilledGo(t *testing.T) {
	d := newDisk(t)
	path := filepath.Join(d.Dir, "f")
	put(t, path, "before", 0, true)
	d.Hang()
	cmd := childCommand("write", filepath.Join(d.Dir, "g"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		t.Fatalf("a write ended on a hung disk: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	_ = cmd.Process.Kill()
	select {
	case <-done: //nolint:errcheck // it was killed
	case <-time.After(10 * time.Second):
		t.Fatal("a killed process does not end")
	}
	d.Release()
	holds(t, path, "before")
	put(t, path, "after!", 0, true)
}

func TestAFullDiskRefusesAndRecovers(t *testing.T) {
	d := newDisk(t)
	path := filepath.Join(d.Dir, "f")
	put(t, path, "before", 0, true)
	d.Full(true)
	if err := os.WriteFile(filepath.Join(d.Dir, "g"), nil, 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a new file: %v", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write: %v", err)
	}
	holds(t, path, "before")
	d.Full(false)
	if _, err := f.WriteAt([]byte("B"), 0); err != nil {
		t.Error(err)
	}
	holds(t, path, "Before")
}

func TestItLiesAboutItsSpace(t *testing.T) {
	d := newDisk(t)
	var s syscall.Statfs_t
	d.Lie(96)
	if err := syscall.Statfs(d.Dir, &s); err != nil {
		t.Fatal(err)
	}
	if used := 100 - float64(s.Bavail)*100/float64(s.Blocks); used < 95.5 || used > 96.5 {
		t.Errorf("%.1f %% are used", used)
	}
	d.Lie(0)
	if err := syscall.Statfs(d.Dir, &s); err != nil || s.Bavail == 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestSlowSyncsAreSlow(t *testing.T) {
	d := newDisk(t)
	d.Slow(200 * time.Millisecond)
	began := time.Now()
	put(t, filepath.Join(d.Dir, "f"), "x", 0, true)
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("a sync took %v", took)
	}
	if d.Syncs() != 1 {
		t.Errorf("%d syncs", d.Syncs())
	}
}
