package overlay

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"gantry/api/v2"
	"gantry/fleet"
)

// island is the name that gantry dev gives the network of its hosts.
func (w *world) island(t testing.TB) string {
	t.Helper()
	sum := sha256.Sum256([]byte(w.dev.Dir))
	return hex.EncodeToString(sum[:3])
}

// TestPrivateNetworks: three hosts, two accounts whose networks have the same addresses, four pods each.
func TestPrivateNetworks(t *testing.T) {
	w := start(t)
	wires := w.captureUnderlays(t)
	w.populate(t, [2][]int{{0, 0, 1, 2}, {0, 1, 1, 2}})
	for i := range w.users[0].pods {
		if a, b := w.users[0].pods[i].GlobalNetworking.IP, w.users[1].pods[i].GlobalNetworking.IP; a != b {
			t.Errorf("the accounts' networks have other addresses: %s and %s", a, b)
		}
	}
	for _, u := range w.users {
		t.Run("account "+u.name+" reaches all of its pods", func(t *testing.T) {
			await(t, func() error { return w.allReach(t, u) })
		})
	}
	t.Run("nothing can be read on the wire", func(t *testing.T) { w.nothingIsReadable(t, wires) })
	t.Run("names of others", w.othersAreUnknown)
	t.Run("attackers", w.attackersGetNothing)
	t.Run("check", w.checkSays)
	t.Run("agent is killed", w.agentIsKilled)
	t.Run("host is cut off", w.hostIsCutOff)
	t.Run("stop and start", w.addressIsKept)
	t.Run("terminate", w.nameGoes)
	t.Run("private underlay", func(t *testing.T) { w.privateIsReadable(t, wires) })
}

// captureUnderlays listens on each host's link to the others.
func (w *world) captureUnderlays(t *testing.T) []*listener {
	t.Helper()
	var out []*listener
	for _, ns := range w.islands(t) {
		out = append(out, listen(t, ns, "eth0", clear))
	}
	return out
}

func (w *world) nothingIsReadable(t *testing.T, wires []*listener) {
	// What the pods said to each other was long: a capture that has not seen it has seen nothing.
	const least = 200
	for i, wire := range wires {
		seen, hits := wire.heard()
		lost, err := wire.lost()
		if err != nil || lost > 0 || seen < least {
			t.Errorf("host %d: the capture saw %d frames and lost %d, %v", i+1, seen, lost, err)
		}
		for _, hit := range hits {
			t.Errorf("host %d: can be read on the wire: %q", i+1, hit)
		}
	}
}

// privateIsReadable: what the captures did not see before they see when an operator leaves the encryption away.
func (w *world) privateIsReadable(t *testing.T, wires []*listener) {
	w.makePrivate(t)
	for i, wire := range wires {
		await(t, func() error {
			if _, hits := wire.heard(); len(hits) == 0 {
				return fmt.Errorf("host %d: nothing was read on a wire without encryption", i+1)
			}
			return nil
		})
	}
}

// othersAreUnknown: a pod learns nothing of another account's names.
func (w *world) othersAreUnknown(t *testing.T) {
	a, b := w.users[0], w.users[1]
	for _, name := range []string{b.pods[0].ID + "." + suffix, b.pods[2].ID + "." + suffix, "nobody." + suffix, suffix + "." + suffix} {
		out, code, err := w.run(t.Context(), a, a.pods[0], "nslookup -type=a "+name)
		if err != nil || code == 0 || !strings.Contains(out, "NXDOMAIN") {
			t.Errorf("%s: exit code %d, %v: %s", name, code, err, out)
		}
	}
	// The same name is in both accounts, and each has its own.
	for _, u := range w.users {
		if err := w.reaches(t.Context(), u, u.pods[3], u.pods[:1]); err != nil {
			t.Error(err)
		}
	}
}

// agentIsKilled: pods talk on while their host has no agent, and its successor touches nothing.
func (w *world) agentIsKilled(t *testing.T) {
	u := w.users[0]
	from := namespace(t, u.pods[0])
	pings := []*pinger{ping(t, from, address(t, u.pods[1])), ping(t, from, address(t, u.pods[2])), ping(t, namespace(t, u.pods[3]), address(t, u.pods[0]))}
	must(t, w.dev.Kill9("agent"))
	await(t, func() error { return w.allReady(t) })
	if err := w.allReach(t, u); err != nil {
		t.Error(err)
	}
	for i, p := range pings {
		if sent, lost, err := p.stop(); err != nil || len(lost) > 0 || sent < 10 {
			t.Errorf("ping %d: of %d %d were lost, %v, %v", i, sent, len(lost), lost, err)
		}
	}
}

