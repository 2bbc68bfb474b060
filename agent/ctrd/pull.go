package ctrd

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"gantry/agent/pod"
	"gantry/fleet"
)

const (
	progressEvery = 250 * time.Millisecond
	// leaseLife keeps what an interrupted pull has downloaded for the next try.
	leaseLife = 24 * time.Hour
)

// pull is one running pull; all that ask for its reference with the same credential wait for it
// together.
type pull struct {
	ref    string
	key    string            // in Runtime.pulls; names the lease too
	reader string            // who reads blobs; see reader
	auth   *fleet.Credential // for the registry of ref; nil: none
	lanes  lanes
	done   chan struct{} // closed when digest and err are set
	cancel context.CancelFunc
	digest string
	err    error
	asking int // guarded by Runtime.mu

	front  chan struct{} // closed when a pod waits for it
	narrow chan struct{} // holds one blob at a time until then

	mu    sync.Mutex // guards the fields below
	items map[digest.Digest]*item
	got   int64
	total int64
	// target is the manifest for this host's platform, the first that was read.
	target ocispec.Descriptor
}

// item is one blob of a pull.
type item struct {
	desc ocispec.Descriptor
	got  int64
	done bool
}

// Pull fetches and unpacks ref, calling progress with bytes when they changed. It returns the digest of
// the manifest for this host's platform. It may be called for one reference many times at once: for
// each credential there is one download, which ends when nobody waits for it. An image that came with
// a credential is never found by Image: each pod that wants it asks the registry again, with its own,
// and reads from it whatever its credential has not read before in the agent's life.
func (r *Runtime) Pull(ctx context.Context, ref string, auth *fleet.Credential, progress func(done, total int64)) (string, error) {
	name, err := normalize(ref)
	if err != nil {
		return "", err
	}
	defer r.turns.take()()
	p, err := r.join(name, auth, true) //nolint:contextcheck // the download outlives the one who asked first
	if err != nil {
		return "", err
	}
	defer r.leave(p)
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	var lastGot, lastTotal int64
	tell := func() {
		if got, total := p.progress(); progress != nil && (got != lastGot || total != lastTotal) {
			lastGot, lastTotal = got, total
			progress(got, total)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return "", &pod.Error{Class: pod.Retry, Sentence: "the pull of image " + shown(ref) + " was interrupted", Err: context.Cause(ctx)}
		case <-tick.C:
			tell()
		case <-p.done:
			tell()
			return p.digest, pullFault(ref, p.err)
		}
	}
}

// join finds the running pull of a reference or starts it. One that a pod waits for is done at full speed from
// then on.
func (r *Runtime) join(name string, auth *fleet.Credential, forPod bool) (*pull, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life.Err() != nil {
		return nil, &pod.Error{Class: pod.Retry, Sentence: "the host's agent is stopping", Err: r.life.Err()}
	}
	key := r.pullName(name, auth)
	p := r.pulls[key]
	if p == nil {
		p = &pull{
			ref: name, key: key, reader: r.reader(name, auth), auth: auth, lanes: newLanes(r.slots),
			done: make(chan struct{}), items: map[digest.Digest]*item{}, front: make(chan struct{}), narrow: make(chan struct{}, 1),
		}
		var ctx context.Context
		ctx, p.cancel = context.WithCancel(r.life)
		r.pulls[key] = p
		r.work.Go(func() { r.run(r.in(ctx), p) })
	}
	p.asking++
	if forPod && !p.forPod() {
		close(p.front)
	}
	return p, nil
}

func (r *Runtime) leave(p *pull) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.asking--; p.asking == 0 {
		p.cancel()
		r.drop(p)
	}
}

// drop takes p off the list, so that the next request starts anew. The caller holds mu.
func (r *Runtime) drop(p *pull) {
	if r.pulls[p.key] == p {
		delete(r.pulls, p.key)
		r.paused.note(p.key, time.Now())
	}
}

func (r *Runtime) run(ctx context.Context, p *pull) {
	p.digest, p.err = r.fetch(ctx, p)
	r.mu.Lock()
	r.drop(p)
	r.mu.Unlock()
	close(p.done)
}

// fetch does the pull under a lease of its own. The lease stays when a later try may go on with what
// is there.
func (r *Runtime) fetch(ctx context.Context, p *pull) (string, error) {
	lease := leases.Lease{ID: p.key}
	if err := r.paused.wait(ctx, p.key); err != nil {
		return "", err
	}
	_, err := r.client.LeasesService().Create(ctx, leases.WithID(lease.ID), leases.WithExpiration(leaseLife))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return "", err
	}
	described, err := r.download(leases.WithLease(ctx, lease.ID), p)
	if rangeRefused(err) {
		// The registry cannot go on in the middle of a blob: drop what an earlier try has left.
		r.abort(ctx, p)
		described, err = r.download(leases.WithLease(ctx, lease.ID), p)
	}
	if err != nil && !final(err) {
		return "", err
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err != nil {
		r.abort(cleanup, p)
	}
	if lerr := r.client.LeasesService().Delete(cleanup, lease); lerr != nil && !errdefs.IsNotFound(lerr) {
		r.cfg.Log.Warn("release a pull lease; it will expire", "image", shown(p.ref), "err", lerr)
	}
	if err != nil {
		return "", err
	}
	return described.digest, nil
}

