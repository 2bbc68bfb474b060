package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

func TestVolumes(t *testing.T) {
	w := newWorld(t).settle()
	w.must(PutBackend{Backend: localBackend("b-fast"), New: true})
	w.must(PutDataCenter{fleet.DataCenter{ID: "dc-9", Name: "Nine"}})
	but := func(change func(*fleet.Volume)) CreateVolume {
		c := CreateVolume{Volume: newVolume("volume00000001", "b-fast")}
		change(&c.Volume)
		return c
	}
	for rule, c := range map[string]struct {
		code   fleet.Code
		change func(*fleet.Volume)
	}{
		"no id":                  {fleet.CodeInvalid, func(v *fleet.Volume) { v.ID = "" }},
		"an unknown account":     {fleet.CodeNotFound, func(v *fleet.Volume) { v.Account = "nobody" }},
		"an unknown data center": {fleet.CodeNotFound, func(v *fleet.Volume) { v.DataCenter = "dc-8" }},
		"too small":              {fleet.CodeInvalid, func(v *fleet.Volume) { v.SizeGB = 9 }},
		"too large":              {fleet.CodeInvalid, func(v *fleet.Volume) { v.SizeGB = 4097 }},
		"no tier":                {fleet.CodeInvalid, func(v *fleet.Volume) { v.Type = "" }},
		"another tier":           {fleet.CodeStale, func(v *fleet.Volume) { v.Type = fleet.VolumeStandard }},
		"another data center":    {fleet.CodeStale, func(v *fleet.Volume) { v.DataCenter = "dc-9" }},
		"an unknown backend":     {fleet.CodeStale, func(v *fleet.Volume) { v.Backend = "b-9" }},
		"no directory":           {fleet.CodeInvalid, func(v *fleet.Volume) { v.Dir = "" }},
		"a path":                 {fleet.CodeInvalid, func(v *fleet.Volume) { v.Dir = "../" + v.Dir[3:] }},
		"a longer directory":     {fleet.CodeInvalid, func(v *fleet.Volume) { v.Dir += "a" }},
	} {
		t.Run(rule, func(t *testing.T) {
			w.t = t
			w.refused(c.code, but(c.change))
		})
	}
	w.t = t
	create := but(func(v *fleet.Volume) {
		// What is not the proposer's to say.
		v.Rev, v.IDBase, v.State, v.ProvisionedGB, v.ReadOnly, v.DeletedAt = 9, 7, fleet.VolumeReady, 5, true, at(3)
	})
	want := newVolume("volume00000001", "b-fast")
	want.Rev, want.IDBase, want.State = 1, fleet.VolumeIDsFirst, fleet.VolumeCreating
	if d := cmp.Diff(want, w.must(create).(fleet.Volume)); d != "" {
		t.Error(d)
	}
	w.refused(fleet.CodeExists, create)
	w.refused(fleet.CodeExists, but(func(v *fleet.Volume) { v.ID = "volume00000002" })) // its directory

	update := UpdateVolume{Account: "acme", Volume: want.ID, At: at(5)}
	sized := func(n int) UpdateVolume { c := update; c.SizeGB = &n; return c }
	w.refused(fleet.CodeNotFound, UpdateVolume{Account: "other", Volume: want.ID})
	w.refused(fleet.CodeNotFound, UpdateVolume{Account: "acme", Volume: "none"})
	w.refused(fleet.CodeConflictRule, sized(want.SizeGB-1))
	w.refused(fleet.CodeInvalid, sized(4097))
	update.Name = ptr("renamed")
	w.must(update, sized(4096))
	want.Name, want.SizeGB, want.Rev = "renamed", 4096, 3
	w.view(func(v *View) {
		got, ok := v.Volume(want.ID)
		if d := cmp.Diff(want, got); !ok || d != "" {
			t.Error(d)
		}
		if of := v.VolumesOf("acme"); len(of) != 1 || len(v.VolumesOf("other")) != 0 {
			t.Errorf("of the account %+v", of)
		}
		if _, ok := v.Volume("none"); ok {
			t.Error("there is a volume that was never made")
		}
	})
	closed := localBackend("b-fast")
	closed.Closed = true
	w.must(PutBackend{Backend: closed})
	w.refused(fleet.CodeStale, but(func(v *fleet.Volume) { v.ID, v.Dir = "volume00000002", dirOf("2") }))
	w.check()
}

