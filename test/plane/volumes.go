package plane

import (
	"fmt"
	"strings"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// Storage returns the name of the backend that PutVolume makes in a data center.
func Storage(dc fleet.DataCenterID) fleet.BackendID { return fleet.BackendID("storage-" + dc) }

// PutBackend makes a backend of network volumes on a made-up NFS server, unless it is there.
func (p *Plane) PutBackend(id fleet.BackendID, dc fleet.DataCenterID, tier fleet.VolumeType) {
	p.t.Helper()
	there := false
	p.View(func(v *state.View) { _, there = v.Backend(id) })
	if there {
		return
	}
	p.Do(state.PutBackend{New: true, Backend: fleet.Backend{
		ID: id, DataCenter: dc, Type: tier, Kind: fleet.BackendNFS, CreatedAt: p.Now(),
		NFS: &fleet.NFSBackend{Server: "nfs.example", Export: "/srv/" + string(id)},
	}})
}

// PutVolume makes a network volume of the account of a key, with a fixed identifier, and the backend Storage(dc) for it.
func (p *Plane) PutVolume(key string, number int, dc fleet.DataCenterID) fleet.VolumeID {
	p.t.Helper()
	p.PutBackend(Storage(dc), dc, fleet.VolumeStandard)
	const dirLength = 26
	dir := strings.Map(func(r rune) rune { return 'a' + r - '0' }, fmt.Sprintf("%0*d", dirLength, number))
	v := fleet.Volume{
		ID: fleet.VolumeID(fmt.Sprintf("vol%011d", number)), Account: p.key(key).Account, Name: "data", SizeGB: 100,
		DataCenter: dc, Type: fleet.VolumeStandard, Backend: Storage(dc), Dir: dir, CreatedAt: p.Now(),
	}
	p.Do(state.CreateVolume{Volume: v})
	return v.ID
}

// Provision plays a host that makes a volume, or gives it the size that it is to have; of one that is being deleted it
// removes what is left. The host of the data center has the role storage from then on.
func (p *Plane) Provision(id fleet.VolumeID) {
	p.t.Helper()
	p.reportVolume(id, func(v *fleet.Volume) state.VolumeReport {
		if v.State == fleet.VolumeDeleting {
			return state.VolumeReport{Volume: id, Gone: true}
		}
		return state.VolumeReport{Volume: id, ProvisionedGB: v.SizeGB}
	})
}

// SetReadOnly plays a host that found that a network volume holds too much, or does no more.
func (p *Plane) SetReadOnly(id fleet.VolumeID, over bool) {
	p.t.Helper()
	p.reportVolume(id, func(*fleet.Volume) state.VolumeReport { return state.VolumeReport{Volume: id, ReadOnly: &over} })
}

// reportVolume has the host of the volume's data center say something of it, which gets the role storage for that.
func (p *Plane) reportVolume(id fleet.VolumeID, say func(*fleet.Volume) state.VolumeReport) {
	p.t.Helper()
	var volume fleet.Volume
	var host fleet.Host
	p.View(func(v *state.View) {
		volume, _ = v.VolumeRecord(id)
		for _, h := range v.Hosts() {
			if h.DataCenter == volume.DataCenter {
				host = h
			}
		}
	})
	if !host.Has(fleet.RoleStorage) {
		p.Do(state.SetHostRoles{Host: host.ID, Roles: append(host.Roles, fleet.RoleStorage)})
	}
	p.Do(state.ReportVolumes{Host: host.ID, Epoch: host.Epoch, At: p.Now(), Volumes: []state.VolumeReport{say(&volume)}})
}

// SetUsed says how much a network volume holds, in bytes, and what is wrong with it; empty: nothing is.
func (p *Plane) SetUsed(id fleet.VolumeID, used int64, problem string) {
	p.hosts.change(func() { p.hosts.volumes[id] = measured{used, problem} })
}

// SetStorageHost says which connected host looks after a backend; empty: none does.
func (p *Plane) SetStorageHost(id fleet.BackendID, host fleet.HostID) {
	p.hosts.change(func() { p.hosts.storage[id] = host })
}

// measured is what was heard of a network volume.
type measured struct {
	used    int64
	problem string
}

// StorageHost returns what SetStorageHost said.
func (h *hosts) StorageHost(id fleet.BackendID) fleet.HostID {
	h.mu.Lock()
	defer h.mu.Unlock()
	if host := h.storage[id]; !h.lost[host] {
		return host
	}
	return ""
}

// SeenVolume returns what SetUsed said.
func (h *hosts) SeenVolume(id fleet.VolumeID) (*int64, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m, ok := h.volumes[id]
	if !ok {
		return nil, ""
	}
	return &m.used, m.problem
}
