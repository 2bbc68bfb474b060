package ctrd

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
)

func TestPullThenRun(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	img := ctrdtest.BusyboxImage(t, func(c *v1.Config) { c.Cmd = []string{"sh", "-c", "echo from the image"} })
	ref := reg.push(t, "team/app:1", img)
	if d, err := b.r.Image(b.ctx, ref); err != nil || d != "" {
		t.Fatalf("before: %q, %v", d, err)
	}
	var last, total int64
	digest, err := b.r.Pull(b.ctx, ref, nil, func(done, of int64) {
		if done < last || of != 0 && done > of {
			t.Errorf("progress %d of %d after %d", done, of, last)
		}
		last, total = done, of
	})
	if err != nil {
		t.Fatal(err)
	}
	want, _ := img.Digest()
	if digest != want.String() || last != total || total < 500_000 {
		t.Errorf("digest %s want %s, progress %d of %d", digest, want, last, total)
	}
	if d, err := b.r.Image(b.ctx, ref); err != nil || d != digest {
		t.Errorf("after: %q, %v", d, err)
	}
	if list, err := b.r.Images(b.ctx); err != nil || !slices.Equal(list, []string{ref}) {
		t.Errorf("images %v, %v", list, err)
	}
	if again, err := b.r.Pull(b.ctx, ref, nil, nil); err != nil || again != digest {
		t.Errorf("again: %q, %v", again, err)
	}
	byDigest := reg.host + "/team/app@" + digest
	if d, err := b.r.Pull(b.ctx, byDigest, nil, nil); err != nil || d != digest {
		t.Errorf("by digest: %q, %v", d, err)
	}
	s := b.spec(ref, "")
	b.start(s)
	b.finish(s.Pod)
	b.log(s, "from the image")
	b.remove(s.Pod)
}

