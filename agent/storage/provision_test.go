package storage

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/storage/provision"
	"gantry/storage/volume"
)

// inProcess does in this process what a helper process does.
type inProcess struct{}

func (inProcess) Call(ctx context.Context, _, op string, in, out any) error {
	text, err := json.Marshal(in)
	if err != nil {
		return err
	}
	answer, err := HelperFuncs()[op](ctx, text)
	if err != nil {
		return err
	}
	if text, err = json.Marshal(answer); err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}

// provisioning is a Provision whose backends are all mounted at a folder.
func provisioning(at string) *Helpers {
	return &Helpers{Caller: inProcess{}, Root: func(context.Context, volume.Backend) (string, error) { return at, nil }}
}

func said(err error) string {
	var e *volume.Error
	if errors.As(err, &e) {
		return e.Sentence
	}
	return ""
}

// TestVolumesInAFolderOfThisHost: they are made, are there again after a restart of the host, and go.
func TestVolumesInAFolderOfThisHost(t *testing.T) {
	dir, data := t.TempDir(), t.TempDir()
	p := provisioning("")
	root := Root{Backend: volume.Backend{ID: "b1", Kind: fleet.BackendLocal, Path: dir}, OwnDir: dir}
	v := Volume{ID: "v1", Dir: someDir, IDBase: fleet.VolumeIDsFirst, SizeGB: 10}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Make(t.Context(), root, v); !strings.Contains(said(err), "marker") {
		t.Errorf("a backend whose marker is lost: %v", err)
	}
	root.Fresh = true
	must(p.Make(t.Context(), root, v))
	t.Cleanup(func() { must(p.Remove(context.Background(), root, v)) })
	folder := filepath.Join(dir, provision.Path(provision.Root{Kind: "local", Sized: true}, someDir))
	owner := func() (st syscall.Stat_t) {
		t.Helper()
		must(syscall.Stat(folder, &st))
		return st
	}
	if st := owner(); st.Uid != fleet.VolumeIDsFirst || st.Mode&0o777 != 0o755 {
		t.Errorf("it is of %#x, mode %o", st.Uid, st.Mode)
	}
	must(os.WriteFile(filepath.Join(folder, "file"), make([]byte, 3_000_000), 0o600))
	unix.Sync()
	if used, err := p.Used(t.Context(), root, v); err != nil || used < 3_000_000 || used > 100_000_000 {
		t.Errorf("it holds %d, %v", used, err)
	}
	root.Fresh = false
	// What a restart of the host does, and gantry-agent clean.
	s := &Role{file: File(data), log: slog.New(slog.DiscardHandler), backends: map[fleet.BackendID]*backendWork{"b1": {root: root}}, does: p}
	s.remember()
	must(Clean(t.Context(), data))
	if _, err := os.Stat(filepath.Join(folder, "file")); err == nil {
		t.Fatal("its disk is still mounted")
	}
	s.Restore(t.Context())
	if _, err := os.Stat(filepath.Join(folder, "file")); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	must(p.Remove(t.Context(), root, v))
	if _, err := os.Stat(folder); err == nil {
		t.Error("it is still there")
	}
	must(p.Remove(t.Context(), root, v))
}

// TestVolumesOfAMountedBackendAreMeasured: in slices, and nothing is left of those that are removed.
func TestVolumesOfAMountedBackendAreMeasured(t *testing.T) {
	dir := t.TempDir()
	p := provisioning(dir)
	root := Root{Backend: volume.Backend{ID: "b1", Kind: fleet.BackendLocal, Path: dir}, Fresh: true}
	v := Volume{ID: "v1", Dir: someDir, IDBase: fleet.VolumeIDsFirst, SizeGB: 10}
	if err := p.Remove(t.Context(), root, v); err != nil {
		t.Errorf("one that was never made: %v", err)
	}
	v.Dir = strings.Repeat("b", len(someDir))
	if err := p.Make(t.Context(), root, v); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, v.Dir, "file"), make([]byte, 3_000_000), 0o600); err != nil {
		t.Fatal(err)
	}
	if used, err := p.Used(t.Context(), root, v); err != nil || used < 3_000_000 {
		t.Errorf("it holds %d, %v", used, err)
	}
	if err := p.Remove(t.Context(), root, v); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "[a-z]*")); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
