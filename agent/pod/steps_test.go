package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
	"gantry/storage"
)

// stepper returns a machine of a fake host that is asked for single steps.
func stepper(t *testing.T, change func(*Deps)) (*fakeHost, *machine, Assignment) {
	t.Helper()
	f := newFakeHost(t)
	deps := f.deps(boot1)
	if change != nil {
		change(&deps)
	}
	want := f.order(assignment(1, fleet.GoalRun))
	m := newMachine(deps, want)
	m.since, m.steps = time.Now(), map[fleet.Step]time.Time{}
	return f, m, want
}

func TestAStepThatFailsSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m, want := stepper(t, nil)
		f.away, f.cut, f.registry[imageOf(want)] = errAway, errors.New("no bridge"), errAway
		see := Seen{Record: f.records[want.Pod]}
		if err := m.do(t.Context(), t.Context(), StepPull, want, see); err == nil || !m.steps[fleet.StepPulled].IsZero() {
			t.Errorf("pull: %v, steps %v", err, m.steps)
		}
		for _, s := range []Step{StepNetwork, StepDefine, StepTask, StepStart, StepRemove, "unheard of"} {
			if err := m.do(t.Context(), t.Context(), s, want, see); err == nil {
				t.Errorf("%s: no error", s)
			}
		}
		for _, s := range []fleet.Step{fleet.StepNetworked, fleet.StepDefined, fleet.StepTasked, fleet.StepStarted} {
			if !m.steps[s].IsZero() {
				t.Errorf("%s was reached", s)
			}
		}
	})
}

func TestWhatAPullNotes(t *testing.T) {
	const slow = "the registry does not answer"
	for name, c := range map[string]struct {
		trouble string
		silent  bool
		did     []string
	}{
		"the first try":                       {"", true, []string{"pulling image"}},
		"again, and nothing comes":            {slow, true, []string{again(slow)}},
		"again, and the registry sends bytes": {slow, false, []string{again(slow), "pulling image"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, m, want := stepper(t, nil)
			f.silent, m.trouble = c.silent, c.trouble
			if err := m.pull(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(f.did, c.did) || m.digest != f.digestOf(imageOf(want)) {
				t.Errorf("%s: told %q, digest %q", name, f.did, m.digest)
			}
			if took := m.steps[fleet.StepPulled].Sub(m.steps[fleet.StepPulling]); took != 3*time.Second {
				t.Errorf("%s: pulled after %v", name, took)
			}
		})
	}
}

// TestANetworkDoesNotMoveThePull: an image that was there counts as pulled when the network is begun, another when it was.
func TestANetworkDoesNotMoveThePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m, want := stepper(t, nil)
		see := Seen{Record: f.records[want.Pod]}
		for range 2 {
			began := m.since
			if err := m.network(t.Context(), want, see); err != nil {
				t.Fatal(err)
			}
			if got := m.steps[fleet.StepPulled]; !got.Equal(began) {
				t.Errorf("pulled at %v, want %v", got, began)
			}
			time.Sleep(time.Minute)
		}
	})
}

func TestARunIsToldWithItsOwnMomentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, started := range map[string]time.Time{"timed": time.Now().Add(-time.Hour), "not timed": {}} {
			f, m, want := stepper(t, nil)
			f.doing = "starting"
			m.tellRunning(want, started)
			m.tellRunning(want, started)
			at := started
			if at.IsZero() {
				at = time.Now()
			}
			if len(f.reports) != 1 || !f.reports[0].At.Equal(at) || f.doing != "" {
				t.Errorf("%s: %+v, activity %q", name, f.reports, f.doing)
			}
		}
	})
}

func TestHowAProcessIsEnded(t *testing.T) {
	term, kill := int(syscall.SIGTERM), int(syscall.SIGKILL)
	for name, c := range map[string]struct {
		stubborn bool
		cancel   time.Duration // a new order comes
		signals  []int
		err      error
		took     time.Duration
	}{
		"it heeds":                   {false, time.Hour, []int{term}, nil, 0},
		"it does not":                {true, time.Hour, []int{term, kill}, nil, 10 * time.Second},
		"another order comes before": {true, 3 * time.Second, []int{term}, context.Canceled, 3 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, m, want := stepper(t, nil)
			f.stubborn = c.stubborn
			f.boxes[want.Pod] = &fakeBox{Container: Container{Exists: true, Task: TaskRunning, Incarnation: 1}, done: make(chan struct{})}
			effect, cancel := context.WithCancel(t.Context())
			timer := time.AfterFunc(c.cancel, cancel)
			defer timer.Stop()
			want.Grace = 10 * time.Second
			began := time.Now()
			err := m.do(effect, t.Context(), StepTerm, want, Seen{Container: f.boxes[want.Pod].Container})
			if !errors.Is(err, c.err) || !slices.Equal(f.signals, c.signals) || time.Since(began) != c.took {
				t.Errorf("%s: %v after %v, signals %v", name, err, time.Since(began), f.signals)
			}
			cancel()
		})
	}
}

