package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// setSecret gives an account a secret.
func (w *world) setSecret(account fleet.AccountID, name, value string) {
	w.t.Helper()
	if _, err := w.svc.PutSecret(context.Background(), member(account), name, fleet.Secret(value)); err != nil {
		w.t.Fatal(err)
	}
}

func TestSecretsReachTheHostAlone(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.addHost("host-a", "EU-RO-1", "", 0)
	w.setSecret(acme, "hf", "correct-horse")
	w.setSecret(acme, "twice", "{{ RUNPOD_SECRET_hf }}")
	req := cpuPod(2)
	req.Env = map[string]string{"A": "Bearer {{ RUNPOD_SECRET_hf }}", "B": "{{GANTRY_SECRET_twice}}", "C": "plain"}
	p := w.create(req)
	env, err := w.svc.Environment(&p)
	if err != nil || env["A"] != "Bearer correct-horse" || env["B"] != "{{ RUNPOD_SECRET_hf }}" || env["C"] != "plain" {
		t.Errorf("the host gets %q, %v", env, err)
	}
	w.setSecret(acme, "hf", "battery-staple")
	if env, err := w.svc.Environment(&p); err != nil || env["A"] != "Bearer battery-staple" {
		t.Errorf("after a change it gets %q, %v", env, err)
	}
	view, err := w.svc.Pod(ctx, member(acme), p.ID)
	if err != nil || view.Pod.Spec.Env["A"] != req.Env["A"] {
		t.Errorf("the pod shows %q, %v", view.Pod.Spec.Env, err)
	}
	snap, err := w.store.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var file strings.Builder
	if _, err := snap.WriteTo(&file); err != nil {
		t.Fatal(err)
	}
	if err := snap.Release(); err != nil {
		t.Fatal(err)
	}
	key, err := w.svc.podKey(p.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"correct-horse", "battery-staple", key.Reveal()} {
		if strings.Contains(file.String(), secret) || strings.Contains(w.logged(), secret) {
			t.Errorf("%.6s… lies in the state or the log", secret)
		}
	}
	if all, err := w.svc.Secrets(ctx, member(acme)); err != nil || len(all) != 2 || all[0].Name != "hf" {
		t.Errorf("listed are %+v, %v", all, err)
	}
	if all, err := w.svc.Secrets(ctx, member(other)); err != nil || len(all) != 0 {
		t.Errorf("another account sees %+v, %v", all, err)
	}
}

func TestUnknownSecretsAreRefused(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.addHost("host-a", "EU-RO-1", "", 0)
	w.setSecret(acme, "mine", "x")
	w.setSecret(other, "theirs", "x")
	req := cpuPod(2)
	req.Env = map[string]string{"A": "{{ RUNPOD_SECRET_mine }}", "B": "{{ RUNPOD_SECRET_theirs }}"}
	_, err := w.svc.CreatePod(ctx, member(acme), req)
	refused(t, err, fleet.CodeNotFound, "$.env.B: no secret has the name")
	if details := detailsOf(err); len(details) != 1 {
		t.Errorf("details %q", details)
	}
	req.Env = map[string]string{"A": strings.Repeat("{{ RUNPOD_SECRET_mine }}", fleet.MaxSecretUses+1)}
	_, err = w.svc.CreatePod(ctx, member(acme), req)
	refused(t, err, fleet.CodeInvalid, "$.env: must have at most 50 references to secrets")
	req.Env = map[string]string{"A": strings.Repeat("{{ RUNPOD_SECRET_mine }}", fleet.MaxSecretUses)}
	p := w.create(req)
	_, err = w.svc.UpdatePod(ctx, member(acme), p.ID, fleet.PodUpdate{Env: &map[string]string{"X": "{{ GANTRY_SECRET_none }}"}})
	refused(t, err, fleet.CodeNotFound, "$.env.X: no secret has the name")
	refused(t, w.svc.DeleteSecret(ctx, member(acme), "mine"), fleet.CodeInUse, "1 pod has it")
	refused(t, w.svc.DeleteSecret(ctx, member(acme), "theirs"), fleet.CodeNotFound, "")
	_, err = w.svc.PutSecret(ctx, member(acme), "long", fleet.Secret(strings.Repeat("x", fleet.MaxSecretBytes+1)))
	refused(t, err, fleet.CodeInvalid, "$.value")
	_, err = w.svc.PutSecret(ctx, member(acme), "a b", "x")
	refused(t, err, fleet.CodeInvalid, "$.name")
	w.setSecret(acme, "longest", strings.Repeat("x", fleet.MaxSecretBytes))
	// One that goes between the decision and the commit is not named by a pod.
	w.before = func() { w.must(state.Delete[fleet.AccountSecret]{Account: acme, ID: "longest"}) }
	_, err = w.svc.UpdatePod(ctx, member(acme), p.ID, fleet.PodUpdate{Env: &map[string]string{"X": "{{ GANTRY_SECRET_longest }}"}})
	refused(t, err, fleet.CodeNotFound, "$.env.X: no secret has the name")
}

