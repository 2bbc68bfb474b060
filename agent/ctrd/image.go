package ctrd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/sys/user"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"gantry/fleet"
)

const (
	maxImages   = 200
	maxMetadata = 8 << 20 // bytes of a manifest, index or config
	maxUserFile = 4 << 20 // bytes of an image's list of users or groups
)

// image is what a container takes from an image: one manifest, named by its digest. Its fields never
// change, but for user.
type image struct {
	digest string
	chain  string // name of the committed snapshot; empty for an image without layers
	config ocispec.ImageConfig

	manifest ocispec.Manifest
	diffs    []digest.Digest // of the uncompressed layers, as the image's configuration states them

	user *specs.User // guarded by Runtime.mu; nil until it was looked up
}

// normalize returns the full form of a reference, as its registry knows it: "busybox" becomes
// docker.io/library/busybox:latest. The reference is not repeated in the error: it may hold a password.
func normalize(ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fatal("the pod's image is not a valid image reference", nil)
	}
	if digested, ok := named.(reference.Digested); ok { // a tag beside it says nothing
		if bare, err := reference.WithDigest(reference.TrimNamed(named), digested.Digest()); err == nil {
			return bare.String(), nil
		}
	}
	return reference.TagNameOnly(named).String(), nil
}

// names returns the names under which a reference may be on the host, likeliest first.
func names(ref string) ([]string, error) {
	full, err := normalize(ref)
	if err != nil {
		return nil, err
	}
	out := []string{full}
	if ref != full {
		out = append(out, ref)
	}
	if named, err := reference.ParseNormalizedNamed(full); err == nil {
		if short := reference.FamiliarString(named); !slices.Contains(out, short) {
			out = append(out, short)
		}
	}
	return out, nil
}

// Image returns the digest of a reference, given in short or full form, that is on the host and
// unpacked, or "". One with a digest is found under whatever name it is here. Image does not know images that
// came with a credential: whether a pod may have one is for the registry to say. The digest is that of the
// manifest for this host's platform, as Pull's is.
func (r *Runtime) Image(ctx context.Context, ref string) (string, error) {
	ctx = r.in(ctx)
	candidates, err := names(ref)
	if err != nil {
		return "", err
	}
	for _, name := range candidates {
		found, err := r.client.ImageService().Get(ctx, name)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fault("look for the image", err)
		}
		if found.Labels[labelPrivate] != "" {
			break
		}
		if img, err := r.usable(ctx, found); err != nil || img != "" {
			return img, err
		}
	}
	return r.imageOfDigest(ctx, candidates[0])
}

// imageOfDigest finds an image that is everybody's by the digest in a full reference, if there is one.
func (r *Runtime) imageOfDigest(ctx context.Context, full string) (string, error) {
	_, target, ok := strings.Cut(full, "@")
	if !ok {
		return "", nil
	}
	found, err := r.client.ImageService().List(ctx, "target.digest=="+target)
	if err != nil {
		return "", fault("look for the image", err)
	}
	for _, record := range found {
		if record.Labels[labelPrivate] != "" {
			continue
		}
		if img, err := r.usable(ctx, record); err != nil || img != "" {
			return img, err
		}
	}
	return "", nil
}

// usable returns the digest of a record's image, or "" when some of it is missing.
func (r *Runtime) usable(ctx context.Context, record images.Image) (string, error) {
	img, err := r.describe(ctx, record.Target.Digest)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fault("read the image", err)
	}
	if unpacked, err := r.unpacked(ctx, img); err != nil || !unpacked {
		return "", err
	}
	r.touch(record) //nolint:contextcheck // it outlives who asks
	return img.digest, nil
}

func (r *Runtime) unpacked(ctx context.Context, img *image) (bool, error) {
	if img.chain == "" {
		return true, nil
	}
	_, err := r.snapshots().Stat(ctx, img.chain)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fault("look for the image's files", err)
	}
	return true, nil
}

func (r *Runtime) snapshots() snapshots.Snapshotter {
	return r.client.SnapshotService(r.cfg.Snapshotter)
}

