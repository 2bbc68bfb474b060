package scheduler

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// TestKeyPermissions makes, with a key of each access to pods, a key of each access to pods.
func TestKeyPermissions(t *testing.T) {
	w := newWorld(t)
	ranks := []fleet.Access{fleet.AccessNone, fleet.AccessRead, fleet.AccessWrite}
	for i, own := range ranks {
		for j, wanted := range ranks {
			for _, group := range fleet.Groups() {
				can := map[fleet.Group]fleet.Access{fleet.GroupAccount: fleet.AccessWrite}
				can[group] = own
				who := fleet.Principal{Account: acme, Can: can}
				key, _, err := w.svc.CreateKey(context.Background(), who, fleet.KeyRequest{
					Name: "k", Preset: "restricted", Can: map[fleet.Group]fleet.Access{group: wanted},
				})
				if j > i {
					refused(t, err, fleet.CodeForbidden, "access denied")
					continue
				}
				if err != nil || key.Can[group] != wanted || key.Account != acme {
					t.Errorf("%s: a holder of %q made %q: %+v, %v", group, own, wanted, key.Can, err)
				}
				if err := w.svc.DeleteKey(context.Background(), who, key.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func TestKeyPresets(t *testing.T) {
	w := newWorld(t)
	all, read := fleet.AccessWrite, fleet.AccessRead
	for _, c := range []struct {
		name   string
		req    fleet.KeyRequest
		groups int
		pods   fleet.Access
		invoke []string
	}{
		{"nothing said", fleet.KeyRequest{}, 10, all, []string{fleet.InvokeAll}},
		{"all", fleet.KeyRequest{Preset: "all"}, 10, all, []string{fleet.InvokeAll}},
		{"all of no endpoint", fleet.KeyRequest{Preset: "all", Invoke: []string{}}, 10, all, nil},
		{"readOnly", fleet.KeyRequest{Preset: "readOnly"}, 10, read, nil},
		{"readOnly but pods", fleet.KeyRequest{Preset: "readOnly", Can: map[fleet.Group]fleet.Access{"pods": all}}, 10, all, nil},
		{"all but pods", fleet.KeyRequest{Preset: "all", Can: map[fleet.Group]fleet.Access{"pods": ""}}, 9, "", []string{fleet.InvokeAll}},
		{"restricted", fleet.KeyRequest{Preset: "restricted"}, 0, "", nil},
		{"only permissions", fleet.KeyRequest{Can: map[fleet.Group]fleet.Access{"pods": read}}, 1, read, nil},
		{"endpoints", fleet.KeyRequest{Preset: "restricted", Invoke: []string{"b", "a", "b"}}, 0, "", []string{"a", "b"}},
		{"admin", fleet.KeyRequest{Preset: "admin"}, 11, all, nil},
	} {
		key, _, err := w.svc.CreateAccountKey(context.Background(), acme, c.req)
		if err != nil || len(key.Can) != c.groups || key.Can["pods"] != c.pods || !slices.Equal(key.Invoke, c.invoke) {
			t.Errorf("%s: %v %v: %v", c.name, key.Can, key.Invoke, err)
		}
	}
	for name, req := range map[string]fleet.KeyRequest{
		"$.preset":      {Preset: "none"},
		"$.permissions": {Can: map[fleet.Group]fleet.Access{"root": read}},
		"$.invoke":      {Invoke: []string{"a", fleet.InvokeAll}},
		"$.expiresAt":   {ExpiresAt: begin()},
	} {
		_, _, err := w.svc.CreateAccountKey(context.Background(), acme, req)
		refused(t, err, fleet.CodeInvalid, name)
		_, _, err = w.svc.CreateKey(context.Background(), member(acme), req)
		refused(t, err, fleet.CodeInvalid, name)
	}
	_, _, err := w.svc.CreateAccountKey(context.Background(), acme, fleet.KeyRequest{Can: map[fleet.Group]fleet.Access{"pods": "own"}})
	refused(t, err, fleet.CodeInvalid, "$.permissions")
	watch, _, err := w.svc.CreateAccountKey(context.Background(), acme, fleet.KeyRequest{Can: map[fleet.Group]fleet.Access{fleet.GroupAdmin: read}})
	if err != nil || watch.Can[fleet.GroupAdmin] != read {
		t.Errorf("%+v, %v", watch, err)
	}
	admin, _ := fleet.Preset("admin")
	_, _, err = w.svc.CreateKey(context.Background(), fleet.Principal{Account: acme, Can: admin}, fleet.KeyRequest{Can: map[fleet.Group]fleet.Access{fleet.GroupAdmin: read}})
	refused(t, err, fleet.CodeInvalid, "$.permissions")
	_, _, err = w.svc.CreateKey(context.Background(), fleet.Principal{Account: acme, Can: admin}, fleet.KeyRequest{Preset: "admin"})
	refused(t, err, fleet.CodeInvalid, "$.preset")
	_, _, err = w.svc.CreateAccountKey(context.Background(), "none", fleet.KeyRequest{})
	refused(t, err, fleet.CodeNotFound, "account")
}

func TestKeyInvoke(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name      string
		own, want []string
		got       []string
		ok        bool
	}{
		{"all to all", []string{fleet.InvokeAll}, []string{fleet.InvokeAll}, []string{fleet.InvokeAll}, true},
		{"all to one", []string{fleet.InvokeAll}, []string{"a"}, []string{"a"}, true},
		{"not said", []string{"a", "b"}, nil, []string{"a", "b"}, true},
		{"one of two", []string{"a", "b"}, []string{"b"}, []string{"b"}, true},
		{"none", []string{"a"}, []string{}, nil, true},
		{"another", []string{"a"}, []string{"b"}, nil, false},
		{"all of one", []string{"a"}, []string{fleet.InvokeAll}, nil, false},
		{"one of none", nil, []string{"a"}, nil, false},
	} {
		own, _, err := w.svc.CreateAccountKey(context.Background(), acme, fleet.KeyRequest{Name: c.name, Invoke: append([]string{}, c.own...)})
		if err != nil {
			t.Fatal(err)
		}
		who := member(acme)
		who.Key = own.ID
		key, _, err := w.svc.CreateKey(context.Background(), who, fleet.KeyRequest{Preset: "all", Invoke: c.want})
		if !c.ok {
			refused(t, err, fleet.CodeForbidden, "access denied")
		} else if err != nil || !slices.Equal(key.Invoke, c.got) {
			t.Errorf("%s: %v, %v", c.name, key.Invoke, err)
		}
	}
}

func TestAuthenticate(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	quotas := &fleet.Quotas{Minute: 1, Hour: 2, Day: 3}
	if _, err := w.svc.UpdateAccount(ctx, acme, fleet.AccountUpdate{Quotas: quotas}); err != nil {
		t.Fatal(err)
	}
	key, text, err := w.svc.CreateAccountKey(ctx, acme, fleet.KeyRequest{Name: "k", ExpiresAt: begin().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	who, err := w.svc.Authenticate(ctx, text)
	if err != nil || who.Key != key.ID || who.Account != acme || who.Quotas == nil || *who.Quotas != *quotas || !maps.Equal(who.Can, key.Can) {
		t.Fatalf("%+v: %v", who, err)
	}
	unauthorized := func(s fleet.Secret) {
		t.Helper()
		_, err := w.svc.Authenticate(ctx, s)
		refused(t, err, fleet.CodeUnauthorized, "invalid bearer token")
	}
	unauthorized("")
	unauthorized("gk_short")
	unauthorized(fleet.NewAPIKey())
	second := member(acme)
	if _, err := w.svc.UpdateKey(ctx, second, key.ID, fleet.KeyUpdate{Disabled: ptr(true)}); err != nil {
		t.Fatal(err)
	}
	unauthorized(text)
	if got, err := w.svc.UpdateKey(ctx, second, key.ID, fleet.KeyUpdate{Disabled: ptr(false), Name: ptr("new")}); err != nil || got.Name != "new" {
		t.Fatal(got.Name, err)
	}
	if _, err := w.svc.Authenticate(ctx, text); err != nil {
		t.Error(err)
	}
	w.pass(time.Hour)
	_, err = w.svc.Authenticate(ctx, text)
	refused(t, err, fleet.CodeUnauthorized, "the key has ended") // only its holder hears so
}

func TestUpdateKeyRefusals(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	key, _, err := w.svc.CreateAccountKey(ctx, acme, fleet.KeyRequest{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	self := member(acme)
	self.Key = key.ID
	_, err = w.svc.UpdateKey(ctx, self, key.ID, fleet.KeyUpdate{Disabled: ptr(true)})
	refused(t, err, fleet.CodeNotAllowed, "itself")
	if got, err := w.svc.UpdateKey(ctx, self, key.ID, fleet.KeyUpdate{Name: ptr("n")}); err != nil || got.Disabled {
		t.Errorf("renaming itself: %v %v", got.Disabled, err)
	}
	_, err = w.svc.UpdateKey(ctx, member(other), key.ID, fleet.KeyUpdate{Name: ptr("n")})
	refused(t, err, fleet.CodeNotFound, "key")
	_, err = w.svc.Key(ctx, member(other), key.ID)
	refused(t, err, fleet.CodeNotFound, "key")
	if got, err := w.svc.Key(ctx, self, key.ID); err != nil || got.Name != "n" {
		t.Errorf("%s %v", got.Name, err)
	}
	refused(t, w.svc.DeleteKey(ctx, member(other), key.ID), fleet.CodeNotFound, "key")
}

func TestKeyUse(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	key, text, err := w.svc.CreateAccountKey(ctx, acme, fleet.KeyRequest{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	recorded := func() time.Time {
		t.Helper()
		got, err := w.svc.Key(ctx, member(acme), key.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got.LastUsedAt
	}
	use := func() time.Time {
		t.Helper()
		if _, err := w.svc.Authenticate(ctx, text); err != nil {
			t.Fatal(err)
		}
		return w.clock()
	}
	flush := func() {
		t.Helper()
		if err := w.svc.FlushKeyUse(ctx); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	if !recorded().IsZero() {
		t.Error("a key that was never used has a last use")
	}
	first := use()
	if !recorded().IsZero() {
		t.Error("a use was recorded at once")
	}
	flush()
	if !recorded().Equal(first) {
		t.Errorf("recorded %v, want %v", recorded(), first)
	}
	w.pass(59 * time.Second)
	use()
	flush()
	if !recorded().Equal(first) {
		t.Error("a use within a minute of the recorded one was recorded")
	}
	w.pass(time.Second)
	second := use()
	entries := w.index
	flush()
	flush()
	if !recorded().Equal(second) || w.index != entries+1 {
		t.Errorf("recorded %v in %d entries, want %v in 1", recorded(), w.index-entries, second)
	}
	w.pass(2 * time.Minute)
	flush()
	if len(w.svc.uses.last) != 0 {
		t.Error("a key that is not used is not forgotten")
	}
}

func TestRunRecordsKeyUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		key, text, err := w.svc.CreateAccountKey(t.Context(), acme, fleet.KeyRequest{Name: "k"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.svc.Authenticate(t.Context(), text); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.svc.Run(ctx) }()
		time.Sleep(keyUseEvery + time.Second)
		synctest.Wait()
		var got fleet.Key
		w.view(func(v *state.View) { got, _ = v.Key(key.ID) })
		if !got.LastUsedAt.Equal(begin()) {
			t.Errorf("after a minute the last use is %v", got.LastUsedAt)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
