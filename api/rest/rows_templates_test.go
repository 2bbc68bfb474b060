package rest_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(templateRows,
		"201 template", "200 templates", "200 template record", "200 template update", "204 template", "template defaults", "template mounts",
		"public templates are read by all", "public templates are their owner's", "registry of another account names the field", "400 in use",
		"creates happen once", "422 idempotency key")
}

const (
	templateID   = "<template-1>"
	templateBody = `{"name":"notebook","image":"busybox"}`
)

// makeTemplate makes a template of the account of User.
func makeTemplate(t *testing.T, p *plane.Plane, change func(*fleet.Template)) fleet.TemplateID {
	t.Helper()
	tpl := fleet.Template{
		Name: "notebook", Image: "busybox", Args: "sleep 60", DiskGB: 30, Ports: []fleet.Port{{Number: 8888, Protocol: "http"}, {Number: 22, Protocol: "tcp"}},
		Env: map[string]string{"A": "1"}, Persistent: &fleet.PersistentMount{SizeGB: 20, Path: "/workspace"}, Category: fleet.CategoryNVIDIA,
		StartSSH: true, StartJupyter: true, AllowedCUDA: []string{"12.8"},
	}
	if change != nil {
		change(&tpl)
	}
	made, _, err := p.CreateTemplate(t.Context(), p.Who(plane.User), tpl, nil)
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func templateRows() []row {
	own, shared, v := ownTemplate, sharedTemplate, templateRow
	of := func(name, rule, method, key, body string, setup func(*testing.T, *plane.Plane)) row {
		return v(name, rule, method, "/"+templateID, key, body, setup)
	}
	out := []row{
		v("list", "200 templates", "GET", "", plane.Reader, "", func(t *testing.T, p *plane.Plane) {
			own(t, p)
			p.Advance(1e9)
			makeTemplate(t, p, func(tpl *fleet.Template) {
				*tpl = fleet.Template{Name: "small", Image: "b", Category: fleet.CategoryCPU}
			})
		}),
		v("list-none", "200 templates", "GET", "", plane.Other, "", shared),
		v("list-no-permission", "403 key without the permission", "GET", "", plane.Reader, "", func(_ *testing.T, p *plane.Plane) {
			p.Restrict(plane.Reader, map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessRead})
		}),
		of("get", "200 template record", "GET", plane.Reader, "", own),
		of("get-foreign", "404 foreign object", "GET", plane.Other, "", own),
		of("get-missing", "404 missing object", "GET", plane.User, "", nil),
		v("get-not-an-id", "404 missing object", "GET", "/Not-an-id", plane.User, "", nil),
		of("get-public", "public templates are read by all", "GET", plane.Other, "", shared),
		of("get-public-own", "public templates are read by all", "GET", plane.User, "", shared),
		of("update-public-foreign", "public templates are their owner's", "PATCH", plane.Other, `{"name":"mine"}`, shared),
		of("delete-public-foreign", "public templates are their owner's", "DELETE", plane.Other, "", shared),
		of("update-foreign", "404 foreign object", "PATCH", plane.Other, `{"name":"mine"}`, own),
		of("delete-foreign", "404 foreign object", "DELETE", plane.Other, "", own),
		of("delete", "204 template", "DELETE", plane.User, "", own),
		of("delete-reader", "403 key without the permission", "DELETE", plane.Reader, "", own),
		of("delete-missing", "404 missing object", "DELETE", plane.User, "", nil),
		of("delete-in-use", "400 in use", "DELETE", plane.User, "", func(t *testing.T, p *plane.Plane) {
			makePodFrom(t, p, makeTemplate(t, p, nil))
		}),
	}
	return slices.Concat(out, updateTemplateRows(), createTemplateRows(), onceTemplateRows())
}

// templateRow is a row about templates.
func templateRow(name, rule, method, path, key, body string, setup func(*testing.T, *plane.Plane)) row {
	return row{topic: "templates", name: name, rule: rule, method: method, path: "/v2/templates" + path, key: key, body: body, setup: setup}
}

func ownTemplate(t *testing.T, p *plane.Plane) { makeTemplate(t, p, nil) }

// sharedTemplate makes a public template with a registry credential.
func sharedTemplate(t *testing.T, p *plane.Plane) {
	registry := makeRegistry(t, p)
	makeTemplate(t, p, func(tpl *fleet.Template) { tpl.Public, tpl.Registry = true, registry })
}

func updateTemplateRows() []row {
	of := func(name, rule, body string, setup func(*testing.T, *plane.Plane)) row {
		return templateRow(name, rule, "PATCH", "/"+templateID, plane.User, body, setup)
	}
	patch := func(name, rule, body string) row { return of(name, rule, body, ownTemplate) }
	return []row{
		patch("update", "200 template update", `{"name":"renamed","image":"busybox:2","args":"","disk":40,"ports":[],"env":{"B":"2"},"serverless":true,`+
			`"public":true,"category":"AMD","startSsh":false,"startJupyter":false,"allowedCudaVersions":["12.4","12.8"]}`),
		patch("update-nothing", "200 template update", `{}`),
		patch("update-clear-cuda", "200 template update", `{"allowedCudaVersions":[]}`),
		patch("update-mount", "template mounts", `{"mounts":{"persistent":{"size":50,"path":"/data"}}}`),
		patch("update-mount-empty", "template mounts", `{"mounts":{}}`),
		patch("update-mount-partial", "422 mount shape", `{"mounts":{"persistent":{"size":50}}}`),
		patch("update-mount-network", "422 mount shape", `{"mounts":{"network":[{"volumeId":"v","path":"/data"}]}}`),
		patch("update-mount-path", "400 mount path", `{"mounts":{"persistent":{"size":50,"path":"/etc/x"}}}`),
		patch("update-unknown", "422 unknown property", `{"id":"x"}`),
		patch("update-null", "422 null where nothing says so", `{"name":null,"disk":null,"env":null,"ports":null,"startSsh":null}`),
		patch("update-name-empty", "422 bound", `{"name":""}`),
		patch("update-disk-zero", "422 bound", `{"disk":0}`),
		patch("update-image", "422 pattern", `{"image":"Busy Box"}`),
		patch("update-cuda-form", "422 pattern", `{"allowedCudaVersions":["12"]}`),
		patch("update-args", "422 args", `{"args":"'open"}`),
		patch("update-registry-unknown", "404 unknown reference names the field", `{"registry":"`+missingID+`"}`),
		of("update-registry-null", "200 template update", `{"registry":null}`, sharedTemplate),
		of("update-registry-foreign", "registry of another account names the field", `{"registry":"<registry-1>"}`,
			func(t *testing.T, p *plane.Plane) { makeRegistryOf(t, p, plane.Other); ownTemplate(t, p) }),
	}
}