// describe reads what containers need of the manifest of that digest, no index. Contents are named by
// their digest, so they are read once.
func (r *Runtime) describe(ctx context.Context, target digest.Digest) (*image, error) {
	r.mu.Lock()
	img := r.contents[target]
	r.mu.Unlock()
	if img != nil {
		return img, nil
	}
	if target.Validate() != nil {
		return nil, fmt.Errorf("no digest: %w", errdefs.ErrNotFound)
	}
	img = &image{digest: target.String()}
	if err := r.readJSON(ctx, target, &img.manifest); err != nil {
		return nil, err
	}
	if img.manifest.Config.Digest == "" {
		return nil, fmt.Errorf("no image manifest: %w", errdefs.ErrNotFound)
	}
	var cfg ocispec.Image
	if err := r.readJSON(ctx, img.manifest.Config.Digest, &cfg); err != nil {
		return nil, err
	}
	img.config, img.diffs = cfg.Config, cfg.RootFS.DiffIDs
	if len(img.diffs) > 0 {
		img.chain = identity.ChainID(slices.Clone(img.diffs)).String()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.contents) >= maxKnownImages {
		clear(r.contents)
	}
	r.contents[target] = img
	return img, nil
}

// readJSON reads a manifest or configuration from the content store.
func (r *Runtime) readJSON(ctx context.Context, from digest.Digest, to any) error {
	store := r.client.ContentStore()
	info, err := store.Info(ctx, from)
	if err != nil {
		return err
	}
	if info.Size > maxMetadata {
		return fmt.Errorf("image metadata of %d bytes: %w", info.Size, errTooLarge)
	}
	blob, err := content.ReadBlob(ctx, store, ocispec.Descriptor{Digest: from, Size: info.Size})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(blob, to); err != nil {
		return fatal("the image's configuration cannot be read", err)
	}
	return nil
}

// Images returns references that are on the host, in order. Of more than 200 they are those that were used last.
func (r *Runtime) Images(ctx context.Context) ([]string, error) {
	list, err := r.client.ImageService().List(r.in(ctx))
	if err != nil {
		return nil, fault("list images", err)
	}
	list = slices.DeleteFunc(list, func(i images.Image) bool {
		_, err := reference.ParseNormalizedNamed(i.Name)
		return err != nil
	})
	if len(list) > maxImages {
		slices.SortFunc(list, func(a, b images.Image) int {
			return cmp.Or(lastUse(b).Compare(lastUse(a)), strings.Compare(a.Name, b.Name))
		})
		list = list[:maxImages]
	}
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].Name
	}
	slices.Sort(out)
	return out, nil
}

// Import loads the images of an OCI or docker archive and unpacks those for this platform. It
// returns their names: those that the archive gives them, in full form.
func (r *Runtime) Import(ctx context.Context, archive io.Reader) ([]string, error) {
	ctx, done, err := r.client.WithLease(r.in(ctx))
	if err != nil {
		return nil, fault("import the archive", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), effectTimeout)
		defer cancel()
		_ = done(ctx)
	}()
	full := func(name string) string {
		if n, err := normalize(name); err == nil {
			return n
		}
		return name
	}
	before, err := r.holdOpen(ctx)
	if err != nil {
		return nil, fault("import the archive", err)
	}
	loaded, err := r.client.Import(ctx, archive, client.WithImageRefTranslator(full))
	if err != nil {
		if away(err) {
			return nil, fault("import the archive", err)
		}
		return nil, fatal("the image archive cannot be read", err)
	}
	var out []string
	for _, i := range loaded {
		img := client.NewImageWithPlatform(r.client, i, r.platform)
		err := img.Unpack(ctx, r.cfg.Snapshotter)
		if err != nil && r.dropOrphan(ctx, err) {
			err = img.Unpack(ctx, r.cfg.Snapshotter)
		}
		if err != nil {
			if away(err) {
				return out, fault("unpack the image", err)
			}
			return out, fatal("image "+i.Name+" cannot be unpacked on this host", err)
		}
		if err := r.admit(ctx, i, before[i.Name]); err != nil {
			return out, fault("keep the image", err)
		}
		out = append(out, i.Name)
	}
	if len(out) == 0 {
		return nil, fatal("the image archive holds no named image", nil)
	}
	return out, nil
}

