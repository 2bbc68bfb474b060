package clients

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"gantry/api/v2"
	"gantry/test/devtest"
)

type args = map[string]any

func body(members args) args { return args{"body": members} }

func of(id string, members args) args { return args{"id": id, "body": members} }

// pod is what the tests read of a pod's record.
type pod struct {
	ID, Name, Status, Image string
	Actions                 []string
	Env                     map[string]string
	Template, Registry      *string
	Locked                  bool
	Cost                    float64
	Incarnation             int
	Runtime                 *struct{ Uptime int }
}

// TestEveryTool plays a user's day: each tool for pods, network volumes, templates, registries, SSH keys, catalog and
// billing is called, and none is left out.
func TestEveryTool(t *testing.T) {
	m := startMCP(t, suite.info.API, suite.info.APIKey)
	t.Run("catalog", func(t *testing.T) { catalogTools(t, m) })
	t.Run("ssh keys", func(t *testing.T) { sshTools(t, m) })
	t.Run("templates", func(t *testing.T) { templateTools(t, m) })
	t.Run("registries", func(t *testing.T) { registryTools(t, m) })
	t.Run("pods", func(t *testing.T) { podTools(t, m) })
	t.Run("network volumes", func(t *testing.T) { volumeTools(t, m) })
	t.Run("endpoints and jobs", func(t *testing.T) { jobTools(t, m) })
	t.Run("GraphQL", func(t *testing.T) { graphqlTools(t, m) })
	t.Run("billing", func(t *testing.T) { billingTools(t, m) })
	for _, name := range m.tools(t) {
		if wanted(name) && !m.used[name] {
			t.Errorf("the tool %s was not called", name)
		}
	}
}

// wanted tells the tools of this API's groups; those of clusters have a test of their own, and the others speak of builds of
// images and of services beside the API.
func wanted(tool string) bool {
	for _, word := range []string{"pod", "network-volume", "template", "registr", "delegation", "ssh-key", "gpu-type", "cpu-type", "data-center", "billing", "endpoint", "job", "worker"} {
		if strings.Contains(tool, word) && !slices.ContainsFunc([]string{"cluster", "endpoint-build", "public-endpoints"}, func(s string) bool { return strings.Contains(tool, s) }) {
			return true
		}
	}
	return false
}

// graphqlTools are the tools that no other interface has a route for.
func graphqlTools(t *testing.T, m *mcp) {
	for _, in := range []args{nil, {"cudaVersions": []string{"12.8"}, "gpuTypeIds": []string{"H100"}, "secureCloudOnly": true}} {
		if got := m.tool(t, "get-capacity", in); got.failed || !strings.Contains(got.text, devtest.GPUType) {
			t.Errorf("get-capacity with %v: %s", in, got.text)
		}
	}
	for _, name := range []string{"list-hub-repos", "list-public-endpoints"} { // an installation has none
		if got := m.tool(t, name, nil); got.failed || strings.Contains(got.text, "\"id\"") {
			t.Errorf("%s: %s", name, got.text)
		}
	}
	if got := m.tool(t, "deploy-hub-repo", args{"repo": "owner/name"}); !got.failed || strings.Contains(got.text, "GraphQL error") {
		t.Errorf("deploy-hub-repo: %s", got.text)
	}
}

