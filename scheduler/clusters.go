package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// CreateCluster creates a cluster whose members have hosts and their GPUs when the call returns: with all of them, or not at all. A
// request whose Once was seen before is answered with the cluster of then (replayed). Errors: as CreatePods.
func (s *Service) CreateCluster(ctx context.Context, who fleet.Principal, req fleet.ClusterRequest) (fleet.ClusterPods, bool, error) {
	replayed := false
	made, err := untilBound(ctx, s, func(mine *reserver) (fleet.Cluster, error) {
		cmd, why := s.planCluster(ctx, who, req, mine)
		if why != nil && (req.Pod.Once == nil || fleet.CodeOf(why) == fleet.CodeUnavailable) {
			return fleet.Cluster{}, why
		}
		// What cannot be made now may have been made before under the same key: then the state machine answers with that. Without
		// members it makes nothing.
		if why != nil {
			cmd.Cluster.Count, cmd.Pods = 0, nil
		}
		made, again, err := proposeOnce[fleet.Cluster](ctx, s, cmd)
		replayed = again
		if why != nil && !again && fleet.CodeOf(err) != fleet.CodeUnavailable {
			err = why
		}
		return made, err
	})
	if err == nil && !replayed {
		s.Log.Info("cluster created", "cluster", made.ID, "account", who.Account, "pods", made.Count)
	}
	view, err := s.clusterView(made, err)
	return view, replayed, err
}

// PlanCluster answers as CreateCluster would, and creates nothing.
func (s *Service) PlanCluster(ctx context.Context, who fleet.Principal, req fleet.ClusterRequest) (fleet.ClusterPods, error) {
	cmd, err := s.planCluster(ctx, who, req, nil)
	if err != nil {
		return fleet.ClusterPods{}, err
	}
	out := fleet.ClusterPods{Cluster: cmd.Cluster, Status: fleet.ClusterStarting}
	for i := range cmd.Pods {
		pod := cmd.Pods[i].Pod
		pod.ID, pod.Status = "", fleet.StatusProvisioning
		out.Pods = append(out.Pods, fleet.PodView{Pod: &pod, Reason: pod.Reason})
	}
	out.Cluster.ID = "" // nothing was made that it could name
	return out, nil
}

// planCluster works out the command that makes a cluster.
func (s *Service) planCluster(
	ctx context.Context, who fleet.Principal, req fleet.ClusterRequest, mine *reserver,
) (cmd state.CreateCluster, err error) {
	id, fixed := fleet.ClusterID(fleet.NewID()), false
	cmd.Once = req.Pod.Once
	cmd.Cluster = fleet.Cluster{
		ID: id, Account: who.Account, Name: req.Pod.Name, Type: req.Type, Count: req.Count, Template: req.Pod.Template, CreatedAt: s.Now(),
		OnFailure: req.OnFailure,
	}
	if req.Pod.GPU != nil {
		cmd.Cluster.GPU = *req.Pod.GPU
	}
	set := PodSet{Owner: id.Owner(), OneCenter: true, OnePerHost: true}
	req.Pod.Movable = &fixed
	for rank := range req.Count {
		one := req.Pod
		one.Name = fleet.NodeName(rank)
		set.Requests = append(set.Requests, one)
	}
	pods, err := s.plan(ctx, who, set, mine)
	if err != nil {
		return cmd, err
	}
	cmd.Pods, cmd.Cluster.DataCenter = pods.Pods, pods.Pods[0].Pod.DataCenter
	return cmd, s.Store.View(func(v *state.View) error {
		account, _ := v.Account(who.Account)
		first := &cmd.Pods[0].Pod
		hourly := fleet.Money(req.Count) * v.PodRate(first.Spec, first.HourlyRate)
		if account.Prepaid && !v.Covers(who.Account, hourly, cmd.Cluster.CreatedAt) {
			return fleet.NoCredit("Your account balance is too low to rent a cluster", hourly, v.Balance(who.Account, cmd.Cluster.CreatedAt))
		}
		return v.MayCluster(&cmd.Cluster, cmd.Pods)
	})
}

// Clusters lists the clusters of the caller's account, oldest first.
func (s *Service) Clusters(ctx context.Context, who fleet.Principal) ([]fleet.ClusterPods, error) {
	all, err := recordsOf[fleet.Cluster](ctx, s, who)
	out := make([]fleet.ClusterPods, len(all))
	for i, c := range all { // each in a view of its own: commands wait for a view's end
		if err == nil {
			out[i], err = s.clusterView(c, nil)
		}
	}
	return out, err
}

