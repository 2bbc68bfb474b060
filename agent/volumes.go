package agent

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/link"
	"gantry/storage/volume"
)

// NetworkVolumes are the network volumes that a host can mount. Implementations are safe for concurrent use.
type NetworkVolumes interface {
	pod.Volumes
	// Kinds are those of the backends that the host can mount.
	Kinds() []fleet.BackendKind
	// Health tells how each mounted backend is.
	Health() []volume.Health
	// Changed receives when Health has become another.
	Changed() <-chan struct{}
	// Run looks after what is mounted until ctx ends.
	Run(ctx context.Context)
}

// sweepVolumesEvery is how often what is attached is compared with the ledger.
const sweepVolumesEvery = 30 * time.Second

var (
	backendName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	volumeDir   = regexp.MustCompile(`^[a-z0-9]{16,64}$`)
)

// decodeVolume reads the network volume of an order. The error says in a sentence what the host does not take: names
// become those of folders, and ids those of a user namespace.
func decodeVolume(v *link.NetworkVolume) (*volume.Volume, error) {
	if v == nil {
		return nil, nil
	}
	out := &volume.Volume{
		ID: fleet.VolumeID(v.GetVolumeId()), Dir: v.GetDir(), IDBase: v.GetIdBase(), ReadOnly: v.GetReadOnly(), Ready: v.GetReady(),
		Backend: decodeBackend(v.GetBackend()),
	}
	if err := checkBackend(out.Backend); err != nil {
		return nil, err
	}
	return out, checkVolume(string(out.ID), out.Dir, out.IDBase)
}

func decodeBackend(b *link.VolumeBackend) volume.Backend {
	return volume.Backend{
		ID: fleet.BackendID(b.GetId()), Kind: fleet.BackendKind(b.GetKind()), Server: b.GetServer(), Options: b.GetOptions(),
		Monitors: b.GetMonitors(), FileSystem: b.GetFileSystem(), User: b.GetUser(), Key: fleet.Secret(b.GetKey()),
		Path: b.GetPath(), SizedByHost: b.GetSizedByHost(),
	}
}

func checkBackend(b volume.Backend) error {
	switch {
	case !backendName.MatchString(string(b.ID)):
		return fmt.Errorf("the order names a network volume on a backend of the name %.80q, which the host does not take", b.ID)
	case !slices.Contains([]fleet.BackendKind{fleet.BackendNFS, fleet.BackendCeph, fleet.BackendLocal}, b.Kind):
		return fmt.Errorf("the order names a network volume on a backend of the kind %.80q, which the host does not know", b.Kind)
	case !cleanPath(b.Path):
		return fmt.Errorf("the order names a network volume on a backend without a proper path")
	}
	return nil
}

func checkVolume(id, dir string, base uint32) error {
	switch {
	case id == "" || len(id) > 64 || strings.ContainsAny(id, "/\x00"):
		return fmt.Errorf("the order names a network volume without a proper id")
	case !volumeDir.MatchString(dir):
		return fmt.Errorf("the order names a network volume with a directory that the host does not take")
	case base < fleet.VolumeIDsFirst || base > fleet.VolumeIDsLast || base%fleet.VolumeIDs != 0:
		return fmt.Errorf("the order names a network volume with owners that the host does not take")
	}
	return nil
}

// cleanPath reports whether a path is absolute and written in the shortest way.
func cleanPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0)
}

// notices tells which backends of network volumes do not answer. Their pods wait; all others go on.
func volumeNotices(health []volume.Health) []fleet.Notice {
	const most = 300
	var out []fleet.Notice
	for _, h := range health {
		if h.Down.IsZero() {
			continue
		}
		text := []rune(fmt.Sprintf("the backend %s of network volumes does not answer since %s: %s", h.Backend, h.Down.UTC().Format(time.RFC3339), h.Text))
		out = append(out, fleet.Notice{Code: "volume_backend_down", Text: string(text[:min(len(text), most)])})
	}
	return out
}

// attaching counts how long it takes to attach volumes.
type attaching struct {
	NetworkVolumes
	metrics *metrics
}

// Attach implements pod.Volumes.
func (a attaching) Attach(ctx context.Context, id fleet.PodID, v volume.Volume) (string, error) {
	began := time.Now()
	dir, err := a.NetworkVolumes.Attach(ctx, id, v)
	if err == nil {
		a.metrics.attachments.Observe(time.Since(began).Seconds())
	}
	return dir, err
}

// podVolumes is what the pods' machines are given.
func (d *daemon) podVolumes() pod.Volumes {
	if d.Volumes == nil {
		return nil
	}
	return attaching{d.Volumes, d.metrics}
}

// volumeDead reports whether a backend of network volumes does not answer.
func (d *daemon) volumeDead(id fleet.BackendID) bool {
	return d.Volumes != nil && slices.ContainsFunc(d.Volumes.Health(), func(h volume.Health) bool { return h.Backend == id && !h.Down.IsZero() })
}

// keepVolumes looks after what is mounted until ctx ends.
func (d *daemon) keepVolumes(ctx context.Context) {
	if d.Volumes == nil {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.Volumes.Run(ctx)
	}()
	defer func() { <-ended }()
	tick := time.NewTicker(sweepVolumesEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.Volumes.Changed():
			d.pods.Poke() // a backend may answer again
			d.sessions.storage.again()
			d.stir()
			continue
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if d.sweptOnce.Load() {
			d.sweepVolumes(ctx)
		}
	}
}

// sweepVolumes lets go of what is attached for pods that the ledger does not know: leftovers of a lost ledger or of a
// crash. Their containers are gone: that was seen to before.
func (d *daemon) sweepVolumes(ctx context.Context) {
	ids, err := d.Volumes.Attached()
	if err != nil {
		d.Log.Warn("list attached network volumes", "err", err)
		return
	}
	for _, id := range ids {
		if _, known := d.book.Record(id); known || ctx.Err() != nil {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, sweepDetach)
		err := d.Volumes.Detach(limited, id)
		cancel()
		if err != nil {
			d.Log.Warn("release the network volume of an unknown pod", "pod", id, "err", err)
			continue
		}
		d.Log.Warn("released the network volume of an unknown pod", "pod", id)
	}
}

const sweepDetach = 5 * time.Second
