package serverless

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/scheduler/state"
	"gantry/test/chaos/history"
	"gantry/test/plane"
	library "gantry/test/program/worker"
)

// asWorker makes of this program a worker, which its tests can kill.
const asWorker = "GANTRY_TEST_AS_WORKER"

// work is a worker that says which jobs it begins, and which results were accepted.
func work() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := library.Run(ctx, library.Config{
		Env: os.Getenv, Handler: "sleep", Concurrency: 2, Exit: os.Exit, Say: func(line string) { fmt.Println(line) },
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// program is a worker in a process of its own.
type program struct {
	cmd  *exec.Cmd
	over chan struct{} // closed when it has ended, and its host has said so
}

// seen is what the workers of a storm said.
type seen struct {
	mu   sync.Mutex // guards the fields below
	runs map[string]int
	told map[string]bool
}

func (s *seen) hear(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		what, id, _ := strings.Cut(lines.Text(), " ")
		s.mu.Lock()
		switch what {
		case "job":
			s.runs[id]++
		case "told":
			s.told[id] = true
		}
		s.mu.Unlock()
	}
}

// storm is a town whose workers are processes, and what happens to it.
type storm struct {
	*town
	rng      *rand.Rand // of the faults
	seen     seen
	programs map[fleet.PodID]*program // of the faults and play alone, one at a time
	began    time.Time

	calls sync.Mutex // guards ops
	ops   map[string][]porcupine.Operation
}

// launch starts a worker's process.
func (s *storm) launch(p *fleet.Pod) {
	if err := s.gate.Open(p.ID, p.Incarnation, true); err != nil {
		s.t.Error(err)
		return
	}
	env, err := s.Environment(p)
	if err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	at := s.addrs[p.ID]
	s.mu.Unlock()
	one := &program{cmd: exec.Command(os.Args[0]), over: make(chan struct{})} //nolint:gosec // itself
	one.cmd.Env = []string{asWorker + "=1"}
	for name, value := range env {
		one.cmd.Env = append(one.cmd.Env, name+"="+strings.Replace(value, fleet.WorkerGate, at, 1))
	}
	one.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := one.cmd.StdoutPipe()
	s.must(err)
	s.must(one.cmd.Start())
	s.programs[p.ID] = one
	for _, event := range []fleet.Trigger{fleet.EventStarting, fleet.EventRunning} {
		if err := s.Report(p.ID, event); err != nil {
			s.t.Log(err) // it was ended meanwhile
		}
	}
	s.tasks.Go(func() {
		defer close(one.over)
		s.seen.hear(out)
		_ = one.cmd.Wait() // how it ended is seen from its state
	})
}

// tend plays the host: it starts what is to run, ends what is not, and reports what ended by itself.
func (s *storm) tend() {
	wanted := map[fleet.PodID]*fleet.Pod{}
	s.View(func(v *state.View) {
		for _, p := range v.WorkersOf(s.endpoint) {
			wanted[p.ID] = p
		}
	})
	for id, one := range s.programs {
		if wanted[id] == nil {
			s.gate.Drain(id)
			_ = one.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		}
		select {
		case <-one.over:
		default:
			continue
		}
		s.gate.Close(id)
		if wanted[id] != nil {
			if err := s.Report(id, fleet.EventFailed, func(r *state.PodReport) { r.ExitCode = new(137) }); err != nil {
				s.t.Log(err)
			}
			continue // until it is terminated
		}
		s.must(s.Report(id, state.ReportGone))
		s.gate.Forget(id)
		delete(s.programs, id)
	}
	for id, p := range wanted {
		if s.programs[id] == nil && p.Status.Active() {
			s.launch(p)
		}
	}
}

// faults are what happens, each at any step of any job.
func (s *storm) faults() map[string]func() {
	return map[string]func(){
		"worker killed": func() {
			for _, id := range slices.Sorted(maps.Keys(s.programs)) {
				if s.rng.IntN(2) == 0 {
					_ = s.programs[id].cmd.Process.Kill() // it may have ended
					return
				}
			}
		},
		"another scheduler leads": s.begin,
		"agent killed": func() {
			s.replaceGate()
			for id, one := range s.programs {
				p, _ := s.Record(id)
				select {
				case <-one.over:
				default:
					s.must(s.gate.Open(id, p.Incarnation, false))
				}
			}
		},
		"network cut": func() {
			s.wire.cut(true)
			_ = sleep.For(s.t.Context(), time.Duration(s.rng.IntN(200))*time.Millisecond)
			s.wire.cut(false)
		},
	}
}

// call is a request of a user, which is written down if it says what became of a job.
func (s *storm) call(client int, method, path, body string) map[string]any {
	from := time.Since(s.began)
	got := s.ask(method, path, body)
	id, _ := got["id"].(string)
	status, _ := got["status"].(string)
	s.calls.Lock()
	defer s.calls.Unlock()
	s.ops[id] = append(s.ops[id], porcupine.Operation{
		ClientId: client, Input: strings.HasPrefix(path, "cancel"), Output: status, Call: int64(from), Return: int64(time.Since(s.began)),
	})
	return got
}

// user submits jobs, looks at them, and cancels some.
func (s *storm) user(client, jobs int, rng *rand.Rand) (cancelled map[string]bool) {
	cancelled = map[string]bool{}
	for n := range jobs {
		got := s.call(client, "POST", "run", fmt.Sprintf(`{"input":{"n":%d,"Seconds":%.2f}}`, client*1000+n, rng.Float64()/10))
		id, _ := got["id"].(string)
		for range rng.IntN(4) {
			s.call(client, "GET", "status/"+id, "")
		}
		if rng.IntN(10) == 0 {
			s.call(client, "POST", "cancel/"+id, "{}")
			cancelled[id] = true
		}
		_ = sleep.For(s.t.Context(), time.Duration(rng.IntN(100))*time.Millisecond)
	}
	return cancelled
}

// TestNothingIsLostInAStorm: workers and agents are killed, networks cut, and schedulers replaced, at any step of many jobs. Each job that
// was accepted ends once, whoever looks, is not run more often than its policy says, and completes if a worker was told that its result
// is accepted. SEEDS=n takes so many seeds.
func TestNothingIsLostInAStorm(t *testing.T) {
	seeds, _ := strconv.ParseUint(os.Getenv("SEEDS"), 10, 32)
	for seed := range cmp.Or(seeds, 3) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { weather(t, seed) })
	}
}

