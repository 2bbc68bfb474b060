package nfslab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelPackage depends on the newest kernel of its kind.
const kernelPackage = "linux-image-amd64"

// unpacked are Debian packages whose programs run in the guest, with the libraries that a machine may lack.
var unpacked = []string{
	"nfs-kernel-server", "libtirpc3", "libtirpc-common", "libevent-core-2.1-7", "libwrap0", "libnsl2", "libsqlite3-0", "libcap2",
	"libblkid1", "libuuid1", "libgssapi-krb5-2", "libkrb5-3", "libk5crypto3", "libkrb5support0", "libkeyutils1", "libcom-err2",
	"xfsprogs", "libinih1", "liburcu8", "ibverbs-utils", "ibverbs-providers", "libibverbs1", "libnl-3-200", "libnl-route-3-200",
}

// packages returns the folder into which the packages are unpacked. They are downloaded once; nothing is installed.
func packages(ctx context.Context, cache string) (string, error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", cache, err)
	}
	root, stamp := filepath.Join(cache, "root"), filepath.Join(cache, "stamp")
	want := strings.Join(append([]string{kernelPackage}, unpacked...), "\n")
	if have, err := os.ReadFile(stamp); err == nil && string(have) == want {
		return root, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, old := range []string{stamp, root} {
		if err := os.RemoveAll(old); err != nil {
			return "", err
		}
	}
	if err := fill(ctx, root); err != nil {
		return "", fmt.Errorf("packages of the guest: %w", err)
	}
	return root, os.WriteFile(stamp, []byte(want), 0o644)
}

// fill downloads and unpacks. The lists of packages may be old, so that it tries a second time with new ones.
func fill(ctx context.Context, root string) error {
	dir, err := os.MkdirTemp("", "nfslab-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := download(ctx, dir); err != nil {
		if _, err1 := output(ctx, dir, "apt-get", "-qq", "-o", "Acquire::Retries=3", "update"); err1 != nil {
			return errors.Join(err, err1)
		}
		if err := download(ctx, dir); err != nil {
			return err
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	if len(files) != len(unpacked)+1 {
		return fmt.Errorf("apt-get downloaded %v", files)
	}
	for _, file := range files {
		if _, err := output(ctx, dir, "dpkg-deb", "-x", file, root); err != nil {
			return err
		}
	}
	return nil
}

func download(ctx context.Context, dir string) error {
	out, err := output(ctx, dir, "apt-cache", "depends", "--important", kernelPackage)
	if err != nil {
		return err
	}
	_, kernel, ok := strings.Cut(out, "Depends: ")
	if !ok {
		return fmt.Errorf("no package %s is known", kernelPackage)
	}
	kernel, _, _ = strings.Cut(kernel, "\n")
	args := append([]string{"-qq", "-o", "Acquire::Retries=3", "-o", "APT::Sandbox::User=", "download", strings.TrimSpace(kernel)}, unpacked...)
	_, err = output(ctx, dir, "apt-get", args...)
	return err
}

// output runs a program in a folder and returns what it wrote to its standard output.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	var out, fault bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &fault
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(name), err, strings.TrimSpace(fault.String()))
	}
	return out.String(), nil
}
