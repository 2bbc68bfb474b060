package scheduler

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// stored is a world with storage of one tier in dc-1, of both in EU-1, and none in dc-bare.
func stored(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 8)
	w.addHost("host-eu", "EU-1", h100, 8)
	w.must(state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-bare", Name: "bare"}})
	w.addBackend("slow", "dc-1", fleet.VolumeStandard)
	w.addBackend("eu-fast", "EU-1", fleet.VolumeFast)
	w.addBackend("eu-slow", "EU-1", fleet.VolumeStandard)
	return w
}

func wantVolume(dc fleet.DataCenterID, gb int) fleet.VolumeRequest {
	return fleet.VolumeRequest{Name: "data", SizeGB: gb, DataCenter: dc}
}

func (w *world) newVolume(req fleet.VolumeRequest) fleet.Volume {
	w.t.Helper()
	view, _, err := w.svc.CreateVolume(context.Background(), member(acme), req)
	if err != nil {
		w.t.Fatal(err)
	}
	return view.Volume
}

// provision plays the storage host of a volume.
func (w *world) provision(host fleet.HostID, reports ...state.VolumeReport) {
	w.t.Helper()
	var h fleet.Host
	w.view(func(v *state.View) { h, _ = v.Host(host) })
	w.must(
		state.SetHostRoles{Host: host, Roles: []fleet.HostRole{fleet.RoleStorage}},
		state.ReportVolumes{Host: host, Epoch: h.Epoch, At: w.clock(), Volumes: reports},
	)
}

func TestAVolumeIsMadeAtOnce(t *testing.T) {
	w := stored(t)
	ctx := context.Background()
	req := wantVolume("EU-1", 100)
	req.Once = &fleet.Once{Key: "k", Fingerprint: []byte("one")}
	view, replayed, err := w.svc.CreateVolume(ctx, member(acme), req)
	v := view.Volume
	if err != nil || replayed || v.State != fleet.VolumeCreating || v.Type != fleet.VolumeStandard || v.Backend != "eu-slow" ||
		!regexp.MustCompile(`^[a-z2-7]{26}$`).MatchString(v.Dir) || v.IDBase < fleet.VolumeIDsFirst || v.CreatedAt != begin() {
		t.Fatalf("%+v, replayed %v: %v", view, replayed, err)
	}
	if !strings.Contains(view.Problem, "not connected") {
		t.Errorf("nobody looks after it, and it says %q", view.Problem)
	}
	again, replayed, err := w.svc.CreateVolume(ctx, member(acme), req)
	if err != nil || !replayed || again.Volume.ID != v.ID {
		t.Errorf("again: %+v %v %v", again, replayed, err)
	}
	w.must(state.PutBackend{Backend: func() fleet.Backend {
		b := w.backend("eu-slow")
		b.Closed = true
		return b
	}()})
	// What was made under a key is told also when it could not be made now.
	again, replayed, err = w.svc.CreateVolume(ctx, member(acme), req)
	if err != nil || !replayed || again.Volume.ID != v.ID {
		t.Errorf("once its backend is closed: %+v %v %v", again, replayed, err)
	}
	bad := req
	bad.SizeGB, bad.Once = 1, &fleet.Once{Key: "k", Fingerprint: []byte("two")}
	_, _, err = w.svc.CreateVolume(ctx, member(acme), bad)
	refused(t, err, fleet.CodeInvalid, "Idempotency-Key")
	bad.Once = &fleet.Once{Key: "k2", Fingerprint: []byte("two")}
	_, _, err = w.svc.CreateVolume(ctx, member(acme), bad)
	refused(t, err, fleet.CodeInvalid, "$.size")
	if n := strings.Count(w.logged(), "network volume created"); n != 1 {
		t.Errorf("%d lines tell of one volume:\n%s", n, w.logged())
	}
}

func (w *world) backend(id fleet.BackendID) (b fleet.Backend) {
	w.t.Helper()
	w.view(func(v *state.View) { b, _ = v.Backend(id) })
	return b
}

