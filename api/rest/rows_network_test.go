package rest_test

import (
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(networkRows, "200 private networks", "200 network check", "200 pod in a private network")
	addRows(networkAdminRows, "200 network settings", "400 network settings", "422 network settings", "200 host network", "200 egress")
}

// nothingLeft is the report of a host that has nothing left of a pod.
const nothingLeft fleet.Trigger = "gone"

// joined makes pods of User with global networking in dev-1, two of which run, and one of Other.
func joined(t *testing.T, p *plane.Plane) {
	t.Helper()
	must(t, p.PutDataCenter(t.Context(), fleet.DataCenter{ID: "dev-1", Name: "Development 1", Region: "EUROPE", Country: "RO", GlobalNetwork: true}))
	for _, name := range []string{"trainer", "server"} {
		request(t, p, networked(name), run)
	}
	request(t, p, networked("waiting"))
	other, err := p.CreatePod(t.Context(), p.Who(plane.Other), networked("foreign"))
	must(t, err)
	report(t, p, other.Pod.ID, run)
}

func networked(name string) fleet.PodRequest {
	return fleet.PodRequest{Name: name, Image: "busybox", GPU: &fleet.GPURequest{Type: plane.SimGPU, Count: 1}, GlobalNetworking: true}
}

// afterwards does more with the first pod that joined makes.
func afterwards(more func(*testing.T, *plane.Plane, fleet.PodID)) func(*testing.T, *plane.Plane) {
	return func(t *testing.T, p *plane.Plane) {
		joined(t, p)
		more(t, p, fleet.PodID(p.Meant(podID)))
	}
}

// leave switches global networking of a pod off; it is in effect from its next start on.
func leave(t *testing.T, p *plane.Plane, id fleet.PodID) {
	t.Helper()
	_, err := p.UpdatePod(t.Context(), p.Who(plane.User), id, fleet.PodUpdate{GlobalNetworking: new(false)})
	must(t, err)
}

func stopped(t *testing.T, p *plane.Plane, id fleet.PodID) {
	t.Helper()
	act(t, p, id, fleet.ActionStop)
	report(t, p, id, fleet.EventExited)
}

func networkRows() []row {
	const list, check, record = "200 private networks", "200 network check", "200 pod in a private network"
	v := func(name, rule, method, path, key string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "network", name: name, rule: rule, method: method, path: path, key: key, setup: setup}
	}
	all := func(name string, setup func(*testing.T, *plane.Plane)) row {
		return v("list-"+name, list, "GET", "/v2/network", plane.Reader, setup)
	}
	pod := func(name string, more func(*testing.T, *plane.Plane, fleet.PodID)) row {
		return v("pod-"+name, record, "GET", "/v2/pods/"+podID, plane.User, afterwards(more))
	}
	look := func(name string, setup func(*testing.T, *plane.Plane)) row {
		return v("check-"+name, check, "POST", "/v2/network/check", plane.User, setup)
	}
	noPods := func(t *testing.T, p *plane.Plane) {
		joined(t, p)
		can, _ := fleet.Preset("all")
		can[fleet.GroupPods] = fleet.AccessNone
		p.Restrict(plane.User, can)
	}
	mute := func(_ *testing.T, p *plane.Plane, id fleet.PodID) { p.Mute(id, "no answer within 1 s") }
	down := v("list-down", "503 outcome unknown", "GET", "/v2/network", plane.User, func(_ *testing.T, p *plane.Plane) { p.SetDown(true) })
	terminated := func(t *testing.T, p *plane.Plane, id fleet.PodID) {
		act(t, p, id, fleet.ActionTerminate)
		report(t, p, id, nothingLeft)
	}
	start := func(t *testing.T, p *plane.Plane, id fleet.PodID) {
		stopped(t, p, id)
		act(t, p, id, fleet.ActionStart)
	}
	return []row{
		all("none", nil), all("members", joined), all("stopped", afterwards(stopped)), all("terminated", afterwards(terminated)),
		v("list-other", list, "GET", "/v2/network", plane.Other, joined),
		v("list-no-permission", "403 key without the permission", "GET", "/v2/network", plane.User, noPods), down,
		pod("in", func(*testing.T, *plane.Plane, fleet.PodID) {}), pod("stopped", stopped), pod("started-again", start),
		pod("to-leave", leave), pod("left", func(t *testing.T, p *plane.Plane, id fleet.PodID) { leave(t, p, id); start(t, p, id) }),
		look("none", nil), look("pods", joined), look("mute", afterwards(mute)),
		look("host-lost", func(t *testing.T, p *plane.Plane) { joined(t, p); p.SetReachable(plane.Host, false) }),
		v("check-reader", "403 key without the permission", "POST", "/v2/network/check", plane.Reader, joined),
	}
}

