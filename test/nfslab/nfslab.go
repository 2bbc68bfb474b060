package nfslab

import (
	"bufio"
	"cmp"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Binary is the tests of one package that run in the guest.
type Binary struct {
	// Package is the package's path below the module, as "storage/disk".
	Package string
	// Run is the regular expression of -test.run.
	Run string
	// Timeout is how long its tests may take; 0: 90 seconds.
	Timeout time.Duration
}

// Guest says what runs in one guest.
type Guest struct {
	Binaries []Binary
	// Deadline is how long the guest may live, from its start; 0: four minutes.
	Deadline time.Duration
}

// tools are the programs in the guest, of this machine or of the packages that are unpacked for it.
var tools = []string{
	"exportfs", //nolint:misspell // the program's name
	"rpc.mountd", "nfsdcld", "mkfs.xfs", "mkfs.ext4", "resize2fs", "e2fsck", "tune2fs",
	"ip", "rdma", "runc", "ibv_rc_pingpong", "ibv_devinfo", "containerd", "containerd-shim-runc-v2", "nft", "busybox",
}

// ours are this module's programs in the guest's /gantry/bin.
var ours = []string{"gantry", "gantry-agent", "gantry-logger", "gantry-net", "gantry-scheduler"}

// Run builds the tests with the tag guest, starts a guest and runs them there; each package is a test below t. It needs
// QEMU, a Go compiler and, the first time, Debian's packages.
func Run(t *testing.T, g Guest) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Fatalf("the guest is an amd64 machine with this machine's programs, and this is %s", runtime.GOARCH)
	}
	began := time.Now()
	root := moduleRoot(t)
	system, err := packages(t.Context(), filepath.Join(root, ".bin/nfslab"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	initrd := filepath.Join(dir, "initrd")
	if err := build(t, root, dir, system, initrd, g.Binaries); err != nil {
		t.Fatal("build the guest: ", err)
	}
	kernel, err := filepath.Glob(filepath.Join(system, "boot/vmlinuz-*"))
	if err != nil || len(kernel) != 1 {
		t.Fatalf("kernels of the guest: %v, %v", kernel, err)
	}
	deadline := g.Deadline
	if deadline == 0 {
		deadline = 4 * time.Minute
	}
	built := time.Now()
	m, err := start(t.Context(), kernel[0], initrd, deadline)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.end(); err != nil || t.Failed() {
			t.Errorf("the guest: %v; its console:\n%s", err, m.console())
		}
	}()
	lines := bufio.NewScanner(m.line)
	lines.Buffer(nil, 1<<20)
	if !listen(t, lines, upLine) {
		return
	}
	t.Logf("built in %.1f s, up in %.1f s", built.Sub(began).Seconds(), time.Since(built).Seconds())
	for _, b := range g.Binaries {
		t.Run(b.Package, func(t *testing.T) { listen(t, lines, exitLine) })
	}
	t.Logf("ran for %.1f s in all", time.Since(built).Seconds())
}

var (
	upLine   = regexp.MustCompile(`^@@ (up)$`)
	exitLine = regexp.MustCompile(`^@@ exit ([0-9]+)$`)
)

// listen copies what the guest says until it says that what was waited for has happened, and fails when that did not go well.
func listen(t *testing.T, lines *bufio.Scanner, until *regexp.Regexp) bool {
	for lines.Scan() {
		text := strings.TrimRight(lines.Text(), "\r")
		if m := until.FindStringSubmatch(text); m != nil {
			if status, err := strconv.Atoi(m[1]); err == nil && status != 0 {
				t.Errorf("the tests ended with %d", status)
			}
			return true
		}
		if strings.HasPrefix(text, "@@ ") || strings.Contains(text, "no tests to run") {
			t.Error(text)
		}
		if text != "" {
			_, _ = io.WriteString(t.Output(), text+"\n")
		}
	}
	t.Errorf("the guest ended before this: %v", errors.Join(lines.Err(), io.ErrUnexpectedEOF))
	return false
}

// build makes the archive that is the guest's system.
func build(t *testing.T, root, dir, system, initrd string, binaries []Binary) error {
	if err := compile(t, root, filepath.Join(dir, "init"), "build", "./test/nfslab/init"); err != nil {
		return err
	}
	out, err := os.Create(initrd)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	a := newArchive(out)
	skeleton(a)
	a.add("/init", filepath.Join(dir, "init"), 0o755)
	var plan [][]string
	for _, b := range binaries {
		name := strings.ReplaceAll(b.Package, "/", "-") + ".test"
		if err := compile(t, root, filepath.Join(dir, name), "test", "-c", "-tags", "guest", "./"+b.Package); err != nil {
			return err
		}
		a.add("/tests/"+name, filepath.Join(dir, name), 0o755)
		plan = append(plan, []string{"/tests/" + name, "-test.v", "-test.count=1", "-test.timeout=" + cmp.Or(b.Timeout, 90*time.Second).String(), "-test.run", b.Run})
	}
	text, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	a.text("/plan", string(text))
	if err := addOurs(t, a, root, dir); err != nil {
		return err
	}
	mods, err := filepath.Glob(filepath.Join(system, "lib/modules/*/kernel"))
	if err != nil || len(mods) != 1 {
		return fmt.Errorf("modules of the kernel: %v, %w", mods, errors.Join(err, fs.ErrNotExist))
	}
	files, err := modules(mods[0])
	if err != nil {
		return err
	}
	for i, file := range files {
		a.add(fmt.Sprintf("/modules/%03d-%s", i, filepath.Base(file)), file, 0o644)
	}
	for _, tool := range tools {
		if err := program(t.Context(), a, system, tool); err != nil {
			return err
		}
	}
	// What libibverbs loads for soft RoCE.
	const provider = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"
	for _, file := range []string{"/etc/libibverbs.d/rxe.driver", provider} {
		a.add(file, filepath.Join(system, file), 0o644)
	}
	return a.close()
}

