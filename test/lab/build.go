package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// builds is how many versions of the packages there are: the second is what an upgrade brings, from the same sources.
const builds = 2

// debs is the folder with the packages of a build.
func (l *lab) debs(build int) string { return filepath.Join(l.cache, fmt.Sprintf("debs-%d", build)) }

// startBuilds makes the packages beside whatever else happens, the first build first. The function that it returns waits for the end.
func (l *lab) startBuilds(ctx context.Context) (wait func()) {
	ended := make(chan struct{})
	for n := range l.built {
		l.built[n] = make(chan error, 1)
	}
	go func() {
		defer close(ended)
		for n, built := range l.built {
			built <- l.build(ctx, n+1)
		}
	}()
	return func() { <-ended }
}

// packages sees to it that the packages of a build are there: those that are being made, or else what is in the folder.
func (l *lab) packages(ctx context.Context, build int) error {
	if built := l.built[build-1]; built != nil {
		select {
		case err := <-built:
			built <- err // for whoever asks again
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if _, err := os.Stat(l.debs(build)); err == nil {
		return nil
	}
	return l.build(ctx, build)
}

// repack packs packages so that an emulated processor unpacks them in a tenth of the time. What is in them stays as it is.
const repack = `cd "$1"
for deb in *.deb; do
	dpkg-deb -R "$deb" tree
	dpkg-deb --root-owner-group -Zzstd -z3 --build tree "$deb"
	rm -r tree
done`

// build makes the packages of the working tree by the script of `make deb`, for this architecture, unless it is as committed and they are there from a
// run before. The second build gets what time is left.
func (l *lab) build(ctx context.Context, build int) error {
	version, err := l.next(ctx, build)
	if err != nil {
		return err
	}
	changes, err := l.local(ctx, "ask for changes", l.root, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if there, err := l.version(build); err == nil && there == version && changes == "" {
		l.log("the packages of version %s are there", version)
		return nil
	}
	if err := os.RemoveAll(l.debs(build)); err != nil {
		return err
	}
	half, nice := l.debs(build)+".new", 19*(build-1)
	err = l.apart(ctx, nice, "env", "DEB_XZ=0", "DEB_OUT="+half, "DEB_VERSION="+version, "VERSION="+version, "scripts/deb.sh", "amd64")
	if err == nil {
		err = l.apart(ctx, nice, "bash", "-euc", repack, "_", half)
	}
	if err != nil {
		return err
	}
	l.log("the packages of version %s are built", version)
	return os.Rename(half, l.debs(build))
}

// apart runs a program of this machine in a session of its own, which the kernel gives time as its niceness says, and ends all of it with ctx.
func (l *lab) apart(ctx context.Context, nice int, args ...string) error {
	script := `echo "$0" 2>/dev/null >/proc/self/autogroup || true; exec nice -n "$0" "$@"`
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-c", script, strconv.Itoa(nice)}, args...)...)
	cmd.Dir = l.root
	wholly(cmd)
	_, err := l.exec(cmd, strings.Join(args, " "), io.Discard)
	return err
}

// next is the version that a build gets: the working tree's, and for the second one a version after that of the first.
func (l *lab) next(ctx context.Context, build int) (string, error) {
	if build > 1 {
		version, err := l.version(build - 1)
		return version + fmt.Sprintf("+lab%d", build), err
	}
	text, err := l.local(ctx, "ask for the version", l.root, "scripts/deb.sh", "--version")
	return strings.TrimSpace(text), err
}

// version is what the packages and programs of a build say of themselves.
func (l *lab) version(build int) (string, error) {
	found, err := filepath.Glob(filepath.Join(l.debs(build), "gantry_*_*.deb"))
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s has not one package gantry, but %q", l.debs(build), found)
	}
	return strings.Split(filepath.Base(found[0]), "_")[1], nil
}
