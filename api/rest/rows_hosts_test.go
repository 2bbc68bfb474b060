package rest_test

import (
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(hostListRows, "host filters")
	addRows(hostChangeRows, "200 host labels", "422 host change")
	addRows(hostEligibilityRows, "200 host eligibility", "409 host eligibility", "200 host pods", "400 drain rule", "200 drain planned")
	addRows(hostEndRows, "200 host fenced", "204 host removed", "400 host in use", "200 host alarm")
}

const (
	theHost  = "hosts/host0000000001"
	otherID  = "hosts/host0000000002"
	noHostID = "hosts/" + missingID
)

func hostRow(name, rule, method, path, body string, setup func(*testing.T, *plane.Plane)) row {
	return operator("hosts", name, rule, method, path, body, setup)
}

// byUser is a row that is refused since its key is no operator's.
func byUser(r row) row {
	r.name, r.rule, r.key = r.name+"-user", "403 key without the permission", plane.User
	return r
}

func labelled(t *testing.T, p *plane.Plane) {
	_, err := p.SetHostLabels(t.Context(), plane.Host, map[string]string{"rack": "b4", "owner": "lab"}, nil)
	must(t, err)
}

func eligibility(eligibility fleet.Eligibility, keepRunning bool) func(*testing.T, *plane.Plane) {
	return func(t *testing.T, p *plane.Plane) {
		_, err := p.SetHostEligibility(t.Context(), plane.Host, eligibility)
		if eligibility == fleet.EligibilityDraining {
			_, err = p.DrainHost(t.Context(), plane.Host, fleet.DrainRequest{KeepRunning: keepRunning})
		}
		must(t, err)
	}
}

func unreachable(id fleet.HostID) func(*testing.T, *plane.Plane) {
	return func(_ *testing.T, p *plane.Plane) { p.SetReachable(id, false) }
}

func fenced(t *testing.T, p *plane.Plane) {
	p.SetReachable(plane.CommunityHost, false)
	_, err := p.FenceHost(t.Context(), plane.CommunityHost)
	must(t, err)
}

func gone(t *testing.T, p *plane.Plane) { must(t, p.RemoveHost(t.Context(), plane.CommunityHost)) }

func alarmed(_ *testing.T, p *plane.Plane) {
	p.Alarm(plane.Host, "Another machine used its certificate.")
}

func hostListRows() []row {
	const rule = "host filters"
	list := func(name, query string, setup func(*testing.T, *plane.Plane)) row {
		return hostRow("list-"+name, rule, "GET", "hosts"+query, "", setup)
	}
	bad := func(name, query string) row {
		r := list(name, query, nil)
		r.rule = "422 parameter"
		return r
	}
	return []row{
		list("labels", "?label=rack%3Db4&label=owner=lab", labelled),
		list("labels-joined", "?label=rack=b4,owner=lab", labelled),
		list("label-other-value", "?label=rack=b5", labelled),
		list("label-both-values", "?label=rack=b4,rack=b5", labelled),
		list("label-empty-value", "?label=rack=", labelled),
		list("cordoned", "?state=cordoned", eligibility(fleet.EligibilityCordoned, false)),
		list("two-states", "?state=ready,unreachable", unreachable(plane.CommunityHost)),
		list("no-gone", "", gone),
		list("gone", "?state=gone", gone),
		list("state-and-label", "?state=ready&label=rack=b4", labelled),
		bad("label-broken", "?label=rack"),
		bad("label-no-name", "?label==b4"),
		bad("state-unknown", "?state=lost"),
	}
}

func hostChangeRows() []row {
	patch := func(name, rule, body string) row {
		return hostRow("patch-"+name, rule, "PATCH", theHost, body, labelled)
	}
	const set = `{"labels":{"rack":"b5","zone/row":"7"}}`
	return []row{
		patch("labels", "200 host labels", set),
		patch("labels-removed", "200 host labels", `{"labels":{"owner":null,"zone/row":"7","never":null}}`),
		patch("labels-none", "200 host labels", `{"labels":{}}`),
		patch("both", "200 host labels", `{"cloud":"COMMUNITY","labels":{"rack":"b5"}}`),
		patch("labels-null", "422 null where nothing says so", `{"labels":null}`),
		patch("labels-number", "422 wrong type", `{"labels":{"rack":5}}`),
		patch("labels-key", "422 host change", `{"labels":{"a b":"x"}}`),
		patch("refused-as-a-whole", "422 host change", `{"cloud":"COMMUNITY","labels":{"":"x"}}`),
		byUser(patch("labels", "", set)),
		hostRow("patch-labels-missing", "404 missing object", "PATCH", noHostID, set, nil),
	}
}

