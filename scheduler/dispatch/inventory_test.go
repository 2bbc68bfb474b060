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

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/scheduler/state"
)

// counted takes proposals and answers them all alike.
type counted struct {
	mu     sync.Mutex // guards the fields below
	at     []time.Time
	kernel []string
	err    error
}

func (c *counted) Propose(_ context.Context, cmds ...state.Command) ([]state.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = append(c.at, time.Now())
	c.kernel = append(c.kernel, cmds[0].(state.UpdateInventory).Inventory.Kernel)
	return []state.Result{{Err: c.err}}, nil
}

func (c *counted) Barrier(context.Context) error { return nil }
func (c *counted) IsLeader() bool                { return true }

// restocked returns a session whose proposals are counted, and its context.
func restocked(t *testing.T, c *counted) (*session, context.Context) {
	ctx, cancel := context.WithCancelCause(t.Context())
	x := newSession(New(Config{Node: c, Log: slog.New(slog.DiscardHandler)}), "host", &link.Hello{}, cancel)
	t.Cleanup(func() { cancel(nil); x.tasks.Wait() })
	return x, ctx
}

// However often a host says what it has, it is recorded once a second, and the last is what stays.
func TestInventoriesAreRecordedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counted{}
		x, ctx := restocked(t, c)
		for i := range 100 {
			if err := x.receive(ctx, &link.Up{Kind: &link.Up_Inventory{Inventory: &link.Inventory{Kernel: fmt.Sprint(i)}}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(35 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		x.restock(ctx, &link.Inventory{Kernel: "later"})
		synctest.Wait()
		if n := len(c.at); n < 4 || n > 6 || c.kernel[n-2] != "99" || c.kernel[n-1] != "later" {
			t.Errorf("recorded %q", c.kernel)
		}
		for i := range c.at[1:] {
			if gap := c.at[i+1].Sub(c.at[i]); gap < stockPause {
				t.Errorf("the next one came after %s", gap)
			}
		}
	})
}

// A session that is over ends with it; what the state refuses does not end one.
func TestAnInventoryOfAnOldSessionEndsIt(t *testing.T) {
	for code, ends := range map[fleet.Code]bool{fleet.CodeStale: true, fleet.CodeInvalid: false} {
		synctest.Test(t, func(t *testing.T) {
			c := &counted{err: &fleet.Error{Code: code}}
			x, ctx := restocked(t, c)
			x.restock(ctx, &link.Inventory{})
			time.Sleep(5 * time.Second)
			if cause := context.Cause(ctx); (cause != nil) != ends || ends && fleet.CodeOf(cause) != code {
				t.Errorf("%s: ended by %v", code, cause)
			}
		})
	}
}

// What a host says of itself is read as far as it makes sense, and the state refuses nothing of it.
func TestNoticesOfAHostAreBounded(t *testing.T) {
	in := &link.Inventory{
		RuntimeClass: "runc",
		Gpus:         []*link.GPU{{Uuid: "MIG-1", Pci: "0000:3b:00.0", Parent: "GPU-1", Sick: strings.Repeat("x", 5000)}},
		Notices:      []*link.Notice{{Code: "Bad"}, {Code: ""}, {Code: "z", Text: strings.Repeat("ü", 5000), Severe: true}},
	}
	for i := range 50 {
		in.Notices = append(in.Notices, &link.Notice{Code: fmt.Sprintf("n%02d", i), Text: "x"})
	}
	in.Notices = append(in.Notices, &link.Notice{Code: "a_last", Severe: true})
	got := decodeInventory(in)
	if n := len(got.Notices); n != maxNotices || got.Notices[0].Code != "a_last" || got.Notices[n-1].Code != "z" || got.RuntimeClass != "" {
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
		if d := cmp.Diff(got, h.Inventory); d != "" {
			t.Error(d)
		}
		return nil
	}))
	if kata := decodeInventory(&link.Inventory{RuntimeClass: "kata"}); kata.RuntimeClass != "kata" {
		t.Errorf("the class is %q", kata.RuntimeClass)
	}
}

func TestTheEnvironmentIsOpenedForPodsThatAreToRun(t *testing.T) {
	x := &session{server: &Server{Config: Config{
		Log:         slog.New(slog.DiscardHandler),
		Environment: func(*fleet.Pod) (map[string]string, error) { return map[string]string{"T": "opened"}, nil },
	}}}
	p := &fleet.Pod{Goal: fleet.GoalRun, Spec: fleet.PodSpec{Env: map[string]string{"T": "{{ GANTRY_SECRET_t }}"}}}
	if got := x.environment(p)["T"]; got != "opened" {
		t.Errorf("a pod that is to run has %q", got)
	}
	p.Goal = fleet.GoalStop
	if got := x.environment(p)["T"]; got != "{{ GANTRY_SECRET_t }}" {
		t.Errorf("a pod that is to stop has %q", got)
	}
}

func TestHeartbeatTellsTheDisk(t *testing.T) {
	x := &session{}
	x.heartbeat(&link.Heartbeat{Pods: []*link.PodLive{{PodId: "p1", DiskPercent: 40}}}, time.Now())
	if got := x.livePod("p1").DiskPercent; got != 40 {
		t.Errorf("%d %%", got)
	}
}
