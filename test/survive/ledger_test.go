package survive

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// TestALedgerThatIsLost damages the ledger of a killed agent in every way that a disk does. The pods go on: the same
// processes, in the same network, and the host is no other one for its scheduler, though it was cleaned in this boot.
func TestALedgerThatIsLost(t *testing.T) {
	w := newWorld(t)
	h := w.newHost("forgetful", "points")
	clean := func() {
		t.Helper()
		out, err := exec.Command(program("points", "gantry-agent"), "clean", "--data-dir", h.dir, "--containerd", h.containerd.Socket,
			"--logger", program("points", "gantry-logger"), "--net", program("points", "gantry-net")).CombinedOutput()
		if err != nil {
			t.Fatalf("clean: %v\n%s", err, out)
		}
	}
	sessions := func() int {
		return bytes.Count(must[[]byte](t)(os.ReadFile(h.log(h.name))), []byte("session with the scheduler"))
	}
	restart := func(damage func()) {
		t.Helper()
		if err := h.agent.end(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		damage()
		before := sessions()
		if err := h.start(); err != nil {
			t.Fatal(err)
		}
		await(t, "the agent has a session", func() error {
			if sessions() == before {
				return errors.New("there is none")
			}
			return nil
		})
		h.ready()
	}
	restart(clean)
	l, pids := h.running(73001)
	stopped, _ := h.running(73002)
	done := act{status: "EXITED", number: 1, lines: "begin end"}
	if err := errors.Join(acts[2].begin(stopped), stopped.reached(done)); err != nil {
		t.Fatal(err)
	}
	network := func() []byte {
		t.Helper()
		return must[[]byte](t)(exec.Command("nsenter", "-t", strconv.Itoa(pids[0]), "-n", "ip", "-4", "-o", "addr", "show", "dev", "eth0").Output())
	}
	addr := network()
	path := filepath.Join(h.dir, "ledger.db")
	write := func(change func([]byte) []byte) func() {
		return func() {
			t.Helper()
			data := must[[]byte](t)(os.ReadFile(path))
			if err := os.WriteFile(path, change(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, damage := range map[string]func(){
		"removed": func() {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
		"empty":     write(func([]byte) []byte { return nil }),
		"cut short": write(func(data []byte) []byte { return data[:len(data)/3] }),
		"zeroed":    write(func(data []byte) []byte { return append(make([]byte, 8192), data[8192:]...) }),
		"changed":   write(func(data []byte) []byte { return bytes.ReplaceAll(data, []byte(l.pod), []byte("x"+l.pod[1:])) }),
	} {
		restart(damage)
		if err := l.undisturbed(pids); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if now := network(); !bytes.Equal(now, addr) {
			t.Errorf("%s: the pod has %s, had %s", name, now, addr)
		}
		await(t, name+": the ledger has the order", func() error { return w.is(stopped.pod, "EXITED", 1) })
	}
	if aside, err := filepath.Glob(path + ".damaged-*"); err != nil || len(aside) == 0 {
		t.Errorf("set aside: %v, %v", aside, err)
	}
	if err := errors.Join(acts[2].begin(l), l.reached(done), acts[3].begin(stopped)); err != nil {
		t.Error(err)
	}
	await(t, "the stopped pod starts again", func() error { return w.is(stopped.pod, "RUNNING", 2) })
	// A damaged one does not keep a host from being cleaned either.
	if err := h.agent.end(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	write(func(data []byte) []byte { return data[:len(data)/3] })()
	clean()
	if _, err := os.Stat(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := h.start(); err != nil {
		t.Fatal(err)
	}
	h.ready()
	await(t, "the pod starts again after the cleaning", func() error {
		if err := w.is(stopped.pod, "RUNNING", 3); err != nil {
			return fmt.Errorf("after the cleaning: %w", err)
		}
		return nil
	})
	h.gone(l, stopped)
}
