package ctrdtest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// applets are the commands that the test image has as links to busybox.
const applets = "sh cat echo sleep true false id env ls mkdir dd head tail grep kill test httpd wget nc ps hostname mount wc seq stat touch chown chmod ping fallocate rm"

// busybox returns the layer of BusyboxImage. It is made and packed once for all tests of a program.
var busybox = sync.OnceValues(func() (v1.Layer, error) {
	binary, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("busybox-static is not installed: %w", err)
	}
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
	for _, dir := range []string{"bin/", "etc/", "tmp/", "root/", "www/"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, nil)
	}
	add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, binary)
	for a := range strings.FieldsSeq(applets) {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + a, Linkname: "busybox", Mode: 0o777}, nil)
	}
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\nworker:x:1000:1001::/tmp:/bin/sh\n"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nworker:x:1001:\nextra:x:2000:worker\n"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "www/index.html", Mode: 0o644}, []byte("hello\n"))
	if err := errors.Join(append(faults, w.Close())...); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressedCaching)
})

// BusyboxImage builds an image of one layer from the host's static busybox. change may alter its
// configuration.
func BusyboxImage(tb testing.TB, change func(*v1.Config)) v1.Image {
	tb.Helper()
	layer, err := busybox()
	if err != nil {
		tb.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		tb.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{Cmd: []string{"sh"}, Env: []string{"PATH=/bin"}}
	if change != nil {
		change(&file.Config)
	}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		tb.Fatal(err)
	}
	return img
}

// WriteDockerArchive writes images, by reference, as docker save does.
func WriteDockerArchive(tb testing.TB, path string, byRef map[string]v1.Image) {
	tb.Helper()
	refs := map[name.Reference]v1.Image{}
	for ref, img := range byRef {
		r, err := name.ParseReference(ref)
		if err != nil {
			tb.Fatal(err)
		}
		refs[r] = img
	}
	if err := tarball.MultiRefWriteToFile(path, refs); err != nil {
		tb.Fatal(err)
	}
}

// WriteOCIArchive writes one image as a tar file of an OCI layout that names it.
func WriteOCIArchive(tb testing.TB, path, ref string, img v1.Image) {
	tb.Helper()
	dir := tb.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		tb.Fatal(err)
	}
	if err := l.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": ref})); err != nil {
		tb.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	if err := f.Close(); err != nil {
		tb.Fatal(err)
	}
}
