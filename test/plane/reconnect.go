package plane

import (
	"gantry/fleet"
	"gantry/scheduler/state"
)

// Reconnect begins a new session of a host after a reboot, in which it has n GPUs of a type, the same shares as
// before and no public ports.
func (p *Plane) Reconnect(id fleet.HostID, gpu string, n int, memoryMB int64) {
	p.t.Helper()
	was := p.host(id).Inventory
	p.Do(state.ConnectHost{
		Host: id, MachineID: "machine-" + string(id), BootID: "boot-2", At: p.Now(),
		Inventory: inventory(gpu, n, memoryMB, fleet.Inventory{Total: was.Total, CUDA: was.CUDA}),
	})
}

// Have begins a new session of a host in which it has these images, and is otherwise what it was.
func (p *Plane) Have(id fleet.HostID, images ...string) {
	p.t.Helper()
	inv := p.host(id).Inventory
	inv.Images = images
	p.Do(state.ConnectHost{Host: id, MachineID: "machine-" + string(id), BootID: "boot-1", At: p.Now(), Inventory: inv})
}
