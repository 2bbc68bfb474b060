package rest_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(operatorRows, "200 host tier", "200 account of operators", "quotas of an account", "201 credit", "422 credit")
	addRows(catalogEntryRows, "catalog entries", "204 catalog entry", "422 catalog entry", "400 catalog entry", "storage prices", "template source")
}

// contribute lets a host bring along a GPU type that the catalog lacks.
func contribute(p *plane.Plane) { p.Reconnect(plane.CommunityHost, "NVIDIA Test GPU", 1, 47_900) }

func operator(topic, name, rule, method, path, body string, setup func(*testing.T, *plane.Plane)) row {
	return row{topic: topic, name: name, rule: rule, method: method, path: "/admin/v1/" + path, key: plane.Operator, body: body, setup: setup}
}

func operatorRows() []row {
	v := func(name, rule, method, path, body string) row {
		return operator("operators", name, rule, method, path, body, nil)
	}
	const (
		host    = "hosts/host0000000001"
		account = "accounts/acc00000000001"
	)
	credit := func(name, rule, body string) row { return v("credit-"+name, rule, "POST", account+"/credits", body) }
	patch := func(name, rule, body string) row { return v("account-"+name, rule, "PATCH", account, body) }
	again := credit("once-again", "creates happen once", `{"amount":25}`)
	again.header, again.before = []string{"Idempotency-Key", "a"}, 1
	spending := v("account-spending", "200 account of operators", "GET", account, "")
	spending.setup = func(t *testing.T, p *plane.Plane) {
		makePod(t, p, fleet.EventRunning)
		p.Advance(time.Hour)
	}
	cleared := patch("quotas-null", "quotas of an account", `{"quotas":null}`)
	cleared.setup = func(_ *testing.T, p *plane.Plane) { p.SetQuotas(plane.User, fleet.Quotas{Minute: 5}) }
	user := patch("user", "403 key without the permission", `{"prepaid":false}`)
	user.key = plane.User
	return []row{
		v("host-tier", "200 host tier", "PATCH", host, `{"cloud":"COMMUNITY"}`),
		v("host-tier-same", "200 host tier", "PATCH", host, `{"cloud":"SECURE"}`),
		v("host-tier-unknown", "422 enum", "PATCH", host, `{"cloud":"secure"}`),
		v("host-tier-nothing", "422 host change", "PATCH", host, `{}`),
		v("host-tier-other", "422 unknown property", "PATCH", host, `{"cloud":"SECURE","name":"x"}`),
		v("host-missing", "404 missing object", "PATCH", "hosts/"+missingID, `{"cloud":"SECURE"}`),
		v("host-not-an-id", "404 missing object", "PATCH", "hosts/dev-1", `{"cloud":"SECURE"}`),
		v("account", "200 account of operators", "GET", account, ""),
		v("account-missing", "404 missing object", "GET", "accounts/"+missingID, ""),
		spending,
		patch("prepaid", "200 account of operators", `{"prepaid":true,"name":"lab"}`),
		patch("nothing", "200 account of operators", `{}`),
		patch("name", "422 bound", `{"name":""}`),
		patch("null", "422 null where nothing says so", `{"name":null,"prepaid":null}`),
		patch("unknown", "422 unknown property", `{"balance":5}`),
		patch("quotas", "quotas of an account", `{"quotas":{"minute":600,"hour":0,"day":200000}}`),
		patch("quotas-partial", "quotas of an account", `{"quotas":{"minute":600}}`),
		patch("quotas-negative", "quotas of an account", `{"quotas":{"minute":-1,"hour":1.5,"day":1000000001}}`),
		patch("quotas-order", "quotas of an account", `{"quotas":{"minute":600,"hour":60,"day":0}}`),
		cleared, user,
		v("account-patch-missing", "404 missing object", "PATCH", "accounts/"+missingID, `{"prepaid":true}`),
		v("account-key", "201 key", "POST", account+"/keys", `{"name":"a","permissions":{"pods":"read"},"invoke":"all","expiresAt":"2026-11-01T00:00:00Z"}`),
		v("account-key-preset", "422 enum", "POST", account+"/keys", `{"name":"a","preset":"root"}`),
		v("account-key-past", "422 bound", "POST", account+"/keys", `{"name":"a","expiresAt":"2026-09-01T00:00:00Z"}`),
		credit("add", "201 credit", `{"amount":25.5}`),
		credit("take", "201 credit", `{"amount":-0.000000001}`),
		again,
		credit("zero", "422 credit", `{"amount":0}`),
		credit("tiny", "422 credit", `{"amount":1e-10}`),
		credit("huge", "422 credit", `{"amount":1000001}`),
		credit("text", "422 credit", `{"amount":"5"}`),
		credit("nothing", "422 missing field", `{}`),
		v("credit-missing", "404 missing object", "POST", "accounts/"+missingID+"/credits", `{"amount":5}`),
	}
}

