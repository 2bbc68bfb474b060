package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/internal/ipc"
)

// mountIn is a backend with what is secret of it, and where to mount it.
type mountIn struct {
	Kind       fleet.BackendKind
	Server     string
	Options    string
	Monitors   []string
	FileSystem string
	User       string
	Key        string
	Path       string
	At         string
}

// mountBackend mounts the root of a backend at a folder that exists.
func mountBackend(ctx context.Context, in mountIn) (none, error) {
	var err error
	switch {
	case in.Kind == fleet.BackendNFS:
		err = mountNFS(ctx, in)
	case in.Kind == fleet.BackendCeph && kernelHas(ctx, "ceph", "ceph"):
		err = mountCeph(ctx, in)
	case in.Kind == fleet.BackendCeph:
		err = startCephFuse(ctx, in)
	default:
		err = fmt.Errorf("mount a backend of kind %q: %w", in.Kind, unix.ENODEV)
	}
	if errors.Is(err, unix.ENOENT) {
		err = ipc.Mark(kindMarker, err) // the server has no such root
	}
	return none{}, err
}

// newProtocol is for monitors that speak only the newer one, as those of port 3300 do.
const newProtocol = ",ms_mode=prefer-crc"

// mountCeph mounts with the kernel's client (mount.ceph(8)).
func mountCeph(ctx context.Context, in mountIn) error {
	var monitors []string
	mode := ""
	for _, m := range in.Monitors {
		if rest, ok := strings.CutPrefix(strings.Trim(m, "[]"), "v2:"); ok { // Ceph's own way to write it
			m, mode = strings.TrimSuffix(rest, "/0"), newProtocol
		}
		host, port, err := net.SplitHostPort(m)
		if err != nil {
			return fmt.Errorf("mount Ceph: monitor: %w", err)
		}
		if port == "3300" {
			mode = newProtocol
		}
		addr, err := resolve(ctx, host)
		if err != nil {
			return err
		}
		monitors = append(monitors, net.JoinHostPort(addr, port))
	}
	data := "name=" + in.User + ",secret=" + in.Key + ",recover_session=clean" + mode
	if in.FileSystem != "" {
		data += ",mds_namespace=" + in.FileSystem
	}
	err := unix.Mount(strings.Join(monitors, ",")+":"+in.Path, in.At, "ceph", unix.MS_NODEV|unix.MS_NOSUID, data)
	if err != nil {
		return fmt.Errorf("mount Ceph: %w", err)
	}
	return nil
}

// cephConf is the configuration of a client in user space. The kernel checks permissions, since Ceph's own check
// knows nothing of user namespaces. Nothing is logged or made outside of the folder.
//
// A session that the cluster has ended is not begun anew ("client reconnect stale"): the mount fails from then on and is made
// anew for the next pod. A client that did so would end a good session too, when a metadata server starts again at its old
// address before the monitors have told of it; the server would keep all clients waiting for this one for 45 s and put it
// on the blocklist, and the mount would not answer any more.
const cephConf = `[global]
	mon host = %s
	keyring = %s
	log file = /dev/null
	log to stderr = false
	admin socket =
	run dir = %s
	crash dir = %s/crash
	client mountpoint = %s
	client permissions = false
	fuse default permissions = true
	client mount timeout = %d
	client shutdown timeout = %d
`

