package fleet

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestSecretsInAnEnvironment(t *testing.T) {
	env := map[string]string{
		"PLAIN": "{{ SECRET_a }} {{RUNPOD_SECRET_}} {{ RUNPOD_SECRET_1 }} RUNPOD_SECRET_a {{ RUNPOD_SECRET_a b }}",
		"URL":   "https://{{ RUNPOD_SECRET_user }}:{{GANTRY_SECRET_pass-word}}@host/{{\tRUNPOD_SECRET_user\t}}",
		"LOOP":  "{{ GANTRY_SECRET__loop }}",
	}
	names, uses := SecretsOf(env)
	if !slices.Equal(names, []string{"_loop", "pass-word", "user"}) || uses != 4 {
		t.Fatalf("%d uses of %q", uses, names)
	}
	before := maps.Clone(env)
	secrets := map[string]string{"user": "me", "pass-word": "$1 {{ RUNPOD_SECRET_user }}", "_loop": "{{ GANTRY_SECRET__loop }}"}
	got := WithSecrets(env, func(name string) (string, bool) { return secrets[name], true })
	want := map[string]string{
		"PLAIN": env["PLAIN"], "LOOP": env["LOOP"], "URL": "https://me:$1 {{ RUNPOD_SECRET_user }}@host/me",
	}
	if !maps.Equal(got, want) || !maps.Equal(env, before) {
		t.Errorf("got %q", got)
	}
	for name, value := range env {
		if n := SizeWithSecrets(value, func(name string) int { return len(secrets[name]) }); n != len(want[name]) {
			t.Errorf("%s has %d bytes, expected %d", name, len(want[name]), n)
		}
	}
	if got := WithSecrets(env, func(string) (string, bool) { return "", false }); !maps.Equal(got, env) {
		t.Errorf("without secrets it is %q", got)
	}
}

func TestSecretNames(t *testing.T) {
	for name, valid := range map[string]bool{
		"a": true, "_": true, "HF_TOKEN-2": true, strings.Repeat("a", 64): true,
		"": false, "1a": false, "-a": false, "a b": false, "a.b": false, "ä": false, "a\n": false, strings.Repeat("a", 65): false,
	} {
		if ValidSecretName(name) != valid {
			t.Errorf("%q is valid: %t", name, !valid)
		}
	}
}

func TestPodKeys(t *testing.T) {
	id := PodID(NewID())
	mac := sha256.Sum256([]byte(id))
	key := PodKey(id, mac[:])
	if got, ok := PodOfKey(key.Reveal()); !ok || got != id || !ValidAPIKey(key.Reveal()) {
		t.Errorf("a pod's key is read as that of %q", got)
	}
	// The last character is that of the highest digit: all of the MAC's bits that fit have to count.
	seen := map[string]bool{key.Reveal(): true}
	for i := range 21 {
		other := bytes.Clone(mac[:])
		other[len(other)-1-i] ^= 1
		seen[PodKey(id, other).Reveal()] = true
	}
	if len(seen) != 22 {
		t.Errorf("%d keys of 22 MACs", len(seen))
	}
	for _, text := range []string{"", "gk_", "gk_" + string(id), key.Reveal() + "x", strings.ToUpper(key.Reveal()), "gk_1" + key.Reveal()[4:]} {
		if got, ok := PodOfKey(text); ok {
			t.Errorf("%q is read as the key of %q", text, got)
		}
	}
}

func TestSymmetricalPorts(t *testing.T) {
	for number, inside := range map[int]int{22: 22, 65535: 65535, 70_000: 31_000, 135_535: 31_000, 69_999: 69_999, 135_536: 135_536} {
		if got := (PortMapping{Private: number, Public: 31_000}).Inside(); got != inside {
			t.Errorf("of %d the container listens at %d, want %d", number, got, inside)
		}
	}
}

func TestASevereConditionTakesAHostOut(t *testing.T) {
	h := Host{State: HostReady, Inventory: Inventory{Conditions: []Condition{{Code: "old_kernel"}}}}
	if ok, why := h.Takes(); !ok {
		t.Errorf("a warning keeps pods away: %s", why)
	}
	h.Inventory.Conditions = append(h.Inventory.Conditions, Condition{Code: "disk_unlimited", Severe: true})
	if ok, why := h.Takes(); ok || why != "not fit: disk_unlimited" {
		t.Errorf("takes pods: %t, %q", ok, why)
	}
}
