package state

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

// volumeDir is the form of the names of volumes' directories: 130 bits that nobody guesses.
var volumeDir = regexp.MustCompile(`^[a-z2-7]{26}$`)

func (c CreateVolume) apply(t *txn) (any, error) {
	in := c.Volume
	if err := checkID("$.id", string(in.ID)); err != nil {
		return nil, err
	}
	again, err := t.replay(onceVolume, in.Account, c.Once, t.madeVolume(in.Account))
	if err != nil || again != nil {
		return again, err
	}
	if err := c.check(t); err != nil {
		return nil, err
	}
	volume := fleet.Volume{
		ID: in.ID, Account: in.Account, Name: in.Name, SizeGB: in.SizeGB, DataCenter: in.DataCenter, Type: in.Type,
		CreatedAt: in.CreatedAt, Backend: in.Backend, Dir: in.Dir, State: fleet.VolumeCreating,
	}
	more := countsOfVolume(&volume)
	rate := meter.Volume(&volume, storagePrices(t.base.catalog.Get(t.Txn, onlyKey))).Total()
	more[fleet.LimitSpend] = int64(rate)
	if err := t.within(volume.Account, more); err != nil {
		return nil, err
	}
	base, ok := t.takeBase(in.DataCenter)
	if !ok {
		return nil, fleet.BreaksRule("data center %s can have no more than %d network volumes", in.DataCenter, volumeSlots)
	}
	volume.IDBase = base
	err = t.solvent(volume.Account, rate, volume.CreatedAt, "Your account balance is too low to create a network volume")
	if err != nil {
		return nil, err
	}
	t.remember(onceVolume, volume.Account, c.Once, string(volume.ID), volume.CreatedAt)
	return t.putVolume(&volume), nil
}

// madeVolume looks volumes of an account up for replay: one that is being deleted is gone.
func (t *txn) madeVolume(account fleet.AccountID) func(id string) any {
	return func(id string) any {
		if v := t.volumeOf(account, fleet.VolumeID(id)); v != nil {
			return cloneVolume(v)
		}
		return nil
	}
}

// check refuses a volume that cannot be made.
func (c CreateVolume) check(t *txn) error {
	in := &c.Volume
	switch {
	case t.base.accounts.Get(t.Txn, in.Account) == nil:
		return fleet.NotFound("account")
	case t.base.centers.Get(t.Txn, in.DataCenter) == nil:
		return fleet.NotFound("data center")
	case t.base.volumes.Get(t.Txn, in.ID) != nil:
		return exists("there is a network volume with this id")
	case !volumeDir.MatchString(in.Dir):
		return fleet.Invalid("$.dir", "must be 26 of the letters a to z and the digits 2 to 7")
	}
	if err := cmp.Or(checkVolumeSize(in.SizeGB), checkVolumeType(in.Type)); err != nil {
		return err
	}
	b := t.base.backends.Get(t.Txn, in.Backend)
	switch {
	case b == nil || b.Closed || b.DataCenter != in.DataCenter || b.Type != in.Type:
		return fleet.Stale("the storage backend takes no such network volumes any more")
	case t.base.volumesByDir.Count(t.Txn, in.Dir) > 0:
		return exists("another network volume has this directory")
	}
	return nil
}

func checkVolumeSize(gb int) error {
	if gb < fleet.VolumeLeastGB || gb > fleet.VolumeMostGB {
		return fleet.Invalid("$.size", fmt.Sprintf("must be %d to %d", fleet.VolumeLeastGB, fleet.VolumeMostGB))
	}
	return nil
}

func checkVolumeType(tier fleet.VolumeType) error {
	if tier != fleet.VolumeStandard && tier != fleet.VolumeFast {
		return fleet.Invalid("$.type", "must be STANDARD or HIGH_PERFORMANCE")
	}
	return nil
}

// volumeOf returns a volume that an account has; nil when there is none, or it is being deleted.
func (t *txn) volumeOf(account fleet.AccountID, id fleet.VolumeID) *fleet.Volume {
	v := t.base.volumes.Get(t.Txn, id)
	if v == nil || v.Account != account || v.State == fleet.VolumeDeleting {
		return nil
	}
	return v
}

