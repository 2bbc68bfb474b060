package rest_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(backendRows, "201 backend", "200 backends", "204 backend", "422 backend", "409 backend is there", "400 backend in use", "404 data center or host of a backend")
	addRows(roleRows, "200 host roles")
	addRows(s3KeyRows, "201 S3 key", "200 S3 keys", "204 S3 key", "422 expiry in the past", "400 too many S3 keys")
}

const (
	nfsBody  = `{"id":"filer","dataCenterId":"dev-1","kind":"nfs","nfs":{"server":"filer.example","export":"/srv/volumes"}}`
	cephBody = `{"id":"ceph-nvme","dataCenterId":"dev-1","type":"HIGH_PERFORMANCE","kind":"cephfs","key":"c2VjcmV0LWtleQ==","adminKey":"c2VjcmV0LWFkbWlu",` +
		`"cephfs":{"monitors":["10.0.0.11:6789","[fd00::1]:3300"],"fileSystem":"cephfs","user":"gantry","adminUser":"gantry-admin"}}`
	localBody = `{"id":"folder","dataCenterId":"dev-1","kind":"local","local":{"path":"/srv/volumes"},"storageHost":"host0000000001"}`
)

// cephThere makes a backend of the kind cephfs.
func cephThere(t *testing.T, p *plane.Plane) {
	_, err := p.CreateBackend(t.Context(), fleet.Backend{
		ID: "ceph-nvme", DataCenter: "dev-1", Type: fleet.VolumeFast, Kind: fleet.BackendCeph,
		Ceph: &fleet.CephBackend{Monitors: []string{"10.0.0.11:6789"}, FileSystem: "cephfs", Path: "/gantry", User: "gantry", AdminUser: "gantry-admin"},
	}, fleet.BackendSecrets{Key: "c2VjcmV0LWtleQ==", AdminKey: "c2VjcmV0LWFkbWlu"})
	must(t, err)
}

