package rest

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"

	"gantry/api/v2"
	"gantry/fleet"
)

// InstantClusterService keeps instant clusters.
type InstantClusterService interface {
	// CreateCluster creates a cluster with all its pods, or not at all; replayed tells that the request's Once was seen before.
	CreateCluster(ctx context.Context, who fleet.Principal, req fleet.ClusterRequest) (made fleet.ClusterPods, replayed bool, err error)
	// PlanCluster answers as CreateCluster would, and creates nothing.
	PlanCluster(ctx context.Context, who fleet.Principal, req fleet.ClusterRequest) (fleet.ClusterPods, error)
	// Clusters lists the account's clusters, oldest first.
	Clusters(ctx context.Context, who fleet.Principal) ([]fleet.ClusterPods, error)
	ClusterByID(ctx context.Context, who fleet.Principal, id fleet.ClusterID) (fleet.ClusterPods, error)
	RenameCluster(ctx context.Context, who fleet.Principal, id fleet.ClusterID, name string) (fleet.ClusterPods, error)
	// RestartCluster starts all pods of a cluster anew.
	RestartCluster(ctx context.Context, who fleet.Principal, id fleet.ClusterID) (fleet.ClusterPods, error)
	DeleteCluster(ctx context.Context, who fleet.Principal, id fleet.ClusterID) error
}

const textCreateCluster = "Creates pods of one shape, each on a host of its own in one data center, with a private network of their own: all of them, or " +
	"none. 400: a rule is broken (code rule), or no data center has room for all (code no_capacity; excluded says why). 402: the balance is below one " +
	"hour of all pods. 403: the account has its limit of clusters, pods or GPUs. 404: what it refers to does not exist (errors names the field). " +
	"With dryRun=true the answer is 200 with the cluster that would be created, whose id is empty; nothing is created."

const textRestartCluster = "Restarts all pods of a cluster together, or none: those that run where they are, those that failed or ended on their hosts or, " +
	"where these have no room, on others. They keep their ranks and addresses. 400: a pod has no room (code no_capacity). 402: the balance is below one hour " +
	"of the pods that ended. 403: the account has its limit. 404: the account has no such cluster. 409: a pod is being stopped or was terminated."

type clusterNoun = noun[InstantClusterService, fleet.ClusterID, fleet.ClusterPods, v2.InstantCluster, v2.ClusterList]

func (a *API) registerClusters() {
	n := clusterNoun{
		path: "/v2/clusters", tag: "Clusters", one: "an instant cluster", name: "InstantCluster", names: "Clusters",
		group: fleet.GroupPods, id: pathParam("Cluster identifier.", "c7p2w5k9x1m4q8"), example: exampleInstantCluster(), record: clusterPodsRecord,
		records: func(all []v2.InstantCluster) v2.ClusterList { return v2.ClusterList{Clusters: all} },
	}
	n.list(a, "Lists the account's clusters, oldest first.", InstantClusterService.Clusters)
	create := n.create(textCreateCluster, exampleCreateCluster()).once().fails(http.StatusPaymentRequired, http.StatusNotFound)
	create.alike, create.params = []int{http.StatusOK}, append(create.params, flagParam("dryRun", "Answer as a create would, and create nothing.", false))
	on(a, create, createCluster)
	n.get(a, "Returns a cluster. 404: the account has no such cluster.", InstantClusterService.ClusterByID)
	on(a, n.update("Renames a cluster. 404: the account has no such cluster.", v2.UpdateClusterRequest{Name: new("trainer-2")}),
		byID(n.kind(), updateCluster))
	n.delete(a, "Deletes a cluster with its pods and its network. It cannot be undone. 404: the account has no such cluster.",
		InstantClusterService.DeleteCluster)
	restart := n.operation(http.MethodPost, "/{id}/restart", "restart", "Restart", textRestartCluster, nil)
	on(a, restart.fails(http.StatusBadRequest, http.StatusPaymentRequired, http.StatusForbidden, http.StatusConflict), byID(n.kind(),
		func(ctx context.Context, svc InstantClusterService, id fleet.ClusterID, c *call, _ *none) (*v2.InstantCluster, error) {
			return show(clusterPodsRecord)(svc.RestartCluster(ctx, c.who, id))
		}))
	pods := n.operation(http.MethodGet, "/{id}/pods", "list", "List the pods of", "Lists a cluster's pods by rank.", nil)
	pods.id, pods.out = "listClusterPods", v2.PodList{Pods: []v2.Pod{examplePod()}}
	on(a, pods, byID(n.kind(), func(ctx context.Context, svc InstantClusterService, id fleet.ClusterID, c *call, _ *none) (*v2.PodList, error) {
		of, err := svc.ClusterByID(ctx, c.who, id)
		if err != nil {
			return nil, err
		}
		return a.podList(of.Pods), nil
	}))
}

// podList shows pods.
func (a *API) podList(views []fleet.PodView) *v2.PodList {
	out, now := &v2.PodList{Pods: make([]v2.Pod, 0, len(views))}, a.now()
	for i := range views {
		out.Pods = append(out.Pods, podRecord(&views[i], now))
	}
	return out
}

func createCluster(ctx context.Context, svc InstantClusterService, c *call, in *v2.CreateClusterRequest) (*v2.InstantCluster, error) {
	req := clusterRequest(in)
	if c.args.flag("dryRun", false) {
		c.status = http.StatusOK
		return show(clusterPodsRecord)(svc.PlanCluster(ctx, c.who, req))
	}
	return show(clusterPodsRecord)(atMostOnce(c, in, func(once *fleet.Once) (fleet.ClusterPods, bool, error) {
		req.Pod.Once = once
		return svc.CreateCluster(ctx, c.who, req)
	}))
}

