package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// ClusterRestarter starts members of clusters again; see scheduler.Service.
type ClusterRestarter interface {
	// RestartFailedCluster restarts a cluster of which a member failed, if that is still due. Errors: no_capacity, among others.
	RestartFailedCluster(ctx context.Context, id fleet.ClusterID) error
	// ReplaceMember starts a member whose host was fenced on another; it does nothing to any other pod. Errors: no_capacity, among others.
	ReplaceMember(ctx context.Context, pod fleet.PodID) error
}

// Clusters does what clusters are to do when a member fails: all restart, or all stop; and it starts members whose hosts were fenced on
// other hosts. What found no room is tried again.
type Clusters struct {
	Store *state.Store
	Node  Proposer
	Pods  ClusterRestarter
	Every time.Duration // between looks
	Log   *slog.Logger
	// Clock is the wall clock; nil: time.Now.
	Clock func() time.Time

	failed map[string]time.Time // when something was refused last, by the id of the cluster or pod
}

// clusterAgain is until what was refused is tried again.
const clusterAgain = 5 * time.Second

// Run looks after clusters until ctx, which ends with leadership, does.
func (c *Clusters) Run(ctx context.Context) error {
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	c.failed = map[string]time.Time{}
	for {
		if err := c.look(ctx); err != nil && ctx.Err() == nil {
			c.Log.Warn("look after clusters", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look does what is due.
func (c *Clusters) look(ctx context.Context) error {
	now := time.Now()
	if c.Clock != nil {
		now = c.Clock()
	}
	var todo []state.ClusterCare
	if err := c.Store.View(func(v *state.View) error { todo = v.ClustersInNeed(now); return nil }); err != nil {
		return err
	}
	slices.SortFunc(todo, func(a, b state.ClusterCare) int { return cmp.Compare(a.Cluster.ID, b.Cluster.ID) })
	waits := map[string]time.Time{}
	var errs []error
	try := func(id string, do func() error) {
		if last, failed := c.failed[id]; failed && now.Sub(last) < clusterAgain {
			waits[id] = last
			return
		}
		err := do()
		if err == nil {
			return
		}
		waits[id] = now
		if code := fleet.CodeOf(err); !fleet.RefusedForNow(err) && code != fleet.CodeNotAllowed && code != fleet.CodeStale && code != fleet.CodeNotFound {
			errs = append(errs, fmt.Errorf("cluster or pod %s: %w", id, err))
		}
	}
	for i := range todo {
		id := todo[i].Cluster.ID
		switch {
		case todo[i].Stop:
			try(string(id), func() error { return c.stop(ctx, &todo[i].Cluster, now) })
		case todo[i].Restart:
			try(string(id), func() error { return c.Pods.RestartFailedCluster(ctx, id) })
		}
		for _, pod := range todo[i].Replace {
			try(string(pod), func() error { return c.Pods.ReplaceMember(ctx, pod) })
		}
	}
	c.failed = waits
	return errors.Join(errs...)
}

// stop stops what runs of a cluster.
func (c *Clusters) stop(ctx context.Context, of *fleet.Cluster, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	results, err := c.Node.Propose(ctx, state.StopCluster{Account: of.Account, ID: of.ID, At: now})
	if err == nil && len(results) == 1 {
		if err = results[0].Err; err == nil {
			c.Log.Info("cluster stopped since a pod failed", "cluster", of.ID, "account", of.Account)
		}
	}
	return err
}
