package orders

import (
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// TestAnOrderOfAMember: what a host takes of names and files, and what it refuses in words.
func TestAnOrderOfAMember(t *testing.T) {
	with := func(change func(*agentrpc.MemberSetup)) *agentrpc.MemberSetup {
		m := &agentrpc.MemberSetup{
			Hostname: "node-1", Hosts: "10.65.0.2 node-0\n", Files: []*agentrpc.PodFile{{Path: "/etc/gantry/hostfile", Text: []byte("node-0 slots=8\n"), Mode: 0o644}},
		}
		change(m)
		return m
	}
	path := func(p string) *agentrpc.MemberSetup {
		return with(func(m *agentrpc.MemberSetup) { m.Files[0].Path = p })
	}
	for name, c := range map[string]struct {
		in   *agentrpc.MemberSetup
		says string
	}{
		"nothing":       {nil, ""},
		"good":          {with(func(*agentrpc.MemberSetup) {}), ""},
		"no name":       {with(func(m *agentrpc.MemberSetup) { m.Hostname = "" }), "names that no host can have"},
		"a path":        {with(func(m *agentrpc.MemberSetup) { m.Hostname = "../x" }), "names that no host can have"},
		"NUL in hosts":  {with(func(m *agentrpc.MemberSetup) { m.Hosts = "\x00" }), "names that no host can have"},
		"relative":      {path("etc/x"), "clean absolute"},
		"dots":          {path("/etc/../x"), "clean absolute"},
		"the root":      {path("/"), "clean absolute"},
		"NUL in a path": {path("/a\x00"), "clean absolute"},
		"set-user-id":   {with(func(m *agentrpc.MemberSetup) { m.Files[0].Mode = 0o4755 }), "permission bits"},
		"many":          {with(func(m *agentrpc.MemberSetup) { m.Files = make([]*agentrpc.PodFile, fleet.MaxPodFiles+1) }), "more files"},
		"large":         {with(func(m *agentrpc.MemberSetup) { m.Hosts = strings.Repeat("x", fleet.MaxPodFileBytes) }), "more bytes"},
	} {
		got, err := decodeMember(c.in)
		switch {
		case c.says != "":
			if got != nil || err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case c.in != nil && (got.Hostname != "node-1" || len(got.Files) != 1 || got.Files[0].Mode != 0o644 || string(got.Files[0].Text) != "node-0 slots=8\n"):
			t.Errorf("%s: %+v", name, got)
		}
	}
	o, order := &Orders{}, &agentrpc.Assignment{PodId: "p1", Member: with(func(*agentrpc.MemberSetup) {})}
	if got := o.decode(order); got.Member == nil || got.Member.Hosts != "10.65.0.2 node-0\n" || got.Refused != "" {
		t.Errorf("decoded %+v", got)
	}
}