func catalogTools(t *testing.T, m *mcp) {
	var gpus struct {
		GPUs []struct {
			ID, Name, Manufacturer string
			Availability           *string
			DataCenters            []struct{ ID, Availability string }
		}
	}
	m.good(t, &gpus, "list-gpu-types", nil)
	if i := slices.IndexFunc(gpus.GPUs, func(g struct {
		ID, Name, Manufacturer string
		Availability           *string
		DataCenters            []struct{ ID, Availability string }
	},
	) bool {
		return g.ID == devtest.GPUType
	}); i < 0 || gpus.GPUs[i].Availability != nil {
		t.Errorf("without include: %+v", gpus)
	}
	var gpu struct {
		ID, Availability string
		MaxCount         struct{ Secure int }
		Price            struct{ Secure float64 }
	}
	m.good(t, &gpu, "get-gpu-type", args{"id": devtest.GPUType, "include": []string{"AVAILABILITY"}, "product": []string{"POD"}, "count": 2})
	if gpu.ID != devtest.GPUType || gpu.Availability == "NONE" || gpu.MaxCount.Secure != 8 || gpu.Price.Secure <= 0 {
		t.Errorf("the GPU type: %+v", gpu)
	}
	m.refused(t, 400, "rule", "list-gpu-types", args{"product": []string{"POD"}})
	m.refused(t, 404, "not_found", "get-gpu-type", args{"id": "NVIDIA Nothing"})

	var cpus struct{ CPUs []struct{ ID string } }
	m.good(t, &cpus, "list-cpu-types", args{"include": []string{"AVAILABILITY"}, "product": []string{"POD"}, "vcpuCount": 2})
	var cpu struct {
		ID   string
		VCPU struct{ Min, Max int }
	}
	m.good(t, &cpu, "get-cpu-type", args{"id": "cpu3g"})
	if len(cpus.CPUs) == 0 || cpu.ID != "cpu3g" || cpu.VCPU.Min != 2 {
		t.Errorf("CPU types: %+v, %+v", cpus, cpu)
	}
	var centers struct{ DataCenters []struct{ ID string } }
	m.good(t, &centers, "list-data-centers", args{"include": []string{"GPU_AVAILABILITY", "CPU_AVAILABILITY"}})
	m.good(t, nil, "get-data-center", args{"id": suite.info.DataCenterID})
	if len(centers.DataCenters) != 1 || centers.DataCenters[0].ID != suite.info.DataCenterID {
		t.Errorf("data centers: %+v", centers)
	}
	m.good(t, &centers, "list-data-centers", args{"globalNetwork": true, "regions": []string{"ASIA"}})
}

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8zP2JqXb1Q0mJpZrC7bqzWmC1xXhY1zJj5Yw3oHk2p user@example"

func sshTools(t *testing.T, m *mcp) {
	var got struct{ Keys []string }
	m.good(t, &got, "update-ssh-keys", body(args{"keys": []string{publicKey}}))
	m.good(t, &got, "get-ssh-keys", nil)
	if !slices.Equal(got.Keys, []string{publicKey}) {
		t.Errorf("SSH keys: %q", got.Keys)
	}
}

type template struct {
	ID, Name, Image, Category string
	StartSSH, StartJupyter    bool
	Env                       map[string]string
	Ports                     []string
	Public                    bool
}

func templateTools(t *testing.T, m *mcp) {
	var made, got template
	m.good(t, &made, "create-template", body(args{
		"name": "web", "image": devtest.Image, "category": "CPU", "ports": []string{"8080/http"}, "env": args{"A": "template", "B": "template"},
	}))
	if made.ID == "" || !made.StartSSH || !made.StartJupyter || made.Category != "CPU" {
		t.Errorf("the template: %+v", made)
	}
	m.good(t, nil, "update-template", of(made.ID, args{"public": true, "startJupyter": false, "env": args{"A": "changed", "B": "template"}}))
	m.good(t, &got, "get-template", args{"id": made.ID})
	if !got.Public || got.StartJupyter || got.Env["A"] != "changed" || got.Image != devtest.Image {
		t.Errorf("after the update: %+v", got)
	}
	var list struct{ Templates []template }
	m.good(t, &list, "list-templates", nil)
	if len(list.Templates) != 1 || list.Templates[0].ID != made.ID {
		t.Errorf("templates: %+v", list)
	}
	m.good(t, &list, "list-public-templates", args{"source": "community"})
	if len(list.Templates) != 1 {
		t.Errorf("public templates of the community: %+v", list)
	}
	m.good(t, &list, "list-public-templates", nil)
	if len(list.Templates) != 0 {
		t.Errorf("official templates: %+v", list)
	}
	m.refused(t, 422, "invalid", "create-template", body(args{"name": "x", "image": devtest.Image, "mounts": args{"persistent": args{"size": 5, "path": "/data"}}}))
	m.good(t, nil, "delete-template", args{"id": made.ID})
	m.refused(t, 404, "not_found", "get-template", args{"id": made.ID})
}

const (
	registryUser     = "robot-of-the-test"
	registryPassword = "correct-horse-battery"
)

