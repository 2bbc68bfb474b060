package state

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// message returns the public message of a refused command.
func (w *world) message(cmd Command) string {
	w.t.Helper()
	var e *fleet.Error
	if !errors.As(w.do(cmd).Err, &e) {
		w.t.Fatalf("%T was not refused", cmd)
	}
	return e.Msg
}

func TestTemplates(t *testing.T) {
	w := newWorld(t).settle().furnish()
	in := sampleTemplate()
	in.Registry, in.Rev = "reg-1", 0
	but := func(change func(*fleet.Template)) Put[fleet.Template] {
		c := Put[fleet.Template]{Record: cloneTemplate(&in)}
		change(&c.Record)
		return c
	}
	for code, cmd := range map[fleet.Code]Put[fleet.Template]{
		fleet.CodeInvalid:  but(func(m *fleet.Template) { m.ID = "" }),
		fleet.CodeNotFound: but(func(m *fleet.Template) { m.Account = "nobody" }),
		fleet.CodeExists:   but(func(m *fleet.Template) { m.ID = "tpl-2" }),
		fleet.CodeStale:    but(func(m *fleet.Template) { m.Registry = "reg-9" }),
	} {
		w.refused(code, cmd)
	}
	w.refused(fleet.CodeStale, but(func(m *fleet.Template) { m.Account = "other" })) // the credential is acme's

	want := in
	want.Rev, want.Source = 1, ""
	if d := cmp.Diff(want, w.must(Put[fleet.Template]{Record: in}).(fleet.Template)); d != "" {
		t.Error(d)
	}
	w.must(SetTemplateSource{Template: in.ID, Source: fleet.SourceVerified})

	next := in
	next.Name, next.CreatedAt, next.Rev = "renamed", at(99), 1
	w.refused(fleet.CodeStale, Put[fleet.Template]{Record: next}) // the source moved its revision
	next.Rev = 2
	w.refused(fleet.CodeNotFound, but(func(m *fleet.Template) { m.Account, m.Rev = "other", 2 }))
	w.refused(fleet.CodeNotFound, but(func(m *fleet.Template) { m.ID, m.Rev = "none", 2 }))
	w.refused(fleet.CodeStale, but(func(m *fleet.Template) { m.Registry, m.Rev = "reg-9", 2 }))
	got := w.must(Put[fleet.Template]{Record: next}).(fleet.Template)
	if got.Rev != 3 || got.Name != "renamed" || !got.CreatedAt.Equal(in.CreatedAt) || got.Source != fleet.SourceVerified {
		t.Errorf("got %+v", got)
	}
	next.Rev, next.Public = 3, false
	if got := w.must(Put[fleet.Template]{Record: next}).(fleet.Template); got.Source != "" {
		t.Errorf("a private template is %s", got.Source)
	}
	w.view(func(v *View) {
		one, ok := Find[fleet.Template](v, in.ID)
		of, public := List[fleet.Template](v, "acme"), v.PublicTemplates()
		if !ok || one.Rev != 4 || len(of) != 2 || of[0].ID != in.ID || of[1].ID != "tpl-1" {
			t.Errorf("template %+v, of the account %+v", one, of)
		}
		if len(public) != 1 || public[0].ID != "tpl-2" || len(List[fleet.Template](v, "nobody")) != 0 {
			t.Errorf("public %+v", public)
		}
		if _, ok := Find[fleet.Template](v, "none"); ok {
			t.Error("there is a template that was never put")
		}
	})
	w.check()
}

func TestDeleteTemplate(t *testing.T) {
	w := newWorld(t).settle().furnish()
	pod := podOn("pod-1", "host-a")
	pod.Account, pod.Spec.Template = "other", "tpl-2"
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
	pod.ID = "pod-2"
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
	pod.ID, pod.Account = "stranger", "acme" // which neither counts nor shows
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
	del := Delete[fleet.Template]{Account: "other", ID: "tpl-2"}
	terminate := func(id fleet.PodID) ActPod {
		return ActPod{Account: "other", Pod: id, Action: fleet.ActionTerminate, At: at(50)}
	}
	w.refused(fleet.CodeNotFound, Delete[fleet.Template]{Account: "acme", ID: "tpl-2"})
	w.refused(fleet.CodeNotFound, Delete[fleet.Template]{Account: "acme", ID: "tpl-9"})
	w.refused(fleet.CodeInUse, del)
	if msg := w.message(del); msg != "the template is in use: 2 pods have it" {
		t.Errorf("message %q", msg)
	}
	w.must(terminate("pod-1"))
	if msg := w.message(del); msg != "the template is in use: 1 pod has it" {
		t.Errorf("message %q", msg)
	}
	w.must(terminate("pod-2"), del)
	w.must(w.report("stranger", fleet.EventExited), w.act("stranger", fleet.ActionStart))
	w.view(func(v *View) {
		if _, ok := Find[fleet.Template](v, "tpl-2"); ok {
			t.Error("the template is still there")
		}
	})
	w.check()
}

