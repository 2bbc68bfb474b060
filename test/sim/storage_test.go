package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"gantry/agent/storage"
	"gantry/fleet"
	"gantry/scheduler/state"
	"gantry/storage/volume"
)

// simBackend is where all network volumes are: on a server that only measures.
const simBackend fleet.BackendID = "nfs"

// server is the storage behind simBackend: the directories that are there, of all hosts alike.
type server struct {
	world *world

	mu   sync.Mutex // guards the field below
	dirs map[string]storage.Volume
}

func newServer(w *world) *server {
	return &server{world: w, dirs: map[string]storage.Volume{}}
}

// putBackend gives the cluster its storage.
func putBackend() state.Command {
	return state.PutBackend{New: true, Backend: fleet.Backend{
		ID: simBackend, DataCenter: "dc-1", Type: fleet.VolumeStandard, Kind: fleet.BackendNFS, CreatedAt: time.Now(),
		NFS: &fleet.NFSBackend{Server: "nfs", Export: "/srv"},
	}}
}

// simVolumes are the network volumes of a host.
type simVolumes struct{ *machine }

// errNoDir says that a volume's directory is not on the server.
var errNoDir = errors.New("its directory is not there")

// Attach implements pod.Volumes: what is ready is on the server.
func (s simVolumes) Attach(_ context.Context, id fleet.PodID, v volume.Volume) (string, error) {
	if !v.Ready {
		return "", &volume.Error{Sentence: "the network volume is being prepared"}
	}
	if w, ok := s.watch.(*world); ok && !w.store.has(v.Dir) {
		return "", &volume.Error{Sentence: "the network volume is not on its storage", Err: errNoDir}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached[id] = v.ID
	return "/attached/" + string(id), nil
}

// SetReadOnly implements pod.Volumes.
func (simVolumes) SetReadOnly(context.Context, fleet.PodID, int, volume.Volume) error { return nil }

// Ending implements pod.Volumes.
func (simVolumes) Ending(fleet.PodID) {}

// Detach implements pod.Volumes.
func (s simVolumes) Detach(_ context.Context, id fleet.PodID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.attached, id)
	return nil
}

// Attached implements pod.Volumes.
func (s simVolumes) Attached() ([]fleet.PodID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []fleet.PodID
	for id := range s.attached {
		out = append(out, id)
	}
	return out, nil
}

// Kinds implements volumes.Mounts.
func (simVolumes) Kinds() []fleet.BackendKind { return []fleet.BackendKind{fleet.BackendNFS} }

// Health implements volumes.Mounts.
func (simVolumes) Health() []volume.Health { return nil }

// Changed implements volumes.Mounts.
func (simVolumes) Changed() <-chan struct{} { return nil }

// Run implements volumes.Mounts.
func (simVolumes) Run(ctx context.Context) { <-ctx.Done() }

func (s *server) has(dir string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.dirs[dir]
	return there
}

// Restore implements storage.Provisioner.
func (s *server) Restore(context.Context, storage.Root) error { return nil }

// Make implements storage.Provisioner: no two directories have one owner, also where the control plane forgot one of them.
func (s *server) Make(_ context.Context, _ storage.Root, v storage.Volume) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for dir, other := range s.dirs {
		if dir != v.Dir && other.IDBase == v.IDBase {
			s.world.broke("I8: volume %s is made for the owner of volume %s, which is on the storage", v.ID, other.ID)
		}
	}
	s.dirs[v.Dir] = v
	return nil
}

