package rest_test

import (
	"strings"
	"testing"

	"gantry/api/limit"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(volumeCreateRows, "201 network volume", "400 no storage of the tier", "replayed create of what is gone")
	addRows(volumeRows, "200 network volumes", "200 network volume changed", "400 network volume shrinks", "204 network volume", "400 network volume in use", "200 link to a file")
	addRows(volumeV1Rows, "v1 list is an array", "v1 network volume", "v1 errors have error and message")
	addRows(volumeElsewhereRows)
}

const volumeID = "/vol00000000001"

// housed makes storage for network volumes in dev-1.
func housed(_ *testing.T, p *plane.Plane) { p.PutBackend("disks", "dev-1", fleet.VolumeStandard) }

// ownVolume makes a network volume of User that its host has made, and one of Other.
func ownVolume(_ *testing.T, p *plane.Plane) {
	p.Provision(p.PutVolume(plane.User, 1, "dev-1"))
	p.PutVolume(plane.Other, 2, "dev-1")
}

// attached makes a network volume of User and a running pod that has it.
func attached(t *testing.T, p *plane.Plane) {
	ownVolume(t, p)
	req := webPod()
	req.Network = &fleet.NetworkMount{Volume: "vol00000000001", Path: "/workspace"}
	request(t, p, req, run)
}

func volumeRow(name, rule, method, path, key, body string, setup func(*testing.T, *plane.Plane)) row {
	return row{topic: "volumes", name: name, rule: rule, method: method, path: "/v2/network-volumes" + path, key: key, body: body, setup: setup}
}

func volumeCreateRows() []row {
	const made, sample = "201 network volume", `{"name":"datasets","size":100,"dataCenter":"dev-1"}`
	v := func(name, rule, body string) row {
		return volumeRow("create-"+name, rule, "POST", "", plane.User, body, housed)
	}
	sized := func(name, rule, size string) row {
		return v(name, rule, strings.Replace(sample, "100", size, 1))
	}
	named := func(name, rule, text string) row {
		return v("name-"+name, rule, strings.Replace(sample, `"datasets"`, text, 1))
	}
	tiered := func(name, rule, tier string, setup func(*testing.T, *plane.Plane)) row {
		return given(v("tier-"+name, rule, strings.Replace(sample, "}", tier+"}", 1)), setup)
	}
	onlyFast := func(_ *testing.T, p *plane.Plane) { p.PutBackend("nvme", "dev-1", fleet.VolumeFast) }
	both := func(t *testing.T, p *plane.Plane) { housed(t, p); onlyFast(t, p) }
	closed := func(t *testing.T, p *plane.Plane) {
		housed(t, p)
		b, err := p.Backend(t.Context(), "disks")
		must(t, err)
		b.Backend.Closed = true
		_, err = p.UpdateBackend(t.Context(), b.Backend, fleet.BackendSecrets{})
		must(t, err)
	}
	broke := func(t *testing.T, p *plane.Plane) { housed(t, p); p.SetBroke(plane.User, true) }
	once := func(name, rule string) row {
		r := v(name, rule, sample)
		r.header = []string{"Idempotency-Key", "a"}
		return r
	}
	again, other, gone := once("once-again", "creates happen once"), once("once-other", "422 idempotency key of another request"),
		once("once-gone", "replayed create of what is gone")
	again.before, other.warm = 2, strings.Replace(sample, "100", "101", 1)
	gone.setup = func(t *testing.T, p *plane.Plane) {
		housed(t, p)
		s := newSiteOf(t, p)
		s.ask(t, "POST", "/v2/network-volumes", plane.User, sample, "Idempotency-Key", "a")
		must(t, p.DeleteVolume(t.Context(), p.Who(plane.User), fleet.VolumeID(p.Meant("<volume-1>"))))
	}
	reader := v("reader", "403 key without the permission", sample)
	reader.key = plane.Reader
	return []row{
		v("made", made, sample), sized("least", made, "10"), sized("most", made, "4096"),
		sized("too-small", "422 bound", "9"), sized("too-large", "422 bound", "4097"),
		sized("size-fraction", "422 whole number", "10.5"), sized("size-text", "422 wrong type", `"100"`), sized("size-null", "422 null where nothing says so", "null"),
		named("empty", "422 bound", `""`), named("long", "422 bound", `"`+strings.Repeat("a", 192)+`"`), named("control", "422 pattern", `"a\u0007"`),
		v("nothing", "422 missing field", `{}`), v("unknown", "422 unknown property", strings.Replace(sample, "dataCenter", "dataCenterId", 1)),
		v("no-center", "422 unknown catalog id", strings.Replace(sample, "dev-1", "XX-1", 1)),
		v("no-storage", "400 no storage of the tier", strings.Replace(sample, "dev-1", "dev-2", 1)),
		tiered("fast", made, `,"type":"HIGH_PERFORMANCE"`, both), tiered("first", made, "", both), tiered("only-fast", made, "", onlyFast),
		tiered("lacking", "400 no storage of the tier", `,"type":"HIGH_PERFORMANCE"`, housed), tiered("closed", "400 no storage of the tier", "", closed),
		tiered("unknown", "422 enum", `,"type":"standard"`, housed),
		given(v("no-money", "402 low balance", sample), broke),
		once("once", "creates happen once"), again, other, gone, reader,
	}
}

