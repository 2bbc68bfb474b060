package volumes

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"gantry/fleet"
)

// TestHowABackendIsReached, by the one who may set quotas only where that is asked for, and never without its keys.
func TestHowABackendIsReached(t *testing.T) {
	far := fleet.Backend{ID: "c", Kind: fleet.BackendCeph, Ceph: &fleet.CephBackend{User: "pods", AdminUser: "quotas"}}
	near, own := fleet.Backend{ID: "l", Kind: fleet.BackendLocal, Local: &fleet.LocalBackend{Path: "/srv"}}, fleet.Backend{ID: "n", Kind: fleet.BackendNFS, NFS: &fleet.NFSBackend{Server: "nfs.example"}}
	own.StoragePath = "/data"
	bare := far
	bare.Ceph = &fleet.CephBackend{User: "pods"}
	keys := fleet.BackendSecrets{Key: "key", AdminKey: "admin"}
	for name, c := range map[string]struct {
		b     *fleet.Backend
		admin bool
		want  string
	}{
		"pods": {&far, false, "pods key"}, "admin": {&far, true, "quotas admin"}, "one user": {&bare, true, "pods admin"},
		"local": {&near, false, "/srv"}, "its own": {&own, false, "nfs.example sized"},
	} {
		got := EncodeBackend(c.b, keys, c.admin)
		text := strings.TrimSpace(got.GetUser() + " " + got.GetKey())
		switch name {
		case "local":
			text = got.GetPath()
		case "its own":
			text = got.GetServer()
		}
		if got.GetSizedByHost() {
			text += " sized"
		}
		if text != c.want || got.GetId() != string(c.b.ID) {
			t.Errorf("%s: %q", name, text)
		}
	}
	opens := Backends{Log: slog.New(slog.DiscardHandler), Secrets: func(*fleet.Backend) (fleet.BackendSecrets, error) { return keys, errors.New("no key") }}
	if got := opens.Open(&far, false); got != nil {
		t.Errorf("without keys: %v", got)
	}
	if opens.Secrets = nil; opens.Open(&near, false) == nil {
		t.Error("what has no keys is not reached")
	}
}
