package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAJoinThatWasKilledIsAskedAgain kills join before and after each of its writes: the same join goes on from there
// under the same identity, and what it leaves runs.
func TestAJoinThatWasKilledIsAskedAgain(t *testing.T) {
	w := newWorld(t, build(t, ""))
	bin := build(t, "", "faultpoints")
	points := w.joinPoints(bin)
	if len(points) < 10 {
		t.Fatalf("join comes to %v", points)
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			m := newMachine(t, bin)
			args := w.joinArgs(m, map[string]any{})
			cmd := exec.CommandContext(t.Context(), bin, args...)
			cmd.Env = append(os.Environ(), "GANTRY_FAULTPOINT="+point)
			if out, _ := cmd.CombinedOutput(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("it ended by itself: %s", out)
			}
			before, had := nodeID(m.dir)
			out, err := m.does(args...)
			if whole := point == points[len(points)-1]; whole != (err != nil) || whole && !strings.Contains(out, "start it with run") {
				t.Fatalf("the same join once more: %v\n%s", err, out)
			}
			if had && w.id(m) != before {
				t.Error("it is another member now")
			}
			m.start()
			w.all = append(w.all, m)
			w.awaitVoters(2)
			w.admin(http.MethodDelete, memberPath+w.id(m), nil, nil)
			w.awaitVoters(1)
			m.kill()
			w.all = w.all[:1]
		})
	}
}

// joinPoints returns the names of the points that an undisturbed join comes to.
func (w *world) joinPoints(bin string) []string {
	w.t.Helper()
	m := newMachine(w.t, bin)
	list := filepath.Join(w.t.TempDir(), "points")
	cmd := exec.CommandContext(w.t.Context(), bin, w.joinArgs(m, map[string]any{})...)
	cmd.Env = append(os.Environ(), "GANTRY_FAULTPOINT_LIST="+list)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("join: %v\n%s", err, out)
	}
	text, err := os.ReadFile(list)
	if err != nil {
		w.t.Fatal(err)
	}
	w.admin(http.MethodDelete, memberPath+w.id(m), nil, nil)
	return strings.Fields(string(text))
}

// TestARebuildThatWasKilledIsAskedAgain kills rebuild before each of its writes and after the last: once more, it goes on, under an identity that
// the cluster has, and what it leaves runs.
func TestARebuildThatWasKilledIsAskedAgain(t *testing.T) {
	w := newWorld(t, build(t, ""))
	bin := build(t, "", "faultpoints")
	points := w.joinPoints(bin)
	last := points[len(points)-1]
	for _, point := range points {
		if !strings.HasSuffix(point, ".before") && point != last { // after one write is before the next
			continue
		}
		t.Run(point, func(t *testing.T) {
			m, out, err := w.tryJoin(bin, map[string]any{})
			if err != nil {
				t.Fatal(err, out)
			}
			if err := os.Remove(filepath.Join(m.dir, "raft", "raft.db")); err != nil {
				t.Fatal(err)
			}
			args := []string{"rebuild", "--data-dir", m.dir, "--scheduler", w.all[0].link}
			cmd := exec.CommandContext(t.Context(), bin, args...)
			cmd.Env = append(os.Environ(), "GANTRY_FAULTPOINT="+point)
			if out, _ := cmd.CombinedOutput(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("it ended by itself: %s", out)
			}
			m.must(args...)
			m.start()
			w.all = append(w.all, m)
			members := 0
			for _, one := range w.awaitVoters(2).Members {
				if one.Removed == "" {
					members++
				}
			}
			if members != 2 {
				t.Errorf("the cluster has %d members", members)
			}
			w.admin(http.MethodDelete, memberPath+w.id(m), nil, nil)
			w.awaitVoters(1)
			m.kill()
			w.all = w.all[:1]
		})
	}
}
