package rest_test

import (
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(secretRows, "200 secrets", "204 secret", "400 secret in use")
	addRows(symmetricalRows, "symmetrical ports")
	addRows(hostFactRows, "200 host facts")
}

func putSecret(t *testing.T, p *plane.Plane, key, name string) {
	t.Helper()
	_, err := p.PutSecret(t.Context(), p.Who(key), name, "s3cret-value")
	must(t, err)
}

func secretRows() []row {
	own := func(t *testing.T, p *plane.Plane) {
		putSecret(t, p, plane.User, "HF_TOKEN")
		putSecret(t, p, plane.User, "db-password")
		putSecret(t, p, plane.Other, "theirs")
		p.Advance(time.Minute)
	}
	used := func(t *testing.T, p *plane.Plane) {
		own(t, p)
		req := webPod()
		req.Env = map[string]string{"A": "Bearer {{ RUNPOD_SECRET_HF_TOKEN }}"}
		request(t, p, req, fleet.EventRunning)
	}
	v := func(name, rule, method, path, key, body string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "secrets", name: name, rule: rule, method: method, path: "/v2/secrets" + path, key: key, body: body, setup: setup}
	}
	const body = `{"value":"s3cret-value"}`
	put := func(name, rule, path, body string) row {
		return v("put-"+name, rule, "PUT", "/"+path, plane.User, body, own)
	}
	pod := func(name, rule, env string) row {
		r := create("secrets", name, rule, strings.TrimSuffix(cpuBody, "}")+`,"env":`+env+`}`)
		r.setup = own
		return r
	}
	change := v("update-unknown", "404 unknown reference names the field", "PATCH", "", plane.User, `{"env":{"B":"{{ GANTRY_SECRET_theirs }}"}}`, used)
	change.path = "/v2/pods/" + podID
	shown := v("pod-shows-the-reference", "200 pod record", "GET", "", plane.User, "", used)
	shown.path = "/v2/pods/" + podID
	return []row{
		v("list", "200 secrets", "GET", "", plane.Reader, "", own),
		v("list-none", "200 secrets", "GET", "", plane.Operator, "", own),
		put("new", "200 secrets", "_new-1", body), put("again", "200 secrets", "HF_TOKEN", body),
		put("name", "422 parameter", "1a", body), put("name-percent", "422 parameter", "a%20b", body),
		put("nothing", "422 missing field", "a", `{}`), put("empty", "422 bound", "a", `{"value":""}`),
		put("long", "422 bound", "a", `{"value":"`+strings.Repeat("x", 32769)+`"}`),
		put("long-bytes", "422 environment", "a", `{"value":"`+strings.Repeat("ü", 20000)+`"}`),
		put("nul", "422 environment", "a", `{"value":"a\u0000"}`),
		v("put-reader", "403 key without the permission", "PUT", "/a", plane.Reader, body, nil),
		v("delete", "204 secret", "DELETE", "/HF_TOKEN", plane.User, "", own),
		v("delete-used", "400 secret in use", "DELETE", "/HF_TOKEN", plane.User, "", used),
		v("delete-missing", "404 missing object", "DELETE", "/none", plane.User, "", own),
		v("delete-foreign", "404 foreign object", "DELETE", "/theirs", plane.User, "", own),
		pod("create", "201 create pod", `{"A":"Bearer {{ RUNPOD_SECRET_HF_TOKEN }}","B":"{{GANTRY_SECRET_db-password}}"}`),
		pod("create-unknown", "404 unknown reference names the field", `{"A":"{{ RUNPOD_SECRET_HF_TOKEN }}","B":"{{ RUNPOD_SECRET_none }}","C":"x{{ GANTRY_SECRET_theirs }}"}`),
		pod("create-many", "422 environment", `{"A":"`+strings.Repeat("{{ RUNPOD_SECRET_HF_TOKEN }}", 51)+`"}`),
		change, shown,
	}
}

func symmetricalRows() []row {
	const rule = "symmetrical ports"
	pod := podRequested(func(req *fleet.PodRequest) {
		req.Ports = []fleet.Port{{Number: 22, Protocol: "tcp"}, {Number: 70_001, Protocol: "tcp"}}
	})
	return []row{
		create("values", "port-symmetrical", "201 create pod", with(`"ports":["70000/tcp","135535/tcp","22/tcp"]`)),
		create("values", "port-symmetrical-http", "422 port", with(`"ports":["70000/http"]`)),
		create("values", "port-symmetrical-range", "422 port", with(`"ports":["69999/tcp","135536/tcp"]`)),
		{topic: "records", name: "symmetrical", rule: rule, method: "GET", path: "/v2/pods/" + podID, key: plane.User, setup: pod},
		{topic: "records", name: "disk", rule: "200 pod record", method: "GET", path: "/v2/pods/" + podID, key: plane.User, setup: podThen(func(p *plane.Plane, id fleet.PodID) {
			p.SetLive(id, fleet.Live{DiskPercent: 47})
		}, fleet.EventRunning)},
	}
}

// podRequested makes a running pod of a request that is changed.
func podRequested(change func(*fleet.PodRequest)) func(*testing.T, *plane.Plane) {
	return func(t *testing.T, p *plane.Plane) {
		req := webPod()
		change(&req)
		request(t, p, req, fleet.EventRunning)
	}
}

func hostFactRows() []row {
	unfit := func(_ *testing.T, p *plane.Plane) {
		p.Restock(plane.Host, func(inv *fleet.Inventory) {
			inv.RuntimeClass, inv.Images = "gvisor", []string{"docker.io/library/busybox:latest"}
			inv.Conditions = []fleet.Condition{{Code: "runc_old", Text: "runc 1.1.5 is older than 1.2.8.", Severe: true}, {Code: "disk_unlimited", Text: "The disk has no limit."}}
			inv.GPUs[0].PCI, inv.GPUs[0].Sick = "0000:3b:00.0", "XID 79: fell off the bus"
			inv.GPUs = append(inv.GPUs, fleet.GPU{UUID: "MIG-1", Type: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", MemoryMB: 10_000, Parent: "GPU-1"})
		})
	}
	full := create("hosts", "not-fit", "400 no capacity", gpuBody)
	full.setup = unfit
	return []row{hostRow("get-not-fit", "200 host facts", "GET", theHost, "", unfit), full}
}
