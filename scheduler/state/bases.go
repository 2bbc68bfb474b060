package state

import (
	"bytes"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

const (
	// volumeSlots is how many volumes a data center can have: each has ids of its own.
	volumeSlots = int(fleet.VolumeIDsLast-fleet.VolumeIDsFirst)/fleet.VolumeIDs + 1
	// unknownSlots is how many bases a restore leaves out at least: those that may have been given out after the copy
	// was made are on the storage, with files and with pods that this cluster does not know.
	unknownSlots = 4096
)

// baseUse is how many volumes of a data center have each base.
type baseUse struct {
	n  int
	of [volumeSlots]uint8
}

// countBase says that a volume, which may be nil, has its base, or has it no more.
func (tb *tables) countBase(v *fleet.Volume, n int) {
	if v == nil {
		return
	}
	i, ok := slotOf(v)
	if !ok {
		return
	}
	use := tb.baseUses[v.DataCenter]
	if use == nil {
		use = &baseUse{}
		tb.baseUses[v.DataCenter] = use
	}
	use.n += n
	use.of[i] += uint8(n) // of -1, one less
	if use.n == 0 {
		delete(tb.baseUses, v.DataCenter)
	}
}

// slotOf returns which of the bases of its data center a volume has; false when it has none.
func slotOf(v *fleet.Volume) (int, bool) {
	if v.IDBase < fleet.VolumeIDsFirst || v.IDBase > fleet.VolumeIDsLast {
		return 0, false
	}
	return int(v.IDBase-fleet.VolumeIDsFirst) / fleet.VolumeIDs, true
}

// takeBase gives out the next base of a data center that no volume has, as the batch has them; false when there is
// none. One that was let go comes again only when all the others had their turn.
func (t *txn) takeBase(center fleet.DataCenterID) (uint32, bool) {
	use, from := t.basesOf(center), t.nextSlot(center)
	i := bytes.IndexByte(use[from:], 0)
	if i += from; i < from {
		if i = bytes.IndexByte(use[:from], 0); i < 0 {
			return 0, false
		}
	}
	next := uint32((i + 1) % volumeSlots) //nolint:gosec // small
	t.base.bases.Put(t.Txn, center, &next)
	return fleet.VolumeIDsFirst + uint32(i)*fleet.VolumeIDs, true //nolint:gosec // small
}

// basesOf counts the volumes of a data center at each base, as the batch has them.
func (t *txn) basesOf(center fleet.DataCenterID) (use [volumeSlots]uint8) {
	if had := t.base.baseUses[center]; had != nil {
		use = had.of
	}
	for key := range t.base.volumesIn.Changed(t.Txn, center) {
		id := fleet.VolumeID(key)
		if old := t.base.volumes.Rows[id]; old != nil && old.DataCenter == center {
			if i, ok := slotOf(old); ok {
				use[i]--
			}
		}
		if v := t.base.volumes.Get(t.Txn, id); v != nil && v.DataCenter == center {
			if i, ok := slotOf(v); ok {
				use[i]++
			}
		}
	}
	return use
}

// nextSlot returns where the search for a free base begins.
func (t *txn) nextSlot(center fleet.DataCenterID) int {
	if next := t.base.bases.Get(t.Txn, center); next != nil {
		return int(*next) % volumeSlots
	}
	return slotsPast(0, t.lineage())
}

// skipBases has a restored cluster give out bases that none of the others of its copy gives out, as far as that can be.
func (t *txn) skipBases() {
	lineage := t.lineage()
	for _, center := range t.base.bases.Keys(t.Txn, 0, table.All) {
		next := uint32(slotsPast(t.nextSlot(center), lineage)) //nolint:gosec // small
		t.base.bases.Put(t.Txn, center, &next)
	}
}

// slotsPast returns where a cluster of a lineage goes on that was restored from a copy which was at a slot: past what
// the cluster of the copy may have given out since, and elsewhere than others that are restored from the same copy.
func slotsPast(slot int, lineage uint64) int {
	if lineage == 0 {
		return slot
	}
	return int(pastCopy(uint32(slot), uint32(volumeSlots), lineage)) //nolint:gosec // small
}

// pastCopy is slotsPast for any space.
func pastCopy(at, space uint32, lineage uint64) uint32 {
	unknown := min(unknownSlots, uint64(space)/4)
	room := uint64(space) - 2*unknown
	mixed := lineage * 0x9E3779B97F4A7C15                                    // lineages that follow each other come far apart
	return uint32((uint64(at) + unknown + (mixed>>32)%room) % uint64(space)) //nolint:gosec // below space
}