func createTemplateRows() []row {
	v := func(name, rule, members string) row {
		body := strings.TrimSuffix(templateBody, "}") + members + "}"
		return row{topic: "templates", name: "create-" + name, rule: rule, method: "POST", path: "/v2/templates", key: plane.User, body: body}
	}
	var vars []string
	for i := range 51 {
		vars = append(vars, `"V`+strconv.Itoa(i)+`":"1"`)
	}
	registry := func(t *testing.T, p *plane.Plane) { makeRegistry(t, p) }
	bare := func(name, rule, body string) row {
		r := v(name, rule, "")
		r.body = body
		return r
	}
	reader := v("reader", "403 key without the permission", "")
	reader.key = plane.Reader
	private := v("registry", "201 template", `,"registry":"<registry-1>"`)
	private.setup = registry
	foreign := v("registry-foreign", "registry of another account names the field", `,"registry":"<registry-1>"`)
	foreign.setup = func(t *testing.T, p *plane.Plane) { makeRegistryOf(t, p, plane.Other) }
	return []row{
		v("least", "template defaults", ""),
		v("cpu", "template defaults", `,"category":"CPU"`),
		v("whole", "201 template", `,"args":"python -m http.server","disk":40,"ports":["8888/http","22/tcp"],"env":{"A":"1"},"registry":null,`+
			`"mounts":{"persistent":{"size":10,"path":"/workspace"}},"serverless":false,"public":true,"category":"AMD","startSsh":false,`+
			`"startJupyter":false,"allowedCudaVersions":["12.8"]`),
		v("mounts-none", "template mounts", `,"mounts":{}`),
		private, foreign, reader,
		v("registry-unknown", "404 unknown reference names the field", `,"registry":"nothing"`),
		bare("no-image", "422 missing field", `{"name":"a"}`),
		bare("nothing", "422 missing field", `{}`),
		bare("name-long", "422 bound", `{"name":"`+strings.Repeat("a", 192)+`","image":"b"}`),
		bare("name-control", "422 pattern", `{"name":"a\u0000","image":"b"}`),
		v("unknown", "422 unknown property", `,"dockerArgs":""`),
		v("type", "422 wrong type", `,"startSsh":"yes","disk":"1","env":{"A":1}`),
		v("category", "422 enum", `,"category":"nvidia"`),
		v("disk", "422 bound", `,"disk":65537`),
		v("ports", "422 port", `,"ports":["0/http","80/http","80/http"]`),
		v("port-form", "422 port", `,"ports":["80"]`),
		v("env-many", "422 environment", `,"env":{`+strings.Join(vars, ",")+`}`),
		v("env-name", "422 environment", `,"env":{"1A":"x"}`),
		v("args", "422 args", `,"args":"{\"cmd\":\"x\"}"`),
		v("mount-small", "422 mount shape", `,"mounts":{"persistent":{"size":9,"path":"/workspace"}}`),
		v("mount-network", "422 mount shape", `,"mounts":{"network":[]}`),
		v("mount-root", "400 mount path", `,"mounts":{"persistent":{"size":10,"path":"/"}}`),
		v("mount-relative", "400 mount path", `,"mounts":{"persistent":{"size":10,"path":"workspace"}}`),
		v("mount-dots", "400 mount path", `,"mounts":{"persistent":{"size":10,"path":"/a/../proc"}}`),
		v("cuda-many", "422 bound", `,"allowedCudaVersions":[`+strings.TrimSuffix(strings.Repeat(`"12.8",`, 33), ",")+`]`),
	}
}

func onceTemplateRows() []row {
	v := func(name, rule, key string) row {
		return row{
			topic: "templates", name: name, rule: rule, method: "POST", path: "/v2/templates", key: plane.User, body: templateBody,
			header: []string{"Idempotency-Key", key},
		}
	}
	again := v("once-again", "creates happen once", "first")
	again.before = 1
	return []row{
		v("once", "creates happen once", "first"),
		again,
		v("once-long", "422 idempotency key", strings.Repeat("x", 256)),
		v("once-space", "422 idempotency key", "a b"),
		v("once-two", "422 idempotency key", "a\nb"),
	}
}

// makePodFrom makes a CPU pod from a template of the account of User.
func makePodFrom(t *testing.T, p *plane.Plane, template fleet.TemplateID) fleet.PodID {
	t.Helper()
	v, err := p.CreatePod(t.Context(), p.Who(plane.User), fleet.PodRequest{
		Name: "web", GPU: &fleet.GPURequest{Type: plane.SimGPU, Count: 1}, Template: template,
	})
	if err != nil {
		t.Fatal(err)
	}
	return v.Pod.ID
}
