package ctrd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sys/unix"

	"gantry/agent/pod"
)

// keepPrefetched is for how long an image stays for the pods that it was got for.
const keepPrefetched = time.Hour

// Room returns how many bytes are used of the fullest file system on which the daemon keeps images, and how many may be.
func (r *Runtime) Room(ctx context.Context) (used, size int64, err error) {
	folders, err := r.folders(r.in(ctx))
	if err != nil {
		return 0, 0, fault("tell where it keeps images", err)
	}
	for _, dir := range folders {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return 0, 0, fmt.Errorf("read the disk of images: %w", err)
		}
		block := int64(st.Bsize)               //nolint:unconvert // differs by platform
		u := int64(st.Blocks-st.Bfree) * block //nolint:gosec // below 2^63
		s := u + int64(st.Bavail)*block        //nolint:gosec // below 2^63
		if size == 0 || float64(u)*float64(size) > float64(used)*float64(s) {
			used, size = u, s
		}
	}
	return used, size, nil
}

// folders are where the daemon keeps blobs and unpacked images.
func (r *Runtime) folders(ctx context.Context) ([]string, error) {
	if known := r.roots.Load(); known != nil {
		return *known, nil
	}
	resp, err := r.client.IntrospectionService().Plugins(ctx,
		"type==io.containerd.content.v1", "type==io.containerd.snapshotter.v1,id=="+r.cfg.Snapshotter)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range resp.Plugins {
		if dir := p.Exports["root"]; dir != "" {
			out = append(out, dir)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("it names no folder")
	}
	r.roots.Store(&out)
	return out, nil
}

// Collect removes images that nobody needs now, those first that were not used for longest, until about free bytes have
// become free, or none is left. It first drops what given-up pulls have left. An image stays while a container uses it,
// a pod that is to run was ordered of it, a pull of it runs, or it was prefetched within the last hour; what the operator
// imported stays for good. wanted is asked before each removal. It returns the names that were removed.
func (r *Runtime) Collect(ctx context.Context, free int64, wanted func() pod.WantedImages) (removed []string, err error) {
	ctx = r.in(ctx)
	if err := r.dropAbandoned(ctx); err != nil {
		return nil, fault("drop what aborted pulls have left", err)
	}
	all, err := r.stored(ctx, wanted())
	if err != nil {
		return nil, fault("list images", err)
	}
	chosen := choose(all, free)
	for i, s := range chosen {
		kept, err := r.holds(ctx, s, wanted())
		if err != nil {
			return removed, fault("remove images", err)
		}
		if kept {
			continue
		}
		for j, name := range s.names {
			var opts []images.DeleteOpt
			if i == len(chosen)-1 && j == len(s.names)-1 {
				opts = append(opts, images.SynchronousDelete()) // the bytes are gone when it returns
			}
			if err := r.client.ImageService().Delete(ctx, name, opts...); err != nil && !errdefs.IsNotFound(err) {
				return removed, fault("remove images", err)
			}
			removed = append(removed, name)
		}
	}
	r.mu.Lock()
	clear(r.contents)
	r.mu.Unlock()
	return removed, nil
}

// stored is one image of the host, whatever its names.
type stored struct {
	digest digest.Digest
	names  []string
	used   time.Time
	chain  string
	held   bool             // it must stay
	parts  map[string]int64 // bytes of its blobs and layers, which others may share
}

// choose names the images to remove so that about free bytes become free: those that were not used for longest, but
// none of which everything stays for others.
func choose(all []stored, free int64) []stored {
	holders := map[string]int{}
	var may []stored
	for _, s := range all {
		for part := range s.parts {
			holders[part]++
		}
		if !s.held {
			may = append(may, s)
		}
	}
	slices.SortFunc(may, func(a, b stored) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.digest, b.digest)) })
	n := 0
	for ; n < len(may) && free > 0; n++ {
		for part, size := range may[n].parts {
			if holders[part]--; holders[part] == 0 {
				free -= size
			}
		}
	}
	return slices.DeleteFunc(may[:n], func(s stored) bool {
		for part, size := range s.parts {
			if size > 0 && holders[part] == 0 {
				return false
			}
		}
		return true
	})
}

