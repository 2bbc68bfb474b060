package dev

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// playDev is a dev in a process of its own, which a test can kill.
func playDev(args []string) error {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var cfg Config
	if err := json.Unmarshal(text, &cfg); err != nil {
		return err
	}
	cfg.Out, cfg.Log = io.Discard, slog.New(slog.DiscardHandler)
	cfg.tune.runRoot = args[1]
	return Run(context.Background(), cfg)
}

func TestChildrenOfAKilledDevAreStopped(t *testing.T) {
	b := newBench(t)
	plain := b.cfg
	plain.Out, plain.Log = nil, nil
	text, err := json.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(b.dir, "config.json")
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	dev := exec.Command(filepath.Join(b.dir, "bin", "devmain"), config, b.dir)
	if err := dev.Start(); err != nil {
		t.Fatal(err)
	}
	b.wait("dev.json", func() bool { _, err := ReadFile(b.cfg.DataDir); return err == nil })
	old := b.file()
	if err := dev.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = dev.Wait()
	for _, p := range old.Processes {
		if commandLine(p.PID) == nil {
			t.Fatalf("%s died with dev", p.Role)
		}
	}
	// One pid file is lost, as if dev had been killed before it was written; the others name the truth.
	if err := os.Remove(filepath.Join(b.cfg.DataDir, "run", "agent.pid")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(b.cfg.DataDir, "dev.json")); err != nil { // else run takes it for the new one
		t.Fatal(err)
	}
	stop := b.run()
	for _, p := range old.Processes {
		if id, err := identify(p.PID); err == nil {
			t.Errorf("%s of the killed dev still runs: %+v", p.Role, id)
		}
	}
	if now := b.file(); now.APIKey != old.APIKey || len(now.Processes) != 3 {
		t.Errorf("dev.json: %+v", now)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	b.nothingLeft()
}

func TestPidFileOfAnotherProcessHurtsNobody(t *testing.T) {
	b := newBench(t)
	if err := b.run()(); err != nil {
		t.Fatal(err)
	}
	bystander := exec.Command("sleep", "600")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = bystander.Process.Kill()
		_ = bystander.Wait()
	}()
	id, err := identify(bystander.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	id.Start++ // the pid came again
	if err := writeJSON(filepath.Join(b.cfg.DataDir, "run", "agent.pid"), id); err != nil {
		t.Fatal(err)
	}
	if err := b.run()(); err != nil {
		t.Error(err)
	}
	if commandLine(bystander.Process.Pid) == nil {
		t.Error("a process that is not ours was stopped")
	}
}

func TestChildIsStartedAgainWithBackOff(t *testing.T) {
	b := newBench(t)
	c := &child{
		part: part{"crasher", 1}, path: filepath.Join(b.dir, "bin", "crasher"), env: os.Environ(),
		logFile: filepath.Join(b.dir, "crasher.log"), pidFile: filepath.Join(b.dir, "crasher.pid"),
		tune: tuning{backoffMin: 50 * time.Millisecond, backoffMax: 200 * time.Millisecond}.orDefaults(), log: b.cfg.Log, changed: func() {},
	}
	c.start(context.Background())
	b.wait("six starts", func() bool { return len(b.noted()) >= 6 })
	c.stop()
	var at []int64
	for _, e := range b.noted() {
		n, err := strconv.ParseInt(e, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, n)
	}
	for i, want := range []time.Duration{50, 100, 200, 200, 200} {
		if got := time.Duration(at[i+1] - at[i]); got < want*time.Millisecond {
			t.Errorf("start %d came after %v, want %v at least", i+1, got, want*time.Millisecond)
		}
	}
	if pid, _ := c.running(); pid != 0 {
		t.Error("still running")
	}
	if _, err := os.Stat(c.pidFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("pid file: %v", err)
	}
}

func TestChildThatIgnoresTermIsKilled(t *testing.T) {
	b := newBench(t)
	c := &child{
		part: part{"stubborn", 1}, path: filepath.Join(b.dir, "bin", "stubborn"), env: os.Environ(),
		logFile: filepath.Join(b.dir, "log"), pidFile: filepath.Join(b.dir, "pid"),
		tune: tuning{grace: 100 * time.Millisecond}.orDefaults(), log: b.cfg.Log, changed: func() {},
	}
	c.start(context.Background())
	b.wait("it runs", func() bool { return len(b.noted()) > 0 })
	c.stop()
	b.nothingLeft()
}

func TestBigLogIsPutAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, maxLog+1); err != nil {
		t.Fatal(err)
	}
	f, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("%v %v", info, err)
	}
	if _, err := os.Stat(path + ".1"); err != nil {
		t.Error(err)
	}
}

func TestFindBinariesNamesAllThatIsMissing(t *testing.T) {
	b := newBench(t)
	self := filepath.Join(b.dir, "bin", "gantry")
	got, err := FindBinaries(self, "", true)
	if err != nil || got != b.cfg.Binaries {
		t.Errorf("got %+v %v", got, err)
	}
	_, err = FindBinaries("/nowhere/gantry", "", false)
	if err == nil || !strings.Contains(err.Error(), "gantry-scheduler, gantry-agent, gantry-logger, gantry-net not found") {
		t.Errorf("got %v", err)
	}
}

func TestChildEnvironment(t *testing.T) {
	got := childEnv([]string{"GANTRY_API_KEY=secret", "NOTIFY_SOCKET=/x", "HOME=/root", "PATH=/opt"})
	if diff := cmp.Diff([]string{"HOME=/root", "PATH=/opt:" + binaryPath}, got); diff != "" {
		t.Error(diff)
	}
}
