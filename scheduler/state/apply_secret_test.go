package state

import (
	"testing"

	"gantry/fleet"
)

func secretOf(account fleet.AccountID, name, sealed string, second int) Put[fleet.AccountSecret] {
	return Put[fleet.AccountSecret]{Record: fleet.AccountSecret{Account: account, Name: name, Sealed: []byte(sealed), CreatedAt: at(second), UpdatedAt: at(second)}}
}

func TestSecrets(t *testing.T) {
	w := newWorld(t).settle()
	w.must(secretOf("acme", "b", "one", 1), secretOf("acme", "a", "two", 2), secretOf("other", "b", "three", 3))
	w.must(secretOf("acme", "b", "four", 4))
	w.view(func(v *View) {
		all := List[fleet.AccountSecret](v, "acme")
		if len(all) != 2 || all[0].Name != "a" || string(all[1].Sealed) != "four" || !all[1].CreatedAt.Equal(at(1)) || !all[1].UpdatedAt.Equal(at(4)) {
			t.Errorf("the secrets are %+v", all)
		}
		if s, err := Get[fleet.AccountSecret](v, "other", "b"); err != nil || string(s.Sealed) != "three" || len(List[fleet.AccountSecret](v, "nobody")) != 0 {
			t.Errorf("that of the other account is %+v", s)
		}
	})
	w.check()
	w.refused(fleet.CodeNotFound, secretOf("nobody", "a", "x", 1))
	w.refused(fleet.CodeInvalid, secretOf("acme", "a b", "x", 1))
	w.refused(fleet.CodeInvalid, secretOf("acme", "a", string(make([]byte, maxSealed+1)), 1))
	w.refused(fleet.CodeNotFound, Delete[fleet.AccountSecret]{Account: "other", ID: "a"})
	w.must(Delete[fleet.AccountSecret]{Account: "acme", ID: "a"})
	w.refused(fleet.CodeNotFound, Delete[fleet.AccountSecret]{Account: "acme", ID: "a"})
	w.check()
}

// A pod that is not terminated keeps the secrets that its environment names.
func TestASecretInUseStays(t *testing.T) {
	w := newWorld(t).settle()
	w.must(secretOf("acme", "a", "x", 1), secretOf("acme", "b", "x", 1), secretOf("other", "c", "x", 1))
	with := func(env string) fleet.Pod {
		p := podOn("pod-1", "host-a", 0)
		p.Spec.Env = map[string]string{"T": env}
		return p
	}
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: with("{{ RUNPOD_SECRET_c }}"), HostEpoch: 1}}})
	w.must(CreatePods{Pods: []NewPod{{Pod: with("{{ RUNPOD_SECRET_a }}"), HostEpoch: 1}}})
	w.refused(fleet.CodeInUse, Delete[fleet.AccountSecret]{Account: "acme", ID: "a"})
	p := w.pod("pod-1")
	change := UpdatePod{Account: "acme", Pod: p.ID, Rev: p.Rev, Spec: p.Spec, Restart: true, Need: p.Need, At: at(5)}
	change.Spec.Env = map[string]string{"T": "{{ GANTRY_SECRET_c }}"}
	w.refused(fleet.CodeStale, change)
	change.Spec.Env = map[string]string{"T": "{{ GANTRY_SECRET_b }}"}
	w.must(change)
	w.must(Delete[fleet.AccountSecret]{Account: "acme", ID: "a"})
	w.refused(fleet.CodeInUse, Delete[fleet.AccountSecret]{Account: "acme", ID: "b"})
	w.must(w.act("pod-1", fleet.ActionStop), w.report("pod-1", fleet.EventExited))
	w.refused(fleet.CodeInUse, Delete[fleet.AccountSecret]{Account: "acme", ID: "b"})
	w.must(w.act("pod-1", fleet.ActionTerminate), Delete[fleet.AccountSecret]{Account: "acme", ID: "b"})
}
