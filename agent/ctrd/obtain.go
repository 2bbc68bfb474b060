package ctrd

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"gantry/fleet"
	"gantry/internal/ctxread"
)

// All tenants' images lie in one content store, where a blob is found by its digest alone. A digest is
// no secret, so to name one proves nothing: a pull may use a blob that lies here already only when it
// is open to everybody, or when the same credential has brought it from the same registry before. All
// other pulls read it from their own registry, every byte, before it counts as there.

const (
	// labelPrivate marks the record of an image that came with a credential.
	labelPrivate = "gantry.private"
	// labelOpen marks a blob that somebody got without a credential, or that the operator imported.
	labelOpen = "gantry.open"
	// maxProved bounds how many blobs are remembered for those who read them.
	maxProved = 1 << 16
)

var errNotPromised = errors.New("unexpected digest or size")

// keyed hashes words with a key that lives as long as the Runtime: what comes of a credential can be
// shown to the daemon, and tells nobody what it was made from.
func (r *Runtime) keyed(words ...string) string {
	h := hmac.New(sha256.New, r.secret[:])
	for _, w := range words {
		_, _ = fmt.Fprintf(h, "%d:%s", len(w), w)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// pullName names the pulls that may be shared, and their lease: what one credential opens is not for
// who has another. Without one it is the same in every life of the agent.
func (r *Runtime) pullName(name string, auth *fleet.Credential) string {
	if auth != nil {
		return pullPrefix + r.keyed("pull", name, auth.Username, auth.Password.Reveal())
	}
	sum := sha256.Sum256([]byte(name))
	return pullPrefix + hex.EncodeToString(sum[:12])
}

// reader names who reads blobs with a credential: what one registry gave to it is for nobody else.
// Without a credential it names the registry, since half a blob of one is not completed by another.
func (r *Runtime) reader(name string, auth *fleet.Credential) string {
	host := ""
	if named, err := reference.ParseNormalizedNamed(name); err == nil {
		host = reference.Domain(named)
	}
	if auth != nil {
		return r.keyed("reader", host, auth.Username, auth.Password.Reveal())
	}
	sum := sha256.Sum256([]byte(host))
	return "open-" + hex.EncodeToString(sum[:12])
}

// proof is that somebody has read a blob from his registry.
type proof struct {
	reader string
	blob   digest.Digest
}

func (r *Runtime) hasProved(p proof) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proved[p]
}

func (r *Runtime) prove(p proof) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.proved) >= maxProved {
		clear(r.proved) // they are read again
	}
	r.proved[p] = true
}

// alone waits until nobody else of this process is about to read a blob for the same reader.
func (r *Runtime) alone(ctx context.Context, p proof) (free func(), err error) {
	for {
		r.mu.Lock()
		other := r.reading[p]
		if other == nil {
			done := make(chan struct{})
			r.reading[p] = done
			r.mu.Unlock()
			return func() {
				r.mu.Lock()
				delete(r.reading, p)
				r.mu.Unlock()
				close(done)
			}, nil
		}
		r.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// obtain returns nil once a blob is on the host, under the pull's lease, and the pull may use it.
func (r *Runtime) obtain(ctx context.Context, p *pull, from remotes.Fetcher, desc ocispec.Descriptor) error {
	if err := desc.Digest.Validate(); err != nil {
		return fmt.Errorf("%w: %w", errNotPromised, err)
	}
	if desc.Size <= 0 {
		return fmt.Errorf("blob of %d bytes: %w", desc.Size, errNotPromised)
	}
	over, err := p.turn(ctx, &r.turns)
	if err != nil {
		return err
	}
	defer over()
	// First the lease, then the look: what is seen then stays.
	blob := leases.Resource{ID: desc.Digest.String(), Type: "content"}
	if err := r.client.LeasesService().AddResource(ctx, leases.Lease{ID: p.key}, blob); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	mine := proof{p.reader, desc.Digest}
	free, err := r.alone(ctx, mine)
	if err != nil {
		return err
	}
	defer free()
	store := r.client.ContentStore()
	info, err := store.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		late, ierr := r.ingest(ctx, p, from, desc)
		if ierr != nil {
			return ierr
		}
		if !late {
			r.prove(mine)
		}
		info, err = store.Info(ctx, desc.Digest)
	}
	if err != nil {
		return err
	}
	if info.Size != desc.Size {
		return fmt.Errorf("blob of %d bytes is said to have %d: %w", info.Size, desc.Size, errNotPromised)
	}
	if info.Labels[labelOpen] != "" {
		return nil
	}
	if !r.hasProved(mine) {
		if err := readAll(ctx, from, desc); err != nil {
			return err
		}
		r.prove(mine)
	}
	if p.auth == nil {
		return r.open(ctx, desc.Digest)
	}
	return nil
}

// ingestKey names a half-read blob. It is the reader's alone: nobody can end what another has begun.
func (p *pull) ingestKey(blob digest.Digest) string {
	return blobPrefix + p.reader + "-" + blob.String()
}

// ingest downloads a blob that is not here. late says that another pull came first, and that
// nothing is proved. The digest is not told to the daemon before the end: it would give the blob of
// another namespace, unread.
func (r *Runtime) ingest(ctx context.Context, p *pull, from remotes.Fetcher, desc ocispec.Descriptor) (late bool, err error) {
	w, err := content.OpenWriter(ctx, r.client.ContentStore(), content.WithRef(p.ingestKey(desc.Digest)))
	if err != nil {
		return false, err
	}
	defer func() { _ = w.Close() }()
	at, err := w.Status()
	if err != nil {
		return false, err
	}
	var opts []content.Opt
	if p.auth == nil {
		opts = append(opts, content.WithLabels(map[string]string{labelOpen: "yes"}))
	}
	if at.Offset == desc.Size { // all was read, but not committed
		err = w.Commit(ctx, desc.Size, desc.Digest, opts...)
		if errdefs.IsAlreadyExists(err) {
			return true, nil
		}
		return false, err
	}
	body, err := from.Fetch(ctx, desc)
	if err != nil {
		return false, err
	}
	defer func() { _ = body.Close() }()
	watched := &commitWatch{Writer: w}
	err = content.Copy(ctx, watched, body, desc.Size, desc.Digest, opts...)
	return watched.late, err
}

// commitWatch notes that a commit found the blob there.
type commitWatch struct {
	content.Writer
	late bool
}

func (w *commitWatch) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	err := w.Writer.Commit(ctx, size, expected, opts...)
	w.late = errdefs.IsAlreadyExists(err)
	return err
}

