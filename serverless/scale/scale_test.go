package scale

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return noon.Add(-d) }

func worker(id string, s State, since time.Duration) Worker {
	return Worker{ID: fleet.PodID(id), State: s, Since: ago(since), Created: ago(since)}
}

func stale(w Worker) Worker {
	w.Stale = true
	return w
}

func drained(w Worker) Worker {
	w.Stale, w.Drained = true, true
	return w
}

func TestDecide(t *testing.T) {
	delay := Policy{Max: 3, Idle: 5 * time.Second, Delay: 4 * time.Second}
	count := Policy{Max: 3, Idle: 5 * time.Second, Requests: 4}
	flash := delay
	flash.Freeze = time.Minute
	kept := delay
	kept.Min = 2
	waiting := func(n int, oldest time.Duration) Load { return Load{Waiting: n, Oldest: ago(oldest)} }
	for name, c := range map[string]struct {
		in   Input
		want Plan
	}{
		"nothing to do":              {Input{Policy: delay}, Plan{}},
		"the first job":              {Input{Policy: delay, Load: waiting(1, 0)}, Plan{Start: 1}},
		"min":                        {Input{Policy: kept}, Plan{Start: 2}},
		"a free worker takes it":     {Input{Policy: delay, Load: waiting(1, time.Minute), Workers: []Worker{worker("a", Idle, 0)}}, Plan{}},
		"a worker that starts, too":  {Input{Policy: delay, Load: waiting(1, time.Minute), Workers: []Worker{worker("a", Initializing, time.Minute)}}, Plan{}},
		"it has not waited for long": {Input{Policy: delay, Load: waiting(1, time.Second), Workers: []Worker{worker("a", Running, time.Minute)}}, Plan{Again: noon.Add(3 * time.Second)}},
		"it has":                     {Input{Policy: delay, Load: waiting(1, 4*time.Second), Workers: []Worker{worker("a", Running, time.Minute)}}, Plan{Start: 1}},
		"one step at a time":         {Input{Policy: delay, Load: waiting(9, time.Minute), Workers: []Worker{worker("a", Initializing, time.Second)}}, Plan{Again: noon.Add(3 * time.Second)}},
		"at max":                     {Input{Policy: delay, Load: waiting(9, time.Minute), Workers: []Worker{worker("a", Running, time.Minute), worker("b", Running, time.Minute), worker("c", Running, time.Minute)}}, Plan{Limit: AtMax}},
		"as many as the account may": {Input{Policy: kept, Room: 1}, Plan{Start: 1, Limit: Account, Again: noon.Add(RoomPause)}},
		"the account may have none":  {Input{Policy: kept, Room: -1}, Plan{Limit: Account, Again: noon.Add(RoomPause)}},
		"requests":                   {Input{Policy: count, Load: Load{Waiting: 5, InProgress: 4}, Workers: []Worker{worker("a", Running, 0)}}, Plan{Start: 2}},
		"requests at max":            {Input{Policy: count, Load: Load{Waiting: 99}}, Plan{Start: 3, Limit: AtMax}},
		"requests that one can have": {Input{Policy: count, Load: Load{InProgress: 4}, Workers: []Worker{worker("a", Running, 0), worker("b", Idle, 6*time.Second)}}, Plan{End: []fleet.PodID{"b"}}},
		"idle":                       {Input{Policy: delay, Workers: []Worker{worker("a", Idle, time.Second)}}, Plan{Again: noon.Add(4 * time.Second)}},
		"idled out":                  {Input{Policy: delay, Workers: []Worker{worker("a", Idle, 5*time.Second)}}, Plan{End: []fleet.PodID{"a"}}},
		"idled out, but for min":     {Input{Policy: kept, Workers: []Worker{worker("a", Idle, 7*time.Second), worker("b", Idle, 6*time.Second), worker("c", Idle, 6*time.Second)}}, Plan{End: []fleet.PodID{"a"}}},
		"idled out and frozen":       {Input{Policy: flash, Workers: []Worker{worker("a", Idle, 5*time.Second)}}, Plan{Freeze: []fleet.PodID{"a"}}},
		"thawed":                     {Input{Policy: flash, Load: waiting(1, 0), Workers: []Worker{worker("a", Frozen, 9*time.Second), worker("b", Frozen, 8*time.Second)}}, Plan{Thaw: []fleet.PodID{"b"}, Again: noon.Add(51 * time.Second)}},
		"no more than the account may are thawed": {Input{Policy: flash, Room: -1, Load: waiting(1, 0), Workers: []Worker{worker("a", Frozen, 0)}}, Plan{Limit: Account, Again: noon.Add(RoomPause)}},
		"enough are of the newest release":        {Input{Policy: Policy{Max: 3, Requests: 1, Freeze: time.Minute}, Load: Load{InProgress: 1}, Workers: []Worker{stale(worker("a", Running, 0)), worker("b", Idle, 0), worker("c", Frozen, 0)}}, Plan{Again: noon.Add(time.Minute)}},
		"frozen for too long":                     {Input{Policy: flash, Workers: []Worker{worker("a", Frozen, time.Minute)}}, Plan{End: []fleet.PodID{"a"}}},
		"max was lowered":                         {Input{Policy: Policy{Max: 1, Idle: time.Minute, Delay: time.Second}, Load: waiting(3, 0), Workers: []Worker{worker("a", Running, 0), worker("b", Idle, time.Second)}}, Plan{End: []fleet.PodID{"b"}, Limit: AtMax}},
		"it crashed a moment ago":                 {Input{Policy: kept, Crashes: 2, Crashed: ago(time.Second)}, Plan{Limit: Crashing, Again: noon.Add(time.Second)}},
		"one at a time after crashes":             {Input{Policy: kept, Crashes: 2, Crashed: ago(2 * time.Second)}, Plan{Start: 1}},
		"and no second":                           {Input{Policy: kept, Crashes: 2, Crashed: ago(time.Minute), Workers: []Worker{worker("a", Initializing, 0)}}, Plan{}},
		"no room a moment ago":                    {Input{Policy: kept, NoRoom: ago(time.Second)}, Plan{Limit: NoCapacity, Again: noon.Add(4 * time.Second)}},
		"no room a while ago":                     {Input{Policy: kept, NoRoom: ago(5 * time.Second)}, Plan{Start: 2}},

		"no order of workers matters":  {Input{Policy: delay, Load: waiting(9, time.Minute), Workers: []Worker{worker("b", Idle, time.Second), worker("a", Idle, time.Minute)}}, Plan{Again: noon.Add(3 * time.Second)}},
		"a step after the newest":      {Input{Policy: delay, Load: waiting(9, time.Minute), Workers: []Worker{worker("a", Initializing, time.Second), {ID: "b", State: Running, Since: noon, Created: ago(time.Hour)}}}, Plan{Again: noon.Add(3 * time.Second)}},
		"at max, a moment ago":         {Input{Policy: Policy{Max: 1, Delay: time.Second}, Load: waiting(1, 0), Workers: []Worker{worker("a", Running, 0)}}, Plan{Limit: AtMax}},
		"idle at max":                  {Input{Policy: Policy{Max: 1, Idle: time.Second, Delay: time.Second}, Workers: []Worker{worker("a", Idle, 0)}}, Plan{Again: noon.Add(time.Second)}},
		"all that the account may":     {Input{Policy: kept, Room: 2}, Plan{Start: 2}},
		"crashes, and nothing missing": {Input{Policy: kept, Crashes: 1, Crashed: noon, Workers: []Worker{worker("a", Idle, 0), worker("b", Idle, 0)}}, Plan{}},
		"many crashes":                 {Input{Policy: kept, Crashes: HaltAfter, Crashed: ago(time.Hour)}, Plan{Start: 1}},
		"no room for one more":         {Input{Policy: count, NoRoom: noon, Load: Load{Waiting: 9}, Workers: []Worker{worker("a", Idle, 0)}}, Plan{Limit: NoCapacity, Again: noon.Add(5 * time.Second)}},
		"two have requests":            {Input{Policy: count, Load: Load{InProgress: 8}, Workers: []Worker{worker("a", Idle, time.Hour), worker("b", Idle, time.Hour)}}, Plan{}},
		"frozen, and more than may be": {Input{Policy: flash, Workers: []Worker{
			worker("a", Frozen, 9*time.Second), worker("b", Frozen, 8*time.Second), worker("c", Running, 0), worker("d", Running, 0),
		}}, Plan{End: []fleet.PodID{"a"}, Again: noon.Add(52 * time.Second)}},
		"frozen where none may be": {Input{Policy: Policy{Delay: time.Second, Freeze: time.Minute}, Load: waiting(1, 0), Workers: []Worker{worker("a", Frozen, 0)}}, Plan{End: []fleet.PodID{"a"}, Limit: AtMax}},
		"the first of what comes":  {Input{Policy: flash, Workers: []Worker{worker("a", Idle, time.Second), worker("b", Frozen, 59*time.Second)}}, Plan{Again: noon.Add(time.Second)}},

		"a release: one of before starts":   {Input{Policy: kept, Workers: []Worker{stale(worker("a", Initializing, 0)), stale(worker("b", Idle, 0))}}, Plan{Start: 1}},
		"a release: a job waits":            {Input{Policy: delay, Load: waiting(1, 0), Workers: []Worker{stale(worker("a", Running, 0))}}, Plan{Start: 1, Again: noon.Add(4 * time.Second)}},
		"a release: more than are needed":   {Input{Policy: kept, Workers: []Worker{stale(worker("a", Idle, 0)), stale(worker("b", Idle, 0)), stale(worker("c", Idle, 0))}}, Plan{Start: 1, Again: noon.Add(5 * time.Second)}},
		"a release: none of before freezes": {Input{Policy: flash, Workers: []Worker{stale(worker("a", Idle, 0))}}, Plan{End: []fleet.PodID{"a"}}},
		"a release: all of them are busy":   {Input{Policy: kept, NoRoom: noon, Workers: []Worker{stale(worker("a", Running, 0)), stale(worker("b", Running, 0))}}, Plan{Limit: NoCapacity, Again: noon.Add(5 * time.Second)}},
		"a release: the last two that run":  {Input{Policy: delay, Crashes: 1, Crashed: ago(time.Hour), Workers: []Worker{stale(worker("a", Idle, time.Hour)), stale(worker("b", Idle, time.Hour))}}, Plan{End: []fleet.PodID{"a"}}},
		"a release: nobody needs the idle":  {Input{Policy: delay, Workers: []Worker{stale(worker("a", Idle, 0)), stale(worker("b", Frozen, 0))}}, Plan{End: []fleet.PodID{"b", "a"}}},
		"a release: one first":              {Input{Policy: kept, Workers: []Worker{stale(worker("a", Idle, 0)), stale(worker("b", Idle, 0))}}, Plan{Start: 1}},
		"a release: it starts":              {Input{Policy: kept, Workers: []Worker{stale(worker("a", Idle, time.Hour)), stale(worker("b", Idle, time.Hour)), worker("c", Initializing, 0)}}, Plan{}},
		"a release: it works":               {Input{Policy: kept, Workers: []Worker{stale(worker("a", Idle, 1)), stale(worker("b", Idle, 0)), worker("c", Idle, 0)}}, Plan{Start: 1, End: []fleet.PodID{"a"}}},
		"a release: above max by one":       {Input{Policy: Policy{Min: 3, Max: 3, Idle: 1, Delay: 1}, Workers: []Worker{stale(worker("a", Running, 0)), stale(worker("b", Running, 0)), worker("c", Running, 0), worker("d", Idle, time.Hour)}}, Plan{}},
		"a release: above max by two":       {Input{Policy: Policy{Max: 1, Idle: 1, Delay: 1}, Workers: []Worker{stale(worker("a", Running, 0)), worker("c", Running, 0), worker("d", Idle, 0)}}, Plan{End: []fleet.PodID{"d"}}},
		"a release: one of before goes":     {Input{Policy: Policy{Min: 1, Max: 1, Idle: 1, Delay: 1}, Workers: []Worker{stale(worker("a", Idle, 0)), worker("b", Idle, time.Hour)}}, Plan{End: []fleet.PodID{"a"}}},
		"a drain ends no worker in vain":    {Input{Policy: kept, NoRoom: noon, Workers: []Worker{drained(worker("a", Idle, time.Hour)), drained(worker("b", Idle, time.Hour))}}, Plan{Limit: NoCapacity, Again: noon.Add(5 * time.Second)}},
		"a release: busy ones stay":         {Input{Policy: delay, Load: Load{InProgress: 1}, Workers: []Worker{stale(worker("a", Running, 0)), worker("c", Idle, 0)}}, Plan{Again: noon.Add(5 * time.Second)}},
		"a release that crashes":            {Input{Policy: kept, Crashes: 1, Crashed: noon, Workers: []Worker{stale(worker("a", Idle, time.Hour)), stale(worker("b", Idle, time.Hour))}}, Plan{Limit: Crashing, Again: noon.Add(time.Second)}},
		"a release that is given up":        {Input{Policy: kept, Crashes: HaltAfter, Crashed: ago(time.Hour), Workers: []Worker{stale(worker("a", Idle, time.Hour)), stale(worker("b", Idle, time.Hour))}}, Plan{Limit: Crashing}},
		"a release: the last one that runs": {Input{Policy: delay, Crashes: 1, Crashed: ago(time.Hour), Workers: []Worker{stale(worker("a", Idle, time.Hour))}}, Plan{}},
		"a release without room":            {Input{Policy: kept, NoRoom: noon, Workers: []Worker{stale(worker("a", Idle, time.Hour)), stale(worker("b", Idle, time.Hour))}}, Plan{End: []fleet.PodID{"a"}, Limit: NoCapacity, Again: noon.Add(5 * time.Second)}},
		"a release that waits for its room": {Input{Policy: kept, NoRoom: noon, Ending: 1, Workers: []Worker{stale(worker("b", Idle, time.Hour))}}, Plan{Limit: NoCapacity, Again: noon.Add(5 * time.Second)}},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.Now = noon
			if c.in.Room == 0 {
				c.in.Room = 100
			}
			if got := Decide(c.in); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
				t.Fatalf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestPauseGrowsToItsBound(t *testing.T) {
	var got []time.Duration
	for n := range 12 {
		got = append(got, Pause(n)/time.Second)
	}
	if want := []time.Duration{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}; !slices.Equal(got, want) {
		t.Fatalf("%v", got)
	}
}

// TestAnEndpointSettles lets an endpoint run in virtual time: its decisions are carried out, jobs come, workers start, work,
// freeze and are replaced. At no time may there be more workers than allowed; in the end all jobs are done, as many
// workers stay as the policy wants, all of the newest release, and nothing is left to decide.
func TestAnEndpointSettles(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := Policy{Min: rapid.IntRange(0, 3).Draw(r, "min"), Idle: 5 * time.Second}
		p.Max = p.Min + rapid.IntRange(1, 4).Draw(r, "max")
		if rapid.Bool().Draw(r, "counts") {
			p.Requests = rapid.IntRange(1, 3).Draw(r, "requests")
		} else {
			p.Delay = time.Duration(rapid.IntRange(1, 5).Draw(r, "delay")) * time.Second
		}
		if rapid.Bool().Draw(r, "flash") {
			p.Freeze = 20 * time.Second
		}
		room := p.Max + 1 + rapid.IntRange(0, 3).Draw(r, "room")
		release := rapid.IntRange(0, 40).Draw(r, "release")
		var workers []Worker
		var jobs []time.Time // when those that wait came
		id, now := 0, noon
		step := func(second int) Plan {
			usable := 0
			for i := range workers {
				w := &workers[i]
				switch since := now.Sub(w.Since); {
				case w.State == Initializing && since >= 3*time.Second, w.State == Running && since >= 2*time.Second:
					w.State, w.Since = Idle, now
				}
				if w.State == Idle && len(jobs) > 0 {
					w.State, w.Since, jobs = Running, now, jobs[1:]
				}
				w.Stale = w.Stale || second == release
				if w.State != Frozen {
					usable++
				}
			}
			in := Input{Now: now, Policy: p, Workers: slices.Clone(workers), Room: room - usable, Load: Load{Waiting: len(jobs)}}
			if len(jobs) > 0 {
				in.Load.Oldest = jobs[0]
			}
			for _, w := range workers {
				if w.State == Running {
					in.Load.InProgress++
				}
			}
			plan := Decide(in)
			for range plan.Start {
				id++
				workers = append(workers, Worker{ID: fleet.PodID(fmt.Sprint(id)), Since: now, Created: now})
			}
			for i := range workers {
				switch w := &workers[i]; {
				case slices.Contains(plan.Freeze, w.ID) && w.State == Idle:
					w.State, w.Since = Frozen, now
				case slices.Contains(plan.Thaw, w.ID) && w.State == Frozen:
					w.State, w.Since = Idle, now
				case slices.Contains(plan.Freeze, w.ID), slices.Contains(plan.Thaw, w.ID):
					r.Fatalf("%v is not for a worker that is %v", plan, w.State)
				}
			}
			workers = slices.DeleteFunc(workers, func(w Worker) bool {
				if slices.Contains(plan.End, w.ID) && w.State != Idle && w.State != Frozen {
					r.Fatalf("%v ends a worker that is %v", plan, w.State)
				}
				return slices.Contains(plan.End, w.ID)
			})
			count := 0
			for _, w := range workers {
				if w.State != Frozen {
					count++
				}
			}
			if count > p.Max+1 || count > room || count > p.Max && second < release {
				r.Fatalf("%d workers; %d may be, %d of the account", count, p.Max, room)
			}
			now = now.Add(time.Second)
			return plan
		}
		for second := range 60 {
			if rapid.IntRange(0, 3).Draw(r, "comes") == 0 {
				for range rapid.IntRange(1, 6).Draw(r, "jobs") {
					jobs = append(jobs, now)
				}
			}
			step(second)
		}
		var last Plan
		for second := range 400 {
			last = step(60 + second)
		}
		if len(jobs) > 0 || len(workers) != p.Min || fmt.Sprintf("%+v", last) != fmt.Sprintf("%+v", Plan{}) {
			r.Fatalf("%d jobs, %d workers of %d, %+v", len(jobs), len(workers), p.Min, last)
		}
		for _, w := range workers {
			if w.Stale {
				r.Fatalf("a worker of an earlier release is left")
			}
		}
	})
}
