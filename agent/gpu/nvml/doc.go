//go:build cgo

// Package nvml reads GPUs through NVIDIA's management library and describes them to containers. It runs in the helper
// process gantry-gpu alone: the library is the driver's own code, which may hang or crash whoever calls it.
package nvml
