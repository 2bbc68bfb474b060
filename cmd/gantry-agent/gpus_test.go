package main

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
)

func TestGPUFlags(t *testing.T) {
	good := gpuFlags{Gpus: "auto", DriverRoot: "/", DeviceRoot: "/"}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
	bad := gpuFlags{Gpus: "auto", DriverRoot: "driver", DeviceRoot: "/", GpuHelper: filepath.Join(t.TempDir(), "nothing")}
	if err := bad.validate(); err == nil || !strings.Contains(err.Error(), "--driver-root") || !strings.Contains(err.Error(), "--gpu-helper") {
		t.Errorf("faults: %v", err)
	}
	if h, err := (gpuFlags{Gpus: "none"}).open(t.Context(), t.TempDir(), slog.New(slog.DiscardHandler)); h != nil || err != nil {
		t.Errorf("none: %v, %v", h, err)
	}
}
