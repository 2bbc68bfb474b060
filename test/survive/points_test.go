package survive

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/devtest"
)

const (
	agents = 8 // side by side

	// leastPoints is how many deaths the test has to see; fewer say that the points were lost, not that all is well.
	leastPoints = 90
)

// act is something that an owner does with a pod, the ways in which it is known to be done, and what the pod's
// containers have written by then.
type act struct {
	name   string
	begin  func(l *life) error
	status fleet.PodStatus
	number uint64 // incarnation
	lines  string
}

// acts are a pod's life. Each is cut at one point after the other; start is not.
var acts = []act{
	{"create", (*life).create, fleet.StatusRunning, 1, "begin"},
	{"restart", does(fleet.ActionRestart), fleet.StatusRunning, 2, "begin end begin"},
	{"stop", does(fleet.ActionStop), fleet.StatusExited, 2, "begin end begin end"},
	{"start", does(fleet.ActionStart), fleet.StatusRunning, 3, "begin end begin end begin"},
	{"terminate", does(fleet.ActionTerminate), fleet.StatusTerminated, 3, ""},
}

const notCut = "start" // it does what create does

func does(action fleet.Trigger) func(*life) error {
	return func(l *life) error {
		_, err := l.user.ActPod(l.Context(), l.pod, action)
		return err
	}
}

// life is one pod on a host.
type life struct {
	*host
	pod    string
	number int
}

// exitCode is what the pods end with when they are told to end.
const exitCode = 3

// marker ends the command line of the pod's only long process. Other runs of this test on the machine have others.
func (l *life) marker() string { return fmt.Sprintf("sleep %d%05d", 1000+os.Getpid()%1000, l.number) }

func (l *life) create() error {
	script := fmt.Sprintf(`echo begin; trap "echo end; exit %d" TERM; %s & wait`, exitCode, l.marker())
	return devtest.Until(patience, func() error { // an agent that was just started may not have its session yet
		a, err := l.user.CreatePod(l.Context(), l.body(fmt.Sprintf("life-%d", l.number), script))
		l.pod = a.Value.ID
		return err
	})
}

// reached waits until an act is done in full: by what the scheduler says, what runs, and what was written.
func (l *life) reached(a act) error {
	return devtest.Until(patience, func() error {
		if err := l.is(l.pod, a.status, a.number); err != nil {
			return err
		}
		p, err := l.world.pod(l.pod)
		if err != nil {
			return err
		}
		if a.status == fleet.StatusExited && (p.ExitCode == nil || *p.ExitCode != exitCode) {
			return fmt.Errorf("exit code %v (%s), want %d", p.ExitCode, p.StatusReason, exitCode)
		}
		running, err := devtest.ProcessesOf(l.marker())
		if want := map[bool]int{true: 1}[a.status == fleet.StatusRunning]; err != nil || len(running) != want {
			return fmt.Errorf("processes %v, want %d; %w", running, want, err)
		}
		if a.lines == "" {
			return l.nothingLeft()
		}
		lines, err := l.lines(l.pod)
		if got := strings.Join(lines, " "); err == nil && got != a.lines {
			err = fmt.Errorf("the containers wrote %q, want %q", got, a.lines)
		}
		return err
	})
}

// nothingLeft says what the machine still has of a pod that is gone.
func (l *life) nothingLeft() error {
	left, err := devtest.CensusOf(l.pod)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left of pod %s: %s", l.pod, strings.Join(left, "; "))
	}
	return err
}

// cut does an act on an agent that dies at a point, starts another one, and waits for what was to be. It reports
// whether the agent came to the point.
func (l *life) cut(a act, point string) (died bool, err error) {
	if point != "" {
		if err := writeAtOnce(l.arm, point); err != nil {
			return false, err
		}
	}
	do := func() error {
		if err := a.begin(l); err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		return l.reached(a)
	}
	var before []int
	if point != "" {
		// The agent may come to the point, and die, before the act has begun.
		done := make(chan error, 1)
		go func() { done <- do() }()
		select {
		case <-l.agent.done:
			died = true
			before, err = devtest.ProcessesOf(l.marker())
		case err = <-done:
		}
		if rerr := os.Remove(l.arm); err != nil || rerr != nil {
			return died, errors.Join(err, rerr)
		}
		if died {
			err = errors.Join(err, l.start())
			err = errors.Join(err, <-done)
		}
	} else {
		err = do()
	}
	if err != nil {
		return died, err
	}
	if a.name == "create" && len(before) > 0 {
		if after, err := devtest.ProcessesOf(l.marker()); err != nil || !slices.Equal(before, after) {
			return died, fmt.Errorf("process %v is %v after the agent's death: %w", before, after, err)
		}
	}
	return died, nil
}

