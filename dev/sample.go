package dev

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime"

	"gantry/internal/atomicfile"
)

// SampleImage is the image of a worker to try serverless endpoints with. Its registry is this machine, so it is never pulled.
const SampleImage = "localhost/hello-worker:1"

// SampleCommand is what the program in the image is called with.
const SampleCommand = "__worker"

// writeSample writes an archive with SampleImage, which holds nothing but a program.
func writeSample(path, program string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("make the sample worker: %w", err)
	}
	layer, err := tarOf(entry{"gantry", binary, 0o755})
	if err != nil {
		return fmt.Errorf("make the sample worker: %w", err)
	}
	digest := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Cmd": []string{"/gantry", SampleCommand}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(digest[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{SampleImage}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	archive, err := tarOf(entry{"manifest.json", manifest, 0o644}, entry{"config.json", config, 0o644}, entry{"layer.tar", layer, 0o644})
	if err != nil {
		return fmt.Errorf("make the sample worker: %w", err)
	}
	return atomicfile.Write(path, archive, 0o600)
}

// entry is a file of an archive.
type entry struct {
	name string
	data []byte
	mode int64
}

func tarOf(entries ...entry) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(e.data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
