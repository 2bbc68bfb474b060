package podnet

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/netctl"
)

// TestWhichPodsAreAttached: those that may run, or still do, with what the one that runs holds.
func TestWhichPodsAreAttached(t *testing.T) {
	addr := netip.MustParseAddr("10.88.0.5")
	ports, held := []fleet.PortMapping{{Public: 1, Private: 80}}, []fleet.PortMapping{{Public: 2, Private: 90}}
	ended := func(n uint64) *pod.Ended { return &pod.Ended{Incarnation: n} }
	record := func(change func(*pod.Record)) pod.Record {
		r := pod.Record{Addr: addr, Assignment: pod.Assignment{Pod: "p", Account: "a", Incarnation: 2, Goal: fleet.GoalRun, Mappings: ports}}
		change(&r)
		return r
	}
	holds := func(r *pod.Record) { r.Begun, r.Held = 2, &pod.Holding{Mappings: held} }
	for what, c := range map[string]struct {
		change func(*pod.Record)
		ports  []fleet.PortMapping // nil: it is not attached
	}{
		"is to run":                          {func(*pod.Record) {}, ports},
		"runs":                               {holds, ports},
		"without an address":                 {func(r *pod.Record) { r.Addr = netip.Addr{} }, nil},
		"has ended":                          {func(r *pod.Record) { r.Begun, r.Ended = 2, ended(2) }, nil},
		"ended before this order":            {func(r *pod.Record) { r.Begun, r.Ended = 1, ended(1) }, ports},
		"is to stop, and runs":               {func(r *pod.Record) { holds(r); r.Assignment.Goal = fleet.GoalStop }, held},
		"is to stop, and never ran":          {func(r *pod.Record) { r.Assignment.Goal = fleet.GoalStop }, nil},
		"is to stop, an earlier one had run": {func(r *pod.Record) { r.Assignment.Goal, r.Begun = fleet.GoalStop, 1 }, nil},
	} {
		got := Attached([]pod.Record{record(c.change)}, func(netip.Addr) uint32 { return 7 })
		switch {
		case c.ports == nil && len(got) != 0:
			t.Errorf("%s: %+v", what, got)
		case c.ports != nil && (len(got) != 1 || got[0].Pod != "p" || got[0].Link.Addr != addr || got[0].Link.Account != "a" || len(got[0].Link.Ports) != 1 || got[0].Link.Ports[0] != c.ports[0]):
			t.Errorf("%s: %+v", what, got)
		}
	}
}

// TestNoPortIsLeftOut of what is published.
func TestNoPortIsLeftOut(t *testing.T) {
	got := netPorts([]fleet.PortMapping{
		{Public: 65_535, Private: 65_535}, {Public: 0, Private: 80}, {Public: 65_536, Private: 80}, {Public: 9, Private: 65_536}, {Public: 1, Private: 1}, {Public: 1, Private: 2},
	})
	if want := []netctl.Port{{Public: 1, Private: 1}, {Public: 65_535, Private: 65_535}}; len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%v", got)
	}
}

// TestAResolverThatCannotBeWrittenIsTold; one that says so already is not written again.
func TestAResolverThatCannotBeWrittenIsTold(t *testing.T) {
	dir := t.TempDir()
	var said bytes.Buffer
	records := []pod.Record{{Begun: 1, Assignment: pod.Assignment{Pod: "p1", Incarnation: 1}}, {Assignment: pod.Assignment{Pod: "p2", Incarnation: 1}}}
	for _, p := range []string{"p1", "p2"} {
		if err := os.MkdirAll(filepath.Join(dir, p), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "p1", "resolv.conf")
	resolve := func(text string) string {
		said.Reset()
		Resolve(dir, records, text, slog.New(slog.NewTextHandler(&said, nil)))
		return said.String()
	}
	if got := resolve("x"); got != "" {
		t.Errorf("of a file that is not there is said %s", got)
	}
	if err := os.WriteFile(path, []byte("longer text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "p2", "resolv.conf"), []byte("own"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := resolve("short"); got != "" {
		t.Error(got)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := resolve("short"); got != "" {
		t.Error(got)
	}
	after, err := os.Stat(path)
	text, readErr := os.ReadFile(path)
	if err != nil || readErr != nil || !after.ModTime().Equal(before.ModTime()) || string(text) != "short" {
		t.Errorf("%q, written again: %v", text, !after.ModTime().Equal(before.ModTime()))
	}
	if other, err := os.ReadFile(filepath.Join(dir, "p2", "resolv.conf")); err != nil || string(other) != "own" {
		t.Errorf("a pod that does not run has %q, %v", other, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := resolve("x"); !strings.Contains(got, "write a pod's resolv.conf") || !strings.Contains(got, "p1") {
		t.Errorf("said %q", got)
	}
}