// startCephFuse mounts with the client in user space, a daemon of its own that goes on when this process ends. It
// ends with the last of its mounts.
func startCephFuse(ctx context.Context, in mountIn) (err error) {
	if !hasCephFuse(ctx) {
		return fmt.Errorf("mount Ceph: there is neither the kernel's client nor ceph-fuse: %w", unix.ENODEV)
	}
	for _, text := range append([]string{in.FileSystem, in.User, in.Key, in.Path}, in.Monitors...) {
		if strings.ContainsAny(text, "\n\r#;") {
			return fmt.Errorf("mount Ceph: a setting has a character that cannot be written down: %w", unix.EINVAL)
		}
	}
	conf, keyring, dir := in.At+confSuffix, in.At+keyringSuffix, filepath.Dir(in.At)
	wait, end := 10, 5 // seconds until it gives up, and how much longer that may take
	if deadline, ok := ctx.Deadline(); ok {
		left := int(time.Until(deadline).Seconds())
		wait, end = max(min(wait, left/2), 1), max(min(end, left/4), 1)
	}
	text := fmt.Sprintf(cephConf, strings.Join(in.Monitors, ","), keyring, dir, dir, in.Path, wait, end)
	if in.FileSystem != "" {
		text += "\tclient fs = " + in.FileSystem + "\n"
	}
	defer func() { err = errors.Join(err, removeAll(conf, keyring)) }() // the daemon has read them
	if err := os.WriteFile(keyring, fmt.Appendf(nil, "[client.%s]\n\tkey = %s\n", in.User, in.Key), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("ceph-fuse", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	said := os.NewFile(uintptr(fd), "output of ceph-fuse")
	defer func() { _ = said.Close() }() // it is gone then
	cmd := exec.CommandContext(ctx, "ceph-fuse", "--conf", conf, "--name", "client."+in.User, in.At)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("mount Ceph: %w", cephError(ctx, said, err))
	}
	return nil
}

// Files beside the folder of a mount, while it is made.
const (
	confSuffix    = ".conf"
	keyringSuffix = ".keyring"
)

func removeAll(paths ...string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// cephError finds out what ceph-fuse meant.
func cephError(ctx context.Context, said io.ReadSeeker, err error) error {
	_, serr := said.Seek(0, io.SeekStart)
	text, rerr := io.ReadAll(io.LimitReader(said, 4<<10))
	if serr != nil || rerr != nil {
		return errors.Join(err, serr, rerr)
	}
	errno := unix.EIO
	switch words := string(text); {
	case ctx.Err() != nil, strings.Contains(words, "(110)"):
		errno = unix.ETIMEDOUT
	case strings.Contains(words, "handle_auth_bad_method"), strings.Contains(words, "(1)"), strings.Contains(words, "(13)"):
		errno = unix.EACCES
	case strings.Contains(words, "(2)"):
		errno = unix.ENOENT
	case strings.Contains(words, "fetch mon config"):
		errno = unix.ETIMEDOUT // no monitor answered
	}
	return fmt.Errorf("%w: %w", errno, err)
}

type daemonsIn struct {
	Folder string // of a backend, or of all: daemons whose mount point is below it
	Kill   bool
	Abort  []string // connections to end: the minor numbers of what is mounted
}

// daemons returns the process ids of the clients in user space, after it killed them if it is to. It looks only into those of that name:
// the command line of a process that hangs cannot be read.
func daemons(_ context.Context, in daemonsIn) ([]int, error) {
	if err := abort(in.Abort); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	out := []int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0) // before it is looked at: the number may become another's
		if err != nil {
			continue
		}
		if isDaemon(pid, in.Folder) {
			out = append(out, pid)
			if in.Kill {
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // it may have ended
			}
		}
		_ = unix.Close(fd)
	}
	return out, nil
}

// abort ends connections to clients in user space, so that who waits for one goes on. The end of the client does not: the program
// mount, which it starts to empty the kernel's cache, has its end of the connection too, and may wait for it.
func abort(connections []string) error {
	if len(connections) == 0 {
		return nil
	}
	fs, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("fsopen", err)
	}
	defer func() { _ = unix.Close(fs) }() // nothing is written to it
	if err := unix.FsconfigCreate(fs); err != nil {
		return os.NewSyscallError("fsconfig", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fsmount", err)
	}
	defer func() { _ = unix.Close(root) }() // the mount is nowhere else
	var errs []error
	for _, id := range connections {
		fd, err := unix.Openat(root, filepath.Join(id, "abort"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			_, err = unix.Write(fd, []byte("1"))
			_ = unix.Close(fd) // the write says all
		}
		if err != nil && !errors.Is(err, unix.ENOENT) { // it has ended
			errs = append(errs, fmt.Errorf("end the connection to a client: %w", err))
		}
	}
	return errors.Join(errs...)
}

func isDaemon(pid int, folder string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil || strings.TrimSpace(string(comm)) != "ceph-fuse" {
		return false
	}
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return false
	}
	args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	return strings.HasPrefix(args[len(args)-1], folder+"/")
}