func updateCluster(ctx context.Context, svc InstantClusterService, id fleet.ClusterID, c *call, in *v2.UpdateClusterRequest) (*v2.InstantCluster, error) {
	if in.Name == nil {
		return show(clusterPodsRecord)(svc.ClusterByID(ctx, c.who, id))
	}
	return show(clusterPodsRecord)(svc.RenameCluster(ctx, c.who, id, *in.Name))
}

// clusterRequest reads a body; its pods are like one of POST /v2/pods.
func clusterRequest(in *v2.CreateClusterRequest) fleet.ClusterRequest {
	pod := podRequest(&v2.CreatePodRequest{
		Name: in.Name, GPU: &v2.CreateGPUConfig{ID: in.Compute.GPUTypeID, Count: in.Compute.GPUCountPerPod},
		DataCenterIDs: in.DataCenterIDs, StartSSH: in.StartSSH, StartJupyter: in.StartJupyter,
		PodSettings: v2.PodSettings{
			Image: in.Image, Args: in.Args, Disk: in.Disk, Ports: in.Ports, Env: in.Env, Registry: in.Registry, Mounts: in.Mounts,
			TemplateID: in.TemplateID,
		},
	})
	return fleet.ClusterRequest{
		Type: fleet.ClusterType(in.Type), Count: in.Compute.PodCount, Pod: pod, OnFailure: fleet.OnFailure(in.OnFailure),
	}
}

func checkCreateCluster(in *v2.CreateClusterRequest) []string {
	var out []string
	if in.Image == nil && in.TemplateID == "" {
		out = append(out, "$: missing property 'image'")
	}
	return append(out, checkSettings(in.Args, in.Ports, in.Env)...)
}

func clusterPodsRecord(c fleet.ClusterPods) v2.InstantCluster {
	r := &c.Cluster
	out := v2.InstantCluster{
		ID: string(r.ID), Name: r.Name, Type: string(r.Type), Template: v2.Text(r.Template), DataCenterID: string(r.DataCenter),
		Compute: v2.ClusterCompute{GPUTypeID: r.GPU.Type, GPUCountPerPod: r.GPU.Count, PodCount: r.Count}, Status: string(c.Status),
		Pods:      v2.ClusterPods{Total: len(c.Pods), ByStatus: map[string]int{}},
		OnFailure: string(cmp.Or(r.OnFailure, fleet.OnFailureNone)), Restarts: r.Tries,
		Faults: []v2.ClusterFault{}, CreatedAt: v2.At(r.CreatedAt), Primary: v2.ClusterPrimary{Status: string(fleet.StatusTerminated)},
	}
	if o := &c.Overlay; o.VNI != 0 {
		out.Network = v2.ClusterNetwork{CIDR: o.CIDR.String(), VXLANID: new(int(o.VNI)), VXLANPort: &c.Port}
	}
	for i := range c.Pods {
		v := &c.Pods[i]
		out.Pods.ByStatus[string(v.Pod.Status)]++
		out.Cost += costOf(v.Pod).USD()
		if v.Pod.Rank > 0 {
			continue
		}
		out.Primary.PodID, out.Primary.Status = string(v.Pod.ID), string(v.Pod.Status)
		if at := sshOf(v).Direct; at != nil {
			out.Primary.SSHEndpoint = v2.Text(net.JoinHostPort(at.Host, strconv.Itoa(at.Port)))
		}
	}
	for _, f := range c.Faults {
		out.Faults = append(out.Faults, v2.ClusterFault{
			Rank: f.Rank, PodID: string(f.Pod), HostID: v2.Text(f.Host), Reason: f.Reason, LogTail: v2.Text(f.Log),
		})
	}
	return out
}

// placeInCluster shows where a pod is in its cluster; nil: it is in none.
func placeInCluster(v *fleet.PodView) *v2.PodCluster {
	p := v.Pod
	if p.Owner.Kind != fleet.OwnerCluster {
		return nil
	}
	out := &v2.PodCluster{ID: p.Owner.ID, Rank: &p.Rank, Role: v.Cluster.Role(p.Rank)}
	if at, ok := p.ClusterPlace(); ok {
		out.IP = at.Addr.String()
	}
	if p.Status.Active() {
		out.Fabric, _, _ = strings.Cut(p.Fabric, " ") // the rest tells operators' fabrics apart
	}
	return out
}

func exampleCreateCluster() v2.CreateClusterRequest {
	return v2.CreateClusterRequest{
		Name: "trainer", Type: string(fleet.ClusterTraining), Image: new("docker.io/library/nginx:1.29"),
		Compute: v2.ClusterCompute{GPUTypeID: "NVIDIA H100 80GB HBM3", GPUCountPerPod: 8, PodCount: 4},
	}
}

func exampleInstantCluster() v2.InstantCluster {
	in := exampleCreateCluster()
	return v2.InstantCluster{
		ID: "c7p2w5k9x1m4q8", Name: in.Name, Type: in.Type, Compute: in.Compute, DataCenterID: "EU-RO-1", Status: string(fleet.ClusterReady),
		Pods:    v2.ClusterPods{Total: 4, ByStatus: map[string]int{"RUNNING": 4}},
		Network: v2.ClusterNetwork{CIDR: "10.65.0.0/16", VXLANID: new(4097), VXLANPort: new(4789)},
		Primary: v2.ClusterPrimary{PodID: "k3n8w0zq5r7d2a", Status: "RUNNING"},
		Faults:  []v2.ClusterFault{}, CreatedAt: exampleTime(0), OnFailure: string(fleet.OnFailureNone),
	}
}
