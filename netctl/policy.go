package netctl

import (
	"context"
	"net/netip"
	"slices"
)

// Policy is what concerns all pods and changes while they run.
type Policy struct {
	Names  bool             // Config.Names
	Barred []netip.AddrPort // Config.Barred
	Mbps   int              // Pod.Mbps of all
	Closed []string         // ids of the pods that are Closed, sorted; others are not. Those that are not there are left out.
}

// WithPolicy returns a copy with another policy.
func (c Config) WithPolicy(p Policy) Config {
	out := c.Clone()
	out.Names, out.Barred = p.Names, slices.Clone(p.Barred)
	for i := range out.Pods {
		_, closed := slices.BinarySearch(p.Closed, out.Pods[i].ID)
		out.Pods[i].Mbps, out.Pods[i].Closed = p.Mbps, closed
	}
	return out
}

// SetPolicy implements Controller.
func (f *Fake) SetPolicy(ctx context.Context, p Policy) error {
	return f.change(ctx, func(c Config) (Config, error) { return c.WithPolicy(p), nil })
}
