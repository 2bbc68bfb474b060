package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

func cephBackend(id fleet.BackendID) fleet.Backend {
	_, b, _ := sampleBackends()
	b.ID = id
	return b
}

func TestBackends(t *testing.T) {
	w := newWorld(t).settle().furnish()
	ceph := PutBackend{Backend: cephBackend("ceph-1"), New: true}
	ceph.Backend.CreatedAt, ceph.Backend.Rev = at(4), 9
	index := w.s.Index()
	want := cephBackend("ceph-1")
	want.CreatedAt, want.Rev = at(4), 1
	if d := cmp.Diff(want, w.must(ceph).(fleet.Backend)); d != "" {
		t.Error(d)
	}
	if !w.said(index)[Event{Kind: KindStorage, ID: "ceph-1"}] {
		t.Error("nobody is told")
	}
	w.refused(fleet.CodeExists, ceph)
	w.refused(fleet.CodeNotFound, PutBackend{Backend: cephBackend("ceph-2")})
	// A change keeps when it was created, and a volume keeps its data where it is.
	next := want
	next.Ceph = &fleet.CephBackend{Monitors: []string{"mon.example:6789"}, FileSystem: "other", Path: "/", User: "a", AdminUser: "b"}
	next.CreatedAt = at(99)
	w.refused(fleet.CodeStale, PutBackend{Backend: func() fleet.Backend { b := next; b.Rev = 7; return b }()})
	w.must(PutBackend{Backend: next})
	want.Ceph, want.Rev = next.Ceph, 2
	w.view(func(v *View) {
		got, ok := v.Backend("ceph-1")
		if d := cmp.Diff(want, got); !ok || d != "" {
			t.Error(d)
		}
		if of := v.BackendsOf("dc-1"); len(of) != 3 || len(v.BackendsOf("dc-9")) != 0 || len(v.Backends()) != 3 {
			t.Errorf("of the data center %v", of)
		}
		if n, gb := v.BackendUse("b-std"); n != 1 || gb != 10 {
			t.Errorf("%d volumes of %d GB", n, gb)
		}
	})
	w.refused(fleet.CodeInUse, DeleteBackend{ID: "b-std"})
	w.refused(fleet.CodeNotFound, DeleteBackend{ID: "b-9"})
	w.must(DeleteBackend{ID: "ceph-1"})
	w.refused(fleet.CodeNotFound, DeleteBackend{ID: "ceph-1"})
	w.check()
}

