package state

import (
	"maps"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
)

// drawStorage draws a command on network volumes and on what they are on.
func (w *world) drawStorage(t *rapid.T, now time.Time) Command {
	account := pick[fleet.AccountID](t, "owner", "acme", "acme", "other")
	host := pick[fleet.HostID](t, "host", "host-a", "host-a", "host-b", "host-c")
	id := pick[fleet.BackendID](t, "backend", "b-std", "b-fast", "b-new")
	switch rapid.IntRange(0, 12).Draw(t, "of storage") {
	case 0, 1:
		b := nfsBackend(id)
		if rapid.Bool().Draw(t, "on a host") {
			b = localBackend(id)
			b.StorageHost = host
		}
		b.DataCenter = pick[fleet.DataCenterID](t, "center", "dc-1", "dc-1", "dc-2")
		b.Closed = rapid.IntRange(0, 5).Draw(t, "closed") == 0
		if b.NFS != nil && rapid.Bool().Draw(t, "at another server") {
			b.NFS.Server = "nfs.example"
		}
		return PutBackend{Backend: b, New: rapid.IntRange(0, 2).Draw(t, "new") == 0}
	case 2:
		return DeleteBackend{ID: id, Force: rapid.Bool().Draw(t, "storage is lost")}
	case 3, 4:
		roles := rapid.SliceOfN(rapid.SampledFrom([]fleet.HostRole{fleet.RoleStorage, fleet.RoleStorage, fleet.RoleS3}), 0, 2)
		return SetHostRoles{Host: host, Roles: roles.Draw(t, "roles")}
	case 5, 6, 7, 8:
		return w.drawReports(t, host, now)
	}
	return w.drawVolume(t, account, now)
}

// drawReports draws what a host says of volumes.
func (w *world) drawReports(t *rapid.T, host fleet.HostID, now time.Time) ReportVolumes {
	c := ReportVolumes{Host: host, Epoch: w.epochOf(host), At: now}
	if rapid.IntRange(0, 9).Draw(t, "old session") == 0 {
		c.Epoch--
	}
	for range rapid.IntRange(1, 3).Draw(t, "reports") {
		r := VolumeReport{
			Volume:        pick[fleet.VolumeID](t, "volume", "vol-1", "vol-2", "vol-3"),
			ProvisionedGB: rapid.SampledFrom([]int{0, 0, 10, 11, 12, -1, 5000}).Draw(t, "provisioned"),
			Gone:          rapid.Bool().Draw(t, "gone"),
		}
		if rapid.IntRange(0, 2).Draw(t, "is full") == 0 {
			r.ReadOnly = ptr(rapid.Bool().Draw(t, "read-only"))
		}
		c.Volumes = append(c.Volumes, r)
	}
	return c
}

// drawVolume draws a command on a volume; directories are few, so that they meet.
func (w *world) drawVolume(t *rapid.T, account fleet.AccountID, now time.Time) Command {
	id := pick[fleet.VolumeID](t, "volume", "vol-1", "vol-2", "vol-3")
	switch rapid.IntRange(0, 5).Draw(t, "of volumes") {
	case 0:
		return UpdateVolume{Account: account, Volume: id, SizeGB: ptr(rapid.IntRange(9, 12).Draw(t, "size")), At: now}
	case 1, 2:
		return DeleteVolume{Account: account, Volume: id, At: now}
	}
	v := newVolume(id, pick[fleet.BackendID](t, "on", "b-std", "b-fast", "b-new"))
	v.Account, v.CreatedAt, v.Dir = account, now, dirOf(pick(t, "directory", "vol-1", "vol-2", "other"))
	w.view(func(view *View) {
		if b, ok := view.Backend(v.Backend); ok && rapid.IntRange(0, 5).Draw(t, "known backend") > 0 {
			v.DataCenter, v.Type = b.DataCenter, b.Type
		}
	})
	return CreateVolume{Volume: v, Once: drawOnce(t)}
}

