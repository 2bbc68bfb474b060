package rest_test

import (
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

const run = fleet.EventRunning

// pod returns a setup that makes a pod and plays its host's events.
func pod(events ...fleet.Trigger) func(*testing.T, *plane.Plane) {
	return func(t *testing.T, p *plane.Plane) { makePod(t, p, events...) }
}

// podThen returns a setup that makes a pod, plays its host's events and goes on.
func podThen(then func(*plane.Plane, fleet.PodID), events ...fleet.Trigger) func(*testing.T, *plane.Plane) {
	return func(t *testing.T, p *plane.Plane) { then(p, makePod(t, p, events...)) }
}

// act lets User act on a pod.
func act(t testing.TB, p *plane.Plane, id fleet.PodID, action fleet.Trigger) {
	t.Helper()
	if _, err := p.ActPod(t.Context(), p.Who(plane.User), id, action); err != nil {
		t.Fatal(err)
	}
}

// madePod returns a setup that makes a pod of the request, and plays its host's events.
func madePod(req fleet.PodRequest, events ...fleet.Trigger) func(*testing.T, *plane.Plane) {
	return func(t *testing.T, p *plane.Plane) { request(t, p, req, events...) }
}

func recordRows() []row {
	get := func(name string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "records", name: name, rule: "200 pod record", method: "GET", path: "/v2/pods/" + podID, key: plane.Reader, setup: setup}
	}
	failed := func(t *testing.T, p *plane.Plane) {
		code := 3
		id := makePod(t, p, run)
		report(t, p, id, fleet.EventFailed, func(r *plane.PodReport) {
			r.Reason, r.ExitCode, r.LogTail = "the container ended with exit code 3", &code, "boom\n"
		})
	}
	exited := func(t *testing.T, p *plane.Plane) {
		report(t, p, makePod(t, p, run), fleet.EventExited, func(r *plane.PodReport) { r.ExitCode = new(int) })
	}
	terminated := func(t *testing.T, p *plane.Plane) { act(t, p, makePod(t, p, run), fleet.ActionTerminate) }
	stopping := func(t *testing.T, p *plane.Plane) { act(t, p, makePod(t, p, run), fleet.ActionStop) }
	dry := create("records", "dry-run", "200 dry run", gpuBody)
	dry.path += "?dryRun=true"
	return []row{
		create("records", "create-gpu", "201 create pod", `{"name":"trainer","image":"localhost:5000/team/app:1.0@sha256:`+strings.Repeat("a", 64)+`","args":"python -c 'x y'","disk":30,`+
			`"gpu":{"id":"NVIDIA H100 80GB HBM3","count":2},"ports":["8080/http","22/tcp"],"env":{"B":"2","A":"1"},"cloud":"SECURE","dataCenterIds":["dev-1"]}`),
		create("records", "create-cpu", "201 create pod", cpuBody),
		dry,
		get("pulling", podThen(func(p *plane.Plane, id fleet.PodID) {
			p.SetLive(id, fleet.Live{Activity: "pulling image", PullDone: 10, PullTotal: 100})
		})),
		get("running", podThen(func(p *plane.Plane, id fleet.PodID) {
			p.Advance(90 * time.Second)
			p.SetLive(id, fleet.Live{CPUPercent: 12, MemoryPercent: 130, GPUs: []fleet.GPUUse{{Util: 93, MemoryUtil: 60}, {Util: 7, MemoryUtil: -1}}})
		}, fleet.EventStarting, run)),
		get("running-less-heard", podThen(func(p *plane.Plane, id fleet.PodID) {
			p.SetLive(id, fleet.Live{GPUs: []fleet.GPUUse{{Util: 1, MemoryUtil: 2}}})
		}, run)),
		get("running-not-heard", podThen(func(p *plane.Plane, _ fleet.PodID) { p.SetReachable(plane.Host, false) }, run)),
		get("starting", pod(fleet.EventStarting)),
		get("stopping", stopping),
		get("exited", exited),
		get("error", failed),
		get("terminated", terminated),
		get("locked", podThen(func(p *plane.Plane, id fleet.PodID) { p.Lock(id, true) }, run)),
		get("without-ports", madePod(fleet.PodRequest{Name: "bare", Image: "busybox", CPU: &fleet.CPURequest{Flavor: "cpu3c", VCPU: 4}}, run)),
		get("persistent", madePod(fleet.PodRequest{
			Name: "keeper", Image: "busybox", GPU: &fleet.GPURequest{Type: plane.SimGPU, Count: 1},
			Persistent: &fleet.PersistentMount{SizeGB: 50, Path: "/workspace"}, CUDA: &fleet.CUDARange{Min: "12.4"},
		}, run)),
		get("one-cuda", madePod(fleet.PodRequest{
			Name: "cuda", Image: "busybox", GPU: &fleet.GPURequest{Type: plane.SimGPU, Count: 1}, CUDA: &fleet.CUDARange{Allowed: []string{"12.8"}},
		})),
		get("community", madePod(fleet.PodRequest{
			Name: "there", Image: "busybox", GPU: &fleet.GPURequest{Type: plane.CommunityGPU, Count: 1}, Cloud: fleet.CloudCommunity,
			Ports: []fleet.Port{{Number: 22, Protocol: "tcp"}},
		}, run)),
	}
}

