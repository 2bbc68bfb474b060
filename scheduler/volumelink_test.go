package scheduler

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

func TestALinkMayDoWhatItSaysAndNoMore(t *testing.T) {
	w := stored(t)
	ctx := context.Background()
	v := w.newVolume(wantVolume("EU-1", 10))
	id := string(v.ID)
	link := func(act fleet.LinkAct, key string) (fleet.VolumeLink, error) {
		return w.svc.LinkVolume(ctx, member(acme), v.ID, fleet.VolumeLinkRequest{Act: act, Key: key, Life: time.Minute})
	}
	for act, want := range map[fleet.LinkAct]struct {
		key, method, path string
		readOnly          bool
	}{
		fleet.LinkList: {"a b/", "GET", "/" + id + "/", true}, fleet.LinkGet: {"a b/c", "GET", "/" + id + "/a%20b/c", true},
		fleet.LinkPut: {"new/", "PUT", "/" + id + "/new/", false}, fleet.LinkDelete: {"c", "DELETE", "/" + id + "/c", false},
	} {
		got, err := link(act, want.key)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(got.URL.Reveal())
		if err != nil || got.Method != want.method || u.Scheme+"://"+u.Host != "https://s3.test" || u.EscapedPath() != want.path || !got.ExpiresAt.Equal(begin().Add(time.Minute)) {
			t.Errorf("%s: %+v, %s", act, got, u)
		}
		if u.Query().Get("X-Amz-Expires") != "60" || act == fleet.LinkList && u.Query().Get("prefix") != want.key {
			t.Errorf("%s: %s", act, u.RawQuery)
		}
		access, _, _ := strings.Cut(u.Query().Get("X-Amz-Credential"), "/")
		grant, ok := w.svc.VolumeGrant(access)
		if !ok || len(access) > 64 || grant.Account != acme || grant.Volume != v.ID || grant.ReadOnly != want.readOnly || grant.ExpiresAt.Sub(got.ExpiresAt) < 0 || grant.ExpiresAt.Sub(got.ExpiresAt) > linkKeyEvery {
			t.Errorf("%s: %s grants %+v", act, access, grant)
		}
		for name, forged := range map[string]string{
			"another account": strings.Replace(access, string(acme), string(other), 1), "another volume": strings.Replace(access, id, fleet.NewID(), 1), "may write": strings.Replace(strings.Replace(access, ".r.", ".x.", 1), ".w.", ".r.", 1),
			"no MAC": access[:strings.LastIndex(access, ".")+1], "an end of its own": access[:len(access)-1] + "0", "a key pair": "user_000000000000000000000000000", "nothing": "",
		} {
			if grant, ok := w.svc.VolumeGrant(forged); ok {
				t.Errorf("%s: %s grants %+v", name, forged, grant)
			}
		}
	}
	for _, key := range []string{"", "/a", "a//b", "a/../b", "..", "./a", "a\x00b", strings.Repeat("k", 1025)} {
		_, err := link(fleet.LinkGet, key)
		refused(t, err, fleet.CodeInvalid, "query.key")
	}
	_, err := link(fleet.LinkList, "no-folder")
	refused(t, err, fleet.CodeInvalid, "query.key")
	_, err = w.svc.LinkVolume(ctx, member(other), v.ID, fleet.VolumeLinkRequest{Act: fleet.LinkList, Life: time.Minute})
	refused(t, err, fleet.CodeNotFound, "")
	reader := member(acme)
	reader.Can, _ = fleet.Preset("readOnly")
	_, err = w.svc.LinkVolume(ctx, reader, v.ID, fleet.VolumeLinkRequest{Act: fleet.LinkDelete, Key: "c", Life: time.Minute})
	refused(t, err, fleet.CodeForbidden, "s3:write")
	w.svc.S3URLs = nil
	_, err = link(fleet.LinkGet, "c")
	refused(t, err, fleet.CodeConflictRule, "--s3-url")
}
