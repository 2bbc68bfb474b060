package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/ipc"
	"gantry/storage/disk"
	"gantry/storage/helper"
	"gantry/storage/provision"
	"gantry/storage/volume"
)

// TestWhatOwnersAreToldOfAnError that a helper process met.
func TestWhatOwnersAreToldOfAnError(t *testing.T) {
	for words, errs := range map[string][]error{
		"marker of its backend is missing": {provision.ErrNoMarker},
		"marker is that of another":        {provision.ErrOtherMarker},
		"is in use on its storage host":    {disk.ErrBusy},
		"was deleted":                      {provision.ErrRemoved},
		"does not answer":                  {helper.ErrStuck, helper.ErrTooManyStuck, unix.ETIMEDOUT, unix.EIO},
		"is full":                          {unix.ENOSPC},
		"":                                 {io.EOF},
	} {
		for _, err := range errs {
			err = fmt.Errorf("somewhere: %w", err)
			if got := provisionError(markedError(err)); said(got) != "" != (words != "") || !strings.Contains(said(got), words) || !errors.Is(got, err) {
				t.Errorf("of %v they are told %q", err, said(got))
			}
		}
	}
	if provisionError(nil) != nil {
		t.Error("nothing is an error")
	}
	for kind, words := range map[string]string{workMake: "could not be made", workRemove: "could not be removed", workMeasure: "could not be measured"} {
		for err, want := range map[error]string{&volume.Error{}: words, io.EOF: words, &volume.Error{Sentence: "it is full"}: "it is full"} {
			if got := sentenceOf(kind, err); !strings.Contains(got, want) {
				t.Errorf("of %v, at %s: %q", err, kind, got)
			}
		}
	}
}

// scripted is a helper process that answers in its turn.
type scripted struct {
	answers []provisionOut
	err     error // after them
	asked   []provisionIn
	calls   []string
	ends    func() // is called at the end of each
}

func (s *scripted) Call(_ context.Context, group, op string, in, out any) error {
	s.asked, s.calls = append(s.asked, in.(provisionIn)), append(s.calls, group+" "+op)
	defer s.ends()
	if len(s.answers) == 0 {
		return s.err
	}
	*out.(*provisionOut) = s.answers[0]
	s.answers = s.answers[1:]
	return nil
}

