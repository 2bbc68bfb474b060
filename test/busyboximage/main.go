// Command busyboximage writes an OCI image archive made from this machine's static busybox, without any network:
//
//	busyboximage [--ref docker.io/library/busybox:demo] [--busybox /bin/busybox] FILE.tar
//	busyboximage --ref docker.io/library/cluster:1 --rootfs FILES.tar --command /usr/local/bin/start FILE.tar
//
// The image holds busybox with a link for each of its applets, and a page for its web server in /www; or the files of a
// tar, with a command.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	ref := flag.String("ref", "docker.io/library/busybox:demo", "full reference of the image")
	busybox := flag.String("busybox", "/bin/busybox", "static busybox to put in")
	files := flag.String("rootfs", "", "tar with the files of the image, instead of busybox")
	command := flag.String("command", "sh", "command of the image")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: busyboximage [--ref REFERENCE] [--busybox PROGRAM] FILE.tar")
		os.Exit(2)
	}
	layer, path := fromBusybox(*busybox), "/bin"
	if *files != "" {
		layer, path = fromFile(*files), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	config := v1.Config{Cmd: []string{*command}, Env: []string{"PATH=" + path}}
	if err := write(flag.Arg(0), *ref, layer, config); err != nil {
		fmt.Fprintln(os.Stderr, "busyboximage:", err)
		os.Exit(1)
	}
}

// opener opens a layer, each time from its begin.
type opener func() (io.ReadCloser, error)

func fromFile(path string) opener {
	return func() (io.ReadCloser, error) { return os.Open(path) }
}

// fromBusybox is a layer with busybox.
func fromBusybox(busybox string) opener {
	return func() (io.ReadCloser, error) {
		binary, err := os.ReadFile(busybox)
		if err != nil {
			return nil, fmt.Errorf("busybox (package busybox-static): %w", err)
		}
		applets, err := exec.Command(busybox, "--list").Output()
		if err != nil {
			return nil, fmt.Errorf("list the applets of busybox: %w", err)
		}
		layer, err := rootfs(binary, strings.Fields(string(applets)))
		return io.NopCloser(bytes.NewReader(layer)), err
	}
}

func write(path, ref string, layer opener, config v1.Config) (err error) {
	img, err := build(layer, config)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "busyboximage")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	tree, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	if err := tree.WriteImage(img); err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	desc, err := partial.Descriptor(img)
	if err != nil {
		return fmt.Errorf("describe the image: %w", err)
	}
	desc.ArtifactType = "" // it is an image; some readers skip what says that it is anything
	desc.Platform = &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	desc.Annotations = map[string]string{
		"io.containerd.image.name":          ref,
		"org.opencontainers.image.ref.name": ref[strings.LastIndexByte(ref, ':')+1:],
	}
	if err := tree.AppendDescriptor(*desc); err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	return archive(path, dir)
}

// build makes an image of one layer.
func build(layer opener, run v1.Config) (v1.Image, error) {
	packed, err := tarball.LayerFromOpener(tarball.Opener(layer), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("pack the layer: %w", err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, packed); err != nil {
		return nil, fmt.Errorf("make the image: %w", err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("make the image: %w", err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = run
	return mutate.ConfigFile(img, config)
}

// rootfs returns the files of the image as a tar.
func rootfs(binary []byte, applets []string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	var faults []error
	add := func(h tar.Header, body []byte) {
		h.Size = int64(len(body))
		err := w.WriteHeader(&h)
		if err == nil {
			_, err = w.Write(body)
		}
		faults = append(faults, err)
	}
	for _, dir := range []string{"bin/", "etc/", "root/", "www/"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, nil)
	}
	add(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil)
	add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, binary)
	for _, applet := range applets {
		if applet != "busybox" {
			add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\n"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "www/index.html", Mode: 0o644}, []byte("Hello from a pod of Gantry.\n"))
	if err := errors.Join(append(faults, w.Close())...); err != nil {
		return nil, fmt.Errorf("write the files of the image: %w", err)
	}
	return buf.Bytes(), nil
}

// archive packs an OCI layout.
func archive(path, dir string) (err error) {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: rel, Mode: 0o644, Size: int64(len(body))}); err != nil {
			return err
		}
		_, err = w.Write(body)
		return err
	})
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("pack the layout: %w", err)
	}
	return nil
}
