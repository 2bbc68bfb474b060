package usage

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/machine"
	"gantry/agent/pod"
	"gantry/agent/reports"
	"gantry/fleet"
)

// clocked is a runtime whose pods have used processor time at a pace since a moment; those that are unreadable cannot be read.
type clocked struct {
	pod.Runtime
	began      time.Time
	pace       map[fleet.PodID]float64 // processors
	unreadable map[fleet.PodID]bool
	asked      map[fleet.PodID]int
}

func (c *clocked) Usage(ctx context.Context, id fleet.PodID) (pod.Usage, error) {
	if until, ok := ctx.Deadline(); !ok || time.Until(until) != usageTimeout {
		return pod.Usage{}, errors.New("without a deadline")
	}
	if c.asked[id]++; c.unreadable[id] {
		return pod.Usage{}, errors.New("no such container")
	}
	return pod.Usage{CPU: time.Duration(float64(time.Since(c.began)) * c.pace[id]), Memory: 100 * fleet.MB}, nil
}

// TestRoundsOfReadings: running pods alone are read, every two seconds; what processors were used between two readings of one
// incarnation is told; GPUs that no pod has, the disk and links are read besides.
func TestRoundsOfReadings(t *testing.T) {
	book := ledgertest.Open(t, t.TempDir())
	order := func(id fleet.PodID, incarnation uint64, limits fleet.Resources, gpus ...string) pod.Assignment {
		return pod.Assignment{Pod: id, Incarnation: incarnation, Goal: fleet.GoalRun, Generation: 1, GPUs: gpus, Limits: limits}
	}
	half := fleet.Resources{MilliCPU: 2000, MemoryMB: 200}
	all := []pod.Assignment{
		order("p1", 1, half, "GPU-a"), order("waits", 1, half), order("ended", 1, half), order("lost", 1, half), order("free", 1, fleet.Resources{}),
	}
	ledgertest.SetFull(t, book, all...)
	for _, id := range []fleet.PodID{"p1", "ended", "lost", "free"} {
		if err := book.Begin(pod.Assignment{Pod: id, Incarnation: 1}, "boot"); err != nil {
			t.Fatal(err)
		}
	}
	if err := book.End("ended", pod.Ended{Incarnation: 1, Event: fleet.EventExited}); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		runs := &clocked{
			began: time.Now(), pace: map[fleet.PodID]float64{"p1": 0.5, "free": 1}, unreadable: map[fleet.PodID]bool{"lost": true}, asked: map[fleet.PodID]int{},
		}
		m := &meter{}
		activities := map[fleet.PodID]reports.Activity{"waits": {Words: "pulls", Done: 3, Total: 9}}
		s := New(Config{
			Runtime: runs, Meter: m, Ledger: book, Activities: func() map[fleet.PodID]reports.Activity { return activities },
			All:   func() []string { return []string{"GPU-a", "GPU-b"} },
			Space: func() (machine.Disk, error) { return machine.Disk{Used: 7}, nil },
			Link: func(id fleet.PodID) string {
				if id == "p1" {
					return "lo"
				}
				return "none"
			},
		})
		ctx, end := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); s.Run(ctx) }()
		time.Sleep(sampleEvery + time.Second) // two rounds
		end()
		<-over
		now := s.Snapshot()
		if time.Since(now.At) != time.Second || len(now.Pods) != 2 || runs.asked["p1"] != 2 || runs.asked["waits"]+runs.asked["ended"] != 0 {
			t.Errorf("%+v, asked %v", now, runs.asked)
		}
		if now.Disk.Used != 7 || len(now.GPUs) != 2 || now.GPUs["GPU-b"].Util != 40 || !slices.Equal(m.asked, []string{"GPU-b"}) {
			t.Errorf("disk %v, GPUs %v, asked last for %v", now.Disk, now.GPUs, m.asked)
		}
		if p := now.Pods["p1"]; p.cpuPercent != 25 || p.memPercent != 50 || p.diskPercent != 0 || p.Net == (Traffic{}) {
			t.Errorf("p1: %+v", p)
		}
		if p := now.Pods["free"]; p.cpuPercent != 0 || p.memPercent != 0 || p.Net != (Traffic{}) {
			t.Errorf("a pod without limits: %+v", p)
		}
		told := map[string]string{}
		for _, p := range s.Heartbeat().GetPods() {
			told[p.GetPodId()] = p.String()
		}
		if len(told) != 3 || !strings.Contains(told["waits"], "pulls") || !strings.Contains(told["p1"], "cpu_percent:25") || told["free"] == "" {
			t.Errorf("told %v", told)
		}
		// While something is done for a pod, that is told in place of what it uses; and of another incarnation nothing is known yet.
		activities["p1"] = reports.Activity{Words: "stops"}
		s.now.Pods["free"], s.now.Pods["p1"] = Sample{Incarnation: 7}, Sample{Incarnation: 7, at: time.Now()}
		told = map[string]string{}
		for _, p := range s.Heartbeat().GetPods() {
			told[p.GetPodId()] = p.String()
		}
		if len(told) != 2 || !strings.Contains(told["p1"], "stops") || strings.Contains(told["p1"], "cpu_percent") {
			t.Errorf("told %v", told)
		}
		time.Sleep(sampleEvery)
		s.readAll(t.Context()) // what was of another incarnation is no reading to compare with
		for id, p := range s.Snapshot().Pods {
			if p.Incarnation != 1 || p.cpuPercent != 0 {
				t.Errorf("%s: %+v", id, p)
			}
		}
		s.readAll(t.Context()) // at the same moment: there is no time in which it was used
		if p := s.Snapshot().Pods["p1"]; p.cpuPercent != 0 {
			t.Errorf("two readings at one moment: %+v", p)
		}
		for what, c := range map[string]struct {
			all  []string
			want int
		}{"all held": {[]string{"GPU-a"}, 1}, "more than the meter tells of": {[]string{"x", "y", "z"}, 1}, "two more": {[]string{"x", "y"}, 3}} {
			s.All = func() []string { return c.all }
			m.asked = nil
			if s.readAll(t.Context()); len(s.Snapshot().GPUs) != c.want || what == "all held" && !slices.Equal(m.asked, []string{"GPU-a"}) {
				t.Errorf("%s: %v, asked last for %v", what, s.Snapshot().GPUs, m.asked)
			}
		}
		s.Meter = nil
		if s.readAll(t.Context()); len(s.Snapshot().GPUs) != 0 {
			t.Errorf("without a meter: %v", s.Snapshot().GPUs)
		}
		s.Meter, s.All, s.Space, s.Link = m, nil, nil, nil
		s.readAll(t.Context())
		if now := s.Snapshot(); len(now.GPUs) != 1 || now.Disk.Used != 0 || now.Pods["p1"].Net != (Traffic{}) {
			t.Errorf("of a host that tells of nothing else: %+v", now)
		}
	})
}

