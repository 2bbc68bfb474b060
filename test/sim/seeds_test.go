package sim

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const fixedSeeds = 50

// TestSeededFaults runs the fixed seeds, two at a time; SEEDS=n runs n, and SEED=k runs that one and prints its log.
func TestSeededFaults(t *testing.T) {
	first, last := uint64(1), uint64(fixedSeeds)
	one, verbose := number(t, "SEED")
	if verbose {
		first, last = one, one
	} else if n, ok := number(t, "SEEDS"); ok {
		last = n
	}
	total := &totals{counts: map[string]int{}}
	t.Run("seeds", func(t *testing.T) {
		for seed := first; seed <= last; seed++ {
			t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
				if !verbose {
					t.Parallel()
				}
				synctest.Test(t, func(t *testing.T) { total.add(runSeed(t, seed, verbose)) })
			})
		}
	})
	t.Log(total)
	if last-first+1 >= fixedSeeds {
		for _, f := range faults() {
			if total.counts[f.name] == 0 {
				t.Errorf("no run had the fault %q", f.name)
			}
		}
		for _, what := range met() {
			if total.counts[what] == 0 {
				t.Errorf("no run met %q", what)
			}
		}
	}
}

// met is what a set of runs must have met to prove anything.
func met() []string {
	return []string{
		"update", "template", "create replayed", "answer lost", "data seen again", "accounts without credit", "refused for want of credit",
		"look", "restored from a copy", "scheduler ended itself", "price", "settlement", "credit", "intervals charged",
		"inventory changed", "volume", "volume deleted", "interrupted", "returned", "endpoint", "endpoint changed", "endpoint deleted",
		"job", "cancel", "retry", "purge", "status", "jobs with workers", "results kept", "workers frozen", "webhooks", "scaled to zero and back",
		"cluster", "cluster restarted", "cluster deleted", "cluster read", "clusters restarted by themselves", "members replaced", "clusters stopped",
	}
}

func number(t *testing.T, name string) (uint64, bool) {
	text := os.Getenv(name)
	if text == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 {
		t.Fatalf("%s must be a whole number above 0", name)
	}
	return n, true
}

// jumps reports whether clocks jump in a run. Jobs have times of the clock of whoever leads, and are not checked then.
func jumps(seed uint64) bool { return seed%7 == 4 }

// runSeed is one run.
func runSeed(t *testing.T, seed uint64, verbose bool) map[string]int {
	// A full hour ends while the run goes on.
	time.Sleep(time.Hour - time.Duration(seed%2)*time.Minute - 30*time.Second)
	w := newWorld(t, seed, func(w *world) {
		w.accounts = append(w.accounts, prepaidAccount)
		w.size = map[uint64]int{1: 1, 6: 5}[seed%10]
		if w.size == 0 {
			w.size = 3
		}
		// Five schedulers cost twice as much, and show no more of jobs.
		w.serverless = seed%3 == 0 && !jumps(seed) && w.size <= 3
		w.gangs = seed%3 == 1
		if seed%4 == 0 { // with snapshots in the place of most of the log
			w.snapshotEvery, w.trailing = 100, 20
		}
		if verbose {
			w.lines.echo = func(line string) { t.Log(line) }
		}
	})
	d := newDriver(w)
	d.restores, d.clocksJump = seed%5 == 2, jumps(seed)
	err := d.run()
	w.close()
	if err != nil {
		t.Error(err)
	}
	d.count["starts"] = len(w.starts)
	d.count["data seen again"] = w.reread
	d.count["accounts without credit"] = w.lines.count("accounts have no credit left")
	d.count["second agents refused"] = w.lines.count("a second session of a host was refused: two agents use one identity")
	d.count["jobs with workers"] = w.lines.count("a worker has a job")
	d.count["clusters restarted by themselves"] = w.lines.count("cluster restarted") - d.count["cluster restarted"]
	d.count["members replaced"] = w.lines.count("member of a cluster was replaced")
	d.count["clusters stopped"] = w.lines.count("cluster stopped since a pod failed")
	d.count["webhooks"], d.count["workers frozen"] = w.hooked, w.frozen
	for _, n := range w.tasks {
		if n.told != "" {
			d.count["results kept"]++
		}
	}
	d.count["scaled to zero and back"] = d.backFromZero
	enough(t, d.count)
	for _, f := range w.broken() {
		t.Error(f)
	}
	if t.Failed() {
		t.Logf("the run: %v\nthe end of its log:\n%s", d.count, w.lines.tail(150))
		t.Errorf("to repeat: SEED=%d go test -race -count=1 -run TestSeededFaults ./test/sim", seed)
	}
	return d.count
}

// enough fails a run that met too little to prove anything.
func enough(t *testing.T, count map[string]int) {
	faultCount := 0
	for _, f := range faults() {
		faultCount += count[f.name]
	}
	for what, least := range map[string]int{"create": 10, "action": 6, "starts": 3} {
		if count[what] < least {
			t.Errorf("the run met too little: %s: %d, at least %d wanted", what, count[what], least)
		}
	}
	if faultCount < 8 {
		t.Errorf("the run met only %d faults", faultCount)
	}
}

// totals sums what the runs met.
type totals struct {
	mu     sync.Mutex
	counts map[string]int
}

func (s *totals) add(counts map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, n := range counts {
		s.counts[k] += n
	}
}

func (s *totals) String() string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(s.counts)) {
		out = append(out, fmt.Sprintf("%s: %d", k, s.counts[k]))
	}
	return strings.Join(out, ", ")
}
