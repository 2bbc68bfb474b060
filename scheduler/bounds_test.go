package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// TestKeyOutlivesNoMaker makes keys with a key that expires.
func TestKeyOutlivesNoMaker(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	end := begin().Add(time.Hour)
	maker, _, err := w.svc.CreateAccountKey(ctx, acme, fleet.KeyRequest{Name: "maker", ExpiresAt: end})
	if err != nil {
		t.Fatal(err)
	}
	who := member(acme)
	who.Key = maker.ID
	for _, c := range []struct {
		name    string
		expires time.Time
		ok      bool
	}{
		{"never", time.Time{}, false},
		{"later", end.Add(time.Second), false},
		{"with it", end, true},
		{"sooner", end.Add(-time.Second), true},
	} {
		made, _, err := w.svc.CreateKey(ctx, who, fleet.KeyRequest{Name: c.name, ExpiresAt: c.expires})
		switch {
		case !c.ok:
			refused(t, err, fleet.CodeForbidden, "access denied")
		case err != nil || !made.ExpiresAt.Equal(c.expires):
			t.Errorf("%s: %v: %v", c.name, made.ExpiresAt, err)
		}
	}
	keys, err := w.svc.Keys(ctx, who)
	if err != nil || slices.ContainsFunc(keys, func(k fleet.Key) bool { return k.ExpiresAt.IsZero() || k.ExpiresAt.After(end) }) {
		t.Errorf("%v: %v", keys, err)
	}
}

// TestManyKeyUses flushes more uses than one command can hold, over a proposer that fails once.
func TestManyKeyUses(t *testing.T) {
	const keys = 90_000
	w := newWorld(t)
	for i := range keys {
		w.svc.uses.touch(fleet.KeyID(fmt.Sprintf("key-%07d-%s", i, strings.Repeat("x", 20))), begin())
	}
	ctx := context.Background()
	touched := map[fleet.KeyID]int{}
	fail := 4
	w.svc.Node = &touching{w, func(cmd state.TouchKeys) error {
		if fail--; fail == 0 {
			return fleet.Unavailable("not now", nil)
		}
		for id := range cmd.Used {
			touched[id]++
		}
		return nil
	}}
	if err := w.svc.FlushKeyUse(ctx); fleet.CodeOf(err) != fleet.CodeUnavailable || len(touched) != 3*touchedAtOnce {
		t.Errorf("%d recorded: %v", len(touched), err)
	}
	if err := w.svc.FlushKeyUse(ctx); err != nil || len(touched) != keys {
		t.Errorf("%d recorded: %v", len(touched), err)
	}
	for id, n := range touched {
		if n != 1 {
			t.Fatalf("%s was recorded %d times", id, n)
		}
	}
	for i := range maxKeyUses + 100 - keys {
		w.svc.uses.touch(fleet.KeyID(fmt.Sprintf("more-%d", i)), begin())
	}
	if n := len(w.svc.uses.last); n != maxKeyUses {
		t.Errorf("%d uses are kept", n)
	}
	last := fleet.KeyID("the last one")
	w.svc.uses.touch(last, begin())
	if _, ok := w.svc.uses.last[last]; !ok {
		t.Error("the newest use is not kept")
	}
}

// touching is a proposer that shows uses of keys to a function of the test.
type touching struct {
	*world
	look func(cmd state.TouchKeys) error
}

func (p *touching) Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error) {
	if cmd, ok := cmds[0].(state.TouchKeys); ok {
		if err := p.look(cmd); err != nil {
			return nil, err
		}
	}
	return p.world.Propose(ctx, cmds...)
}

// keysOf returns n different SSH keys of a size in bytes.
func keysOf(n, size int) []string {
	var out []string
	for i := range n {
		key := fmt.Sprintf("ssh-ed25519 AAAA %d ", i)
		out = append(out, key+strings.Repeat("c", size-len(key)))
	}
	return out
}

