package dev

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// lead says which scheduler's folder leads.
func (b *bench) lead(folder string) {
	b.t.Helper()
	if err := os.WriteFile(b.events+".leader", []byte(folder), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// listed returns the processes of dev.json in words.
func listed(f File) []string {
	var out []string
	for _, p := range f.Processes {
		words := p.Role + " " + p.ID
		if p.Leader {
			words += " leads"
		}
		out = append(out, words)
	}
	return out
}

// TestEachSchedulerGetsTheArguments: those that join later, too, and as they were written.
func TestEachSchedulerGetsTheArguments(t *testing.T) {
	b := newBench(t)
	b.cfg.Schedulers, b.cfg.SchedulerArgs = 3, []string{"--oidc-issuer=https://id.example.com/a,b"}
	b.lead("scheduler-2")
	if err := b.run()(); err != nil {
		t.Fatal(err)
	}
	given := slices.DeleteFunc(b.noted(), func(e string) bool { return !strings.Contains(e, "_trusts_") })
	slices.Sort(given)
	want := []string{"scheduler-2_trusts_", "scheduler-3_trusts_", "scheduler_trusts_"}
	for i := range want {
		want[i] += b.cfg.SchedulerArgs[0]
	}
	if diff := cmp.Diff(want, given); diff != "" {
		t.Error(diff)
	}
}

func TestSeveralSchedulersAndAgents(t *testing.T) {
	b := newBench(t)
	b.cfg.Schedulers, b.cfg.Agents = 3, 2
	b.lead("scheduler-2")
	stop := b.run()
	want := []string{"scheduler m1", "scheduler m2 leads", "scheduler m3", "agent h1", "agent h2", "containerd containerd"}
	b.wait("the leader in dev.json", func() bool { return cmp.Equal(want, listed(b.file())) })
	apis := map[string]bool{}
	for _, p := range b.file().Processes {
		if p.Role == roleScheduler {
			apis[p.API] = true
		}
	}
	if len(apis) != 3 || !apis[b.file().API] {
		t.Errorf("APIs: %v", apis)
	}
	told, _, _ := strings.Cut(b.out.String()[strings.Index(b.out.String(), "export GANTRY_API=")+len("export GANTRY_API="):], "\n")
	if all := strings.Split(told, ","); len(all) != 3 || !apis[all[0]] || !apis[all[1]] || !apis[all[2]] {
		t.Errorf("told to use %s of %v", told, apis)
	}
	b.lead("scheduler-3")
	want[1], want[2] = "scheduler m2", "scheduler m3 leads"
	b.wait("the new leader in dev.json", func() bool { return cmp.Equal(want, listed(b.file())) })

	// Each agent is in a network of its own, and is so again after it was killed.
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	networks := func() map[string]bool {
		out := map[string]bool{own: true}
		for _, p := range b.file().Processes {
			if p.Role == roleAgent {
				at, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID))
				out[at] = true
			}
		}
		return out
	}
	if n := networks(); len(n) != 3 {
		t.Errorf("networks: %v", n)
	}
	old := pidOf(b.file(), roleAgent)
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.wait("a new agent", func() bool {
		now := pidOf(b.file(), roleAgent)
		return len(b.file().Processes) == 6 && now != 0 && now != old
	})
	if n := networks(); len(n) != 3 {
		t.Errorf("networks after a restart: %v", n)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.nothingLeft()
	b.noIsland()

	// The folder remembers how many it has, and everything joined once.
	b.cfg.Schedulers, b.cfg.Agents = 0, 0
	stop = b.run()
	if got := len(b.file().Processes); got != 6 {
		t.Errorf("%d processes the second time", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	count := map[string]int{}
	for _, e := range b.noted() {
		count[e]++
	}
	for what, times := range map[string]int{"scheduler-2_joins": 1, "scheduler-3_joins": 1, "join": 2, "clean": 4} {
		if count[what] != times {
			t.Errorf("%q %d times, want %d: %v", what, count[what], times, count)
		}
	}
	b.cfg.Schedulers = 5
	if err := Run(context.Background(), b.cfg); err == nil || !strings.Contains(err.Error(), "is that of 3 schedulers") {
		t.Errorf("5 schedulers on a folder of 3: %v", err)
	}
	b.noIsland()
}

// noIsland fails while a link of the network of this folder's agents is left; others may run a dev beside the test.
func (b *bench) noIsland() {
	b.t.Helper()
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "gd"+islandName(b.cfg.DataDir)) {
			b.t.Errorf("link %s is left", e.Name())
		}
	}
}

func TestNumbersThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		schedulers, agents int
		says               string
	}{{2, 1, "1, 3 or 5"}, {-1, 1, "1, 3 or 5"}, {7, 1, "1, 3 or 5"}, {1, -1, "1 to 16"}, {1, 17, "1 to 16"}} {
		b := newBench(t)
		b.cfg.Schedulers, b.cfg.Agents = c.schedulers, c.agents
		if err := Run(context.Background(), b.cfg); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%d schedulers, %d agents: %v", c.schedulers, c.agents, err)
		}
	}
}

func TestStateOfAnOlderFolder(t *testing.T) {
	var s state
	if err := s.UnmarshalJSON([]byte(`{"dataCenter":"dev-1","linkPort":4711,"podPorts":30000,"initialised":true,"joined":true}`)); err != nil {
		t.Fatal(err)
	}
	if err := s.fit("/x", &Config{}); err != nil {
		t.Fatal(err)
	}
	if !s.Initialised || !s.joined(part{roleAgent, 1}) || s.joined(part{roleScheduler, 2}) || s.Schedulers != 1 || s.Agents != 1 {
		t.Errorf("%+v", s)
	}
	if want := []part{{roleAgent, 1}, {roleContainerd, 1}, {roleScheduler, 1}}; !slices.Equal(s.parts(), want) {
		t.Errorf("parts %v", s.parts())
	}
}
