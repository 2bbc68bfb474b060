package ctrd

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Labels of an image's record. Times are written by stamp.
const (
	labelUsed       = "gantry.used"       // when a pod last asked for it, to the hour
	labelPrefetched = "gantry.prefetched" // when it was last got before a pod asked for it
	// labelImported marks what the operator imported: "yes", and "old" once another image has its name. There is
	// no registry to get it from again.
	labelImported = "gantry.imported"
)

const (
	touchEvery   = time.Hour
	touchTimeout = 10 * time.Second
)

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// lastUse is when an image was last used, as far as its record tells.
func lastUse(i images.Image) time.Time {
	used, err := time.Parse(time.RFC3339, i.Labels[labelUsed])
	if err != nil {
		return i.UpdatedAt
	}
	return used
}

// children reads which blobs an image's manifest or index names, only those for this host, and has
// the collector keep them as long as it.
func (r *Runtime) children() images.HandlerFunc {
	store := r.client.ContentStore()
	named := images.SetChildrenMappedLabels(store, images.ChildrenHandler(store), nil)
	return images.LimitManifests(images.FilterPlatforms(named, r.platform), r.platform, 1)
}

// keep makes the image's record. It names the manifest for this platform, never an index: which of an
// index's manifests would be found later depends on what else is on the host. An index is kept all the
// same, for the next pull. A pull with a credential does not close what everybody may have.
func (r *Runtime) keep(ctx context.Context, p *pull, root ocispec.Descriptor) error {
	const refIndex = "containerd.io/gc.ref.content.index"
	if root.Digest != p.target.Digest {
		_, err := r.client.ContentStore().Update(ctx,
			content.Info{Digest: p.target.Digest, Labels: map[string]string{refIndex: root.Digest.String()}}, "labels."+refIndex)
		if err != nil {
			return err
		}
	}
	is := r.client.ImageService()
	record := images.Image{Name: p.ref, Target: p.target, Labels: map[string]string{labelUsed: stamp(time.Now())}}
	if !p.forPod() {
		record.Labels[labelPrefetched] = stamp(time.Now())
	}
	have, err := is.Get(ctx, p.ref)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if err := r.keepMoved(ctx, have, p.target.Digest); err != nil {
		return err
	}
	if p.auth != nil {
		if have.Target.Digest == p.target.Digest && have.Labels[labelPrivate] == "" {
			return nil
		}
		record.Labels[labelPrivate] = "yes"
	}
	_, err = is.Create(ctx, record)
	if errdefs.IsAlreadyExists(err) {
		_, err = is.Update(ctx, record)
	}
	return err
}

// keepMoved keeps the image of a record that is about to name another one, under its digest: pods that were made of it
// are started from it again. What came with a credential is not kept.
func (r *Runtime) keepMoved(ctx context.Context, old images.Image, target digest.Digest) error {
	named, err := reference.ParseNormalizedNamed(old.Name)
	if err != nil || old.Target.Digest == target || old.Labels[labelPrivate] != "" {
		return nil //nolint:nilerr // there is no such record, or it is not ours
	}
	byDigest, err := reference.WithDigest(reference.TrimNamed(named), old.Target.Digest)
	if err != nil || byDigest.String() == old.Name {
		return nil //nolint:nilerr // its name says its digest
	}
	moved := images.Image{Name: byDigest.String(), Target: old.Target, Labels: map[string]string{labelUsed: stamp(lastUse(old))}}
	if old.Labels[labelImported] != "" {
		moved.Labels[labelImported] = "old"
	}
	if _, err := r.client.ImageService().Create(ctx, moved); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// holdOpen puts everybody's images under the lease of ctx, so that they are there still when an import has given their
// names to others, and returns their records by name.
func (r *Runtime) holdOpen(ctx context.Context) (map[string]images.Image, error) {
	list, err := r.client.ImageService().List(ctx)
	if err != nil {
		return nil, err
	}
	id, _ := leases.FromContext(ctx)
	out := map[string]images.Image{}
	for _, i := range list {
		if i.Labels[labelPrivate] != "" {
			continue
		}
		blob := leases.Resource{ID: i.Target.Digest.String(), Type: "content"}
		if err := r.client.LeasesService().AddResource(ctx, leases.Lease{ID: id}, blob); err != nil && !errdefs.IsAlreadyExists(err) {
			return nil, err
		}
		out[i.Name] = i
	}
	return out, nil
}

// touched remembers whose use is being written down, or was within the hour.
type touched struct {
	mu sync.Mutex
	at map[string]time.Time
}

// claim reports whether the caller is to write the use of that name down.
func (t *touched) claim(name string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.at[name]) < touchEvery {
		return false
	}
	if t.at == nil || len(t.at) >= maxKnownImages {
		t.at = map[string]time.Time{}
	}
	t.at[name] = now
	return true
}

// touch writes down, in the background and at most once an hour, that a pod is about to use an image.
func (r *Runtime) touch(record images.Image) {
	now := time.Now()
	if now.Sub(lastUse(record)) < touchEvery || !r.touched.claim(record.Name, now) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life.Err() != nil {
		return
	}
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(r.in(r.life), touchTimeout)
		defer cancel()
		if err := r.setLabel(ctx, record.Name, labelUsed, stamp(now)); err != nil {
			r.cfg.Log.Debug("write down when an image was used", "image", record.Name, "err", err)
		}
	})
}

// setLabel sets one label of an image's record, if there is still one.
func (r *Runtime) setLabel(ctx context.Context, name, label, value string) error {
	_, err := r.client.ImageService().Update(ctx, images.Image{Name: name, Labels: map[string]string{label: value}}, "labels."+label)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