// TestLayersLieInTheirOrder pulls layers that change and take away what is below them, however many are unpacked at once.
func TestLayersLieInTheirOrder(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	img, err := mutate.AppendLayers(ctrdtest.BusyboxImage(t, nil),
		layerOf(t, "d/", "", "d/gone", "1", "d/kept", "1", "o/", "", "o/old", "1", "f", "1"),
		layerOf(t, "f", "2", "d/two", "2"),
		layerOf(t, "d/.wh.gone", "", "f", "3"),
		layerOf(t, "o/", "", "o/.wh..wh..opq", "", "o/new", "4"),
		layerOf(t, "f", "5", "d/.wh.two", ""),
		layerOf(t, "d/two", "6"))
	if err != nil {
		t.Fatal(err)
	}
	ref := reg.push(t, "layers:1", img)
	for i := range 3 {
		if _, err := b.r.Pull(b.ctx, ref, nil, nil); err != nil {
			t.Fatal(err)
		}
		s := b.spec(ref, `sh -c "cd /; grep . f d/* o/*"`)
		b.start(s)
		b.finish(s.Pod)
		if got := b.log(s, "o/new:4"); !strings.Contains(got, "f:5") || !strings.Contains(got, "d/kept:1") || !strings.Contains(got, "d/two:6") ||
			strings.Contains(got, "gone") || strings.Contains(got, "o/old") {
			t.Errorf("in try %d the pod sees\n%s", i, got)
		}
		b.remove(s.Pod)
		if err := b.r.Clean(b.ctx, true); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPullsOfOneReferenceShareTheDownload(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	ref := reg.push(t, "app:1", ctrdtest.BusyboxImage(t, nil))
	var blobs atomic.Int32
	reg.hits = func(r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			blobs.Add(1)
		}
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := b.r.Pull(b.ctx, ref, nil, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := blobs.Load(); n != 2 {
		t.Errorf("%d downloads of config and layer", n)
	}
}

// pullFaultCase is one way in which a registry fails and what the pod's owner reads then.
type pullFaultCase struct {
	name     string
	fault    badAnswer
	class    pod.Class
	sentence string
}

func status(code int) badAnswer {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(code) }
}

// blob is a fault of downloads alone.
func blob(f http.HandlerFunc) badAnswer {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			f(w, r)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// altered changes what is downloaded.
func altered(change func([]byte) []byte) badAnswer {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.Contains(r.URL.Path, "/blobs/") || r.Method != http.MethodGet {
			next.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, r)
		_, _ = w.Write(change(rec.Body.Bytes()))
	}
}

func statusFaults() []pullFaultCase {
	return []pullFaultCase{
		{"401", status(401), pod.Fatal, "does not exist in its registry or may not be read; if it is private, give the pod a registry credential (--registry)"},
		{"401 with realm", func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			if r.URL.Path == "/token" {
				w.WriteHeader(401)
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="x"`)
			w.WriteHeader(401)
		}, pod.Fatal, "does not exist in its registry or may not be read"},
		{"realm at metadata", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://169.254.169.254/token",service="x"`)
			w.WriteHeader(401)
		}, pod.Fatal, "address that is not allowed"},
		{"403", status(403), pod.Fatal, "if it is private, give the pod a registry credential (--registry)"},
		{"404", status(404), pod.Fatal, "does not exist in its registry or may not be read"},
		{"418", status(418), pod.Fatal, "refuses it with status 418"},
		{"429", status(429), pod.Retry, "asks for patience"},
		{"500", status(500), pod.Retry, "answers with status 500"},
		{"503", status(503), pod.Retry, "answers with status 503"},
	}
}

func blobFaults() []pullFaultCase {
	return []pullFaultCase{
		{"blob 404", blob(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }), pod.Fatal, "incomplete in its registry"},
		{"blob 502", blob(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }), pod.Retry, "answers with status 502"},
		{"redirect to metadata", blob(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusTemporaryRedirect)
		}), pod.Fatal, "address that is not allowed"},
		{"truncated", altered(func(b []byte) []byte { return b[:len(b)/2] }), pod.Retry, "broke off"},
		{"connection cut", blob(func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }), pod.Retry, "cannot be reached"},
		{"wrong content", altered(func(b []byte) []byte { b[len(b)/2] ^= 1; return b }), pod.Fatal, "not what its digest promises"},
		{"longer content", altered(func(b []byte) []byte { return append(b, 0) }), pod.Fatal, "not what its digest promises"},
		{"stall", blob(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write([]byte("begin"))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}), pod.Retry, "stopped sending"},
		{"endless manifest", func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			for r.Context().Err() == nil && r.Method == http.MethodGet {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, pod.Fatal, ""},
	}
}

func TestPullFaults(t *testing.T) {
	b := setup(t, func(c *Config) { c.PullStall = 500 * time.Millisecond })
	reg := newRegistryServer(t)
	img := ctrdtest.BusyboxImage(t, nil)
	for _, tc := range append(statusFaults(), blobFaults()...) {
		t.Run(tc.name, func(t *testing.T) {
			reg.setFault(nil)
			ref := reg.push(t, "faulty:"+strings.ReplaceAll(tc.name, " ", "-"), img)
			reg.setFault(tc.fault)
			_, err := b.r.Pull(b.ctx, ref, nil, nil)
			wantFault(t, err, tc.class, tc.sentence)
			wantFault(t, err, tc.class, ref)
			// Once the fault is over the same reference can be pulled: nothing bad was kept.
			reg.setFault(nil)
			if _, err := b.r.Pull(b.ctx, ref, nil, nil); err != nil {
				t.Errorf("after the fault: %v", err)
			}
			if err := b.r.Clean(b.ctx, true); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestImagesThatThisHostRefuses(t *testing.T) {
	b := setup(t, func(c *Config) { c.MaxImageBytes = 1000 })
	reg := newRegistryServer(t)
	img := ctrdtest.BusyboxImage(t, nil)
	_, err := b.r.Pull(b.ctx, reg.push(t, "large:1", img), nil, nil)
	wantFault(t, err, pod.Fatal, "larger than this host allows")

	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.Architecture = "s390x"
	other, err := mutate.ConfigFile(img, file)
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}},
	})
	_, err = b.r.Pull(b.ctx, reg.pushIndex(t, "other:1", index), nil, nil)
	wantFault(t, err, pod.Fatal, "no version for this host's platform")

	for _, ref := range []string{"", "example/UPPER", "user:secret@host/x", "a b", "x@sha256:12"} {
		_, err := b.r.Pull(b.ctx, ref, nil, nil)
		wantFault(t, err, pod.Fatal, "not a valid image reference")
		if strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	}
}