// entryRow is a row about the catalog as operators see it.
func entryRow(name, rule, method, path, body string) row {
	return operator("entries", name, rule, method, path, body, nil)
}

// putRow puts a body in which a part is replaced.
func putRow(name, rule, path, body, from, to string) row {
	return entryRow(name, rule, "PUT", path, strings.Replace(body, from, to, 1))
}

func catalogEntryRows() []row {
	return slices.Concat(gpuEntryRows(), cpuEntryRows(), centerEntryRows(), priceRows())
}

func gpuEntryRows() []row {
	v, put := entryRow, putRow
	const (
		gpu     = `{"name":"Test","pool":"TEST_24","manufacturer":"NVIDIA","memory":24,"price":{"secure":0.5,"community":0.3,"serverless":0}}`
		gpuPath = "gpu-types/NVIDIA%20Test%20GPU"
	)
	user := v("gpu-put-user", "403 key without the permission", "PUT", gpuPath, gpu)
	user.key = plane.User
	return []row{
		user,
		v("gpus", "catalog entries", "GET", "gpu-types", ""),
		given(v("gpus-contributed", "catalog entries", "GET", "gpu-types", ""), func(_ *testing.T, p *plane.Plane) { contribute(p) }),
		v("gpu-put", "catalog entries", "PUT", gpuPath, gpu),
		given(v("gpu-put-contributed", "catalog entries", "PUT", gpuPath, gpu), func(_ *testing.T, p *plane.Plane) { contribute(p) }),
		put("gpu-put-no-pool", "catalog entries", gpuPath, gpu, `"pool":"TEST_24",`, ``),
		put("gpu-put-nothing", "422 missing field", gpuPath, gpu, gpu, `{}`),
		put("gpu-put-words", "422 catalog entry", gpuPath, gpu, `"TEST_24","manufacturer":"NVIDIA"`, `"test 24","manufacturer":"Nvidia"`),
		put("gpu-put-bounds", "422 catalog entry", gpuPath, gpu, `"memory":24,"price":{"secure":0.5`, `"memory":0,"price":{"secure":-1`),
		put("gpu-put-unknown", "422 unknown property", gpuPath, gpu, `"memory"`, `"contributed":true,"memory"`),
		put("gpu-put-id", "422 catalog entry", "gpu-types/a%2Cb", gpu, "", ""),
		put("gpu-put-id-spaces", "422 catalog entry", "gpu-types/a%20%20b", gpu, "", ""),
		given(v("gpu-delete", "204 catalog entry", "DELETE", gpuPath, ""), func(t *testing.T, p *plane.Plane) {
			must(t, p.PutGPUType(t.Context(), fleet.GPUType{ID: "NVIDIA Test GPU", Name: "Test", Manufacturer: "NVIDIA", MemoryGB: 24}))
		}),
		v("gpu-delete-used", "400 catalog entry", "DELETE", "gpu-types/NVIDIA%20H100%2080GB%20HBM3", ""),
		v("gpu-delete-missing", "404 missing object", "DELETE", gpuPath, ""),
	}
}

