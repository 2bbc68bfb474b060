package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"gantry/netctl/tunnel"
)

// makeLinks has the kernel have what follows.
func (k *Reconciler) makeLinks(ctx context.Context) error {
	faults := []error{k.makePolicy(ctx), k.makeUnderlay(ctx)}
	k.mu.Lock()
	wanted := k.inUse()
	k.mu.Unlock()
	for _, vni := range wanted {
		faults = append(faults, k.makeLink(ctx, vni))
	}
	k.kernel.Lock()
	there := slices.Sorted(maps.Keys(k.made))
	k.kernel.Unlock()
	for _, vni := range there {
		if !slices.Contains(wanted, vni) {
			faults = append(faults, k.dropLink(ctx, vni))
		}
	}
	return errors.Join(faults...)
}

func (k *Reconciler) makePolicy(ctx context.Context) error {
	k.kernel.Lock()
	defer k.kernel.Unlock()
	k.mu.Lock()
	want := k.wantPolicy()
	k.mu.Unlock()
	if k.policed && reflect.DeepEqual(want, k.policy) {
		return nil
	}
	if err := k.Control.SetPolicy(ctx, want); err != nil {
		return fmt.Errorf("limits of pods: %w", err)
	}
	k.policy, k.policed = want, true
	return nil
}

func (k *Reconciler) makeUnderlay(ctx context.Context) error {
	k.kernel.Lock()
	defer k.kernel.Unlock()
	k.mu.Lock()
	want := k.underlay()
	k.mu.Unlock()
	if reflect.DeepEqual(want, k.under) {
		return nil
	}
	if err := k.Control.SetUnderlay(ctx, want); err != nil {
		return fmt.Errorf("links to other hosts: %w", err)
	}
	k.under = want
	return nil
}

// makeLink makes an overlay, unless it is as it should be.
func (k *Reconciler) makeLink(ctx context.Context, vni uint32) error {
	k.kernel.Lock()
	defer k.kernel.Unlock()
	k.mu.Lock()
	from := k.stamp(vni)
	if made, ok := k.made[vni]; ok && made == from {
		k.mu.Unlock()
		return nil
	}
	want := k.overlay(vni)
	k.mu.Unlock()
	if !want.CIDR.IsValid() { // its last pod has just left
		return nil
	}
	if err := k.Control.SetOverlay(ctx, want); err != nil {
		return fmt.Errorf("overlay %d: %w", vni, err)
	}
	k.made[vni] = from
	return nil
}

// dropLink removes an overlay in which no pod has a place any more.
func (k *Reconciler) dropLink(ctx context.Context, vni uint32) error {
	k.kernel.Lock()
	defer k.kernel.Unlock()
	k.mu.Lock()
	used := slices.Contains(k.inUse(), vni)
	k.mu.Unlock()
	if used {
		return nil
	}
	if err := k.Control.RemoveOverlay(ctx, vni); err != nil {
		return fmt.Errorf("overlay %d: %w", vni, err)
	}
	delete(k.made, vni)
	return nil
}

// tunnelState is what the tunnel was told.
type tunnelState struct {
	known bool // false: an agent of before may have left one
	there bool
	is    tunnel.Config
}

// makeTunnel has the tunnel be as it should, and not be there when no other host is to be reached.
func (k *Reconciler) makeTunnel(ctx context.Context) error {
	if k.Tunnel == nil {
		return nil
	}
	k.mu.Lock()
	want, needed := k.tunnelConfig()
	ordered := k.desired.set != nil
	k.mu.Unlock()
	switch {
	case !ordered:
		return nil
	case !needed && k.tunnelled.known && !k.tunnelled.there:
		return nil
	case !needed:
		if err := k.Tunnel.Remove(ctx); err != nil {
			return fmt.Errorf("remove the tunnel: %w", err)
		}
		k.tunnelled = tunnelState{known: true}
		k.Changed()
		return nil
	}
	if k.tunnelled.there && reflect.DeepEqual(want, k.tunnelled.is) {
		return nil
	}
	k.tunnelled.there = false
	if err := k.Tunnel.Set(ctx, want); err != nil {
		return err
	}
	k.tunnelled = tunnelState{known: true, there: true, is: want}
	k.Changed()
	return nil
}

// makeNames has pods' names be answered as they should.
func (k *Reconciler) makeNames(ctx context.Context) error {
	if k.names == nil {
		return k.noNames
	}
	k.mu.Lock()
	base, askers, wanted := k.namesBase(), k.wantAskers(), k.inUse()
	k.mu.Unlock()
	for _, vni := range wanted { // before those that may ask for them
		if err := k.nameOverlay(ctx, vni); err != nil {
			return err
		}
	}
	if k.base == nil || !reflect.DeepEqual(base, *k.base) {
		if err := k.names.Set(ctx, base); err != nil {
			return err
		}
		k.base = &base
	}
	if k.askers == nil || !maps.EqualFunc(askers, k.askers, slices.Equal[[]uint32]) {
		if err := k.names.SetPods(ctx, askers); err != nil {
			return err
		}
		k.askers = askers
	}
	for _, vni := range unneeded(k.named, wanted) {
		if err := k.names.RemoveOverlay(ctx, vni); err != nil {
			return err
		}
		delete(k.named, vni)
	}
	k.standing()
	return nil
}

// nameOverlay tells the names in an overlay, unless they were told.
func (k *Reconciler) nameOverlay(ctx context.Context, vni uint32) error {
	k.mu.Lock()
	changes := k.stamp(vni).members
	if last, ok := k.named[vni]; ok && last == changes {
		k.mu.Unlock()
		return nil
	}
	names := k.namesOf(vni)
	k.mu.Unlock()
	if err := k.names.SetOverlay(ctx, names); err != nil {
		return err
	}
	k.named[vni] = changes
	return nil
}

// unneeded returns the overlays that a process was told of, also by an agent of before, and that no pod needs.
func unneeded[V any](known map[uint32]V, wanted []uint32) []uint32 {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(known)), func(vni uint32) bool { return slices.Contains(wanted, vni) })
}

// standing notes that names are answered: pods may ask from now on, and those that start are told where.
func (k *Reconciler) standing() {
	k.mu.Lock()
	fresh := !k.stands
	k.stands = true
	k.mu.Unlock()
	if fresh {
		poke(k.links.wake)
	}
}