func volumeRows() []row {
	const list, changed, shrinks, deleted = "200 network volumes", "200 network volume changed", "400 network volume shrinks", "204 network volume"
	get := func(name string, setup func(*testing.T, *plane.Plane)) row {
		return volumeRow("get-"+name, list, "GET", volumeID, plane.Reader, "", setup)
	}
	patch := func(name, rule, body string) row {
		return volumeRow("patch-"+name, rule, "PATCH", volumeID, plane.User, body, ownVolume)
	}
	remove := func(name, rule, key string, setup func(*testing.T, *plane.Plane)) row {
		return volumeRow("delete-"+name, rule, "DELETE", volumeID, key, "", setup)
	}
	seen := func(used int64, problem string) func(*testing.T, *plane.Plane) {
		return func(t *testing.T, p *plane.Plane) { ownVolume(t, p); p.SetUsed("vol00000000001", used, problem) }
	}
	full := func(t *testing.T, p *plane.Plane) {
		ownVolume(t, p)
		p.SetReadOnly("vol00000000001", true)
	}
	creating := func(_ *testing.T, p *plane.Plane) {
		p.PutVolume(plane.User, 1, "dev-1")
		p.SetStorageHost(plane.Storage("dev-1"), plane.Host)
	}
	unheard := func(_ *testing.T, p *plane.Plane) { p.PutVolume(plane.User, 1, "dev-1") }
	released := func(t *testing.T, p *plane.Plane) {
		attached(t, p)
		act(t, p, fleet.PodID(p.Meant(podID)), fleet.ActionTerminate)
	}
	twice := func(t *testing.T, p *plane.Plane) {
		ownVolume(t, p)
		must(t, p.DeleteVolume(t.Context(), p.Who(plane.User), "vol00000000001"))
	}
	noVolumes := func(t *testing.T, p *plane.Plane) {
		ownVolume(t, p)
		can, _ := fleet.Preset("all")
		can[fleet.GroupVolumes] = fleet.AccessNone
		p.Restrict(plane.User, can)
	}
	foreign := patch("foreign", "404 foreign object", `{"size":200}`)
	foreign.key = plane.Other
	link := func(name, rule, query, key string) row {
		return volumeRow("link-"+name, rule, "GET", volumeID+"/link?"+query, key, "", ownVolume)
	}
	const linked = "200 link to a file"
	return []row{
		link("list", linked, "do=list", plane.Reader), link("list-folder", linked, "do=list&key=a%20b%2F&cursor=next", plane.Reader), link("get", linked, "do=get&key=data%2Fx&expiresIn=60", plane.Reader),
		link("put", linked, "do=put&key=data%2Fx", plane.User), link("delete", linked, "do=delete&key=data%2F", plane.User),
		link("put-reader", "403 key without the permission", "do=put&key=x", plane.Reader), link("up", "422 parameter", "do=get&key=..%2Fx", plane.User),
		link("none", "422 parameter", "do=get", plane.User), link("what", "422 parameter", "do=burn&key=x", plane.User), link("long", "422 parameter", "do=get&key=x&expiresIn=3601", plane.User),
		link("foreign", "404 foreign object", "do=list", plane.Other),
		volumeRow("list", list, "GET", "", plane.Reader, "", ownVolume), volumeRow("list-none", list, "GET", "", plane.User, "", nil),
		volumeRow("list-no-permission", "403 key without the permission", "GET", "", plane.User, "", noVolumes),
		get("ready", seen(42_000_000_000, "")), get("creating", creating), get("not-heard", unheard), get("full", full),
		get("troubled", seen(1, "the storage does not answer")),
		volumeRow("get-foreign", "404 foreign object", "GET", volumeID, plane.Other, "", ownVolume),
		volumeRow("get-missing", "404 missing object", "GET", "/"+missingID, plane.User, "", ownVolume),
		patch("name", changed, `{"name":"corpus"}`), patch("grow", changed, `{"size":4096}`), patch("both", changed, `{"name":"corpus","size":101}`),
		patch("same", changed, `{"size":100}`), patch("nothing", changed, `{}`),
		patch("shrink", shrinks, `{"size":99}`), patch("shrink-and-name", shrinks, `{"name":"corpus","size":10}`),
		patch("too-small", "422 bound", `{"size":9}`), patch("too-large", "422 bound", `{"size":4097}`), patch("empty-name", "422 bound", `{"name":""}`),
		patch("types", "422 wrong type", `{"name":1,"size":"200"}`), patch("null", "422 null where nothing says so", `{"name":null,"size":null}`),
		patch("center", "422 unknown property", `{"dataCenter":"dev-2","type":"STANDARD"}`), foreign,
		remove("one", deleted, plane.User, ownVolume), remove("attached", "400 network volume in use", plane.User, attached), remove("released", deleted, plane.User, released),
		remove("twice", "404 missing object", plane.User, twice), remove("foreign", "404 foreign object", plane.Other, ownVolume),
		remove("reader", "403 key without the permission", plane.Reader, ownVolume),
	}
}

