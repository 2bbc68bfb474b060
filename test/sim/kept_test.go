package sim

import (
	"gantry/fleet"
	"gantry/scheduler/state"
)

// leaves checks that a command gave a pod without GPUs nothing of what its host keeps for those that are free. A pod on the move
// has what it was promised.
func leaves(w *world, store *state.Store, index uint64, old, rec fleet.Pod) error {
	if rec.Spec.GPU != nil || rec.Goal != fleet.GoalRun {
		return nil
	}
	var placed []fleet.HostID
	promised := old.Moving && (old.Host == rec.Host || old.Target != nil && old.Target.Host == rec.Host)
	// Of disks nothing is kept.
	stays := old.Held && old.Host == rec.Host && old.Need.MilliCPU == rec.Need.MilliCPU && old.Need.MemoryMB == rec.Need.MemoryMB
	if rec.Held && !stays && !promised {
		placed = append(placed, rec.Host)
	}
	if to := rec.Target; to != nil && (old.Target == nil || old.Target.Host != to.Host) {
		placed = append(placed, to.Host)
	}
	return store.View(func(v *state.View) error {
		for _, id := range placed {
			if free, kept := spare(v, id); free.MilliCPU < kept.MilliCPU || free.MemoryMB < kept.MemoryMB {
				w.broke("entry %d puts pod %s into what host %s keeps for GPUs: %+v is free, %+v is kept", index, rec.ID, id, free, kept)
			}
		}
		return nil
	})
}

// spare adds up what is free on a host, and what of that is kept for its free GPUs.
func spare(v *state.View, id fleet.HostID) (free, kept fleet.Resources) {
	host, _ := v.Host(id)
	taken := map[string]bool{}
	total := host.Inventory.Total
	free = total
	takes := func(need fleet.Resources, gpus []string) {
		free.MilliCPU, free.MemoryMB = free.MilliCPU-need.MilliCPU, free.MemoryMB-need.MemoryMB
		for _, g := range gpus {
			taken[g] = true
		}
	}
	for _, a := range v.Accounts() {
		for _, p := range v.PodsOf(a.ID) {
			if p.Held && p.Host == id {
				takes(p.Need, p.GPUs)
			}
			if p.Target != nil && p.Target.Host == id {
				takes(p.Target.Need, p.Target.GPUs)
			}
		}
	}
	share := int64(100 * max(1, len(host.Inventory.GPUs)))
	percent := int64(v.Placement().KeepPercent)
	for _, g := range host.Inventory.GPUs {
		if !taken[g.UUID] && g.Out() == "" {
			kept.MilliCPU, kept.MemoryMB = kept.MilliCPU+total.MilliCPU*percent/share, kept.MemoryMB+total.MemoryMB*percent/share
		}
	}
	return free, kept
}