func (c UpdateVolume) apply(t *txn) (any, error) {
	old := t.volumeOf(c.Account, c.Volume)
	if old == nil {
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
		case *c.SizeGB > fleet.VolumeMostGB:
			return nil, checkVolumeSize(*c.SizeGB)
		}
		volume.SizeGB = *c.SizeGB
	}
	if volume.SizeGB > old.SizeGB {
		prices := storagePrices(t.base.catalog.Get(t.Txn, onlyKey))
		rate := meter.Volume(&volume, prices).Total()
		var more fleet.Counts
		more[fleet.LimitVolumeGB] = int64(volume.SizeGB - old.SizeGB)
		more[fleet.LimitSpend] = int64(rate - meter.Volume(old, prices).Total())
		if err := t.within(volume.Account, more); err != nil {
			return nil, err
		}
		err := t.solvent(volume.Account, rate, c.At, "Your account balance is too low to enlarge the network volume")
		if err != nil {
			return nil, err
		}
	}
	return t.putVolume(&volume), nil
}

func (c DeleteVolume) apply(t *txn) (any, error) {
	old := t.volumeOf(c.Account, c.Volume)
	if old == nil {
		return nil, fleet.NotFound("network volume")
	}
	pods := uses{thing: "pod"}
	for _, p := range t.podsWith(c.Volume) {
		if p.Status != fleet.StatusTerminated {
			pods.add(string(p.ID), p.Spec.Name)
		}
	}
	used := t.endpointsWith(c.Account, func(s *fleet.EndpointSpec) bool { return slices.Contains(s.Volumes, c.Volume) })
	if err := inUse("the network volume", pods, used); err != nil {
		return nil, err
	}
	volume := *old
	volume.State, volume.DeletedAt = fleet.VolumeDeleting, c.At
	t.putVolume(&volume)
	return nil, nil
}

// mountable checks that a host can give a pod its network volume, if it has one.
func (t *txn) mountable(m *fleet.NetworkMount, host *fleet.Host) error {
	if m == nil {
		return nil
	}
	v := t.base.volumes.Get(t.Txn, m.Volume)
	if v == nil || v.DataCenter != host.DataCenter {
		return fleet.Invalid("$.mounts.network", "the volume is not in the host's data center")
	}
	b := t.base.backends.Get(t.Txn, v.Backend)
	switch {
	case v.State == fleet.VolumeDeleting || b == nil:
		return fleet.Stale("the network volume is gone")
	case host.Cloud != fleet.CloudSecure:
		return fleet.Stale("the host gives pods no network volumes: it is not of the secure cloud")
	case !slices.Contains(host.Inventory.Volumes, b.Kind):
		return fleet.Stale("the host cannot mount the network volume")
	}
	return nil
}

// putVolume writes a volume's record with the next revision and returns a copy of it.
func (t *txn) putVolume(volume *fleet.Volume) fleet.Volume {
	volume.Rev++
	t.meterVolume(charged(t.base.volumes.Get(t.Txn, volume.ID)), charged(volume), t.now)
	t.base.volumes.Put(t.Txn, volume.ID, volume)
	t.noteVolume(volume)
	return cloneVolume(volume)
}

// charged returns a volume that is paid for, else nil.
func charged(v *fleet.Volume) *fleet.Volume {
	if v == nil || v.State == fleet.VolumeDeleting {
		return nil
	}
	return v
}

// noteVolume says that a volume changes.
func (t *txn) noteVolume(v *fleet.Volume) {
	t.Note(KindAccount, string(v.Account))
	t.Note(KindStorage, string(v.Backend))
}

// letGo is called with every record of a pod that is written, and the one before, and says to those who look after
// storage when nothing of a pod is left whose volume is being deleted.
func (t *txn) letGo(old, p *fleet.Pod) {
	m := p.Spec.Network
	if m == nil {
		return
	}
	if old == nil || !old.Held || p.Held {
		return
	}
	if v := t.base.volumes.Get(t.Txn, m.Volume); v != nil && v.State == fleet.VolumeDeleting {
		t.Note(KindStorage, string(v.Backend))
	}
}

// podsWith returns the pods with a volume, by id, as the batch and the command at hand have them.
func (t *txn) podsWith(volume fleet.VolumeID) []*fleet.Pod {
	var out []*fleet.Pod
	for _, id := range t.base.podsWith.Keys(t.Txn, volume) {
		out = append(out, t.base.pods.Get(t.Txn, id))
	}
	return out
}

// volumeOf returns the network volume of a pod; empty: none.
func volumeOf(p *fleet.Pod) fleet.VolumeID {
	if p.Spec.Network == nil {
		return ""
	}
	return p.Spec.Network.Volume
}

// unfinished reports whether a volume is to be made, enlarged or removed.
func unfinished(v *fleet.Volume) bool {
	return v.State != fleet.VolumeReady || v.ProvisionedGB < v.SizeGB
}
