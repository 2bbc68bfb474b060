package sim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"gantry/fleet"
)

const (
	mostGangs = 3 // clusters at a time
	gangCalls = 4 // at one time
)

// gang is what users know of a cluster.
type gang struct {
	id      fleet.ClusterID
	account fleet.AccountID
}

// gangUser does what a user of clusters does now and then.
func (d *driver) gangUser() {
	d.tally.Lock()
	defer d.tally.Unlock()
	if d.ganging >= gangCalls {
		return
	}
	call := d.gangCall()
	d.ganging++
	d.calls.Go(func() {
		call()
		d.tally.Lock()
		defer d.tally.Unlock()
		d.ganging--
	})
}

// gangCall decides on a call; tally is held.
func (d *driver) gangCall() func() {
	n := d.rng.IntN(100)
	if len(d.gangs) == 0 || n < 40 && len(d.gangs) < mostGangs {
		return d.userMakesGang(d.accounts[d.rng.IntN(len(d.accounts))])
	}
	g := d.gangs[d.rng.IntN(len(d.gangs))]
	action := fleet.Actions()[d.rng.IntN(len(fleet.Actions()))]
	switch {
	case n < 60 && len(d.gangs) > 1:
		return func() { d.userDeletesGang(g, d.serves) }
	case n < 85:
		return func() {
			err := d.serves(func(ctx context.Context, p *process) error {
				_, err := p.service.RestartCluster(ctx, principal(g.account), g.id)
				return err
			})
			d.paid(g.account, err)
			d.told("cluster restarted", err, refusals(fleet.CodeNotFound, fleet.CodeNotAllowed)...)
		}
	}
	return func() { d.userReadsGang(g, action) }
}

// userMakesGang creates a cluster, half the time under an idempotency key; tally is held.
func (d *driver) userMakesGang(account fleet.AccountID) func() {
	once := d.once("cluster")
	kind := []string{"steady", "steady", "steady", "moving", "fail", "oom", "done", "missing", "slow"}[d.rng.IntN(9)]
	req := fleet.ClusterRequest{
		Type:  []fleet.ClusterType{fleet.ClusterApplication, fleet.ClusterTraining, fleet.ClusterSlurm, fleet.ClusterRay}[d.rng.IntN(4)],
		Count: 2 + d.rng.IntN(2), OnFailure: []fleet.OnFailure{"", fleet.OnFailureNone, fleet.OnFailureRestart, fleet.OnFailureStop}[d.rng.IntN(4)],
		Pod: gpuPod(1+d.rng.IntN(2), image(kind, d.rng.IntN(40), 0)),
	}
	if req.Pod.Name = once.name; d.rng.IntN(2) == 0 {
		req.Pod.Ports = nil
	}
	keyed := d.rng.IntN(2) == 0
	if keyed {
		req.Pod.Once = once.key
	}
	return func() {
		var made fleet.Cluster
		create := func() (string, bool, error) {
			var replayed bool
			err := d.serves(func(ctx context.Context, p *process) error {
				c, again, err := p.service.CreateCluster(ctx, principal(account), req)
				made, replayed = c.Cluster, again
				return err
			})
			return string(made.ID), replayed, err
		}
		var err error
		if answered := true; keyed {
			if answered, err = d.certain(once, create); !answered {
				return
			}
		} else {
			_, _, err = create()
		}
		d.paid(account, err)
		d.told("cluster", err, refusals()...)
		d.tally.Lock()
		defer d.tally.Unlock()
		if keyed {
			d.only[once.name] = string(made.ID)
		}
		if err == nil {
			d.gangs = append(d.gangs, gang{made.ID, account})
			d.ackedGangs[made.ID] = true
		}
	}
}

// userDeletesGang deletes a cluster; ask calls the scheduler.
func (d *driver) userDeletesGang(g gang, ask func(func(context.Context, *process) error) error) {
	d.tally.Lock()
	delete(d.ackedGangs, g.id) // from now on it may be gone
	d.gangs = slices.DeleteFunc(d.gangs, func(other gang) bool { return other.id == g.id })
	d.tally.Unlock()
	err := ask(func(ctx context.Context, p *process) error {
		return p.service.DeleteCluster(ctx, principal(g.account), g.id)
	})
	d.told("cluster deleted", err, fleet.CodeNotFound)
}

// userReadsGang reads a cluster, which is one of its account's alone, and tries to do something to one of its members.
func (d *driver) userReadsGang(g gang, action fleet.Trigger) {
	var seen fleet.ClusterPods
	err := d.serves(func(ctx context.Context, p *process) (err error) {
		seen, err = p.service.ClusterByID(ctx, principal(g.account), g.id)
		return err
	})
	d.told("cluster read", err, fleet.CodeNotFound)
	if err != nil || len(seen.Pods) == 0 {
		return
	}
	if _, err := d.act(g.account, seen.Pods[0].Pod.ID, action); err == nil {
		d.broke("clusters: pod %s of cluster %s was told to %s by its owner", seen.Pods[0].Pod.ID, g.id, action)
	}
	for _, other := range d.accounts {
		if other == g.account {
			continue
		}
		err := d.serves(func(ctx context.Context, p *process) error {
			_, err := p.service.ClusterByID(ctx, principal(other), g.id)
			return err
		})
		if code := fleet.CodeOf(err); code != fleet.CodeNotFound && code != fleet.CodeUnavailable {
			d.broke("I8: %s sees cluster %s of another account: %v", other, g.id, err)
		}
	}
}