// stored lists the images of the host with all that choose asks for.
func (r *Runtime) stored(ctx context.Context, wanted pod.WantedImages) ([]stored, error) {
	list, err := r.client.ImageService().List(ctx)
	if err != nil {
		return nil, err
	}
	inUse, err := r.chainsInUse(ctx)
	if err != nil {
		return nil, err
	}
	byDigest := map[digest.Digest]*stored{}
	for _, record := range list {
		s := byDigest[record.Target.Digest]
		if s == nil {
			s = &stored{digest: record.Target.Digest}
			if err := r.measure(ctx, s, inUse); err != nil {
				return nil, err
			}
			byDigest[s.digest] = s
		}
		s.names = append(s.names, record.Name)
		if used := lastUse(record); used.After(s.used) {
			s.used = used
		}
		s.held = s.held || r.keeps(record, wanted, time.Now())
	}
	out := make([]stored, 0, len(byDigest))
	for _, s := range byDigest {
		s.held = s.held || inUse[s.chain]
		out = append(out, *s)
	}
	return out, nil
}

// keeps reports whether an image has to stay for what its record says, or what somebody wants of it.
func (r *Runtime) keeps(record images.Image, wanted pod.WantedImages, now time.Time) bool {
	named := func(refs []string) bool {
		return slices.ContainsFunc(refs, func(ref string) bool {
			full, err := normalize(ref)
			return ref == record.Target.Digest.String() || err == nil && full == record.Name
		})
	}
	prefetched, err := time.Parse(time.RFC3339, record.Labels[labelPrefetched])
	if err == nil && now.Sub(prefetched) < keepPrefetched {
		return true
	}
	switch record.Labels[labelImported] {
	case "yes":
		return true
	case "old":
		if named(wanted.Known) {
			return true
		}
	}
	return named(wanted.Ordered) || r.pulling(record.Name)
}

// pulling reports whether a pull of that name runs.
func (r *Runtime) pulling(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pulls {
		if p.ref == name {
			return true
		}
	}
	return false
}

// holds reports whether an image that was chosen must stay after all.
func (r *Runtime) holds(ctx context.Context, s stored, wanted pod.WantedImages) (bool, error) {
	for _, name := range s.names {
		record, err := r.client.ImageService().Get(ctx, name)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return true, err
		}
		if record.Target.Digest != s.digest || r.keeps(record, wanted, time.Now()) {
			return true, nil
		}
	}
	inUse, err := r.chainsInUse(ctx)
	return err != nil || s.chain != "" && inUse[s.chain], err
}

// chainsInUse returns the committed snapshots on which a container, or anything else, stands.
func (r *Runtime) chainsInUse(ctx context.Context) (map[string]bool, error) {
	parents := map[string]string{}
	var tips []string
	err := r.snapshots().Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		parents[i.Name] = i.Parent
		if i.Kind != snapshots.KindCommitted {
			tips = append(tips, i.Parent)
		}
		return nil
	})
	out := map[string]bool{}
	for _, tip := range tips {
		for ; tip != "" && !out[tip]; tip = parents[tip] {
			out[tip] = true
		}
	}
	return out, err
}

// measure fills in how large an image's parts are. What containers stand on does not become free.
func (r *Runtime) measure(ctx context.Context, s *stored, inUse map[string]bool) error {
	s.parts = map[string]int64{}
	img, err := r.describe(ctx, s.digest)
	if errdefs.IsNotFound(err) {
		return nil // some of it is missing; its record goes when its turn comes
	}
	if err != nil {
		return err
	}
	s.chain = img.chain
	for _, layer := range append(slices.Clone(img.manifest.Layers), img.manifest.Config) {
		s.parts[layer.Digest.String()] = layer.Size
	}
	for i := range img.diffs {
		chain := identity.ChainID(slices.Clone(img.diffs[:i+1])).String()
		if inUse[chain] {
			continue
		}
		usage, err := r.snapshots().Usage(ctx, chain)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		s.parts["files "+chain] = usage.Size
	}
	return nil
}