func backendRows() []row {
	const made, wrong, missing, listed, there = "201 backend", "422 backend", "404 data center or host of a backend", "200 backends", "volume-backends/storage-dev-1"
	v := func(name, rule, method, path, body string, setup func(*testing.T, *plane.Plane)) row {
		return operator("backends", name, rule, method, "volume-backends"+path, body, setup)
	}
	add := func(name, rule, body string, change ...string) row {
		return v("add-"+name, rule, "POST", "", strings.NewReplacer(change...).Replace(body), nil)
	}
	patch := func(name, rule, body string, setup func(*testing.T, *plane.Plane)) row {
		return v("patch-"+name, rule, "PATCH", "/ceph-nvme", body, setup)
	}
	of := func(name, rule, method, body string) row { // about a backend that has a volume
		return operator("backends", name, rule, method, there, body, ownVolume)
	}
	looked := func(t *testing.T, p *plane.Plane) {
		ownVolume(t, p)
		p.SetStorageHost(plane.Storage("dev-1"), plane.Host)
	}
	enforced := add("nfs-enforced", made, nfsBody, `"kind"`, `"storageHost":"host0000000001","storagePath":"/srv/volumes","kind"`)
	return []row{
		add("nfs", made, nfsBody), enforced, add("cephfs", made, cephBody), add("local", made, localBody), byUser(add("nfs", "", nfsBody)),
		given(add("again", "409 backend is there", cephBody), cephThere),
		add("no-center", missing, nfsBody, "dev-1", "XX-1"), add("no-host", missing, localBody, "host0000000001", missingID),
		add("nothing", "422 missing field", `{}`), add("unknown", "422 unknown property", nfsBody, `"kind"`, `"secret":1,"kind"`),
		add("id", "422 pattern", nfsBody, `"filer"`, `"Filer"`), add("kind", "422 enum", nfsBody, `"kind":"nfs"`, `"kind":"smb"`), add("tier", "422 enum", cephBody, "HIGH_PERFORMANCE", "FAST"),
		add("export", "422 pattern", nfsBody, "/srv/volumes", "srv"), add("export-unclean", wrong, nfsBody, "/srv/volumes", "/srv/../etc"),
		add("server", "422 pattern", nfsBody, "filer.example", "filer example"), add("types", "422 wrong type", cephBody, `["10.0.0.11:6789","[fd00::1]:3300"]`, `"10.0.0.11"`),
		add("options", wrong, nfsBody, `"server"`, `"options":"nconnect=4,sec=sys","server"`), add("no-monitor", "422 bound", cephBody, `"10.0.0.11:6789","[fd00::1]:3300"`, ""),
		add("monitor", wrong, cephBody, "10.0.0.11:6789", "10.0.0.11"), add("one-user", wrong, cephBody, "gantry-admin", "gantry"),
		add("no-key", wrong, cephBody, `"key":"c2VjcmV0LWtleQ==",`, ""), add("no-admin-key", wrong, cephBody, `"adminKey":"c2VjcmV0LWFkbWlu",`, ""),
		add("key-form", wrong, cephBody, "c2VjcmV0LWtleQ==", `s3cret-value`), add("key-on-nfs", wrong, nfsBody, `"kind"`, `"key":"c2VjcmV0","kind"`),
		add("part-missing", wrong, nfsBody, `,"nfs":{"server":"filer.example","export":"/srv/volumes"}`, ""), add("two-parts", wrong, nfsBody, `"kind"`, `"local":{"path":"/srv"},"kind"`),
		add("path-without-host", wrong, nfsBody, `"kind"`, `"storagePath":"/srv/volumes","kind"`), add("local-without-host", wrong, localBody, `,"storageHost":"host0000000001"`, ""),
		add("host-elsewhere", wrong, localBody, "host0000000001", "host0000000002"),
		v("list", listed, "GET", "", "", looked), byUser(v("list", "", "GET", "", "", nil)), v("get", listed, "GET", "/ceph-nvme", "", cephThere),
		v("get-missing", "404 missing object", "GET", "/nothing", "", nil),
		patch("closed", listed, `{"closed":true}`, cephThere), patch("keys", listed, `{"key":"bmV3LWtleQ==","adminKey":"bmV3LWFkbWlu"}`, cephThere),
		patch("monitors", listed, `{"cephfs":{"monitors":["10.0.0.12:6789"],"fileSystem":"cephfs","path":"/gantry","user":"g2","adminUser":"g2-admin"}}`, cephThere),
		patch("host", listed, `{"storageHost":"host0000000001"}`, cephThere), patch("other-kind", wrong, `{"local":{"path":"/srv"}}`, cephThere),
		patch("kind", "422 unknown property", `{"kind":"nfs"}`, cephThere), patch("missing", "404 missing object", `{"closed":true}`, nil),
		of("patch-with-volumes", listed, "PATCH", `{"nfs":{"server":"10.0.0.5","export":"/srv/storage-dev-1","options":"nconnect=4"},"closed":false}`),
		of("patch-place", "400 backend in use", "PATCH", `{"nfs":{"server":"nfs.example","export":"/srv/other"}}`),
		of("delete-with-volumes", "400 backend in use", "DELETE", ""),
		v("delete", "204 backend", "DELETE", "/ceph-nvme", "", cephThere), v("delete-missing", "404 missing object", "DELETE", "/ceph-nvme", "", nil),
		v("delete-forced", "204 backend", "DELETE", "/ceph-nvme?force=true", "", cephThere), v("delete-forced-missing", "404 missing object", "DELETE", "/ceph-nvme?force=true", "", nil),
	}
}

func roleRows() []row {
	const ok = "200 host roles"
	v := func(name, rule, body string) row { return hostRow("roles-"+name, rule, "PATCH", theHost, body, nil) }
	taken := v("taken", ok, `{"roles":[]}`)
	taken.setup = ownVolume // its host got the role storage
	return []row{
		v("set", ok, `{"roles":["s3","storage"]}`), taken, v("beside-labels", ok, `{"roles":["storage"],"labels":{"rack":"b5"}}`),
		v("unknown", "422 enum", `{"roles":["root"]}`), v("many", "422 bound", `{"roles":["s3","s3","s3"]}`), v("null", "422 null where nothing says so", `{"roles":null}`),
		byUser(v("set", "", `{"roles":["s3"]}`)), hostRow("roles-missing", "404 missing object", "PATCH", noHostID, `{"roles":["s3"]}`, nil),
	}
}

