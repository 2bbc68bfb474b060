package dev

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWholeLife(t *testing.T) {
	b := newBench(t)
	stop := b.run()
	first := b.file()

	info, err := os.Stat(filepath.Join(b.cfg.DataDir, "dev.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("dev.json: %v %v", info.Mode(), err)
	}
	if dir, err := LastDir(b.cfg.StateHome); err != nil || dir != b.cfg.DataDir {
		t.Errorf("pointer names %q: %v", dir, err)
	}
	if first.DataCenterID != "dev-1" || first.ProxyDomain != "proxy.localhost" || !strings.HasPrefix(first.APIKey.Reveal(), "gk_user") ||
		!strings.HasPrefix(first.AdminKey.Reveal(), "gk_admin") || !strings.HasPrefix(first.API, "http://127.0.0.1:") {
		t.Errorf("dev.json: %+v", first)
	}
	var roles []string
	for _, p := range first.Processes {
		roles = append(roles, p.Role+" "+p.ID)
		if words := commandLine(p.PID); len(words) == 0 || !strings.HasSuffix(words[0], p.Role) {
			t.Errorf("process %d of %s is %q", p.PID, p.Role, words)
		}
	}
	if diff := cmp.Diff([]string{"scheduler m1", "agent h1", "containerd containerd"}, roles); diff != "" {
		t.Error(diff)
	}
	for _, role := range []string{roleScheduler, roleAgent, roleContainerd} {
		old := pidOf(b.file(), role)
		if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		b.wait("a new "+role, func() bool {
			f, err := ReadFile(b.cfg.DataDir)
			return err == nil && pidOf(f, role) != 0 && pidOf(f, role) != old
		})
	}
	b.wait("the second start of each", func() bool {
		events := strings.Join(b.noted(), " ")
		return strings.Count(events, "agent_runs") == 2 && strings.Count(events, "containerd_runs") == 2 && strings.Count(events, "scheduler_runs") == 2
	})
	if events := b.noted(); !slices.Contains(events, "quotas_100000_6000000_144000000") {
		t.Errorf("the scheduler was given other quotas: %q", events)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	events := b.noted()
	ends := slices.DeleteFunc(slices.Clone(events), func(e string) bool { return !strings.HasSuffix(e, "_stops") && e != "clean" })
	if diff := cmp.Diff([]string{"agent_stops", "clean", "containerd_stops", "scheduler_stops"}, ends); diff != "" {
		t.Error(diff)
	}
	b.nothingLeft()
	if !strings.Contains(b.out.String(), "export GANTRY_API="+first.API) || strings.Contains(b.out.String(), first.APIKey.Reveal()) {
		t.Errorf("told:\n%s", b.out)
	}

	stop = b.run()
	again := b.file()
	if again.APIKey != first.APIKey || again.AdminKey != first.AdminKey {
		t.Error("other keys the second time")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	events = b.noted()
	count := func(prefix string) (n int) {
		for _, e := range events {
			if strings.HasPrefix(e, prefix) {
				n++
			}
		}
		return n
	}
	if count("init") != 1 || count("join") != 1 || count("clean") != 2 {
		t.Errorf("events: %q", events)
	}
	links := map[string]bool{}
	for _, e := range events {
		if strings.HasPrefix(e, "scheduler_runs") {
			links[e] = true
		}
	}
	if len(links) != 1 {
		t.Errorf("the link's port changed: %v", links)
	}
}

func TestAgentGetsItsSettings(t *testing.T) {
	b := newBench(t)
	archive := filepath.Join(b.dir, "image.tar")
	if err := os.WriteFile(archive, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.cfg.ImageArchives, b.cfg.Overcommit = []string{archive}, 4
	stop := b.run()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	want := "--simulate-gpus_NVIDIA_B200:2_--image-archive_" + archive
	if i := slices.IndexFunc(b.noted(), func(e string) bool {
		return strings.HasPrefix(e, "agent_runs") && strings.Contains(e, want) && strings.Contains(e, "--overcommit_4")
	}); i < 0 {
		t.Errorf("events: %q", b.noted())
	}
}

func TestTwoOnOneFolderAreRefused(t *testing.T) {
	b := newBench(t)
	stop := b.run()
	before := b.file()
	err := Run(context.Background(), b.cfg)
	if err == nil || !strings.Contains(err.Error(), "another gantry dev runs on") || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before.Processes, b.file().Processes); diff != "" {
		t.Error(diff)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestTwoFoldersDoNotMeet(t *testing.T) {
	b := newBench(t)
	stop := b.run()
	other := *b
	other.cfg.DataDir = filepath.Join(b.dir, "other")
	stopOther := other.run()
	if b.file().API == other.file().API {
		t.Error("one address for both")
	}
	if dir, err := LastDir(b.cfg.StateHome); err != nil || dir != other.cfg.DataDir {
		t.Errorf("the pointer names %s, not the one that was started last: %v", dir, err)
	}
	if err := stopOther(); err != nil {
		t.Error(err)
	}
	if pid := pidOf(b.file(), roleAgent); commandLine(pid) == nil {
		t.Error("stopping one stopped the other")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	b.nothingLeft()
}

func TestRefusedBeforeAnythingStarts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	tests := []struct {
		name, want string
		change     func(b *bench)
	}{
		{"port taken", "address already in use", func(b *bench) { b.cfg.Listen = taken.Addr().String() }},
		{"bad address", "must be HOST:PORT", func(b *bench) { b.cfg.Listen = "8080" }},
		{"foreign folder", "was not made by gantry dev", func(b *bench) {
			if err := os.MkdirAll(filepath.Join(b.cfg.DataDir, "scheduler"), 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		{"no archive", "no such file", func(b *bench) { b.cfg.ImageArchives = []string{"/nowhere/image.tar"} }},
		{"no socket", "no such file", func(b *bench) { b.cfg.Containerd = "/nowhere/containerd.sock" }},
		{"not a socket", "not a socket", func(b *bench) { b.cfg.Containerd = b.cfg.Binaries.Agent }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			tt.change(b)
			if err := Run(context.Background(), b.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if events := b.noted(); len(events) > 0 {
				t.Errorf("started: %q", events)
			}
		})
	}
}

func TestOtherDataCenterIsRefused(t *testing.T) {
	b := newBench(t)
	b.cfg.DataCenter = "lab-1"
	if err := b.run()(); err != nil {
		t.Fatal(err)
	}
	b.cfg.DataCenter = "lab-2"
	if err := Run(context.Background(), b.cfg); err == nil || !strings.Contains(err.Error(), "lab-1") {
		t.Errorf("got %v", err)
	}
	b.cfg.DataCenter = ""
	stop := b.run()
	if got := b.file().DataCenterID; got != "lab-1" {
		t.Errorf("data center %s", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestInterruptedFirstStartIsMadeGood(t *testing.T) {
	b := newBench(t)
	b.behave("init-dies")
	err := Run(context.Background(), b.cfg)
	if err == nil || !strings.Contains(err.Error(), "init dies half-way") {
		t.Fatalf("got %v", err)
	}
	if err := os.Remove(b.events + ".init-dies"); err != nil {
		t.Fatal(err)
	}
	if err := b.run()(); err != nil {
		t.Error(err)
	}
}

func TestSchedulerThatDoesNotComeUp(t *testing.T) {
	b := newBench(t)
	b.behave("scheduler-dies")
	err := Run(context.Background(), b.cfg)
	if err == nil || !strings.Contains(err.Error(), "keeps exiting") || !strings.Contains(err.Error(), "bad weather") {
		t.Errorf("got %v", err)
	}
	b.nothingLeft()
}

func TestWhatIsLeftBehindIsSaid(t *testing.T) {
	b := newBench(t)
	b.behave("clean-fails")
	stop := b.run()
	if err := stop(); err == nil || !strings.Contains(err.Error(), "a link would not go") {
		t.Errorf("got %v", err)
	}
	if events := b.noted(); events[len(events)-1] != "scheduler_stops" {
		t.Errorf("the rest was not stopped: %q", events)
	}
	b.nothingLeft()
}

func TestStopDuringStart(t *testing.T) {
	b := newBench(t)
	b.cfg.Binaries.Agent = filepath.Join(b.dir, "bin", "stubborn") // joins for ever
	b.cfg.tune.grace = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, b.cfg) }()
	b.wait("the join", func() bool { return slices.Contains(b.noted(), "deaf") })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	b.nothingLeft()
}
