package rest_test

import (
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(suspensionRows, "200 suspension", "403 account suspended", "409 operators are not suspended")
	addRows(backupRows, "200 back-up")
}

func suspensionRows() []row {
	const account = "accounts/acc00000000001"
	v := func(name, rule, path, body string) row {
		return operator("suspension", name, rule, "POST", path, body, nil)
	}
	suspend := func(t *testing.T, p *plane.Plane) {
		_, err := p.SuspendAccount(t.Context(), plane.Research, "unpaid since May", false)
		must(t, err)
	}
	with := func(r row, setup func(*testing.T, *plane.Plane)) row { r.setup = setup; return r }
	byKey := func(name, method, path string) row {
		return row{topic: "suspension", name: name, rule: "403 account suspended", method: method, path: path, key: plane.User, setup: suspend}
	}
	return []row{
		v("suspend", "200 suspension", account+"/suspend", `{"reason":"unpaid since May"}`),
		with(v("suspend-and-stop", "200 suspension", account+"/suspend", `{"reason":"abuse","stopPods":true}`), func(t *testing.T, p *plane.Plane) {
			makePod(t, p, fleet.EventRunning)
		}),
		with(v("suspend-again", "200 suspension", account+"/suspend", `{"reason":"abuse"}`), suspend),
		with(operator("suspension", "get", "200 suspension", "GET", account, "", nil), suspend),
		with(v("resume", "200 suspension", account+"/resume", ""), suspend),
		v("resume-not-suspended", "200 suspension", account+"/resume", ""),
		byKey("key", "GET", "/v2/pods"), byKey("key-account", "GET", "/v2/account"), byKey("key-create", "POST", "/v2/pods"),
		byKey("key-v1", "GET", "/v1/pods"),
		with(v("operators", "409 operators are not suspended", account+"/suspend", `{"reason":"abuse"}`), func(t *testing.T, p *plane.Plane) {
			_, _, err := p.CreateAccountKey(t.Context(), plane.Research, fleet.KeyRequest{Name: "op", Preset: "adminReadOnly"})
			must(t, err)
		}),
		v("no-reason", "422 missing field", account+"/suspend", `{}`),
		v("empty-reason", "422 bound", account+"/suspend", `{"reason":""}`),
		v("missing", "404 missing object", "accounts/"+missingID+"/suspend", `{"reason":"abuse"}`),
		v("resume-missing", "404 missing object", "accounts/"+missingID+"/resume", ""),
		byUser(v("suspend", "", account+"/suspend", `{"reason":"abuse"}`)), byUser(v("resume", "", account+"/resume", "")),
	}
}

func backupRows() []row {
	v := func(name, rule, body string) row {
		return operator("backups", name, rule, "POST", "backups", body, nil)
	}
	return []row{
		v("noted", "200 back-up", `{"savedAt":"2026-10-01T11:00:00Z"}`),
		v("of-the-future", "200 back-up", `{"savedAt":"2030-10-01T11:00:00Z"}`),
		v("no-time", "422 missing field", `{}`),
		v("bad-time", "422 wrong type", `{"savedAt":5}`),
		byUser(v("noted", "", `{"savedAt":"2026-10-01T11:00:00Z"}`)),
	}
}
