package scheduler

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
)

// UpdatePod changes a pod of the caller's account. What its container is made from (image, args, env,
// ports, disk) restarts it when it is active and really differs; the rest is changed in place. Errors:
// not_found, not_allowed (terminated; locked, where it would restart), rule, invalid, no_capacity.
func (s *Service) UpdatePod(
	ctx context.Context, who fleet.Principal, id fleet.PodID, change fleet.PodUpdate,
) (fleet.PodView, error) {
	restarted := false
	pod, err := untilBound(ctx, s, func(mine *reserver) (fleet.Pod, error) {
		var cmd state.UpdatePod
		err := s.read(ctx, func(v *state.View) error {
			old, err := podOf(v, who, id)
			if err = cmp.Or(err, memberRefusal(&old)); err != nil {
				return err
			}
			cmd, err = revise(v, &old, change, s.Now(), mine)
			return err
		})
		if err != nil {
			return fleet.Pod{}, err
		}
		restarted = cmd.Restart
		return propose[fleet.Pod](ctx, s, cmd)
	})
	if err != nil {
		return fleet.PodView{}, err
	}
	s.Log.Info("pod changed", "pod", id, "account", who.Account, "restarted", restarted)
	return s.shown(pod)
}

// revise works out what a change makes of a pod.
func revise(
	v *state.View, old *fleet.Pod, change fleet.PodUpdate, now time.Time, mine *reserver,
) (state.UpdatePod, error) {
	if old.Status == fleet.StatusTerminated {
		return state.UpdatePod{}, fleet.NotAllowed("a terminated pod cannot be changed")
	}
	spec, err := changedSpec(v, old, change)
	if err == nil {
		err = checkEnds(now, given(change.StopAfter), given(change.TerminateAfter))
	}
	if err != nil {
		return state.UpdatePod{}, err
	}
	cmd := state.UpdatePod{
		Account: old.Account, Pod: old.ID, Rev: old.Rev, Spec: spec, Locked: old.Locked, Need: old.Need,
		Mappings: old.Mappings, At: now,
	}
	set(&cmd.Locked, change.Locked)
	if cmd.Locked != old.Locked && spec.Spot != nil {
		locked := *old
		locked.Locked = cmd.Locked
		cmd.HourlyRate = rateAgain(v.Catalog(), &locked)
	}
	if spec.Persistent != nil {
		cmd.Need.DiskGB += int64(spec.Persistent.SizeGB - old.Spec.Persistent.SizeGB)
	}
	if !old.Status.Active() || old.Stopping() || !needsRestart(&old.Spec, &spec) {
		return cmd, nil
	}
	if old.Locked && cmd.Locked {
		return state.UpdatePod{}, fleet.NotAllowed("the pod is locked")
	}
	cmd.Restart, cmd.Need.DiskGB = true, diskOf(&spec)
	err = remap(v, old, &cmd, mine)
	return cmd, err
}

// remap chooses the public ports that a pod has after a change, and reserves them with the disk that it
// grows by. Errors: no_capacity, and those of reserver.reserve.
func remap(v *state.View, old *fleet.Pod, cmd *state.UpdatePod, mine *reserver) error {
	host, _ := v.Host(old.Host)
	next := *old
	next.Spec = cmd.Spec
	return mine.reserve(v, func(_ *place.Index, _ place.Instead, ports func(fleet.HostID) []int) ([]*reservation, error) {
		var ok bool
		if cmd.Mappings, ok = publish(v, &host, &next, old.Mappings, ports(host.ID)); !ok {
			return nil, &fleet.Error{
				Code: fleet.CodeNoCapacity, Msg: "The pod's host has no public ports left for it.",
				Excluded: []fleet.Exclusion{{Reason: "public ports", Hosts: 1}},
			}
		}
		return []*reservation{{
			pod: old.ID, rev: old.Rev, host: old.Host, ports: publicOf(cmd.Mappings),
			need: fleet.Resources{DiskGB: max(0, cmd.Need.DiskGB-old.Need.DiskGB)},
		}}, nil
	})
}

// needsRestart reports whether the container of one specification differs from that of the other.
func needsRestart(old, now *fleet.PodSpec) bool {
	return old.Image != now.Image || old.Args != now.Args || old.DiskGB != now.DiskGB || !maps.Equal(old.Env, now.Env) ||
		!samePorts(old.Ports, now.Ports)
}

