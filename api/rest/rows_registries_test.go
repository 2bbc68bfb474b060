package rest_test

import (
	"net/http"
	"strings"
	"testing"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(registryRows, "201 registry", "200 registries", "200 registry update", "204 registry", "delegations", "422 idempotency key of another request")
}

// makeRegistry makes a registry credential of the account of User.
func makeRegistry(t *testing.T, p *plane.Plane) fleet.RegistryID {
	t.Helper()
	return makeRegistryOf(t, p, plane.User)
}

func makeRegistryOf(t *testing.T, p *plane.Plane, key string) fleet.RegistryID {
	t.Helper()
	made, _, err := p.CreateRegistry(t.Context(), p.Who(key), "team images", fleet.Credential{Username: "robot", Password: "s3cret-value"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func registryRows() []row {
	const (
		id   = "/<registry-1>"
		body = `{"name":"team images","username":"robot","password":"s3cret-value"}`
	)
	own := func(t *testing.T, p *plane.Plane) { makeRegistry(t, p) }
	v := func(name, rule, method, path, key, body string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "registries", name: name, rule: rule, method: method, path: "/v2/registries" + path, key: key, body: body, setup: setup}
	}
	create := func(name, rule, body string) row { return v("create-"+name, rule, "POST", "", plane.User, body, nil) }
	once, again, other := create("once", "creates happen once", body), create("once-again", "creates happen once", body),
		create("once-other", "422 idempotency key of another request", strings.Replace(body, "s3cret", "other", 1))
	once.header, again.header, other.header = []string{"Idempotency-Key", "a"}, []string{"Idempotency-Key", "a"}, []string{"Idempotency-Key", "a"}
	again.before = 1
	other.setup = func(t *testing.T, p *plane.Plane) {
		s := newSiteOf(t, p)
		if got := s.ask(t, "POST", "/v2/registries", plane.User, body, "Idempotency-Key", "a"); got.status != http.StatusCreated {
			t.Fatal(got.body)
		}
	}
	return []row{
		v("list", "200 registries", "GET", "", plane.Reader, "", own),
		v("list-none", "200 registries", "GET", "", plane.Other, "", own),
		create("make", "201 registry", body),
		v("create-reader", "403 key without the permission", "POST", "", plane.Reader, body, nil),
		create("nothing", "422 missing field", `{}`),
		create("unknown", "422 unknown property", `{"name":"a","username":"b","password":"c","host":"d"}`),
		create("empty", "422 bound", `{"name":"","username":"","password":""}`),
		create("long", "422 bound", `{"name":"a","username":"`+strings.Repeat("u", 257)+`","password":"`+strings.Repeat("p", 16385)+`"}`),
		create("colon", "422 pattern", `{"name":"a","username":"robot:x","password":"c"}`),
		create("nul", "422 pattern", `{"name":"a","username":"robot","password":"c\u0000"}`),
		create("type", "422 wrong type", `{"name":1,"username":[],"password":{}}`),
		once, again, other,
		v("get", "200 registries", "GET", id, plane.Reader, "", own),
		v("get-foreign", "404 foreign object", "GET", id, plane.Other, "", own),
		v("get-missing", "404 missing object", "GET", id, plane.User, "", nil),
		v("update", "200 registry update", "PATCH", id, plane.User, `{"username":"robot2","password":"other-value"}`, own),
		v("update-half", "422 missing field", "PATCH", id, plane.User, `{"password":"other-value"}`, own),
		v("update-name", "422 unknown property", "PATCH", id, plane.User, body, own),
		v("update-wrong", "422 pattern", "PATCH", id, plane.User, `{"username":"a:b","password":"c\u0000"}`, own),
		v("update-reader", "403 key without the permission", "PATCH", id, plane.Reader, `{"username":"a","password":"b"}`, own),
		v("update-foreign", "404 foreign object", "PATCH", id, plane.Other, `{"username":"a","password":"b"}`, own),
		v("update-missing", "404 missing object", "PATCH", "/"+missingID, plane.User, `{"username":"a","password":"b"}`, nil),
		v("put", "405 with Allow", "PUT", id, plane.User, body, own),
		v("delete", "204 registry", "DELETE", id, plane.User, "", own),
		v("delete-foreign", "404 foreign object", "DELETE", id, plane.Other, "", own),
		v("delete-missing", "404 missing object", "DELETE", "/"+missingID, plane.User, "", nil),
		v("delete-in-template", "400 in use", "DELETE", id, plane.User, "", func(t *testing.T, p *plane.Plane) {
			registry := makeRegistry(t, p)
			makeTemplate(t, p, func(tpl *fleet.Template) { tpl.Registry = registry })
		}),
		v("delete-in-pod", "400 in use", "DELETE", id, plane.User, "", func(t *testing.T, p *plane.Plane) {
			registry := makeRegistry(t, p)
			_, err := p.CreatePod(t.Context(), p.Who(plane.User), fleet.PodRequest{
				Name: "a", Image: "busybox", CPU: &fleet.CPURequest{Flavor: "cpu3g", VCPU: 2}, Registry: &registry,
			})
			if err != nil {
				t.Fatal(err)
			}
		}),
		v("delegations", "delegations", "GET", "/delegations", plane.Reader, "", nil),
		v("delegate", "delegations", "POST", "/delegations", plane.User, `{"resource":"arn:aws:ecr:eu-west-1:000000000000:repository/team/app","name":"app"}`, nil),
		v("delegate-form", "422 pattern", "POST", "/delegations", plane.User, `{"resource":"arn:aws:s3:::bucket"}`, nil),
		v("delegate-nothing", "422 missing field", "POST", "/delegations", plane.User, `{"name":"app"}`, nil),
		v("delegation-delete", "404 missing object", "DELETE", "/delegations/"+missingID, plane.User, "", nil),
	}
}

// newSiteOf is an API on a control plane that is there already.
func newSiteOf(t *testing.T, p *plane.Plane) *site {
	t.Helper()
	return newSite(t, func(cfg *rest.Config) { cfg.Service, cfg.Now = p, p.Now }, rest.Limits{})
}

// TestPasswordIsKeptNowhere makes a credential through the API and looks for its password in every answer
// about it.
func TestPasswordIsKeptNowhere(t *testing.T) {
	const password = "s3cret-value"
	s := newSite(t, nil, rest.Limits{})
	body := `{"name":"a","username":"robot","password":"` + password + `"}`
	for _, got := range []answer{
		s.ask(t, "POST", "/v2/registries", plane.User, body, "Idempotency-Key", "k"),
		s.ask(t, "POST", "/v2/registries", plane.User, body, "Idempotency-Key", "k"),
		s.ask(t, "GET", "/v2/registries", plane.User, ""),
		s.ask(t, "POST", "/v2/registries", plane.User, strings.Replace(body, `"robot"`, `"`+password+`:"`, 1)),
	} {
		if strings.Contains(got.body, password) {
			t.Errorf("%s: %d %s", got.request, got.status, got.body)
		}
	}
}
