package rest_test

import (
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(clusterRows, "200 cluster", "201 member token", "204 member changed", "400 member needed", "422 member token", "400 clock")
}

func clusterRows() []row {
	v := func(name, rule, method, path, body string) row {
		return operator("cluster", name, rule, method, "cluster"+path, body, nil)
	}
	with := func(r row, setup func(*testing.T, *plane.Plane)) row { r.setup = setup; return r }
	silent := func(id fleet.MemberID) func(*testing.T, *plane.Plane) {
		return func(_ *testing.T, p *plane.Plane) { p.SetSilent(id, true) }
	}
	removed := func(t *testing.T, p *plane.Plane) { must(t, p.RemoveMember(t.Context(), plane.Reserve, false)) }
	lone := func(t *testing.T, p *plane.Plane) { must(t, p.DemoteMember(t.Context(), plane.Follower)) }
	leapt := func(t *testing.T, p *plane.Plane) { // the leader's clock, by a day
		must(t, p.Tick())
		p.Advance(24 * time.Hour)
		must(t, p.Tick())
	}
	const (
		done, needed, token      = "204 member changed", "400 member needed", "201 member token"
		leader, follower, backup = "/members/member00000001", "/members/member00000002", "/members/member00000003"
		none                     = "/members/" + missingID
	)
	down := func(name, method, path, body string) row {
		return with(v(name, "503 outcome unknown", method, path, body), func(_ *testing.T, p *plane.Plane) { p.SetDown(true) })
	}
	return []row{
		v("get", "200 cluster", "GET", "", ""),
		with(v("get-silent", "200 cluster", "GET", "", ""), silent(plane.Follower)),
		with(v("get-removed", "200 cluster", "GET", "", ""), removed),
		byUser(v("get", "", "GET", "", "")), down("get-no-leader", "GET", "", ""),

		v("token", token, "POST", "/tokens", `{}`),
		v("token-replaces", token, "POST", "/tokens", `{"replaces":"member00000002","ttlSeconds":60}`),
		v("token-non-voter", token, "POST", "/tokens", `{"nonVoter":true}`),
		v("token-replaced-by-non-voter", "422 member token", "POST", "/tokens", `{"nonVoter":true,"replaces":"member00000002"}`),
		v("token-replaces-missing", "404 missing object", "POST", "/tokens", `{"replaces":"`+missingID+`"}`),
		v("token-replaces-no-id", "422 pattern", "POST", "/tokens", `{"replaces":"sched-2"}`),
		v("token-bounds", "422 bound", "POST", "/tokens", `{"ttlSeconds":604801}`),
		v("token-unknown", "422 unknown property", "POST", "/tokens", `{"voter":true}`),
		byUser(v("token", "", "POST", "/tokens", `{}`)), down("token-no-leader", "POST", "/tokens", `{}`),

		v("promote", done, "POST", backup+"/promote", ""),
		v("promote-missing", "404 missing object", "POST", none+"/promote", ""),
		with(v("promote-removed", "404 missing object", "POST", backup+"/promote", ""), removed),
		byUser(v("promote", "", "POST", backup+"/promote", "")), down("promote-no-leader", "POST", backup+"/promote", ""),
		v("demote", done, "POST", follower+"/demote", ""),
		with(v("demote-last", needed, "POST", leader+"/demote", ""), lone),
		v("demote-no-id", "404 missing object", "POST", "/members/sched-2/demote", ""),
		byUser(v("demote", "", "POST", follower+"/demote", "")),

		v("remove", done, "DELETE", backup, ""),
		with(v("remove-needed", needed, "DELETE", leader, ""), silent(plane.Follower)),
		with(v("remove-forced", done, "DELETE", leader+"?force", ""), silent(plane.Follower)),
		with(v("remove-last", needed, "DELETE", leader+"?force=true", ""), lone),
		v("remove-force-word", "422 parameter", "DELETE", leader+"?force=yes", ""),
		v("remove-missing", "404 missing object", "DELETE", none, ""),
		byUser(v("remove", "", "DELETE", backup, "")),

		v("transfer", done, "POST", "/transfer", `{}`),
		v("transfer-to", done, "POST", "/transfer", `{"memberId":"member00000002"}`),
		v("transfer-to-non-voter", needed, "POST", "/transfer", `{"memberId":"member00000003"}`),
		v("transfer-missing", "404 missing object", "POST", "/transfer", `{"memberId":"`+missingID+`"}`),
		v("transfer-no-id", "422 pattern", "POST", "/transfer", `{"memberId":"sched-2"}`),
		byUser(v("transfer", "", "POST", "/transfer", `{}`)),

		with(v("get-held", "200 cluster", "GET", "", ""), leapt),
		with(v("clock", done, "POST", "/clock", `{"time":"2026-10-02T12:00:30Z"}`), leapt),
		with(v("clock-another", "400 clock", "POST", "/clock", `{"time":"2026-10-01T12:00:00Z"}`), leapt),
		v("clock-none", "422 missing field", "POST", "/clock", `{}`), v("clock-word", "422 pattern", "POST", "/clock", `{"time":"now"}`),
		byUser(v("clock", "", "POST", "/clock", `{"time":"2026-03-01T12:00:00Z"}`)),
		down("clock-no-leader", "POST", "/clock", `{"time":"2026-03-01T12:00:00Z"}`),
	}
}
