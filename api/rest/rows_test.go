package rest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

func rows() []row {
	return slices.Concat(bodyRows(), valueRows(), ruleRows(), accessRows(), limitRows(), outcomeRows(), recordRows(), listRows(),
		gpuRows(), templatedRows(), startRows(), onceRows(), updateRows(), linkRows(), mountRows(), sessionRows(), actionRows(), logRows(), eventRows(), catalogRows(), keyRows(), adminRows())
}

// create is a row that posts a pod.
func create(topic, name, rule, body string) row {
	return row{topic: topic, name: name, rule: rule, method: "POST", path: "/v2/pods", key: plane.User, body: body}
}

// with returns the smallest GPU body with more members.
func with(members string) string { return strings.TrimSuffix(gpuBody, "}") + "," + members + "}" }

func bodyRows() []row {
	deep := `{"name":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + "}"
	out := []row{
		create("body", "broken", "400 broken JSON", `{"name": "a",`),
		create("body", "no-value", "400 broken JSON", `{"name": }`),
		create("body", "trailing", "400 broken JSON", cpuBody+`{}`),
		create("body", "empty", "400 empty body", " \n"),
		create("body", "array", "400 body is not an object", `[]`),
		create("body", "text", "400 body is not an object", `"a"`),
		create("body", "null", "400 body is not an object", `null`),
		create("body", "twice", "400 duplicate key", `{"name":"a","image":"b","name":"c"}`),
		create("body", "twice-escaped", "400 duplicate key", `{"name":"a","n\u0061me":"c"}`),
		create("body", "twice-nested", "400 duplicate key", `{"name":"a","image":"b","env":{"A":"1","A":"2"}}`),
		create("body", "utf8", "400 invalid UTF-8", "{\"name\":\"a\xff\"}"),
		create("body", "deep", "400 nested too deep", deep),
		create("body", "large", "413 body over 1 MiB", `{"name":"`+strings.Repeat("a", 1<<20)+`"}`),
		create("body", "form", "415 content type is not JSON", "name=a"),
		create("body", "untyped", "415 content type is not JSON", cpuBody),
		create("body", "latin1", "415 content type is not JSON", cpuBody),
		create("body", "gzip", "415 content type is not JSON", cpuBody),
		create("body", "charset", "201 create pod", cpuBody),
		{topic: "body", name: "query", rule: "400 unreadable query", method: "GET", path: "/v2/pods?a=%zz", key: plane.User},
	}
	for i := range out {
		switch out[i].name {
		case "form":
			out[i].header = []string{"Content-Type", "application/x-www-form-urlencoded"}
		case "untyped":
			out[i].header = []string{"Content-Type", ""}
		case "latin1":
			out[i].header = []string{"Content-Type", "application/json; charset=iso-8859-1"}
		case "gzip":
			out[i].header = []string{"Content-Encoding", "gzip"}
		case "charset":
			out[i].header = []string{"Content-Type", "Application/JSON; charset=UTF-8"}
		}
	}
	return out
}

func valueRows() []row {
	v := func(name, rule, body string) row { return create("values", name, rule, body) }
	list := func(item string, n int) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	var ports, env []string
	for i := range 51 {
		ports = append(ports, `"`+string(rune('1'+i%9))+strings.Repeat("0", i/9)+`/http"`)
		env = append(env, `"V`+strings.Repeat("x", i)+`":"1"`)
	}
	return []row{
		v("unknown-property", "422 unknown property", with(`"volume":1,"zone":"x"`)),
		v("unknown-nested", "422 unknown property", `{"name":"a","image":"b","gpu":{"id":"NVIDIA L4","minVcpu":1}}`),
		v("unknown-hostile", "422 unknown property", with(`"`+strings.Repeat("x", 80)+`":1,"a\u001b[31m'<b>":2`)),
		v("other-case", "422 property name in other case", `{"Name":"a","image":"b","cpu":{"id":"cpu3g","vcpuCount":2}}`),
		v("number-for-text", "422 wrong type", `{"name":1,"image":"b","cpu":{"id":"cpu3g","vcpuCount":2}}`),
		v("text-for-number", "422 wrong type", with(`"disk":"20"`)),
		v("list-for-object", "422 wrong type", with(`"env":[]`)),
		v("env-value-number", "422 wrong type", with(`"env":{"A":1,"b c":true}`)),
		v("null-disk", "422 null where nothing says so", with(`"disk":null,"cloud":null`)),
		v("null-cpu", "422 null where nothing says so", with(`"cpu":null`)),
		v("null-registry", "registry may be null", with(`"registry":null`)),
		v("nothing", "422 missing field", `{}`),
		v("no-gpu-id", "422 missing field", `{"name":"a","image":"b","gpu":{}}`),
		v("name-empty", "422 bound", `{"name":"","image":"b","cpu":{"id":"cpu3g","vcpuCount":2}}`),
		v("name-long", "422 bound", `{"name":"`+strings.Repeat("a", 192)+`","image":"b","cpu":{"id":"cpu3g","vcpuCount":2}}`),
		v("disk-zero", "422 bound", with(`"disk":0`)),
		v("disk-huge", "422 bound", with(`"disk":65537`)),
		v("disk-beyond-integers", "422 bound", with(`"disk":1e400`)),
		v("count-zero", "422 bound", `{"name":"a","image":"b","gpu":{"id":"NVIDIA L4","count":0}}`),
		v("count-many", "422 bound", `{"name":"a","image":"b","gpu":{"id":"NVIDIA L4","count":65}}`),
		v("centers-many", "422 bound", with(`"dataCenterIds":[`+list(`"dev-1"`, 33)+`]`)),
		v("cloud", "422 enum", with(`"cloud":"secure"`)),
		v("image-space", "422 pattern", `{"name":"a","image":"busy box","cpu":{"id":"cpu3g","vcpuCount":2}}`),
		v("image-case", "422 pattern", `{"name":"a","image":"example.com/Upper","cpu":{"id":"cpu3g","vcpuCount":2}}`),
		v("name-control", "422 pattern", `{"name":"a\u0007","image":"b","cpu":{"id":"cpu3g","vcpuCount":2}}`),
		v("disk-fraction", "422 whole number", with(`"disk":20.5`)),
		v("disk-whole-float", "201 create pod", with(`"disk":2.5e1`)),
		v("port-form", "422 port", with(`"ports":["8080","80/udp","/http","80/HTTP"]`)),
		v("port-range", "422 port", with(`"ports":["0/http","65536/tcp"]`)),
		v("port-twice", "422 port", with(`"ports":["80/http","080/http","80/tcp"]`)),
		v("ports-http-many", "422 port", with(`"ports":[`+strings.Join(ports[:11], ",")+`]`)),
		v("ports-many", "422 port", with(`"ports":[`+strings.Join(ports, ",")+`]`)),
		v("env-name", "422 environment", with(`"env":{"1A":"x","A-B":"x","":"x"}`)),
		v("env-many", "422 environment", with(`"env":{`+strings.Join(env, ",")+`}`)),
		v("env-long", "422 environment", with(`"env":{"A":"`+strings.Repeat("x", 32769)+`"}`)),
		v("env-nul", "422 environment", with(`"env":{"A":"x\u0000"}`)),
		v("args-quote", "422 args", with(`"args":"sh -c 'echo"`)),
		v("args-json", "422 args", with(`"args":"{\"command\":[]}"`)),
		v("args-nul", "422 args", with(`"args":"{\"cmd\":[\"a\\u0000\"]}"`)),
		v("vcpu-one", "422 vCPU count", `{"name":"a","image":"b","cpu":{"id":"cpu3g","vcpuCount":1}}`),
		v("vcpu-three", "422 vCPU count", `{"name":"a","image":"b","cpu":{"id":"cpu3g","vcpuCount":3}}`),
		v("vcpu-beyond-flavor", "422 vCPU count", `{"name":"a","image":"b","cpu":{"id":"cpu3g","vcpuCount":64}}`),
		v("gpu-unknown", "422 unknown catalog id", `{"name":"a","image":"b","gpu":{"id":"NVIDIA Nothing"}}`),
		v("cpu-unknown", "422 unknown catalog id", `{"name":"a","image":"b","cpu":{"id":"cpu0","vcpuCount":2}}`),
		v("center-unknown", "422 unknown catalog id", with(`"dataCenterIds":["XX-1"]`)),
		v("mount-partial", "422 mount shape", with(`"mounts":{"network":[{"volumeId":"v"}]}`)),
		v("mount-two", "422 mount shape", with(`"mounts":{"network":[{"volumeId":"v","path":"/a"},{"volumeId":"w","path":"/b"}]}`)),
		v("mount-small", "422 mount shape", with(`"mounts":{"persistent":{"size":9,"path":"/workspace"}}`)),
		v("mount-unknown", "422 mount shape", with(`"mounts":{"shared":{}}`)),
		v("name-is-a-secret", "422 unknown property", with(`"rpa_S3CRETKEYS3CRETKEY":"x"`)), v("name-almost", "422 unknown property", with(`"imagee":"x","comput":"y"`)),
		v("name-is-a-secret-and-not", "422 unknown property", with(`"rpa_S3CRETKEYS3CRETKEY":"x","zone":1,"dataCenterId":"x"`)),
		v("many-failures", "422 wrong type", with(`"ports":[`+list("1", 40)+`]`)),
	}
}

func ruleRows() []row {
	v := func(name, rule, body string) row { return create("rules", name, rule, body) }
	cpuWith := func(members string) string { return strings.TrimSuffix(cpuBody, "}") + "," + members + "}" }
	return []row{
		v("both", "400 exactly one of gpu and cpu", with(`"cpu":{"id":"cpu3g","vcpuCount":2}`)),
		v("neither", "400 exactly one of gpu and cpu", `{"name":"a","image":"b"}`),
		v("two-mounts", "400 both mount kinds", with(`"mounts":{"persistent":{"size":10,"path":"/a"},"network":[{"volumeId":"v","path":"/b"}]}`)),
		v("cpu-persistent", "400 persistent mount on a CPU pod", cpuWith(`"mounts":{"persistent":{"size":10,"path":"/a"}}`)),
		v("path-relative", "400 mount path", with(`"mounts":{"persistent":{"size":10,"path":"a"}}`)),
		v("path-root", "400 mount path", with(`"mounts":{"network":[{"volumeId":"v","path":"//"}]}`)),
		v("path-system", "400 mount path", with(`"mounts":{"network":[{"volumeId":"v","path":"/opt/../proc/sys"}]}`)),
		v("global-cpu", "400 globalNetworking without its preconditions", cpuWith(`"globalNetworking":true`)),
		v("global-gpu", "400 no capacity", with(`"globalNetworking":true`)),
		v("volume", "404 unknown reference names the field", with(`"mounts":{"network":[{"volumeId":"v","path":"/workspace"}]}`)),
		v("registry", "404 unknown reference names the field", with(`"registry":"r"`)),
		v("template", "404 unknown reference names the field", with(`"templateId":"t"`)),
		v("no-mounts", "201 create pod", with(`"mounts":{},"env":{},"ports":[],"dataCenterIds":[],"globalNetworking":false`)),
	}
}

func accessRows() []row {
	get := func(name, rule, path, key string, header ...string) row {
		return row{topic: "access", name: name, rule: rule, method: "GET", path: path, key: key, header: header}
	}
	text := plane.KeyText(plane.User).Reveal()
	out := []row{
		get("missing", "401 missing bearer token", "/v2/pods", ""),
		get("basic", "401 malformed bearer token", "/v2/pods", "", "Authorization", "Basic YTpi"),
		get("bare", "401 malformed bearer token", "/v2/pods", "", "Authorization", text),
		get("only-scheme", "401 malformed bearer token", "/v2/pods", "", "Authorization", "Bearer"),
		get("two", "401 malformed bearer token", "/v2/pods", "", "Authorization", "Bearer "+text+"\nBearer "+text),
		get("form", "401 unknown key", "/v2/pods", "", "Authorization", "Bearer abc"),
		get("unknown", "401 unknown key", "/v2/pods", "nobody"),
		get("expired", "401 expired key", "/v2/pods", plane.Expired),
		get("in-url", "401 key in the URL", "/v2/pods?api_key="+text, ""),
		get("scheme-case", "200 list", "/v2/pods", "", "Authorization", "bEARER  "+text),
		get("operators-only", "403 key without the permission", "/admin/v1/hosts", plane.User),
		get("missing-pod", "404 missing object", "/v2/pods/"+missingID, plane.User),
		get("not-an-id", "404 missing object", "/v2/pods/%2e%2e%2fx", plane.User),
		get("foreign-pod", "404 foreign object", "/v2/pods/"+podID, plane.Other),
		get("path", "404 unknown path", "/v2/nothing", ""),
		get("slash", "404 unknown path", "/v2/pods/", plane.User),
		get("double-slash", "404 unknown path", "//v2/pods", plane.User),
		get("case", "404 unknown path", "/V2/pods", plane.User),
		{topic: "access", name: "read-only", rule: "403 key without the permission", method: "POST", path: "/v2/pods", key: plane.Reader, body: "broken"},
		{topic: "access", name: "foreign-delete", rule: "404 foreign object", method: "DELETE", path: "/v2/pods/" + podID, key: plane.Other, setup: pod()},
		{topic: "access", name: "foreign-action", rule: "404 foreign object", method: "POST", path: "/v2/pods/" + podID + "/action", key: plane.Other, body: `{"action":"stop"}`, setup: pod()},
		{topic: "access", name: "put", rule: "405 with Allow", method: "PUT", path: "/v2/pods", key: plane.User},
		{topic: "access", name: "options", rule: "405 with Allow", method: "OPTIONS", path: "/v2/pods/x/action"},
		{topic: "access", name: "id-kept", rule: "x-request-id", method: "GET", path: "/healthz", header: []string{"X-Request-Id", "Client.id_7-a"}},
	}
	for i := range out {
		if out[i].name == "foreign-pod" {
			out[i].setup = pod()
		}
	}
	return out
}

// faulty breaks the service in one call.
type faulty struct {
	rest.Service
	err   error
	panic bool
}

func (f faulty) Pods(context.Context, fleet.Principal) ([]fleet.PodView, error) {
	if f.panic {
		panic("broken")
	}
	return nil, f.err
}

func outcomeRows() []row {
	broken := func(name, rule string, by faulty) row {
		return row{
			topic: "outcomes", name: name, rule: rule, method: "GET", path: "/v2/pods", key: plane.User,
			config: func(c *rest.Config) { by.Service = c.Service; c.Service = by },
		}
	}
	down := func(_ *testing.T, f *plane.Plane) { f.SetDown(true) }
	broke := func(_ *testing.T, f *plane.Plane) { f.SetBroke(plane.User, true) }
	out := []row{
		create("outcomes", "no-gpus", "400 no capacity", `{"name":"a","image":"b","gpu":{"id":"NVIDIA H100 80GB HBM3","count":9}}`),
		create("outcomes", "no-type", "400 no capacity", `{"name":"a","image":"b","gpu":{"id":"NVIDIA L4"}}`),
		create("outcomes", "no-money", "402 low balance", gpuBody),
		create("outcomes", "no-leader", "503 outcome unknown", gpuBody),
		broken("no-code", "500 internal error", faulty{err: errors.New("read /var/lib/state: secret")}),
		broken("code-internal", "500 internal error", faulty{err: &fleet.Error{Code: fleet.CodeInternal, Msg: "secret", Details: []string{"secret"}}}),
		broken("stale", "503 outcome unknown", faulty{err: fleet.Stale("the pod changed meanwhile")}),
		broken("deadline", "503 outcome unknown", faulty{err: context.DeadlineExceeded}),
		broken("panic", "500 internal error", faulty{panic: true}),
	}
	out[2].setup, out[3].setup = broke, down
	return out
}
