package dispatch

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/feed/s3"
	"gantry/scheduler/state"
)

// One host looks after a backend: the first of those that may; when it leaves the next is told, and what lost the job
// is told too.
func TestOneHostLooksAfterABackend(t *testing.T) {
	y := newYard(t)
	b := ceph("fast")
	y.do(state.PutBackend{Backend: b, New: true})
	second, bystander := y.join("host2", fleet.RoleStorage).connect(), y.join("host9").connect()
	if root := second.is("fast:").GetRoots()[0]; root.GetBackend().GetUser() != "quotas" || root.GetBackend().GetKey() != "admin-key" {
		t.Error("it has not the keys that set quotas")
	}
	bystander.is("") // it may have had the job before
	if y.storage.StorageHost("fast") != "host2" || y.storage.StorageHost("none") != "" {
		t.Errorf("%q looks after it", y.storage.StorageHost("fast"))
	}
	y.addVolume("vol1", &b, 10)
	second.is("fast: vol1=10")
	first := y.join("host1", fleet.RoleStorage).connect()
	first.is("fast: vol1=10")
	second.is("")
	second.says(made("vol1", 10)) // too late: it is another's job
	first.says(&agentrpc.StorageReport{VolumeId: "vol1", Problem: "no monitor answers"}, made("none", 10))
	y.soon("its problem is known", func() bool { _, p := y.storage.SeenVolume("vol1"); return p == "no monitor answers" })
	if r := y.reports("vol1"); len(r) > 0 {
		t.Errorf("recorded %v", r)
	}
	first.leave()
	second.is("fast: vol1=10")
	second.says(made("vol1", 11), made("vol1", 10), made("vol1", 10))
	second.is("fast:")
	if v, _ := y.volume(); v.State != fleet.VolumeReady || v.ProvisionedGB != 10 {
		t.Errorf("%+v", v)
	}
	if used, problem := y.storage.SeenVolume("vol1"); used != nil || problem != "" {
		t.Errorf("%v %q", used, problem)
	}
	y.do(state.UpdateVolume{Account: "acme", Volume: "vol1", SizeGB: ptr(20), At: time.Now()})
	second.is("fast: vol1=20")
	y.do(state.SetHostRoles{Host: "host2"})
	second.is("")
	if strings.Contains(y.said.String(), "admin-key") || strings.Contains(y.said.String(), "plain-key") {
		t.Error("the log tells keys")
	}
}

// A volume's data stays until no host can have a pod with it.
func TestAVolumeIsRemovedWhenNoPodHasIt(t *testing.T) {
	y := newYard(t)
	b := nfs("slow")
	b.StorageHost, b.StoragePath = "host1", "/export"
	g := y.join("host1", fleet.RoleStorage).connect()
	y.do(state.PutBackend{Backend: b, New: true})
	if root := g.is("slow:").GetRoots()[0]; root.GetOwnDir() != "/export" || !root.GetFresh() || !root.GetBackend().GetSizedByHost() || root.GetBackend().GetPath() != "/srv/slow" {
		t.Errorf("%v", root)
	}
	y.addVolume("vol1", &b, 10)
	pod := fleet.Pod{
		ID: "pod1", Account: "acme", Host: "host1", DataCenter: "dc-1", Need: fleet.Resources{MilliCPU: 1000, MemoryMB: 1000, DiskGB: 10}, CreatedAt: time.Now(),
		Spec: fleet.PodSpec{
			Name: "p", Image: "i", Cloud: fleet.CloudSecure, DiskGB: 10, CPU: &fleet.CPURequest{Flavor: "f", VCPU: 1, MemoryGB: 1},
			Network: &fleet.NetworkMount{Volume: "vol1", Path: "/workspace"},
		},
	}
	y.do(state.CreatePods{Pods: []state.NewPod{{Pod: pod, HostEpoch: 1}}})
	order := g.order("pod1")
	if v := order.GetVolume(); v.GetReady() || v.GetPath() != "/workspace" || v.GetVolumeId() != "vol1" || v.GetBackend().GetServer() != "nfs.example" ||
		v.GetIdBase() < fleet.VolumeIDsFirst || len(v.GetDir()) != 26 || !v.GetBackend().GetSizedByHost() {
		t.Errorf("ordered %v", v)
	}
	g.says(made("vol1", 10))
	if v := g.order("pod1").GetVolume(); !v.GetReady() || v.GetReadOnly() {
		t.Errorf("once it is made: %v", v)
	}
	y.do(state.ActPod{Account: "acme", Pod: "pod1", Action: fleet.ActionTerminate, At: time.Now()})
	if order := g.order("pod1"); order.GetVolume() != nil {
		t.Errorf("a pod that is to go needs no volume: %v", order)
	}
	y.do(state.DeleteVolume{Account: "acme", Volume: "vol1", At: time.Now()})
	y.addVolume("vol2", &b, 10) // so that there is something to tell
	if g.is("slow: vol2=10").GetRoots()[0].GetFresh() {
		t.Error("the marker of a backend that has held a volume may be written again")
	}
	y.do(state.ReportPods{Host: "host1", Epoch: 1, At: time.Now(), Reports: []state.PodReport{{Pod: "pod1", Incarnation: 1, Event: state.ReportGone, At: time.Now()}}})
	g.is("slow: vol1=10- vol2=10")
	g.says(&agentrpc.StorageReport{VolumeId: "vol1", Gone: true}, made("vol2", 10))
	g.is("slow:")
	if _, there := y.volume(); there {
		t.Error("its record is still there")
	}
}