func volumeV1Rows() []row {
	const one, errs, sample = "v1 network volume", "v1 errors have error and message", `{"name":"datasets","size":100,"dataCenterId":"dev-1"}`
	v := func(name, rule, method, path, body string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "volumes-v1", name: name, rule: rule, method: method, path: "/v1" + path, key: plane.User, body: body, setup: setup}
	}
	const all, id = "/networkvolumes", "/networkvolumes" + volumeID
	again := v("create-once-again", "creates happen once", "POST", all, sample, housed)
	again.header, again.before = []string{"Idempotency-Key", "a"}, 1
	stranger, reader, often := v("no-key", errs, "GET", all, "", nil), v("reader", errs, "POST", all, sample, housed), v("too-often", errs, "GET", all, "", nil)
	stranger.key, reader.key, often.before = "", plane.Reader, 1
	often.config = func(cfg *rest.Config) { cfg.Rates = limit.Quotas{Minute: 1} }
	broken := v("broken", errs, "GET", "/networkvolumes/x", "", nil)
	broken.setup = func(_ *testing.T, p *plane.Plane) { p.SetDown(true) }
	return []row{
		v("list", "v1 list is an array", "GET", all, "", ownVolume), v("list-none", "v1 list is an array", "GET", all, "", nil),
		v("create", one, "POST", all, sample, housed), again,
		v("create-small", errs, "POST", all, strings.Replace(sample, "100", "9", 1), housed), v("create-large", errs, "POST", all, strings.Replace(sample, "100", "4097", 1), housed),
		v("create-v2-name", errs, "POST", all, strings.Replace(sample, "dataCenterId", "dataCenter", 1), housed),
		v("create-no-storage", errs, "POST", all, strings.Replace(sample, "dev-1", "dev-2", 1), housed),
		v("create-no-money", errs, "POST", all, sample, func(t *testing.T, p *plane.Plane) { housed(t, p); p.SetBroke(plane.User, true) }),
		v("get", one, "GET", id, "", ownVolume), v("patch", one, "PATCH", id, `{"size":200}`, ownVolume), v("update", one, "POST", id+"/update", `{"name":"corpus"}`, ownVolume),
		v("update-shrink", errs, "POST", id+"/update", `{"size":99}`, ownVolume), v("update-unknown", errs, "POST", id+"/update", `{"dataCenterId":"dev-2"}`, ownVolume),
		v("delete", "204 network volume", "DELETE", id, "", ownVolume), v("delete-attached", errs, "DELETE", id, "", attached), v("missing", errs, "GET", id, "", nil),
		stranger, reader, often, broken,
		v("body", errs, "POST", all, "{", nil), v("path", errs, "GET", "/volumes", "", nil), v("method", errs, "PUT", all, sample, nil),
	}
}

// volumeElsewhereRows are those of other routes that tell of network volumes.
func volumeElsewhereRows() []row {
	both := func(_ *testing.T, p *plane.Plane) {
		p.PutBackend("nvme", "dev-1", fleet.VolumeFast)
		p.PutBackend("disks", "dev-1", fleet.VolumeStandard)
		p.PutBackend("more-disks", "dev-2", fleet.VolumeStandard)
	}
	center := func(name, query string) row {
		return given(catalogRow("volumes-"+name, "data center filters", "datacenters"+query), both)
	}
	shown := row{topic: "records", name: "network-volume", rule: "200 pod record", method: "GET", path: "/v2/pods/" + podID, key: plane.User, setup: attached}
	mine := row{topic: "lists", name: "by-own-volume", rule: "list filters", method: "GET", path: "/v2/pods?networkVolumeId=vol00000000001", key: plane.User, ids: true}
	mine.setup = func(t *testing.T, p *plane.Plane) { attached(t, p); makePod(t, p) }
	merged := fromTemplate("network-beside-persistent", "template merge", `,"mounts":{"network":[{"volumeId":"vol00000000001","path":"/workspace"}]}`, nil)
	merged.setup = func(t *testing.T, p *plane.Plane) {
		ownVolume(t, p)
		template(t, p, plane.User, func(in *fleet.Template) { in.Persistent = &fleet.PersistentMount{SizeGB: 30, Path: "/data"} })
	}
	deleted := create("mounts", "network-deleted", "404 unknown reference names the field", with(`"mounts":{"network":[{"volumeId":"vol00000000001","path":"/workspace"}]}`))
	deleted.setup = func(t *testing.T, p *plane.Plane) {
		ownVolume(t, p)
		must(t, p.DeleteVolume(t.Context(), p.Who(plane.User), "vol00000000001"))
	}
	return []row{
		center("of-all", ""), center("standard", "?networkVolumeTypes=STANDARD"), center("both", "?networkVolumeTypes=STANDARD,HIGH_PERFORMANCE"),
		given(catalogRow("volumes-one", "data center filters", "datacenters/dev-2"), both), shown, mine, merged, deleted,
	}
}