func registryTools(t *testing.T, m *mcp) {
	var made struct{ ID, Name string }
	m.good(t, &made, "create-registry", body(args{"name": "ours", "username": registryUser, "password": registryPassword}))
	got := m.tool(t, "get-registry", args{"id": made.ID})
	if got.failed || strings.Contains(got.text, registryPassword) || strings.Contains(got.text, registryUser) || !strings.Contains(got.text, made.ID) {
		t.Errorf("get-registry: %s", got.text)
	}
	list := m.tool(t, "list-registries", nil)
	if list.failed || strings.Contains(list.text, registryPassword) || !strings.Contains(list.text, made.ID) {
		t.Errorf("list-registries: %s", list.text)
	}
	var template struct{ ID string }
	m.good(t, &template, "create-template", body(args{"name": "private", "image": devtest.Image, "registry": made.ID}))
	m.refused(t, 400, "in_use", "delete-registry", args{"id": made.ID})
	m.good(t, nil, "delete-template", args{"id": template.ID})
	m.good(t, nil, "delete-registry", args{"id": made.ID})
	m.refused(t, 404, "not_found", "get-registry", args{"id": made.ID})

	var delegations struct{ Delegations []any }
	m.good(t, &delegations, "list-delegations", nil)
	if delegations.Delegations == nil || len(delegations.Delegations) != 0 {
		t.Errorf("delegations: %+v", delegations)
	}
	m.refused(t, 400, "rule", "create-delegation", body(args{"resource": "arn:aws:ecr:eu-west-1:123456789012:repository/web"}))
	m.refused(t, 404, "not_found", "revoke-delegation", args{"id": "a2345678901234"})
}

