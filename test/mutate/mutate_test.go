package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rules is a package whose test holds some of its rules and not others.
const rules = `package rules

import "errors"

type box struct{ notes []string }

func (b *box) note(s string) { b.notes = append(b.notes, s) }

// Put refuses what is above the limit or has no name.
func (b *box) Put(name string, size, limit int) error {
	if size > limit || name == "" {
		return errors.New("refused")
	}
	for done := false; !done; b.note("") { // no statement of a list
		done = true
	}
	b.note(name)
	return nil
}
`

const rulesTest = `package rules

import "testing"

func TestPut(t *testing.T) {
	var b box
	if b.Put("a", 3, 2) == nil {
		t.Error("too large, and taken")
	}
	if b.Put("a", 1, 2) != nil {
		t.Error("refused")
	}
}
`

func TestMeasureTellsWhatTestsNotice(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module rules\n\ngo 1.26\n", "rules.go": rules, "rules_test.go": rulesTest} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	r := runner{parallel: 2}
	got, err := r.measure(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	// size > limit: taken not to hold (killed), moved to >= (survives: nothing is as large as the limit); name == "": taken not to
	// hold (survives); the error (killed); the note (survives).
	if got.tried != 5 || got.killed != 2 {
		t.Errorf("%d tried, %d killed, want 5 and 2:\n%s", got.tried, got.killed, got)
	}
	for _, want := range []string{"size > limit: >=", `name == "": taken not to hold`, "b.note(name): left out"} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("no survivor %q in\n%s", want, got)
		}
	}
}

func TestInstrumentedSourceKeepsItsLines(t *testing.T) {
	out, found, err := instrument("rules.go", []byte(rules), 0)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(out, "\n") != strings.Count(rules, "\n") {
		t.Error("lines were added")
	}
	var lines []int
	for _, m := range found {
		lines = append(lines, m.line)
	}
	slices.Sort(lines)
	if !slices.Equal(lines, []int{11, 11, 11, 12, 17}) {
		t.Errorf("found %v", found)
	}
}