func TestPullWithoutRegistry(t *testing.T) {
	b := setup(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = b.r.Pull(b.ctx, addr+"/x:1", nil, nil)
	wantFault(t, err, pod.Retry, "the registry of image "+addr+"/x:1 cannot be reached")
}

func TestLayerAddressesOfManifestAreIgnored(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	var elsewhere atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { elsewhere.Add(1); w.WriteHeader(404) }))
	defer srv.Close()
	img := ctrdtest.BusyboxImage(t, nil)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	withURL, err := mutate.Append(img, mutate.Addendum{Layer: layers[0], URLs: []string{srv.URL + "/layer"}})
	if err != nil {
		t.Fatal(err)
	}
	ref := reg.push(t, "urls:1", withURL)
	if _, err := b.r.Pull(b.ctx, ref, nil, nil); err != nil {
		t.Error(err)
	}
	if elsewhere.Load() != 0 {
		t.Error("an address that the manifest names was asked")
	}
}

func TestCancelledPullEndsAndGoesOnLater(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	ref := reg.push(t, "slow:1", ctrdtest.BusyboxImage(t, nil))
	began := make(chan struct{}, 16)
	reg.setFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			began <- struct{}{}
			<-r.Context().Done()
			return
		}
		next.ServeHTTP(w, r)
	})
	ctx, cancel := context.WithCancel(b.ctx)
	go func() { <-began; cancel() }()
	_, err := b.r.Pull(ctx, ref, nil, nil)
	wantFault(t, err, pod.Retry, "interrupted")
	reg.setFault(nil)
	if _, err := b.r.Pull(b.ctx, ref, nil, nil); err != nil {
		t.Error(err)
	}
}

func TestImportedArchivesAreFoundUnderEveryForm(t *testing.T) {
	b := setup(t)
	dir := t.TempDir()
	img := ctrdtest.BusyboxImage(t, nil)
	docker, oci := filepath.Join(dir, "docker.tar"), filepath.Join(dir, "oci.tar")
	ctrdtest.WriteDockerArchive(t, docker, map[string]v1.Image{"busybox:latest": img})
	ctrdtest.WriteOCIArchive(t, oci, "example/x:2", img)
	for file, want := range map[string]string{docker: "docker.io/library/busybox:latest", oci: "docker.io/example/x:2"} {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.r.Import(b.ctx, f)
		f.Close()
		if err != nil || !slices.Equal(got, []string{want}) {
			t.Fatalf("%s: %v, %v", filepath.Base(file), got, err)
		}
	}
	for _, ref := range []string{"busybox", "busybox:latest", "library/busybox", "docker.io/library/busybox:latest", "example/x:2", "docker.io/example/x:2"} {
		if d, err := b.r.Image(b.ctx, ref); err != nil || d == "" {
			t.Errorf("%s: %q, %v", ref, d, err)
		}
	}
	if d, err := b.r.Image(b.ctx, "example/x:3"); err != nil || d != "" {
		t.Errorf("an image that is not there: %q, %v", d, err)
	}
	_, err := b.r.Import(b.ctx, strings.NewReader("this is no archive"))
	wantFault(t, err, pod.Fatal, "archive")
	s := b.spec("busybox", "true")
	b.start(s)
	b.finish(s.Pod)
	b.remove(s.Pod)
}
