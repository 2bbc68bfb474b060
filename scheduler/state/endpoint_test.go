package state

import (
	"errors"
	"slices"
	"testing"

	"gantry/fleet"
)

// endpoint is an endpoint that refers to nothing.
func endpoint(id fleet.EndpointID) fleet.Endpoint {
	e := sampleEndpoint()
	e.ID, e.Rev, e.Spec.Registry, e.Spec.Template, e.Spec.Volumes = id, 0, "", "", nil
	return e
}

// TestAnEndpoint is created once, replaced with its revision, counted in the account's limits, and deleted.
func TestAnEndpoint(t *testing.T) {
	w := newWorld(t).settle().furnish()
	made := w.must(Put[fleet.Endpoint]{Record: endpoint("ep-1"), Once: sampleOnce()}).(fleet.Endpoint)
	if made.Rev != 1 || made.Version() != 1 {
		t.Errorf("made %+v", made)
	}
	again, ok := w.must(Put[fleet.Endpoint]{Record: endpoint("ep-2"), Once: sampleOnce()}).(Replay)
	if !ok || again.Value.(fleet.Endpoint).ID != "ep-1" {
		t.Errorf("repeated: %+v", again)
	}
	w.refused(fleet.CodeExists, Put[fleet.Endpoint]{Record: endpoint("ep-1")})
	next := made
	next.Spec.Name, next.Spec.Type, next.CreatedAt = "other", fleet.EndpointBalanced, at(99)
	next.Releases = append(next.Releases, fleet.Release{ID: "r2", Version: 2, At: at(2)})
	put := w.must(Put[fleet.Endpoint]{Record: next}).(fleet.Endpoint)
	if put.Rev != 2 || put.Spec.Name != "other" || put.Spec.Type != fleet.EndpointQueue || !put.CreatedAt.Equal(at(1)) || put.Version() != 2 {
		t.Errorf("replaced by %+v", put)
	}
	w.refused(fleet.CodeStale, Put[fleet.Endpoint]{Record: next})
	theirs := put
	theirs.Account = "other"
	w.refused(fleet.CodeNotFound, Put[fleet.Endpoint]{Record: theirs})
	w.refused(fleet.CodeNotFound, Delete[fleet.Endpoint]{Account: "other", ID: "ep-1"})
	w.view(func(v *View) {
		if used := v.Used("acme"); used[fleet.LimitEndpoints] != 1 || used[fleet.LimitSpecBytes] == 0 {
			t.Errorf("counted as %v", used)
		}
	})
	w.must(SetLimits{Limits: map[string]*int64{"endpoints": ptr(int64(1))}})
	w.refused(fleet.CodeQuota, Put[fleet.Endpoint]{Record: endpoint("ep-2")})
	if same := w.must(Put[fleet.Endpoint]{Record: put}).(fleet.Endpoint); same.Rev != 3 {
		t.Errorf("one that there is cannot be replaced at the limit: %+v", same)
	}
	w.must(Delete[fleet.Endpoint]{Account: "acme", ID: "ep-1"})
	w.refused(fleet.CodeNotFound, Delete[fleet.Endpoint]{Account: "acme", ID: "ep-1"})
	w.must(Put[fleet.Endpoint]{Record: endpoint("ep-2")})
}

// TestAnEndpointsReferences are there, and cannot be deleted while it names them.
func TestAnEndpointsReferences(t *testing.T) {
	w := newWorld(t).settle().furnish()
	for name, change := range map[string]func(*fleet.Endpoint){
		"registry": func(e *fleet.Endpoint) { e.Spec.Registry = "registry000009" },
		"template": func(e *fleet.Endpoint) { e.Spec.Template = "template000009" },
		"volume":   func(e *fleet.Endpoint) { e.Spec.Volumes = []fleet.VolumeID{"volume00000009"} },
		"secret":   func(e *fleet.Endpoint) { e.Spec.Env = map[string]string{"K": "{{ GANTRY_SECRET_none }}"} },
	} {
		e := endpoint("ep-1")
		change(&e)
		if name == "secret" {
			names, _ := fleet.SecretsOf(e.Spec.Env)
			if len(names) != 1 {
				t.Fatalf("%v is no reference to a secret", e.Spec.Env)
			}
		}
		w.refused(fleet.CodeStale, Put[fleet.Endpoint]{Record: e})
	}
	none, many := endpoint("ep-1"), endpoint("ep-1")
	none.Releases, many.Releases = nil, make([]fleet.Release, fleet.MaxReleases+1)
	w.refused(fleet.CodeInvalid, Put[fleet.Endpoint]{Record: none})
	w.refused(fleet.CodeInvalid, Put[fleet.Endpoint]{Record: many})

	template := fleet.Template{ID: "tpl-9", Account: "acme", Name: "t", Image: "busybox", CreatedAt: at(1)}
	w.must(
		Put[fleet.Template]{Record: template},
		Put[fleet.Registry]{Record: fleet.Registry{ID: "reg-9", Account: "acme", Name: "r", CreatedAt: at(1)}},
		Put[fleet.AccountSecret]{Record: fleet.AccountSecret{Account: "acme", Name: "TOKEN", Sealed: []byte("x"), CreatedAt: at(1)}},
	)
	e := endpoint("ep-1")
	e.Spec.Template, e.Spec.Registry, e.Spec.Env = "tpl-9", "reg-9", map[string]string{"K": "{{ GANTRY_SECRET_TOKEN }}"}
	if names, _ := fleet.SecretsOf(e.Spec.Env); len(names) != 1 {
		t.Fatalf("%v is no reference to a secret", e.Spec.Env)
	}
	w.must(Put[fleet.Endpoint]{Record: e})
	uses := []Command{
		Delete[fleet.Template]{Account: "acme", ID: "tpl-9"},
		Delete[fleet.Registry]{Account: "acme", ID: "reg-9"},
		Delete[fleet.AccountSecret]{Account: "acme", ID: "TOKEN"},
	}
	for _, c := range uses {
		var why *fleet.Error
		if err := w.do(c).Err; !errors.As(err, &why) || why.Code != fleet.CodeInUse || !slices.Contains(why.Details, "endpoint ep-1 (embed)") {
			t.Errorf("%T: %v", c, err)
		}
	}
	w.must(Delete[fleet.Endpoint]{Account: "acme", ID: "ep-1"})
	w.must(uses...)
}