func TestRefusalsOfVolumes(t *testing.T) {
	w := stored(t)
	for name, c := range map[string]struct {
		req  fleet.VolumeRequest
		code fleet.Code
		text string
	}{
		"no name":     {fleet.VolumeRequest{SizeGB: 10, DataCenter: "dc-1"}, fleet.CodeInvalid, "$.name"},
		"long name":   {fleet.VolumeRequest{Name: strings.Repeat("ü", 192), SizeGB: 10, DataCenter: "dc-1"}, fleet.CodeInvalid, "$.name"},
		"control":     {fleet.VolumeRequest{Name: "a\nb", SizeGB: 10, DataCenter: "dc-1"}, fleet.CodeInvalid, "$.name"},
		"too small":   {wantVolume("dc-1", 9), fleet.CodeInvalid, "$.size"},
		"too large":   {wantVolume("dc-1", 4097), fleet.CodeInvalid, "$.size"},
		"no center":   {wantVolume("nowhere", 10), fleet.CodeInvalid, "$.dataCenter"},
		"no backend":  {wantVolume("dc-bare", 10), fleet.CodeConflictRule, "dc-bare"},
		"no tier":     {fleet.VolumeRequest{Name: "x", SizeGB: 10, DataCenter: "dc-1", Type: fleet.VolumeFast}, fleet.CodeConflictRule, "HIGH_PERFORMANCE"},
		"unknown one": {fleet.VolumeRequest{Name: "x", SizeGB: 10, DataCenter: "dc-1", Type: "FAST"}, fleet.CodeInvalid, "$.type"},
	} {
		_, _, err := w.svc.CreateVolume(context.Background(), member(acme), c.req)
		if fleet.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
		refused(t, err, c.code, c.text)
	}
	long := wantVolume("dc-1", 10)
	long.Name = strings.Repeat("ü", 191)
	w.newVolume(long)
	w.must(state.UpdateAccount{Account: acme, Prepaid: ptr(true)})
	w.must(state.PutStoragePrices{Prices: fleet.StoragePrices{VolumeFirst: fleet.Dollar}})
	_, _, err := w.svc.CreateVolume(context.Background(), member(acme), wantVolume("dc-1", 10))
	refused(t, err, fleet.CodeNoCredit, "")
}

func TestVolumesGoWhereTheLeastWasPromised(t *testing.T) {
	w := stored(t)
	w.addBackend("also", "dc-1", fleet.VolumeStandard)
	closed := w.backend("slow")
	var got []fleet.BackendID
	for _, gb := range []int{100, 30, 40, 50} {
		got = append(got, w.newVolume(wantVolume("dc-1", gb)).Backend)
	}
	if want := []fleet.BackendID{"also", "slow", "slow", "slow"}; !slices.Equal(got, want) {
		t.Errorf("went to %v, want %v", got, want)
	}
	closed = w.backend("slow")
	closed.Closed = true
	w.must(state.PutBackend{Backend: closed})
	if on := w.newVolume(wantVolume("dc-1", 4096)).Backend; on != "also" {
		t.Errorf("a closed backend got a volume: %s", on)
	}
	view, err := w.svc.Backend(context.Background(), "slow")
	if err != nil || view.Volumes != 3 || view.SizeGB != 120 {
		t.Errorf("%+v %v", view, err)
	}
}

// TestABackendThatCloses closes the backend between the decision and the command: another is taken.
func TestABackendThatCloses(t *testing.T) {
	w := stored(t)
	w.addBackend("also", "dc-1", fleet.VolumeStandard)
	w.before = func() {
		b := w.backend("also")
		b.Closed = true
		w.must(state.PutBackend{Backend: b})
	}
	if on := w.newVolume(wantVolume("dc-1", 10)).Backend; on != "slow" {
		t.Errorf("it went to %s", on)
	}
}

