package graphql

import (
	"context"

	"gantry/api/v2"
	"gantry/fleet"
)

// cluster shows an instant cluster.
type cluster struct {
	s                            *session
	ID, Name, Type, DataCenterID string
	CreatedAt                    scalar
}

func newCluster(s *session, r *v2.InstantCluster) *cluster {
	return &cluster{s: s, ID: r.ID, Name: r.Name, Type: r.Type, DataCenterID: r.DataCenterID, CreatedAt: scalar{r.CreatedAt}}
}

// Pods are the cluster's pods, by rank.
func (c *cluster) Pods() ([]*pod, error) {
	all, err := read[v2.PodList](c.s, "listClusterPods", idOf(c.ID))
	if err != nil {
		return nil, err
	}
	return list(c.s, all.Pods, newPod)
}

var (
	clusterMembers = append([]member{
		{from: "clusterName", to: "name", as: word},
		{from: "type", to: "type"},
		{from: "gpuTypeId", to: "compute.gpuTypeId"},
		{from: "gpuCountPerPod", to: "compute.gpuCountPerPod"},
		{from: "podCount", to: "compute.podCount"},
	}, podMembers[1:]...)

	clusterLacks = map[string]string{
		"allowedCudaVersions": "the pods of a cluster are placed by GPU type", "minCudaVersion": "the pods of a cluster are placed by GPU type",
		"throughput": "the network of a cluster is as fast as that of its hosts", "volumeKey": podLacks["volumeKey"],
	}
)

// CreateCluster creates a cluster with all its pods, or nothing.
func (root) CreateCluster(ctx context.Context, args with) (*cluster, error) {
	s, in := sessionOf(ctx), args.Input
	if in == nil {
		return nil, s.fail(fleet.Invalid("input", "must be given"))
	}
	if err := unsupported(in, clusterLacks); err != nil {
		return nil, s.fail(err)
	}
	mountOf(in)
	for _, name := range []string{"gpuTypeId", "gpuCountPerPod", "podCount"} {
		if in[name] == nil {
			return nil, s.fail(fleet.Invalid("input."+name, "must be given"))
		}
	}
	if in.text("clusterName") == "" {
		in["clusterName"] = "my cluster"
	}
	if in.text("type") == "" {
		in["type"] = string(fleet.ClusterApplication)
	}
	return save(ctx, "createInstantCluster", "", in, clusterMembers, newCluster)
}

// DeleteCluster deletes a cluster with its pods and its network.
func (root) DeleteCluster(ctx context.Context, args with) (*bool, error) {
	_, err := remove(ctx, "deleteInstantCluster", args.Input.text("id"))
	switch {
	case codeOf(err) == fleet.CodeNotFound:
		return nil, sessionOf(ctx).said(fleet.CodeNotFound, "Cluster not found")
	case err != nil:
		return nil, err
	}
	return new(true), nil
}
