package ctrd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"gantry/agent/ctrd/ctrdtest"
)

const (
	benchLayers    = 5
	benchLayerMB   = 80
	benchLayerFile = 1 << 18
)

// BenchmarkPull pulls an image of five layers, 400 MB, from a registry on loopback, in turns with a pull of
// containerd's own client on the same daemon. It reports medians in milliseconds: of each pull, and where ours went:
// until all bytes were there (download), what came after (rest), and the sums of the daemon's calls, which overlap.
func BenchmarkPull(b *testing.B) {
	e := setup(b)
	e.ctx = context.Background()
	calls := &callTimes{}
	timed, err := client.New(e.d.Socket, client.WithDefaultRuntime(runtimeName), client.WithDefaultPlatform(e.r.platform),
		client.WithExtraDialOpts(append(e.r.dialOptions(), grpc.WithStatsHandler(calls))))
	e.must(err)
	e.must(e.r.client.Close())
	e.r.client = timed
	reg := newRegistryServer(b)
	parts := map[string][]float64{}
	note := func(name string, took time.Duration) {
		parts[name] = append(parts[name], float64(took.Microseconds())/1000)
	}
	for i := range min(b.N, 5) { // each takes ten seconds and more
		// A new image each time: nothing of it is known to anyone.
		ref := reg.push(b, fmt.Sprintf("big:%d", 2*i), bigImage(b, uint64(2*i)))
		e.pulled(ref, calls, note)
		ref = reg.push(b, fmt.Sprintf("big:%d", 2*i+1), bigImage(b, uint64(2*i+1)))
		begin := time.Now()
		_, err := timed.Pull(e.r.in(e.ctx), ref, client.WithPullUnpack, client.WithPullSnapshotter(e.r.cfg.Snapshotter),
			client.WithResolver(docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost))})))
		e.must(err)
		note("client", time.Since(begin))
		e.must(timed.ImageService().Delete(e.r.in(e.ctx), ref))
	}
	for name, all := range parts {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], name+"-ms")
	}
	b.ReportMetric(0, "ns/op")
}

// pulled pulls a reference as a pod does, and forgets it.
func (b *bench) pulled(ref string, calls *callTimes, note func(string, time.Duration)) {
	b.Helper()
	calls.reset()
	var downloaded time.Time
	begin := time.Now()
	_, err := b.r.Pull(b.ctx, ref, nil, func(done, total int64) {
		if done == total {
			downloaded = time.Now()
		}
	})
	b.must(err)
	end := time.Now()
	note("ours", end.Sub(begin))
	note("download", downloaded.Sub(begin))
	note("rest", end.Sub(downloaded))
	for name, took := range calls.sums() {
		if took > 10*time.Millisecond {
			note(name, took)
		}
	}
	b.must(b.r.client.ImageService().Delete(b.r.in(b.ctx), ref))
}

// bigImage has layers of which a half can be compressed, each of files of 256 KiB, and other bytes for each seed.
func bigImage(tb testing.TB, seed uint64) v1.Image {
	tb.Helper()
	img := ctrdtest.BusyboxImage(tb, nil)
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	for l := range benchLayers {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		body := make([]byte, benchLayerFile)
		for f := range benchLayerMB << 20 / benchLayerFile {
			_, _ = random.Read(body[:len(body)/2])
			err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("layer%d/file%d", l, f), Mode: 0o644, Size: int64(len(body))})
			_, werr := w.Write(body)
			if err = errors.Join(err, werr); err != nil {
				tb.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			tb.Fatal(err)
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil },
			tarball.WithCompressedCaching, tarball.WithCompressionLevel(gzip.BestSpeed))
		if err == nil {
			img, err = mutate.AppendLayers(img, layer)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	return img
}

// callTimes sums how long each of the daemon's calls took.
type callTimes struct {
	mu  sync.Mutex // guards all
	all map[string]time.Duration
}

type callKey struct{}

func (c *callTimes) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = map[string]time.Duration{}
}

func (c *callTimes) sums() map[string]time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

// TagRPC remembers which call it is.
func (c *callTimes) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	method := info.FullMethodName[strings.LastIndex(info.FullMethodName, ".")+1:]
	return context.WithValue(ctx, callKey{}, strings.ReplaceAll(method, "/", "."))
}

// HandleRPC adds up calls as they end.
func (c *callTimes) HandleRPC(ctx context.Context, s stats.RPCStats) {
	end, ok := s.(*stats.End)
	if !ok {
		return
	}
	name, _ := ctx.Value(callKey{}).(string)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all != nil {
		c.all[name] += end.EndTime.Sub(end.BeginTime)
	}
}

// TagConn and HandleConn are not used.
func (c *callTimes) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (c *callTimes) HandleConn(context.Context, stats.ConnStats) {}
