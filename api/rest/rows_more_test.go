package rest_test

import (
	"testing"
	"time"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

func logRows() []row {
	log := func(name, rule, query string, header ...string) row {
		return row{
			topic: "logs", name: name, rule: rule, method: "GET", path: "/v2/pods/" + podID + "/logs?" + query, key: plane.Reader, header: header,
			setup: func(t *testing.T, f *plane.Plane) {
				id := makePod(t, f, fleet.EventRunning)
				f.Log(id, "system", "start container for busybox: begin")
				f.Log(id, "container", "one")
				f.Log(id, "container", "two \"quoted\" <b>\x1b[0m")
				f.Log(id, "system", "stop container")
			},
		}
	}
	lost := log("unreachable", "503 outcome unknown", "follow=false&tail=0")
	lost.setup = func(t *testing.T, f *plane.Plane) {
		makePod(t, f, fleet.EventRunning)
		f.SetReachable(plane.Host, false)
	}
	lostLater := log("unreachable-later", "log query", "follow=false")
	lostLater.setup = func(t *testing.T, f *plane.Plane) {
		id := makePod(t, f, fleet.EventRunning)
		f.Log(id, "container", "one")
		f.BreakLog(id)
	}
	restarted := log("previous", "log query", "previous=true&source=container")
	restarted.setup = func(t *testing.T, f *plane.Plane) {
		id := makePod(t, f, fleet.EventRunning)
		for _, run := range []string{"one", "two", "three"} {
			f.BeginRun(id)
			f.Log(id, "system", "start container for busybox: begin")
			f.Log(id, "container", run)
		}
	}
	foreign := log("foreign", "404 foreign object", "")
	foreign.key = plane.Other
	return []row{
		log("all", "200 log", "follow=false"),
		log("container", "log query", "follow=false&source=container"),
		log("tail", "log query", "follow=false&tail=1"),
		log("tail-none", "log query", "follow=false&tail=0"),
		log("since", "log query", "follow=false&tail=1&since=2026-10-01T12:00:00.002Z"),
		log("last-event", "log query", "follow=false&since=2026-10-01T12:00:00.002Z", "Last-Event-ID", "2026-10-01T12:00:00.000Z/1"),
		log("tail-many", "422 parameter", "tail=5001"),
		log("tail-text", "422 parameter", "tail=many"),
		log("since-form", "422 parameter", "since=yesterday"),
		log("source-unknown", "422 parameter", "source=kernel"),
		log("event-form", "422 parameter", "", "Last-Event-ID", "x y"),
		log("previous-none", "409 action not allowed", "previous=true"),
		log("previous-form", "422 parameter", "previous=perhaps"),
		foreign, lost, lostLater, restarted,
	}
}

func catalogRows() []row {
	get := func(name, rule, path string) row {
		return row{topic: "catalog", name: name, rule: rule, method: "GET", path: "/v2/catalog/" + path, key: plane.Reader}
	}
	return []row{
		get("gpus", "200 catalog", "gpus"),
		get("gpus-stock", "200 catalog", "gpus?include=AVAILABILITY&product=POD&count=3"),
		get("gpus-community", "200 catalog", "gpus?include=AVAILABILITY&product=POD&cloud=COMMUNITY"),
		get("gpu", "ids are percent-decoded", "gpus/NVIDIA%20GeForce%20RTX%204090"),
		get("gpu-unknown", "404 missing object", "gpus/NVIDIA%20Nothing"),
		get("gpu-slash", "404 missing object", "gpus/a%2Fb"),
		get("include-alone", "400 catalog parameters that belong together", "gpus?include=AVAILABILITY"),
		get("product-alone", "400 catalog parameters that belong together", "gpus?product=POD"),
		get("count-alone", "400 catalog parameters that belong together", "gpus?count=2"),
		get("vcpu-alone", "400 catalog parameters that belong together", "cpus?vcpuCount=2"),
		get("include-unknown", "422 parameter", "gpus?include=PRICE,AVAILABILITY&product=POD"),
		get("count-bound", "422 parameter", "gpus?include=AVAILABILITY&product=POD&count=0"),
		get("unknown-parameter", "unknown query parameters are ignored", "cpus?colour=red"),
		get("cpus", "200 catalog", "cpus?include=AVAILABILITY&product=POD&vcpuCount=32"),
		get("cpu", "200 catalog", "cpus/cpu3g"),
		get("centers", "200 catalog", "datacenters"),
		get("centers-joined", "list parameters are comma-joined or repeated", "datacenters?include=GPU_AVAILABILITY,CPU_AVAILABILITY"),
		get("centers-repeated", "list parameters are comma-joined or repeated", "datacenters?include=GPU_AVAILABILITY&include=CPU_AVAILABILITY&regions=ASIA,EUROPE"),
		get("centers-none", "list parameters are comma-joined or repeated", "datacenters?regions=ASIA"),
		get("centers-global", "200 catalog", "datacenters?globalNetwork=true"),
		get("center", "200 catalog", "datacenters/dev-1?include=GPU_AVAILABILITY"),
	}
}

func keyRows() []row {
	v := func(name, rule, method, path, key, body string) row {
		return row{topic: "keys", name: name, rule: rule, method: method, path: "/v2/account/keys" + path, key: key, body: body}
	}
	small := func(_ *testing.T, f *plane.Plane) {
		f.Restrict(plane.User, map[fleet.Group]fleet.Access{fleet.GroupAccount: fleet.AccessWrite})
	}
	beyond := v("beyond", "403 preset beyond the key", "POST", "", plane.User, `{"name":"ci","preset":"readOnly"}`)
	beyond.setup = small
	return []row{
		v("list", "200 keys", "GET", "", plane.Reader, ""),
		v("create", "201 key", "POST", "", plane.User, `{"name":"ci","preset":"all"}`),
		v("create-expiring", "201 key", "POST", "", plane.User, `{"name":"ci","preset":"readOnly","expiresAt":"2027-01-01T01:00:00+01:00"}`),
		v("create-past", "422 bound", "POST", "", plane.User, `{"name":"ci","preset":"readOnly","expiresAt":"2026-10-01T12:00:00Z"}`),
		v("create-form", "422 pattern", "POST", "", plane.User, `{"name":"ci","preset":"readOnly","expiresAt":"tomorrow"}`),
		v("create-admin", "422 enum", "POST", "", plane.User, `{"name":"ci","preset":"admin"}`),
		v("create-reader", "403 key without the permission", "POST", "", plane.Reader, `{"name":"ci","preset":"readOnly"}`),
		v("delete", "204 key", "DELETE", "/key00000000005", plane.User, ""),
		v("delete-foreign", "404 foreign object", "DELETE", "/key00000000005", plane.Other, ""),
		v("delete-missing", "404 missing object", "DELETE", "/key00000000099", plane.User, ""),
		beyond,
	}
}

func adminRows() []row {
	v := func(name, rule, method, path, body string) row {
		return row{topic: "admin", name: name, rule: rule, method: method, path: path, key: plane.Operator, body: body}
	}
	health := func(name, query string, conditions ...rest.Health) row {
		r := v(name, "health", "GET", "/healthz"+query, "")
		r.key = ""
		r.config = func(c *rest.Config) { c.Health = func() []rest.Health { return conditions } }
		return r
	}
	document := v("openapi", "OpenAPI document", "GET", "/v2/openapi.json", "")
	document.key, document.noBody = "", true
	later := func(_ *testing.T, f *plane.Plane) { f.Advance(time.Hour) }
	token := v("token", "201 join token", "POST", "/admin/v1/hosts/tokens", `{"dataCenterId":"EU-RO-1","cloud":"COMMUNITY","ttlSeconds":60}`)
	token.setup = later
	return []row{
		v("hosts", "200 hosts", "GET", "/admin/v1/hosts", ""),
		v("host", "200 hosts", "GET", "/admin/v1/hosts/host0000000001", ""),
		v("host-missing", "404 missing object", "GET", "/admin/v1/hosts/host0000000002", ""),
		token,
		v("token-default", "201 join token", "POST", "/admin/v1/hosts/tokens", `{"dataCenterId":"dev-1"}`),
		v("token-bounds", "422 bound", "POST", "/admin/v1/hosts/tokens", `{"dataCenterId":"-","ttlSeconds":59}`),
		v("accounts", "200 accounts", "GET", "/admin/v1/accounts", ""),
		v("account", "201 account", "POST", "/admin/v1/accounts", `{"name":"new"}`),
		v("account-key", "201 key", "POST", "/admin/v1/accounts/acc00000000002/keys", `{"name":"first","preset":"admin"}`),
		v("account-missing", "404 missing object", "POST", "/admin/v1/accounts/acc00000000099/keys", `{"name":"first","preset":"all"}`),
		health("healthy", ""),
		health("healthy-verbose", "?verbose", rest.Health{Name: "leader", OK: true}),
		health("sick", "", rest.Health{Name: "disk", Text: "slow"}),
		health("sick-verbose", "?verbose=true", rest.Health{Name: "disk", Text: "slow"}, rest.Health{Name: "leader", OK: true}),
		document,
	}
}