// ClusterByID returns a cluster of the caller's account. Errors: not_found.
func (s *Service) ClusterByID(ctx context.Context, who fleet.Principal, id fleet.ClusterID) (fleet.ClusterPods, error) {
	return s.clusterView(record[fleet.Cluster](ctx, s, who, id))
}

// RenameCluster gives a cluster of the caller's account another name. Errors: not_found.
func (s *Service) RenameCluster(ctx context.Context, who fleet.Principal, id fleet.ClusterID, name string) (fleet.ClusterPods, error) {
	return s.clusterView(untilFresh(ctx, func() (fleet.Cluster, error) {
		c, err := record[fleet.Cluster](ctx, s, who, id)
		if err != nil {
			return c, err
		}
		c.Name = name
		c, _, err = writeRecord(ctx, s, who, id, c, nil)
		return c, err
	}))
}

// DeleteCluster deletes a cluster of the caller's account with its members and its network. Errors: not_found.
func (s *Service) DeleteCluster(ctx context.Context, who fleet.Principal, id fleet.ClusterID) error {
	return deleteRecord[fleet.Cluster](ctx, s, who, id)
}

// clusterView adds the members to a cluster that a call returned.
func (s *Service) clusterView(c fleet.Cluster, err error) (fleet.ClusterPods, error) {
	out := fleet.ClusterPods{Cluster: c}
	if err != nil {
		return out, err
	}
	var known []hostFacts
	var suffix string
	err = s.Store.View(func(v *state.View) error {
		settings := v.NetworkSettings()
		out.Port, suffix = settings.VXLANPort, settings.Suffix
		out.Overlay, _ = v.Overlay(fleet.ClusterOverlay(c.ID))
		for _, p := range v.MembersOf(c.ID) {
			out.Pods, known = append(out.Pods, fleet.PodView{Pod: p}), append(known, factsOf(v, p.Host))
		}
		return nil
	})
	for i := range out.Pods { // outside of the view, for which commands wait
		out.Pods[i] = s.view(suffix, out.Pods[i].Pod, known[i])
		out.Pods[i].Cluster = c.Type
	}
	out.Status, out.Faults = howMembersAre(&out)
	return out, err
}

// howMembersAre says how the members of a cluster are, and what is wrong with whom.
func howMembersAre(c *fleet.ClusterPods) (fleet.ClusterStatus, []fleet.ClusterFault) {
	running, active, faults := 0, 0, []fleet.ClusterFault{}
	for i := range c.Pods {
		v := &c.Pods[i]
		p, why := v.Pod, v.Reason
		switch {
		case p.Status == fleet.StatusError:
			why = cmp.Or(why, "it failed")
		case v.Unreachable:
		case p.Status == fleet.StatusExited:
			why = cmp.Or(why, "it ended")
		default:
			why = ""
		}
		if p.Status.Active() {
			active++
		}
		if p.Status == fleet.StatusRunning && !v.Unreachable && !p.Stopping() {
			running++
		}
		if why != "" {
			faults = append(faults, fleet.ClusterFault{Rank: p.Rank, Pod: p.ID, Host: p.Host, Reason: why, Log: p.LogTail})
		}
	}
	failed := slices.ContainsFunc(c.Pods, func(v fleet.PodView) bool { return v.Pod.Status == fleet.StatusError })
	switch {
	case running == c.Cluster.Count:
		return fleet.ClusterReady, faults
	case active == 0 && !failed:
		return fleet.ClusterStopped, faults
	case len(faults) > 0:
		return fleet.ClusterDegraded, faults
	}
	return fleet.ClusterStarting, faults
}

// ClusterMembers lists the members of all clusters of the caller's account.
func (s *Service) ClusterMembers(ctx context.Context, who fleet.Principal) (out []fleet.PodView, err error) {
	all, err := s.Clusters(ctx, who)
	for _, c := range all {
		out = append(out, c.Pods...)
	}
	return out, err
}

