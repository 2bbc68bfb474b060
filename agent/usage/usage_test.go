package usage

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/agent/reports"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/netctl"
)

// many is a runtime that reads all pods at once.
type many struct{ fixed }

func (*many) Usages(_ context.Context, ids []fleet.PodID) map[fleet.PodID]pod.Usage {
	out := map[fleet.PodID]pod.Usage{}
	for _, id := range ids {
		out[id] = pod.Usage{CPU: 1500 * time.Millisecond, Memory: 250 * fleet.MB, Disk: 3 * fleet.GB, DiskSize: 4 * fleet.GB}
	}
	return out
}

// meter tells what it was asked for.
type meter struct {
	asked []string
	idle  int // questions of no GPU
}

func (m *meter) Use(_ context.Context, uuids []string) []fleet.GPUUse {
	if m.asked = slices.Clone(uuids); len(uuids) == 0 {
		m.idle++
	}
	return []fleet.GPUUse{{Util: 40, MemoryUtil: 50}, {Util: 130, MemoryUtil: -1}}[:min(len(uuids), 2)]
}

// fixed is a runtime of which only the pods' usage is asked.
type fixed struct{ pod.Runtime }

func (fixed) Usage(context.Context, fleet.PodID) (pod.Usage, error) {
	return pod.Usage{CPU: time.Second, Memory: 500 * fleet.MB}, nil
}

func TestHeartbeatHasGPUs(t *testing.T) {
	book := ledgertest.Open(t, t.TempDir())
	order := func(id fleet.PodID, gpus ...string) pod.Assignment {
		return pod.Assignment{Pod: id, Incarnation: 1, Goal: fleet.GoalRun, Generation: 1, GPUs: gpus, Limits: fleet.Resources{MilliCPU: 1000, MemoryMB: 1000}}
	}
	ledgertest.SetFull(t, book, order("p1", "GPU-b", "GPU-a"), order("p2"), order("p3", "1", "2", "3"))
	for _, id := range []fleet.PodID{"p1", "p2", "p3"} {
		if err := book.Begin(pod.Assignment{Pod: id, Incarnation: 1}, "boot"); err != nil {
			t.Fatal(err)
		}
	}
	m := &meter{}
	s := New(Config{
		Runtime: fixed{}, Meter: m, Ledger: book, Activities: func() map[fleet.PodID]reports.Activity { return nil },
	})
	s.readAll(t.Context())
	got := map[string][]*agentrpc.GPUUse{}
	for _, p := range s.Heartbeat().GetPods() {
		got[p.GetPodId()] = p.GetGpus()
		if p.GetMemoryPercent() != 50 {
			t.Errorf("memory of %s: %d", p.GetPodId(), p.GetMemoryPercent())
		}
	}
	if g := got["p1"]; len(g) != 2 || g[0].GetUtil() != 40 || g[0].GetMemoryUtil() != 50 || g[1].GetUtil() != 100 || g[1].GetMemoryUtil() != 0 {
		t.Errorf("GPUs of p1: %v", g)
	}
	if m.idle > 0 {
		t.Error("the driver is asked for pods that have no GPU")
	}
	if len(got["p2"]) != 0 || len(got["p3"]) != 0 { // none, and a meter that tells of too few
		t.Errorf("GPUs of the others: %v, %v", got["p2"], got["p3"])
	}
	s.Meter = nil
	s.readAll(t.Context())
	for _, p := range s.Heartbeat().GetPods() {
		if len(p.GetGpus()) != 0 {
			t.Errorf("without a meter: %v", p)
		}
	}
}

func TestTrafficIsThePods(t *testing.T) {
	const text = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
gn0a1bxyz:   500 2 0 0 0 0 0 0   700 3 0 0 0 0 0 0
short: 1 2
`
	got := parseTraffic(strings.NewReader(text))
	if len(got) != 2 || got["gn0a1bxyz"] != (Traffic{Received: 700, Sent: 500}) {
		t.Errorf("%v", got)
	}
	if _, ok := readTraffic()["lo"]; !ok {
		t.Error("the host has no lo")
	}
	if name := netctl.LinkName("0a1b", "p1"); len(name) != 15 {
		t.Errorf("a link is named %s", name)
	}
}

func TestHeartbeatHasTheDisk(t *testing.T) {
	book := ledgertest.Open(t, t.TempDir())
	s := New(Config{Runtime: &many{}, Ledger: book, Activities: func() map[fleet.PodID]reports.Activity { return nil }})
	ledgertest.SetFull(t, book, pod.Assignment{
		Pod: "p1", Incarnation: 1, Goal: fleet.GoalRun, Generation: 1, Limits: fleet.Resources{MilliCPU: 2000, MemoryMB: 1000},
	})
	if err := book.Begin(pod.Assignment{Pod: "p1", Incarnation: 1}, "boot"); err != nil {
		t.Fatal(err)
	}
	s.readAll(t.Context())
	pods := s.Heartbeat().GetPods()
	if len(pods) != 1 || pods[0].GetDiskPercent() != 75 || pods[0].GetMemoryPercent() != 25 {
		t.Errorf("%v", pods)
	}
}