// download fetches and unpacks the image. Its record is made last, when everything of it is there and
// is the pull's to use.
func (r *Runtime) download(ctx context.Context, p *pull) (*image, error) {
	reg := r.newSource(p)
	defer reg.close()
	name, desc, err := reg.Resolve(ctx, p.ref)
	if err != nil {
		if p.auth != nil && denied(err) {
			err = fmt.Errorf("%w: %w", errCredential, err)
		}
		return nil, err
	}
	from, err := reg.Fetcher(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := r.take(ctx, p, from, desc); err != nil {
		return nil, err
	}
	img, err := r.describe(ctx, p.target.Digest)
	if err != nil {
		return nil, err
	}
	if !p.has(slices.Concat(img.manifest.Layers, []ocispec.Descriptor{img.manifest.Config})) {
		return nil, errors.New("failed to extract layer: some are for another platform")
	}
	if err := r.checkFiles(ctx, img); err != nil {
		return nil, err
	}
	if ok, err := r.unpacked(ctx, img); err != nil {
		return nil, err
	} else if !ok {
		return nil, errors.New("failed to extract layer: they are not of a known type")
	}
	return img, r.keep(ctx, p, desc)
}

// take obtains every blob of the image and unpacks the layers as they come.
func (r *Runtime) take(ctx context.Context, p *pull, from remotes.Fetcher, desc ocispec.Descriptor) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx, enough := r.watchRoom(ctx)
	defer func() { err = enough(err) }()
	// A snapshotter that takes a layer's parent at its commit lets layers be unpacked beside each other.
	able, err := r.client.GetSnapshotterCapabilities(ctx, r.cfg.Snapshotter)
	if err != nil {
		return err
	}
	// All layers are asked for, also those whose files are unpacked already.
	unpacker, err := unpack.NewUnpacker(ctx, r.client.ContentStore(), unpack.WithFetchAllContent(),
		unpack.WithUnpackLimiter(semaphore.NewWeighted(int64(min(maxOfPull, runtime.NumCPU())))),
		unpack.WithUnpackPlatform(unpack.Platform{
			Platform: platforms.All, SnapshotterKey: r.cfg.Snapshotter, Snapshotter: r.snapshots(), SnapshotterCapabilities: able,
			Applier: r.client.DiffService(),
		}))
	if err != nil {
		return err
	}
	obtain := images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		return nil, r.obtain(ctx, p, from, desc)
	})
	handler := p.watch(images.Handlers(obtain, r.children()), r.cfg.MaxImageBytes)
	err = images.Dispatch(ctx, unpacker.Unpack(handler), nil, desc)
	if err != nil {
		cancel()
	}
	if _, uerr := unpacker.Wait(); err == nil && uerr != nil {
		err = fmt.Errorf("unpack: %w", uerr)
	}
	if err != nil && r.dropOrphan(context.WithoutCancel(ctx), err) {
		return fault("unpack the image", err) // it can the next time
	}
	if err == nil && p.target.Digest == "" {
		err = errors.New("no match for platform")
	}
	return err
}

// abort drops half-downloaded blobs, so that a bad one is not completed later.
func (r *Runtime) abort(ctx context.Context, p *pull) {
	p.mu.Lock()
	var keys []string
	for _, it := range p.items {
		if !it.done {
			keys = append(keys, p.ingestKey(it.desc.Digest))
		}
	}
	p.mu.Unlock()
	for _, key := range keys {
		if err := r.client.ContentStore().Abort(ctx, key); err != nil && !errdefs.IsNotFound(err) {
			r.cfg.Log.Debug("abort download", "err", err)
		}
	}
}

// watch learns the sizes of an image's parts as its manifest is read, and bounds them.
func (p *pull) watch(h images.Handler, most int64) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if desc.Size < 0 || !images.IsLayerType(desc.MediaType) && desc.Size > maxMetadata {
			return nil, fmt.Errorf("%s of %d bytes: %w", desc.MediaType, desc.Size, errTooLarge)
		}
		p.item(desc)
		children, err := h.Handle(ctx, desc)
		if err != nil {
			return children, err
		}
		p.finish(desc)
		if images.IsManifestType(desc.MediaType) {
			p.aim(desc)
			for _, c := range children {
				p.item(c)
			}
		}
		if _, total := p.progress(); total > most {
			return nil, fmt.Errorf("image of %d bytes: %w", total, errTooLarge)
		}
		return children, nil
	})
}

// aim keeps the first manifest that was read: all others would be below it.
func (p *pull) aim(desc ocispec.Descriptor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.target.Digest == "" {
		p.target = ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}
	}
}

// has reports whether the pull obtained all of these blobs.
func (p *pull) has(list []ocispec.Descriptor) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(list, func(d ocispec.Descriptor) bool { it := p.items[d.Digest]; return it == nil || !it.done })
}

func (p *pull) item(desc ocispec.Descriptor) *item {
	p.mu.Lock()
	defer p.mu.Unlock()
	it := p.items[desc.Digest]
	if it == nil {
		it = &item{desc: desc}
		p.items[desc.Digest] = it
		p.total += desc.Size
	}
	return it
}

func (p *pull) add(it *item, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = min(n, it.desc.Size-it.got)
	it.got += n
	p.got += n
}

func (p *pull) set(it *item, at int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at = min(at, it.desc.Size)
	p.got += at - it.got
	it.got = at
}

func (p *pull) finish(desc ocispec.Descriptor) {
	it := p.item(desc)
	p.set(it, desc.Size)
	p.mu.Lock()
	it.done = true
	p.mu.Unlock()
}

func (p *pull) progress() (got, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got, p.total
}