// What only measures is read-only from 105 % on until it holds less than its size, or has grown.
func TestAMeasuredVolumeThatHoldsTooMuchIsReadOnly(t *testing.T) {
	y := newYard(t)
	b := nfs("slow")
	y.do(state.PutBackend{Backend: b, New: true})
	g := y.join("host1", fleet.RoleStorage).connect()
	y.addVolume("vol1", &b, 10)
	g.is("slow: vol1=10")
	g.says(made("vol1", 10))
	g.is("slow: vol1=10?")
	measured := func(used int64) { g.says(&agentrpc.StorageReport{VolumeId: "vol1", UsedBytes: used, Measured: true}) }
	readOnlyIs := func(want bool) {
		t.Helper()
		y.soon(fmt.Sprint("read-only is ", want), func() bool { v, _ := y.volume(); return v.ReadOnly == want })
	}
	usedIs := func(want int64) {
		t.Helper()
		y.soon("it was measured", func() bool { used, _ := y.storage.SeenVolume("vol1"); return used != nil && *used == want })
	}
	measured(10_499_999_999)
	usedIs(10_499_999_999)
	if r := y.reports("vol1"); len(r) != 1 {
		t.Errorf("recorded %v", r)
	}
	measured(10_500_000_000)
	readOnlyIs(true)
	measured(10_000_000_000)
	usedIs(10_000_000_000)
	if v, _ := y.volume(); !v.ReadOnly {
		t.Error("it holds its size still, and is writable")
	}
	measured(9_999_999_999)
	readOnlyIs(false)
	measured(1 << 62)
	readOnlyIs(true)
	measured(11_000_000_000)
	usedIs(11_000_000_000)
	y.do(state.UpdateVolume{Account: "acme", Volume: "vol1", SizeGB: ptr(12), At: time.Now()})
	readOnlyIs(false) // what it held is known
	if used, _ := y.storage.SeenVolume("vol1"); used == nil || *used != 11_000_000_000 {
		t.Errorf("used %v", used)
	}
}