func cpuEntryRows() []row {
	v, put := entryRow, putRow
	const (
		cpuPath = "cpu-flavors/cpu9t"
		cpu     = `{"name":"Test","group":"cpu9","vcpu":{"min":2,"max":16},"ramGbPerVcpu":2.5,"diskGbPerVcpu":10,` +
			`"price":{"securePerVcpu":0.03,"serverlessPerVcpu":0.04}}`
	)
	return []row{
		v("cpus", "catalog entries", "GET", "cpu-flavors", ""),
		v("cpu-put", "catalog entries", "PUT", cpuPath, cpu),
		put("cpu-put-order", "400 catalog entry", cpuPath, cpu, `"min":2,"max":16`, `"min":16,"max":2`),
		put("cpu-put-power", "422 catalog entry", cpuPath, cpu, `"min":2,"max":16`, `"min":3,"max":12`),
		put("cpu-put-bounds", "422 catalog entry", cpuPath, cpu, `2.5,"diskGbPerVcpu":10`, `0.1,"diskGbPerVcpu":0`),
		put("cpu-put-id", "422 catalog entry", "cpu-flavors/cpu-9", cpu, "", ""),
		put("cpu-put-nothing", "422 missing field", cpuPath, cpu, cpu, `{"price":{}}`),
		v("cpu-delete", "204 catalog entry", "DELETE", "cpu-flavors/cpu3g", ""),
		v("cpu-delete-missing", "404 missing object", "DELETE", cpuPath, ""),
	}
}

func centerEntryRows() []row {
	v, put := entryRow, putRow
	const (
		center     = `{"name":"Test","region":"ASIA","country":"JP","globalNetwork":true,"compliance":["GDPR","HIPAA"]}`
		centerPath = "datacenters/AP-JP-1"
	)
	return []row{
		v("centers", "catalog entries", "GET", "datacenters", ""),
		v("center-put", "catalog entries", "PUT", centerPath, center),
		put("center-put-least", "catalog entries", centerPath, center, center, `{"name":"Test","region":"UNKNOWN"}`),
		put("center-put-again", "catalog entries", "datacenters/dev-1", center, "", ""),
		put("center-put-words", "422 catalog entry", centerPath, center, `"ASIA","country":"JP"`, `"Asia","country":"jp"`),
		put("center-put-compliance", "422 catalog entry", centerPath, center, `"HIPAA"`, `"hipaa"`),
		put("center-put-id", "422 catalog entry", "datacenters/-x", center, "", ""),
		put("center-put-nothing", "422 missing field", centerPath, center, center, `{}`),
		v("center-delete-used", "400 catalog entry", "DELETE", "datacenters/dev-1", ""),
		v("center-delete-missing", "404 missing object", "DELETE", centerPath, ""),
		given(v("center-delete", "204 catalog entry", "DELETE", centerPath, ""), func(t *testing.T, p *plane.Plane) {
			must(t, p.PutDataCenter(t.Context(), fleet.DataCenter{ID: "AP-JP-1", Name: "Test", Region: "ASIA"}))
		}),
	}
}

func priceRows() []row {
	const prices = `{"containerDisk":0.1,"persistentRunning":0.1,"persistentStopped":0.2,"volumeFirst":0.07,"volumeBeyond":0.05,"fastFirst":0.14,"fastBeyond":0}`
	v, put := entryRow, putRow
	source := func(name, rule, body string, public bool) row {
		return given(entryRow("source-"+name, rule, "PUT", "templates/"+templateID+"/source", body), func(t *testing.T, p *plane.Plane) {
			registry := makeRegistry(t, p)
			makeTemplate(t, p, func(tpl *fleet.Template) { tpl.Public, tpl.Registry = public, registry })
		})
	}
	return []row{
		v("prices", "storage prices", "GET", "storage-prices", ""),
		v("prices-put", "storage prices", "PUT", "storage-prices", prices),
		put("prices-put-partial", "422 missing field", "storage-prices", prices, `,"fastBeyond":0`, ``),
		put("prices-put-bounds", "422 catalog entry", "storage-prices", prices, `"containerDisk":0.1`, `"containerDisk":-0.1`),
		source("official", "template source", `{"source":"official"}`, true),
		source("private", "400 catalog entry", `{"source":"verified"}`, false),
		source("unknown", "422 enum", `{"source":"mine"}`, true),
		v("source-missing", "404 missing object", "PUT", "templates/"+missingID+"/source", `{"source":"official"}`),
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
