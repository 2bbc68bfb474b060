package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// counted takes proposals and answers them all alike.
type counted struct {
	mu     sync.Mutex // guards the fields below
	at     []time.Time
	kernel []string
	err    error
}

func (c *counted) Propose(_ context.Context, cmds ...state.Command) ([]entry.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = append(c.at, time.Now())
	c.kernel = append(c.kernel, cmds[0].(state.UpdateInventory).Inventory.Kernel)
	return []entry.Result{{Err: c.err}}, nil
}

func (c *counted) Barrier(context.Context) error { return nil }
func (c *counted) IsLeader() bool                { return true }

// restocked returns a session whose proposals are counted, and its context.
func restocked(t *testing.T, c *counted) (*session, context.Context) {
	ctx, cancel := context.WithCancelCause(t.Context())
	x := newSession(New(Config{Node: c, Log: slog.New(slog.DiscardHandler)}), "host", &agentrpc.Hello{}, cancel)
	t.Cleanup(func() { cancel(nil); x.tasks.Wait() })
	return x, ctx
}

// However often a host says what it has, it is recorded once a second at most, ever less often when it does not stop,
// and the last is what stays.
func TestInventoriesAreRecordedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counted{}
		x, ctx := restocked(t, c)
		for i := range 100 {
			if err := x.receive(ctx, &agentrpc.Up{Kind: &agentrpc.Up_Inventory{Inventory: &agentrpc.Inventory{Kernel: fmt.Sprint(i)}}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(35 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		x.restock(ctx, &agentrpc.Inventory{Kernel: "later"})
		synctest.Wait()
		if n := len(c.at); n != 5 || c.kernel[n-2] != "99" || c.kernel[n-1] != "later" {
			t.Errorf("recorded %q", c.kernel)
		}
		for i := range c.at[1:] {
			if gap := c.at[i+1].Sub(c.at[i]); gap < stockPause {
				t.Errorf("the next one came after %s", gap)
			}
		}
	})
}

func TestAHostThatNeverStopsIsRecordedTwiceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counted{}
		x, ctx := restocked(t, c)
		for i := range 1000 {
			x.restock(ctx, &agentrpc.Inventory{Kernel: fmt.Sprint(i)})
			time.Sleep(600 * time.Millisecond)
		}
		synctest.Wait()
		if n := len(c.at); n < 20 || n > 26 {
			t.Errorf("recorded %d times in ten minutes", n)
		}
	})
}

// What a host says is bounded before it is proposed.
func TestAnInventoryFillsNoLog(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	in := &agentrpc.Inventory{Cuda: long, Driver: long, Kernel: long, Runtime: long, AgentVersion: long}
	for i := range 5000 {
		in.Images = append(in.Images, long, fmt.Sprintf("docker.io/library/a:%d", i))
		in.Gpus = append(in.Gpus, &agentrpc.GPU{Uuid: fmt.Sprint(i), MemoryMb: -1})
	}
	got := decodeInventory(in)
	if len(got.Images) != maxImages || got.Images[0] != "docker.io/library/a:0" || len(got.GPUs) != maxGPUs+1 || got.GPUs[0].MemoryMB != 0 {
		t.Errorf("%d images, %d GPUs of %d MB", len(got.Images), len(got.GPUs), got.GPUs[0].MemoryMB)
	}
	if n := len(got.CUDA + got.Driver + got.Kernel + got.Runtime + got.AgentVersion); n != 5*maxWord {
		t.Errorf("the words have %d bytes", n)
	}
	report := decodeReports([]*agentrpc.PodReport{{PodId: "p", Event: "failed", Reason: long, LogTail: strings.Repeat("ü", 1<<20) + "end", Digest: "sha256:" + long}}, 0)[0]
	if len(report.Reason) != maxReason || len(report.LogTail) > maxTail || !utf8.ValidString(report.LogTail) || !strings.HasSuffix(report.LogTail, "end") || report.Digest != "" {
		t.Errorf("a report has %d and %d bytes, and the digest %.20s", len(report.Reason), len(report.LogTail), report.Digest)
	}
}

