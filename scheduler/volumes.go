package scheduler

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"gantry/fleet"
	"gantry/scheduler/state"
)

const maxName = 191 // characters

// CreateVolume makes a network volume of the caller's account, which is answered for at once: a host with the storage
// role makes its directory afterwards. replayed tells that its Once was seen before. Errors: invalid, rule (the data
// center has no storage, or none of the tier), no_credit.
func (s *Service) CreateVolume(
	ctx context.Context, who fleet.Principal, req fleet.VolumeRequest,
) (made fleet.VolumeView, replayed bool, err error) {
	volume, err := untilFresh(ctx, func() (out fleet.Volume, err error) {
		cmd := state.CreateVolume{Volume: newVolume(who.Account, req), Once: req.Once}
		cmd.Volume.CreatedAt = s.Now()
		if err := s.read(ctx, func(v *state.View) error { return houseVolume(v, &cmd.Volume) }); err != nil {
			out, replayed, err = s.volumeBefore(ctx, cmd, err)
			return out, err
		}
		out, replayed, err = proposeOnce[fleet.Volume](ctx, s, cmd)
		return out, err
	})
	if err != nil {
		return fleet.VolumeView{}, false, err
	}
	if !replayed {
		s.Log.Info("network volume created", "volume", volume.ID, "account", who.Account, "size", volume.SizeGB, "backend", volume.Backend)
	}
	return s.volumeView(volume), replayed, nil
}

func newVolume(account fleet.AccountID, req fleet.VolumeRequest) fleet.Volume {
	return fleet.Volume{
		ID: fleet.VolumeID(fleet.NewID()), Account: account, Name: req.Name, SizeGB: req.SizeGB, DataCenter: req.DataCenter,
		Type: req.Type, Dir: strings.ToLower(rand.Text()), State: fleet.VolumeCreating,
	}
}

// volumeBefore answers a create that cannot be done now, but may have been done before. The volume that it proposes is
// of no data center, so that it is never made.
func (s *Service) volumeBefore(ctx context.Context, cmd state.CreateVolume, why error) (fleet.Volume, bool, error) {
	if cmd.Once == nil || fleet.CodeOf(why) == fleet.CodeUnavailable {
		return fleet.Volume{}, false, why
	}
	cmd.Volume = fleet.Volume{ID: cmd.Volume.ID, Account: cmd.Volume.Account, CreatedAt: cmd.Volume.CreatedAt}
	made, replayed, err := proposeOnce[fleet.Volume](ctx, s, cmd)
	switch {
	case replayed:
		return made, true, nil
	case aboutKey(err), fleet.CodeOf(err) == fleet.CodeExists, fleet.CodeOf(err) == fleet.CodeUnavailable:
		return fleet.Volume{}, false, err // the key's own, or nobody knows yet
	}
	return fleet.Volume{}, false, why
}

// aboutKey reports whether an idempotency key was refused, rather than what it came with.
func aboutKey(err error) bool {
	var e *fleet.Error
	return errors.As(err, &e) && e.Code == fleet.CodeInvalid &&
		slices.ContainsFunc(e.Details, func(d string) bool { return strings.HasPrefix(d, "Idempotency-Key") })
}

// houseVolume checks what is asked for, and finds the backend that is to have the volume. Errors: invalid, rule.
func houseVolume(v *state.View, volume *fleet.Volume) error {
	if err := cmp.Or(checkName(volume.Name), checkVolumeSize(volume.SizeGB)); err != nil {
		return err
	}
	tiers := volumeTiers()
	switch {
	case volume.Type != "" && !slices.Contains(tiers, volume.Type):
		return fleet.Invalid("$.type", "value must be one of 'STANDARD', 'HIGH_PERFORMANCE'")
	case !slices.ContainsFunc(v.DataCenters(), func(dc fleet.DataCenter) bool { return dc.ID == volume.DataCenter }):
		return fleet.Invalid("$.dataCenter", "names a data center that does not exist")
	}
	offered := tiersOf(v)[volume.DataCenter]
	switch {
	case len(offered) == 0:
		return fleet.BreaksRule("the data center %s has no storage for network volumes", volume.DataCenter)
	case volume.Type == "":
		volume.Type = offered[0]
	case !slices.Contains(offered, volume.Type):
		return fleet.BreaksRule("the data center %s has no storage of the type %s", volume.DataCenter, volume.Type)
	}
	volume.Backend = leastBackend(v, volume.DataCenter, volume.Type)
	return nil
}

func volumeTiers() []fleet.VolumeType {
	return []fleet.VolumeType{fleet.VolumeStandard, fleet.VolumeFast}
}

// tiersOf returns the tiers in which a volume can be made now, by data center.
func tiersOf(v *state.View) map[fleet.DataCenterID][]fleet.VolumeType {
	out := map[fleet.DataCenterID][]fleet.VolumeType{}
	backends := v.Backends()
	for _, tier := range volumeTiers() {
		for i := range backends {
			b := &backends[i]
			if !b.Closed && b.Type == tier && !slices.Contains(out[b.DataCenter], tier) {
				out[b.DataCenter] = append(out[b.DataCenter], tier)
			}
		}
	}
	return out
}

