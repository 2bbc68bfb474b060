package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

func TestBootstrapHappensOnce(t *testing.T) {
	w := newWorld(t)
	w.view(func(v *View) {
		if _, ok := v.Cluster(); ok {
			t.Error("a new store is part of a cluster")
		}
	})
	w.settle()
	w.refused(fleet.CodeExists, Bootstrap{ClusterID: "again"})
	w.view(func(v *View) {
		c, ok := v.Cluster()
		if !ok || c.ID != "cluster" || string(c.CA) != "ca" || string(c.SealedCAKey) != "sealed" {
			t.Errorf("got %+v, %t", c, ok)
		}
		if d := cmp.Diff(catalog(), v.Catalog()); d != "" {
			t.Error(d)
		}
	})
	w.check()
}

func TestCatalogAndDataCentersAreReplaced(t *testing.T) {
	w := newWorld(t).settle()
	w.must(
		PutCatalog{fleet.Catalog{GPUs: []fleet.GPUType{{ID: "x"}}}},
		PutDataCenter{fleet.DataCenter{ID: "dc-1", Name: "One", Region: "EU"}},
		PutDataCenter{fleet.DataCenter{ID: "dc-0", Name: "Zero"}},
	)
	w.refused(fleet.CodeInvalid, PutDataCenter{fleet.DataCenter{Name: "no id"}})
	w.view(func(v *View) {
		if c := v.Catalog(); len(c.GPUs) != 1 || c.GPUs[0].ID != "x" {
			t.Errorf("catalog %+v", c)
		}
		if d := v.DataCenters(); len(d) != 2 || d[0].ID != "dc-0" || d[1].Region != "EU" {
			t.Errorf("data centers %+v", d)
		}
	})
	w.check()
}

func TestKeys(t *testing.T) {
	w := newWorld(t).settle()
	key := fleet.Key{ID: "k1", Account: "acme", Hash: []byte("h1"), Can: map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessRead}}
	w.refused(fleet.CodeNotFound, PutKey{fleet.Key{ID: "k1", Account: "nobody", Hash: []byte("h1")}})
	w.refused(fleet.CodeInvalid, PutKey{fleet.Key{ID: "k1", Account: "acme"}})
	w.refused(fleet.CodeInvalid, PutAccount{fleet.Account{ID: fleet.AccountID(strings.Repeat("x", 257))}})
	w.must(PutKey{key})
	w.refused(fleet.CodeExists, PutKey{fleet.Key{ID: "k1", Account: "other", Hash: []byte("h2")}})
	w.refused(fleet.CodeExists, PutKey{fleet.Key{ID: "k2", Account: "other", Hash: []byte("h1")}})
	w.refused(fleet.CodeNotFound, DeleteKey{Account: "other", Key: "k1"})
	w.refused(fleet.CodeNotFound, DeleteKey{Account: "acme", Key: "k9"})
	key.Hash = []byte("h2")
	w.must(PutKey{key})
	w.view(func(v *View) {
		if _, ok := v.KeyByHash([]byte("h1")); ok {
			t.Error("the old hash still opens")
		}
		got, ok := v.KeyByHash([]byte("h2"))
		if d := cmp.Diff(key, got); d != "" || !ok {
			t.Error(d)
		}
		if len(v.Keys("acme")) != 1 || len(v.Keys("other")) != 0 {
			t.Error("keys of the wrong account")
		}
	})
	w.check()
	w.must(DeleteKey{Account: "acme", Key: "k1"})
	w.view(func(v *View) {
		if _, ok := v.KeyByHash([]byte("h2")); ok {
			t.Error("a deleted key still opens")
		}
	})
	w.check()
}

