package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without --yes recover says what the copy holds, so that the right one is chosen while nobody leads; with it the
// scheduler keeps its name, also when it has to be run twice.
func TestRecoverTellsWhatItHasAndKeepsTheName(t *testing.T) {
	w := &world{t: t}
	m := newMachine(t, build(t, ""))
	keys := filepath.Join(t.TempDir(), "keys.json")
	m.must("init", "--data-dir", m.dir, "--keys-file", keys, "--address", m.link, "--name", "the first")
	before := w.id(m)
	out, err := m.does("recover", "--data-dir", m.dir)
	if err == nil || !strings.Contains(out, "this copy goes up to index ") || !strings.Contains(out, " of term ") || !strings.Contains(out, ", written 20") {
		t.Errorf("without --yes: %v %s", err, out)
	}
	if w.id(m) != before || exists(filepath.Join(m.dir, recoverFile)) {
		t.Error("something was changed")
	}
	c := recoverCmd{DataDir: m.dir}
	id, old, err := c.identity() // as a try that was killed leaves it
	if err != nil || old != before {
		t.Fatal(id, old, err)
	}
	if err := writeNodeID(m.dir, id); err != nil {
		t.Fatal(err)
	}
	m.must("recover", "--data-dir", m.dir, "--yes")
	if w.id(m) != id {
		t.Error("the second try chose another identity")
	}
	w.keys = readKeys(t, keys)
	m.start()
	w.all = []*machine{m}
	view := w.awaitVoters(1)
	found := ""
	for _, x := range view.Members {
		if x.ID == id {
			found = x.Name
		}
	}
	if found != "the first" {
		t.Errorf("it is called %q", found)
	}
}

// A token that others can read is as good as given away.
func TestATokenThatOthersReadIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("gj1_x"), 0o644); err != nil { //nolint:gosec // that is what is refused
		t.Fatal(err)
	}
	c := joinCmd{DataDir: filepath.Join(t.TempDir(), "data"), TokenFile: file, Address: "10.0.0.1:8443"}
	if err := c.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "must have mode 0600") {
		t.Errorf("got %v", err)
	}
	if exists(c.DataDir) {
		t.Error("a folder was made")
	}
}

func TestCheckConfigTellsOfAFolderThatItCannotRead(t *testing.T) {
	c := checkConfigCmd{Settings: settings(t)}
	if err := c.Run(); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Settings.DataDir = file
	if err := c.Run(); err == nil || !strings.Contains(err.Error(), "the data folder cannot be read") {
		t.Errorf("got %v", err)
	}
}
