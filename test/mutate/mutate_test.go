package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// rules is a package whose test holds some of its rules and not others.
const rules = `package rules

import "errors"

type Box struct{ notes []string }

func (b *Box) note(s string) { b.notes = append(b.notes, s) }

// Put refuses what is above the limit or has no name.
func (b *Box) Put(name string, size, limit int) error {
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
	var b Box
	if b.Put("a", 3, 2) == nil {
		t.Error("too large, and taken")
	}
	if b.Put("a", 1, 2) != nil {
		t.Error("refused")
	}
}
`

// userTest is the test of a package that uses the other, and holds a rule that the other's own test does not.
const userTest = `package user

import (
	"rules"
	"testing"
)

func TestUse(t *testing.T) {
	var b rules.Box
	if b.Put("", 1, 2) == nil {
		t.Error("no name, and taken")
	}
}
`

func TestMeasureTellsWhatTestsNotice(t *testing.T) {
	writeModule(t)
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

// TestListNamesWhatNoTestReaches: of a bound that is moved, too, for nothing is as large as the limit.
func TestListNamesWhatNoTestReaches(t *testing.T) {
	writeModule(t)
	r := runner{list: true}
	got, err := r.measure(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"size > limit: >=", `name == "": taken not to hold`}; len(got.survivors) != len(want) ||
		!strings.Contains(got.survivors[0], want[0]) || !strings.Contains(got.survivors[1], want[1]) {
		t.Errorf("%q are not reached, want %q", got.survivors, want)
	}
}

// TestMeasureAsksOtherPackagesAboutSurvivors checks that only survivors meet the tests of another package, and that what
// these kill is counted apart.
func TestMeasureAsksOtherPackagesAboutSurvivors(t *testing.T) {
	writeModule(t)
	r := runner{parallel: 2, also: []string{"./user"}}
	got, err := r.measure(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	if got.tried != 5 || got.killed != 2 || got.elsewhere != 1 || len(got.survivors) != 2 || got.percent() != 60 {
		t.Errorf("%d tried, %d killed, %d elsewhere, want 5, 2 and 1:\n%s", got.tried, got.killed, got.elsewhere, got)
	}
	if text := got.String(); !strings.Contains(text, "2 of the others killed (40.0 %); with 1 more that only tests of "+
		"other packages kill: 60.0 %") || strings.Contains(text, `name == ""`) {
		t.Errorf("says\n%s", text)
	}
	r.also = []string{"./nothing"}
	if _, err := r.measure(t.Context(), "."); err == nil || !strings.Contains(err.Error(), "./nothing") {
		t.Errorf("a package that is not there: %v", err)
	}
}

// writeModule writes the packages into a folder and makes it the current one.
func writeModule(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "user"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod": "module rules\n\ngo 1.26\n", "rules.go": rules, "rules_test.go": rulesTest, "user/user_test.go": userTest,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
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

// TestAnInterruptIsAnError checks that what is interrupted before its tests began ends with an error that says so.
func TestAnInterruptIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := &pack{Dir: t.TempDir(), binary: "/bin/true"}
	if ok, err := p.run(ctx, time.Minute, "^Test$"); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", ok, err)
	}
}
