package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gantry/test/fakenvml"
)

// envDir names a folder that `make gpu-check` made, to be tried instead of one with the installed containerd and runc.
const envDir = "GANTRY_TEST_GPU_CHECK_DIR"

// parts makes the folder that `make gpu-check` makes, of the installed containerd and runc.
func parts(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv(envDir); dir != "" {
		return dir
	}
	dir := t.TempDir()
	for _, p := range []string{"./cmd/gantry-logger", "./test/gpucheck"} {
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, filepath.Base(p)), p)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v: %s", p, err, out)
		}
	}
	if _, err := fakenvml.BuildHelper(dir); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-O1", "-Wall", "-o", filepath.Join(dir, "cudaprobe"), "probe/cudaprobe.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("build cudaprobe: %v: %s", err, out)
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc", "busybox"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func run(t *testing.T, env string, program string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestTheCheck(t *testing.T) {
	t.Cleanup(fakenvml.Remove)
	dir := parts(t)
	program := filepath.Join(dir, "gpucheck")
	m := fakenvml.Healthy(2)
	d := fakenvml.New(t, m)
	args := []string{"--driver-root", d.Root, "--device-root", d.Root, "--nvml-library", d.Library}
	t.Run("passes", func(t *testing.T) {
		out, err := run(t, d.Env, program, args...)
		for _, want := range []string{
			"driver 570.124.06, CUDA 12.8", "without a user namespace", "in a user namespace", "CUDA sees 1 GPU\n", "NVIDIA_VISIBLE_DEVICES=void\n",
			"GPU 0: NVIDIA H100 80GB HBM3 (UUID: " + m.GPUs[0].UUID + ")\n", "node /dev/nvidia0\n", "node /dev/nvidia-uvm\n",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("it does not say %q", want)
			}
		}
		if err != nil || strings.Contains(out, "node /dev/nvidia1") || strings.Count(out, m.GPUs[1].UUID) != 1 {
			t.Errorf("%v:\n%s", err, out)
		}
	})
	t.Run("fails when the container does not see its GPU", func(t *testing.T) {
		// The second GPU's device node cannot be opened.
		out, err := run(t, d.Env, program, append(args, "--gpu", m.GPUs[1].UUID)...)
		if err == nil || !strings.Contains(out, "it does not see its GPU "+m.GPUs[1].UUID) {
			t.Errorf("%v:\n%s", err, out)
		}
	})
	t.Run("fails without a driver", func(t *testing.T) {
		out, err := run(t, "", program, "--driver-root", t.TempDir())
		if err == nil || !strings.Contains(out, "libnvidia-ml.so.1 was not found") || !strings.Contains(out, "gpu-check: this machine has no GPU that NVIDIA's driver shows") {
			t.Errorf("%v:\n%s", err, out)
		}
	})
}
