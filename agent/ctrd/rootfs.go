package ctrd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/faultpoint"
	"gantry/internal/userns"
	"gantry/storage/disk"
)

// Disks keeps what containers change of their files, each on a disk of its own that is named after its
// pod. *disk.Pool is one. Implementations are safe for concurrent use.
type Disks interface {
	// Make makes a disk for gb·10^9 bytes, new and empty, and returns its folder, which root owns.
	Make(ctx context.Context, name string, gb int64) (dir string, err error)
	// Remove removes a disk; one that is not there is removed.
	Remove(ctx context.Context, name string) error
	// Usage tells what a disk holds.
	Usage(ctx context.Context, name string) (disk.Usage, error)
	// Names lists the disks, with those that are half made or half removed.
	Names() ([]string, error)
}

// Folders below Config.RunDir.
const (
	lowerFolder  = "lower"   // the layers of images, while an overlay is mounted on them
	usersFolder  = "users"   // the user namespaces that containers join by name
	volumeFolder = "volumes" // a folder for each pod, with its volumes as its user namespace sees them
)

// rootDir is the folder of a pod's root. It is made before anything else of the pod and removed after
// everything else: where it is not, nothing is.
func (r *Runtime) rootDir(id fleet.PodID) string { return filepath.Join(r.cfg.RootDir, string(id)) }

func (r *Runtime) usersPath(id fleet.PodID) string {
	return filepath.Join(r.cfg.RunDir, usersFolder, string(id))
}

func (r *Runtime) volumesDir(id fleet.PodID) string {
	return filepath.Join(r.cfg.RunDir, volumeFolder, string(id))
}

// checkID refuses what is no plain name: ids become names of files.
func checkID(id fleet.PodID) error {
	if id == "" || strings.HasPrefix(string(id), ".") || strings.ContainsAny(string(id), "/\x00") {
		return fmt.Errorf("%q is not a container's id", id)
	}
	return nil
}

// hasRoot reports whether something is there of a pod's root.
func (r *Runtime) hasRoot(id fleet.PodID) bool {
	_, err := os.Lstat(r.rootDir(id))
	return err == nil
}

// runFolders are those below RunDir.
func (r *Runtime) runFolders() []string {
	var out []string
	for _, name := range []string{lowerFolder, usersFolder, volumeFolder} {
		out = append(out, filepath.Join(r.cfg.RunDir, name))
	}
	return out
}

// makeFolders makes the folders that the Runtime works in, where they are not there.
func (r *Runtime) makeFolders() error {
	for _, dir := range append(r.runFolders(), r.cfg.RootDir) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make the folders of containers: %w", err)
		}
	}
	return nil
}

// dropFolders removes what is of the boot alone, as far as nothing is in it.
func (r *Runtime) dropFolders() {
	for _, dir := range append(r.runFolders(), r.cfg.RunDir) {
		_ = os.Remove(dir)
	}
}

// sweepFolders removes what a dead agent left half-way.
func (r *Runtime) sweepFolders() {
	for _, name := range entries(r.cfg.RootDir) {
		if strings.HasPrefix(name, freshPrefix) {
			_ = os.Remove(filepath.Join(r.cfg.RootDir, name))
		}
	}
	for _, name := range entries(filepath.Join(r.cfg.RunDir, lowerFolder)) {
		if err := detach(filepath.Join(r.cfg.RunDir, lowerFolder, name)); err != nil {
			r.cfg.Log.Warn("an image's layers were not unmounted", "err", err)
		}
	}
}

// entries lists a folder; one that cannot be read is empty.
func entries(dir string) []string {
	list, _ := os.ReadDir(dir)
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = e.Name()
	}
	return out
}

// root is what Define mounts.
type root struct {
	spec   pod.ContainerSpec // with the volumes as they are mounted for it
	image  *image
	users  *os.File // the container's user namespace; nil: the host's own
	clones []clone
	files  []string // folders on the disks of the container's own files, once they are there
}

// clone is a folder of the host that is mounted with other ids, for a container to be given.
type clone struct {
	source, at string
	readOnly   bool
}

// plan decides what a pod's root is made of. The caller closes users.
func (r *Runtime) plan(s pod.ContainerSpec, img *image) (*root, error) {
	p := &root{spec: s, image: img}
	if r.cfg.RuntimeClass != "" {
		p.spec.IDBase = 0 // it is isolated otherwise
	}
	if p.spec.IDBase == 0 {
		return p, nil
	}
	var err error
	if p.users, err = r.usersOfNet(s.NetNS); err != nil {
		return nil, err
	}
	p.spec.Mounts = slices.Clone(s.Mounts)
	for i := range p.spec.Mounts {
		m := &p.spec.Mounts[i]
		if m.AsIs {
			continue
		}
		c := clone{source: m.Source, at: filepath.Join(r.volumesDir(s.Pod), strconv.Itoa(i)), readOnly: m.ReadOnly}
		p.clones, m.Source = append(p.clones, c), c.at
	}
	return p, nil
}