// severalPods makes one pod of each kind that the filters tell apart.
func severalPods(t *testing.T, p *plane.Plane) {
	gone := makePod(t, p, run)
	act(t, p, gone, fleet.ActionTerminate)
	p.Advance(time.Second)
	makePod(t, p, run)
	p.Advance(time.Second)
	request(t, p, fleet.PodRequest{Name: "cpu one", Image: "nginx:1.29", CPU: &fleet.CPURequest{Flavor: "cpu3c", VCPU: 2}})
	p.Advance(time.Second)
	request(t, p, fleet.PodRequest{
		Name: "there", Image: "busybox", GPU: &fleet.GPURequest{Type: plane.CommunityGPU, Count: 1}, Cloud: fleet.CloudCommunity,
	}, run, fleet.EventExited)
}

func listRows() []row {
	list := func(name, query string) row {
		return row{topic: "lists", name: name, rule: "list filters", method: "GET", path: "/v2/pods" + query, key: plane.Reader, setup: severalPods, ids: true}
	}
	whole := list("whole-records", "")
	whole.rule, whole.ids, whole.setup = "200 list", false, pod(run)
	none := list("none", "?unknown=1&includeClusterPods=true")
	none.rule, none.key = "200 list", plane.Other
	flag := func(name, query string) row {
		r := list(name, query)
		r.rule, r.ids = "422 parameter", false
		return r
	}
	return []row{
		whole, none,
		list("all", "?includeTerminated=true"), list("not-terminated", ""),
		list("by-id", "?id=<pod-2>,<pod-3>"), list("by-id-of-none", "?id="+missingID), list("by-foreign-form", "?id=..%2Fx"),
		list("by-name", "?name=cpu%20one"), list("by-name-part", "?name=cpu"), list("by-name-case", "?name=WEB"),
		list("by-status", "?status=RUNNING"), list("by-two-statuses", "?status=EXITED&status=PROVISIONING"), list("by-terminated", "?status=TERMINATED"),
		list("by-status-but-not-that", "?status=RUNNING&includeTerminated=true"),
		list("by-image", "?image=nginx:1.29"), list("by-gpu-kind", "?computeType=GPU"), list("by-cpu-kind", "?computeType=CPU"), list("by-both-kinds", "?computeType=CPU,GPU"),
		list("by-gpu", "?gpuTypeId=NVIDIA%20GeForce%20RTX%204090"), list("by-two-gpus", "?gpuTypeId=NVIDIA%20GeForce%20RTX%204090,NVIDIA%20H100%2080GB%20HBM3"),
		list("by-flavor", "?cpuFlavorId=cpu3c"), list("by-other-flavor", "?cpuFlavorId=cpu3g"),
		list("by-center", "?dataCenterId=dev-2"), list("by-template", "?templateId="+missingID), list("by-volume", "?networkVolumeId="+missingID),
		list("by-several", "?computeType=GPU&status=RUNNING&dataCenterId=dev-1&name=web"), list("by-contradiction", "?computeType=CPU&gpuTypeId=NVIDIA%20L4"),
		list("empty-filter", "?name=&status="),
		flag("flag-form", "?includeTerminated=perhaps"), flag("flag-twice", "?includeTerminated=true&includeTerminated=false"),
		flag("cluster-flag-form", "?includeClusterPods=2"), flag("status-word", "?status=running"), flag("kind-word", "?computeType=TPU"),
		flag("name-twice", "?name=a&name=b"), flag("ids-many", "?id="+strings.Repeat("x,", 101)),
	}
}

