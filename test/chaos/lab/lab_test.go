package lab

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func newLab(t *testing.T) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it makes network namespaces")
	}
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(l.Dir); !os.IsNotExist(err) {
			t.Errorf("the folder is left: %v", err)
		}
	})
	return l
}

func place(t *testing.T, l *Lab, name string) *Place {
	t.Helper()
	p, err := l.Place(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// server runs a web server at port 80 of a place.
func server(t *testing.T, p *Place) *Proc {
	t.Helper()
	proc, err := p.Start("server", Spec{
		Path: "busybox", Args: []string{"httpd", "-f", "-p", p.Addr + ":80", "-h", p.lab.Dir}, Log: filepath.Join(p.lab.Dir, p.Name+".log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return proc
}

func reaches(p, to *Place) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	conn, err := p.Dial(ctx, "tcp", to.Addr+":80")
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func TestPlacesReachEachOtherUntilTheyAreCutOff(t *testing.T) {
	l := newLab(t)
	a, b, c := place(t, l, "a"), place(t, l, "b"), place(t, l, "c")
	for _, p := range []*Place{a, b, c} {
		server(t, p)
	}
	for _, from := range []*Place{a, b, c} {
		for _, to := range []*Place{a, b, c} {
			until(t, from.Name+" reaches "+to.Name, func() bool { return reaches(from, to) })
		}
	}
	heal := func() {
		t.Helper()
		if err := l.HealAll(); err != nil {
			t.Fatal(err)
		}
		until(t, "healed", func() bool { return reaches(a, b) && reaches(b, c) && reaches(c, a) })
	}
	if err := Split([]*Place{a}, []*Place{b, c}); err != nil {
		t.Fatal(err)
	}
	if reaches(a, b) || reaches(c, a) || !reaches(b, c) {
		t.Error("a is not cut off, or b and c are")
	}
	heal()
	if err := a.Deaf(b); err != nil {
		t.Fatal(err)
	}
	if reaches(a, b) || !reaches(a, c) {
		t.Error("a hears b, or does not hear c")
	}
	heal()
	if err := a.Mute(c); err != nil {
		t.Fatal(err)
	}
	if reaches(a, c) || reaches(c, a) || !reaches(a, b) {
		t.Error("a reaches c, or does not reach b")
	}
	heal()
}

func TestNothingIsLeftOfAKilledProgram(t *testing.T) {
	l := newLab(t)
	a := place(t, l, "a")
	s := server(t, a)
	until(t, "the server answers", func() bool { return reaches(a, a) })
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	s.Resume()
	if !s.Alive() {
		t.Error("a program that is stopped and continued has ended")
	}
	if err := s.Kill(); err != nil || s.Alive() {
		t.Errorf("killed: %v", err)
	}
	// A child of the server that had a connection may have its socket for a moment longer.
	until(t, "the killed server does not answer", func() bool { return !reaches(a, a) })
	out, _, err := a.Run(t.Context(), Spec{Path: "ip", Args: []string{"-4", "-o", "addr"}})
	if err != nil || !strings.Contains(out, a.Addr) || strings.Count(out, "\n") != 2 {
		t.Errorf("%v: the addresses are\n%s", err, out)
	}
}

func TestWhatADeadLabLeftIsTakenAway(t *testing.T) {
	const noProcess = 1<<22 + 7 // above the largest process id
	dir := filepath.Join(os.TempDir(), tempPrefix+"4194311")
	if err := os.MkdirAll(filepath.Join(dir, "agent-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if labRuns(noProcess) {
		t.Fatal("such a process runs")
	}
	// What outlives an agent, such as who answers names, is known by the agent's folder of this boot.
	left := exec.Command("sh", "-c", "sleep 1000; exit", "sh", "/run/gantry-"+Instance(filepath.Join(dir, "agent-1"))+"/net")
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- left.Wait() }()
	defer func() { _ = left.Process.Kill() }() // it should have ended
	newLab(t)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it was not killed")
		}
	case <-time.After(5 * time.Second):
		t.Error("a process of a dead lab's agent is left")
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder of a dead lab is left: %v", err)
	}
}
