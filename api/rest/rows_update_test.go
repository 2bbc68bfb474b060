package rest_test

import (
	"context"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

// keeper is a pod with host-local storage.
func keeper() fleet.PodRequest {
	req := webPod()
	req.Persistent = &fleet.PersistentMount{SizeGB: 50, Path: "/workspace"}
	return req
}

// onlyIn is a pod that may be in one data center only.
func onlyIn(dc fleet.DataCenterID) fleet.PodRequest {
	req := webPod()
	req.Centers = []fleet.DataCenterID{dc}
	return req
}

func cpuPod() fleet.PodRequest {
	return fleet.PodRequest{Name: "bare", Image: "busybox", CPU: &fleet.CPURequest{Flavor: "cpu3c", VCPU: 4}}
}

// ofVolume makes a running pod with a network volume of User.
func ofVolume(t *testing.T, p *plane.Plane) {
	req := webPod()
	req.Network = &fleet.NetworkMount{Volume: p.PutVolume(plane.User, 1, "dev-1"), Path: "/workspace"}
	request(t, p, req, run)
}

// template makes a template of the account of a key, which rows name <template-1>.
func template(t testing.TB, p *plane.Plane, key string, change func(*fleet.Template)) {
	t.Helper()
	in := fleet.Template{
		Name: "base", Image: "nginx:1.29", Args: "serve", DiskGB: 40, Ports: []fleet.Port{{Number: 80, Protocol: "http"}},
		Env: map[string]string{"A": "template", "T": "1"}, Category: fleet.CategoryNVIDIA,
	}
	if change != nil {
		change(&in)
	}
	if _, _, err := p.CreateTemplate(t.Context(), p.Who(key), in, nil); err != nil {
		t.Fatal(err)
	}
}

func linkRows() []row {
	link := func(name, rule, key, query string) row {
		return row{topic: "links", name: name, rule: rule, method: "GET", path: "/v2/pods/" + podID + "/link" + query, key: key, setup: pod(run)}
	}
	return []row{
		link("hour", "200 link", plane.User, "?port=8080"), link("minute", "200 link", plane.User, "?port=8080&expiresIn=60"),
		link("tcp", "400 port settings", plane.User, "?port=22"), link("other-port", "400 port settings", plane.User, "?port=81"),
		link("no-port", "422 link", plane.User, ""), link("too-long", "422 link", plane.User, "?port=8080&expiresIn=604801"),
		link("zero", "422 link", plane.User, "?port=0&expiresIn=0"), link("reader", "403 key without the permission", plane.Reader, "?port=8080"),
		link("foreign", "404 foreign object", plane.Other, "?port=8080"),
	}
}

// patch is a row that changes a pod.
func patch(name, rule, body string, setup func(*testing.T, *plane.Plane)) row {
	return row{topic: "update", name: name, rule: rule, method: "PATCH", path: "/v2/pods/" + podID, key: plane.User, body: body, setup: setup}
}

func updateRows() []row {
	const inPlace, restarts, nothing = "200 update in place", "200 update that restarts", "200 update that changes nothing"
	on := func(name, rule, body string, events ...fleet.Trigger) row {
		return patch(name, rule, body, pod(events...))
	}
	locked := func(name, rule, body string) row {
		return patch(name, rule, body, podThen(func(p *plane.Plane, id fleet.PodID) { p.Lock(id, true) }, run))
	}
	gone := func(t *testing.T, p *plane.Plane) { act(t, p, makePod(t, p, run), fleet.ActionTerminate) }
	stopping := func(t *testing.T, p *plane.Plane) { act(t, p, makePod(t, p, run), fleet.ActionStop) }
	later := func(events ...fleet.Trigger) func(*testing.T, *plane.Plane) {
		return podThen(func(p *plane.Plane, _ fleet.PodID) { p.Advance(time.Hour) }, events...)
	}
	return []row{
		on("nothing", nothing, `{}`, run),
		on("same-values", nothing, `{"name":"web","image":"busybox","env":{"A":"1"},"ports":["8080/http","22/tcp"],"disk":20,"args":"","mounts":{},"locked":false}`, run),
		on("name", inPlace, `{"name":"other name"}`, run), on("lock", inPlace, `{"locked":true}`, run), locked("unlock", inPlace, `{"locked":false}`),
		on("no-registry", inPlace, `{"registry":null}`, run), locked("name-of-locked", inPlace, `{"name":"b"}`),
		patch("image", restarts, `{"image":"nginx:1.29"}`, later(fleet.EventStarting, run)), on("args", restarts, `{"args":"sleep 9"}`, run),
		on("env", restarts, `{"env":{"B":"2"}}`, run), on("env-none", restarts, `{"env":{}}`, run), on("ports", restarts, `{"ports":["9000/http","22/tcp"]}`, run),
		on("ports-none", restarts, `{"ports":[]}`, run), on("disk", restarts, `{"disk":30}`, run), on("disk-less", restarts, `{"disk":5}`, run),
		on("provisioning", restarts, `{"env":{}}`), on("starting", restarts, `{"env":{}}`, fleet.EventStarting),
		on("exited", inPlace, `{"image":"nginx:1.29","disk":30}`, run, fleet.EventExited), on("failed", inPlace, `{"image":"nginx:1.29"}`, run, fleet.EventFailed),
		locked("locked", "409 update", `{"image":"nginx:1.29"}`), locked("locked-and-unlocks", restarts, `{"image":"nginx:1.29","locked":false}`),
		patch("terminated", "409 update", `{"name":"b"}`, gone), patch("stopping-name", inPlace, `{"name":"b"}`, stopping),
		on("disk-too-large", "400 no capacity", `{"disk":60000}`, run),
		on("unknown", "422 unknown property", `{"gpu":{"id":"NVIDIA L4"}}`, run), on("cloud", "422 unknown property", `{"cloud":"SECURE"}`, run),
		on("port-settings", inPlace, `{"portSettings":[{"port":8080,"access":"KEY","timeout":60}]}`, run), on("port-settings-none", nothing, `{"portSettings":[]}`, run),
		on("port-settings-with-ports", restarts, `{"ports":["9000/http"],"portSettings":[{"port":9000}]}`, run),
		on("port-settings-tcp", "400 port settings", `{"portSettings":[{"port":22}]}`, run), on("port-settings-twice", "400 port settings", `{"portSettings":[{"port":8080},{"port":8080}]}`, run),
		patch("port-settings-of-no-port", "400 port settings", `{"ports":["9000/http"]}`, podThen(func(p *plane.Plane, id fleet.PodID) {
			change := fleet.PodUpdate{HTTP: &[]fleet.HTTPSetting{{Port: 8080, Keyed: true}}}
			if _, err := p.UpdatePod(context.Background(), p.Who(plane.User), id, change); err != nil {
				panic(err)
			}
		}, run)),
		on("port-settings-access", "422 enum", `{"portSettings":[{"port":8080,"access":"ALL"}]}`, run),
		on("port-settings-timeout", "422 bound", `{"portSettings":[{"port":8080,"timeout":0}]}`, run), on("port-settings-no-port", "422 missing field", `{"portSettings":[{"access":"KEY"}]}`, run),
		on("null-name", "422 null where nothing says so", `{"name":null}`, run), on("null-env", "422 null where nothing says so", `{"env":null,"ports":null,"mounts":null,"locked":null}`, run),
		on("empty-name", "422 bound", `{"name":"","image":"","registry":"","templateId":""}`, run), on("disk-zero", "422 bound", `{"disk":0}`, run),
		on("bad-image", "422 pattern", `{"image":"busy box"}`, run), on("bad-port", "422 port", `{"ports":["80/udp"]}`, run),
		on("port-twice", "422 port", `{"ports":["80/tcp","80/tcp"]}`, run), on("bad-env", "422 environment", `{"env":{"1":"x"}}`, run), on("bad-args", "422 args", `{"args":"'"}`, run),
		on("registry-unknown", "404 unknown reference names the field", `{"registry":"`+missingID+`"}`, run),
		on("template-unknown", "404 unknown reference names the field", `{"templateId":"`+missingID+`"}`, run),
		on("global-later", inPlace, `{"globalNetworking":true}`, run),
		patch("global-elsewhere", "400 globalNetworking without its preconditions", `{"globalNetworking":true}`, madePod(onlyIn("dev-1"), run)),
		patch("global-cpu", "400 globalNetworking without its preconditions", `{"globalNetworking":true}`, madePod(cpuPod(), run)),
		patch("persistent-on-cpu", "400 update of mounts", `{"mounts":{"persistent":{"size":10,"path":"/data"}}}`, madePod(cpuPod(), run)), on("global-off", inPlace, `{"globalNetworking":false}`, run),
		patch("template", "template applied once", `{"templateId":"<template-1>","env":{"A":"body"}}`, func(t *testing.T, p *plane.Plane) {
			makePod(t, p, run)
			template(t, p, plane.User, func(in *fleet.Template) { in.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/data"} })
		}),
		patch("template-foreign", "404 unknown reference names the field", `{"templateId":"<template-1>"}`, func(t *testing.T, p *plane.Plane) {
			makePod(t, p, run)
			template(t, p, plane.Other, nil)
		}),
	}
}

// mountRows holds the rules that interface.md numbers from 3 to 8.
func mountRows() []row {
	const refusedRule, inPlace = "400 update of mounts", "200 update in place"
	of := func(name, rule, body string, req fleet.PodRequest) row {
		return patch(name, rule, body, madePod(req, run))
	}
	volume := func(name, rule, body string) row { return patch(name, rule, body, ofVolume) }
	gpu := func(name, rule, mounts string) row { return create("mounts", name, rule, with(`"mounts":`+mounts)) }
	withVolume := func(r row, key string, dc fleet.DataCenterID) row {
		r.setup = func(_ *testing.T, p *plane.Plane) { p.PutVolume(key, 1, dc) }
		return r
	}
	out := []row{
		of("3-omitted", "200 update that changes nothing", `{"locked":false}`, keeper()), of("3-empty", "200 update that changes nothing", `{"mounts":{}}`, keeper()),
		volume("4-cleared", refusedRule, `{"mounts":{"network":[]}}`), of("4-cleared-persistent", refusedRule, `{"mounts":{"network":[]}}`, keeper()),
		of("5-persistent-on-none", refusedRule, `{"mounts":{"persistent":{"size":10,"path":"/data"}}}`, webPod()),
		of("5-network-on-none", refusedRule, `{"mounts":{"network":[{"volumeId":"vol00000000001","path":"/data"}]}}`, webPod()),
		of("5-network-on-persistent", refusedRule, `{"mounts":{"network":[{"volumeId":"vol00000000001","path":"/data"}]}}`, keeper()),
		volume("5-persistent-on-network", refusedRule, `{"mounts":{"persistent":{"size":10,"path":"/data"}}}`),
		of("5-both", "400 both mount kinds", `{"mounts":{"persistent":{"size":50,"path":"/a"},"network":[{"volumeId":"v","path":"/b"}]}}`, keeper()),
		volume("6-other-volume", refusedRule, `{"mounts":{"network":[{"volumeId":"`+missingID+`","path":"/workspace"}]}}`),
		volume("7-partial-network", "422 mount shape", `{"mounts":{"network":[{"path":"/a"}]}}`), volume("7-partial-path", "422 mount shape", `{"mounts":{"network":[{"volumeId":"vol00000000001"}]}}`),
		of("7-partial-size", "422 mount shape", `{"mounts":{"persistent":{"size":60}}}`, keeper()), of("7-partial-persistent", "422 mount shape", `{"mounts":{"persistent":{"path":"/a"}}}`, keeper()),
		of("7-unknown", "422 mount shape", `{"mounts":{"persistent":{"size":60,"path":"/a","encrypted":true}}}`, keeper()),
		of("7-null", "422 mount shape", `{"mounts":{"persistent":null}}`, keeper()),
		volume("8-path", inPlace, `{"mounts":{"network":[{"volumeId":"vol00000000001","path":"/data"}]}}`), of("8-path-persistent", inPlace, `{"mounts":{"persistent":{"size":50,"path":"/data"}}}`, keeper()),
		of("8-path-system", "400 mount path", `{"mounts":{"persistent":{"size":50,"path":"/usr/local"}}}`, keeper()),
		of("grow", inPlace, `{"mounts":{"persistent":{"size":80,"path":"/workspace"}}}`, keeper()), of("shrink", refusedRule, `{"mounts":{"persistent":{"size":40,"path":"/workspace"}}}`, keeper()),
		of("grow-beyond", "400 no capacity", `{"mounts":{"persistent":{"size":60000,"path":"/workspace"}}}`, keeper()),
		gpu("persistent", "persistent mount", `{"persistent":{"size":10,"path":"/workspace"}}`),
		gpu("persistent-beyond", "400 no capacity", `{"persistent":{"size":60000,"path":"/workspace"}}`),
		withVolume(gpu("network", "201 create pod", `{"network":[{"volumeId":"vol00000000001","path":"/workspace"}]}`), plane.User, "dev-1"),
		withVolume(gpu("network-foreign", "404 unknown reference names the field", `{"network":[{"volumeId":"vol00000000001","path":"/workspace"}]}`), plane.Other, "dev-1"),
		withVolume(create("mounts", "network-cpu", "201 create pod", `{"name":"a","image":"b","cpu":{"id":"cpu3g","vcpuCount":2},"mounts":{"network":[{"volumeId":"vol00000000001","path":"/data"}]}}`), plane.User, "dev-1"),
		withVolume(gpu("network-elsewhere", "400 no capacity", `{"network":[{"volumeId":"vol00000000001","path":"/workspace"}]}`), plane.User, "dev-2"),
		withVolume(create("mounts", "network-other-center", "400 mounts of the place", `{"name":"a","image":"b","cpu":{"id":"cpu3g","vcpuCount":2},"dataCenterIds":["dev-1"],"mounts":{"network":[{"volumeId":"vol00000000001","path":"/data"}]}}`), plane.User, "dev-2"),
		withVolume(create("mounts", "network-community", "400 mounts of the place", `{"name":"a","image":"b","cpu":{"id":"cpu3g","vcpuCount":2},"cloud":"COMMUNITY","mounts":{"network":[{"volumeId":"vol00000000001","path":"/data"}]}}`), plane.User, "dev-2"),
	}
	for i := range out {
		out[i].topic = "mounts"
	}
	for _, path := range []string{"/proc", "/sys/fs", "/dev/shm", "/etc", "/usr/bin", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/run", "/var/run/x", "/a/", "/a//b", "/a/./b", "/a/../b"} {
		out = append(out, gpu("path-"+path, "400 mount path", `{"persistent":{"size":10,"path":"`+path+`"}}`))
	}
	for _, path := range []string{"/process", "/home", "/var/lib/data", "/usrlocal"} {
		out = append(out, gpu("path-"+path, "persistent mount", `{"persistent":{"size":10,"path":"`+path+`"}}`))
	}
	return out
}