// A volume is charged by what was asked for, from its creation to its deletion, in the two steps of the prices, whatever
// its storage does meanwhile.
func TestAVolumeIsChargedFromItsCreationToItsDeletion(t *testing.T) {
	const hour = 3600
	for _, on := range []fleet.BackendID{"b-std", "b-fast"} {
		t.Run(string(on), func(t *testing.T) {
			w := newWorld(t).priced()
			w.must(PutBackend{Backend: nfsBackend("b-std"), New: true}, PutBackend{Backend: localBackend("b-fast"), New: true})
			w.must(SetHostRoles{Host: "host-a", Roles: []fleet.HostRole{fleet.RoleStorage}})
			volume := newVolume("v1", on)
			volume.SizeGB, volume.CreatedAt = 1500, at(0)
			w.must(CreateVolume{Volume: volume})
			said := func(s int, r VolumeReport) ReportVolumes {
				r.Volume = "v1"
				c := w.provides("host-a", r)
				c.At = at(s)
				return c
			}
			w.must(said(2*hour, VolumeReport{ProvisionedGB: 1500, ReadOnly: ptr(true)}))
			w.settleAll(at(3 * hour))
			w.must(UpdateVolume{Account: "acme", Volume: "v1", SizeGB: ptr(3000), At: at(10 * hour)})
			w.must(said(11*hour, VolumeReport{ProvisionedGB: 3000}))
			w.must(DeleteVolume{Account: "acme", Volume: "v1", At: at(30 * hour)})
			w.must(said(40*hour, VolumeReport{ProvisionedGB: 3000})) // it is not known there yet
			w.settleAll(at(50 * hour))
			if m := w.meters(); len(m) != 0 {
				t.Errorf("open are %v", m)
			}
			w.must(said(60*hour, VolumeReport{Gone: true}))
			first, beyond := fleet.Money(70_000_000), fleet.Money(50_000_000)
			if on == "b-fast" {
				first, beyond = 140_000_000, 100_000_000
			}
			want := -10*(perHour(1000, first)+perHour(500, beyond)) - 20*(perHour(1000, first)+perHour(2000, beyond))
			if got := w.balance("acme", at(100*hour)); got != want {
				t.Errorf("balance is %d, want %d", got, want)
			}
			w.check()
		})
	}
}

func TestPodsWithNetworkVolumes(t *testing.T) {
	w := newWorld(t).settle().furnish()
	far, there := newVolume("vol-far", "far-fast"), localBackend("far-fast")
	far.DataCenter, there.DataCenter = "dc-9", "dc-9"
	tok := token("t9")
	tok.DataCenter = "dc-9"
	w.must(PutToken{tok, at(0)}, JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: "host-far", MachineID: "machine-far"}, At: at(1)})
	there.StorageHost = "host-far"
	w.must(PutBackend{Backend: there, New: true}, CreateVolume{Volume: far})
	pod := func(volume fleet.VolumeID, account fleet.AccountID) CreatePods {
		p := podOn("pod-1", "host-a")
		p.Account, p.Spec.Network = account, &fleet.NetworkMount{Volume: volume, Path: "/data"}
		return CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: w.host("host-a").Epoch}}}
	}
	w.refused(fleet.CodeStale, pod("vol-9", "acme"))
	w.refused(fleet.CodeStale, pod("vol-1", "other"))
	w.refused(fleet.CodeInvalid, pod(far.ID, "acme"))
	// The host must be of the secure cloud and know how to mount it.
	w.must(SetHostCloud{Host: "host-a", Cloud: fleet.CloudCommunity})
	w.refused(fleet.CodeStale, pod("vol-1", "acme"))
	w.must(SetHostCloud{Host: "host-a", Cloud: fleet.CloudSecure}, w.says(func(inv *fleet.Inventory) {
		inv.Volumes = []fleet.BackendKind{fleet.BackendLocal}
	}))
	w.refused(fleet.CodeStale, pod("vol-1", "acme"))
	w.must(w.says(func(*fleet.Inventory) {}), pod("vol-1", "acme"))

	del := DeleteVolume{Account: "acme", Volume: "vol-1", At: at(9)}
	w.refused(fleet.CodeNotFound, DeleteVolume{Account: "other", Volume: "vol-1"})
	w.refused(fleet.CodeNotFound, DeleteVolume{Account: "acme", Volume: "vol-9"})
	w.refused(fleet.CodeInUse, del)
	if msg := w.message(del); msg != "the network volume is in use: 1 pod has it" {
		t.Errorf("message %q", msg)
	}
	// Where it is mounted changes at the next start: a pod that runs is not touched.
	w.must(w.report("pod-1", fleet.EventRunning))
	before := w.pod("pod-1")
	w.must(w.update("pod-1").but(func(c *UpdatePod) { c.Spec.Network = &fleet.NetworkMount{Volume: "vol-1", Path: "/elsewhere"} }))
	if p := w.pod("pod-1"); p.Incarnation != before.Incarnation || p.Generation != before.Generation || p.Status != before.Status || p.Spec.Network.Path != "/elsewhere" {
		t.Errorf("got %+v", p)
	}
	// A start elsewhere stays in the volume's data center.
	w.must(w.report("pod-1", fleet.EventExited))
	w.connect("host-far")
	start := func(host fleet.HostID) ActPod {
		return ActPod{Account: "acme", Pod: "pod-1", Action: fleet.ActionStart, At: at(50), Bind: &Binding{Host: host, HostEpoch: 1}}
	}
	w.refused(fleet.CodeInvalid, start("host-far"))
	w.must(start("host-b"))
	w.must(w.act("pod-1", fleet.ActionTerminate), del)
	w.refused(fleet.CodeNotFound, del)
	again := pod("vol-1", "acme")
	again.Pods[0].Pod.ID = "pod-2"
	w.refused(fleet.CodeStale, again)
	w.check()
}

