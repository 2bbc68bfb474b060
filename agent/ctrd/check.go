package ctrd

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"

	"gantry/agent/pod"
)

// userFiles are what runc reads of an image as it makes a container, with what they list.
func userFiles() map[string]string {
	return map[string]string{"/etc/passwd": "users", "/etc/group": "groups"}
}

// checkRoot refuses an image with which runc would wait or fail, whatever it is asked: what it reads of the image is no
// regular file of bounded size, or a file that every container gets cannot be put in its place.
func checkRoot(root string, s pod.ContainerSpec) error {
	for name := range userFiles() {
		fd, err := openList(root, name)
		if err != nil {
			return err
		}
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	for _, f := range smallFiles(s) {
		if err := checkPlace(root, f[0]); err != nil {
			return err
		}
	}
	return nil
}

// openList opens one of userFiles below root by its path alone; -1: there is none. It may be a pipe, which would be opened
// for ever, or a device, for which opening it may be an order: that is an error.
func openList(root, name string) (int, error) {
	fd, err := openInside(root, name)
	if err != nil || fd < 0 {
		return -1, err
	}
	list := "the image's list of " + userFiles()[name] + ", " + name + ", is "
	var st unix.Stat_t
	switch err = unix.Fstat(fd, &st); {
	case err != nil:
		err = fmt.Errorf("stat %s of the image: %w", name, err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = fatal(list+"no regular file", nil)
	case st.Size > maxUserFile:
		err = fatal(list+"larger than 4 MiB", nil)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openInside opens what a path below root leads to, with links as a process has them whose root that is, as a path
// alone. -1: it leads nowhere.
func openInside(root, name string) (int, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the image: %w", err)
	}
	defer unix.Close(dir)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	const tries = 100 // something was renamed meanwhile, somewhere on the host
	for range tries {
		var fd int
		if fd, err = unix.Openat2(dir, name, &how); !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			if absent(err) {
				return -1, nil
			}
			if err == nil {
				return fd, nil
			}
			break
		}
	}
	return -1, fmt.Errorf("open %s of the image: %w", name, err)
}

// absent reports whether an error says that a path leads to nothing; others say that it could not be told. A name that is
// too long can only be in a link.
func absent(err error) bool {
	for _, nothing := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG} {
		if errors.Is(err, nothing) {
			return true
		}
	}
	return false
}

// checkPlace refuses an image in which a file cannot be put at name: runc follows the image's links, and makes what is
// missing where they end.
func checkPlace(root, name string) error {
	const stands = "the image's files stand in the way of files that every container gets: "
	at, err := fs.RootPath(root, name)
	if err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) && !absent(err) {
			return fmt.Errorf("look where %s of the image leads: %w", name, err)
		}
		return fatal(stands+"the links of "+name+" lead nowhere", err)
	}
	inside := path.Join("/", strings.TrimPrefix(at, root))
	first, _, _ := strings.Cut(inside[1:], "/")
	if slices.Contains([]string{"dev", "proc", "sys"}, first) {
		return fatal(stands+name+" leads into /"+first, nil)
	}
	info, err := os.Lstat(at)
	switch {
	case absent(err):
		return nil
	case err != nil:
		return fmt.Errorf("look at %s of the image: %w", name, err)
	case info.IsDir():
		return fatal(stands+name+" is a folder", nil)
	}
	return nil
}

// smallFiles are the files that every container gets of its host, by where they are in it, in order.
func smallFiles(s pod.ContainerSpec) [][2]string {
	all := [][2]string{
		{"/etc/resolv.conf", s.ResolvConf}, {"/etc/hosts", s.Hosts}, {"/etc/hostname", s.HostnameTxt}, {profileFile, s.Profile},
	}
	return slices.DeleteFunc(all, func(f [2]string) bool { return f[1] == "" })
}