// TestHurryWhilePulling asks for heartbeats while there is something to tell of a pull, and not otherwise.
func TestHurryWhilePulling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		var doing atomic.Pointer[reports.Activity]
		s := New(Config{
			Activities: func() map[fleet.PodID]reports.Activity {
				return map[fleet.PodID]reports.Activity{"a": *doing.Load(), "b": *doing.Load()}
			},
			Hurry: func() { asked.Add(1) },
		})
		ctx, end := context.WithCancel(t.Context())
		over := make(chan struct{})
		doing.Store(&reports.Activity{})
		go func() { defer close(over); s.HurryWhilePulling(ctx) }()
		for i, x := range []struct {
			doing reports.Activity
			want  int32
		}{{reports.Activity{Words: "waits"}, 0}, {reports.Activity{Total: 9}, 5}, {reports.Activity{Done: 9}, 10}, {reports.Activity{Words: "waits"}, 10}} {
			doing.Store(&x.doing)
			time.Sleep(5 * hurryLeast)
			if synctest.Wait(); asked.Load() != x.want {
				t.Errorf("%d: it was asked for %d heartbeats, not %d", i, asked.Load(), x.want)
			}
		}
		end()
		<-over
	})
}

// TestLinesThatAreNone are left out.
func TestLinesThatAreNone(t *testing.T) {
	for line, want := range map[string]int{
		"a: 1 2 3 4 5 6 7 8 9": 1, "a 1 2 3 4 5 6 7 8 9": 0, "a: 1 2 3 4 5 6 7 8": 0, "a: x 2 3 4 5 6 7 8 9": 0, "a: 1 2 3 4 5 6 7 8 x": 0, "": 0,
	} {
		if got := parseTraffic(strings.NewReader(line + "\n")); len(got) != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}
