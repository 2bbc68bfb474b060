package replica

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// names are those in a folder.
func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestALogIsMadeInTwoSteps, each of which may be repeated, and what is found says which were done.
func TestALogIsMadeInTwoSteps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "member")
	found := func(when string, wantData, wantPrepared bool) {
		t.Helper()
		if data, prepared, err := Found(dir); err != nil || data != wantData || prepared != wantPrepared {
			t.Errorf("%s: data %v, prepared %v, %v", when, data, prepared, err)
		}
	}
	found("without a folder", false, false)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	found("in an empty folder", false, false)
	if err := Finish(dir); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "create replica") {
		t.Errorf("finished before it was prepared: %v", err)
	}
	for range 2 {
		if err := Prepare(dir); err != nil {
			t.Fatal(err)
		}
		found("prepared", false, true)
	}
	for range 2 {
		if err := Finish(dir); err != nil {
			t.Fatal(err)
		}
		found("finished", true, false)
		if err := Prepare(dir); err != nil { // for there is a log
			t.Fatal(err)
		}
	}
	if got := names(t, dir); len(got) != 1 || got[0] != logFile {
		t.Errorf("the folder holds %v", got)
	}
	file := filepath.Join(dir, logFile)
	_, _, err := Found(file)
	for what, err := range map[string]error{"found": err, "prepared": Prepare(file), "finished": Finish(file)} {
		if err == nil {
			t.Errorf("%s in a file", what)
		}
	}
}

// TestNothingIsMadeBesideWhatIsLeft of a member that lost a part.
func TestNothingIsMadeBesideWhatIsLeft(t *testing.T) {
	m := Member{ID: "z", Address: "127.0.0.1:1"}
	for _, name := range []string{logFile, snapshotDir, StateFile} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Prepare(dir); name != logFile && (!errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "there is "+name)) {
			t.Errorf("prepared beside %s: %v", name, err)
		}
		if err := Install(dir, m, strings.NewReader("")); err == nil || !strings.Contains(err.Error(), "holds "+name+" already") {
			t.Errorf("installed beside %s: %v", name, err)
		}
		if _, err := Inspect(dir); err == nil || !strings.Contains(err.Error(), "inspect replica") {
			t.Errorf("%s alone is a copy: %v", name, err)
		}
		if err := Recover(dir, m, OpenState); err == nil || !strings.Contains(err.Error(), "recover replica") {
			t.Errorf("recovered from %s alone: %v", name, err)
		}
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if got := names(t, dir); err != nil || string(raw) != "kept" || len(got) != 1 {
			t.Errorf("the folder of %s holds %v, %q, %v", name, got, raw, err)
		}
	}
	for name, r := range map[string]string{"nothing": "", "noise": strings.Repeat("noise", 1000)} {
		dir := t.TempDir()
		err := Install(dir, m, strings.NewReader(r))
		if err == nil || errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "is empty") || len(names(t, dir)) != 0 {
			t.Errorf("%s: %v, and left %v", name, err, names(t, dir))
		}
		if err := Install(filepath.Join(dir, "none", "at all"), m, strings.NewReader(r)); err == nil {
			t.Errorf("%s was installed nowhere", name)
		}
	}
}

// refusing is a state machine that takes nothing.
type refusing struct{ Machine }

var errRefusing = errors.New("an entry of a newer version")

func (refusing) Apply([]entry.Entry) ([][]entry.Result, error) { return nil, errRefusing }

// TestARecoveryThatFailsChangesNothing, wherever it stops: the copy opens as before.
func TestARecoveryThatFailsChangesNothing(t *testing.T) {
	m := one(t, nil)
	for i := range 3 {
		m.put(t, i)
	}
	want := m.hash(t)
	m.stop(t)
	for name, open := range map[string]func(string) (Machine, error){
		"no machine": func(string) (Machine, error) { return nil, errRefusing },
		"one that takes nothing": func(dir string) (Machine, error) {
			machine, err := OpenState(dir)
			return refusing{machine}, err
		},
	} {
		if err := Recover(m.cfg.Dir, Member{ID: "new", Address: "127.0.0.1:1"}, open); err == nil || !strings.Contains(err.Error(), errRefusing.Error()) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(m.cfg.Dir, scratchDir)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: scratch files are left: %v", name, err)
		}
	}
	again := startAgain(t, m)
	again.ready(t)
	if again.hash(t) != want {
		t.Error("another state")
	}
}

// TestAnInstalledCopyIsWhole, also before anybody opened it: its term, its index and no time of an entry.
func TestAnInstalledCopyIsWhole(t *testing.T) {
	m := one(t, nil)
	m.put(t, 1)
	copied, index := snapshotOf(t, m), m.store.Index()
	dir := t.TempDir()
	if err := Install(dir, m.self(), bytes.NewReader(copied)); err != nil {
		t.Fatal(err)
	}
	if h, err := Inspect(dir); err != nil || h.Term != 1 || h.Index != index || !h.At.IsZero() || termOf(t, dir) != 1 {
		t.Errorf("%+v, %v", h, err)
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("the folder holds %v", got)
	}
	store, err := state.Open(filepath.Join(t.TempDir(), StateFile), state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	machine := storeMachine{store}
	snap, err := machine.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := snap.WriteTo(&bytes.Buffer{}); err != nil {
		t.Error(err)
	}
	if err := errors.Join(snap.Release(true), machine.Close()); err != nil {
		t.Error(err)
	}
}

// TestAnInstalledCopyThatIsDamagedIsKept and refused: there is no log to take its place.
func TestAnInstalledCopyThatIsDamagedIsKept(t *testing.T) {
	m := one(t, nil)
	m.put(t, 1)
	dir := t.TempDir()
	if err := Install(dir, m.self(), bytes.NewReader(snapshotOf(t, m))); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, snapshotDir, "*", "state.bin"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.WriteFile(files[0], []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	refusedToOpen(t, dir, "the newest snapshot is damaged and the log does not go on")
	if _, err := os.Stat(files[0]); err != nil {
		t.Error(err)
	}
}
