package rest_test

import (
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(serverlessRows,
		"201 endpoint", "200 endpoints", "200 endpoint record", "200 endpoint update", "204 endpoint", "endpoint defaults", "400 type is fixed",
		"400 compute family is fixed", "422 scaling", "422 idle timeout", "400 workers", "endpoint from a template", "volumes of an endpoint", "models of an endpoint", "dry run of an endpoint", "webhook secret")
}

const (
	endpointID   = "<endpoint-1>"
	endpointBody = `{"name":"embed","type":"QUEUE","image":"worker:1","gpu":{"pools":["ADA_80_PRO"]},"scaling":{"type":"QUEUE_DELAY","queueDelay":4}}`
)

// ownEndpoint makes an endpoint of the account of User.
func ownEndpoint(t *testing.T, p *plane.Plane) {
	t.Helper()
	makeEndpoint(t, p, func(*fleet.EndpointSpec) {})
}

// signedEndpoint is ownEndpoint whose webhooks are signed.
func signedEndpoint(t *testing.T, p *plane.Plane) {
	t.Helper()
	makeEndpoint(t, p, func(s *fleet.EndpointSpec) { s.NewWebhookKey = new(fleet.Secret("0123456789abcdef")) })
}

func makeEndpoint(t *testing.T, p *plane.Plane, change func(*fleet.EndpointSpec)) fleet.EndpointID {
	t.Helper()
	made, _, err := p.CreateEndpoint(t.Context(), p.Who(plane.User), "", func(s *fleet.EndpointSpec) {
		s.Name, s.Image, s.Env = "embed", "worker:1", map[string]string{"A": "1"}
		s.GPU = &fleet.EndpointGPU{
			Pools: []string{"ADA_80_PRO"}, Excluded: []string{"NVIDIA H100 PCIe"}, CUDA: &fleet.CUDARange{Allowed: []string{"12.8"}},
		}
		s.Scaler = fleet.Scaler{Type: fleet.ScaleByDelay, Value: 4}
		change(s)
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func serverlessRow(name, rule, method, path, key, body string, setup func(*testing.T, *plane.Plane)) row {
	return row{topic: "serverless", name: name, rule: rule, method: method, path: "/v2/serverless" + path, key: key, body: body, setup: setup}
}

func serverlessRows() []row {
	own, v := ownEndpoint, serverlessRow
	of := func(name, rule, method, key, body string, setup func(*testing.T, *plane.Plane)) row {
		return v(name, rule, method, "/"+endpointID, key, body, setup)
	}
	out := []row{
		v("list", "200 endpoints", "GET", "", plane.Reader, "", func(t *testing.T, p *plane.Plane) {
			own(t, p)
			p.Advance(1e9)
			makeEndpoint(t, p, func(s *fleet.EndpointSpec) {
				s.Type, s.Scaler = fleet.EndpointBalanced, fleet.Scaler{Type: fleet.ScaleByRequests, Value: 8}
				s.GPU, s.CPU = nil, []fleet.CPURequest{{Flavor: "cpu3g", VCPU: 2}}
			})
		}),
		v("list-none", "200 endpoints", "GET", "", plane.Other, "", own),
		v("list-no-permission", "403 key without the permission", "GET", "", plane.Reader, "", func(_ *testing.T, p *plane.Plane) {
			p.Restrict(plane.Reader, map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessRead})
		}),
		v("put", "405 with Allow", "PUT", "", plane.User, "", nil),
		of("get", "200 endpoint record", "GET", plane.Reader, "", own),
		of("get-foreign", "404 foreign object", "GET", plane.Other, "", own),
		of("get-missing", "404 missing object", "GET", plane.User, "", nil),
		v("get-not-an-id", "404 missing object", "GET", "/Not-an-id", plane.User, "", nil),
		of("update-foreign", "404 foreign object", "PATCH", plane.Other, `{"name":"mine"}`, own),
		of("update-reader", "403 key without the permission", "PATCH", plane.Reader, `{"name":"mine"}`, own),
		of("delete", "204 endpoint", "DELETE", plane.User, "", own),
		of("delete-foreign", "404 foreign object", "DELETE", plane.Other, "", own),
		of("delete-reader", "403 key without the permission", "DELETE", plane.Reader, "", own),
		of("delete-missing", "404 missing object", "DELETE", plane.User, "", nil),
	}
	return slices.Concat(out, createEndpointRows(), referredEndpointRows(), updateEndpointRows())
}

func createEndpointRows() []row {
	bare := func(name, rule, body string) row {
		return serverlessRow("create-"+name, rule, "POST", "", plane.User, body, nil)
	}
	v := func(name, rule, members string) row {
		return bare(name, rule, strings.TrimSuffix(endpointBody, "}")+","+members+"}")
	}
	scaled := func(name, rule, kind, scaling, more string) row {
		return bare(name, rule, `{"name":"a","type":"`+kind+`","image":"b","cpu":[{"id":"cpu3g","vcpuCount":2}],"scaling":`+scaling+more+`}`)
	}
	gpu := func(name, rule, gpu string) row {
		return bare(name, rule, `{"name":"a","type":"QUEUE","image":"b","scaling":{"type":"QUEUE_DELAY","queueDelay":4},"gpu":`+gpu+`}`)
	}
	cpu := func(name, rule, cpu string) row {
		return bare(name, rule, `{"name":"a","type":"QUEUE","image":"b","scaling":{"type":"QUEUE_DELAY","queueDelay":4},"cpu":`+cpu+`}`)
	}
	signedBody := strings.TrimSuffix(endpointBody, "}") + `,"webhookSecret":"0123456789abcdef"}`
	signed, signedOther := bare("once-signed", "creates happen once", signedBody), bare("once-signed-other", "creates happen once", signedBody)
	signed.header, signed.before = []string{"Idempotency-Key", "first"}, 1
	signedOther.header, signedOther.warm = signed.header, strings.Replace(signedBody, "abcdef", "ghijkl", 1)
	once, again := bare("once", "creates happen once", endpointBody), bare("once-again", "creates happen once", endpointBody)
	once.header, again.header, again.before = []string{"Idempotency-Key", "first"}, []string{"Idempotency-Key", "first"}, 1
	reader := bare("reader", "403 key without the permission", endpointBody)
	reader.key = plane.Reader
	other := bare("once-other", "creates happen once", endpointBody)
	other.header, other.warm = again.header, strings.Replace(endpointBody, "embed", "other", 1)
	dry := func(name, rule, body string) row {
		return serverlessRow("dry-create"+name, rule, "POST", "?dryRun=true", plane.User, body, nil)
	}
	dryFull := dry("-full", "403 quota exceeded", endpointBody)
	dryFull.setup = func(t *testing.T, p *plane.Plane) {
		_, err := p.SetLimits(t.Context(), map[string]*int64{"endpoints": new(int64(0))})
		must(t, err)
	}
	return []row{
		dry("", "dry run of an endpoint", endpointBody), dry("-rule", "400 exactly one of gpu and cpu", `{"name":"a","type":"QUEUE","image":"b","scaling":{"type":"QUEUE_DELAY","queueDelay":4}}`), dryFull,
		bare("least", "endpoint defaults", endpointBody), once, again, other, signed, signedOther, reader,
		cpu("least-cpu", "endpoint defaults", `[{"id":"cpu3g","vcpuCount":4},{"id":"cpu3c","vcpuCount":2}]`),
		scaled("balancer", "201 endpoint", "LOAD_BALANCER", `{"type":"REQUEST_COUNT","requestCount":8}`, ""),
		scaled("balancer-whole", "201 endpoint", "LOAD_BALANCER", `{"type":"REQUEST_COUNT","requestCount":8}`, `,"waitTimeout":3600,"maxBody":1,"timeout":0,`+
			`"env":{"PORT":"8000","PORT_HEALTH":"8001","HEALTH_CHECK_PATH":"/healthz?deep=1"},"workers":{"idleTimeout":60}`),
		scaled("balancer-port", "422 port", "LOAD_BALANCER", `{"type":"REQUEST_COUNT","requestCount":8}`, `,"env":{"PORT":"70000"}`),
		scaled("balancer-health-port", "422 port", "LOAD_BALANCER", `{"type":"REQUEST_COUNT","requestCount":8}`, `,"env":{"PORT_HEALTH":"0"}`),
		scaled("balancer-health-path", "422 environment", "LOAD_BALANCER", `{"type":"REQUEST_COUNT","requestCount":8}`, `,"env":{"HEALTH_CHECK_PATH":"ping"}`),
		scaled("balancer-wait", "422 bound", "LOAD_BALANCER", `{"type":"REQUEST_COUNT","requestCount":8}`, `,"waitTimeout":3601,"maxBody":0`),
		v("wait", "422 of balancers alone", `"waitTimeout":5`), v("max-body", "422 of balancers alone", `"maxBody":5`),
		scaled("by-count", "201 endpoint", "QUEUE", `{"type":"REQUEST_COUNT","requestCount":2}`, ""),
		v("whole", "201 endpoint", `"args":"python -u handler.py","disk":40,"ports":["80/http"],"env":{"A":"1"},"registry":null,`+
			`"workers":{"min":1,"max":5,"idleTimeout":30},"dataCenterIds":["dev-1","dev-1"],"networkVolumes":[],"timeout":0,`+
			`"flashboot":"PRIORITY_FLASHBOOT","retries":0,"failAfter":0`),
		gpu("gpu-whole", "201 endpoint", `{"pools":["ADA_80_PRO","ADA_80_PRO"],"excludedTypes":["NVIDIA H100 PCIe"],"count":2,"minCudaVersion":"12.4"}`),
		gpu("gpu-none", "422 missing field", `{}`), gpu("pools-none", "422 bound", `{"pools":[]}`),
		gpu("pool-unknown", "422 unknown catalog id", `{"pools":["NOTHING"]}`),
		gpu("excluded-unknown", "422 unknown catalog id", `{"pools":["ADA_80_PRO"],"excludedTypes":["NVIDIA Nothing"]}`),
		gpu("cuda-both", "400 CUDA list with floor", `{"pools":["ADA_80_PRO"],"allowedCudaVersions":["12.8"],"minCudaVersion":"12.4"}`),
		gpu("cuda-form", "422 pattern", `{"pools":["ADA_80_PRO"],"minCudaVersion":"12"}`),
		gpu("count", "422 bound", `{"pools":["ADA_80_PRO"],"count":0}`),
		cpu("cpu-none", "422 bound", `[]`), cpu("cpu-three", "422 vCPU count", `[{"id":"cpu3g","vcpuCount":3}]`),
		cpu("cpu-unknown", "422 unknown catalog id", `[{"id":"cpu0","vcpuCount":2}]`),
		v("both", "400 exactly one of gpu and cpu", `"cpu":[{"id":"cpu3g","vcpuCount":2}]`),
		bare("neither", "400 exactly one of gpu and cpu", `{"name":"a","type":"QUEUE","image":"b","scaling":{"type":"QUEUE_DELAY","queueDelay":4}}`),
		v("signed", "webhook secret", `"webhookSecret":"0123456789abcdef"`), v("signed-empty", "webhook secret", `"webhookSecret":""`),
		v("signed-short", "422 pattern", `"webhookSecret":"0123456789abcde"`), v("signed-space", "422 pattern", `"webhookSecret":"0123456789 abcdef"`),
		v("signed-long", "422 bound", `"webhookSecret":"`+strings.Repeat("a", 257)+`"`), v("signed-null", "422 null where nothing says so", `"webhookSecret":null`),
		bare("nothing", "422 missing field", `{}`), v("unknown", "422 unknown property", `"gpuTypeIds":[]`),
		bare("kind", "422 enum", strings.Replace(endpointBody, "QUEUE", "queue", 1)),
		scaled("no-delay", "422 scaling", "QUEUE", `{"type":"QUEUE_DELAY"}`, ""),
		scaled("no-count", "422 scaling", "QUEUE", `{"type":"REQUEST_COUNT","queueDelay":4}`, ""),
		scaled("small-delay", "422 scaling", "QUEUE", `{"type":"QUEUE_DELAY","queueDelay":0.4}`, ""),
		scaled("count-fraction", "422 scaling", "QUEUE", `{"type":"REQUEST_COUNT","requestCount":1.5}`, ""),
		scaled("scaling-flat", "422 scaling", "QUEUE", `{"type":"QUEUE_DELAY","value":4}`, ""),
		scaled("balancer-delay", "422 scaling", "LOAD_BALANCER", `{"type":"QUEUE_DELAY","queueDelay":4}`, ""),
		scaled("idle-by-count", "422 idle timeout", "QUEUE", `{"type":"REQUEST_COUNT","requestCount":2}`, `,"workers":{"idleTimeout":5}`),
		v("idle-zero", "422 idle timeout", `"workers":{"idleTimeout":0}`), v("idle-long", "422 idle timeout", `"workers":{"idleTimeout":3601}`),
		v("min-above-max", "400 workers", `"workers":{"min":4}`), v("workers-below-zero", "422 bound", `"workers":{"min":-1,"max":-1}`),
		v("workers-unknown", "422 unknown property", `"workers":{"standby":1}`),
		v("retries", "422 bound", `"retries":4`), v("fail-after", "422 bound", `"failAfter":-1`), v("timeout", "422 bound", `"timeout":604800001`),
		v("flashboot", "422 enum", `"flashboot":true`), v("flashboot-word", "422 enum", `"flashboot":"ON"`),
		v("env", "422 environment", `"env":{"1A":"x"}`), v("port", "422 port", `"ports":["80/udp"]`), v("args", "422 args", `"args":"'open"`),
		v("center", "422 unknown catalog id", `"dataCenterIds":["XX-1"]`),
	}
}

// referredEndpointRows are about what endpoints refer to.
func referredEndpointRows() []row {
	v := func(name, rule, members string, setup func(*testing.T, *plane.Plane)) row {
		return serverlessRow("create-"+name, rule, "POST", "", plane.User, strings.TrimSuffix(endpointBody, "}")+","+members+"}", setup)
	}
	template := func(serverless bool) func(*testing.T, *plane.Plane) {
		return func(t *testing.T, p *plane.Plane) {
			makeTemplate(t, p, func(tpl *fleet.Template) { tpl.Serverless, tpl.Persistent, tpl.AllowedCUDA = serverless, nil, nil })
		}
	}
	from := serverlessRow("create-from-template", "endpoint from a template", "POST", "", plane.User,
		strings.Replace(strings.TrimSuffix(endpointBody, "}"), `"image":"worker:1",`, "", 1)+`,"templateId":"`+templateID+`","env":{"B":"2"}}`, template(true))
	return []row{
		from,
		v("template-of-pods", "endpoint from a template", `"templateId":"`+templateID+`"`, template(false)),
		v("template-unknown", "404 unknown reference names the field", `"templateId":"`+missingID+`"`, nil),
		v("registry-unknown", "404 unknown reference names the field", `"registry":"`+missingID+`"`, nil),
		v("models", "models of an endpoint", `"modelReferences":["https://huggingface.co/org/name","https://huggingface.co/org/other:v1.0"]`, nil),
		v("models-elsewhere", "models of an endpoint", `"modelReferences":["https://huggingface.co/org/name","https://example.com/org/name"]`, nil),
		v("models-twice", "models of an endpoint", `"modelReferences":["https://huggingface.co/org/name","https://huggingface.co/org/name:v1"]`, nil),
		v("models-many", "models of an endpoint", `"modelReferences":["a","b","c","d","e","f","g","h","i"]`, nil),
		v("volume-unknown", "404 unknown reference names the field", `"networkVolumes":["`+missingID+`"]`, nil),
		v("volume-twice", "volumes of an endpoint", `"networkVolumes":["vol00000000001","vol00000000002"]`, func(_ *testing.T, p *plane.Plane) {
			p.PutVolume(plane.User, 1, "dev-1")
			p.PutVolume(plane.User, 2, "dev-1")
		}),
		v("volumes", "volumes of an endpoint", `"networkVolumes":["vol00000000001","vol00000000002"]`, func(_ *testing.T, p *plane.Plane) {
			p.PutVolume(plane.User, 1, "dev-1")
			p.PutVolume(plane.User, 2, "dev-2")
		}),
	}
}

func updateEndpointRows() []row {
	patch := func(name, rule, body string) row {
		return serverlessRow("update-"+name, rule, "PATCH", "/"+endpointID, plane.User, body, ownEndpoint)
	}
	dry := func(name, rule, body string) row {
		return serverlessRow("dry-"+name, rule, "PATCH", "/"+endpointID+"?dryRun=true", plane.User, body, ownEndpoint)
	}
	return []row{
		patch("nothing", "200 endpoint update", `{}`),
		patch("signed", "webhook secret", `{"webhookSecret":"0123456789abcdef"}`),
		serverlessRow("update-unsigned", "webhook secret", "PATCH", "/"+endpointID, plane.User, `{"webhookSecret":""}`, signedEndpoint),
		serverlessRow("update-signed-still", "webhook secret", "PATCH", "/"+endpointID, plane.User, `{"name":"renamed"}`, signedEndpoint),
		patch("whole", "200 endpoint update", `{"name":"renamed","type":"QUEUE","image":"worker:2","args":"x","disk":30,"ports":["80/http"],"env":{"B":"2"},`+
			`"workers":{"max":7},"dataCenterIds":["dev-1"],"timeout":60000,"flashboot":"FLASHBOOT","retries":3,"failAfter":60}`),
		patch("same-release", "200 endpoint update", `{"workers":{"min":1,"idleTimeout":60}}`),
		patch("pools-end-exclusions", "200 endpoint update", `{"gpu":{"pools":["ADA_80_PRO"]}}`),
		patch("count-keeps-exclusions", "200 endpoint update", `{"gpu":{"count":2}}`),
		patch("cuda-cleared", "200 endpoint update", `{"gpu":{"allowedCudaVersions":[]}}`),
		patch("cuda-replaced", "200 endpoint update", `{"gpu":{"allowedCudaVersions":[],"minCudaVersion":"12.4"}}`),
		patch("cuda-floor-cleared", "200 endpoint update", `{"gpu":{"minCudaVersion":""}}`),
		patch("by-count", "200 endpoint update", `{"scaling":{"type":"REQUEST_COUNT","requestCount":3}}`),
		patch("type", "400 type is fixed", `{"type":"LOAD_BALANCER","scaling":{"type":"REQUEST_COUNT","requestCount":3}}`),
		patch("cpu", "400 compute family is fixed", `{"cpu":[{"id":"cpu3g","vcpuCount":2}]}`),
		patch("scaling", "422 scaling", `{"scaling":{"type":"QUEUE_DELAY","queueDelay":4,"requestCount":3}}`),
		patch("min-above-max", "400 workers", `{"workers":{"min":4}}`),
		patch("unknown", "422 unknown property", `{"templateId":"x"}`),
		dry("update", "dry run of an endpoint", `{"image":"worker:2"}`), dry("update-rule", "400 workers", `{"workers":{"min":4}}`),
		serverlessRow("update-dry-missing", "404 missing object", "PATCH", "/"+missingID+"?dryRun=true", plane.User, `{}`, nil),
		patch("null", "422 null where nothing says so", `{"name":null,"gpu":null,"workers":null}`),
		patch("registry", "404 unknown reference names the field", `{"registry":"`+missingID+`"}`),
	}
}
