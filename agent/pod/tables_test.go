package pod

import (
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gantry/fleet"
)

func TestVerdicts(t *testing.T) {
	const memory = "killed for lack of memory (limit 512 MB"
	for name, c := range map[string]struct {
		c      Container
		event  fleet.Trigger
		reason string
	}{
		"zero":                  {Container{}, fleet.EventExited, ""},
		"one":                   {Container{ExitCode: 1}, fleet.EventFailed, "the container ended with exit code 1"},
		"no signal":             {Container{ExitCode: 128}, fleet.EventFailed, "the container ended with exit code 128"},
		"the first signal":      {Container{ExitCode: 129}, fleet.EventFailed, "the container was ended by signal 1 (exit code 129)"},
		"the last signal":       {Container{ExitCode: 192}, fleet.EventFailed, "the container was ended by signal 64 (exit code 192)"},
		"above the last signal": {Container{ExitCode: 193}, fleet.EventFailed, "the container ended with exit code 193"},
		"lost":                  {Container{Lost: true, ExitCode: 255}, fleet.EventFailed, "the container's process was lost together with its runtime"},
		"lost with 0":           {Container{Lost: true}, fleet.EventFailed, "the container's process was lost together with its runtime"},
		"memory":                {Container{OOMKilled: true, ExitCode: 137}, fleet.EventFailed, "the container was " + memory + ")"},
		"memory and its peak":   {Container{OOMKilled: true, ExitCode: 137, MemoryPeak: 1}, fleet.EventFailed, "the container was " + memory + ", peak 0 MB)"},
		"killed, not for that":  {Container{ExitCode: 137}, fleet.EventFailed, "the container was ended by signal 9 (exit code 137)"},
		"memory of a child":     {Container{OOMKilled: true}, fleet.EventFailed, "a process of the container was " + memory + "); the container ended with exit code 0"},
	} {
		if event, reason := verdict(c.c, 512); event != c.event || reason != c.reason {
			t.Errorf("%s: %s, %q", name, event, reason)
		}
	}
}

func TestReadable(t *testing.T) {
	for text, want := range map[string]string{"": "", "1234": "1234", "12345": "1234", "123é": "123", "\xff12": "12", "1é3": "1é3"} {
		if got := Readable(text, 4); got != want || !utf8.ValidString(got) {
			t.Errorf("%q is %q", text, got)
		}
	}
}

// TestWhatIsTaken: a pod's order goes by what others hold, and by what others are to have before it.
func TestWhatIsTaken(t *testing.T) {
	at := func(text string) Place { return Place{VNI: 7, Addr: netip.MustParseAddr(text)} }
	other := func(change func(*Record)) Record {
		rec := Record{Assignment: orderOf("a", 10, "GPU-1", 30_001), Begun: 1}
		rec.Assignment.Overlays = []Place{at("10.1.0.1")}
		change(&rec)
		return rec
	}
	none := func(*Record) {}
	waits := func(r *Record) { r.Begun = 0 }
	for name, c := range map[string]struct {
		rec  Record
		want Assignment
		says string
	}{
		"a GPU":                {other(none), orderOf("b", 20, "GPU-1", 0), "GPU GPU-1"},
		"another GPU":          {other(none), orderOf("b", 20, "GPU-2", 0), ""},
		"a port":               {other(none), orderOf("b", 20, "", 30_001), "public port 30001"},
		"another port":         {other(none), orderOf("b", 20, "", 30_002), ""},
		"a private address":    {other(none), Assignment{Pod: "b", Overlays: []Place{at("10.1.0.1")}}, "private address 10.1.0.1"},
		"another address":      {other(none), Assignment{Pod: "b", Overlays: []Place{at("10.1.0.2")}}, ""},
		"that in another net":  {other(none), Assignment{Pod: "b", Overlays: []Place{{VNI: 8, Addr: netip.MustParseAddr("10.1.0.1")}}}, ""},
		"its own":              {other(none), orderOf("a", 20, "GPU-1", 0), ""},
		"it has ended":         {other(func(r *Record) { r.Ended = &Ended{Incarnation: 1} }), orderOf("b", 20, "GPU-1", 0), ""},
		"it holds another":     {other(func(r *Record) { r.Held = &Holding{GPUs: []string{"GPU-2"}} }), orderOf("b", 20, "GPU-1", 0), ""},
		"it waits, before":     {other(waits), orderOf("b", 20, "GPU-1", 0), "GPU GPU-1"},
		"it waits, after":      {other(waits), orderOf("b", 9, "GPU-1", 0), ""},
		"it waits, as old":     {other(waits), orderOf("b", 10, "GPU-1", 0), "GPU GPU-1"},
		"it waits, by name":    {other(waits), orderOf("A", 10, "GPU-1", 0), ""},
		"it waits to stop":     {other(func(r *Record) { r.Begun, r.Assignment.Goal = 0, fleet.GoalStop }), orderOf("b", 20, "GPU-1", 0), ""},
		"it waited, and ended": {other(func(r *Record) { r.Begun, r.Ended = 0, &Ended{Incarnation: 1} }), orderOf("b", 20, "GPU-1", 0), ""},
	} {
		if got := taken([]Record{c.rec}, c.want); got != c.says {
			t.Errorf("%s: %q, want %q", name, got, c.says)
		}
	}
}