// reach polls a pod, as a user does, until it has a status.
func reach(t *testing.T, m *mcp, id, status string) pod {
	t.Helper()
	var got pod
	err := devtest.Until(reachTimeout, func() error {
		m.good(t, &got, "get-pod", args{"id": id})
		if got.Status != status {
			return fmt.Errorf("the pod is %s, want %s", got.Status, status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func podTools(t *testing.T, m *mcp) {
	var base template
	m.good(t, &base, "create-template", body(args{
		"name": "base", "image": devtest.Image, "env": args{"FROM": "template", "SHARED": "template"},
		"args": `{"entrypoint":["sh","-c"],"cmd":["echo shared=$SHARED; ` + strings.ReplaceAll(devtest.Sleeper, `"`, `\"`) + `"]}`,
	}))
	m.refused(t, 400, "rule", "create-pod", body(args{"name": "neither", "image": devtest.Image}))
	m.refused(t, 422, "invalid", "create-pod", body(args{"name": "no image", "cpu": args{"id": "cpu3c", "vcpuCount": 2}}))
	m.refused(t, 400, "no_capacity", "create-pod", body(args{
		"name": "old", "image": devtest.Image, "gpu": args{"id": devtest.GPUType, "count": 1, "allowedCudaVersions": []string{"1.0"}},
	}))
	var made pod
	m.good(t, &made, "create-pod", body(args{
		"name": "trainer", "templateId": base.ID, "gpu": args{"id": devtest.GPUType, "count": 2}, "env": args{"SHARED": "body"}, "startSsh": true,
	}))
	if made.Template == nil || *made.Template != base.ID || made.Env["FROM"] != "template" || made.Env["SHARED"] != "body" || made.Env["PUBLIC_KEY"] != publicKey {
		t.Errorf("the pod: %+v", made)
	}
	running := reach(t, m, made.ID, "RUNNING")
	if running.Runtime == nil || running.Cost <= 0 || !slices.Equal(running.Actions, []string{"stop", "restart", "terminate"}) {
		t.Errorf("running: %+v", running)
	}
	logs := m.tool(t, "stream-pod-logs", args{"podId": made.ID, "source": "container", "maxWaitMs": 1000})
	if logs.failed || !strings.Contains(logs.text, "shared=body") {
		t.Errorf("logs: %s", logs.text)
	}
	m.refused(t, 400, "in_use", "delete-template", args{"id": base.ID})
	var locked pod
	m.good(t, &locked, "update-pod", of(made.ID, args{"name": "renamed", "locked": true}))
	if !locked.Locked || locked.Name != "renamed" || locked.Incarnation != 1 {
		t.Errorf("locked: %+v", locked)
	}
	m.refused(t, 409, "not_allowed", "pod-action", of(made.ID, args{"action": "stop"}))
	m.good(t, nil, "update-pod", of(made.ID, args{"locked": false, "env": args{"SHARED": "patched"}}))
	err := devtest.Until(reachTimeout, func() error {
		again := m.tool(t, "stream-pod-logs", args{"podId": made.ID, "source": "container", "maxWaitMs": 500})
		if !strings.Contains(again.text, "shared=patched") {
			return fmt.Errorf("logs after the restart: %s", again.text)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if again := reach(t, m, made.ID, "RUNNING"); again.Incarnation != 2 || len(again.Env) != 1 {
		t.Errorf("after the restart: %+v", again)
	}
	endPod(t, m, made.ID)
	m.good(t, nil, "delete-template", args{"id": base.ID})
}

func endPod(t *testing.T, m *mcp, id string) {
	m.good(t, nil, "pod-action", of(id, args{"action": "stop"}))
	stopped := reach(t, m, id, "EXITED")
	if stopped.Cost != 0 || stopped.Runtime != nil || !slices.Equal(stopped.Actions, []string{"start", "terminate"}) {
		t.Errorf("stopped: %+v", stopped)
	}
	m.refused(t, 409, "not_allowed", "pod-action", of(id, args{"action": "restart"}))
	m.good(t, nil, "pod-action", of(id, args{"action": "start"}))
	reach(t, m, id, "RUNNING")
	m.good(t, nil, "pod-action", of(id, args{"action": "restart"}))
	var list struct{ Pods []pod }
	m.good(t, &list, "list-pods", args{"includeClusterPods": true})
	if len(list.Pods) != 1 || list.Pods[0].ID != id {
		t.Errorf("pods: %+v", list)
	}
	m.good(t, nil, "delete-pod", args{"id": id})
	reach(t, m, id, "TERMINATED")
	m.refused(t, 409, "not_allowed", "delete-pod", args{"id": id})
	m.good(t, &list, "list-pods", nil)
	if len(list.Pods) != 0 {
		t.Errorf("pods after the deletion: %+v", list)
	}
}

// billingTools checks that what every route says adds up.
func billingTools(t *testing.T, m *mcp) {
	type view struct {
		Records  []map[string]any
		Metadata struct {
			RecordCount    int
			UniquePodCount int
			Totals         map[string]float64
		}
	}
	var all, pods, volumes view
	m.good(t, &all, "list-billing", args{"lastN": 2, "bucketSize": "hour"})
	m.good(t, &pods, "list-pod-billing", args{"lastN": 2, "bucketSize": "hour"})
	if pods.Metadata.UniquePodCount < 1 || pods.Metadata.Totals["gpuAmount"] <= 0 {
		t.Errorf("pods: %+v", pods.Metadata)
	}
	m.good(t, &volumes, "list-network-volume-billing", args{"lastN": 2, "bucketSize": "hour"})
	if len(volumes.Records) == 0 || volumes.Metadata.Totals["standardAmount"] <= 0 {
		t.Errorf("volumes: %+v", volumes)
	}
	var jobs view
	m.good(t, &jobs, "list-serverless-billing", args{"lastN": 2, "bucketSize": "hour"})
	for _, v := range []view{all, pods, volumes, jobs} {
		sum := 0.0
		for _, r := range v.Records {
			amount, _ := r["totalAmount"].(float64)
			sum += amount
		}
		if math.Abs(sum-v.Metadata.Totals["totalAmount"]) > 1e-9 || v.Metadata.RecordCount != len(v.Records) {
			t.Errorf("records sum up to %v, metadata %+v", sum, v.Metadata)
		}
	}
	parts := pods.Metadata.Totals["totalAmount"] + volumes.Metadata.Totals["totalAmount"]
	if a := all.Metadata.Totals["totalAmount"]; a-parts < 1e-9 {
		t.Errorf("all %v, pods and volumes %v: workers cost nothing", a, parts)
	}
	for _, name := range []string{"list-endpoint-billing", "list-cluster-billing"} {
		var none view
		m.good(t, &none, name, nil)
		if len(none.Records) != 0 || none.Metadata.Totals["totalAmount"] != 0 {
			t.Errorf("%s: %+v", name, none)
		}
	}
	m.refused(t, 400, "rule", "list-billing", args{"lastN": 2, "startTime": "2026-01-01T00:00:00Z"})
	m.refused(t, 422, "invalid", "list-pod-billing", args{"startTime": "yesterday"})
}

// TestKeyIsRefused drives the client with a key that nobody holds and with one that only reads.
func TestKeyIsRefused(t *testing.T) {
	m := startMCP(t, suite.info.API, "gk_"+strings.Repeat("0", 43))
	m.refused(t, 401, "unauthorized", "list-pods", nil)
	user, err := suite.dev.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	made, err := user.CreateKey(t.Context(), v2.CreateKeyRequest{KeyFields: v2.KeyFields{Name: "reader"}, Preset: "readOnly"})
	if err != nil {
		t.Fatal(err)
	}
	r := startMCP(t, suite.info.API, made.Value.Text.Reveal())
	r.good(t, nil, "list-pods", nil)
	r.refused(t, 403, "forbidden", "create-pod", body(args{"name": "a", "image": devtest.Image, "cpu": args{"id": "cpu3c", "vcpuCount": 2}}))
}