func TestBackendsThatAreRefused(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.join("host-gone", "machine-gone")
	w.must(RemoveHost{Host: "host-gone", At: at(3)})
	nfs, ceph, local := nfsBackend("n-1"), cephBackend("c-1"), localBackend("l-1")
	path := strings.Repeat("/abcdefg", 129)
	for rule, c := range map[string]struct {
		of     fleet.Backend
		code   fleet.Code
		change func(*fleet.Backend)
	}{
		"no id":                     {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.ID = "" }},
		"an id of capitals":         {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.ID = "A" }},
		"an id that is a path":      {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.ID = "a/b" }},
		"a long id":                 {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.ID = fleet.BackendID(strings.Repeat("a", 64)) }},
		"no kind":                   {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.Kind = "" }},
		"another kind's part":       {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.Local = local.Local }},
		"no part":                   {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.Ceph = nil }},
		"no tier":                   {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.Type = "" }},
		"an unknown data center":    {nfs, fleet.CodeNotFound, func(b *fleet.Backend) { b.DataCenter = "dc-8" }},
		"much that is sealed":       {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.Sealed = make([]byte, 4097) }},
		"no server":                 {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Server = "" }},
		"a server with an export":   {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Server = "host:/x" }},
		"a server that is a flag":   {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Server = "-o" }},
		"a relative export":         {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Export = "export" }},
		"a way up":                  {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Export = "/a/../b" }},
		"a path of two lines":       {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Export = "/a\n/b" }},
		"a long path":               {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Export = path }},
		"an unknown option":         {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Options = "vers=4.1,addr=192.0.2.9" }},
		"an option without a word":  {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Options = "hard,,soft" }},
		"an older protocol":         {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Options = "vers=3" }},
		"an option without value":   {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Options = "timeo" }},
		"a value too many":          {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.NFS.Options = "hard=1" }},
		"no monitors":               {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.Ceph.Monitors = nil }},
		"17 monitors":               {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.Ceph.Monitors = strings.Fields(strings.Repeat("a:1 ", 17)) }},
		"a monitor without a port":  {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.Ceph.Monitors = []string{"192.0.2.1"} }},
		"a monitor at port 0":       {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.Ceph.Monitors = []string{"192.0.2.1:0"} }},
		"two monitors in one":       {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.Ceph.Monitors = []string{"a,b:1"} }},
		"no file system":            {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.Ceph.FileSystem = "" }},
		"a user with its kind":      {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.Ceph.User = "client.pods" }},
		"no user for quotas":        {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.Ceph.AdminUser = "" }},
		"pods' user for quotas":     {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.Ceph.AdminUser = b.Ceph.User }},
		"no key":                    {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.Sealed = nil }},
		"a folder of its own":       {ceph, fleet.CodeInvalid, func(b *fleet.Backend) { b.StorageHost, b.StoragePath = "host-a", "/srv" }},
		"a folder of no host":       {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.StoragePath = "/srv" }},
		"all of a host's disk":      {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.StorageHost, b.StoragePath = "host-a", "/" }},
		"an unknown host":           {nfs, fleet.CodeNotFound, func(b *fleet.Backend) { b.StorageHost = "host-z" }},
		"a host that is gone":       {nfs, fleet.CodeNotFound, func(b *fleet.Backend) { b.StorageHost = "host-gone" }},
		"another data center's":     {nfs, fleet.CodeInvalid, func(b *fleet.Backend) { b.StorageHost, b.DataCenter = "host-a", "dc-9" }},
		"a local one of no host":    {local, fleet.CodeInvalid, func(b *fleet.Backend) { b.StorageHost = "" }},
		"a local one elsewhere":     {local, fleet.CodeInvalid, func(b *fleet.Backend) { b.StoragePath = "/srv/other" }},
		"a local one of everything": {local, fleet.CodeInvalid, func(b *fleet.Backend) { b.Local.Path = "/" }},
	} {
		t.Run(rule, func(t *testing.T) {
			w.t = t
			b := cloneBackend(&c.of)
			c.change(&b)
			w.refused(c.code, PutBackend{Backend: b, New: true})
		})
	}
	w.t = t
	nfs.NFS.Options, nfs.NFS.Server = "vers=4.2,hard,nconnect=8,rsize=1048576,xprtsec=mtls", "2001:db8::7"
	nfs.StorageHost, nfs.StoragePath = "host-a", "/srv/nfs"
	w.must(PutBackend{Backend: nfs, New: true})
	if b := w.must(PutBackend{Backend: local, New: true}).(fleet.Backend); b.StoragePath != b.Local.Path {
		t.Errorf("a local backend is at %q", b.StoragePath)
	}
	for i := range maxBackends - 4 {
		w.must(PutBackend{Backend: nfsBackend(fleet.BackendID(fmt.Sprintf("m-%d", i))), New: true})
	}
	more := nfsBackend("more")
	w.refused(fleet.CodeConflictRule, PutBackend{Backend: more, New: true})
	more.DataCenter = "dc-9"
	w.must(PutBackend{Backend: more, New: true})
	w.check()
}

// While volumes are on a backend its data stays where it is. How it is reached may change, and hosts with pods are told.
func TestABackendWithVolumesStaysWhereItIs(t *testing.T) {
	w := newWorld(t).settle().furnish()
	p := podOn("pod-1", "host-b")
	p.Spec.Network = &fleet.NetworkMount{Volume: "vol-1", Path: "/data"}
	w.must(CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 1}}})
	put := func(change func(*fleet.Backend)) PutBackend {
		b := nfsBackend("b-std")
		change(&b)
		return PutBackend{Backend: b}
	}
	for rule, change := range map[string]func(*fleet.Backend){
		"data center": func(b *fleet.Backend) { b.DataCenter = "dc-9" },
		"tier":        func(b *fleet.Backend) { b.Type = fleet.VolumeFast },
		"root":        func(b *fleet.Backend) { b.NFS.Export = "/other" },
		"kind":        func(b *fleet.Backend) { *b = localBackend("b-std"); b.Type = fleet.VolumeStandard },
		"sized disks": func(b *fleet.Backend) { b.StorageHost, b.StoragePath = "host-a", "/export/b-std" },
	} {
		t.Run(rule, func(t *testing.T) {
			w.t = t
			w.refused(fleet.CodeInUse, put(change))
		})
	}
	w.t = t
	used := func(want bool) {
		t.Helper()
		w.view(func(v *View) {
			if b, _ := v.Backend("b-std"); b.Used != want {
				t.Errorf("a volume was made on it: %t", b.Used)
			}
		})
	}
	w.must(put(func(b *fleet.Backend) { b.Used = true }))
	used(false)
	w.must(SetHostRoles{Host: "host-a", Roles: []fleet.HostRole{fleet.RoleStorage}}, w.provides("host-a", VolumeReport{Volume: "vol-1", ProvisionedGB: 10}))
	before := w.host("host-b").Generation
	w.must(put(func(b *fleet.Backend) { b.Closed, b.StorageHost = true, "host-a" }))
	if g := w.host("host-b").Generation; g != before {
		t.Errorf("generation %d of %d", g, before)
	}
	index := w.s.Index()
	w.must(put(func(b *fleet.Backend) { b.NFS.Server, b.StorageHost = "nfs.example", "host-b" }))
	used(true)
	if p := w.pod("pod-1"); p.Generation != before+1 || w.host("host-b").Generation != before+1 || p.Incarnation != 1 {
		t.Errorf("got %+v", p)
	}
	if said := w.said(index); !said[Event{Kind: KindAssign, ID: "host-b"}] || said[Event{Kind: KindAssign, ID: "host-a"}] {
		t.Errorf("said is %v", said)
	}
	w.check()
}

