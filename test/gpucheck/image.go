package main

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const reference = "docker.io/library/gpucheck:1"

// applets are the commands that the image has as links to busybox.
var applets = []string{"sh", "echo", "env", "grep", "test", "["}

// systemLibraries is where a Linux system has its C library and those beside it.
var systemLibraries = []string{
	"/lib64", "/usr/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib", "/usr/lib",
}

// image loads an image of busybox, the probe and the C library of this machine, which the driver's programs are
// linked with.
func (c *checker) image(ctx context.Context) error {
	layer, err := c.layer()
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil })
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	// What an image says of GPUs counts for nothing.
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, RootFS: mustRootFS(img),
		Config: v1.Config{Cmd: []string{"sh", "-c", script}, Env: []string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"}},
	})
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := tarball.Write(ref, img, &archive); err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	if _, err := c.rt.Import(ctx, &archive); err != nil {
		return fmt.Errorf("load the image: %w", err)
	}
	c.ref = reference
	if c.digest, err = c.rt.Image(ctx, reference); err == nil && c.digest == "" {
		err = errors.New("the image was not loaded")
	}
	return err
}

func mustRootFS(img v1.Image) v1.RootFS {
	file, err := img.ConfigFile()
	if err != nil {
		return v1.RootFS{}
	}
	return file.RootFS
}

// layer is the image's only one.
func (c *checker) layer() ([]byte, error) {
	files := map[string]string{"/bin/busybox": filepath.Join(c.parts, "busybox"), "/bin/cudaprobe": filepath.Join(c.parts, "cudaprobe")}
	programs := []string{files["/bin/cudaprobe"]}
	for _, f := range c.devices.Files {
		programs = append(programs, f.Source)
	}
	if err := needed(files, programs); err != nil {
		return nil, err
	}
	for _, e := range testEnv(c.settings) {
		_, path, _ := strings.Cut(e, "=")
		files[path] = path
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, dir := range []string{"bin/", "etc/", "tmp/", "root/"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	for target, source := range files {
		body, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(target, "/"), Mode: 0o755, Size: int64(len(body))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(body); err != nil {
			return nil, err
		}
	}
	for _, a := range applets {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + a, Linkname: "busybox", Mode: 0o777}); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}

// needed adds to files the loader and all libraries that programs are linked with and the driver does not bring.
func needed(files map[string]string, programs []string) error {
	own := map[string]bool{}
	for _, p := range programs {
		own[filepath.Base(p)] = true
	}
	for len(programs) > 0 {
		path := programs[0]
		programs = programs[1:]
		f, err := elf.Open(path)
		if err != nil {
			continue // a script
		}
		wants, err := f.ImportedLibraries()
		if loader := interpreter(f); err == nil && loader != "" {
			files[loader] = loader
		}
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		for _, lib := range wants {
			if own[lib] {
				continue
			}
			own[lib] = true
			i := slices.IndexFunc(systemLibraries, func(dir string) bool {
				_, err := os.Stat(filepath.Join(dir, lib))
				return err == nil
			})
			if i < 0 {
				continue // of the driver, under its SONAME, or not there at all: then the program says so
			}
			found := filepath.Join(systemLibraries[i], lib)
			files[found] = found
			programs = append(programs, found)
		}
	}
	return nil
}

// interpreter is the loader that a program names; "" for a library.
func interpreter(f *elf.File) string {
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(p.Open(), 256))
		if err != nil {
			return ""
		}
		return strings.TrimRight(string(b), "\x00")
	}
	return ""
}