// writeAtOnce makes a file that is never seen half written.
func writeAtOnce(path, text string) error {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// points returns what an agent came to since the last call.
func (h *host) points() []string {
	text, _ := os.ReadFile(h.list) // none: nothing was come to
	_ = os.Remove(h.list)
	var out []string
	for name := range strings.FieldsSeq(string(text)) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// bystander is a pod that nothing happens to.
type bystander struct {
	pod  string
	pids []int
}

func (h *host) bystander(t *testing.T, number int) bystander {
	l := &life{host: h, number: number}
	if err := errors.Join(l.create(), l.reached(acts[0])); err != nil {
		t.Fatalf("a bystander: %v", err)
	}
	return bystander{l.pod, must[[]int](t)(devtest.ProcessesOf(l.marker()))}
}

// TestAgentKilledAtEveryPoint kills agents at every point that they come to in a pod's life. Another one finishes
// what was begun; what ran runs on, nothing runs twice, and nothing is left.
func TestAgentKilledAtEveryPoint(t *testing.T) {
	began := time.Now()
	w := newWorld(t)
	var hosts []*host
	for i := range agents {
		hosts = append(hosts, w.newHost(fmt.Sprintf("h%d", i), "points"))
	}
	// What is come to in a life that nothing cuts.
	known := map[string][]string{}
	first := &life{host: hosts[0], number: 90001}
	first.points()
	for _, a := range acts {
		if _, err := first.cut(a, ""); err != nil {
			t.Fatalf("%s, not cut: %v", a.name, err)
		}
		if points := first.points(); a.name != notCut {
			known[a.name] = points
		}
	}
	lives, least := chosen(known)
	var next, deaths atomic.Int64
	var mu sync.Mutex
	var missed []string
	var all sync.WaitGroup
	for i, h := range hosts {
		quiet := h.bystander(t, 80000+i)
		all.Go(func() {
			for n := int(next.Add(1)) - 1; n < lives && !t.Failed(); n = int(next.Add(1)) - 1 {
				l := &life{host: h, number: n}
				for _, a := range acts {
					point := ""
					if p := known[a.name]; n < len(p) {
						point = p[n]
					}
					died, err := l.cut(a, point)
					if err != nil {
						t.Errorf("%s on %s, the agent killed at %q (it died: %v): %v", a.name, h.name, point, died, err)
						return
					}
					if died {
						deaths.Add(1)
					} else if point != "" {
						mu.Lock()
						missed = append(missed, a.name+" "+point)
						mu.Unlock()
					}
				}
			}
			if got, err := devtest.ProcessesOf((&life{number: 80000 + i}).marker()); err != nil || !slices.Equal(got, quiet.pids) {
				t.Errorf("the bystander on %s: processes %v, were %v: %v", h.name, got, quiet.pids, err)
			}
			if err := h.is(quiet.pod, fleet.StatusRunning, 1); err != nil {
				t.Errorf("the bystander on %s: %v", h.name, err)
			}
			if err := h.user.DeletePod(t.Context(), quiet.pod); err != nil {
				t.Error(err)
			}
			if err := devtest.Until(patience, (&life{host: h, pod: quiet.pod}).nothingLeft); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	t.Logf("%d deaths of agents at %d points in %v; not come to a second time: %v", deaths.Load(), distinct(known), time.Since(began).Round(time.Second), missed)
	if deaths.Load() < least || len(missed) > int(deaths.Load())/10 {
		t.Errorf("%d deaths, want at least %d; not come to a second time: %v", deaths.Load(), least, missed)
	}
}

// chosen returns how many lives it takes to die once at each point of each act, and how many deaths there have to be. With
// POINT in the environment, all other points are taken out of known.
func chosen(known map[string][]string) (lives int, least int64) {
	point := os.Getenv("POINT")
	least = leastPoints
	if point != "" {
		least = 1
	}
	for name, points := range known {
		if point != "" {
			points = slices.DeleteFunc(points, func(p string) bool { return p != point })
			known[name] = points
		}
		lives = max(lives, len(points))
	}
	return lives, least
}

func distinct(known map[string][]string) int {
	all := map[string]bool{}
	for _, points := range known {
		for _, p := range points {
			all[p] = true
		}
	}
	return len(all)
}