func TestHostRoles(t *testing.T) {
	w := newWorld(t).settle().furnish()
	roles := func(roles ...fleet.HostRole) SetHostRoles { return SetHostRoles{Host: "host-a", Roles: roles} }
	w.refused(fleet.CodeNotFound, SetHostRoles{Host: "host-z"})
	w.refused(fleet.CodeInvalid, roles("root"))
	w.refused(fleet.CodeInvalid, roles(fleet.RoleS3, fleet.RoleS3))
	index := w.s.Index()
	h := w.must(roles(fleet.RoleStorage, fleet.RoleS3)).(fleet.Host)
	if len(h.Roles) != 2 || h.Roles[0] != fleet.RoleS3 || !h.Has(fleet.RoleStorage) {
		t.Errorf("roles %v", h.Roles)
	}
	if said := w.said(index); !said[Event{Kind: KindHost, ID: "host-a"}] || !said[Event{Kind: KindStorage, ID: "b-std"}] {
		t.Errorf("said is %v", said)
	}
	w.view(func(v *View) {
		if s := v.HostsWith(fleet.RoleStorage); len(s) != 1 || s[0] != "host-a" {
			t.Errorf("storage is with %v", s)
		}
	})
	// A fence is not for ever, and keeps them; a host that backends need is not removed, and one that is has none.
	w.must(SetHostState{Host: "host-a", Epoch: 1, State: fleet.HostUnreachable, At: at(4)}, FenceHost{Host: "host-a", At: at(5)})
	if h := w.host("host-a"); !h.Has(fleet.RoleS3) {
		t.Errorf("roles %v", h.Roles)
	}
	w.refused(fleet.CodeConflictRule, RemoveHost{Host: "host-a", At: at(6)})
	other := localBackend("b-fast")
	other.StorageHost = "host-b"
	w.must(PutBackend{Backend: other}, RemoveHost{Host: "host-a", At: at(6)})
	if h := w.host("host-a"); len(h.Roles) > 0 {
		t.Errorf("roles %v", h.Roles)
	}
	w.refused(fleet.CodeNotAllowed, roles())
	// Nor has a machine that joins again what its earlier record had.
	w.must(SetHostRoles{Host: "host-b", Roles: []fleet.HostRole{fleet.RoleStorage}})
	w.lose("host-b")
	tok := token("again")
	join := JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: "host-c", MachineID: "machine-b"}, At: at(900)}
	if h := w.must(PutToken{tok, at(0)}, join).(fleet.Host); len(h.Roles) > 0 {
		t.Errorf("roles %v", h.Roles)
	}
	w.view(func(v *View) {
		if s := v.HostsWith(fleet.RoleStorage); len(s) != 0 {
			t.Errorf("storage is with %v", s)
		}
	})
	w.check()
}

