// Package fakenvml stands in for an NVIDIA driver in tests: a library libnvidia-ml.so.1 in C that says what a test
// scripts, the other files of a driver, and device nodes that can be opened. It needs gcc, and root for the nodes.
package fakenvml

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

//go:embed src/fake.c
var source string

//go:embed src/mig.c
var migSource string

// Driver is a driver's files in a folder of their own.
type Driver struct {
	Root    string // of its files and device nodes
	Library string // path of libnvidia-ml.so.1
	Env     string // for the process that loads it, "NAME=value"

	tb     testing.TB
	script string
}

// libraries of a driver that programs in containers load, by their SONAME.
var libraries = []string{"libcuda.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvcuvid.so.1"}

// fullMinor is the number, below that of memory devices, of the first GPU's device node: it can be opened, and hardly
// anybody does. The others have NVIDIA's numbers, which nothing answers to.
const (
	fullMinor   = 7
	nvidiaMajor = 195
)

// New makes a driver that says what m says.
func New(tb testing.TB, m Machine) *Driver {
	tb.Helper()
	root, err := os.MkdirTemp("", "fakenvml")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(root) })
	d := &Driver{Root: root, tb: tb, script: filepath.Join(root, "script"), Env: "FAKE_NVML=" + filepath.Join(root, "script")}
	d.Set(m)
	lib := filepath.Join(root, "usr/lib", triplet())
	for _, dir := range []string{lib, filepath.Join(root, "usr/bin"), filepath.Join(root, "dev")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	built := build(tb)
	d.Library = filepath.Join(lib, "libnvidia-ml.so.1")
	for _, soname := range append([]string{"libnvidia-ml.so.1"}, libraries...) {
		file := strings.TrimSuffix(soname, "1") + m.driver()
		copyFile(tb, filepath.Join(built, soname), filepath.Join(lib, file))
		if err := os.Symlink(file, filepath.Join(lib, soname)); err != nil {
			tb.Fatal(err)
		}
	}
	copyFile(tb, filepath.Join(built, "nvidia-smi"), filepath.Join(root, "usr/bin/nvidia-smi"))
	d.nodes(m)
	return d
}

// nodes makes the device nodes of the driver and of m's GPUs.
func (d *Driver) nodes(m Machine) {
	d.tb.Helper()
	d.node("nvidiactl", unix.Mkdev(1, 3))
	d.node("nvidia-uvm", unix.Mkdev(1, 9))
	d.node("nvidia-uvm-tools", unix.Mkdev(1, 8))
	for i, g := range m.GPUs {
		number := unix.Mkdev(nvidiaMajor, uint32(g.Minor)) //nolint:gosec // small
		if i == 0 {
			number = unix.Mkdev(1, fullMinor)
		}
		d.node("nvidia"+strconv.Itoa(g.Minor), number)
	}
}

func (d *Driver) node(name string, number uint64) {
	path := filepath.Join(d.Root, "dev", name)
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(number)); err != nil { //nolint:gosec // small
		d.tb.Fatalf("make device node %s: %v", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // as NVIDIA's
		d.tb.Fatal(err)
	}
}

// Set has the library say what m says, from its next call on, in processes that run too.
func (d *Driver) Set(m Machine) {
	d.tb.Helper()
	next := d.script + ".next"
	if err := os.WriteFile(next, []byte(m.script()), 0o644); err != nil { //nolint:gosec // read by whoever loads the library
		d.tb.Fatal(err)
	}
	if err := os.Rename(next, d.script); err != nil {
		d.tb.Fatal(err)
	}
}

// Node is the path of the device node of a GPU.
func (d *Driver) Node(minor int) string {
	return filepath.Join(d.Root, "dev", "nvidia"+strconv.Itoa(minor))
}

func triplet() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}

func copyFile(tb testing.TB, from, to string) {
	tb.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil { //nolint:gosec // libraries and programs
		tb.Fatal(err)
	}
}

