package main

import (
	"context"
	"fmt"
	"os"
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

// build makes the packages of the working tree by the script of `make deb`, for this architecture. The second build gets what time is left.
func (l *lab) build(ctx context.Context, build int) error {
	if err := os.RemoveAll(l.debs(build)); err != nil {
		return err
	}
	version, err := l.version(ctx, build)
	if err != nil {
		return err
	}
	half := l.debs(build) + ".new"
	nice := strconv.Itoa(19 * (build - 1))
	args := []string{"nice", "-n", nice, "env", "DEB_XZ=0", "DEB_OUT=" + half, "DEB_VERSION=" + version, "VERSION=" + version, "scripts/deb.sh", "amd64"}
	if _, err := l.local(ctx, strings.Join(args, " "), l.root, args[0], args[1:]...); err != nil {
		return err
	}
	if _, err := l.local(ctx, repack, "", "nice", "-n", nice, "bash", "-euc", repack, "_", half); err != nil {
		return err
	}
	l.log("the packages of version %s are built", version)
	return os.Rename(half, l.debs(build))
}

// version is what the programs and packages of a build say of themselves.
func (l *lab) version(ctx context.Context, build int) (string, error) {
	text, err := l.local(ctx, "ask for the version", l.root, "scripts/deb.sh", "--version")
	if err != nil {
		return "", err
	}
	version := strings.TrimSpace(text)
	if build > 1 {
		version += fmt.Sprintf("+lab%d", build)
	}
	return version, nil
}