// readAll reads a blob that is here already from the pull's registry, and keeps nothing of it.
func readAll(ctx context.Context, from remotes.Fetcher, desc ocispec.Descriptor) error {
	body, err := from.Fetch(ctx, desc)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	verifier := desc.Digest.Verifier()
	n, err := io.Copy(verifier, io.LimitReader(body, desc.Size+1))
	switch {
	case err != nil:
		return err
	case n < desc.Size:
		return io.ErrUnexpectedEOF
	case n > desc.Size, !verifier.Verified():
		return errNotPromised
	}
	return nil
}

// open marks a blob as everybody's.
func (r *Runtime) open(ctx context.Context, blob digest.Digest) error {
	_, err := r.client.ContentStore().Update(ctx,
		content.Info{Digest: blob, Labels: map[string]string{labelOpen: "yes"}}, "labels."+labelOpen)
	return err
}

// checkFiles makes sure that an image's layers are what its configuration says they become. Snapshots
// go by that alone: one that is there already is used whatever the layers are, so a configuration
// could name another tenant's files.
func (r *Runtime) checkFiles(ctx context.Context, img *image) error {
	if len(img.manifest.Layers) != len(img.diffs) {
		return fmt.Errorf("%d layers become %d: wrong diff id", len(img.manifest.Layers), len(img.diffs))
	}
	for i, layer := range img.manifest.Layers {
		info, err := r.client.ContentStore().Info(ctx, layer.Digest)
		if err != nil {
			return err
		}
		is := digest.Digest(info.Labels[labels.LabelUncompressed])
		if is == "" {
			if is, err = r.uncompressed(ctx, layer); err != nil {
				return err
			}
		}
		if is != img.diffs[i] {
			return fmt.Errorf("layer %s becomes %s: wrong diff id", layer.Digest, is)
		}
	}
	return nil
}

// uncompressed computes what a layer becomes, and writes it down as the unpacker does.
func (r *Runtime) uncompressed(ctx context.Context, layer ocispec.Descriptor) (digest.Digest, error) {
	store := r.client.ContentStore()
	at, err := store.ReaderAt(ctx, layer)
	if err != nil {
		return "", err
	}
	defer func() { _ = at.Close() }()
	plain, err := compression.DecompressStream(content.NewReader(at))
	if err != nil {
		return "", fmt.Errorf("failed to extract layer: %w", err)
	}
	defer func() { _ = plain.Close() }()
	is, err := digest.FromReader(ctxread.New(ctx, plain))
	if err != nil {
		if away(err) {
			return "", err
		}
		return "", fmt.Errorf("failed to extract layer: %w", err)
	}
	_, err = store.Update(ctx, content.Info{Digest: layer.Digest, Labels: map[string]string{labels.LabelUncompressed: is.String()}},
		"labels."+labels.LabelUncompressed)
	return is, err
}