func (p *root) close() {
	if p.users != nil {
		_ = p.users.Close() // nothing is written to it
	}
}

// usersOfNet opens the user namespace that a container shares with its network.
func (r *Runtime) usersOfNet(path string) (*os.File, error) {
	users, err := userns.OfNet(path)
	if err != nil {
		return nil, &pod.Error{Class: pod.Retry, Sentence: "the pod's user namespace cannot be found", Err: err}
	}
	if users == nil {
		return nil, &pod.Error{Class: pod.Retry, Sentence: "the pod's network was made without a user namespace"}
	}
	return users, nil
}

// makeRoot makes a container's root, unless its record says that it has one. What is left of an earlier
// try is dropped: only a record makes a root worth keeping.
func (r *Runtime) makeRoot(ctx context.Context, p *root) error {
	id := p.spec.Pod
	if err := r.makeFolders(); err != nil { // Clean takes them away
		return fault("make the container's file system", err)
	}
	err := os.Mkdir(r.rootDir(id), 0o700)
	if errors.Is(err, fs.ErrExist) {
		_, cerr := r.client.ContainerService().Get(ctx, string(id))
		if cerr == nil {
			return nil
		}
		if !errdefs.IsNotFound(cerr) {
			return cerr
		}
		if err = r.dropRoot(ctx, id); err == nil {
			err = os.Mkdir(r.rootDir(id), 0o700)
		}
	}
	if err == nil {
		if err = r.fillRoot(ctx, p); err != nil {
			err = errors.Join(err, r.dropRoot(ctx, id))
		}
	}
	return fault("make the container's file system", err)
}

// fillRoot mounts all of a container's files, in a folder that was just made.
func (r *Runtime) fillRoot(ctx context.Context, p *root) error {
	s := p.spec
	view, err := r.view(ctx, p)
	faultpoint.Hit("define.view")
	if err != nil || view == nil {
		return err
	}
	lower, err := lowerFolders(view)
	if err != nil {
		return err
	}
	dir, err := r.cfg.Disks.Make(ctx, string(s.Pod), s.DiskGB)
	faultpoint.Hit("define.disk")
	if err != nil {
		return fmt.Errorf("make the container's disk: %w", err)
	}
	p.files = append([]string{dir}, lower[:1]...)
	o := overlay{
		lower: lower, upper: filepath.Join(dir, "upper"), work: filepath.Join(dir, "work"),
		target: r.rootDir(s.Pod), users: p.users,
	}
	for _, d := range []string{o.upper, o.work} {
		if err := os.Mkdir(d, 0o755); err != nil { //nolint:gosec // the upper one becomes the container's "/"
			return err
		}
		if err := os.Chown(d, int(s.IDBase), int(s.IDBase)); err != nil {
			return err
		}
	}
	if err := r.mountOverlay(o); err != nil {
		return err
	}
	faultpoint.Hit("define.mount")
	if err := checkRoot(o.target, s); err != nil {
		return err
	}
	if err := writeFiles(ctx, o.target, s); err != nil {
		return err
	}
	if err := r.mountClones(p); err != nil {
		return err
	}
	faultpoint.Hit("define.volumes")
	if p.users != nil {
		return userns.Pin(p.users, r.usersPath(s.Pod))
	}
	return nil
}

// view keeps the image's files on the host for as long as the container is there, and returns their
// mounts; none when an earlier version of this program has made the container.
func (r *Runtime) view(ctx context.Context, p *root) ([]mount.Mount, error) {
	key, sn := string(p.spec.Pod), r.snapshots()
	labels := snapshots.WithLabels(map[string]string{labelRoot: time.Now().UTC().Format(time.RFC3339), labelPod: key})
	view, err := sn.View(ctx, key, p.image.chain, labels)
	if err != nil && r.dropOrphan(ctx, err) {
		view, err = sn.View(ctx, key, p.image.chain, labels)
	}
	if errdefs.IsAlreadyExists(err) {
		if _, cerr := r.client.ContainerService().Get(ctx, key); cerr == nil {
			return nil, nil
		} else if !errdefs.IsNotFound(cerr) {
			return nil, cerr
		}
		if err = sn.Remove(ctx, key); err == nil || errdefs.IsNotFound(err) {
			view, err = sn.View(ctx, key, p.image.chain, labels)
		}
	}
	if errdefs.IsNotFound(err) {
		return nil, r.noImage(p.spec)
	}
	return view, err
}

// orphanInTheWay is how a snapshotter words it that a folder has the number that is next.
var orphanInTheWay = regexp.MustCompile(`rename (/\S+/snapshots)/new-\d+ (/\S+/snapshots)/(\d+): file exists`)