// asMember limits what is wanted of hosts to those that a member of a cluster may be on: such as give it the cluster's network, and when it
// was on one before, of the same data center and without another member; others than those of not.
func (d *demand) asMember(v *state.View, p *fleet.Pod, not ...fleet.HostID) {
	if p.Owner.Kind != fleet.OwnerCluster {
		return
	}
	d.req.Networked, d.not = true, not
	if p.DataCenter == "" {
		return
	}
	d.req.Centers = []fleet.DataCenterID{p.DataCenter}
	for _, other := range v.MembersOf(fleet.ClusterID(p.Owner.ID)) {
		if other.ID != p.ID && (other.Held || other.Status.Active()) {
			d.not, d.with = append(d.not, other.Host), cmp.Or(d.with, other.Fabric)
		}
	}
	for _, id := range not { // of members that start together
		if h, ok := v.Host(id); ok {
			d.with = cmp.Or(d.with, h.FabricName())
		}
	}
}

// refuseMember is memberRefusal for a pod of the caller's account; one that is not there is no error.
func (s *Service) refuseMember(who fleet.Principal, id fleet.PodID) error {
	return s.Store.View(func(v *state.View) error {
		if p, err := podOf(v, who, id); err == nil {
			return memberRefusal(&p)
		}
		return nil
	})
}

// memberRefusal refuses to change a member of a cluster, which only its cluster does. Errors: not_allowed.
func memberRefusal(p *fleet.Pod) error {
	if p.Owner.Kind != fleet.OwnerCluster {
		return nil
	}
	return fleet.NotAllowed("the pod is a member of cluster %s, which alone starts, stops and changes it", p.Owner.ID)
}

// clusterSight is what the members of a cluster see of it.
type clusterSight struct {
	cluster fleet.Cluster
	cidr    netip.Prefix // of the cluster's network
	nodes   []node       // by rank
}

// node is what a member is to the others.
type node struct {
	addr  netip.Addr
	holds fleet.Resources
	names []string // the first is its host name
}

// clusterOf returns what a member sees of its cluster. Errors: not_found.
func (s *Service) clusterOf(p *fleet.Pod) (out clusterSight, err error) {
	return out, s.Store.View(func(v *state.View) error {
		id := fleet.ClusterID(p.Owner.ID)
		c, known := state.Find[fleet.Cluster](v, id)
		o, networked := v.Overlay(fleet.ClusterOverlay(id))
		members, suffix := v.MembersOf(id), v.NetworkSettings().Suffix
		if !known || !networked || len(members) == 0 {
			return fleet.NotFound("cluster")
		}
		out.cluster, out.cidr = c, o.CIDR
		for _, m := range members {
			name := fleet.NodeName(m.Rank)
			out.nodes = append(out.nodes, node{m.ClusterAddr(), m.Need, []string{name, name + "." + suffix}})
		}
		return nil
	})
}

// variables are what distributed programs expect in the environment of a member (wire-facts.md 7). What its owner set of NCCL, Gloo and
// Ray stays.
func (c *clusterSight) variables(p *fleet.Pod) map[string]string {
	primary, port := c.nodes[0].addr.String(), fmt.Sprint(fleet.ClusterPort)
	gpus, id := c.cluster.GPU.Count, string(c.cluster.ID)
	out := map[string]string{
		"NCCL_SOCKET_IFNAME": fleet.ClusterLink, "GLOO_SOCKET_IFNAME": fleet.ClusterLink,
	}
	if c.cluster.Type == fleet.ClusterRay {
		out["RAY_ADDRESS"] = primary + ":6379"
	}
	maps.DeleteFunc(out, func(name, _ string) bool {
		_, own := p.Spec.Env[name]
		return own
	})
	maps.Copy(out, map[string]string{
		"PRIMARY_ADDR": primary, "MASTER_ADDR": primary, "PRIMARY_PORT": port, "MASTER_PORT": port, "HOST_NODE_ADDR": primary + ":" + port,
		"NODE_ADDR": p.ClusterAddr().String(), "NODE_RANK": fmt.Sprint(p.Rank), "NUM_NODES": fmt.Sprint(c.cluster.Count),
		"NUM_TRAINERS": fmt.Sprint(gpus), "WORLD_SIZE": fmt.Sprint(c.cluster.Count * gpus), "RUNPOD_CLUSTER_ID": id, "GANTRY_CLUSTER_ID": id,
	})
	return out
}

// clusterEnvironment adds the variables of a cluster's member.
func (s *Service) clusterEnvironment(env map[string]string, p *fleet.Pod) error {
	c, err := s.clusterOf(p)
	if err == nil {
		maps.Copy(env, c.variables(p))
	}
	return err
}