// TestQuestionsThatCannotMatterAreNotAsked counts what is asked of runtime and network in one look.
func TestQuestionsThatCannotMatterAreNotAsked(t *testing.T) {
	for name, c := range map[string]struct {
		box            *fakeBox
		goal           fleet.Goal
		image          string
		asked, network int
		digest         string
	}{
		"nothing there":            {nil, fleet.GoalRun, "web", 1, 1, "sha256:web"},
		"nothing there, to stop":   {nil, fleet.GoalStop, "web", 0, 1, ""},
		"adopted, without image":   {nil, fleet.GoalRun, "", 0, 1, ""},
		"a container":              {&fakeBox{Container: Container{Exists: true}}, fleet.GoalRun, "web", 0, 1, "present"},
		"a container that runs":    {&fakeBox{Container: Container{Exists: true, Task: TaskRunning}}, fleet.GoalRun, "web", 0, 0, ""},
		"a container that stopped": {&fakeBox{Container: Container{Exists: true, Task: TaskStopped}}, fleet.GoalRun, "web", 0, 1, "present"},
	} {
		f, m, want := stepper(t, nil)
		want.Goal, want.Image = c.goal, c.image
		f.images["web"] = true
		if c.box != nil {
			f.boxes[want.Pod] = c.box
		}
		see, err := m.look(t.Context(), want, true)
		if err != nil || f.asked["image"] != c.asked || f.asked["network"] != c.network || see.Digest != c.digest {
			t.Errorf("%s: %v, asked %v, digest %q", name, err, f.asked, see.Digest)
		}
	}
}

func TestSharedMemoryAndTheOrderOfMounts(t *testing.T) {
	for name, c := range map[string]struct {
		gpus   []string
		memory int64
		shm    int64
	}{
		"no GPU":                     {nil, 32768, 64},
		"a GPU: half of the memory":  {[]string{"GPU-1"}, 32768, 16384},
		"a GPU, and hardly a memory": {[]string{"GPU-1"}, 100, 64},
	} {
		_, m, want := stepper(t, func(d *Deps) { d.Volumes = newFakeVolumes() })
		want.GPUs, want.Limits.MemoryMB = c.gpus, c.memory
		// Whichever is below the other is mounted after it.
		for _, paths := range [][2]string{{"/workspace", "/workspace/data"}, {"/workspace/data", "/workspace"}} {
			want.Persistent = &fleet.PersistentMount{SizeGB: 1, Path: paths[0]}
			want.Volume, want.VolumePath = &storage.Volume{Ready: true}, paths[1]
			m.volume.dir = filepath.Join("/attached", string(m.id))
			spec, err := m.containerSpec(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}
			if len(spec.Mounts) != 2 || spec.Mounts[0].Target != "/workspace" || spec.ShmMB != c.shm {
				t.Errorf("%s: mounts %+v, shared memory %d MB", name, spec.Mounts, spec.ShmMB)
			}
		}
	}
}