// TestALongPieceOfWorkIsDoneInSlices: each goes on where the one before ended, until it is done, fails, or nobody waits for it.
func TestALongPieceOfWorkIsDoneInSlices(t *testing.T) {
	root := Root{Backend: volume.Backend{ID: "b1", Kind: fleet.BackendNFS}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, c := range map[string]struct {
		script *scripted
		calls  int
		bytes  int64
		err    error
	}{
		"done":         {&scripted{answers: []provisionOut{{Bytes: 1, Progress: provision.Progress{Bytes: 1}}, {Bytes: 3, Progress: provision.Progress{Bytes: 3}}, {Bytes: 7, Done: true}}}, 3, 7, nil},
		"it fails":     {&scripted{answers: []provisionOut{{Bytes: 1, Progress: provision.Progress{Bytes: 1}}}, err: io.EOF}, 2, 1, io.EOF},
		"nobody waits": {&scripted{answers: []provisionOut{{Bytes: 5}}, ends: cancel, err: io.EOF}, 1, 5, context.Canceled},
	} {
		p := provisioning("/at")
		p.Caller = c.script
		in := t.Context()
		if c.script.ends == nil {
			c.script.ends = func() {}
		} else {
			in = ctx
		}
		got, err := p.Used(in, root, Volume{Dir: someDir})
		if got != c.bytes || !errors.Is(err, c.err) || c.err == nil && err != nil || len(c.script.asked) != c.calls {
			t.Errorf("%s: %d, %v after %d calls", name, got, err, len(c.script.asked))
		}
		for i, in := range c.script.asked {
			want := provision.Root{Kind: "nfs", Backend: "b1", Dir: "/at", PerSecond: lookPerSecond}
			if in.Root != want || in.Most != lookSlice || in.Volume.Dir != someDir || in.Progress.Bytes != []int64{0, 1, 3}[i] || c.script.calls[i] != "storage/b1 "+opMeasure {
				t.Errorf("%s, call %d: %s %+v", name, i, c.script.calls[i], in)
			}
		}
	}
	p := &Helpers{Caller: &scripted{}, Root: func(context.Context, volume.Backend) (string, error) { return "", io.EOF }}
	if err := p.Make(t.Context(), root, Volume{}); !errors.Is(err, io.EOF) {
		t.Errorf("a backend that cannot be mounted: %v", err)
	}
}

// TestABackendThatLostItsMarkerIsLeftAlone: a removal makes it the backend's only when nobody ever worked there.
func TestABackendThatLostItsMarkerIsLeftAlone(t *testing.T) {
	for fresh, want := range map[bool]string{false: "remove", true: "remove make"} {
		p := provisioning("/at")
		script := &scripted{err: ipc.Mark(kindNoMarker, provision.ErrNoMarker), ends: func() {}}
		p.Caller = script
		err := p.Remove(t.Context(), Root{Backend: volume.Backend{ID: "b1"}, Fresh: fresh}, Volume{Dir: someDir})
		if got := strings.ReplaceAll(strings.Join(script.calls, " "), "storage/b1 provision.", ""); !strings.Contains(said(err), "missing") || got != want {
			t.Errorf("fresh %v: %s, %v", fresh, got, err)
		}
		if fresh && script.asked[1].Volume.SizeGB != 1 {
			t.Errorf("made with %d GB", script.asked[1].Volume.SizeGB)
		}
		script = &scripted{answers: []provisionOut{{}, {}, {Done: true}}, ends: func() {}}
		p.Caller = script
		err = p.Remove(t.Context(), Root{Backend: volume.Backend{ID: "b1"}, Fresh: fresh}, Volume{Dir: someDir})
		if got := strings.ReplaceAll(strings.Join(script.calls, " "), "storage/b1 provision.", ""); err != nil || got != "remove delete delete" {
			t.Errorf("with its marker: %s, %v", got, err)
		}
	}
}

// TestAHelperProcessWorksThroughSome of many files, and says when it is done.
func TestAHelperProcessWorksThroughSome(t *testing.T) {
	dir := t.TempDir()
	in := provisionIn{
		Root: provision.Root{Kind: "local", Backend: "b1", Dir: dir, Fresh: true}, Volume: provision.Volume{Dir: someDir, SizeGB: 1, IDBase: fleet.VolumeIDsFirst}, Most: 2,
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(provision.Make(t.Context(), in.Root, in.Volume))
	for i := range 8 {
		must(os.WriteFile(filepath.Join(dir, someDir, fmt.Sprint(i)), make([]byte, 4096), 0o600))
	}
	rounds := func(what string, f func(context.Context, provisionIn) (provisionOut, error)) (last provisionOut) {
		t.Helper()
		n := 0
		for in.Progress = (provision.Progress{}); !last.Done && n < 20; n++ {
			var err error
			last, err = f(t.Context(), in)
			must(err)
			in.Progress = last.Progress
		}
		if n < 3 || n == 20 {
			t.Errorf("%s took %d rounds", what, n)
		}
		return last
	}
	if got := rounds("measuring", measureSome); got.Bytes < 8*4096 {
		t.Errorf("it holds %d", got.Bytes)
	}
	must(provision.Remove(t.Context(), in.Root, someDir))
	rounds("removing", deleteSome)
	if got, err := deleteSome(t.Context(), in); err != nil || !got.Done {
		t.Errorf("once more: %+v, %v", got, err)
	}
	in.Root.Backend = "b2"
	for what, f := range map[string]func(context.Context, provisionIn) (provisionOut, error){"measured": measureSome, "removed": deleteSome} {
		if _, err := f(t.Context(), in); !errors.Is(err, provision.ErrOtherMarker) {
			t.Errorf("what is of another backend is %s: %v", what, err)
		}
	}
}

// TestWhatCleanLeavesAlone: folders that have gone, or lost their marker, and those that other hosts reach.
func TestWhatCleanLeavesAlone(t *testing.T) {
	data := t.TempDir()
	if err := Clean(t.Context(), data); err != nil {
		t.Errorf("of a host without any: %v", err)
	}
	for text, ok := range map[string]bool{
		fmt.Sprintf(`{"roots":[{"backend":"b1","kind":"local","dir":%q},{"backend":"b2","kind":"local","dir":"/not/there"},{"backend":"b3","kind":"nfs","dir":"/proc/version"}]}`, t.TempDir()): true,
		`{"roots":[{"backend":"b1","kind":"local","dir":"/proc/version"}]}`: false, "{": false,
	} {
		if err := os.WriteFile(File(data), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Clean(t.Context(), data); (err == nil) != ok {
			t.Errorf("of %s: %v", text, err)
		}
	}
}

// role makes a Role of which a test sees what it says and how often it wakes the session.
func role(t *testing.T, does Provisioner, file string) (s *Role, said *bytes.Buffer, woken *atomic.Int32) {
	said, woken = &bytes.Buffer{}, new(atomic.Int32)
	ctx, cancel := context.WithCancel(t.Context())
	s = New(ctx, Config{
		Does: does, File: file, Count: func(string, bool) {}, Wake: func() { woken.Add(1) }, Log: slog.New(slog.NewTextHandler(said, nil)),
	})
	t.Cleanup(func() { cancel(); s.Wait() })
	return s, said, woken
}

// TestWhatIsSaidOfARestore: that a folder misses its volumes, and nothing of one that has them or of an agent that ends.
func TestWhatIsSaidOfARestore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "storage.json")
	synctest.Test(t, func(t *testing.T) {
		shelf := newShelf()
		s, said, _ := role(t, shelf, file)
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "/export"), rootOf("b", "/other")}})
		if said.Len() != 0 {
			t.Errorf("said %s", said)
		}
		s, said, _ = role(t, shelf, file)
		shelf.fail["restore /export"] = errors.New("busy")
		began := time.Now()
		go func() { time.Sleep(workAgain / 2); shelf.set(func() { clear(shelf.fail) }) }()
		s.Restore(t.Context())
		wantDone(t, shelf, "restore a /export failed", "restore b /other", "restore a /export")
		if took := time.Since(began); took != workAgain || strings.Count(said.String(), "are missing from a folder") != 1 {
			t.Errorf("it took %v, said %s", took, said)
		}
		ctx, cancel := context.WithCancel(t.Context())
		said.Reset()
		shelf.fail["restore /export"], shelf.takes["restore"] = errors.New("busy"), time.Minute
		time.AfterFunc(time.Second, cancel)
		if s.Restore(ctx); said.Len() != 0 {
			t.Errorf("at the end of the agent: %s", said)
		}
	})
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, said, _ := role(t, newShelf(), file); !strings.Contains(said.String(), "are not there until a scheduler was heard") {
		t.Errorf("of what cannot be read: %s", said)
	}
}

