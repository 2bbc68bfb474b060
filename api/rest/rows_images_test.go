package rest_test

import (
	"testing"

	"gantry/test/plane"
)

func init() { addRows(imageRows, "200 images", "202 prefetch") }

func imageRows() []row {
	stocked := func(_ *testing.T, p *plane.Plane) {
		p.Have(plane.Host, "docker.io/library/busybox:latest", "ghcr.io/x/y:1")
	}
	get := func(name, rule, query string) row {
		return operator("images", "list"+name, rule, "GET", "images"+query, "", stocked)
	}
	post := func(name, rule, body string, setup func(*testing.T, *plane.Plane)) row {
		return operator("images", "prefetch-"+name, rule, "POST", "images/prefetch", body, setup)
	}
	const ok, image = "202 prefetch", `{"image":"busybox"}`
	noAPI := post("reader", "403 key without the permission", image, nil)
	noAPI.key = plane.User
	return []row{
		get("", "200 images", ""),
		get("-one", "200 images", "?image=busybox"),
		get("-host", "200 images", "?hostId=host0000000002&image=ghcr.io/x/nothing:1"),
		get("-unknown-host", "404 missing object", "?hostId="+missingID),
		get("-bad-image", "422 parameter", "?image=A%20B"),
		byUser(get("", "", "")),
		post("all", ok, image, stocked),
		post("hosts", ok, `{"image":"busybox:1","hostIds":["host0000000002"]}`, nil),
		post("centers", ok, `{"image":"ghcr.io/x/y:1","dataCenterIds":["dev-1"],"hostIds":[]}`, nil),
		post("away", ok, image, unreachable(plane.CommunityHost)),
		noAPI,
		post("unknown-host", "404 missing object", `{"image":"busybox","hostIds":["`+missingID+`"]}`, nil),
		post("unknown-center", "404 missing object", `{"image":"busybox","dataCenterIds":["nowhere"]}`, nil),
		post("no-image", "422 missing field", `{"hostIds":["host0000000001"]}`, nil),
		post("bad-image", "422 pattern", `{"image":"Not An Image"}`, nil),
		post("empty-image", "422 bound", `{"image":""}`, nil),
		post("null-hosts", "422 null where nothing says so", `{"image":"busybox","hostIds":null}`, nil),
		post("number", "422 wrong type", `{"image":5}`, nil),
		post("unknown", "422 unknown property", `{"image":"busybox","force":true}`, nil),
	}
}