// addOurs builds the programs of the module, and what makes images.
func addOurs(t *testing.T, a *archive, root, dir string) error {
	out, args := filepath.Join(dir, "bin"), []string{"build"}
	for _, name := range ours {
		args = append(args, "./cmd/"+name)
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	if err := compile(t, root, out, append(args, "./test/busyboximage")...); err != nil {
		return err
	}
	for _, name := range append(ours, "busyboximage") {
		a.add("/gantry/bin/"+name, filepath.Join(out, name), 0o755)
	}
	return nil
}

// skeleton adds the folders and the few settings that programs look for.
func skeleton(a *archive) {
	a.folders("/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/etc", "/usr/lib", "/usr/sbin", "/var/lib/nfs/nfsdcld", "/var/lib/nfs/rpc_pipefs")
	a.link("/lib", "usr/lib")
	a.link("/lib64", "usr/lib")
	a.link("/sbin", "usr/sbin")
	a.link("/bin", "usr/sbin")
	a.link("/etc/mtab", "/proc/self/mounts")
	a.text("/etc/passwd", "root:x:0:0:root:/root:/bin/false\n")
	a.text("/etc/group", "root:x:0:\n")
	a.link("/usr/sbin/sh", "busybox")
	a.text("/etc/resolv.conf", "nameserver 127.0.0.1\n")
	a.text("/etc/hosts", "127.0.0.1 localhost\n")
	a.text("/etc/netconfig", "tcp tpi_cots_ord v inet tcp - -\nudp tpi_clts v inet udp - -\n")
	a.text("/etc/exports", "")
	a.text("/var/lib/nfs/etab", "")
	a.text("/var/lib/nfs/rmtab", "")
}

// compile runs the go command as `make build` does, and without cgo, so that the result needs no libraries.
func compile(t *testing.T, root, out string, args ...string) error {
	verb, rest := args[0], args[1:]
	full := append([]string{"CGO_ENABLED=0", "go", verb, "-trimpath", "-buildvcs=false", "-o", out}, rest...)
	_, err := output(t.Context(), root, "env", full...)
	return err
}

// program adds a program with the libraries that the machine's loader finds for it, those of the guest's packages first.
func program(ctx context.Context, a *archive, system, name string) error {
	places := []string{filepath.Join(system, "usr/sbin"), filepath.Join(system, "sbin"), filepath.Join(system, "usr/bin"), "/usr/sbin", "/sbin", "/usr/bin", "/bin"}
	file := ""
	for _, place := range places {
		if _, err := os.Stat(filepath.Join(place, name)); err == nil {
			file = filepath.Join(place, name)
			break
		}
	}
	if file == "" {
		return fmt.Errorf("there is no program %s in %v", name, places)
	}
	a.add("/usr/sbin/"+name, file, 0o755)
	binary, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = binary.Close() }()
	if binary.Section(".interp") == nil { // it needs no libraries
		return nil
	}
	libs, err := filepath.Glob(filepath.Join(system, "usr/lib/*-linux-gnu"))
	more, err1 := filepath.Glob(filepath.Join(system, "lib/*-linux-gnu"))
	if err := errors.Join(err, err1); err != nil {
		return err
	}
	out, err := output(ctx, "/", "env", "LD_LIBRARY_PATH="+strings.Join(append(libs, more...), ":"), "ldd", file)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		switch {
		case strings.Contains(line, "not found"):
			return fmt.Errorf("%s: %s", name, strings.TrimSpace(line))
		case len(fields) == 4 && fields[1] == "=>":
			a.add("/usr/lib/"+path.Base(fields[0]), fields[2], 0o755)
		case len(fields) == 2 && path.IsAbs(fields[0]): // the loader
			a.add("/usr/lib/"+path.Base(fields[0]), fields[0], 0o755)
		}
	}
	return nil
}

// moduleRoot returns the folder of the module that the test's own folder lies in.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == "/" {
			t.Fatal("no go.mod is above the test's folder")
		}
		dir = filepath.Dir(dir)
	}
}
