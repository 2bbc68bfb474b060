package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

func TestVolumes(t *testing.T) {
	w := newWorld(t).settle()
	but := func(change func(*fleet.Volume)) CreateVolume {
		c := CreateVolume{Volume: sampleVolume()}
		change(&c.Volume)
		return c
	}
	w.refused(fleet.CodeInvalid, but(func(v *fleet.Volume) { v.ID = "" }))
	w.refused(fleet.CodeNotFound, but(func(v *fleet.Volume) { v.Account = "nobody" }))
	w.refused(fleet.CodeNotFound, but(func(v *fleet.Volume) { v.DataCenter = "dc-8" }))
	w.refused(fleet.CodeInvalid, but(func(v *fleet.Volume) { v.SizeGB = 0 }))
	w.refused(fleet.CodeInvalid, but(func(v *fleet.Volume) { v.SizeGB = maxDiskGB + 1 }))
	w.refused(fleet.CodeInvalid, but(func(v *fleet.Volume) { v.Type = "" }))
	create := but(func(v *fleet.Volume) { v.Rev = 9 })
	want := sampleVolume()
	want.Rev = 1
	if d := cmp.Diff(want, w.must(create).(fleet.Volume)); d != "" {
		t.Error(d)
	}
	w.refused(fleet.CodeExists, create)

	update := UpdateVolume{Account: "acme", Volume: want.ID, At: at(5)}
	sized := func(n int) UpdateVolume { c := update; c.SizeGB = &n; return c }
	w.refused(fleet.CodeNotFound, UpdateVolume{Account: "other", Volume: want.ID})
	w.refused(fleet.CodeNotFound, UpdateVolume{Account: "acme", Volume: "none"})
	w.refused(fleet.CodeConflictRule, sized(want.SizeGB-1))
	w.refused(fleet.CodeInvalid, sized(maxDiskGB+1))
	update.Name = ptr("renamed")
	w.must(update, sized(200))
	want.Name, want.SizeGB, want.Rev = "renamed", 200, 3
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
	w.check()
}

func TestPodsWithNetworkVolumes(t *testing.T) {
	w := newWorld(t).settle().furnish()
	far := sampleVolume()
	far.DataCenter = "dc-9"
	w.must(CreateVolume{Volume: far})
	pod := func(volume fleet.VolumeID, account fleet.AccountID) CreatePod {
		p := podOn("pod-1", "host-a")
		p.Account, p.Spec.Network = account, &fleet.NetworkMount{Volume: volume, Path: "/data"}
		return CreatePod{Pod: p, HostEpoch: 1}
	}
	w.refused(fleet.CodeStale, pod("vol-9", "acme"))
	w.refused(fleet.CodeStale, pod("vol-1", "other"))
	w.refused(fleet.CodeInvalid, pod(far.ID, "acme"))
	w.must(pod("vol-1", "acme"))

	del := DeleteVolume{Account: "acme", Volume: "vol-1", At: at(9)}
	w.refused(fleet.CodeNotFound, DeleteVolume{Account: "other", Volume: "vol-1"})
	w.refused(fleet.CodeNotFound, DeleteVolume{Account: "acme", Volume: "vol-9"})
	w.refused(fleet.CodeConflictRule, del)
	if msg := w.message(del); msg != "the network volume is in use: 1 pod has it" {
		t.Errorf("message %q", msg)
	}
	// A start elsewhere stays in the volume's data center.
	w.must(w.report("pod-1", fleet.EventExited))
	tok := token("t9")
	tok.DataCenter = "dc-9"
	w.must(PutToken{tok, at(0)}, JoinHost{tok.ID, tok.Hash, fleet.Host{ID: "host-far", MachineID: "machine-far"}, at(1)})
	w.connect("host-far")
	start := func(host fleet.HostID) ActPod {
		return ActPod{Account: "acme", Pod: "pod-1", Action: fleet.ActionStart, At: at(50), Bind: &Binding{Host: host, HostEpoch: 1}}
	}
	w.refused(fleet.CodeInvalid, start("host-far"))
	w.must(start("host-b"))
	w.must(w.act("pod-1", fleet.ActionTerminate), del)
	w.refused(fleet.CodeNotFound, del)
	w.check()
}