func actionRows() []row {
	action := func(name, rule, what string, events ...fleet.Trigger) row {
		return row{
			topic: "actions", name: name, rule: rule, method: "POST", path: "/v2/pods/" + podID + "/action", key: plane.User,
			body: `{"action":"` + what + `"}`, setup: pod(events...),
		}
	}
	after := func(r row, then func(*testing.T, *plane.Plane, fleet.PodID)) row {
		r.setup = func(t *testing.T, p *plane.Plane) { then(t, p, makePod(t, p, run)) }
		return r
	}
	stopping := func(t *testing.T, p *plane.Plane, id fleet.PodID) { act(t, p, id, fleet.ActionStop) }
	gone := func(t *testing.T, p *plane.Plane, id fleet.PodID) { act(t, p, id, fleet.ActionTerminate) }
	locked := func(_ *testing.T, p *plane.Plane, id fleet.PodID) { p.Lock(id, true) }
	del := func(name, rule string) row {
		r := action(name, rule, "", run)
		r.method, r.path, r.body = "DELETE", "/v2/pods/"+podID, ""
		return r
	}
	out := []row{
		action("start", "200 action", "start", run, fleet.EventExited), action("start-failed", "200 action", "start", run, fleet.EventFailed),
		action("stop", "200 action", "stop", run), action("stop-early", "200 action", "stop"), action("stop-starting", "200 action", "stop", fleet.EventStarting),
		action("restart", "200 action", "restart", run),
		action("terminate", "204 terminate", "terminate", run), action("terminate-early", "204 terminate", "terminate"),
		action("terminate-exited", "204 terminate", "terminate", run, fleet.EventExited),
		action("pause", "422 enum", "pause", run), action("case", "422 enum", "Stop", run),
		after(action("terminate-stopping", "204 terminate", "terminate"), stopping),
		after(action("terminate-locked", "204 terminate", "terminate"), locked),
		after(action("locked-stop", "409 locked", "stop"), locked), after(action("locked-restart", "409 locked", "restart"), locked),
		del("delete", "204 delete"), after(del("delete-stopping", "204 delete"), stopping),
		after(del("delete-twice", "409 action not allowed"), gone),
	}
	// Every pair of status and action that the life of a pod does not have.
	for status, refused := range map[string][]string{
		"provisioning": {"start", "restart"}, "starting": {"start", "restart"}, "running": {"start"}, "exited": {"stop", "restart"}, "error": {"stop", "restart"},
	} {
		events := map[string][]fleet.Trigger{"starting": {fleet.EventStarting}, "running": {run}, "exited": {run, fleet.EventExited}, "error": {run, fleet.EventFailed}}
		for _, what := range refused {
			out = append(out, action(what+"-"+status, "409 action not allowed", what, events[status]...))
		}
	}
	for _, what := range []string{"start", "stop", "restart", "terminate"} {
		out = append(out, after(action(what+"-terminated", "409 action not allowed", what), gone))
		if what != "terminate" {
			out = append(out, after(action(what+"-stopping", "409 action not allowed", what), stopping))
		}
	}
	return sorted(out)
}
