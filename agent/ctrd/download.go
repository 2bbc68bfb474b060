package ctrd

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// maxDownloads bounds the layers that are downloaded at once over all pulls. It is far above what a
	// host needs: no pull waits for another's registry.
	maxDownloads  = 256
	maxOfPull     = 4           // layers, and as many small blobs, that one pull downloads at once
	smallTimeout  = time.Minute // for a whole manifest or configuration
	leastPullRate = 10_000      // bytes a second, over Config.PullPace
)

// lanes bound what is downloaded at once. Small blobs use none of the host's slots.
type lanes struct{ host, layers, small chan struct{} }

func newLanes(host chan struct{}) lanes {
	return lanes{host: host, layers: make(chan struct{}, maxOfPull), small: make(chan struct{}, maxOfPull)}
}

// enter waits for a place; free gives it back.
func (l lanes) enter(ctx context.Context, small bool) (free func(), err error) {
	way := []chan struct{}{l.layers, l.host}
	if small {
		way = []chan struct{}{l.small}
	}
	var have []chan struct{}
	free = func() {
		for _, c := range have {
			<-c
		}
	}
	for _, c := range way {
		select {
		case c <- struct{}{}:
			have = append(have, c)
		case <-ctx.Done():
			free()
			return nil, ctx.Err()
		}
	}
	return free, nil
}

func isSmall(mediaType string) bool {
	return images.IsManifestType(mediaType) || images.IsIndexType(mediaType) || images.IsConfigType(mediaType)
}

// fetch opens one download. Alternative addresses that a manifest names are ignored: the fetcher
// would reach them past the guarded transport.
func (g *source) fetch(ctx context.Context, f remotes.Fetcher, desc ocispec.Descriptor) (io.ReadCloser, error) {
	desc.URLs = nil
	small := isSmall(desc.MediaType)
	free, err := g.pull.lanes.enter(ctx, small)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, downloadKey{}, true))
	d := &download{ctx: ctx, item: g.pull.item(desc), pull: g.pull, stall: g.stall, pace: g.pace}
	d.timer = time.AfterFunc(g.stall, func() { cancel(errStalled) })
	limit := func() bool { return true }
	if small {
		limit = time.AfterFunc(min(smallTimeout, g.pace), func() { cancel(errSlow) }).Stop
	}
	d.free = func() { d.timer.Stop(); limit(); cancel(nil); free() }
	d.body, err = f.Fetch(ctx, desc)
	d.timer.Stop()
	if err != nil {
		err = d.why(err)
		d.free()
		return nil, err
	}
	return d, nil
}

// download counts bytes and gives up when none come, or too few. One goroutine uses it at a time.
type download struct {
	body        io.ReadCloser
	ctx         context.Context
	item        *item
	pull        *pull
	stall, pace time.Duration
	timer       *time.Timer // ends ctx; runs while a read waits for the registry
	free        func()

	waited time.Duration // for the registry, since the last reckoning
	came   int64         // bytes, meanwhile
}

func (d *download) Read(b []byte) (int, error) {
	d.timer.Reset(d.stall)
	at := time.Now()
	n, err := d.body.Read(b)
	d.timer.Stop()
	d.pull.add(d.item, int64(n))
	d.waited += time.Since(at)
	d.came += int64(n)
	if err != nil {
		return n, d.why(err)
	}
	if d.waited >= d.pace {
		if float64(d.came) < leastPullRate*d.waited.Seconds() {
			return n, errSlow
		}
		d.waited, d.came = 0, 0
	}
	return n, nil
}

// why returns what made an error: a limit of ours, if it was one.
func (d *download) why(err error) error {
	if cause := context.Cause(d.ctx); !errors.Is(err, io.EOF) && (errors.Is(cause, errStalled) || errors.Is(cause, errSlow)) {
		return cause
	}
	return err
}

// Seek lets a download go on where an earlier one stopped.
func (d *download) Seek(offset int64, whence int) (int64, error) {
	s, ok := d.body.(io.Seeker)
	if !ok {
		return 0, errdefs.ErrNotImplemented
	}
	at, err := s.Seek(offset, whence)
	if err == nil {
		d.pull.set(d.item, at)
	}
	return at, err
}

func (d *download) Close() error {
	err := d.body.Close()
	if d.free != nil {
		d.free()
		d.free = nil
	}
	return err
}
