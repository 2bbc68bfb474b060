// Package workerimage serves the image of test/program/worker from a registry on loopback, for tests with real containers.
package workerimage

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gantry/agent/ctrd/ctrdtest"
)

// Program is where the image has the worker.
const Program = "/bin/worker"

// Serve builds the image and serves it until the test ends. args are what it runs the worker with, unless an endpoint says otherwise.
func Serve(t testing.TB, args string) (ref string) {
	t.Helper()
	layer, err := layer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(ctrdtest.BusyboxImage(t, func(c *v1.Config) { c.Cmd = strings.Fields(Program + " " + args) }), layer)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	ref = strings.TrimPrefix(s.URL, "http://") + "/team/worker:1"
	to, err := name.ParseReference(ref, name.Insecure)
	if err == nil {
		err = remote.Write(to, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// layer builds the program.
func layer(dir string) (v1.Layer, error) {
	program := filepath.Join(dir, "worker")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", program, "gantry/test/program/worker/worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the worker: %w: %s", err, out)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(Program, "/"), Mode: 0o755, Size: int64(len(data))})
	if err == nil {
		_, err = w.Write(data)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil })
}