// What Linux would refuse at the start is refused when it is asked for, secrets in place.
func TestEnvironmentsThatNoProcessCanHave(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.addHost("host-a", "EU-RO-1", "", 0)
	w.setSecret(acme, "large", strings.Repeat("x", fleet.MaxSecretBytes))
	w.setSecret(acme, "small", "x")
	const use = "{{ RUNPOD_SECRET_large }}"
	most := strings.Repeat(use, 3) + strings.Repeat("y", fleet.MaxSecretBytes-3) // A= is part of it
	req := cpuPod(2)
	req.Env = map[string]string{"A": most + "y"}
	_, err := w.svc.CreatePod(ctx, member(acme), req)
	refused(t, err, fleet.CodeInvalid, "$.env.A: must have at most 131071 bytes")
	req.Env = map[string]string{"A": most, "B": "{{ RUNPOD_SECRET_small }}"}
	p := w.create(req)
	env, err := w.svc.Environment(&p)
	if err != nil || len("A=")+len(env["A"]) != maxVariable {
		t.Errorf("the largest variable has %d bytes, %v", len(env["A"]), err)
	}
	_, err = w.svc.UpdatePod(ctx, member(acme), p.ID, fleet.PodUpdate{Env: &map[string]string{"A": most + "y"}})
	refused(t, err, fleet.CodeInvalid, "$.env.A")
	all := map[string]string{"B": "{{ RUNPOD_SECRET_small }}"}
	for i := range 11 {
		all[fmt.Sprintf("V%02d", i)] = strings.Repeat(use, 3)
	}
	_, err = w.svc.UpdatePod(ctx, member(acme), p.ID, fleet.PodUpdate{Env: &all})
	refused(t, err, fleet.CodeInvalid, "$.env: must have at most 1048576 bytes")
	delete(all, "V10")
	all["B"] += all["B"] // ten large variables and two of the largest secrets are too much
	if _, err = w.svc.UpdatePod(ctx, member(acme), p.ID, fleet.PodUpdate{Env: &all}); err != nil {
		t.Fatal(err)
	}
	_, err = w.svc.PutSecret(ctx, member(acme), "small", fleet.Secret(strings.Repeat("x", fleet.MaxSecretBytes)))
	refused(t, err, fleet.CodeConflictRule, "pod "+string(p.ID))
	w.setSecret(acme, "small", "yy")
}

func TestVariablesThatTheSchedulerAdds(t *testing.T) {
	w := newWorld(t)
	own, err := w.svc.podKey("pod00000000001")
	if err != nil {
		t.Fatal(err)
	}
	p := fleet.Pod{ID: "pod00000000001", Account: acme, Spec: fleet.PodSpec{
		Env: map[string]string{"RUNPOD_API_KEY": "my own"}, Network: &fleet.NetworkMount{Volume: "volume00000001"},
	}}
	env, err := w.svc.Environment(&p)
	if err != nil || env["RUNPOD_API_KEY"] != "my own" || env["GANTRY_API_KEY"] != own.Reveal() ||
		env["RUNPOD_VOLUME_ID"] != "volume00000001" || env["GANTRY_VOLUME_ID"] != "volume00000001" {
		t.Errorf("got %q, %v", env, err)
	}
	p.Spec = fleet.PodSpec{}
	if env, err := w.svc.Environment(&p); err != nil || len(env) != 2 || env["RUNPOD_API_KEY"] != own.Reveal() {
		t.Errorf("got %q, %v", env, err)
	}
	p.Spec.Env = map[string]string{"A": "x{{ RUNPOD_SECRET_gone }}", "B": "b"}
	if env, err := w.svc.Environment(&p); err == nil || env["A"] != p.Spec.Env["A"] || env["B"] != "b" {
		t.Errorf("without its secret it gets %q, %v", env, err)
	}
}