func TestSetTemplateSource(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.refused(fleet.CodeNotFound, SetTemplateSource{Template: "tpl-9", Source: fleet.SourceOfficial})
	w.refused(fleet.CodeConflictRule, SetTemplateSource{Template: "tpl-1", Source: fleet.SourceOfficial})
	w.refused(fleet.CodeInvalid, SetTemplateSource{Template: "tpl-2", Source: "best"})
	for source, want := range map[fleet.TemplateSource]fleet.TemplateSource{
		fleet.SourceOfficial: fleet.SourceOfficial, fleet.SourceVerified: fleet.SourceVerified, fleet.SourceCommunity: "",
	} {
		if got := w.must(SetTemplateSource{Template: "tpl-2", Source: source}).(fleet.Template); got.Source != want {
			t.Errorf("%s gives %s", source, got.Source)
		}
	}
	w.check()
}

func TestRegistries(t *testing.T) {
	w := newWorld(t).settle().furnish()
	in := fleet.Registry{ID: "reg-2", Account: "acme", Name: "r", Sealed: []byte("x"), CreatedAt: at(1)}
	w.refused(fleet.CodeInvalid, Put[fleet.Registry]{Record: fleet.Registry{Account: "acme"}})
	w.refused(fleet.CodeNotFound, Put[fleet.Registry]{Record: fleet.Registry{ID: "reg-2", Account: "nobody"}})
	w.refused(fleet.CodeExists, Put[fleet.Registry]{Record: fleet.Registry{ID: "reg-1", Account: "other"}})
	w.refused(fleet.CodeNotFound, Put[fleet.Registry]{Record: fleet.Registry{ID: "reg-2", Account: "acme", Rev: 1}})
	w.refused(fleet.CodeNotFound, Put[fleet.Registry]{Record: fleet.Registry{ID: "reg-1", Account: "other", Rev: 1}})
	got := w.must(Put[fleet.Registry]{Record: in}).(fleet.Registry)
	if in.Rev = 1; cmp.Diff(in, got) != "" {
		t.Error(cmp.Diff(in, got))
	}
	in.Sealed = []byte("y")
	if got = w.must(Put[fleet.Registry]{Record: in}).(fleet.Registry); got.Rev != 2 || string(got.Sealed) != "y" {
		t.Errorf("replaced: %+v", got)
	}
	w.refused(fleet.CodeStale, Put[fleet.Registry]{Record: in})
	in = got
	w.view(func(v *View) {
		one, ok := Find[fleet.Registry](v, "reg-2")
		if d := cmp.Diff(in, one); !ok || d != "" {
			t.Error(d)
		}
		if of := List[fleet.Registry](v, "acme"); len(of) != 2 || of[0].ID != "reg-2" || len(List[fleet.Registry](v, "other")) != 0 {
			t.Errorf("of the account %+v", of)
		}
	})

	pod := podOn("pod-1", "host-a")
	pod.Spec.Registry = "reg-1"
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
	del := Delete[fleet.Registry]{Account: "acme", ID: "reg-1"}
	w.refused(fleet.CodeNotFound, Delete[fleet.Registry]{Account: "other", ID: "reg-1"})
	w.refused(fleet.CodeInUse, del)
	if msg := w.message(del); msg != "the registry credential is in use: 1 template and 1 pod have it" {
		t.Errorf("message %q", msg)
	}
	w.must(w.act("pod-1", fleet.ActionTerminate), Delete[fleet.Template]{Account: "acme", ID: "tpl-1"}, del)
	w.refused(fleet.CodeNotFound, del)
	w.check()
}

func TestSSHKeysAndKeyUse(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.refused(fleet.CodeNotFound, SetSSHKeys{Account: "nobody", Keys: []string{"a"}})
	w.must(SetSSHKeys{Account: "acme", Keys: []string{"c"}})
	w.view(func(v *View) {
		if d := cmp.Diff([]string{"c"}, v.SSHKeys("acme")); d != "" || len(v.SSHKeys("other")) != 0 {
			t.Error(d)
		}
	})
	w.must(SetSSHKeys{Account: "acme"}, SetSSHKeys{Account: "acme"})

	used := func() (at time.Time) {
		w.view(func(v *View) {
			k, _ := v.Key("key-1")
			byHash, _ := v.KeyByHash([]byte("hash-1"))
			at = k.LastUsedAt
			if of := v.Keys("acme"); len(of) != 1 || !of[0].LastUsedAt.Equal(at) || !byHash.LastUsedAt.Equal(at) {
				t.Errorf("last uses differ: %v, %v, %v", at, byHash, of)
			}
			if _, ok := v.Key("key-9"); ok || len(v.SSHKeys("acme")) != 0 {
				t.Error("an unknown key, or SSH keys that were taken away")
			}
		})
		return at
	}
	index := w.s.Index()
	w.must(TouchKeys{Used: map[fleet.KeyID]time.Time{"key-1": at(9), "key-9": at(9)}})
	w.must(TouchKeys{Used: map[fleet.KeyID]time.Time{"key-1": at(8)}})
	if evs, _, _ := w.s.Events(index); !used().Equal(at(9)) || len(evs) != 0 {
		t.Errorf("last used %v, events %v", used(), evs)
	}

	w.refused(fleet.CodeNotFound, UpdateKey{Account: "other", Key: "key-1", Name: ptr("x")})
	w.refused(fleet.CodeNotFound, UpdateKey{Account: "acme", Key: "key-9"})
	got := w.must(UpdateKey{Account: "acme", Key: "key-1", Name: ptr("x"), Disabled: ptr(true)}).(fleet.Key)
	if got.Name != "x" || !got.Disabled || !got.LastUsedAt.Equal(at(9)) {
		t.Errorf("got %+v", got)
	}
	if got := w.must(UpdateKey{Account: "acme", Key: "key-1", Disabled: ptr(false)}).(fleet.Key); got.Name != "x" || got.Disabled {
		t.Errorf("got %+v", got)
	}
	w.check()
	// A key with the same id does not inherit the use of one that is gone.
	w.must(DeleteKey{Account: "acme", Key: "key-1"}, PutKey{fleet.Key{ID: "key-1", Account: "acme", Hash: []byte("hash-1")}})
	if !used().IsZero() {
		t.Errorf("a new key was used at %v", used())
	}
	w.check()
}