func TestS3Keys(t *testing.T) {
	w := newWorld(t).settle()
	key := func(n int) fleet.S3Key {
		k := sampleS3Key()
		k.ID = fmt.Sprintf("user_%027d", n)
		return k
	}
	for rule, c := range map[string]struct {
		code   fleet.Code
		change func(*fleet.S3Key)
	}{
		"an unknown account": {fleet.CodeNotFound, func(k *fleet.S3Key) { k.Account = "nobody" }},
		"another id":         {fleet.CodeInvalid, func(k *fleet.S3Key) { k.ID = "user_1" }},
		"an odd id":          {fleet.CodeInvalid, func(k *fleet.S3Key) { k.ID = k.ID[:31] + "/" }},
		"no secret":          {fleet.CodeInvalid, func(k *fleet.S3Key) { k.Sealed = nil }},
		"a long secret":      {fleet.CodeInvalid, func(k *fleet.S3Key) { k.Sealed = make([]byte, 513) }},
		"a long name":        {fleet.CodeInvalid, func(k *fleet.S3Key) { k.Name = strings.Repeat("n", 257) }},
		"an end before":      {fleet.CodeInvalid, func(k *fleet.S3Key) { k.ExpiresAt = k.CreatedAt }},
	} {
		t.Run(rule, func(t *testing.T) {
			w.t = t
			k := key(0)
			c.change(&k)
			w.refused(c.code, Put[fleet.S3Key]{Record: k})
		})
	}
	w.t = t
	for i := range maxS3Keys {
		w.must(Put[fleet.S3Key]{Record: key(i)})
	}
	w.refused(fleet.CodeConflictRule, Put[fleet.S3Key]{Record: key(99)})
	theirs := key(99)
	theirs.Account = "other"
	w.must(Put[fleet.S3Key]{Record: theirs})
	w.refused(fleet.CodeExists, Put[fleet.S3Key]{Record: theirs})
	w.refused(fleet.CodeNotFound, Delete[fleet.S3Key]{Account: "acme", ID: theirs.ID})
	w.must(Delete[fleet.S3Key]{Account: "acme", ID: key(0).ID}, Put[fleet.S3Key]{Record: key(50)})
	w.view(func(v *View) {
		if k, ok := Find[fleet.S3Key](v, theirs.ID); !ok || k.Account != "other" || len(List[fleet.S3Key](v, "acme")) != maxS3Keys {
			t.Errorf("got %+v of %d", k, len(List[fleet.S3Key](v, "acme")))
		}
		if _, ok := Find[fleet.S3Key](v, key(0).ID); ok {
			t.Error("a deleted key is there")
		}
	})
	w.check()
}

// A storage that is lost takes the volumes with it that nobody has any more, and no others.
func TestABackendWhoseStorageIsLost(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(CreateVolume{Volume: newVolume("vol-2", "b-std")}, DeleteVolume{Account: "acme", Volume: "vol-2", At: at(5)})
	force := DeleteBackend{ID: "b-std", Force: true}
	w.refused(fleet.CodeInUse, force)
	if msg := w.message(force); msg != "the storage backend is in use: 1 network volume has it" {
		t.Errorf("message %q", msg)
	}
	w.must(DeleteVolume{Account: "acme", Volume: "vol-1", At: at(6)})
	w.refused(fleet.CodeInUse, DeleteBackend{ID: "b-std"})
	w.refused(fleet.CodeInUse, DeleteDataCenter{ID: "dc-1"})
	index := w.s.Index()
	if ids := w.must(force).([]fleet.VolumeID); !slices.Equal(ids, []fleet.VolumeID{"vol-1", "vol-2"}) {
		t.Errorf("forgotten are %v", ids)
	}
	w.view(func(v *View) {
		if all := v.AllVolumes(); len(all) != 0 || len(v.VolumesOn("b-std")) != 0 {
			t.Errorf("still there are %v", all)
		}
	})
	if !w.said(index)[Event{Kind: KindStorage, ID: "b-std"}] {
		t.Error("who looked after it is not told")
	}
	w.check()
}

// A machine that joins anew stays the one that looks after a backend, once it was given the role again.
func TestAMachineThatJoinsAnewLooksAfterItsBackends(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(SetHostRoles{Host: "host-a", Roles: []fleet.HostRole{fleet.RoleStorage}})
	tok := token("again")
	w.lose("host-a")
	w.must(PutToken{tok, at(59)}, JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: "host-new", MachineID: "machine-a"}, At: at(900)})
	w.view(func(v *View) {
		b, _ := v.Backend("b-fast")
		h, _ := v.Host("host-new")
		if b.StorageHost != "host-new" || LooksAfter(&h, &b) {
			t.Errorf("got %+v, looked after by %+v", b, h)
		}
	})
	w.must(SetHostRoles{Host: "host-new", Roles: []fleet.HostRole{fleet.RoleStorage}})
	w.check()
}