// leastBackend returns the backend that takes new volumes and has promised the least, the first by id among equals.
func leastBackend(v *state.View, center fleet.DataCenterID, tier fleet.VolumeType) (best fleet.BackendID) {
	least := int64(0)
	for _, b := range v.BackendsOf(center) {
		if b.Closed || b.Type != tier {
			continue
		}
		if _, sum := v.BackendUse(b.ID); best == "" || sum < least {
			best, least = b.ID, sum
		}
	}
	return best
}

func checkName(name string) error {
	if n := utf8.RuneCountInString(name); n < 1 || n > maxName || !fleet.PlainText(name) {
		return fleet.Invalid("$.name", "must have 1 to 191 characters, and no control characters or marks of direction")
	}
	return nil
}

func checkVolumeSize(gb int) error {
	if gb < fleet.VolumeLeastGB || gb > fleet.VolumeMostGB {
		return fleet.Invalid("$.size", fmt.Sprintf("must be %d to %d", fleet.VolumeLeastGB, fleet.VolumeMostGB))
	}
	return nil
}

// Volumes lists the network volumes of the caller's account, oldest first.
func (s *Service) Volumes(ctx context.Context, who fleet.Principal) ([]fleet.VolumeView, error) {
	out := []fleet.VolumeView{}
	err := s.read(ctx, func(v *state.View) error {
		for _, volume := range v.VolumesOf(who.Account) {
			out = append(out, s.volumeView(volume))
		}
		return nil
	})
	return out, err
}

// Volume returns a network volume of the caller's account.
func (s *Service) Volume(ctx context.Context, who fleet.Principal, id fleet.VolumeID) (fleet.VolumeView, error) {
	var out fleet.VolumeView
	err := s.read(ctx, func(v *state.View) error {
		volume, ok := volumeOf(v, who.Account, id)
		if !ok {
			return fleet.NotFound("network volume")
		}
		out = s.volumeView(volume)
		return nil
	})
	return out, err
}

// volumeOf returns a volume of the account.
func volumeOf(v *state.View, account fleet.AccountID, id fleet.VolumeID) (fleet.Volume, bool) {
	volume, ok := v.Volume(id)
	return volume, ok && volume.Account == account
}

// volumeView adds what is not stored.
func (s *Service) volumeView(v fleet.Volume) fleet.VolumeView {
	out := fleet.VolumeView{Volume: v}
	out.Used, out.Problem = s.Storage.SeenVolume(v.ID)
	undone := v.State == fleet.VolumeCreating || v.ProvisionedGB != v.SizeGB
	switch {
	case out.Problem != "":
	case undone && v.Backend != "" && s.Storage.StorageHost(v.Backend) == "":
		out.Problem = "the host that prepares network volumes in this data center is not connected"
	case v.ReadOnly:
		out.Problem = "it holds more than its size, and is read-only until it was grown or files were deleted over S3"
	}
	return out
}

// UpdateVolume renames a network volume of the caller's account, or makes it larger; its new size is there once its
// storage has it. Errors: not_found, invalid, rule (smaller), no_credit.
func (s *Service) UpdateVolume(
	ctx context.Context, who fleet.Principal, id fleet.VolumeID, change fleet.VolumeUpdate,
) (fleet.VolumeView, error) {
	var old fleet.Volume
	err := s.read(ctx, func(v *state.View) error {
		var ok bool
		if old, ok = volumeOf(v, who.Account, id); !ok {
			return fleet.NotFound("network volume")
		}
		return nil
	})
	if err != nil {
		return fleet.VolumeView{}, err
	}
	if err := checkVolumeChange(&old, change); err != nil {
		return fleet.VolumeView{}, err
	}
	volume, err := propose[fleet.Volume](ctx, s, state.UpdateVolume{
		Account: who.Account, Volume: id, Name: change.Name, SizeGB: change.SizeGB, At: s.Now(),
	})
	if err != nil {
		return fleet.VolumeView{}, err
	}
	if volume.SizeGB != old.SizeGB {
		s.Log.Info("network volume grown", "volume", id, "account", who.Account, "from", old.SizeGB, "size", volume.SizeGB)
	}
	return s.volumeView(volume), nil
}

func checkVolumeChange(old *fleet.Volume, change fleet.VolumeUpdate) error {
	if change.Name != nil {
		if err := checkName(*change.Name); err != nil {
			return err
		}
	}
	switch {
	case change.SizeGB == nil:
		return nil
	case *change.SizeGB >= fleet.VolumeLeastGB && *change.SizeGB < old.SizeGB:
		return fleet.BreaksRule("a network volume can grow, but not shrink")
	}
	return checkVolumeSize(*change.SizeGB)
}

// DeleteVolume deletes a network volume of the caller's account with all that is in it. Its owner has it no more when
// the call returns; its data is removed afterwards. Errors: not_found, rule (a pod that is not terminated has it).
func (s *Service) DeleteVolume(ctx context.Context, who fleet.Principal, id fleet.VolumeID) error {
	_, err := propose[any](ctx, s, state.DeleteVolume{Account: who.Account, Volume: id, At: s.Now()})
	if err == nil {
		s.Log.Info("network volume deleted", "volume", id, "account", who.Account)
	}
	return err
}