// TestAMemberOfAClusterHasItsNames: those of the others, and its own, in place of the pod's id.
func TestAMemberOfAClusterHasItsNames(t *testing.T) {
	_, m, want := stepper(t, nil)
	for hostname, member := range map[string]*MemberSetup{
		string(want.Pod): nil,
		"node-1":         {Hostname: "node-1", Hosts: "10.65.0.2 node-0\n10.65.0.3 node-1\n", Files: []File{{Path: "/etc/gantry/hostfile", Mode: 0o644}}},
	} {
		want.Member = member
		spec, err := m.containerSpec(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		hosts, err1 := os.ReadFile(spec.Hosts)
		name, err2 := os.ReadFile(spec.HostnameTxt)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if spec.Hostname != hostname || string(name) != hostname+"\n" || !strings.Contains(string(hosts), " "+string(want.Pod)+"\n") {
			t.Errorf("%s: host name %q, %q, hosts %q", hostname, spec.Hostname, name, hosts)
		}
		if member != nil && (!strings.HasSuffix(string(hosts), member.Hosts) || len(spec.Files) != 1) || member == nil && len(spec.Files) > 0 {
			t.Errorf("%s: hosts %q, files %+v", hostname, hosts, spec.Files)
		}
	}
}

func TestALookAtTheGPUs(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		step          Step
		gpu, holder   string
		err           error
		before, after string // trouble
		waits         bool
		asked         int
	}{
		"free":                         {StepDefine, "GPU-1", "", nil, held, "", false, 1},
		"free, and other trouble":      {StepDefine, "GPU-1", "", nil, "slow", "slow", false, 1},
		"held":                         {StepDefine, "GPU-1", "process 1", nil, "slow", held, true, 1},
		"nobody can tell":              {StepDefine, "GPU-1", "", broken, "slow", "slow", false, 1},
		"before the container's turn":  {StepNetwork, "GPU-1", "process 1", nil, "", "", false, 0},
		"the container is there":       {StepTask, "GPU-1", "process 1", nil, "", "", false, 0},
		"an order without GPUs":        {StepDefine, "", "process 1", nil, "", "", false, 0},
		"held still, said once before": {StepDefine, "GPU-1", "process 1", nil, held, held, true, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := &fakeGPUs{holder: c.holder, err: c.err}
			_, m, want := stepper(t, func(d *Deps) { d.GPUs = g })
			m.trouble = c.before
			if want.GPUs = nil; c.gpu != "" {
				want.GPUs = []string{c.gpu}
			}
			waits, err := m.busy(t.Context(), c.step, want)
			if waits != c.waits || !errors.Is(err, c.err) || m.trouble != c.after || g.asked != c.asked {
				t.Errorf("%s: %v, %v, trouble %q, asked %d", name, waits, err, m.trouble, g.asked)
			}
		})
	}
}

func TestWhyAVolumeIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m, _ := stepper(t, nil)
		for name, c := range map[string]struct {
			cause    error
			sentence string
		}{
			"it says why":       {&storage.Error{Sentence: "it is full"}, "it is full"},
			"it says nothing":   {&storage.Error{}, "the network volume could not be mounted"},
			"an error of other": {errors.New("secret"), "the network volume could not be mounted"},
		} {
			m.volume.troubled = time.Time{}
			for _, step := range []struct {
				after time.Duration
				class Class
			}{{0, Retry}, {volumeLimit - 1, Retry}, {1, Fatal}} {
				time.Sleep(step.after)
				var e *Error
				if err := m.volumeTrouble(c.cause); !errors.As(err, &e) || e.Class != step.class || !strings.HasPrefix(e.Sentence, c.sentence) {
					t.Errorf("%s, %v later: %v", name, step.after, err)
				}
			}
		}
		if n := len(f.lines); n != 3 {
			t.Errorf("the log says it %d times: %q", n, f.lines)
		}
		var e *Error
		if err := m.attach(t.Context(), Assignment{Volume: &storage.Volume{Ready: true}}); !errors.As(err, &e) || e.Class != Fatal {
			t.Errorf("a host without volumes: %v", err)
		}
	})
}

func TestAVolumeIsLetGoOfThreeTimes(t *testing.T) {
	v := newFakeVolumes()
	v.fail["detach"] = errors.New("stuck")
	_, m, want := stepper(t, func(d *Deps) { d.Volumes = v })
	v.attached[want.Pod] = storage.Volume{}
	for try, fails := range []bool{true, true, false} {
		if there, err := m.isAttached(); err != nil || !there {
			t.Errorf("try %d: attached %v, %v", try, there, err)
		}
		if err := m.do(t.Context(), t.Context(), StepDetach, want, Seen{}); (err != nil) != fails {
			t.Errorf("try %d: %v", try, err)
		}
	}
	if there, err := m.isAttached(); err != nil || there {
		t.Errorf("given up: attached %v, %v", there, err)
	}
	v.fail["detach"], m.volume = nil, mounted{dir: "/attached", lost: 1}
	if err := m.detach(t.Context()); err != nil || m.volume != (mounted{}) {
		t.Errorf("%v, still %+v", err, m.volume)
	}
}

// TestAFolderIsReadableWhateverTheMask: the mask of the agent's process takes nothing from the container's users.
func TestAFolderIsReadableWhateverTheMask(t *testing.T) {
	dir := t.TempDir()
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	path, err := MakeData(dir, "p1")
	must(t, err)
	wantMode(t, path, 0o755)
	must(t, os.Chmod(path, 0o700)) // its owner's wish stays
	_, err = MakeData(dir, "p1")
	must(t, err)
	wantMode(t, path, 0o700)
}

