package survive

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

// neighbour is a pod whose program harms itself or tries to harm the host.
type neighbour struct {
	name, script string
	// how it ends: by itself, or, when it is to be EXITED, when it is stopped; empty: in one or the other way, as memory
	// or processes are what it has less of.
	status fleet.PodStatus
	reason string // that its owner is told, or a part of it
	code   int    // exit code; -1: none is known, or any will do
}

const tellsItsEnd = `trap "exit 0" TERM; `

// neighbours are all at work at the same time. A fork bomb is not among them: test/hostile has one.
var neighbours = []neighbour{
	{"exits", `exit 7`, fleet.StatusError, "exit code 7", 7},
	{"oom", `tail /dev/zero`, fleet.StatusError, "killed for lack of memory (limit ", -1},
	{"many-processes", tellsItsEnd + `while sleep 100000 & do :; done; sleep 100000 & wait`, "", "", -1},
	{"zombies", `(while :; do (true &); done) & exec sleep 100000`, fleet.StatusExited, "", -1},
	{"fd-bomb", tellsItsEnd + `for n in 1 2 3 4 5; do tail -f $(yes /etc/passwd | head -n 20000) & done; sleep 100000 & wait`, fleet.StatusExited, "", -1},
	{"log-flood", tellsItsEnd + `yes "$(head -c 4000 /dev/zero | tr '\0' x)" & wait`, fleet.StatusExited, "", 0},
	{"burner", tellsItsEnd + `for n in 1 2 3 4 5 6 7 4; do while :; do :; done & done; wait`, fleet.StatusExited, "", 0},
	{"disk-fill", `dd if=/dev/zero of=/big bs=1M count=3000 2>/dev/null || exit 9`, fleet.StatusError, "exit code 9", 9},
	{"inode-fill", `head -c 500000 /dev/zero | split -b 1 -a 5 - /tmp/f || exit 9`, fleet.StatusError, "exit code 9", 9},
}

var withoutShim = neighbour{"shim-killed", tellsItsEnd + `sleep 100000 & wait`, fleet.StatusError, "lost together with its runtime", -1}

// small is a flavor whose pods have little memory, so that the machine of the test has enough.
const small = "small1"

func (h *host) smallPod(name, script string) (string, error) {
	body := h.body(name, script)
	body.CPU, body.Disk = &v2.CreateCPUConfig{ID: small, VCPUCount: 2}, new(1)
	a, err := h.user.CreatePod(h.Context(), body)
	return a.Value.ID, err
}

// TestNeighboursThatMisbehave has pods do on one host, all at once, what a host must bear: other pods keep their place,
// the host keeps its session, new pods start, and each ends with the reason that is true.
func TestNeighboursThatMisbehave(t *testing.T) {
	w := newWorld(t)
	must[client.Answer[admin.CPUFlavorEntry]](t)(w.admin.PutCPUFlavor(t.Context(), small, admin.PutCPUFlavorRequest{
		Name: "Small", Group: "Small", VCPU: admin.VCPUBounds{Min: 2, Max: 4}, RAMPerVCPU: 0.5, DiskPerVCPU: 10,
	}))
	h := w.newHost("busy", "points")
	good, pids := h.running(73001)
	ids := map[string]string{withoutShim.name: must[string](t)(h.smallPod(withoutShim.name, withoutShim.script))}
	await(t, "the pod whose shim is killed runs", func() error { return w.is(ids[withoutShim.name], fleet.StatusRunning, 1) })
	killShim(t, ids[withoutShim.name])
	for _, n := range neighbours {
		ids[n.name] = must[string](t)(h.smallPod(n.name, n.script))
	}
	session := must[client.Answer[admin.Host]](t)(w.admin.Host(t.Context(), h.id)).Value
	slowest := h.responsive(t, good, pids, 2*time.Second)
	began := time.Now()
	late := must[string](t)(h.smallPod("late", devtest.Sleeper))
	await(t, "a pod starts beside them", func() error { return w.is(late, fleet.StatusRunning, 1) })
	t.Logf("beside %d such pods: a command in another takes %v at most, a start %v", len(neighbours), slowest.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	now := must[client.Answer[admin.Host]](t)(w.admin.Host(t.Context(), h.id)).Value
	if now.State != fleet.HostReady || (now.StateSince == nil) != (session.StateSince == nil) || now.StateSince != nil && !now.StateSince.Equal(session.StateSince.Time) {
		t.Errorf("the host is %s since %v, was %s since %v", now.State, now.StateSince, session.State, session.StateSince)
	}
	for _, n := range neighbours {
		if n.status == fleet.StatusExited || n.status == "" {
			if err := w.act(ids[n.name], fleet.ActionStop); err != nil && n.status != "" {
				t.Errorf("stop %s: %v", n.name, err)
			}
		}
	}
	for _, n := range append(neighbours, withoutShim) {
		if err := devtest.Until(patience, func() error { return w.endedAs(ids[n.name], n) }); err != nil {
			t.Error(err)
		}
	}
	if err := good.undisturbed(pids); err != nil {
		t.Error(err)
	}
	lives := []*life{good, {host: h, pod: late}}
	for _, id := range ids {
		lives = append(lives, &life{host: h, pod: id})
	}
	h.gone(lives...)
}

// endedAs says what is wrong with the end of a neighbour.
func (w *world) endedAs(id string, n neighbour) error {
	p, err := w.pod(id)
	switch {
	case err != nil:
		return err
	case n.status == "" && (p.Status == fleet.StatusExited || p.Status == fleet.StatusError):
		return nil
	case p.Status != n.status || !strings.Contains(string(p.StatusReason), n.reason):
		return fmt.Errorf("%s is %s (%s), want %s (%s)", n.name, p.Status, p.StatusReason, n.status, n.reason)
	case n.code >= 0 && (p.ExitCode == nil || *p.ExitCode != n.code):
		return fmt.Errorf("%s has exit code %v, want %d", n.name, p.ExitCode, n.code)
	}
	return nil
}

// responsive asks a pod of good behaviour again and again, and returns how long the slowest answer took.
func (h *host) responsive(t *testing.T, good *life, pids []int, during time.Duration) (slowest time.Duration) {
	for end := time.Now().Add(during); time.Now().Before(end); {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		e, err := h.user.ExecPod(ctx, good.pod, v2.ExecRequest{Command: []string{"true"}})
		if err == nil {
			var res fleet.ExecResult
			if res, err = e.Run(client.ExecStreams{}); err == nil && res.Code != 0 {
				err = fmt.Errorf("exit code %d: %s", res.Code, res.Error)
			}
		}
		cancel()
		if err != nil {
			t.Fatalf("a command in a pod of good behaviour: %v", err)
		}
		slowest = max(slowest, time.Since(began))
		if err := good.undisturbed(pids); err != nil {
			t.Fatal(err)
		}
	}
	return slowest
}

// killShim kills the process between containerd and a pod's container.
func killShim(t *testing.T, pod string) {
	t.Helper()
	shims := must[[]int](t)(devtest.ProcessesWith("containerd-shim", pod))
	if len(shims) != 1 {
		t.Fatalf("shims of pod %s: %v", pod, shims)
	}
	if err := syscall.Kill(shims[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
