package ctrd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/containerd/containerd/v2/core/remotes"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
)

// dripping sends blobs byte by byte, until the test ends.
func dripping(began *atomic.Int32) badAnswer {
	return blob(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100000")
		began.Add(1)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := w.Write([]byte("x")); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
	})
}

// onlyLayers keeps a fault from the images' configurations.
func onlyLayers(t *testing.T, f badAnswer, images ...v1.Image) badAnswer {
	t.Helper()
	configs := map[string]bool{}
	for _, img := range images {
		cfg, err := img.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		configs[cfg.String()] = true
	}
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if configs[path.Base(r.URL.Path)] {
			next.ServeHTTP(w, r)
			return
		}
		f(w, r, next)
	}
}

// TestSlowRegistryBlocksNobodyElse has many pulls from a registry that drips, of more layers than the host once
// downloaded at a time.
func TestSlowRegistryBlocksNobodyElse(t *testing.T) {
	b := setup(t)
	slow, reg := newRegistryServer(t), newRegistryServer(t)
	var began atomic.Int32
	refs, images := make([]string, 4), make([]v1.Image, 4)
	for i := range refs {
		img := ctrdtest.BusyboxImage(t, nil)
		for j := range 3 {
			img = withLayer(t, img, layerOf(t, fmt.Sprint("etc/", j), fmt.Sprint(i)))
		}
		refs[i], images[i] = slow.push(t, fmt.Sprint("slow", i, ":1"), img), img
	}
	ref := reg.push(t, "quick:1", withEnv(t, "WHAT=quick"))
	slow.setFault(onlyLayers(t, dripping(&began), images...))
	ctx, stop := context.WithCancel(b.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for _, ref := range refs {
		wg.Go(func() { _, _ = b.r.Pull(ctx, ref, nil, nil) })
	}
	if err := ctrdtest.Eventually(time.Minute, func() error {
		if n := began.Load(); n < 3*int32(len(refs)) {
			return fmt.Errorf("%d downloads began", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if _, err := b.r.Pull(limited, ref, nil, nil); err != nil {
		t.Error(err)
	}
}

func TestSlowRegistryIsGivenUp(t *testing.T) {
	b := setup(t, func(c *Config) { c.PullPace = 500 * time.Millisecond })
	reg := newRegistryServer(t)
	img := ctrdtest.BusyboxImage(t, nil)
	ref := reg.push(t, "slow:1", img)
	var began atomic.Int32
	for name, fault := range map[string]badAnswer{"a layer": onlyLayers(t, dripping(&began), img), "the configuration": dripping(&began)} {
		t.Run(name, func(t *testing.T) {
			reg.setFault(fault)
			_, err := b.r.Pull(b.ctx, ref, nil, nil)
			wantFault(t, err, pod.Retry, "the registry of image "+ref+" is too slow")
		})
	}
	if began.Load() == 0 {
		t.Error("nothing was downloaded")
	}
}

// drip gives a number of bytes at every read, each after a while.
type drip struct {
	ctx   context.Context
	every time.Duration
	bytes int
}

func (d drip) Read(b []byte) (int, error) {
	select {
	case <-time.After(d.every):
		return min(d.bytes, len(b)), nil
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
}

func (drip) Close() error { return nil }

// TestPaceOfADownload reads at several rates in virtual time.
func TestPaceOfADownload(t *testing.T) {
	const (
		layer  = ocispec.MediaTypeImageLayerGzip
		config = ocispec.MediaTypeImageConfig
	)
	for _, c := range []struct {
		name      string
		mediaType string
		every     time.Duration
		bytes     int
		pause     time.Duration // of the one who reads, between two reads
		want      error
		by        time.Duration
	}{
		{"fast", layer, time.Second, 1_000_000, 0, nil, 0},
		{"just fast enough", layer, time.Second, 10_000, 0, nil, 0},
		{"too slow", layer, time.Second, 9_000, 0, errSlow, time.Minute},
		{"a byte before each stall", layer, 59 * time.Second, 1, 0, errSlow, 118 * time.Second},
		{"a stall", layer, 2 * time.Minute, 1 << 20, 0, errStalled, time.Minute},
		{"a slow host is not the registry's fault", layer, time.Second, 11_000, time.Minute, nil, 0},
		{"a configuration that takes its time", config, time.Second, 10_000, 0, errSlow, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host := make(chan struct{}, 1)
				p := &pull{lanes: newLanes(host), items: map[digest.Digest]*item{}}
				g := (&Runtime{cfg: Config{PullStall: time.Minute, PullPace: time.Minute}}).newSource(p)
				from := remotes.FetcherFunc(func(ctx context.Context, _ ocispec.Descriptor) (io.ReadCloser, error) {
					return drip{ctx, c.every, c.bytes}, nil
				})
				at := time.Now()
				body, err := g.fetch(t.Context(), from, ocispec.Descriptor{MediaType: c.mediaType, Digest: "sha256:x", Size: 1 << 30})
				if err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 2<<20)
				for err == nil && time.Since(at) < 10*time.Minute {
					_, err = body.Read(buf)
					time.Sleep(c.pause)
				}
				if !errors.Is(err, c.want) || c.want != nil && time.Since(at) != c.by {
					t.Errorf("%v after %v", err, time.Since(at))
				}
				if n := len(host); (n == 0) != (c.mediaType == config) {
					t.Errorf("%d of the host's slots", n)
				}
				if err := body.Close(); err != nil || len(host)+len(p.lanes.layers)+len(p.lanes.small) != 0 {
					t.Errorf("slots are held: %v", err)
				}
			})
		})
	}
}

// TestLanes holds how many downloads one pull has at once, and that waiting for a place ends with the pull.
func TestLanes(t *testing.T) {
	host := make(chan struct{}, maxOfPull+1)
	mine, other := newLanes(host), newLanes(host)
	var frees []func()
	for range maxOfPull {
		free, err := mine.enter(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		frees = append(frees, free)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := mine.enter(ended, false); err == nil {
		t.Error("one more than a pull may have")
	}
	for _, small := range []bool{false, true} {
		free, err := other.enter(t.Context(), small)
		if err != nil {
			t.Fatal(err)
		}
		frees = append(frees, free)
	}
	if _, err := other.enter(ended, false); err == nil || len(other.layers) != 1 {
		t.Errorf("one more than the host has: %v, %d held", err, len(other.layers))
	}
	for _, free := range frees {
		free()
	}
	if len(host)+len(mine.layers)+len(other.layers)+len(other.small) != 0 {
		t.Error("places are not given back")
	}
}
