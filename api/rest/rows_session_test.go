package rest_test

import (
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

// sessionRows are the refusals of exec and of copying files, and a copy's headers.
func sessionRows() []row {
	const upgrade, out, in = "exec before the upgrade", "files out of a pod", "files into a pod"
	get := func(name, rule, what string, setup func(*testing.T, *plane.Plane), header ...string) row {
		return row{topic: "sessions", name: name, rule: rule, method: "GET", path: "/v2/pods/" + podID + "/" + what, key: plane.User, setup: setup, header: header}
	}
	put := func(name, rule, what string, setup func(*testing.T, *plane.Plane), header ...string) row {
		r := get(name, rule, what, setup, header...)
		r.method, r.body = "PUT", "no archive"
		return r
	}
	foreign := func(r row) row { r.rule, r.key = "404 foreign object", plane.Other; return r }
	reader := func(r row) row { r.rule, r.key = "403 key without the permission", plane.Reader; return r }
	stopping := func(t *testing.T, p *plane.Plane) { act(t, p, makePod(t, p, run), fleet.ActionStop) }
	lost := podThen(func(p *plane.Plane, _ fleet.PodID) { p.SetReachable(plane.Host, false) }, run)
	tarType := []string{"Content-Type", "application/x-tar"}
	socket := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}
	headed := get("files-head", out, "files?path=/etc/hosts", podThen(func(p *plane.Plane, id fleet.PodID) { p.PutFile(id, "/etc/hosts", "x") }, run))
	headed.method = "HEAD"
	return []row{
		get("exec-plain", upgrade, "exec", pod(run)), get("exec-old-version", upgrade, "exec", pod(run), append(socket[:4:4], "Sec-WebSocket-Version", "8", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")...),
		get("exec-short-key", upgrade, "exec", pod(run), append(socket[:6:6], "Sec-WebSocket-Key", "AAAA")...), get("exec-other-protocol", upgrade, "exec", pod(run), append([]string{"Connection", "Upgrade", "Upgrade", "h2c"}, socket[4:]...)...),
		get("exec-starting", upgrade, "exec", pod(fleet.EventStarting), socket...), get("exec-exited", upgrade, "exec", pod(run, fleet.EventExited), socket...), get("exec-stopping", upgrade, "exec", stopping, socket...),
		foreign(get("exec-foreign", upgrade, "exec", pod(run), socket...)), reader(get("exec-reader", upgrade, "exec", pod(run), socket...)),
		get("files-no-path", "422 parameter", "files", pod(run)), get("files-relative", "422 parameter", "files?path=etc/hosts", pod(run)), get("files-nul", "422 parameter", "files?path=/a%00b", pod(run)),
		get("files-two-paths", "422 parameter", "files?path=/a&path=/b", pod(run)),
		get("files-missing", out, "files?path=/no/such", pod(run)), get("files-exited", out, "files?path=/a", pod(run, fleet.EventExited)), get("files-lost", "503 outcome unknown", "files?path=/a", lost), headed,
		foreign(get("files-foreign", out, "files?path=/a", pod(run))), reader(get("files-reader", out, "files?path=/a", pod(run))),
		put("files-put-broken", in, "files?path=/data", pod(run), tarType...), put("files-put-json", "415 content type is not JSON", "files?path=/data", pod(run)),
		put("files-put-gzip", "415 content type is not JSON", "files?path=/data", pod(run), "Content-Type", "application/x-tar", "Content-Encoding", "gzip"),
		put("files-put-exited", in, "files?path=/data", pod(run, fleet.EventExited), tarType...), put("files-put-relative", "422 parameter", "files?path=data", pod(run), tarType...),
		foreign(put("files-put-foreign", in, "files?path=/data", pod(run), tarType...)), reader(put("files-put-reader", in, "files?path=/data", pod(run), tarType...)),
	}
}