// admit opens an imported image to everybody: its record names the manifest for this platform, and
// its blobs are marked. before is the record that it took the place of, if there was one.
func (r *Runtime) admit(ctx context.Context, i, before images.Image) error {
	target := ocispec.Descriptor{}
	choose := images.HandlerFunc(func(_ context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if images.IsManifestType(desc.MediaType) && target.Digest == "" {
			target = desc
		}
		return nil, nil
	})
	if err := images.Walk(ctx, images.Handlers(choose, r.children()), i.Target); err != nil {
		return err
	}
	img, err := r.describe(ctx, target.Digest)
	if err != nil {
		return err
	}
	for _, desc := range append([]ocispec.Descriptor{target, img.manifest.Config}, img.manifest.Layers...) {
		if err := r.open(ctx, desc.Digest); err != nil {
			return err
		}
	}
	if err := r.keepMoved(ctx, before, target.Digest); err != nil {
		return err
	}
	i.Target, i.Labels = target, map[string]string{labelImported: "yes", labelUsed: stamp(time.Now())}
	_, err = r.client.ImageService().Update(ctx, i)
	return err
}

// userOf finds the ids that the image's user has in the image's own files.
func (r *Runtime) userOf(ctx context.Context, img *image) (specs.User, error) {
	name := img.config.User
	switch name {
	case "", "0", "root", "0:0", "root:root":
		return specs.User{}, nil
	}
	r.mu.Lock()
	known := img.user
	r.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	found, err := r.lookUpUser(ctx, img)
	if err != nil {
		return specs.User{}, err
	}
	r.mu.Lock()
	img.user = &found
	r.mu.Unlock()
	return found, nil
}

func (r *Runtime) lookUpUser(ctx context.Context, img *image) (specs.User, error) {
	const op = "look up the image's user"
	ctx, done, err := r.client.WithLease(ctx, leases.WithRandomID(), leases.WithExpiration(10*time.Minute))
	if err != nil {
		return specs.User{}, fault(op, err)
	}
	key := "gantry-view-" + fleet.NewID()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), effectTimeout)
		defer cancel()
		_ = r.snapshots().Remove(ctx, key)
		_ = done(ctx)
	}()
	view, err := r.snapshots().View(ctx, key, img.chain)
	if err != nil && r.dropOrphan(ctx, err) {
		view, err = r.snapshots().View(ctx, key, img.chain)
	}
	if err != nil {
		return specs.User{}, fault(op, err)
	}
	var out specs.User
	var unknown error
	err = r.withView(view, func(root string) error {
		var files [2]io.Reader
		for i, name := range []string{"/etc/passwd", "/etc/group"} {
			text, err := readList(root, name)
			if err != nil {
				return err
			}
			if text != nil {
				files[i] = bytes.NewReader(text)
			}
		}
		u, err := user.GetExecUser(img.config.User, &user.ExecUser{Home: "/"}, files[0], files[1])
		if err != nil {
			unknown = err
			return nil
		}
		out = specs.User{UID: uint32(u.Uid), GID: uint32(u.Gid)}
		for _, g := range u.Sgids {
			out.AdditionalGids = append(out.AdditionalGids, uint32(g))
		}
		return nil
	})
	if unknown != nil {
		return out, fatal("the user that the image names does not exist in it", unknown)
	}
	if err != nil {
		return out, fault(op, err)
	}
	return out, nil
}

// shown is a reference as it may be shown to its owner.
func shown(ref string) string {
	const most = 200
	if len(ref) > most {
		ref = ref[:most] + "…"
	}
	return strings.ToValidUTF8(ref, "?")
}

var errTooLarge = errors.New("larger than allowed")