func hostEligibilityRows() []row {
	post := func(name, rule, path, body string, setup func(*testing.T, *plane.Plane)) row {
		return hostRow(name, rule, "POST", path, body, setup)
	}
	const ok, no, rule = "200 host eligibility", "409 host eligibility", "400 drain rule"
	movable := func(t *testing.T, p *plane.Plane) {
		req, yes := webPod(), true
		req.Movable = &yes
		request(t, p, req, fleet.EventRunning)
	}
	busy := func(t *testing.T, p *plane.Plane) { makePod(t, p, fleet.EventRunning) }
	draining := func(keepRunning bool) func(*testing.T, *plane.Plane) {
		return func(t *testing.T, p *plane.Plane) {
			id := makePod(t, p, fleet.EventRunning)
			p.Lock(id, !keepRunning)
			eligibility(fleet.EligibilityDraining, keepRunning)(t, p)
		}
	}
	down := post("cordon-no-leader", "503 outcome unknown", theHost+"/cordon", "", nil)
	down.setup = func(_ *testing.T, p *plane.Plane) { p.SetDown(true) }
	pods := func(name string, setup func(*testing.T, *plane.Plane)) row {
		return hostRow("pods-"+name, "200 host pods", "GET", theHost+"/pods", "", setup)
	}
	return []row{
		post("cordon", ok, theHost+"/cordon", "", nil),
		post("cordon-again", ok, theHost+"/cordon", "", eligibility(fleet.EligibilityCordoned, false)),
		post("cordon-unreachable", ok, theHost+"/cordon", "", unreachable(plane.Host)),
		post("cordon-gone", no, otherID+"/cordon", "", gone),
		post("cordon-missing", "404 missing object", noHostID+"/cordon", "", nil),
		byUser(post("cordon", "", theHost+"/cordon", "", nil)), down,
		post("uncordon", ok, theHost+"/uncordon", "", eligibility(fleet.EligibilityDraining, true)),
		post("uncordon-fenced", no, otherID+"/uncordon", "", fenced),
		post("drain", ok, theHost+"/drain", `{}`, busy),
		post("drain-keep-running", ok, theHost+"/drain", `{"keepRunning":true}`, busy),
		post("drain-deadline", ok, theHost+"/drain", `{"deadline":"2030-01-01T00:00:00Z","reason":"new fans"}`, busy),
		post("drain-force", ok, theHost+"/drain", `{"force":true}`, busy),
		post("drain-force-deadline", rule, theHost+"/drain", `{"force":true,"deadline":"2030-01-01T00:00:00Z"}`, nil),
		post("drain-force-keep", rule, theHost+"/drain", `{"force":true,"keepRunning":true}`, nil),
		post("drain-deadline-past", rule, theHost+"/drain", `{"deadline":"2020-01-01T00:00:00Z"}`, nil),
		post("drain-deadline-form", "422 wrong type", theHost+"/drain", `{"deadline":"tomorrow"}`, nil),
		post("drain-reason-long", "422 bound", theHost+"/drain", `{"reason":"`+strings.Repeat("x", 201)+`"}`, nil),
		post("drain-reason-control", "422 pattern", theHost+"/drain", `{"reason":"\u0007"}`, nil),
		post("drain-unknown", "422 unknown property", theHost+"/drain", `{"forced":true}`, nil),
		hostRow("plan-drain", "200 drain planned", "GET", theHost+"/drain", "", busy),
		hostRow("plan-drain-movable", "200 drain planned", "GET", theHost+"/drain", "", movable),
		hostRow("plan-drain-keep", "200 drain planned", "GET", theHost+"/drain?keepRunning=true", "", movable),
		hostRow("plan-drain-missing", "404 missing object", "GET", noHostID+"/drain", "", nil),
		byUser(hostRow("plan-drain", "", "GET", theHost+"/drain", "", nil)),
		hostRow("get-draining", "200 host eligibility", "GET", theHost, "", func(t *testing.T, p *plane.Plane) {
			_, err := p.DrainHost(t.Context(), plane.Host, fleet.DrainRequest{Reason: "new fans"})
			must(t, err)
		}),
		post("drain-gone", no, otherID+"/drain", `{}`, gone),
		byUser(post("drain", "", theHost+"/drain", `{}`, nil)),
		pods("none", nil), pods("open", busy), pods("draining", draining(false)), pods("keep-running", draining(true)),
		hostRow("pods-missing", "404 missing object", "GET", noHostID+"/pods", "", nil),
		byUser(pods("none", nil)),
	}
}

func hostEndRows() []row {
	post := func(name, rule, path string, setup func(*testing.T, *plane.Plane)) row {
		return hostRow(name, rule, "POST", path, "", setup)
	}
	remove := func(name, rule, path string, setup func(*testing.T, *plane.Plane)) row {
		return hostRow("remove-"+name, rule, "DELETE", path, "", setup)
	}
	busy := func(t *testing.T, p *plane.Plane) { makePod(t, p, fleet.EventRunning) }
	return []row{
		post("fence", "200 host fenced", theHost+"/fence", func(t *testing.T, p *plane.Plane) { busy(t, p); p.SetReachable(plane.Host, false) }),
		post("fence-connected", "409 host eligibility", theHost+"/fence", nil),
		post("fence-missing", "404 missing object", noHostID+"/fence", nil),
		byUser(post("fence", "", theHost+"/fence", nil)),
		remove("empty", "204 host removed", theHost, nil),
		remove("fenced", "204 host removed", otherID, fenced),
		remove("busy", "400 host in use", theHost, busy),
		remove("missing", "404 missing object", noHostID, nil),
		byUser(remove("empty", "", theHost, nil)),
		post("ack-alarm", "200 host alarm", theHost+"/ack-alarm", alarmed),
		post("ack-no-alarm", "200 host alarm", theHost+"/ack-alarm", nil),
		post("ack-alarm-missing", "404 missing object", noHostID+"/ack-alarm", nil),
		hostRow("get-alarmed", "200 host alarm", "GET", theHost, "", alarmed),
	}
}
