package state

import (
	"gantry/fleet"
	"gantry/scheduler/meter"
)

func (c CreateVolume) apply(t *txn) (any, error) {
	volume := c.Volume
	if err := checkID("$.id", string(volume.ID)); err != nil {
		return nil, err
	}
	again, err := t.replay(onceVolume, volume.Account, c.Once, recorded(t, &t.base.volumes, cloneVolume))
	if err != nil || again != nil {
		return again, err
	}
	switch {
	case get(t, &t.base.accounts, volume.Account) == nil:
		return nil, fleet.NotFound("account")
	case get(t, &t.base.centers, volume.DataCenter) == nil:
		return nil, fleet.NotFound("data center")
	case get(t, &t.base.volumes, volume.ID) != nil:
		return nil, exists("there is a network volume with this id")
	case volume.SizeGB < 1 || volume.SizeGB > maxDiskGB:
		return nil, fleet.Invalid("$.size", "must be positive")
	case volume.Type != fleet.VolumeStandard && volume.Type != fleet.VolumeFast:
		return nil, fleet.Invalid("$.type", "must be STANDARD or HIGH_PERFORMANCE")
	}
	rate := meter.Volume(&volume, storagePrices(get(t, &t.base.catalog, onlyKey))).Total()
	err = t.solvent(volume.Account, rate, volume.CreatedAt, "Your account balance is too low to create a network volume")
	if err != nil {
		return nil, err
	}
	volume.Rev = 0
	t.remember(onceVolume, volume.Account, c.Once, string(volume.ID), volume.CreatedAt)
	return t.putVolume(&volume), nil
}

func (c UpdateVolume) apply(t *txn) (any, error) {
	old := get(t, &t.base.volumes, c.Volume)
	if old == nil || old.Account != c.Account {
		return nil, fleet.NotFound("network volume")
	}
	volume := *old
	if c.Name != nil {
		volume.Name = *c.Name
	}
	if c.SizeGB != nil {
		switch {
		case *c.SizeGB < old.SizeGB:
			return nil, fleet.BreaksRule("a network volume can grow, but not shrink")
		case *c.SizeGB > maxDiskGB:
			return nil, fleet.Invalid("$.size", "is too large")
		}
		volume.SizeGB = *c.SizeGB
	}
	return t.putVolume(&volume), nil
}

func (c DeleteVolume) apply(t *txn) (any, error) {
	volume := get(t, &t.base.volumes, c.Volume)
	if volume == nil || volume.Account != c.Account {
		return nil, fleet.NotFound("network volume")
	}
	pods := t.livePods(c.Account, func(p *fleet.Pod) bool { return p.Spec.Network != nil && p.Spec.Network.Volume == c.Volume })
	if err := inUse("the network volume", uses{pods, "pod"}); err != nil {
		return nil, err
	}
	t.dropVolume(c.Volume)
	return nil, nil
}

// putVolume writes a volume's record with the next revision and returns a copy of it.
func (t *txn) putVolume(volume *fleet.Volume) fleet.Volume {
	volume.Rev++
	t.meterVolume(get(t, &t.base.volumes, volume.ID), volume, t.now)
	put(t, &t.base.volumes, volume.ID, volume)
	t.note(KindAccount, string(volume.Account))
	return cloneVolume(volume)
}

// dropVolume deletes the record of a volume that is there.
func (t *txn) dropVolume(id fleet.VolumeID) {
	volume := get(t, &t.base.volumes, id)
	t.meterVolume(volume, nil, t.now)
	drop(t, &t.base.volumes, id)
	t.note(KindAccount, string(volume.Account))
}