func TestUpdateAccount(t *testing.T) {
	w := newWorld(t).settle()
	w.refused(fleet.CodeNotFound, UpdateAccount{Account: "nobody"})
	w.refused(fleet.CodeInvalid, UpdateAccount{Account: "acme", Quotas: &fleet.Quotas{Hour: -1}})
	quotas := &fleet.Quotas{Minute: 5}
	got := w.must(UpdateAccount{Account: "acme", Name: ptr("A"), Prepaid: ptr(true), Quotas: quotas}).(fleet.Account)
	want := fleet.Account{ID: "acme", Name: "A", CreatedAt: at(0), Prepaid: true, Quotas: quotas}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got := w.must(UpdateAccount{Account: "acme"}).(fleet.Account); cmp.Diff(want, got) != "" {
		t.Errorf("an update of nothing gives %+v", got)
	}
	if got := w.must(UpdateAccount{Account: "acme", Quotas: &fleet.Quotas{}}).(fleet.Account); got.Quotas != nil {
		t.Errorf("quotas %+v", got.Quotas)
	}
	w.check()
}

// Nobody fills the state: what an account may have of each thing is bounded, and counted for it alone.
func TestAnAccountHasBounds(t *testing.T) {
	for _, tc := range []struct {
		thing string
		most  int
		put   func(account fleet.AccountID, i int) Command
	}{
		{"templates", maxTemplates, func(a fleet.AccountID, i int) Command {
			return Put[fleet.Template]{Record: fleet.Template{ID: fleet.TemplateID(fmt.Sprintf("%s-%d", a, i)), Account: a}}
		}},
		{"registry credentials", maxRegistries, func(a fleet.AccountID, i int) Command {
			return Put[fleet.Registry]{Record: fleet.Registry{ID: fleet.RegistryID(fmt.Sprintf("%s-%d", a, i)), Account: a}}
		}},
		{"API keys", maxKeys, func(a fleet.AccountID, i int) Command {
			id := fmt.Sprintf("%s-%d", a, i)
			return PutKey{fleet.Key{ID: fleet.KeyID(id), Account: a, Hash: []byte(id)}}
		}},
		{"secrets", maxSecrets, func(a fleet.AccountID, i int) Command {
			return Put[fleet.AccountSecret]{Record: fleet.AccountSecret{Account: a, Name: fmt.Sprintf("s-%d", i)}}
		}},
	} {
		t.Run(tc.thing, func(t *testing.T) {
			w := newWorld(t).settle()
			var cmds []Command
			for i := range tc.most + 1 {
				cmds = append(cmds, tc.put("acme", i))
			}
			// In one entry and in the next: both count what is not published yet and what is.
			res, err := w.s.Apply([]entry.Entry{w.entry(cmds...)})
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range res[0] {
				if want := i == tc.most; (r.Err != nil) != want || want && fleet.CodeOf(r.Err) != fleet.CodeConflictRule {
					t.Fatalf("the one of number %d: %v", i, r.Err)
				}
			}
			w.refused(fleet.CodeConflictRule, tc.put("acme", tc.most+1))
			w.must(tc.put("other", 0))
			if want, msg := fmt.Sprintf("an account may have at most %d %s", tc.most, tc.thing), w.message(tc.put("acme", tc.most)); msg != want {
				t.Errorf("message %q", msg)
			}
		})
	}
	w := newWorld(t).settle()
	w.must(SetSSHKeys{Account: "acme", Keys: make([]string, maxSSHKeys)})
	w.refused(fleet.CodeConflictRule, SetSSHKeys{Account: "acme", Keys: make([]string, maxSSHKeys+1)})
	// A key that is there may be replaced, whatever the account has.
	for i := range maxKeys {
		w.must(PutKey{fleet.Key{ID: fleet.KeyID(fmt.Sprint(i)), Account: "acme", Hash: []byte{byte(i), 1}}})
	}
	w.must(PutKey{fleet.Key{ID: "0", Account: "acme", Hash: []byte("new")}})
}