// A session that is over ends with it; what the state refuses does not end one.
func TestAnInventoryOfAnOldSessionEndsIt(t *testing.T) {
	for code, ends := range map[fleet.Code]bool{fleet.CodeStale: true, fleet.CodeInvalid: false} {
		synctest.Test(t, func(t *testing.T) {
			c := &counted{err: &fleet.Error{Code: code}}
			x, ctx := restocked(t, c)
			x.restock(ctx, &agentrpc.Inventory{})
			time.Sleep(5 * time.Second)
			if cause := context.Cause(ctx); (cause != nil) != ends || ends && fleet.CodeOf(cause) != code {
				t.Errorf("%s: ended by %v", code, cause)
			}
		})
	}
}

// What a host says of itself is read as far as it makes sense, and the state refuses nothing of it.
func TestConditionsOfAHostAreBounded(t *testing.T) {
	in := &agentrpc.Inventory{
		RuntimeClass: "runc",
		Gpus:         []*agentrpc.GPU{{Uuid: "MIG-1", Pci: "0000:3b:00.0", Parent: "GPU-1", Sick: strings.Repeat("x", 5000)}},
		Conditions:   []*agentrpc.Condition{{Code: "Bad"}, {Code: ""}, {Code: "z", Text: strings.Repeat("ü", 5000), Severe: true}},
	}
	for i := range 50 {
		in.Conditions = append(in.Conditions, &agentrpc.Condition{Code: fmt.Sprintf("n%02d", i), Text: "x"})
	}
	in.Conditions = append(in.Conditions, &agentrpc.Condition{Code: "a_last", Severe: true})
	got := decodeInventory(in)
	if n := len(got.Conditions); n != maxConditions || got.Conditions[0].Code != "a_last" || got.Conditions[n-1].Code != "z" || got.RuntimeClass != "" {
		t.Errorf("read %d: %+v", n, got)
	}
	if g := got.GPUs[0]; g.PCI != "0000:3b:00.0" || g.Parent != "GPU-1" {
		t.Errorf("the GPU is %+v", g)
	}
	a := newAlone(t)
	a.must(state.ConnectHost{Host: "host", MachineID: "m", BootID: "b", At: time.Now()})
	a.must(state.UpdateInventory{Host: "host", Epoch: 1, Inventory: got, At: time.Now()})
	check(t, a.store.View(func(v *state.View) error {
		h, _ := v.Host("host")
		if d := cmp.Diff(got, h.Inventory, plainAddrs); d != "" {
			t.Error(d)
		}
		return nil
	}))
	if kata := decodeInventory(&agentrpc.Inventory{RuntimeClass: "kata"}); kata.RuntimeClass != "kata" {
		t.Errorf("the class is %q", kata.RuntimeClass)
	}
}

func TestTheEnvironmentIsOpenedForPodsThatAreToRun(t *testing.T) {
	x := &session{server: &Server{Config: Config{
		Log:         slog.New(slog.DiscardHandler),
		Environment: func(*fleet.Pod) (map[string]string, error) { return map[string]string{"T": "opened"}, nil },
	}}}
	p := &fleet.Pod{Goal: fleet.GoalRun, Spec: fleet.PodSpec{Env: map[string]string{"T": "{{ GANTRY_SECRET_t }}"}}}
	if got := x.order(p, nil).GetEnv()["T"]; got != "opened" {
		t.Errorf("a pod that is to run has %q", got)
	}
	p.Goal = fleet.GoalStop
	if got := x.order(p, nil).GetEnv(); got != nil {
		t.Errorf("a pod that is to stop has %q", got)
	}
}

func TestHeartbeatTellsTheDisk(t *testing.T) {
	x := &session{}
	x.heartbeat(&agentrpc.Heartbeat{Pods: []*agentrpc.PodLive{{PodId: "p1", DiskPercent: 40}}}, time.Now())
	if got := x.livePod("p1").DiskPercent; got != 40 {
		t.Errorf("%d %%", got)
	}
}