func weather(t *testing.T, seed uint64) {
	t.Helper()
	s := &storm{rng: rand.New(rand.NewPCG(seed, 0)), programs: map[fleet.PodID]*program{}, began: time.Now(), ops: map[string][]porcupine.Operation{}} //nolint:gosec // not secret
	s.seen = seen{runs: map[string]int{}, told: map[string]bool{}}
	s.town = newTown(t, library.Config{}, func(e *fleet.EndpointSpec) {
		e.Workers.Max, e.Scaler, e.Env = 3, fleet.Scaler{Type: fleet.ScaleByRequests, Value: 2}, map[string]string{"RUNPOD_PING_INTERVAL": "1000"}
	}, processes)
	t.Cleanup(func() {
		for _, one := range s.programs { // of a test that failed
			_ = one.cmd.Process.Kill()
		}
	})
	const users, each = 4, 12
	var everybody sync.WaitGroup
	cancelled := make([]map[string]bool, users)
	for i := range users {
		everybody.Go(func() { cancelled[i] = s.user(i, each, rand.New(rand.NewPCG(seed, uint64(i+1)))) }) //nolint:gosec // not secret
	}
	done := make(chan struct{})
	go func() { everybody.Wait(); close(done) }()
	all, happened := s.faults(), map[string]int{}
	names := slices.Sorted(maps.Keys(all))
	next := time.Now()
	for storming, deadline := true, time.Now().Add(4*patience); storming || s.unended() > 0 || len(s.programs) > 0; {
		s.Advance(50 * time.Millisecond)
		s.tend()
		select {
		case <-done:
			storming = false
		default:
		}
		if storming && time.Now().After(next) {
			name := names[s.rng.IntN(len(names))]
			happened[name]++
			all[name]()
			next = time.Now().Add(time.Duration(s.rng.IntN(150)) * time.Millisecond)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d jobs have not ended, because %s; %v", s.unended(), s.leader().Why(s.endpoint, 0), happened)
		}
		_ = sleep.For(t.Context(), 10*time.Millisecond)
	}
	s.judge(cancelled)
	t.Logf("%d jobs; %v", users*each, happened)
}

// unended counts the jobs that have not ended.
func (s *storm) unended() int {
	c, err := s.JobCounts(s.t.Context(), s.caller(), s.endpoint)
	s.must(err)
	return c.Waiting + c.Running
}

// judge checks what became of all jobs.
func (s *storm) judge(cancelled []map[string]bool) {
	counts := map[string]int{}
	for id := range s.ops {
		got := s.call(99, "GET", "status/"+id, "")
		status, _ := got["status"].(string)
		counts[status]++
		s.seen.mu.Lock()
		runs, told := s.seen.runs[id], s.seen.told[id]
		s.seen.mu.Unlock()
		wanted := slices.ContainsFunc(cancelled, func(m map[string]bool) bool { return m[id] })
		switch {
		case runs > 2:
			s.t.Errorf("%s was run %d times", id, runs)
		case status == "CANCELLED" && !wanted:
			s.t.Errorf("%s was cancelled by nobody", id)
		case told && status != "COMPLETED" && !wanted, status == "COMPLETED" && !told && runs == 0:
			s.t.Errorf("%s ended as %v; its result was accepted: %t", id, got, told)
		case status == "COMPLETED":
			if in, _ := got["output"].(map[string]any); in["n"] == nil {
				s.t.Errorf("%s has the output %v", id, got["output"])
			}
		}
		if !porcupine.CheckOperations(history.Job, s.ops[id]) {
			text, _ := json.Marshal(s.ops[id])
			s.t.Errorf("what was seen of %s has no order in which it makes sense: %s", id, text)
		}
	}
	if counts["COMPLETED"] == 0 {
		s.t.Errorf("no job completed: %v", counts)
	}
	s.t.Log(counts)
}

// wire is the network between a host and the leader, which can be cut.
type wire struct {
	mu    sync.Mutex // guards the fields below
	off   bool
	conns []net.Conn
}

func (w *wire) dial(ctx context.Context, addr string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.off {
		return nil, errors.New("the network is cut")
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err == nil {
		w.conns = append(w.conns, c)
	}
	return c, err
}

func (w *wire) cut(off bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.off = off
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// processes has the workers of a town be played by who makes it.
func processes(n *town) { n.played = true }

// caller is the principal of users.
func (n *town) caller() fleet.Principal {
	who := n.Who(plane.User)
	who.Invoke = []string{fleet.InvokeAll}
	return who
}