func TestVolumesGrowAndGo(t *testing.T) {
	w := stored(t)
	ctx := context.Background()
	made := w.newVolume(wantVolume("dc-1", 50))
	w.provision("host-a", state.VolumeReport{Volume: made.ID, ProvisionedGB: 50})
	got, err := w.svc.UpdateVolume(ctx, member(acme), made.ID, fleet.VolumeUpdate{Name: ptr("more"), SizeGB: ptr(60)})
	if err != nil || got.Volume.Name != "more" || got.Volume.SizeGB != 60 || got.Volume.ProvisionedGB != 50 || got.Volume.State != fleet.VolumeReady {
		t.Errorf("%+v %v", got, err)
	}
	for name, c := range map[string]struct {
		who    fleet.AccountID
		change fleet.VolumeUpdate
		code   fleet.Code
		text   string
	}{
		"shrink":     {acme, fleet.VolumeUpdate{SizeGB: ptr(59)}, fleet.CodeConflictRule, "shrink"},
		"too large":  {acme, fleet.VolumeUpdate{SizeGB: ptr(5000)}, fleet.CodeInvalid, "$.size"},
		"too small":  {acme, fleet.VolumeUpdate{SizeGB: ptr(0)}, fleet.CodeInvalid, "$.size"},
		"no name":    {acme, fleet.VolumeUpdate{Name: ptr("")}, fleet.CodeInvalid, "$.name"},
		"a stranger": {other, fleet.VolumeUpdate{SizeGB: ptr(70)}, fleet.CodeNotFound, "network volume"},
	} {
		_, err := w.svc.UpdateVolume(ctx, member(c.who), made.ID, c.change)
		if fleet.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
		refused(t, err, c.code, c.text)
	}
	_, err = w.svc.Volume(ctx, member(other), made.ID)
	refused(t, err, fleet.CodeNotFound, "network volume")
	refused(t, w.svc.DeleteVolume(ctx, member(other), made.ID), fleet.CodeNotFound, "network volume")

	req := gpuPod(1)
	req.Network = &fleet.NetworkMount{Volume: made.ID, Path: "/workspace"}
	pod := w.create(req)
	refused(t, w.svc.DeleteVolume(ctx, member(acme), made.ID), fleet.CodeInUse, "in use")
	if _, err := w.svc.ActPod(ctx, member(acme), pod.ID, fleet.ActionTerminate); err != nil {
		t.Fatal(err)
	}
	if err := w.svc.DeleteVolume(ctx, member(acme), made.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.svc.Volume(ctx, member(acme), made.ID)
	refused(t, err, fleet.CodeNotFound, "network volume")
	if list, err := w.svc.Volumes(ctx, member(acme)); err != nil || len(list) != 0 {
		t.Errorf("%v %v", list, err)
	}
	refused(t, w.svc.DeleteBackend(ctx, "slow"), fleet.CodeInUse, "in use")
	w.report(pod.ID, state.ReportGone)
	w.provision("host-a", state.VolumeReport{Volume: made.ID, Gone: true})
	if err := w.svc.DeleteBackend(ctx, "slow"); err != nil {
		t.Error(err)
	}
	for _, line := range []string{"network volume grown", "network volume deleted", "storage backend deleted"} {
		if !strings.Contains(w.logged(), line) {
			t.Errorf("no line says %q", line)
		}
	}
}

// TestABackendThatIsLost deletes one with what nobody has any more, and says in the log what was left on it.
func TestABackendThatIsLost(t *testing.T) {
	w := stored(t)
	ctx := context.Background()
	made := w.newVolume(wantVolume("dc-1", 50))
	refused(t, w.svc.ForceDeleteBackend(ctx, "slow"), fleet.CodeInUse, "in use")
	if err := w.svc.DeleteVolume(ctx, member(acme), made.ID); err != nil {
		t.Fatal(err)
	}
	refused(t, w.svc.DeleteBackend(ctx, "slow"), fleet.CodeInUse, "in use")
	if err := w.svc.ForceDeleteBackend(ctx, "slow"); err != nil {
		t.Fatal(err)
	}
	refused(t, w.svc.ForceDeleteBackend(ctx, "slow"), fleet.CodeNotFound, "backend")
	for _, line := range []string{"storage backend deleted", "its data was not removed", string(made.ID)} {
		if !strings.Contains(w.logged(), line) {
			t.Errorf("no line says %q", line)
		}
	}
}

func TestWhatIsHeardOfAVolume(t *testing.T) {
	w := stored(t)
	ctx := context.Background()
	made := w.newVolume(wantVolume("dc-1", 50))
	w.reach.setStorage("slow", "host-a", map[fleet.VolumeID]string{made.ID: "the server refuses to mount"})
	got, err := w.svc.Volume(ctx, member(acme), made.ID)
	if err != nil || got.Problem != "the server refuses to mount" || got.Used == nil || *got.Used != 7_000_000_000 {
		t.Errorf("%+v %v", got, err)
	}
	backend, err := w.svc.Backend(ctx, "slow")
	if err != nil || backend.Host != "host-a" || !strings.Contains(backend.Problem, string(made.ID)+": the server refuses") {
		t.Errorf("%+v %v", backend, err)
	}
	w.reach.setStorage("slow", "host-a", nil)
	if got, err := w.svc.Volume(ctx, member(acme), made.ID); err != nil || got.Problem != "" || got.Used != nil {
		t.Errorf("while it is being made: %+v %v", got, err)
	}
	if backend, err := w.svc.Backend(ctx, "eu-fast"); err != nil || backend.Host != "" || !strings.Contains(backend.Problem, "EU-1") {
		t.Errorf("%+v %v", backend, err)
	}
	w.provision("host-a", state.VolumeReport{Volume: made.ID, ProvisionedGB: 50}, state.VolumeReport{Volume: made.ID, ReadOnly: ptr(true)})
	if got, err := w.svc.Volume(ctx, member(acme), made.ID); err != nil || !strings.Contains(got.Problem, "read-only") {
		t.Errorf("%+v %v", got, err)
	}
}

func TestPodsWithAVolumeGoWhereItCanBeMounted(t *testing.T) {
	w := stored(t)
	made := w.newVolume(wantVolume("dc-1", 50)) // pods may have it before it is made
	req := gpuPod(1)
	req.Network = &fleet.NetworkMount{Volume: made.ID, Path: "/workspace"}
	w.must(state.UpdateInventory{Host: "host-a", Epoch: 1, At: begin(), Inventory: fleet.Inventory{
		Total: fleet.Resources{MilliCPU: 64_000, MemoryMB: 256_000, DiskGB: 2000}, Volumes: []fleet.BackendKind{fleet.BackendCeph},
		GPUs: []fleet.GPU{{UUID: "host-a-gpu-0", Type: h100, MemoryMB: 80_000}},
	}})
	_, err := w.svc.CreatePod(context.Background(), member(acme), req)
	refused(t, err, fleet.CodeNoCapacity, "no longer any instances")
	var e *fleet.Error
	if !errors.As(err, &e) || !slices.Contains(e.Excluded, fleet.Exclusion{Reason: "cannot mount nfs volumes", Hosts: 1}) {
		t.Errorf("%+v", e)
	}
	w.addHost("host-b", "dc-1", h100, 1)
	if p := w.create(req); p.Host != "host-b" {
		t.Errorf("it is on %s", p.Host)
	}
	// A template's mount is no way around the tier.
	w.must(state.Put[fleet.Template]{Record: fleet.Template{ID: "t", Account: acme, Name: "t", Image: "i", Persistent: &fleet.PersistentMount{SizeGB: 10, Path: "/data"}, CreatedAt: begin()}})
	req.Template, req.Cloud = "t", fleet.CloudCommunity
	_, err = w.svc.CreatePod(context.Background(), member(acme), req)
	refused(t, err, fleet.CodeConflictRule, "network volumes are of the SECURE cloud only")
}

func TestTheCatalogTellsTiersOfVolumes(t *testing.T) {
	w := stored(t)
	closed := w.backend("slow")
	closed.Closed = true
	w.must(state.PutBackend{Backend: closed})
	cat, err := w.svc.Catalog(context.Background(), fleet.CatalogQuery{})
	if err != nil || len(cat.VolumeTypes) != 1 || !slices.Equal(cat.VolumeTypes["EU-1"], []fleet.VolumeType{fleet.VolumeStandard, fleet.VolumeFast}) {
		t.Errorf("%v %v", cat.VolumeTypes, err)
	}
}

func ceph(id fleet.BackendID) fleet.Backend {
	return fleet.Backend{ID: id, DataCenter: "dc-1", Type: fleet.VolumeFast, Kind: fleet.BackendCeph, Ceph: &fleet.CephBackend{
		Monitors: []string{"10.0.0.1:3300"}, FileSystem: "cephfs", Path: "/volumes", User: "gantry", AdminUser: "gantry-admin",
	}}
}

func TestKeysOfBackendsAreSealed(t *testing.T) {
	w := stored(t)
	ctx := context.Background()
	secrets := fleet.BackendSecrets{Key: "plainkey==", AdminKey: "adminkey=="}
	for path, bad := range map[string]fleet.BackendSecrets{
		"$.key": {AdminKey: "a"}, "$.adminKey": {Key: "a"}, "$.key: must": {Key: "a\nkey = b", AdminKey: "a"},
	} {
		_, err := w.svc.CreateBackend(ctx, ceph("ceph"), bad)
		refused(t, err, fleet.CodeInvalid, path)
	}
	_, err := w.svc.CreateBackend(ctx, fleet.Backend{ID: "n", Kind: fleet.BackendNFS}, secrets)
	refused(t, err, fleet.CodeInvalid, "$.key")

	made, err := w.svc.CreateBackend(ctx, ceph("ceph"), secrets)
	if err != nil || made.Backend.Sealed != nil || made.Backend.CreatedAt != begin() {
		t.Fatalf("%+v %v", made, err)
	}
	_, err = w.svc.CreateBackend(ctx, ceph("ceph"), secrets)
	refused(t, err, fleet.CodeExists, "")
	kept := w.backend("ceph")
	if got, err := w.svc.BackendSecrets(&kept); err != nil || got != secrets || strings.Contains(string(kept.Sealed), "plainkey") {
		t.Errorf("opened otherwise than sealed: %v", err)
	}
	stolen := kept
	stolen.ID = "another"
	if _, err := w.svc.BackendSecrets(&stolen); err == nil {
		t.Error("the keys open in another record")
	}
	change := ceph("ceph")
	change.Ceph.Monitors = []string{"10.0.0.2:3300"}
	if _, err := w.svc.UpdateBackend(ctx, change, fleet.BackendSecrets{Key: "newkey=="}); err != nil {
		t.Fatal(err)
	}
	kept = w.backend("ceph")
	if got, err := w.svc.BackendSecrets(&kept); err != nil || got.Key != "newkey==" || got.AdminKey != "adminkey==" || kept.Ceph.Monitors[0] != "10.0.0.2:3300" {
		t.Errorf("%+v %v", kept, err)
	}
	change.Closed = true
	if _, err := w.svc.UpdateBackend(ctx, change, fleet.BackendSecrets{AdminKey: "adminkey=="}); err != nil {
		t.Fatal(err)
	}
	if now := w.backend("ceph"); !now.Closed || string(now.Sealed) != string(kept.Sealed) {
		t.Error("keys that stay are sealed anew, of which every host would be told")
	}
	_, err = w.svc.UpdateBackend(ctx, ceph("none"), secrets)
	refused(t, err, fleet.CodeNotFound, "backend")
	list, err := w.svc.Backends(ctx)
	if err != nil || len(list) != 4 || slices.ContainsFunc(list, func(b fleet.BackendView) bool { return b.Backend.Sealed != nil }) {
		t.Errorf("%+v %v", list, err)
	}
	for _, secret := range []string{"plainkey", "newkey", "adminkey"} {
		if strings.Contains(w.logged(), secret) {
			t.Errorf("the log tells %s", secret)
		}
	}
}

func TestS3Keys(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	made, secret, err := w.svc.CreateS3Key(ctx, member(acme), fleet.S3KeyRequest{Name: "backup", ReadOnly: true, ExpiresAt: begin().Add(time.Hour)})
	if err != nil || !regexp.MustCompile(`^user_[0-9A-Za-z]{27}$`).MatchString(made.ID) || !made.ReadOnly || made.Sealed != nil ||
		!regexp.MustCompile(`^rps_[0-9A-Za-z]{43}$`).MatchString(secret.Reveal()) {
		t.Fatalf("%+v %v", made, err)
	}
	var kept fleet.S3Key
	w.view(func(v *state.View) { kept, _ = state.Find[fleet.S3Key](v, made.ID) })
	if got, err := w.svc.S3Secret(&kept); err != nil || got != secret {
		t.Errorf("opened otherwise than sealed: %v", err)
	}
	stolen := kept
	stolen.Account = other
	if _, err := w.svc.S3Secret(&stolen); err == nil {
		t.Error("it opens for another account")
	}
	_, _, err = w.svc.CreateS3Key(ctx, member(acme), fleet.S3KeyRequest{})
	refused(t, err, fleet.CodeInvalid, "$.name")
	_, _, err = w.svc.CreateS3Key(ctx, member(acme), fleet.S3KeyRequest{Name: "late", ExpiresAt: begin()})
	refused(t, err, fleet.CodeInvalid, "$.expiresAt")
	if list, err := w.svc.S3Keys(ctx, member(acme)); err != nil || len(list) != 1 || list[0].Sealed != nil {
		t.Errorf("%+v %v", list, err)
	}
	refused(t, w.svc.DeleteS3Key(ctx, member(other), made.ID), fleet.CodeNotFound, "")
	if err := w.svc.DeleteS3Key(ctx, member(acme), made.ID); err != nil {
		t.Error(err)
	}
	if list, err := w.svc.S3Keys(ctx, member(acme)); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
	if strings.Contains(w.logged(), secret.Reveal()) {
		t.Error("the log tells the secret")
	}
}

func TestRolesOfAHost(t *testing.T) {
	w := stored(t)
	ctx := context.Background()
	view, err := w.svc.SetHostRoles(ctx, "host-a", []fleet.HostRole{fleet.RoleStorage, fleet.RoleS3, fleet.RoleS3})
	if err != nil || !slices.Equal(view.Host.Roles, []fleet.HostRole{fleet.RoleS3, fleet.RoleStorage}) {
		t.Errorf("%v %v", view.Host.Roles, err)
	}
	_, err = w.svc.SetHostRoles(ctx, "host-a", []fleet.HostRole{"king"})
	refused(t, err, fleet.CodeInvalid, "$.roles")
	_, err = w.svc.SetHostRoles(ctx, "none", nil)
	refused(t, err, fleet.CodeNotFound, "host")
	if view, err := w.svc.SetHostRoles(ctx, "host-a", nil); err != nil || len(view.Host.Roles) != 0 {
		t.Errorf("%v %v", view.Host.Roles, err)
	}
}