// Remove implements storage.Provisioner: no process has what is removed.
func (s *server) Remove(_ context.Context, _ storage.Root, v storage.Volume) error {
	for _, h := range s.world.allHosts() {
		for id, has := range h.withVolumes() {
			if has == v.ID {
				s.world.broke("volume %s is removed while pod %s runs with it on %s", v.ID, id, h.name)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.dirs, v.Dir)
	return nil
}

// Used implements storage.Provisioner.
func (s *server) Used(context.Context, storage.Root, storage.Volume) (int64, error) {
	return 1_000_000_000, nil
}

// withVolumes returns the pods whose process runs with a network volume, and which.
func (m *machine) withVolumes() map[fleet.PodID]fleet.VolumeID {
	running, _ := m.census()
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[fleet.PodID]fleet.VolumeID{}
	for id := range running {
		if v := m.attached[id]; v != "" {
			out[id] = v
		}
	}
	return out
}

// userVolumes makes, changes or deletes a network volume; tally is held.
func (d *driver) userVolumes(account fleet.AccountID) func() {
	n, all := d.rng.IntN(4), d.volumes[account]
	if account == prepaidAccount {
		return nil // so that it can pay
	}
	if len(all) == 0 || n < 2 && len(all) < 6 {
		once := d.once("volume")
		return func() { d.userMakesVolume(account, once) }
	}
	id, size := all[d.rng.IntN(len(all))], 10+d.rng.IntN(30)
	return func() {
		_, err := d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
			if n == 2 {
				return fleet.PodView{}, p.service.DeleteVolume(ctx, principal(account), id)
			}
			_, err := p.service.UpdateVolume(ctx, principal(account), id, fleet.VolumeUpdate{SizeGB: &size})
			return fleet.PodView{}, err
		})
		d.told("volume", err, fleet.CodeNotFound, fleet.CodeConflictRule, fleet.CodeInUse)
		if n == 2 && err == nil {
			d.note("volume deleted")
		}
	}
}

// userMakesVolume makes a network volume under an idempotency key.
func (d *driver) userMakesVolume(account fleet.AccountID, once attempt) {
	var made fleet.VolumeView
	answered, err := d.certain(once, func() (string, bool, error) {
		var replayed bool
		_, err := d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
			var err error
			made, replayed, err = p.service.CreateVolume(ctx, principal(account), fleet.VolumeRequest{
				Name: once.name, SizeGB: 10, DataCenter: "dc-1", Once: once.key,
			})
			return fleet.PodView{}, err
		})
		return string(made.Volume.ID), replayed, err
	})
	if !answered {
		return
	}
	d.told("volume", err)
	d.tally.Lock()
	defer d.tally.Unlock()
	if d.only[once.name] = string(made.Volume.ID); err == nil {
		d.volumes[account] = append(d.volumes[account], made.Volume.ID)
	}
}

// mounts gives a pod one of its account's network volumes now and then; tally is held.
func (d *driver) mounts(account fleet.AccountID, req *fleet.PodRequest) {
	if all := d.volumes[account]; len(all) > 0 && req.Persistent == nil && d.rng.IntN(3) == 0 {
		req.Network = &fleet.NetworkMount{Volume: all[d.rng.IntN(len(all))], Path: fleet.DefaultVolumePath}
	}
}

// housed tells which network volumes are not as they are to be: those that were deleted are gone in the end, and the
// others are there in full.
func (c *checker) housed(now picture) (wrong []string) {
	for _, v := range now.volumes {
		switch {
		case v.State == fleet.VolumeDeleting:
			wrong = append(wrong, fmt.Sprintf("volume %s was deleted at %s and is not gone", v.ID, v.DeletedAt))
		case v.State != fleet.VolumeReady || v.ProvisionedGB != v.SizeGB || v.ReadOnly:
			wrong = append(wrong, fmt.Sprintf("volume %s is not as it is to be: %+v", v.ID, v))
		case !c.w.store.has(v.Dir):
			wrong = append(wrong, fmt.Sprintf("volume %s is not on its storage", v.ID))
		}
	}
	return wrong
}

// kept checks network volumes at every step: no process has one that was deleted, and no two share owners.
func (c *checker) kept(now picture) {
	state, bases := map[fleet.VolumeID]fleet.VolumeState{}, map[uint32]fleet.VolumeID{}
	for _, v := range now.volumes {
		if other, taken := bases[v.IDBase]; taken {
			c.w.broke("I8: volumes %s and %s have the same owners", other, v.ID)
		}
		state[v.ID], bases[v.IDBase] = v.State, v.ID
	}
	for _, p := range now.pods {
		if m := p.Spec.Network; m != nil && p.Status != fleet.StatusTerminated && state[m.Volume] != fleet.VolumeReady && state[m.Volume] != fleet.VolumeCreating {
			c.w.broke("pod %s is %s with volume %s, which is %q", p.ID, p.Status, m.Volume, state[m.Volume])
		}
	}
}

// relearnVolumes has users know the volumes that are there after a restore; tally is held.
func (d *driver) relearnVolumes(now picture) {
	clear(d.volumes)
	for _, v := range now.volumes {
		if v.State != fleet.VolumeDeleting {
			d.volumes[v.Account] = append(d.volumes[v.Account], v.ID)
		}
	}
}