func TestS3AccessOfAHost(t *testing.T) {
	y := newYard(t)
	b, measured := ceph("fast"), nfs("slow")
	server, other := y.join("host1", fleet.RoleS3, fleet.RoleStorage).connect(), y.join("host2", fleet.RoleStorage)
	y.do(state.PutBackend{Backend: b, New: true}, state.PutBackend{Backend: measured, New: true})
	y.addVolume("vol1", &b, 10)
	y.addVolume("vol2", &measured, 20)
	server.is("fast: vol1=10 slow: vol2=20")
	server.says(made("vol1", 10))
	server.is("fast: slow: vol2=20")
	const secret = "rps_secret"
	access, late := "user_"+strings.Repeat("a", 27), "user_"+strings.Repeat("b", 27)
	now := time.Now()
	for id, key := range map[string]fleet.S3Key{access: {ReadOnly: true}, late: {ExpiresAt: now.Add(-time.Minute)}} {
		key.ID, key.Account, key.Name, key.Sealed, key.CreatedAt = id, "acme", "k", []byte(secret), now.Add(-time.Hour)
		y.do(state.Put[fleet.S3Key]{Record: key})
	}
	date := now.UTC().Format("20060102")
	ask := func(g *guest, change func(*agentrpc.S3AccessRequest)) (*agentrpc.S3AccessResponse, error) {
		in := &agentrpc.S3AccessRequest{AccessKey: access, Date: date, Region: "DC-1"}
		change(in)
		return g.client.S3Access(y.ctx, in)
	}
	got, err := ask(server, func(*agentrpc.S3AccessRequest) {})
	check(t, err)
	want := []byte("AWS4" + secret)
	for _, part := range []string{date, "DC-1", "s3", "aws4_request"} {
		mac := hmac.New(sha256.New, want)
		mac.Write([]byte(part))
		want = mac.Sum(nil)
	}
	if got.GetAccountId() != "acme" || !got.GetReadOnly() || !bytes.Equal(got.GetSigningKey(), want) || len(got.GetVolumes()) != 1 {
		t.Fatalf("got %v", got)
	}
	if v := got.GetVolumes()[0]; v.GetVolume().GetVolumeId() != "vol1" || v.GetVolume().GetBackend().GetKey() != "plain-key" ||
		v.GetVolume().GetBackend().GetUser() != "pods" || !v.GetVolume().GetReady() || v.GetSizeGb() != 10 || v.GetName() != "data" {
		t.Errorf("got %v", v)
	}
	for name, c := range map[string]struct {
		of     *guest
		change func(*agentrpc.S3AccessRequest)
		code   codes.Code
	}{
		"no role":   {other, func(*agentrpc.S3AccessRequest) {}, codes.PermissionDenied},
		"unknown":   {server, func(in *agentrpc.S3AccessRequest) { in.AccessKey = "user_" + strings.Repeat("c", 27) }, codes.NotFound},
		"no key":    {server, func(in *agentrpc.S3AccessRequest) { in.AccessKey = "" }, codes.NotFound},
		"expired":   {server, func(in *agentrpc.S3AccessRequest) { in.AccessKey = late }, codes.NotFound},
		"elsewhere": {server, func(in *agentrpc.S3AccessRequest) { in.Region = "us-east-1" }, codes.InvalidArgument},
		"old":       {server, func(in *agentrpc.S3AccessRequest) { in.Date = now.UTC().AddDate(0, 0, -4).Format("20060102") }, codes.InvalidArgument},
		"early":     {server, func(in *agentrpc.S3AccessRequest) { in.Date = now.UTC().AddDate(0, 0, 3).Format("20060102") }, codes.InvalidArgument},
		"no date":   {server, func(in *agentrpc.S3AccessRequest) { in.Date = "today" }, codes.InvalidArgument},
	} {
		if _, err := ask(c.of, c.change); status.Code(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Links have keys that no record is of, each for one volume.
	grants := map[string]fleet.VolumeGrant{
		"link.here": {Account: "acme", Volume: "vol1", ExpiresAt: now.Add(time.Minute), Secret: "s"}, "link.late": {Account: "acme", Volume: "vol1", ExpiresAt: now.Add(-time.Minute), Secret: "s"},
		"link.gone": {Account: "nobody", Volume: "vol1", ExpiresAt: now.Add(time.Minute), Secret: "s"}, "link.elsewhere": {Account: "acme", Volume: "vol9", ReadOnly: true, ExpiresAt: now.Add(time.Minute), Secret: "s"},
	}
	y.server.S3.(*s3.Keys).Grant = func(access string) (fleet.VolumeGrant, bool) { g, ok := grants[access]; return g, ok }
	linked := func(access string) (*agentrpc.S3AccessResponse, error) {
		return ask(server, func(in *agentrpc.S3AccessRequest) { in.AccessKey = access })
	}
	if got, err := linked("link.here"); err != nil || got.GetReadOnly() || len(got.GetVolumes()) != 1 || got.GetExpiresNs() != now.Add(time.Minute).UnixNano() || bytes.Equal(got.GetSigningKey(), want) {
		t.Errorf("a link: %v %v", got, err)
	}
	if got, err := linked("link.elsewhere"); err != nil || !got.GetReadOnly() || len(got.GetVolumes()) != 0 {
		t.Errorf("a link to another volume: %v %v", got, err)
	}
	for _, access := range []string{"link.late", "link.gone", "link.made.up"} {
		if _, err := linked(access); status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v", access, err)
		}
	}
	y.do(state.SuspendAccount{Account: "acme", Reason: "unpaid", At: now})
	for _, access := range []string{access, "link.here"} {
		if _, err := linked(access); status.Code(err) != codes.NotFound {
			t.Errorf("%s of a suspended account: %v", access, err)
		}
	}
	y.do(state.SuspendAccount{Account: "acme", Resume: true, At: now})
	// Who asks too often is refused before it costs a round of the members, and takes nothing from others.
	for _, id := range []fleet.HostID{"host1", ""} {
		in := &agentrpc.S3AccessRequest{AccessKey: access, Date: date, Region: "dc-1"}
		for y.server.S3.Admit(id, in, now.Add(time.Hour)) == nil { // nothing comes back until then
		}
	}
	rounds := y.barriers.Load()
	for _, g := range []*guest{server, other} {
		if _, err := ask(g, func(*agentrpc.S3AccessRequest) {}); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("too often: %v", err)
		}
	}
	y.do(state.SetHostRoles{Host: "host2", Roles: []fleet.HostRole{fleet.RoleS3}})
	if _, err := ask(other, func(*agentrpc.S3AccessRequest) {}); err != nil || y.barriers.Load() != rounds+1 {
		t.Errorf("%v; %d rounds", err, y.barriers.Load()-rounds)
	}
	if strings.Contains(y.said.String(), secret) || strings.Contains(y.said.String(), access) {
		t.Error("the log tells keys")
	}
}

func TestKindsOfVolumesOfAnInventory(t *testing.T) {
	got := decodeInventory(&agentrpc.Inventory{Volumes: []string{"nfs", "odd", "cephfs", "nfs"}}).Volumes
	if !slices.Equal(got, []fleet.BackendKind{fleet.BackendCeph, fleet.BackendNFS}) {
		t.Errorf("%v", got)
	}
	if got := decodeInventory(&agentrpc.Inventory{Volumes: append(make([]string, 100), "nfs")}).Volumes; len(got) != 0 {
		t.Errorf("%v", got)
	}
}