// TestAnOrderThatChangedIsTriedAtOnce: another size, another place, and a backend that is reached in another way.
func TestAnOrderThatChangedIsTriedAtOnce(t *testing.T) {
	other, moved := work("v1", 10), work("v1", 10)
	other.Dir, moved.IdBase = strings.Repeat("z", len(someDir)), fleet.VolumeIDsFirst+fleet.VolumeIDs
	elsewhere := rootOf("a", "/own", work("v1", 10))
	elsewhere.Backend.Server = "other"
	for name, c := range map[string]struct {
		fails bool
		next  *agentrpc.StorageRoot
		did   []string
	}{
		"nothing, and it was done": {false, rootOf("a", "/own", work("v1", 10)), nil},
		"nothing, and it failed":   {true, rootOf("a", "/own", work("v1", 10)), nil},
		"the size":                 {true, rootOf("a", "/own", work("v1", 20)), []string{"make a v1/20"}},
		"the folder":               {false, rootOf("a", "/own", other), []string{"make a v1/10"}},
		"the owner":                {false, rootOf("a", "/own", moved), []string{"make a v1/10"}},
		"the way to it":            {true, elsewhere, []string{"restore a /own", "make a v1/10"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			shelf := newShelf()
			if c.fails {
				shelf.fail["make v1/10"] = io.EOF
			}
			s, _, _ := role(t, shelf, filepath.Join(t.TempDir(), "storage.json"))
			if up, err := s.Take(t.Context(), &agentrpc.Down_Storage{Storage: &agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "/own", work("v1", 10))}}}); up != nil || err != nil {
				t.Errorf("%v, %v", up, err)
			}
			synctest.Wait()
			shelf.done()
			shelf.set(func() { clear(shelf.fail) })
			s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{c.next}})
			synctest.Wait()
			if got := shelf.done(); !slices.Equal(got, c.did) {
				t.Errorf("%s: %q", name, got)
			}
		})
	}
}

