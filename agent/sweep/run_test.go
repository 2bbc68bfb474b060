package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/agent/recovery"
	"gantry/fleet"
	"gantry/netctl"
)

// crowd is a container runtime with containers, which may be away or not let go of one.
type crowd struct {
	mu    sync.Mutex
	pods  []fleet.PodID
	held  fleet.PodID
	away  bool
	lists []time.Time
}

func (c *crowd) List(context.Context) ([]fleet.PodID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists = append(c.lists, time.Now())
	if c.away {
		return nil, errors.New("away")
	}
	return slices.Clone(c.pods), nil
}

func (c *crowd) Remove(_ context.Context, id fleet.PodID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id == c.held {
		return errors.New("in use")
	}
	c.pods = slices.DeleteFunc(c.pods, func(other fleet.PodID) bool { return other == id })
	return nil
}

func (c *crowd) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.lists)
}

// TestTheSweepBeginsWhenASchedulerWasHeard: it tries every half minute while something is left, and then looks after
// what was set aside once an hour, and at containers no more.
func TestTheSweepBeginsWhenASchedulerWasHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		book := ledgertest.Open(t, dir)
		ledgertest.SetFull(t, book, pod.Assignment{Pod: "known", Goal: fleet.GoalStop})
		rt := &crowd{pods: []fleet.PodID{"known", "unknown", "held"}, held: "held"}
		makeData(t, dir, "known")
		loseData(t, dir, time.Now(), "lost")
		heard := false
		var mu sync.Mutex
		var networks []string
		s := New(Config{
			Dir: dir, Ledger: book, Containers: rt, Log: slog.New(slog.DiscardHandler), KeepLost: 90 * time.Minute,
			Heard: func() bool { mu.Lock(); defer mu.Unlock(); return heard },
			RemovePod: func(_ context.Context, id string) error {
				mu.Lock()
				defer mu.Unlock()
				networks = append(networks, id)
				return nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		time.Sleep(time.Minute) // of the bubble's clock, as all below
		synctest.Wait()
		if rt.asked() != 0 || s.Swept() {
			t.Error("it sweeps before a scheduler was heard: its ledger may be new")
		}
		mu.Lock()
		heard = true
		mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !slices.Equal(rt.pods, []fleet.PodID{"known", "held"}) || s.Swept() {
			t.Errorf("swept %v, left are %v", s.Swept(), rt.pods)
		}
		first := rt.asked()
		if time.Sleep(againEvery - 3*time.Second); rt.asked() != first {
			t.Error("it tries again all the time")
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if rt.asked() != first+1 {
			t.Errorf("it tried %d times in half a minute", rt.asked()-first)
		}
		rt.mu.Lock()
		rt.held = ""
		rt.mu.Unlock()
		time.Sleep(againEvery)
		synctest.Wait()
		if !slices.Equal(rt.pods, []fleet.PodID{"known"}) || !s.Swept() {
			t.Errorf("swept %v, left are %v", s.Swept(), rt.pods)
		}
		mu.Lock()
		if slices.Contains(networks, "known") || !slices.Contains(networks, "unknown") || !slices.Contains(networks, "held") {
			t.Errorf("the networks of %v are removed", networks)
		}
		mu.Unlock()
		rt.mu.Lock()
		rt.pods = append(rt.pods, "later") // such as one that is being made before the ledger's word for it
		swept := len(rt.lists)
		rt.mu.Unlock()
		wantLost(t, dir, "lost")
		time.Sleep(lostEvery)
		synctest.Wait()
		wantLost(t, dir, "lost")
		time.Sleep(lostEvery * 2 / 3) // its time is over, and nobody has looked since
		synctest.Wait()
		wantLost(t, dir, "lost")
		time.Sleep(lostEvery / 3)
		synctest.Wait()
		wantLost(t, dir)
		wantData(t, dir, "known")
		if rt.asked() != swept || !s.Swept() || !slices.Contains(rt.pods, "later") {
			t.Errorf("it asked %d times more, swept %v, left are %v", rt.asked()-swept, s.Swept(), rt.pods)
		}
		cancel()
		<-done
	})
}

// stuckDisks are disks that cannot be removed while they are stuck.
type stuckDisks struct {
	pod.Disks
	mu    sync.Mutex
	names []string
	stuck bool
	tries []time.Time
}

func (d *stuckDisks) Names() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.names), nil
}

func (d *stuckDisks) Remove(_ context.Context, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tries = append(d.tries, time.Now()); d.stuck {
		return errors.New("in use")
	}
	d.names = slices.DeleteFunc(d.names, func(other string) bool { return other == name })
	return nil
}