// samePorts compares ports whatever their order; none is listed twice.
func samePorts(a, b []fleet.Port) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p fleet.Port) bool { return !slices.Contains(b, p) })
}

// changedSpec is a pod's specification after a change.
func changedSpec(v *state.View, old *fleet.Pod, c fleet.PodUpdate) (fleet.PodSpec, error) {
	spec, cat := old.Spec, v.Catalog()
	if c.Template != "" {
		t, err := podTemplate(v, old.Account, c.Template)
		if err != nil {
			return spec, err
		}
		fillIn(&c, &t)
	}
	set(&spec.Name, c.Name)
	set(&spec.Image, c.Image)
	set(&spec.Args, c.Args)
	set(&spec.DiskGB, c.DiskGB)
	set(&spec.Ports, c.Ports)
	set(&spec.Env, c.Env)
	set(&spec.Registry, c.Registry)
	set(&spec.GlobalNetworking, c.GlobalNetworking)
	set(&spec.Movable, c.Movable)
	set(&spec.HTTP, c.HTTP)
	if err := spec.CheckHTTP(); err != nil {
		return spec, err
	}
	if err := changeTerms(&spec, &c); err != nil {
		return spec, err
	}
	if c.Registry != nil {
		if err := knownRegistry(v, old.Account, spec.Registry); err != nil {
			return spec, err
		}
	}
	if c.Env != nil {
		if err := checkEnvironment(v, old.Account, spec.Env); err != nil {
			return spec, err
		}
	}
	if c.DiskGB != nil {
		if err := checkDisk(cat, &spec); err != nil {
			return spec, err
		}
	}
	if err := changeMounts(&spec, c); err != nil {
		return spec, err
	}
	if c.GlobalNetworking == nil || !spec.GlobalNetworking {
		return spec, nil
	}
	reach := spec
	if old.KeepsData() {
		reach.Centers = []fleet.DataCenterID{old.DataCenter}
	}
	_, err := centersFor(v, cat, &reach)
	return spec, err
}

// fillIn sets what a change leaves out to what its template has. A credential of a template that has none
// is taken away: it is not for another image's registry.
func fillIn(c *fleet.PodUpdate, t *fleet.Template) {
	if c.Image == nil {
		c.Image = &t.Image
	}
	if c.Args == nil {
		c.Args = &t.Args
	}
	if c.DiskGB == nil && t.DiskGB != 0 {
		c.DiskGB = &t.DiskGB
	}
	if c.Ports == nil {
		c.Ports = &t.Ports
	}
	if c.Env == nil {
		c.Env = &t.Env
	}
	if c.Registry == nil {
		c.Registry = &t.Registry
	}
}

// changeMounts changes the mount of a pod, whose kind and volume are fixed; see interface.md, Mounts.
func changeMounts(spec *fleet.PodSpec, c fleet.PodUpdate) error {
	switch {
	case c.Persistent != nil && c.Network != nil:
		return fleet.BreaksRule("mounts.persistent and mounts.network exclude each other")
	case c.Persistent != nil && spec.Persistent == nil:
		return fleet.BreaksRule("mounts.persistent cannot be added: the kind of mount is fixed when a pod is created")
	case c.Network != nil && spec.Network == nil:
		return fleet.BreaksRule("mounts.network cannot be added: the kind of mount is fixed when a pod is created")
	case c.Network != nil && c.Network.Volume != spec.Network.Volume:
		return fleet.BreaksRule("mounts.network[0].volumeId cannot be changed")
	case c.Persistent != nil && c.Persistent.SizeGB < spec.Persistent.SizeGB:
		return fleet.BreaksRule("mounts.persistent.size can grow only")
	}
	if err := checkMounts(c.Persistent, c.Network); err != nil {
		return err
	}
	if c.Persistent != nil {
		spec.Persistent = c.Persistent
	}
	if c.Network != nil {
		spec.Network = c.Network
	}
	return nil
}

// given returns what a pointer points to; the zero value for nil.
func given[T any](value *T) (out T) {
	set(&out, value)
	return out
}

// set overwrites a field with what is given for it.
func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}
