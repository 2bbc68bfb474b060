package state

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

func member(id fleet.MemberID) fleet.Member {
	return fleet.Member{ID: id, Name: "name-" + string(id), Address: "192.0.2.1:8443", Level: 1, Version: "1", JoinedAt: at(1)}
}

func memberToken() fleet.JoinToken {
	return fleet.JoinToken{ID: "mt", Hash: []byte("hash of mt"), Role: fleet.TokenScheduler, ExpiresAt: at(1000)}
}

func (w *world) members() (out []fleet.Member) {
	w.t.Helper()
	w.view(func(v *View) { out = v.Members() })
	return out
}

func TestMembers(t *testing.T) {
	w := newWorld(t).settle()
	index := w.s.Index()
	w.must(PutMember{member("m1")})
	if evs, _, _ := w.s.Events(index); !slices.Equal(evs, []Event{{Index: index + 1, Kind: KindMember, ID: "m1"}}) {
		t.Errorf("events %v", evs)
	}
	tok := memberToken()
	tok.NonVoter, tok.Replaces = true, "m1"
	in := member("m2")
	in.NonVoter, in.Replaces = false, "m9" // the token's count
	got := w.must(PutToken{Token: tok, At: at(0)}, JoinMember{Token: "mt", Hash: tok.Hash, Member: in, At: at(2)})
	want := member("m2")
	want.NonVoter, want.Replaces = true, "m1"
	if d := cmp.Diff(any(want), got); d != "" {
		t.Error(d)
	}
	moved := member("m1")
	moved.Address = "192.0.2.7:8443"
	w.must(PutMember{moved}, RemoveMember{Member: "m1", At: at(3)})
	moved.RemovedAt = at(3)
	if d := cmp.Diff([]fleet.Member{moved, want}, w.members()); d != "" {
		t.Error(d)
	}
	hash := w.hash()
	w.must(RemoveMember{Member: "m1", At: at(4)})
	if string(hash) != string(w.hash()) {
		t.Error("a second removal changed something")
	}
	w.check()
}

func TestMembersAreRefused(t *testing.T) {
	w := newWorld(t).settle()
	w.must(PutMember{member("m1")}, PutMember{member("m2")}, RemoveMember{Member: "m2", At: at(1)}, RaiseLevel{Level: 1})
	w.must(PutToken{Token: memberToken(), At: at(0)}, PutToken{Token: token("ht"), At: at(0)})
	join := func(change func(*JoinMember)) JoinMember {
		c := JoinMember{Token: "mt", Hash: memberToken().Hash, Member: member("m3"), At: at(2)}
		change(&c)
		return c
	}
	put := func(change func(*fleet.Member)) PutMember {
		m := member("m3")
		change(&m)
		return PutMember{m}
	}
	for name, c := range map[string]struct {
		code fleet.Code
		cmd  Command
	}{
		"put: no id":              {fleet.CodeInvalid, put(func(m *fleet.Member) { m.ID = "" })},
		"put: no address":         {fleet.CodeInvalid, put(func(m *fleet.Member) { m.Address = "" })},
		"put: a long name":        {fleet.CodeInvalid, put(func(m *fleet.Member) { m.Name = strings.Repeat("x", 257) })},
		"put: removed by itself":  {fleet.CodeInvalid, put(func(m *fleet.Member) { m.RemovedAt = at(1) })},
		"put: was removed":        {fleet.CodeNotAllowed, put(func(m *fleet.Member) { m.ID = "m2" })},
		"join: no such token":     {fleet.CodeUnauthorized, join(func(c *JoinMember) { c.Token = "x" })},
		"join: wrong secret":      {fleet.CodeUnauthorized, join(func(c *JoinMember) { c.Hash = []byte("x") })},
		"join: expired":           {fleet.CodeUnauthorized, join(func(c *JoinMember) { c.At = at(1000) })},
		"join: a host's token":    {fleet.CodeUnauthorized, join(func(c *JoinMember) { c.Token, c.Hash = "ht", token("ht").Hash })},
		"join: the id is taken":   {fleet.CodeExists, join(func(c *JoinMember) { c.Member.ID = "m1" })},
		"join: the id was taken":  {fleet.CodeExists, join(func(c *JoinMember) { c.Member.ID = "m2" })},
		"join: no address":        {fleet.CodeInvalid, join(func(c *JoinMember) { c.Member.Address = "" })},
		"join: an older program":  {fleet.CodeConflictRule, join(func(c *JoinMember) { c.Member.Level = 0 })},
		"remove: unknown":         {fleet.CodeNotFound, RemoveMember{Member: "m9", At: at(1)}},
		"remove: no time":         {fleet.CodeInvalid, RemoveMember{Member: "m1"}},
		"token: an unknown role":  {fleet.CodeInvalid, PutToken{Token: fleet.JoinToken{ID: "x", Hash: []byte("x"), Role: "king", ExpiresAt: at(9)}, At: at(0)}},
		"token: replaces nobody":  {fleet.CodeInvalid, PutToken{Token: fleet.JoinToken{ID: "x", Hash: []byte("x"), Role: fleet.TokenScheduler, Replaces: "m9", ExpiresAt: at(9)}, At: at(0)}},
		"a host by such a token":  {fleet.CodeUnauthorized, JoinHost{Token: "mt", Hash: memberToken().Hash, Host: fleet.Host{ID: "h", MachineID: "m"}, At: at(1)}},
		"token: a host's, no dc":  {fleet.CodeInvalid, PutToken{Token: fleet.JoinToken{ID: "x", Hash: []byte("x"), ExpiresAt: at(9)}, At: at(0)}},
		"restore: an old lineage": {fleet.CodeStale, restore(0)},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.refused(c.code, c.cmd)
		})
	}
	w.t = t
	w.must(join(func(*JoinMember) {})) // none of the refused has burnt the token
	w.refused(fleet.CodeUnauthorized, join(func(c *JoinMember) { c.Member.ID = "m4" }))
}