func TestTokens(t *testing.T) {
	w := newWorld(t).settle()
	w.must(PutToken{Token: token("t1"), At: at(0)})
	w.refused(fleet.CodeExists, PutToken{Token: token("t1"), At: at(0)})
	w.refused(fleet.CodeInvalid, PutToken{Token: token("t2"), At: at(1000)})
	w.refused(fleet.CodeInvalid, PutToken{Token: fleet.JoinToken{ID: "t2", Hash: []byte("x"), ExpiresAt: at(1)}, At: at(0)})

	join := func(tok fleet.TokenID, hash string, s int) JoinHost {
		return JoinHost{Token: tok, Hash: []byte(hash), Host: fleet.Host{ID: "host-c", MachineID: "machine-c"}, At: at(s)}
	}
	w.refused(fleet.CodeUnauthorized, join("t9", "hash of t9", 1))
	w.refused(fleet.CodeUnauthorized, join("t1", "wrong", 1))
	w.refused(fleet.CodeUnauthorized, join("t1", "", 1))
	w.refused(fleet.CodeUnauthorized, join("t1", "hash of t1", 1000))
	w.refused(fleet.CodeInvalid, JoinHost{Token: "t1", Hash: []byte("hash of t1"), Host: fleet.Host{ID: "host-c"}, At: at(1)})
	w.refused(fleet.CodeExists, JoinHost{Token: "t1", Hash: []byte("hash of t1"), Host: fleet.Host{ID: "host-a", MachineID: "m"}, At: at(1)})
	host := w.must(join("t1", "hash of t1", 999)).(fleet.Host)
	if host.State != fleet.HostJoining || host.DataCenter != "dc-1" || host.Cloud != fleet.CloudSecure || host.Rev != 1 {
		t.Errorf("got %+v", host)
	}
	w.refused(fleet.CodeUnauthorized, join("t1", "hash of t1", 1))

	// A new token sweeps out those that expired.
	w.must(PutToken{Token: token("t3"), At: at(0)})
	late := token("t4")
	late.ExpiresAt = at(5000)
	w.must(PutToken{Token: late, At: at(1001)})
	w.view(func(v *View) {
		_, three := v.Token("t3")
		_, four := v.Token("t4")
		if three || !four {
			t.Errorf("t3 %t, t4 %t", three, four)
		}
	})
	w.check()
}

func TestANewTokenSweepsOutAFewOfThoseThatExpired(t *testing.T) {
	w := newWorld(t)
	for i := range maxExpired + 2 {
		tok := token(fleet.TokenID(fmt.Sprintf("old-%02d", i)))
		tok.ExpiresAt = at(1000 - i)
		w.must(PutToken{tok, at(0)})
	}
	late := token("late")
	late.ExpiresAt = at(5000)
	w.must(PutToken{late, at(1001)})
	w.view(func(v *View) {
		for i := range maxExpired + 2 {
			if _, there := v.Token(fleet.TokenID(fmt.Sprintf("old-%02d", i))); there != (i < 2) {
				t.Errorf("token %d: %t; the oldest go first", i, there)
			}
		}
	})
	later := token("later")
	later.ExpiresAt = at(5000)
	w.must(PutToken{later, at(1002)})
	w.view(func(v *View) {
		if len(v.tb.expiring) != 2 || len(v.tb.tokens.Rows) != 2 {
			t.Errorf("%d tokens are left, %d in order", len(v.tb.tokens.Rows), len(v.tb.expiring))
		}
	})
	w.check()
}

func TestJoinMakesTheDataCenterWhenItIsNew(t *testing.T) {
	w := newWorld(t)
	w.must(PutDataCenter{fleet.DataCenter{ID: "dc-1", Name: "Kept"}})
	w.join("host-a", "machine-a")
	tok := token("t2")
	tok.DataCenter = "dc-2"
	w.must(PutToken{tok, at(0)}, JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: "host-b", MachineID: "machine-b"}, At: at(1)})
	w.view(func(v *View) {
		if d := v.DataCenters(); len(d) != 2 || d[0].Name != "Kept" || d[1].ID != "dc-2" {
			t.Errorf("got %+v", d)
		}
	})
}

func TestRejoinOfAMachine(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	w.lose("host-a")
	tok := token("t2")
	w.must(PutToken{tok, at(0)})
	again := JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: "host-new", MachineID: "machine-a"}, At: at(900)}
	w.refused(fleet.CodeExists, again)
	w.must(w.report("pod-1", fleet.EventExited))
	w.must(again)
	w.view(func(v *View) {
		if _, ok := v.Host("host-a"); ok {
			t.Error("the machine has two records")
		}
	})
	w.check()
	// The pod's host is gone: it can be started elsewhere, or terminated at once.
	w.must(ActPod{Account: "acme", Pod: "pod-1", Action: fleet.ActionStart, At: at(910), Bind: &Binding{
		Host: "host-b", HostEpoch: 1, GPUs: []string{"host-b-gpu-0"},
	}})
	if p := w.pod("pod-1"); p.Host != "host-b" || !p.Held {
		t.Errorf("got %+v", p)
	}
	w.check()
}