func wantMode(t *testing.T, path string, want os.FileMode) {
	t.Helper()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
		t.Errorf("%s: %v, %v, want %v", path, info, err, want)
	}
}

// TestWhatAnIdleMachineWaitsFor: an order, and a volume that could not be let go of is tried again after a minute.
func TestWhatAnIdleMachineWaitsFor(t *testing.T) {
	for name, c := range map[string]struct {
		lost, after int
		took        time.Duration
	}{
		"an order":                {0, 0, time.Hour},
		"an order, with a try":    {detachTries - 1, detachTries - 1, time.Hour},
		"a volume, or the minute": {detachTries, 0, detachLater},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, m, want := stepper(t, nil)
			f.doing, m.volume.lost = "starting", c.lost
			timer := time.AfterFunc(time.Hour, m.poke)
			defer timer.Stop()
			began := time.Now()
			err := m.do(t.Context(), t.Context(), StepIdle, want, Seen{})
			if err != nil || time.Since(began) != c.took || m.volume.lost != c.after || f.doing != "" {
				t.Errorf("%s: %v after %v, lost %d, activity %q", name, err, time.Since(began), m.volume.lost, f.doing)
			}
		})
	}
}

func TestAnOrderEndsTheWaitForTheHostsArchives(t *testing.T) {
	f, m, want := stepper(t, func(d *Deps) { d.Imported = make(chan struct{}) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.pull(ctx, want); !errors.Is(err, context.Canceled) || len(f.auths) != 0 {
		t.Errorf("%v, pulls %d", err, len(f.auths))
	}
}

// TestWhatEndsAStepUnderWay: an order that wants something else, not one that is only newer.
func TestWhatEndsAStepUnderWay(t *testing.T) {
	for name, c := range map[string]struct {
		change        func(*Assignment)
		ends, abandon bool
	}{
		"only newer":            {func(*Assignment) {}, false, false},
		"a stop":                {func(a *Assignment) { a.Goal = fleet.GoalStop }, true, true},
		"another run":           {func(a *Assignment) { a.Incarnation++ }, true, true},
		"a read-only volume":    {func(a *Assignment) { a.Volume = &storage.Volume{ReadOnly: true} }, true, false},
		"an older one, refused": {func(a *Assignment) { a.Goal, a.Generation = fleet.GoalStop, 1 }, false, false},
	} {
		_, m, want := stepper(t, nil)
		m.want.Generation, want.Generation = 5, 6
		ended, abandoned := false, error(nil)
		m.cancel, m.abandon = func() { ended = true }, func(err error) { abandoned = err }
		c.change(&want)
		m.set(want)
		if ended != c.ends || errors.Is(abandoned, ErrUnwanted) != c.abandon {
			t.Errorf("%s: ended %v, abandoned %v", name, ended, abandoned)
		}
	}
}

func TestAnEndThatIsToldEndsTheActivity(t *testing.T) {
	f, m, want := stepper(t, nil)
	f.doing = "stopping the container"
	m.report(&Ended{Incarnation: want.Incarnation, Event: fleet.EventExited})
	if f.doing != "" || f.last().Event != fleet.EventExited || f.last().LogTail != "" || m.told != want.Incarnation {
		t.Errorf("activity %q, report %+v", f.doing, f.last())
	}
}

// TestWhenAVolumeIsAskedForAgain: the host may have been rebooted since, so no later than attachFresh after.
func TestWhenAVolumeIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeVolumes()
		_, m, want := stepper(t, func(d *Deps) { d.Volumes = v })
		want.Volume = &storage.Volume{Ready: true}
		for i, c := range []struct {
			after time.Duration
			calls int
		}{{0, 1}, {attachFresh - 1, 1}, {1, 2}} {
			time.Sleep(c.after)
			if err := m.attach(t.Context(), want); err != nil || len(v.calls) != c.calls {
				t.Errorf("%d: %v, calls %v", i, err, v.calls)
			}
		}
		m.Volumes = nil // a host that has lost its volumes ends what has one as any other
		m.ending(want)
	})
}

func TestAnErrorSaysItsCauseIfItHasOne(t *testing.T) {
	cause := errors.New("broken")
	with, without := (&Error{Sentence: "no", Err: cause}).Error(), (&Error{Sentence: "no"}).Error()
	if !strings.Contains(with, "no") || !strings.Contains(with, "broken") || without != "no" {
		t.Errorf("%q, %q", with, without)
	}
}