func (w *world) allReady(t *testing.T) error {
	t.Helper()
	list, err := w.ops.Hosts(t.Context())
	if err != nil {
		return err
	}
	for _, h := range list.Value.Hosts {
		if h.State != fleet.HostReady {
			return fmt.Errorf("host %s is %s", h.Name, h.State)
		}
	}
	return nil
}

// hostIsCutOff: the pods of a host that is cut off reach each other, those of others theirs, and afterwards all do.
func (w *world) hostIsCutOff(t *testing.T) {
	link := "gd" + w.island(t) + "-1"
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	a := w.users[0]
	near := ping(t, namespace(t, a.pods[0]), address(t, a.pods[1]))
	far := ping(t, namespace(t, a.pods[2]), address(t, a.pods[3]))
	over := ping(t, namespace(t, a.pods[0]), address(t, a.pods[2]))
	ip("link", "set", link, "down")
	t.Cleanup(func() { ip("link", "set", link, "up") })
	await(t, func() error {
		list, err := w.ops.Hosts(t.Context())
		if err == nil && !strings.Contains(fmt.Sprint(list.Value.Hosts), string(fleet.HostUnreachable)) {
			err = fmt.Errorf("no host is unreachable yet")
		}
		return err
	})
	ip("link", "set", link, "up")
	await(t, func() error { return w.allReady(t) })
	await(t, func() error { return w.allReach(t, a) })
	for name, p := range map[string]*pinger{"on the host": near, "of others": far} {
		if sent, lost, err := p.stop(); err != nil || len(lost) > 0 || sent < 10 {
			t.Errorf("%s: of %d %d were lost, %v, %v", name, sent, len(lost), lost, err)
		}
	}
	if sent, lost, err := over.stop(); err != nil || len(lost) == 0 || len(lost) == sent {
		t.Errorf("into the cut: of %d %d were lost, %v", sent, len(lost), err)
	}
}

func (w *world) addressIsKept(t *testing.T) {
	u := w.users[0]
	pod := u.pods[1]
	_, err := u.c.ActPod(t.Context(), pod.ID, fleet.ActionStop)
	must(t, err)
	await(t, func() error {
		p, err := u.c.Pod(t.Context(), pod.ID)
		if err == nil && p.Value.Status != fleet.StatusExited {
			err = fmt.Errorf("the pod is %s", p.Value.Status)
		}
		return err
	})
	_, err = u.c.ActPod(t.Context(), pod.ID, fleet.ActionStart)
	must(t, err)
	again := w.runs(t, u, pod.ID)
	if again.GlobalNetworking != pod.GlobalNetworking {
		t.Errorf("it had %+v and has %+v", pod.GlobalNetworking, again.GlobalNetworking)
	}
	await(t, func() error { return w.allReach(t, u) })
}

// nameGoes: a pod that is gone has no name any more, and nobody gets its address at once.
func (w *world) nameGoes(t *testing.T) {
	u := w.users[1]
	gone, rest := u.pods[3], u.pods[:3]
	must(t, u.c.DeletePod(t.Context(), gone.ID))
	await(t, func() error {
		out, code, err := w.run(t.Context(), u, rest[0], "nslookup -type=a "+gone.ID+"."+suffix)
		if err == nil && (code == 0 || !strings.Contains(out, "NXDOMAIN")) {
			err = fmt.Errorf("the name of a pod that is gone: %s", out)
		}
		return err
	})
	next := w.runs(t, u, w.create(t, u, "node-3").ID)
	if next.GlobalNetworking.IP == gone.GlobalNetworking.IP {
		t.Errorf("%s is another pod's at once", gone.GlobalNetworking.IP)
	}
	u.pods = append([]v2.Pod{next}, rest...)
	await(t, func() error { return w.allReach(t, u) })
}

// checkSays: the command line tells what reaches what.
func (w *world) checkSays(t *testing.T) {
	cmd, err := w.dev.Command(t.Context(), "net", "check")
	must(t, err)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("gantry net check: %v: %s", err, out)
	}
	if pods := len(w.users[0].pods); !strings.Contains(string(out), fmt.Sprintf("%d probes, %d answered", pods*(pods-1), pods*(pods-1))) {
		t.Errorf("gantry net check says %s", out)
	}
}