func TestConnectHost(t *testing.T) {
	w := newWorld(t)
	joined := w.join("host-a", "machine-a")
	w.refused(fleet.CodeNotFound, ConnectHost{Host: "host-z", MachineID: "machine-a", BootID: "boot"})
	w.refused(fleet.CodeForbidden, ConnectHost{Host: "host-a", MachineID: "machine-b", BootID: "boot"})
	twice := inventory("host-a")
	twice.GPUs[1].UUID = twice.GPUs[0].UUID
	w.refused(fleet.CodeInvalid, ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: twice})
	w.refused(fleet.CodeInvalid, ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Generation: 1 << 63})
	w.refused(fleet.CodeInvalid, ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: fleet.Inventory{Total: fleet.Resources{DiskGB: -1}}})

	host := w.connect("host-a")
	if host.Epoch != joined.Epoch+1 || host.State != fleet.HostReady || host.BootID != "boot" || !host.SeenAt.Equal(at(2)) {
		t.Errorf("got %+v", host)
	}
	if want := []string{"alpine", "zebra"}; !slices.Equal(host.Inventory.Images, want) {
		t.Errorf("images %v are not sorted", host.Inventory.Images)
	}
	if again := w.connect("host-a"); again.Epoch != host.Epoch+1 || again.Rev <= host.Rev {
		t.Errorf("got %+v", again)
	}
	w.check()
}

// A control plane restored from an old copy must not hand out generations that a host has seen.
func TestConnectHostRaisesTheGenerationAboveTheAgents(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a")
	if g := w.host("host-a").Generation; g != 1 {
		t.Fatalf("generation %d", g)
	}
	index := w.s.Index()
	host := w.must(ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Generation: 41, Inventory: inventory("host-a")}).(fleet.Host)
	if host.Generation != 42 {
		t.Errorf("generation %d, the agent has 41", host.Generation)
	}
	evs, _, _ := w.s.Events(index)
	if !slices.ContainsFunc(evs, func(e Event) bool { return e.Kind == KindAssign && e.ID == "host-a" }) {
		t.Errorf("events %v", evs)
	}
	host = w.must(ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Generation: 42, Inventory: inventory("host-a")}).(fleet.Host)
	if host.Generation != 42 {
		t.Errorf("generation %d was raised without need", host.Generation)
	}
	if p := w.create("pod-2", "host-a"); p.Generation != 43 {
		t.Errorf("the next generation is %d", p.Generation)
	}
}

func TestSetHostState(t *testing.T) {
	w := newWorld(t)
	w.join("host-a", "machine-a")
	set := func(epoch uint64, s fleet.HostState) SetHostState {
		return SetHostState{Host: "host-a", Epoch: epoch, State: s, At: at(30)}
	}
	w.refused(fleet.CodeNotFound, SetHostState{Host: "host-z", State: fleet.HostReady})
	w.refused(fleet.CodeStale, set(0, fleet.HostReady)) // it never connected
	w.connect("host-a")
	w.refused(fleet.CodeStale, set(0, fleet.HostUnreachable))
	w.refused(fleet.CodeStale, set(2, fleet.HostUnreachable))
	w.refused(fleet.CodeInvalid, set(1, fleet.HostJoining))
	w.refused(fleet.CodeInvalid, set(1, "fine"))
	before := w.hash()
	w.must(set(1, fleet.HostReady)) // as it is
	if string(before) != string(w.hash()) {
		t.Error("nothing to do, but something was written")
	}
	w.must(set(1, fleet.HostUnreachable))
	if h := w.host("host-a"); h.State != fleet.HostUnreachable || !h.SeenAt.Equal(at(30)) || h.Epoch != 1 {
		t.Errorf("got %+v", h)
	}
	w.must(set(1, fleet.HostReady))
	w.check()
}