// What a volume is for its owner ends at once; its record, directory and ids stay until its data is gone.
func TestADeletedVolumeStaysUntilItsDataIsGone(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(SetHostRoles{Host: "host-a", Roles: []fleet.HostRole{fleet.RoleStorage}})
	once := CreateVolume{Volume: newVolume("vol-2", "b-std"), Once: sampleOnce()}
	w.must(once)
	p := podOn("pod-1", "host-b")
	p.Spec.Network = &fleet.NetworkMount{Volume: "vol-2", Path: "/data"}
	w.must(CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 1}}})
	gone := w.provides("host-a", VolumeReport{Volume: "vol-2", Gone: true})
	w.must(gone)
	if v := w.volume("vol-2"); v.State != fleet.VolumeCreating {
		t.Fatalf("a volume that nobody deleted is %s", v.State)
	}
	w.must(w.act("pod-1", fleet.ActionTerminate), DeleteVolume{Account: "acme", Volume: "vol-2", At: at(60)})
	if v := w.volume("vol-2"); v.State != fleet.VolumeDeleting || !v.DeletedAt.Equal(at(60)) {
		t.Fatalf("got %+v", v)
	}
	w.view(func(v *View) {
		if _, ok := v.Volume("vol-2"); ok || len(v.VolumesOf("acme")) != 1 || len(v.AllVolumes()) != 2 || len(v.VolumesOn("b-std")) != 2 {
			t.Errorf("its owner sees %v of %v", v.VolumesOf("acme"), v.AllVolumes())
		}
		if !v.VolumeHeld("acme", "vol-2") || v.VolumeHeld("other", "vol-2") || v.VolumeHeld("acme", "vol-1") {
			t.Error("which volume a host has is not known")
		}
	})
	w.refused(fleet.CodeNotFound, UpdateVolume{Account: "acme", Volume: "vol-2", SizeGB: ptr(20), At: at(61)})
	w.refused(fleet.CodeExists, once)
	w.refused(fleet.CodeInUse, DeleteBackend{ID: "b-std"})
	// A host still has its pod.
	w.must(gone)
	index := w.s.Index()
	w.must(w.report("pod-1", ReportGone))
	if !w.said(index)[Event{Kind: KindStorage, ID: "b-std"}] {
		t.Error("who looks after the backend is not told that it can go")
	}
	next := newVolume("vol-3", "b-std")
	if v := w.must(CreateVolume{Volume: next}).(fleet.Volume); v.IDBase != fleet.VolumeIDsFirst+2*fleet.VolumeIDs {
		t.Errorf("base %#x", v.IDBase)
	}
	w.must(gone, gone)
	w.view(func(v *View) {
		if _, ok := v.VolumeRecord("vol-2"); ok {
			t.Error("it is still there")
		}
	})
	next.ID, next.Dir = "vol-4", dirOf("vol-2") // it is free again; the base has to wait for its turn
	if v := w.must(CreateVolume{Volume: next}).(fleet.Volume); v.IDBase != fleet.VolumeIDsFirst+3*fleet.VolumeIDs {
		t.Errorf("base %#x", v.IDBase)
	}
	w.check()
}