// dropOrphan removes the folder of a snapshot that a daemon which was killed had made and not yet written
// down, and reports whether it did. The daemon would give the same number out for ever, and refuse every
// snapshot: it looks for such folders only after it has removed another one.
func (r *Runtime) dropOrphan(ctx context.Context, cause error) bool {
	m := orphanInTheWay.FindStringSubmatch(cause.Error())
	if m == nil || m[1] != m[2] {
		return false
	}
	roots, err := r.folders(ctx)
	if err != nil || !slices.Contains(roots, filepath.Dir(m[1])) {
		return false
	}
	orphan := filepath.Join(m[1], m[3])
	r.cfg.Log.Warn("removing a folder that a dead containerd left", "path", orphan)
	return os.RemoveAll(orphan) == nil
}

// lowerFolders returns the folders of an image's files, the topmost first.
func lowerFolders(view []mount.Mount) ([]string, error) {
	if len(view) != 1 {
		return nil, fmt.Errorf("the snapshotter gives %d mounts", len(view))
	}
	m := view[0]
	switch m.Type {
	case "bind":
		return []string{m.Source}, nil
	case "overlay":
		for _, o := range m.Options {
			if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
				return strings.Split(dirs, ":"), nil
			}
		}
	}
	return nil, fmt.Errorf("the snapshotter gives mounts of type %q", m.Type)
}

// mountClones mounts the container's volumes as its user namespace has to see them, but those that are so already.
func (r *Runtime) mountClones(p *root) error {
	if len(p.clones) == 0 {
		return nil
	}
	if err := r.dropClones(p.spec.Pod); err != nil {
		return err
	}
	if err := os.Mkdir(r.volumesDir(p.spec.Pod), 0o700); err != nil {
		return err
	}
	for _, c := range p.clones {
		err := os.Mkdir(c.at, 0o700)
		if err == nil {
			flags := uint64(unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID)
			if c.readOnly {
				flags |= unix.MOUNT_ATTR_RDONLY
			}
			err = attachTree(c.source, c.at, mountAttr(p.users, flags))
		}
		if errors.Is(err, errNoIDs) {
			return &pod.Error{Class: pod.Retry, Sentence: "the file system of the pod's volume has no user namespaces", Err: err}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dropRoot removes what is there of a pod's root, whichever parts of it. Nothing may run there any more.
// The folder goes last: by it a later call finds what this one left.
func (r *Runtime) dropRoot(ctx context.Context, id fleet.PodID) error {
	if err := r.dropFiles(ctx, id); err != nil {
		return err
	}
	return r.dropView(ctx, id)
}

// dropFiles removes what is mounted for a pod, and its disk.
func (r *Runtime) dropFiles(ctx context.Context, id fleet.PodID) error {
	if err := unmountAll(r.rootDir(id)); err != nil {
		return err
	}
	if err := freshFolder(r.rootDir(id)); err != nil {
		return err
	}
	faultpoint.Hit("remove.mount")
	if err := r.dropClones(id); err != nil {
		return err
	}
	if err := userns.Unpin(r.usersPath(id)); err != nil {
		return err
	}
	faultpoint.Hit("remove.users")
	if err := r.cfg.Disks.Remove(ctx, string(id)); err != nil {
		return fmt.Errorf("remove the container's disk: %w", err)
	}
	faultpoint.Hit("remove.disk")
	return nil
}

// dropClones takes the container's volumes away from where its user namespace saw them.
func (r *Runtime) dropClones(id fleet.PodID) error {
	for _, name := range entries(r.volumesDir(id)) {
		if err := detach(filepath.Join(r.volumesDir(id), name)); err != nil {
			return err
		}
	}
	return detach(r.volumesDir(id))
}

// dropView lets go of the image's files, and then of the folder of the root.
func (r *Runtime) dropView(ctx context.Context, id fleet.PodID) error {
	if err := r.snapshots().Remove(ctx, string(id)); err != nil && !errdefs.IsNotFound(err) {
		return fault("remove the container's file system", err)
	}
	faultpoint.Hit("remove.view")
	return detach(r.rootDir(id))
}

// rooted lists the pods of which a root or a part of one is there.
func (r *Runtime) rooted() ([]fleet.PodID, error) {
	names, err := r.cfg.Disks.Names()
	if err != nil {
		return nil, fmt.Errorf("list the containers' disks: %w", err)
	}
	for _, dir := range []string{r.cfg.RootDir, filepath.Join(r.cfg.RunDir, usersFolder), filepath.Join(r.cfg.RunDir, volumeFolder)} {
		names = append(names, entries(dir)...)
	}
	slices.Sort(names)
	var out []fleet.PodID
	for _, name := range slices.Compact(names) {
		if id := fleet.PodID(name); checkID(id) == nil {
			out = append(out, id)
		}
	}
	return out, nil
}

// rootMount is what the shim mounts as the container's root.
func (r *Runtime) rootMount(id fleet.PodID) []mount.Mount {
	return []mount.Mount{{Type: "bind", Source: r.rootDir(id), Options: []string{"bind", "rw"}}}
}
