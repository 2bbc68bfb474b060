package overlay

import (
	"context"
	"slices"
)

// bar looks where the control plane is.
func (k *Reconciler) bar(ctx context.Context) {
	if k.Barred == nil {
		return
	}
	now := k.Barred(ctx)
	if len(now) == 0 { // nothing is found, such as while resolvers are down
		return
	}
	k.mu.Lock()
	same := slices.Equal(now, k.barred)
	k.barred = now
	k.mu.Unlock()
	if !same {
		poke(k.links.wake)
	}
}

// barAsBefore leaves what the agent before barred as it is while nobody knows where the control plane is.
func (k *Reconciler) barAsBefore(ctx context.Context) {
	if k.Barred == nil || len(k.barred) > 0 {
		return
	}
	if is, err := k.Control.Observed(ctx); err == nil {
		k.barred = is.Config.Barred
	}
}
