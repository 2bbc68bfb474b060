package rest_test

import (
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(instantRows, "201 cluster", "200 clusters", "200 cluster record", "200 cluster renamed", "204 cluster", "200 pods of a cluster",
		"dry run of a cluster", "409 member of a cluster", "422 cluster", "all or nothing", "200 clusters' pods", "200 cluster restarted", "409 cluster in the wrong state")
}

const (
	clusterID   = "<cluster-1>"
	clusterBody = `{"name":"train","type":"SLURM","image":"train:1","compute":{"gpuTypeId":"NVIDIA H100 80GB HBM3","gpuCountPerPod":8,"podCount":2}}`
	secondHost  = fleet.HostID("host0000000003")
)

// roomForTwo adds a host, so that a cluster of two has room.
func roomForTwo(_ *testing.T, p *plane.Plane) { p.AddHost(secondHost) }

// ownCluster makes a cluster of two of the account of User.
func ownCluster(t *testing.T, p *plane.Plane) {
	t.Helper()
	makeCluster(t, p, 8)
}

// makeCluster makes a cluster of two pods with so many GPUs, of the account of User.
func makeCluster(t *testing.T, p *plane.Plane, gpus int) fleet.ClusterID {
	t.Helper()
	roomForTwo(t, p)
	made, _, err := p.CreateCluster(t.Context(), p.Who(plane.User), fleet.ClusterRequest{
		Type: fleet.ClusterRay, Count: 2,
		Pod: fleet.PodRequest{Name: "train", Image: "train:1", GPU: &fleet.GPURequest{Type: plane.SimGPU, Count: gpus}, Ports: []fleet.Port{{Number: 22, Protocol: "tcp"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return made.Cluster.ID
}

// runningCluster is ownCluster whose members run, but for the last, which failed.
func runningCluster(t *testing.T, p *plane.Plane) {
	t.Helper()
	ownCluster(t, p)
	members, err := p.ClusterMembers(t.Context(), p.Who(plane.User))
	if err != nil {
		t.Fatal(err)
	}
	for i, event := range []fleet.Trigger{fleet.EventRunning, fleet.EventFailed} {
		if err := p.Report(members[i].Pod.ID, event, func(r *plane.PodReport) { r.Reason, r.LogTail = "exit code 1", "no NIC\n" }); err != nil {
			t.Fatal(err)
		}
	}
}

// endedMember is runningCluster of which something beside its owner stops or terminates the first member, such as a lack of credit.
func endedMember(how fleet.Trigger) func(*testing.T, *plane.Plane) {
	return func(t *testing.T, p *plane.Plane) {
		t.Helper()
		runningCluster(t, p)
		members, err := p.ClusterMembers(t.Context(), p.Who(plane.User))
		if err != nil {
			t.Fatal(err)
		}
		p.EndMember(members[0].Pod.ID, how)
	}
}

func instantRows() []row {
	v := func(name, rule, method, path, key, body string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "clusters", name: name, rule: rule, method: method, path: "/v2/clusters" + path, key: key, body: body, setup: setup}
	}
	of := func(name, rule, method, key, body string) row {
		return v(name, rule, method, "/"+clusterID, key, body, ownCluster)
	}
	own, pod := ownCluster, func(name, method, path, body string) row {
		return row{topic: "clusters", name: "member-" + name, rule: "409 member of a cluster", method: method, path: "/v2/pods/<pod-1>" + path, key: plane.User, body: body, setup: ownCluster}
	}
	out := []row{
		v("list", "200 clusters", "GET", "", plane.Reader, "", own),
		v("list-none", "200 clusters", "GET", "", plane.Other, "", own),
		v("list-no-permission", "403 key without the permission", "GET", "", plane.Reader, "", func(_ *testing.T, p *plane.Plane) {
			p.Restrict(plane.Reader, map[fleet.Group]fleet.Access{fleet.GroupServerless: fleet.AccessRead})
		}),
		v("put", "405 with Allow", "PUT", "", plane.User, "", nil),
		of("get", "200 cluster record", "GET", plane.Reader, ""),
		v("get-degraded", "200 cluster record", "GET", "/"+clusterID, plane.Reader, "", runningCluster),
		of("get-foreign", "404 foreign object", "GET", plane.Other, ""),
		v("get-missing", "404 missing object", "GET", "/"+clusterID, plane.User, "", nil),
		v("pods", "200 pods of a cluster", "GET", "/"+clusterID+"/pods", plane.Reader, "", own),
		v("pods-foreign", "404 foreign object", "GET", "/"+clusterID+"/pods", plane.Other, "", own),
		of("rename", "200 cluster renamed", "PATCH", plane.User, `{"name":"other"}`),
		of("rename-nothing", "200 cluster renamed", "PATCH", plane.User, `{}`),
		of("rename-empty", "422 cluster", "PATCH", plane.User, `{"name":""}`),
		of("rename-more", "422 cluster", "PATCH", plane.User, `{"type":"RAY"}`),
		of("rename-foreign", "404 foreign object", "PATCH", plane.Other, `{"name":"mine"}`),
		of("rename-reader", "403 key without the permission", "PATCH", plane.Reader, `{"name":"mine"}`),
		v("restart", "200 cluster restarted", "POST", "/"+clusterID+"/restart", plane.User, "", runningCluster),
		v("restart-starting", "200 cluster restarted", "POST", "/"+clusterID+"/restart", plane.User, "", own),
		v("restart-no-room", "all or nothing", "POST", "/"+clusterID+"/restart", plane.User, "", func(t *testing.T, p *plane.Plane) {
			runningCluster(t, p)
			p.SetReachable(secondHost, false)
		}),
		v("restart-broke", "402 low balance", "POST", "/"+clusterID+"/restart", plane.User, "", func(t *testing.T, p *plane.Plane) {
			runningCluster(t, p)
			p.SetBroke(plane.User, true)
		}),
		v("restart-stopping", "409 cluster in the wrong state", "POST", "/"+clusterID+"/restart", plane.User, "", endedMember(fleet.ActionStop)),
		v("restart-terminated", "409 cluster in the wrong state", "POST", "/"+clusterID+"/restart", plane.User, "", endedMember(fleet.ActionTerminate)),
		v("restart-foreign", "404 foreign object", "POST", "/"+clusterID+"/restart", plane.Other, "", own),
		v("restart-reader", "403 key without the permission", "POST", "/"+clusterID+"/restart", plane.Reader, "", own),
		of("delete", "204 cluster", "DELETE", plane.User, ""),
		of("delete-foreign", "404 foreign object", "DELETE", plane.Other, ""),
		of("delete-reader", "403 key without the permission", "DELETE", plane.Reader, ""),
		pod("stop", "POST", "/action", `{"action":"stop"}`), pod("update", "PATCH", "", `{"name":"mine"}`), pod("delete", "DELETE", "", ""),
		{topic: "clusters", name: "members-hidden", rule: "200 clusters' pods", method: "GET", path: "/v2/pods", key: plane.Reader, setup: own},
		{topic: "clusters", name: "members-listed", rule: "200 clusters' pods", method: "GET", path: "/v2/pods?includeClusterPods=true", key: plane.Reader, setup: own},
		{topic: "clusters", name: "member-get", rule: "200 pods of a cluster", method: "GET", path: "/v2/pods/<pod-2>", key: plane.Reader, setup: own},
	}
	return slices.Concat(out, createClusterRows())
}

func createClusterRows() []row {
	v := func(name, rule, body string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "clusters", name: "create" + name, rule: rule, method: "POST", path: "/v2/clusters", key: plane.User, body: body, setup: setup}
	}
	with := func(name, rule, old, now string) row {
		return v("-"+name, rule, strings.Replace(clusterBody, old, now, 1), roomForTwo)
	}
	more := func(name, rule, members string) row { return with(name, rule, `"name":`, members+`,"name":`) }
	dry := v("-dry", "dry run of a cluster", clusterBody, roomForTwo)
	dry.path += "?dryRun=true"
	reader := v("-reader", "403 key without the permission", clusterBody, roomForTwo)
	reader.key = plane.Reader
	return []row{
		v("", "201 cluster", clusterBody, roomForTwo), dry, reader,
		v("-no-room", "all or nothing", clusterBody, nil),
		v("-broke", "402 low balance", clusterBody, func(t *testing.T, p *plane.Plane) { roomForTwo(t, p); p.SetBroke(plane.User, true) }),
		v("-half-paid", "402 low balance", clusterBody, func(t *testing.T, p *plane.Plane) { // one pod takes 21.52 USD
			roomForTwo(t, p)
			p.SetBroke(plane.User, true)
			if _, _, err := p.AddCredit(t.Context(), plane.Research, 30*fleet.Dollar, nil); err != nil {
				t.Fatal(err)
			}
		}),
		more("all", "201 cluster", `"dataCenterIds":["dev-1"],"ports":["22/tcp"],"env":{"A":"1"},"startSsh":true`),
		more("restarts", "201 cluster", `"onFailure":"restart"`), more("stops", "201 cluster", `"onFailure":"stop"`),
		more("on-failure", "422 cluster", `"onFailure":"panic"`),
		more("elsewhere", "all or nothing", `"dataCenterIds":["dev-2"]`),
		more("unknown-center", "422 cluster", `"dataCenterIds":["mars"]`),
		more("unknown-member", "422 cluster", `"cpu":{"id":"cpu3g","vcpuCount":2}`),
		more("volume", "404 missing object", `"mounts":{"network":[{"volumeId":"nothere","path":"/workspace"}]}`),
		with("one", "422 cluster", `"podCount":2`, `"podCount":1`),
		with("many", "422 cluster", `"podCount":2`, `"podCount":251`),
		with("no-count", "422 cluster", `,"podCount":2`, ``),
		with("no-gpus", "422 cluster", `"gpuCountPerPod":8`, `"gpuCountPerPod":0`),
		with("gpu", "422 cluster", `NVIDIA H100 80GB HBM3`, `Abacus`),
		with("type", "422 cluster", `SLURM`, `PBS`),
		with("no-image", "422 cluster", `"image":"train:1",`, ``),
	}
}