func drawS3Key(t *rapid.T, account fleet.AccountID, now time.Time) Command {
	key := sampleS3Key()
	key.ID = pick(t, "S3 key", "user_000000000000000000000000001", "user_000000000000000000000000002")
	if rapid.Bool().Draw(t, "ends") {
		return Delete[fleet.S3Key]{Account: account, ID: key.ID}
	}
	key.Account, key.CreatedAt = account, now
	return Put[fleet.S3Key]{Record: key}
}

// checkStorage checks that volumes share nothing, that one that is being deleted is nobody's, and that what is
// derived is what can be worked out.
func (w *world) checkStorage(t *rapid.T, before, after dump) {
	type base struct {
		center fleet.DataCenterID
		base   uint32
	}
	bases, dirs := map[base]fleet.VolumeID{}, map[string]fleet.VolumeID{}
	deleting := map[fleet.VolumeID]bool{}
	meters := w.meters()
	for _, v := range after.AllVolumes {
		at := base{v.DataCenter, v.IDBase}
		if other := bases[at]; other != "" || v.IDBase%fleet.VolumeIDs != 0 || v.IDBase < fleet.VolumeIDsFirst || v.IDBase > fleet.VolumeIDsLast {
			t.Fatalf("volume %+v and %q have one base", v, other)
		}
		if other := dirs[v.Dir]; other != "" || !volumeDir.MatchString(v.Dir) {
			t.Fatalf("volume %+v and %q have one directory", v, other)
		}
		bases[at], dirs[v.Dir] = v.ID, v.ID
		deleting[v.ID] = v.State == fleet.VolumeDeleting
		if _, paid := meters[MeterID{fleet.ChargeVolume, string(v.ID)}.key()]; paid == deleting[v.ID] || v.DeletedAt.IsZero() == deleting[v.ID] {
			t.Fatalf("volume %+v is charged: %t", v, paid)
		}
		if (v.State == fleet.VolumeCreating) && v.ProvisionedGB > 0 || v.SizeGB < fleet.VolumeLeastGB || v.ProvisionedGB > fleet.VolumeMostGB {
			t.Fatalf("volume %+v", v)
		}
		checkPlace(t, v, after)
	}
	for account := range after.Volumes {
		for _, v := range after.Volumes[account] {
			if deleting[v.ID] || v.Account != account {
				t.Fatalf("%s sees %+v", account, v)
			}
		}
	}
	for _, pods := range after.Pods {
		for _, p := range pods {
			if m := p.Spec.Network; m != nil && p.Status != fleet.StatusTerminated && deleting[m.Volume] {
				t.Fatalf("volume %s of pod %s is being deleted", m.Volume, p.ID)
			}
		}
	}
	for _, old := range before.AllVolumes {
		for _, v := range after.AllVolumes {
			same := v.ID == old.ID && v.CreatedAt.Equal(old.CreatedAt)
			if same && (v.IDBase != old.IDBase || v.Dir != old.Dir || v.Backend != old.Backend || v.SizeGB < old.SizeGB || v.Rev < old.Rev) {
				t.Fatalf("volume went from %+v to %+v", old, v)
			}
		}
	}
	w.checkBases(t)
}

// checkPlace checks that a volume is on a backend of its own kind.
func checkPlace(t *rapid.T, v fleet.Volume, d dump) {
	for _, b := range d.Backends {
		if b.ID == v.Backend && b.DataCenter == v.DataCenter && b.Type == v.Type && (b.Measured() || !v.ReadOnly) {
			return
		}
	}
	t.Fatalf("volume %+v is on none of %+v", v, d.Backends)
}

// checkBases compares the uses of bases with what is worked out anew.
func (w *world) checkBases(t *rapid.T) {
	w.view(func(v *View) {
		want := newTables(Level)
		for _, row := range v.tb.volumes.Rows {
			want.countBase(row, 1)
		}
		if !maps.EqualFunc(want.baseUses, v.tb.baseUses, func(a, b *baseUse) bool { return *a == *b }) {
			t.Fatal("the bases are not those that the volumes have")
		}
	})
}