// restore makes a restored copy a cluster of its own.
func restore(lineage uint64) RestoreCluster {
	return RestoreCluster{ID: "restored", Lineage: lineage, Member: member("m-new"), SnapshotAt: at(60), At: at(70)}
}

func TestRestoreMakesAClusterOfItsOwn(t *testing.T) {
	w := newWorld(t).settle()
	w.must(PutMember{member("m1")}, PutMember{member("m2")}, RemoveMember{Member: "m2", At: at(1)}, RaiseLevel{Level: 1})
	w.must(PutToken{Token: token("used since"), At: at(0)}, restore(5))
	var c Cluster
	w.view(func(v *View) { c, _ = v.Cluster() })
	want := Cluster{
		ID: "restored", CA: []byte("ca"), SealedCAKey: []byte("sealed"), Lineage: 5, Level: 1, RestoredAt: at(70), SnapshotAt: at(60),
	}
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
	m1, m2 := member("m1"), member("m2")
	m1.RemovedAt, m2.RemovedAt = at(70), at(1)
	if d := cmp.Diff([]fleet.Member{member("m-new"), m1, m2}, w.members()); d != "" {
		t.Error(d)
	}
	if len(w.dump().Tokens) != 0 {
		t.Error("join tokens of the copy are good")
	}
	again := restore(5)
	again.Member.ID = "m-other"
	w.refused(fleet.CodeStale, again)
	again.Lineage = 4
	w.refused(fleet.CodeStale, again)
	again.Lineage = maxLineage + 1
	w.refused(fleet.CodeInvalid, again)
	again.Lineage = 6
	for name, change := range map[string]func(*RestoreCluster){
		"id": func(c *RestoreCluster) { c.ID = "" }, "time": func(c *RestoreCluster) { c.At = time.Time{} },
		"address": func(c *RestoreCluster) { c.Member.Address = "" },
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			bad := again
			change(&bad)
			w.refused(fleet.CodeInvalid, bad)
		})
	}
	w.t = t
	again.Member.ID = "m2"
	w.refused(fleet.CodeExists, again)
	w.check()
	newWorld(t).refused(fleet.CodeNotFound, restore(1))
}