// TestSSHKeysTogether bounds what one variable of a pod gets.
func TestSSHKeysTogether(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 8)
	ctx := context.Background()
	most := keysOf(4, 8192)
	if err := w.svc.SetSSHKeys(ctx, member(acme), append(most, most[0])); err != nil {
		t.Fatalf("what is kept once counts once: %v", err)
	}
	refused(t, w.svc.SetSSHKeys(ctx, member(acme), append(slices.Clone(most), "s")), fleet.CodeInvalid, "$.keys: must have at most 32768 bytes")
	if keys, err := w.svc.SSHKeys(ctx, member(acme)); err != nil || !slices.Equal(keys, most) {
		t.Errorf("%d keys: %v", len(keys), err)
	}
	req := gpuPod(1)
	req.StartSSH = ptr(true)
	if p := w.create(req); p.Spec.Env["PUBLIC_KEY"] != strings.Join(most, "\n") {
		t.Error("the keys are not in the pod")
	}
	w.must(state.SetSSHKeys{Account: acme, Keys: keysOf(5, 8192)}) // of before there was a bound
	_, err := w.svc.CreatePod(ctx, member(acme), req)
	refused(t, err, fleet.CodeConflictRule, "SSH keys")
	req.Env = map[string]string{"PUBLIC_KEY": "own"}
	if p := w.create(req); p.Spec.Env["PUBLIC_KEY"] != "own" {
		t.Error("the pod's own key is not in it")
	}
}

// TestARegistryCredentialIsReplaced also deletes it, or replaces it once more, while it is being replaced.
func TestARegistryCredentialIsReplaced(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	reg, _, err := w.svc.CreateRegistry(ctx, member(acme), "hub", fleet.Credential{Username: "u", Password: "p"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(user string) error {
		_, err := w.svc.UpdateRegistry(ctx, member(acme), reg.ID, fleet.Credential{Username: user, Password: "another"})
		return err
	}
	if err := replace("first"); err != nil {
		t.Fatal(err)
	}
	w.before = func() {
		if err := replace("between"); err != nil {
			t.Error(err)
		}
	}
	if err := replace("last"); err != nil {
		t.Fatal(err)
	}
	if got, err := w.svc.Credentials(acme, reg.ID); err != nil || got.Username != "last" || got.Password.Reveal() != "another" {
		t.Errorf("%+v: %v", got, err)
	}
	if got, err := w.svc.Registry(ctx, member(acme), reg.ID); err != nil || got.Name != "hub" || !got.CreatedAt.Equal(reg.CreatedAt) {
		t.Errorf("%+v: %v", got, err)
	}
	w.before = func() {
		if err := w.svc.DeleteRegistry(ctx, member(acme), reg.ID); err != nil {
			t.Error(err)
		}
	}
	refused(t, replace("late"), fleet.CodeNotFound, "")
	if all, err := w.svc.Registries(ctx, member(acme)); err != nil || len(all) != 0 {
		t.Errorf("%d are left: %v", len(all), err)
	}
}

// TestTemplateReplayOutlivesItsRegistry repeats a create whose credential is gone meanwhile.
func TestTemplateReplayOutlivesItsRegistry(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	reg, _, err := w.svc.CreateRegistry(ctx, member(acme), "hub", fleet.Credential{Username: "u", Password: "p"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	once := &fleet.Once{Key: "k", Fingerprint: []byte("one")}
	create := func(once *fleet.Once) (fleet.Template, bool, error) {
		return w.svc.CreateTemplate(ctx, member(acme), fleet.Template{Name: "t", Image: "busybox:1", Registry: reg.ID}, once)
	}
	made, _, err := create(once)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.svc.UpdateTemplate(ctx, member(acme), made.ID, func(t *fleet.Template) { t.Registry = fleet.RegistryID("") }); err != nil {
		t.Fatal(err)
	}
	if err := w.svc.DeleteRegistry(ctx, member(acme), reg.ID); err != nil {
		t.Fatal(err)
	}
	if again, replayed, err := create(once); err != nil || !replayed || again.ID != made.ID {
		t.Errorf("%s, replayed %v: %v", again.ID, replayed, err)
	}
	_, _, err = create(nil)
	refused(t, err, fleet.CodeNotFound, "$.registry")
	_, _, err = create(&fleet.Once{Key: "another", Fingerprint: []byte("one")})
	refused(t, err, fleet.CodeNotFound, "$.registry")
	_, _, err = create(&fleet.Once{Key: "k", Fingerprint: []byte("two")})
	refused(t, err, fleet.CodeInvalid, "Idempotency-Key")
	if all, err := w.svc.Templates(ctx, member(acme)); err != nil || len(all) != 1 {
		t.Errorf("%d templates: %v", len(all), err)
	}
	if err := w.svc.DeleteTemplate(ctx, member(acme), made.ID); err != nil {
		t.Fatal(err)
	}
	_, _, err = create(once)
	refused(t, err, fleet.CodeExists, "gone")
}