func networkAdminRows() []row {
	const settings, bad, host, egress = "200 network settings", "422 network settings", "200 host network", "200 egress"
	v := func(name, rule, method, path, body string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "network-admin", name: name, rule: rule, method: method, path: "/admin/v1" + path, key: plane.Operator, body: body, setup: setup}
	}
	patch := func(name, rule, body string) row { return v("settings-"+name, rule, "PATCH", "/network", body, nil) }
	byUser := func(r row) row {
		r.name, r.rule, r.key = r.name+"-user", "403 key without the permission", plane.User
		return r
	}
	again := func(t *testing.T, p *plane.Plane) {
		s, err := p.NetworkSettings(t.Context())
		must(t, err)
		s.PodMbps, s.Aliases = 500, nil
		must(t, p.PutNetworkSettings(t.Context(), s))
	}
	troubled := func(_ *testing.T, p *plane.Plane) {
		p.SetHostNetwork(plane.Host, fleet.HostNetwork{
			Desired: "bridge gb4096\nlink go1\n", Real: "bridge gb4096\n", Steps: []string{"add link go1"}, Problems: []string{"The tunnel to host0000000002 has no answer."},
			Drops: []fleet.NetDrop{{Why: "spoofed", Packets: 3, Bytes: 180}}, Tunnel: "user space",
			Tunnels: []fleet.TunnelPeer{
				{Host: plane.CommunityHost, Addr: "100.127.0.2", Endpoint: "203.0.113.9:51820", Handshake: plane.Start().Add(-time.Minute), Received: 1, Sent: 2},
				{Host: "host0000000003", Addr: "100.127.0.3", Plain: true},
				{Host: "host0000000004", Addr: "100.127.0.4"},
			},
		})
	}
	seen := func(name, rule, id string, setup func(*testing.T, *plane.Plane)) row {
		return v("host-"+name, rule, "GET", "/hosts/"+id+"/network", "", setup)
	}
	lost := func(_ *testing.T, p *plane.Plane) { p.SetReachable(plane.Host, false) }
	center := func(name, rule, underlay string) row {
		return v("center-"+name, rule, "PUT", "/datacenters/dev-9", `{"name":"Nine","region":"ASIA"`+underlay+`}`, nil)
	}
	account := "/accounts/" + string(plane.Research)
	closed := func(t *testing.T, p *plane.Plane) {
		_, err := p.UpdateAccount(t.Context(), plane.Research, fleet.AccountUpdate{Egress: new(fleet.EgressNone)})
		must(t, err)
	}
	own := v("egress-own", egress, "GET", "", "", closed)
	own.path, own.key = "/v2/account", plane.User
	get := v("settings", settings, "GET", "/network", "", nil)
	check := v("check", "200 network check", "POST", account+"/network-check", "", joined)
	return []row{
		get, v("settings-changed", settings, "GET", "/network", "", again), byUser(get), byUser(patch("change", settings, `{"podMbps":1}`)),
		patch("nothing", settings, `{}`), patch("limit", settings, `{"podMbps":1000}`), patch("no-aliases", settings, `{"aliases":[]}`),
		patch("all", settings, `{"pool":"10.96.0.0/12","bits":20,"firstVxlanId":70000,"suffix":"lab.internal","aliases":["gantry.internal","runpod.internal"],"mtu":8900,`+
			`"vxlanPort":8472,"wireguardPort":51821,"tunnelRange":"100.126.0.0/15","podMbps":0,"graceSeconds":60}`),
		patch("bounds", "422 bound", `{"bits":15,"firstVxlanId":0,"mtu":1279,"vxlanPort":0,"wireguardPort":65536,"podMbps":-1,"graceSeconds":86401}`),
		patch("bounds-above", "422 bound", `{"bits":29,"firstVxlanId":16777216,"mtu":8931,"vxlanPort":65536,"podMbps":400001}`),
		patch("patterns", "422 pattern", `{"pool":"fd00::/8","suffix":".internal","tunnelRange":"here"}`), patch("no-ranges", bad, `{"pool":"10.64.0.1/10","tunnelRange":"1/2/3"}`),
		patch("alias", bad, `{"aliases":["ok","-no"]}`), patch("tunnel-elsewhere", "400 network settings", `{"tunnelRange":"100.126.0.0/16"}`), patch("many-aliases", "422 bound", `{"aliases":["a","b","c","d","e","f","g","h","i"]}`),
		patch("types", "422 wrong type", `{"pool":1,"bits":"16","aliases":"x"}`), patch("null", "422 null where nothing says so", `{"pool":null,"podMbps":null}`),
		patch("unknown", "422 unknown property", `{"vni":1}`), patch("pool-too-small", bad, `{"pool":"10.64.0.0/20","bits":16}`),
		patch("suffix-twice", bad, `{"suffix":"runpod.internal"}`), patch("overlap", bad, `{"tunnelRange":"10.64.0.0/16"}`), patch("same-ports", bad, `{"vxlanPort":51820}`),
		patch("port-of-names", bad, `{"vxlanPort":53,"wireguardPort":53}`),
		seen("quiet", host, string(plane.Host), nil), seen("troubled", host, string(plane.Host), troubled), seen("lost", "503 outcome unknown", string(plane.Host), lost),
		seen("missing", "404 missing object", missingID, nil), byUser(seen("seen", host, string(plane.Host), nil)),
		center("private", settings, `,"underlay":"private"`), center("encrypted", settings, `,"underlay":"encrypted"`), center("default", settings, ""),
		center("unknown", "422 enum", `,"underlay":"plain"`),
		v("egress-none", egress, "PATCH", account, `{"egress":"none"}`, nil), v("egress-open", egress, "PATCH", account, `{"egress":"open"}`, closed),
		v("egress-stays", egress, "PATCH", account, `{"name":"renamed"}`, closed), v("egress-unknown", "422 enum", "PATCH", account, `{"egress":"some"}`, nil), own,
		check, v("check-missing", "404 missing object", "POST", "/accounts/"+missingID+"/network-check", "", nil), byUser(check),
	}
}
