package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// previous builds the newest release before this tree. Before the first one this tree stands for it.
func previous(t *testing.T) string {
	t.Helper()
	tag, err := exec.Command("git", "describe", "--tags", "--abbrev=0", "HEAD^").Output()
	if err != nil {
		t.Log("there is no release yet: this tree is upgraded to itself")
		return build(t, "")
	}
	name := string(bytes.TrimSpace(tag))
	dir := t.TempDir()
	unpack := exec.Command("sh", "-c", `git -C "$(git rev-parse --show-toplevel)" archive "$1" | tar -x -C "$2"`, "sh", name, dir)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v\n%s", name, err, out)
	}
	path := filepath.Join(binaries, "gantry-scheduler-"+name)
	compile := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-X main.version="+name, "-o", path, "./cmd/gantry-scheduler")
	compile.Dir, compile.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

// A cluster of the previous release is upgraded one scheduler at a time, while it is written to through every one.
func TestAnUpgradeFromThePreviousReleaseLosesNothing(t *testing.T) {
	before, now := previous(t), build(t, "")
	w := newWorld(t, before)
	w.join(before, map[string]any{})
	w.join(before, map[string]any{})
	w.awaitVoters(3)
	var names []string
	write := func(when string) {
		for i, m := range w.all {
			name := fmt.Sprintf("%s-%d-", when, i)
			w.eventually("a write through scheduler "+m.link, func() bool { return w.account(m, name) == nil })
			names = append(names, name)
		}
	}
	write("before")
	for i, m := range w.all {
		m.stop()
		m.binary = now
		m.start()
		w.awaitVoters(3)
		write(fmt.Sprintf("after-%d", i+1))
	}
	for _, m := range w.all {
		have := w.accounts(m)
		for _, name := range names {
			if !strings.Contains(have, name) {
				t.Errorf("%s was acknowledged and is gone", name)
			}
		}
	}
}
