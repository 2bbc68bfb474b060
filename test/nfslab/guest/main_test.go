//go:build guest

package guest

import (
	"context"
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

	"golang.org/x/sys/unix"

	"gantry/test/nfslab/nfsserver"
)

const (
	exported = "rw,no_root_squash,no_subtree_check,crossmnt,fsid=77"
	idBase   = 0x8000_0000 // of a volume: root in its pods
	otherID  = 0x8001_0000 // of another one
)

// TestMain also runs what a test wants done by another process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "do" {
		if err := do(os.Args[2:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// do does what its arguments say, one after the other.
func do(args []string) error {
	for _, arg := range args {
		verb, rest, _ := strings.Cut(arg, " ")
		if err := deeds[verb](strings.Fields(rest)); err != nil {
			return fmt.Errorf("%s: %w", arg, err)
		}
	}
	return nil
}

var deeds = map[string]func(args []string) error{
	"statfs": func(a []string) error { return unix.Statfs(a[0], new(unix.Statfs_t)) },
	"write":  func(a []string) error { return os.WriteFile(a[0], []byte("text"), 0o640) },
	"remove": func(a []string) error { return os.Remove(a[0]) },
	"fill": func(a []string) error {
		n, err := strconv.Atoi(a[1])
		return errors.Join(err, os.WriteFile(a[0], make([]byte, n), 0o600))
	},
	"allocate": func(a []string) error {
		n, err := strconv.ParseInt(a[1], 10, 64)
		if err != nil {
			return err
		}
		f, err := os.Create(a[0])
		if err != nil {
			return err
		}
		return errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, n), f.Close())
	},
	"read": func(a []string) error { _, err := os.ReadFile(a[0]); return err },
	"list": func(a []string) error { _, err := os.ReadDir(a[0]); return err },
	"chown": func(a []string) error {
		id, err := strconv.Atoi(a[1])
		return errors.Join(err, os.Chown(a[0], id, id))
	},
	"user": func(a []string) error {
		id, err := strconv.Atoi(a[0])
		return errors.Join(err, syscall.Setgid(id), syscall.Setuid(id)) // of all threads
	},
	"hold":   hold,
	"lines":  lines,
	"follow": follow,
}

// lines appends so many numbered lines, with an fsync each.
func lines(a []string) error {
	f, err := os.OpenFile(a[0], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(a[1])
	for i := 0; i < n && err == nil; i++ {
		_, err = fmt.Fprintln(f, i)
		if err == nil {
			err = f.Sync()
		}
	}
	return errors.Join(err, f.Close())
}

// hold has a file open for writing until its input ends.
func hold(a []string) error {
	f, err := os.Create(a[0])
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.ReadAll(os.Stdin)
	return err
}

// follow creates files, says each, and says why it stopped.
func follow(a []string) error {
	for i := 0; ; i++ {
		f, err := os.Create(filepath.Join(a[0], strconv.Itoa(i)))
		if err != nil {
			return err
		}
		_, err = f.WriteString("x")
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		fmt.Println("wrote", i)
	}
}

// deed is a process that does something.
type deed struct {
	cmd *exec.Cmd
	end chan error
	out strings.Builder
	in  io.Closer
}

// begin starts a process; attr may put it into namespaces.
func begin(t testing.TB, attr *unix.SysProcAttr, args ...string) *deed {
	t.Helper()
	d := &deed{end: make(chan error, 1)}
	d.cmd = exec.Command("/proc/self/exe", append([]string{"do"}, args...)...)
	d.cmd.SysProcAttr, d.cmd.Stdout, d.cmd.Stderr = attr, &d.out, &d.out
	in, err := d.cmd.StdinPipe() // held open until the process has ended or end is called
	must(t, err)
	d.in = in
	must(t, d.cmd.Start())
	go func() {
		err := d.cmd.Wait()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(d.out.String()))
		}
		d.end <- err
	}()
	t.Cleanup(func() { _ = d.cmd.Process.Kill() })
	return d
}

// within waits for the end of the process.
func (d *deed) within(t testing.TB, limit time.Duration) error {
	t.Helper()
	select {
	case err := <-d.end:
		return err
	case <-time.After(limit):
		t.Fatalf("%v has not ended after %v", d.cmd.Args[2:], limit)
		return nil
	}
}

// hangs checks that the process does not end, and that it can be killed nevertheless.
func (d *deed) hangs(t testing.TB, long time.Duration) {
	t.Helper()
	select {
	case err := <-d.end:
		t.Fatalf("%v ended: %v", d.cmd.Args[2:], err)
	case <-time.After(long):
	}
	must(t, d.cmd.Process.Kill())
	if err := d.within(t, 5*time.Second); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v ended with %v", d.cmd.Args[2:], err)
	}
}

// try does something in another process, and checks how it ends: with a text that has want in it, or well.
func try(t testing.TB, attr *unix.SysProcAttr, want string, args ...string) {
	t.Helper()
	err := begin(t, attr, args...).within(t, 20*time.Second)
	switch {
	case want == "" && err != nil:
		t.Errorf("%v: %v", args, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%v: %v, want %q", args, err, want)
	}
}

// inUserNamespace has ids 0 to 65535 at base, as a pod of a volume, and mounts of its own.
func inUserNamespace(base int) *unix.SysProcAttr {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: base, Size: 65536}}
	return &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{}}
}

// disk mounts a new file system of a size that takes no room.
func disk(t testing.TB, at string, size int64, kind, data string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, size))
	run(t, "mkfs."+kind, "-q", image)
	must(t, os.MkdirAll(at, 0o755))
	mountImage(t, image, at, kind, data)
	t.Cleanup(func() { gone(at) })
}

// mount mounts the server's folder by one system call.
func mount(t testing.TB, dir string) string {
	t.Helper()
	at := t.TempDir()
	must(t, unix.Mount(nfsserver.Addr+":"+dir, at, "nfs4", unix.MS_NOSUID|unix.MS_NODEV, nfsserver.Options))
	t.Cleanup(func() { gone(at) })
	return at
}

// gone unmounts whatever is there.
func gone(at string) {
	for unix.Unmount(at, unix.MNT_DETACH) == nil {
	}
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in time: ", what)
		}
	}
}

// mountImage mounts a file on loop; the loop device ends with the mount.
func mountImage(t testing.TB, image, at, kind, data string) {
	t.Helper()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	must(t, err)
	defer func() { _ = ctl.Close() }()
	n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
	must(t, err)
	name := "/dev/loop" + strconv.Itoa(n)
	dev, err := os.OpenFile(name, os.O_RDWR, 0)
	must(t, err)
	defer func() { _ = dev.Close() }()
	back, err := os.OpenFile(image, os.O_RDWR, 0)
	must(t, err)
	defer func() { _ = back.Close() }()
	must(t, unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{Fd: uint32(back.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}))
	must(t, unix.Mount(name, at, kind, 0, data))
}
