package rest_test

import (
	"testing"

	"gantry/test/plane"
)

func init() {
	addRows(caRows, "200 CA", "400 CA")
}

// caRows leave out the bodies that hold digests, which are others each time.
func caRows() []row {
	v := func(name, rule, method, path, body string) row {
		r := operator("ca", name, rule, method, "ca"+path, body, nil)
		r.noBody = rule == "200 CA"
		return r
	}
	with := func(r row, setup func(*testing.T, *plane.Plane)) row { r.setup = setup; return r }
	rotating := func(t *testing.T, p *plane.Plane) { must(t, p.RotateCA(t.Context())) }
	silent := func(_ *testing.T, p *plane.Plane) { p.SetSilent(plane.Follower, true) }
	down := func(name, method, path, body string) row {
		return with(v(name, "503 outcome unknown", method, path, body), func(_ *testing.T, p *plane.Plane) { p.SetDown(true) })
	}
	return []row{
		v("get", "200 CA", "GET", "", ""),
		with(v("get-rotating", "200 CA", "GET", "", ""), rotating),
		byUser(v("get", "", "GET", "", "")), down("get-no-leader", "GET", "", ""),

		v("rotate", "200 CA", "POST", "/rotate", ""),
		with(v("rotate-twice", "400 CA", "POST", "/rotate", ""), rotating),
		with(v("rotate-scheduler-away", "400 CA", "POST", "/rotate", ""), silent),
		byUser(v("rotate", "", "POST", "/rotate", "")), down("rotate-no-leader", "POST", "/rotate", ""),

		with(v("finish", "200 CA", "POST", "/finish", `{"step":"spreads"}`), rotating),
		with(v("finish-other-step", "400 CA", "POST", "/finish", `{"step":"renews"}`), rotating),
		with(v("finish-scheduler-away", "400 CA", "POST", "/finish", `{"step":"spreads"}`), func(t *testing.T, p *plane.Plane) {
			rotating(t, p)
			silent(t, p)
		}),
		v("finish-nothing", "400 CA", "POST", "/finish", `{"step":"renews"}`),
		v("finish-no-step", "422 missing field", "POST", "/finish", `{}`),
		byUser(v("finish", "", "POST", "/finish", `{"step":"spreads"}`)), down("finish-no-leader", "POST", "/finish", `{"step":"spreads"}`),
	}
}
