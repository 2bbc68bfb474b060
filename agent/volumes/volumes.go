// Package volumes has the network volumes that pods of this host use: it checks those that schedulers name, times how long
// attaching takes, says which backends do not answer, and releases what is attached for pods that are gone.
package volumes

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/storage/volume"
)

// Mounts are the network volumes that a host can mount. Implementations are safe for concurrent use.
type Mounts interface {
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

const (
	sweepEvery  = 30 * time.Second // what is attached is compared with the ledger
	sweepDetach = 5 * time.Second
)

var (
	backendName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	volumeDir   = regexp.MustCompile(`^[a-z0-9]{16,64}$`)
)

// Decode reads the network volume of an order. The error says in a sentence what the host does not take: names
// become those of folders, and ids those of a user namespace.
func Decode(v *agentrpc.NetworkVolume) (*volume.Volume, error) {
	if v == nil {
		return nil, nil
	}
	out := &volume.Volume{
		ID: fleet.VolumeID(v.GetVolumeId()), Dir: v.GetDir(), IDBase: v.GetIdBase(), ReadOnly: v.GetReadOnly(), Ready: v.GetReady(),
		Backend: DecodeBackend(v.GetBackend()),
	}
	if err := CheckBackend(out.Backend); err != nil {
		return nil, err
	}
	return out, Check(string(out.ID), out.Dir, out.IDBase)
}

// DecodeBackend reads a backend.
func DecodeBackend(b *agentrpc.VolumeBackend) volume.Backend {
	return volume.Backend{
		ID: fleet.BackendID(b.GetId()), Kind: fleet.BackendKind(b.GetKind()), Server: b.GetServer(), Options: b.GetOptions(),
		Monitors: b.GetMonitors(), FileSystem: b.GetFileSystem(), User: b.GetUser(), Key: fleet.Secret(b.GetKey()),
		Path: b.GetPath(), SizedByHost: b.GetSizedByHost(),
	}
}

// CheckBackend says in a sentence what the host does not take of a backend.
func CheckBackend(b volume.Backend) error {
	switch {
	case !backendName.MatchString(string(b.ID)):
		return fmt.Errorf("the order names a network volume on a backend of the name %.80q, which the host does not take", b.ID)
	case !slices.Contains([]fleet.BackendKind{fleet.BackendNFS, fleet.BackendCeph, fleet.BackendLocal}, b.Kind):
		return fmt.Errorf("the order names a network volume on a backend of the kind %.80q, which the host does not know", b.Kind)
	case !CleanPath(b.Path):
		return fmt.Errorf("the order names a network volume on a backend without a proper path")
	}
	return nil
}

// Check says in a sentence what the host does not take of a volume.
func Check(id, dir string, base uint32) error {
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

// CleanPath reports whether a path is absolute and written in the shortest way.
func CleanPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0)
}

// Conditions tells which backends of network volumes do not answer. Their pods wait; all others go on.
func Conditions(health []volume.Health) []fleet.Condition {
	const most = 300
	var out []fleet.Condition
	for _, h := range health {
		if h.Down.IsZero() {
			continue
		}
		text := []rune(fmt.Sprintf("the backend %s of network volumes does not answer since %s: %s", h.Backend, h.Down.UTC().Format(time.RFC3339), h.Text))
		out = append(out, fleet.Condition{Code: "volume_backend_down", Text: string(text[:min(len(text), most)])})
	}
	return out
}

// attaching tells how long it takes to attach volumes.
type attaching struct {
	Mounts
	took func(time.Duration)
}

// Attach implements pod.Volumes.
func (a attaching) Attach(ctx context.Context, id fleet.PodID, v volume.Volume) (string, error) {
	began := time.Now()
	dir, err := a.Mounts.Attach(ctx, id, v)
	if err == nil {
		a.took(time.Since(began))
	}
	return dir, err
}

// Timed is m as pods use it. took is told how long each attachment took that succeeded.
func Timed(m Mounts, took func(time.Duration)) pod.Volumes { return attaching{m, took} }

// Dead reports whether a backend does not answer. With m nil none is mounted.
func Dead(m Mounts, id fleet.BackendID) bool {
	return m != nil && slices.ContainsFunc(m.Health(), func(h volume.Health) bool { return h.Backend == id && !h.Down.IsZero() })
}

// Keeper looks after what is mounted.
type Keeper struct {
	Mounts Mounts
	// Known reports whether the ledger knows a pod.
	Known func(fleet.PodID) bool
	// Swept reports whether the containers of unknown pods are gone: what is attached for them may be in use before.
	Swept   func() bool
	Changed func() // is called when a backend has stopped to answer, or answers again
	Log     *slog.Logger
}

// Run looks after what is mounted until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.Mounts.Run(ctx)
	}()
	defer func() { <-ended }()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-k.Mounts.Changed():
			k.Changed()
			continue
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if k.Swept() {
			k.sweep(ctx)
		}
	}
}

// sweep lets go of what is attached for pods that the ledger does not know: leftovers of a lost ledger or of a crash.
func (k *Keeper) sweep(ctx context.Context) {
	ids, err := k.Mounts.Attached()
	if err != nil {
		k.Log.Warn("list attached network volumes", "err", err)
		return
	}
	for _, id := range ids {
		if k.Known(id) || ctx.Err() != nil {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, sweepDetach)
		err := k.Mounts.Detach(limited, id)
		cancel()
		if err != nil {
			k.Log.Warn("release the network volume of an unknown pod", "pod", id, "err", err)
			continue
		}
		k.Log.Warn("released the network volume of an unknown pod", "pod", id)
	}
}