// TestLetGo: what an earlier incarnation had is free once nothing of it is left, and not before.
func TestLetGo(t *testing.T) {
	for name, c := range map[string]struct {
		begun, want uint64
		container   Container
		ended       *Ended
		frees       bool
	}{
		"nothing is left":              {2, 3, Container{}, nil, true},
		"its container is there":       {2, 3, Container{Exists: true, Incarnation: 2}, nil, false},
		"one of before it":             {2, 3, Container{Exists: true, Incarnation: 1}, nil, false},
		"the next one's is there":      {2, 3, Container{Exists: true, Incarnation: 3}, nil, true},
		"it is the one that is wanted": {3, 3, Container{}, nil, false},
		"a later one than that":        {4, 3, Container{}, nil, false},
		"it has ended":                 {2, 3, Container{}, &Ended{Incarnation: 2}, false},
		"it never began":               {0, 3, Container{}, nil, false},
	} {
		f := newFakeHost(t)
		deps := f.deps(boot1)
		deps.claims = newClaims()
		m := newMachine(deps, assignment(c.want, fleet.GoalRun))
		err := m.letGo(m.want, Seen{Container: c.container, Record: Record{Assignment: m.want, Begun: c.begun, Ended: c.ended}})
		if freed := len(f.ends) == 1 && f.ends[0].Incarnation == c.begun && f.ends[0].Event == fleet.EventExited; err != nil || freed != c.frees {
			t.Errorf("%s: ends %+v, %v", name, f.ends, err)
		}
	}
}

func TestWhatGoesWithAContainer(t *testing.T) {
	order := orderOf("p1", 10, "GPU-1", 30_001)
	addr := netip.MustParseAddr("10.88.0.2")
	text := kept(order, addr)
	held := Holding{GPUs: order.GPUs, Mappings: order.Mappings}
	for name, c := range map[string]struct {
		c    Container
		want Record
	}{
		"made":     {Container{Kept: text, Incarnation: 4}, Record{}},
		"created":  {Container{Kept: text, Incarnation: 4, Task: TaskCreated}, Record{}},
		"runs":     {Container{Kept: text, Incarnation: 4, Task: TaskRunning}, Record{Begun: 4, BegunBoot: boot1, Held: &held}},
		"has run":  {Container{Kept: text, Incarnation: 4, Task: TaskStopped}, Record{Begun: 4, BegunBoot: boot1, Held: &held}},
		"rebooted": {Container{Kept: text, Incarnation: 4, StartedAt: time.Unix(1, 0)}, Record{Begun: 4, Held: &held}},
	} {
		c.want.Addr = addr
		c.want.Assignment = Assignment{Pod: "p1", Account: "a1", Incarnation: 4, Goal: fleet.GoalRun, GPUs: order.GPUs, Mappings: order.Mappings}
		got, err := Adopted("p1", c.c, boot1)
		if d := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
		}
	}
	for text, says := range map[string]string{"": "read what goes", "{}": "no address", `{"addr":"::1"}`: "no address"} {
		if _, err := Adopted("p1", Container{Kept: text}, boot1); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v; want %q in it", text, err, says)
		}
	}
	longest := order
	longest.GPUs = []string{strings.Repeat("g", maxKept-len(text)+len("GPU-1"))}
	if got := kept(longest, addr); len(got) != maxKept {
		t.Errorf("the longest has %d bytes", len(got))
	}
	longest.GPUs[0] += "g"
	if got := kept(longest, addr); got != "" {
		t.Errorf("%d bytes are kept", len(got))
	}
}

func TestWhichImagesAreWanted(t *testing.T) {
	rec := func(image, digest string, goal fleet.Goal, orphan bool, ended *Ended) Record {
		return Record{Assignment: Assignment{Image: image, Digest: digest, Goal: goal, Incarnation: 1}, Orphan: orphan, Ended: ended}
	}
	got := ImagesWanted([]Record{
		rec("runs", "sha256:runs", fleet.GoalRun, false, nil), rec("floats", "", fleet.GoalRun, false, nil), rec("stops", "", fleet.GoalStop, false, nil),
		rec("ended", "", fleet.GoalRun, false, &Ended{Incarnation: 1}), rec("gone", "", fleet.GoalGone, false, nil), rec("orphan", "", fleet.GoalRun, true, nil),
	})
	want := WantedImages{Ordered: []string{"runs", "sha256:runs", "floats"}, Known: []string{"runs", "sha256:runs", "floats", "stops", "ended"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestAProfileKeepsThePathOfTheImage(t *testing.T) {
	for _, own := range []bool{false, true} {
		env := map[string]string{"A": "b'c"}
		if own {
			env["PATH"] = "/mine"
		}
		text := profileText(env)
		if strings.Contains(text, keepPath) == own || strings.Contains(text, "export PATH='/mine'") != own || !strings.Contains(text, "export A=") {
			t.Errorf("a path of its own %v:\n%s", own, text)
		}
	}
}
