package scheduler

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// Files of TLS for users lie sealed in the state, each under its own name, and come back as they were.
func TestTLSFilesAreSealed(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	const key = "-----BEGIN PRIVATE KEY-----"
	big := bytes.Repeat([]byte("chain "), 5000)
	for name, content := range map[string][]byte{"certificates/a.key": []byte(key), "certificates/a.crt": big, "acme/empty": {}} {
		if err := w.svc.PutTLSFile(ctx, name, content); err != nil {
			t.Fatal(err)
		}
		if got, updated, err := w.svc.TLSFile(name); err != nil || !bytes.Equal(got, content) || !updated.Equal(w.clock()) {
			t.Errorf("%s: %d bytes of %s, %v", name, len(got), updated, err)
		}
	}
	if names, err := w.svc.TLSFiles("certificates/"); err != nil || !slices.Equal(names, []string{"certificates/a.crt", "certificates/a.key"}) {
		t.Errorf("got %q, %v", names, err)
	}
	var moved fleet.TLSFile
	w.view(func(v *state.View) { moved, _ = v.TLSFile("certificates/a.key") })
	if strings.Contains(string(moved.Sealed), key) || strings.Contains(w.logged(), key) {
		t.Error("a key lies open in the state, or in the log")
	}
	moved.Name = "certificates/b.key"
	w.must(state.PutTLSFile{File: moved})
	if _, _, err := w.svc.TLSFile("certificates/b.key"); err == nil || !strings.Contains(err.Error(), "open file of TLS certificates/b.key") {
		t.Errorf("a sealed file opens under another name: %v", err)
	}
	for range 2 { // also where there is none
		if err := w.svc.DeleteTLSFile(ctx, "certificates/a.key"); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := w.svc.TLSFile("certificates/a.key"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("a deleted file: %v", err)
	}
	refused(t, w.svc.PutTLSFile(ctx, "certificates/huge", make([]byte, 64<<10)), fleet.CodeInvalid, "65536")
	for i := 0; ; i++ {
		if err := w.svc.PutTLSFile(ctx, fmt.Sprintf("more/%d", i), nil); err != nil {
			refused(t, err, fleet.CodeConflictRule, "at most 256")
			break
		}
		if i > 256 {
			t.Fatal("there is no end of files")
		}
	}
}