func s3KeyRows() []row {
	v := func(name, rule, method, path, key, body string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "s3-keys", name: name, rule: rule, method: method, path: "/v2/s3-keys" + path, key: key, body: body, setup: setup}
	}
	own := func(t *testing.T, p *plane.Plane) {
		for _, req := range []fleet.S3KeyRequest{{Name: "laptop"}, {Name: "backup", ReadOnly: true, ExpiresAt: p.Now().Add(time.Hour)}} {
			_, _, err := p.CreateS3Key(t.Context(), p.Who(plane.User), req)
			must(t, err)
			p.Advance(time.Minute)
		}
	}
	many := func(t *testing.T, p *plane.Plane) {
		for range 50 {
			_, _, err := p.CreateS3Key(t.Context(), p.Who(plane.User), fleet.S3KeyRequest{Name: "a"})
			must(t, err)
		}
	}
	post := func(name, rule, body string) row { return v("create-"+name, rule, "POST", "", plane.User, body, nil) }
	noS3 := v("no-permission", "403 key without the permission", "GET", "", plane.User, "", func(_ *testing.T, p *plane.Plane) {
		can, _ := fleet.Preset("all")
		can[fleet.GroupS3] = fleet.AccessNone
		p.Restrict(plane.User, can)
	})
	const id, made = "/<s3-key-1>", "201 S3 key"
	return []row{
		v("list", "200 S3 keys", "GET", "", plane.Reader, "", own), v("list-none", "200 S3 keys", "GET", "", plane.Other, "", own), noS3,
		post("made", made, `{"name":"laptop"}`), post("all", made, `{"name":"backup","readOnly":true,"expiresAt":"2100-01-01T00:00:00Z"}`),
		v("create-reader", "403 key without the permission", "POST", "", plane.Reader, `{"name":"a"}`, nil),
		post("nothing", "422 missing field", `{}`), post("empty", "422 bound", `{"name":""}`), post("types", "422 wrong type", `{"name":1,"readOnly":"yes"}`),
		post("past", "422 expiry in the past", `{"name":"a","expiresAt":"2020-01-01T00:00:00Z"}`), post("time", "422 pattern", `{"name":"a","expiresAt":"tomorrow"}`),
		post("secret", "422 unknown property", `{"name":"a","secretAccessKey":"s3cret-value"}`), given(post("many", "400 too many S3 keys", `{"name":"a"}`), many),
		v("delete", "204 S3 key", "DELETE", id, plane.User, "", own), v("delete-foreign", "404 foreign object", "DELETE", id, plane.Other, "", own),
		v("delete-missing", "404 missing object", "DELETE", "/user_none", plane.User, "", own), v("delete-reader", "403 key without the permission", "DELETE", id, plane.Reader, "", own),
	}
}

// TestKeysOfStorageAreShownNowhere makes, changes, refuses and lists backends and S3 keys, and looks for their secrets in
// every answer and in the log: that of an S3 key is in the one answer that made it.
func TestKeysOfStorageAreShownNowhere(t *testing.T) {
	var log bytes.Buffer
	s := newSite(t, func(cfg *rest.Config) {
		cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}, rest.Limits{})
	made := s.ask(t, "POST", "/v2/s3-keys", plane.User, `{"name":"laptop"}`)
	var key struct {
		Key    struct{ ID string }
		Secret string `json:"secretAccessKey"`
	}
	if err := json.Unmarshal([]byte(made.body), &key); err != nil || len(key.Secret) != len("rps_")+43 || len(key.Key.ID) != len("user_")+27 {
		t.Fatalf("%v: %s", err, made.body)
	}
	secrets := []string{key.Secret, "c2VjcmV0LWtleQ==", "c2VjcmV0LWFkbWlu", "bmV3LWtleQ=="}
	const path = "/admin/v1/volume-backends"
	for _, got := range []answer{
		s.ask(t, "POST", path, plane.Operator, cephBody),
		s.ask(t, "POST", path, plane.Operator, cephBody),                                              // 409
		s.ask(t, "POST", path, plane.Operator, strings.Replace(cephBody, `"gantry"`, `"a b"`, 1)),     // 422
		s.ask(t, "POST", path, plane.Operator, strings.Replace(cephBody, `WtleQ=="`, `WtleQ=="x`, 1)), // 400
		s.ask(t, "PATCH", path+"/ceph-nvme", plane.Operator, `{"key":"bmV3LWtleQ=="}`),
		s.ask(t, "GET", path, plane.Operator, ""),
		s.ask(t, "GET", path+"/ceph-nvme", plane.Operator, ""),
		s.ask(t, "GET", "/v2/s3-keys", plane.User, ""),
		s.ask(t, "DELETE", "/v2/s3-keys/"+key.Key.ID, plane.User, ""),
	} {
		for _, secret := range secrets {
			if strings.Contains(got.body, secret) || strings.Contains(log.String(), secret) {
				t.Errorf("%s: %d %s\n%s", got.request, got.status, got.body, &log)
			}
		}
	}
}