func TestAPodsOwnKey(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.addHost("host-a", "EU-RO-1", "", 0)
	quotas := &fleet.Quotas{Minute: 5}
	if _, err := w.svc.UpdateAccount(ctx, acme, fleet.AccountUpdate{Quotas: quotas}); err != nil {
		t.Fatal(err)
	}
	p, sibling := w.create(cpuPod(2)), w.create(cpuPod(2))
	key, err := w.svc.podKey(p.ID)
	if err != nil {
		t.Fatal(err)
	}
	who, err := w.svc.Authenticate(ctx, key)
	if err != nil || who.Pod != p.ID || who.Account != acme || who.Key != "" || who.Quotas == nil || *who.Quotas != *quotas {
		t.Fatalf("it is %+v, %v", who, err)
	}
	for _, group := range append(fleet.Groups(), fleet.GroupAdmin) {
		if who.May(group, fleet.AccessRead) {
			t.Errorf("it may read %s", group)
		}
	}
	for i := range key.Reveal() { // not one character may be another
		text := []byte(key.Reveal())
		if text[i]++; i < len("gk_") {
			continue
		}
		_, err := w.svc.Authenticate(ctx, fleet.Secret(text))
		refused(t, err, fleet.CodeUnauthorized, "invalid bearer token")
	}
	if v, err := w.svc.Pod(ctx, who, p.ID); err != nil || v.Pod.ID != p.ID {
		t.Errorf("it cannot read its pod: %v", err)
	}
	_, err = w.svc.Pod(ctx, who, sibling.ID)
	refused(t, err, fleet.CodeNotFound, "")
	for _, action := range fleet.Actions() {
		_, err = w.svc.ActPod(ctx, who, sibling.ID, action)
		refused(t, err, fleet.CodeNotFound, "")
	}
	w.report(p.ID, fleet.EventRunning)
	if _, err := w.svc.ActPod(ctx, who, p.ID, fleet.ActionRestart); err != nil {
		t.Error(err)
	}
	if _, err := w.svc.ActPod(ctx, who, p.ID, fleet.ActionStop); err != nil {
		t.Error(err)
	}
	w.report(p.ID, fleet.EventExited)
	_, err = w.svc.ActPod(ctx, who, p.ID, fleet.ActionStart)
	refused(t, err, fleet.CodeForbidden, "access denied")
	if _, err := w.svc.Authenticate(ctx, key); err != nil {
		t.Errorf("of a stopped pod: %v", err)
	}
	if _, err := w.svc.ActPod(ctx, who, p.ID, fleet.ActionTerminate); err != nil {
		t.Error(err)
	}
	_, err = w.svc.Authenticate(ctx, key)
	refused(t, err, fleet.CodeUnauthorized, "invalid bearer token")
}

func TestSymmetricalPortsAreChosen(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "EU-RO-1", "", 0, publicPorts(30_000, 30_003))
	req := cpuPod(2)
	req.Ports = []fleet.Port{tcp(22), tcp(70_000), http(30_000), tcp(30_001), tcp(135_535)}
	p := w.create(req)
	public := map[int]bool{}
	for _, m := range p.Mappings {
		if fleet.Symmetrical(m.Private) && (m.Public == 30_000 || m.Public == 30_001) {
			t.Errorf("%+v meets another port of the pod", m)
		}
		public[m.Public] = true
	}
	if len(p.Mappings) != 4 || len(public) != 4 {
		t.Errorf("the mappings are %v", p.Mappings)
	}
	w.addHost("host-b", "EU-RO-1", "", 0, publicPorts(40_000, 40_001))
	req.Ports = []fleet.Port{tcp(70_000), http(40_000), http(40_001)}
	_, err := w.svc.CreatePod(t.Context(), member(acme), req)
	refused(t, err, fleet.CodeNoCapacity, "")
	// A change that takes the number of a symmetrical port for something else moves that.
	req.Ports = []fleet.Port{tcp(70_000)}
	p = w.create(req)
	had := p.Mappings[0].Public
	w.report(p.ID, fleet.EventRunning)
	ports := []fleet.Port{tcp(70_000), http(had)}
	v, err := w.svc.UpdatePod(t.Context(), member(acme), p.ID, fleet.PodUpdate{Ports: &ports})
	if err != nil || len(v.Pod.Mappings) != 1 || v.Pod.Mappings[0].Public == had {
		t.Errorf("it had %d, now it has %v: %v", had, v.Pod.Mappings, err)
	}
}

func TestAHostWithASevereConditionIsLeftOut(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "EU-RO-1", h100, 2)
	var h fleet.Host
	w.view(func(v *state.View) { h, _ = v.Host("host-a") })
	say := func(conditions ...fleet.Condition) {
		h.Inventory.Conditions = conditions
		w.must(state.UpdateInventory{Host: "host-a", Epoch: h.Epoch, Inventory: h.Inventory, At: w.clock()})
	}
	stock := func() fleet.Availability {
		cat, err := w.svc.Catalog(t.Context(), fleet.CatalogQuery{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(cat.GPUs, func(g fleet.GPUOffer) bool { return g.ID == h100 })
		return cat.GPUs[i].Stock
	}
	if stock() != fleet.AvailableLow {
		t.Errorf("before, the stock is %s", stock())
	}
	say(fleet.Condition{Code: "disk_unlimited", Severe: true})
	_, err := w.svc.CreatePod(t.Context(), member(acme), gpuPod(1))
	refused(t, err, fleet.CodeNoCapacity, "")
	if got := fmt.Sprint(excludedOf(err)); got != "[{not fit: disk_unlimited 1}]" || stock() != fleet.AvailableNone {
		t.Errorf("excluded %s, stock %s", got, stock())
	}
	say(fleet.Condition{Code: "disk_unlimited"})
	w.create(gpuPod(1))
	h.Inventory.GPUs[0].Sick, h.Inventory.GPUs[1].Sick = "XID 79", "XID 79"
	say()
	_, err = w.svc.CreatePod(t.Context(), member(acme), gpuPod(1))
	if got := fmt.Sprint(excludedOf(err)); got != "[{0 of 2 GPUs free 1}]" {
		t.Errorf("excluded %s", got)
	}
}

func excludedOf(err error) []fleet.Exclusion {
	var e *fleet.Error
	if errors.As(err, &e) {
		return e.Excluded
	}
	return nil
}