var (
	builtOnce sync.Once
	builtDir  string
	errBuild  error
)

// build compiles what a driver has, once per test program. Remove deletes it.
func build(tb testing.TB) string {
	tb.Helper()
	builtOnce.Do(func() {
		if builtDir, errBuild = os.MkdirTemp("", "fakenvml"); errBuild == nil {
			errBuild = compileAll(builtDir)
		}
	})
	if errBuild != nil {
		tb.Fatal(errBuild)
	}
	return builtDir
}

// Remove deletes what was compiled, at the end of a test program.
func Remove() {
	if builtDir != "" {
		_ = os.RemoveAll(builtDir)
	}
}

// smi prints what nvidia-smi -L prints, of the library that it finds as programs in containers do.
const smi = `#include <dlfcn.h>
#include <stdio.h>
int main(void) {
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!lib) { fprintf(stderr, "%s\n", dlerror()); return 1; }
	int (*init)(void) = dlsym(lib, "nvmlInit_v2"), (*count)(unsigned *) = dlsym(lib, "nvmlDeviceGetCount_v2");
	int (*get)(unsigned, void **) = dlsym(lib, "nvmlDeviceGetHandleByIndex_v2"), (*minor)(void *, unsigned *) = dlsym(lib, "nvmlDeviceGetMinorNumber");
	int (*name)(void *, char *, unsigned) = dlsym(lib, "nvmlDeviceGetName"), (*uuid)(void *, char *, unsigned) = dlsym(lib, "nvmlDeviceGetUUID");
	unsigned n = 0, shown = 0, number;
	char a[96], b[96], path[64];
	void *d;
	if (init() || count(&n)) return 2;
	for (unsigned i = 0; i < n; i++) {
		FILE *f;
		if (get(i, &d) || minor(d, &number) || name(d, a, sizeof a) || uuid(d, b, sizeof b)) return 3;
		snprintf(path, sizeof path, "/dev/nvidia%u", number);
		if (!(f = fopen(path, "r"))) continue;
		fclose(f);
		printf("GPU %u: %s (UUID: %s)\n", shown++, a, b);
	}
	return 0;
}
`

// cuda counts the GPUs whose device nodes can be opened.
const cuda = `#include <stdio.h>
int cuInit(unsigned flags) { return flags; }
int cuDeviceGetCount(int *count) {
	*count = 0;
	for (int i = 0; i < 16; i++) {
		char path[64];
		snprintf(path, sizeof path, "/dev/nvidia%d", i);
		FILE *f = fopen(path, "r");
		if (f) fclose(f), ++*count;
	}
	return 0;
}
`

func compileAll(dir string) error {
	header, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml/pkg/nvml").Output()
	if err != nil {
		return fmt.Errorf("find nvml.h: %w", err)
	}
	if err := compile(dir, "libnvidia-ml.so.1", source+migSource, "-shared", "-fPIC", "-I"+strings.TrimSpace(string(header)), "-Wno-deprecated-declarations", "-Wl,-soname,libnvidia-ml.so.1", "-lpthread"); err != nil {
		return err
	}
	for _, soname := range libraries {
		if err := compile(dir, soname, cuda, "-shared", "-fPIC", "-Wl,-soname,"+soname); err != nil {
			return err
		}
	}
	return compile(dir, "nvidia-smi", smi, "-ldl")
}

func compile(dir, name, text string, args ...string) error {
	cmd := exec.Command("gcc", append([]string{"-O1", "-Wall", "-Wextra", "-x", "c", "-o", filepath.Join(dir, name), "-"}, args...)...)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w: %s", name, err, out)
	}
	return nil
}

// BuildHelper builds gantry-gpu into dir and returns its path.
func BuildHelper(dir string) (string, error) {
	path := filepath.Join(dir, "gantry-gpu")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, "gantry/cmd/gantry-gpu")
	// The flags are those of the Makefile, so that C is compiled once.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build gantry-gpu: %w: %s", err, out)
	}
	return path, nil
}