// TestWhatIsDueFirstIsDoneFirst, and a piece of work that was done once begins anew when it fails again.
func TestWhatIsDueFirstIsDoneFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		b := &backendWork{volumes: map[fleet.VolumeID]*volumeWork{}}
		for id, at := range map[fleet.VolumeID]time.Duration{"a": 3, "b": 1, "c": 2} {
			b.volumes[id] = &volumeWork{order: Volume{SizeGB: 1}, due: map[string]time.Time{workMake: now.Add(at)}}
		}
		if w, wait := b.next(workMake, now.Add(1)); w != b.volumes["b"] || wait != 0 {
			t.Errorf("the first is %+v, after %v", w, wait)
		}
		if w, wait := b.next(workMake, now); w != nil || wait != 1 {
			t.Errorf("before it is due: %+v, after %v", w, wait)
		}
		shelf := newShelf()
		s, said, _ := role(t, shelf, filepath.Join(t.TempDir(), "storage.json"))
		v := work("v1", 10)
		v.Measure = true
		shelf.fail["measure v1"] = io.EOF
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "", v)}})
		time.Sleep(workAgain / 2)
		shelf.set(func() { clear(shelf.fail) })
		time.Sleep(workAgain)
		wantDone(t, shelf, "make a v1/10", "measure a v1 failed", "measure a v1")
		if strings.Count(said.String(), "msg=\"network volume\"") != 1 {
			t.Errorf("said %s", said)
		}
		s.Again() // of what failed
		synctest.Wait()
		wantDone(t, shelf)
		shelf.set(func() { shelf.fail["measure v1"] = io.EOF })
		time.Sleep(measureEvery)
		wantDone(t, shelf, "measure a v1 failed")
		time.Sleep(workAgain)
		wantDone(t, shelf, "measure a v1 failed")
	})
}

// TestARemovalRestoresNothing, and is told when it fails.
func TestARemovalRestoresNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shelf := newShelf()
		s, _, woken := role(t, shelf, filepath.Join(t.TempDir(), "storage.json"))
		var did []string
		s.count = func(kind string, failed bool) { did = append(did, fmt.Sprint(kind, " ", failed)) }
		gone := work("v1", 10)
		gone.Gone = true
		shelf.fail["remove v1"] = &volume.Error{Sentence: "it is in use"}
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "/own", gone)}})
		synctest.Wait()
		wantDone(t, shelf, "remove a v1 failed")
		if !slices.Equal(did, []string{"remove true"}) || woken.Load() != 2 {
			t.Errorf("counted %q, woken %d times", did, woken.Load())
		}
		wantTold(t, s, &agentrpc.StorageReport{VolumeId: "v1", Problem: "it is in use"})
		shelf.set(func() { clear(shelf.fail) })
		time.Sleep(workAgain)
		synctest.Wait()
		if !slices.Equal(did, []string{"remove true", "remove false"}) || woken.Load() != 3 {
			t.Errorf("counted %q, woken %d times", did, woken.Load())
		}
	})
}

// TestASessionIsWokenForWhatIsLeftToTell: reports come in messages of a bounded length.
func TestASessionIsWokenForWhatIsLeftToTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, said, woken := role(t, newShelf(), filepath.Join(t.TempDir(), "storage.json"))
		s.Begin()
		time.Sleep(2 * setWithin)
		if woken.Load() != 1 || said.Len() != 0 || s.Next() != nil {
			t.Errorf("without work: woken %d times, said %s", woken.Load(), said)
		}
		if s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "")}}); woken.Load() != 2 {
			t.Error("a set wakes nobody")
		}
		var volumes []*agentrpc.StorageVolume
		for i := range maxStorageReports + 1 {
			volumes = append(volumes, work(fmt.Sprintf("v%04d", i), 10))
		}
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "", volumes...)}})
		synctest.Wait()
		woken.Store(0)
		var told []int
		for up := s.Next(); up != nil; up = s.Next() {
			told = append(told, len(up.GetStorage().GetVolumes()))
		}
		if !slices.Equal(told, []int{maxStorageReports, 1}) || woken.Load() != 1 {
			t.Errorf("told %v, woken %d times", told, woken.Load())
		}
	})
}
