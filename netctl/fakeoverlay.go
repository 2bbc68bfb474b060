package netctl

import (
	"context"
	"errors"
	"slices"
)

// SetOverlay implements Controller.
func (f *Fake) SetOverlay(ctx context.Context, o Overlay) error {
	return f.change(ctx, func(c Config) (Config, error) { return c.WithOverlay(o), nil })
}

// RemoveOverlay implements Controller.
func (f *Fake) RemoveOverlay(ctx context.Context, vni uint32) error {
	return f.change(ctx, func(c Config) (Config, error) {
		if c.HasPlace(vni) {
			return c, ErrOverlayInUse
		}
		return c.WithoutOverlay(vni), nil
	})
}

// SetUnderlay implements Controller.
func (f *Fake) SetUnderlay(ctx context.Context, u Underlay) error {
	return f.change(ctx, func(c Config) (Config, error) {
		c.Underlay = u
		c.Underlay.Plain = slices.Clone(u.Plain)
		return c, nil
	})
}

// Drops implements Controller. A Fake drops nothing.
func (f *Fake) Drops(ctx context.Context) ([]Drop, error) { return nil, ctx.Err() }

// change is Set with the value that is in force, changed.
func (f *Fake) change(ctx context.Context, change func(Config) (Config, error)) error {
	f.kernel.mu.Lock()
	want, set := f.host().config.Clone(), f.isSet()
	f.kernel.mu.Unlock()
	if !set {
		return ErrNoHost
	}
	want, err := change(want)
	if err != nil {
		return err
	}
	return f.Set(ctx, want)
}

// applyHost does a step that concerns no single pod.
func (f *Fake) applyHost(host *fakeHost, op Op, want Config) error {
	verb := map[Verb]string{SetHost: "host", SetOverlay: "overlay", RemoveOverlay: "overlay"}[op.Verb]
	if err := f.effect(host, verb, ""); err != nil {
		return err
	}
	o, _ := want.Overlay(op.VNI)
	switch op.Verb {
	case SetOverlay:
		host.config = host.config.WithOverlay(o)
	case RemoveOverlay:
		host.config = host.config.WithoutOverlay(op.VNI)
	case SetHost:
		pods, overlays := host.config.Pods, host.config.Overlays
		host.config = want.Clone()
		host.config.Pods, host.config.Overlays = pods, overlays
	case RemovePod, ReplacePod, AddPod:
		return errors.New("a step of a pod")
	}
	return nil
}