// TestADiskThatIsInUseIsTriedAgain: one of a container before the sweep is over, and one that was set aside every half minute.
func TestADiskThatIsInUseIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		made := &stuckDisks{names: []string{"unknown"}, stuck: true}
		old := &stuckDisks{names: []string{fmt.Sprintf("lost.%d", time.Now().Add(-2*keepLost).Unix())}, stuck: true}
		s := New(Config{
			Dir: dir, Ledger: ledgertest.Open(t, dir), Containers: &crowd{}, RemovePod: nothing, Log: slog.New(slog.DiscardHandler),
			Heard: func() bool { return true }, Disks: Disks{Containers: made, Persistent: old},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		for i, step := range []struct {
			d    *stuckDisks
			wait time.Duration
		}{{made, 0}, {made, againEvery}, {old, againEvery}, {old, againEvery}} {
			if i == 2 {
				made.mu.Lock()
				made.stuck = false
				made.mu.Unlock()
			}
			step.d.mu.Lock()
			before := len(step.d.tries)
			step.d.mu.Unlock()
			time.Sleep(step.wait)
			synctest.Wait()
			step.d.mu.Lock()
			if i > 0 && len(step.d.tries) == before {
				t.Errorf("step %d: it was not tried again", i)
			}
			step.d.mu.Unlock()
			if s.Swept() != (step.d == old) {
				t.Errorf("step %d: swept is %v", i, s.Swept())
			}
		}
		cancel()
		<-done
	})
}

// TestARuntimeThatIsAwaySweepsNothing.
func TestARuntimeThatIsAwaySweepsNothing(t *testing.T) {
	dir := t.TempDir()
	makeData(t, dir, "unknown")
	s := New(Config{
		Dir: dir, Ledger: ledgertest.Open(t, dir), Containers: &crowd{away: true}, RemovePod: nothing, Log: slog.New(slog.DiscardHandler),
	})
	if s.swept(t.Context()) {
		t.Error("swept")
	}
	wantData(t, dir, "unknown")
	// A network that is left of a pod is tried again, too.
	rt := &crowd{pods: []fleet.PodID{"p"}}
	s.Containers, s.RemovePod = rt, func(context.Context, string) error { return errors.New("busy") }
	if s.swept(t.Context()) {
		t.Error("swept, and a network is left")
	}
	s.RemovePod = nothing
	if !s.swept(t.Context()) {
		t.Error("not swept")
	}
}

// mounts are network volumes, which may not let go.
type mounts struct {
	err   error
	calls int
}

func (m *mounts) Clean(context.Context) error { m.calls++; return m.err }

// TestCleanWithoutALedger removes what is there all the same: such as after its disk was replaced.
func TestCleanWithoutALedger(t *testing.T) {
	for name, c := range map[string]struct {
		runtime, volumes error
		fails            bool
	}{
		"all goes":            {nil, nil, false},
		"containers are left": {errors.New("away"), nil, true},
		"volumes are left":    {nil, errors.New("busy"), true},
	} {
		dir := t.TempDir()
		kernel := netctl.NewFakeKernel()
		control, m := netctl.NewFake(kernel, "0a1b"), &mounts{err: c.volumes}
		if err := Clean(t.Context(), dir, &containers{err: c.runtime}, control, m); (err != nil) != c.fails || m.calls != 1 {
			t.Errorf("%s: %v, volumes were cleaned %d times", name, err, m.calls)
		} else if c.volumes != nil && !strings.Contains(err.Error(), "unmount network volumes: busy") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, recovery.LedgerFile)); err == nil {
			t.Errorf("%s: it made a ledger", name)
		}
	}
}

// TestCleanOfAHostWhoseVolumesAreInUse says so, and keeps results and data until it is repeated.
func TestCleanOfAHostWhoseVolumesAreInUse(t *testing.T) {
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	ledgertest.SetFull(t, book, pod.Assignment{Pod: "gone", Goal: fleet.GoalGone})
	if err := book.Close(); err != nil {
		t.Fatal(err)
	}
	makeData(t, dir, "gone")
	results := filepath.Join(dir, Results)
	if err := os.MkdirAll(results, 0o700); err != nil {
		t.Fatal(err)
	}
	m, control := &mounts{err: errors.New("busy")}, netctl.NewFake(netctl.NewFakeKernel(), "0a1b")
	if err := Clean(t.Context(), dir, &containers{}, control, m); err == nil || m.calls != 1 {
		t.Errorf("%v, after %d calls", err, m.calls)
	}
	if _, err := os.Stat(results); err != nil {
		t.Error(err)
	}
	wantData(t, dir, "gone")
	m.err = nil
	if err := Clean(t.Context(), dir, &containers{}, control, m); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(results); err == nil {
		t.Error("results are left")
	}
	wantData(t, dir)
	before, err := recovery.Cleaned(dir)
	if err != nil || before == "0" {
		t.Errorf("the cleaning is not noted: %q, %v", before, err)
	}
}

// TestWhatHasData: in its place, or set aside.
func TestWhatHasData(t *testing.T) {
	dir := t.TempDir()
	if has, err := HasData(dir); has || err != nil {
		t.Errorf("an empty folder: %v, %v", has, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("a look makes %v, %v", left, err)
	}
	makeData(t, dir, "p")
	if has, err := HasData(dir); !has || err != nil {
		t.Errorf("data: %v, %v", has, err)
	}
	if path, err := pod.SetAside(t.Context(), DataDir(dir), "p", time.Now()); err != nil || path == "" {
		t.Fatal(err)
	}
	if has, err := HasData(dir); !has || err != nil {
		t.Errorf("data that was set aside: %v, %v", has, err)
	}
}