// regang makes what a restored state says what users know of clusters; tally is held.
func (d *driver) regang(now picture) {
	d.gangs, d.ackedGangs = nil, map[fleet.ClusterID]bool{}
	for _, c := range now.clusters {
		d.gangs = append(d.gangs, gang{c.ID, c.Account})
		d.ackedGangs[c.ID] = true
	}
}

// ganged checks that each cluster has all of its members, each with a rank, an address and a host of its own, in one data center; and
// that nothing else belongs to a cluster.
func (c *checker) ganged(now picture) {
	clusters := map[fleet.ClusterID]fleet.Cluster{}
	for _, one := range now.clusters {
		clusters[one.ID] = one
	}
	for id := range c.ackedGangs {
		if _, there := clusters[id]; !there {
			c.w.broke("clusters: %s was acknowledged and is not there", id)
		}
	}
	members := map[fleet.ClusterID][]fleet.Pod{}
	for _, p := range now.pods {
		if p.Owner.Kind == fleet.OwnerCluster && p.Status != fleet.StatusTerminated {
			members[fleet.ClusterID(p.Owner.ID)] = append(members[fleet.ClusterID(p.Owner.ID)], p)
		}
	}
	for id, pods := range members {
		one, there := clusters[id]
		if !there || len(pods) != one.Count {
			c.w.broke("clusters: %s, which is there: %v, is to have %d pods and has %d", id, there, one.Count, len(pods))
			continue
		}
		c.inGang(one, pods)
	}
	for id := range clusters {
		if len(members[id]) == 0 {
			c.w.broke("clusters: %s has no pod", id)
		}
	}
}

// inGang checks the members of one cluster.
func (c *checker) inGang(of fleet.Cluster, pods []fleet.Pod) {
	ranks, addrs, hosts := map[int]bool{}, map[netip.Addr]bool{}, map[fleet.HostID]bool{}
	for _, p := range pods {
		addr := p.ClusterAddr()
		if old, seen := c.before.pods[p.ID]; seen && (old.Rank != p.Rank || old.ClusterAddr() != addr) {
			c.w.broke("clusters: pod %s of %s was rank %d at %s and is %d at %s", p.ID, of.ID, old.Rank, old.ClusterAddr(), p.Rank, addr)
		}
		if p.Account != of.Account || p.DataCenter != of.DataCenter || p.Rank >= of.Count || ranks[p.Rank] || addrs[addr] || !addr.IsValid() {
			c.w.broke("clusters: pod %s of %+v is %+v", p.ID, of, p)
		}
		if ranks[p.Rank], addrs[addr] = true, true; p.Held {
			if hosts[p.Host] {
				c.w.broke("clusters: two pods of %s are on host %s", of.ID, p.Host)
			}
			hosts[p.Host] = true
		}
	}
}

// unstopped tells which clusters are not as they should be in the end.
func (c *checker) unstopped(now picture) (wrong []string) {
	for _, one := range now.clusters {
		failed, active := 0, 0
		for _, p := range now.pods {
			switch {
			case p.Owner != one.ID.Owner():
			case p.Status == fleet.StatusError:
				failed++
			case p.Status.Active():
				active++
			}
		}
		if one.OnFailure == fleet.OnFailureStop && failed > 0 && active > 0 {
			wrong = append(wrong, fmt.Sprintf("%d pods of cluster %s run though %d failed and the others were to stop", active, one.ID, failed))
		}
	}
	return wrong
}

// disband has every cluster deleted: nothing of them is left soon.
func (d *driver) disband() {
	if !d.world.gangs || len(d.broken()) > 0 {
		return
	}
	for _, c := range d.picture().clusters { // also those of which no user had an answer
		d.userDeletesGang(gang{c.ID, c.Account}, d.insistently)
	}
	var left []string
	if until(retireTime, func() bool { left = gangsLeft(d.picture()); return len(left) == 0 }) != nil {
		d.broke("clusters: %s after the last was deleted: %v", retireTime, left)
	}
}

func gangsLeft(now picture) (left []string) {
	for _, c := range now.clusters {
		left = append(left, "cluster "+string(c.ID))
	}
	for id, p := range now.pods {
		if p.Owner.Kind == fleet.OwnerCluster && (p.Status != fleet.StatusTerminated || p.Held) {
			left = append(left, fmt.Sprintf("pod %s of %s is %s on %s, held %v", id, p.Owner.ID, p.Status, p.Host, p.Held))
		}
	}
	return left
}

// clustersEvery is how often schedulers look after clusters.
const clustersEvery = time.Second
