package scheduler

import (
	"context"
	"math"
	"slices"
	"testing"

	"gantry/fleet"
)

func TestAccounts(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	made, err := w.svc.CreateAccount(ctx, "new")
	if err != nil || !made.CreatedAt.Equal(w.clock()) {
		t.Fatal(made, err)
	}
	if list, err := w.svc.Accounts(ctx); err != nil || len(list) != 3 {
		t.Errorf("%d accounts, %v", len(list), err)
	}
	quotas := &fleet.Quotas{Minute: 10, Hour: 0, Day: 100}
	view, err := w.svc.UpdateAccount(ctx, made.ID, fleet.AccountUpdate{Name: ptr("renamed"), Prepaid: ptr(true), Quotas: quotas})
	if err != nil || view.Account.Name != "renamed" || !view.Account.Prepaid || *view.Account.Quotas != *quotas {
		t.Errorf("%+v %v", view, err)
	}
	view, err = w.svc.UpdateAccount(ctx, made.ID, fleet.AccountUpdate{Quotas: &fleet.Quotas{}})
	if err != nil || view.Account.Quotas != nil || view.Account.Name != "renamed" {
		t.Errorf("%+v %v", view, err)
	}
	for path, q := range map[string]fleet.Quotas{
		"$.quotas.minute": {Minute: -1},
		"$.quotas.hour":   {Minute: 10, Hour: 9},
		"$.quotas.day":    {Minute: 10, Day: 9},
	} {
		_, err := w.svc.UpdateAccount(ctx, made.ID, fleet.AccountUpdate{Quotas: &q})
		refused(t, err, fleet.CodeInvalid, path)
	}
	_, err = w.svc.UpdateAccount(ctx, "none", fleet.AccountUpdate{})
	refused(t, err, fleet.CodeNotFound, "account")
	_, err = w.svc.AccountByID(ctx, "none")
	refused(t, err, fleet.CodeNotFound, "account")
	if own, err := w.svc.Account(ctx, member(acme)); err != nil || own.Account.ID != acme {
		t.Errorf("%+v %v", own, err)
	}
	for _, amount := range []fleet.Money{0, maxCredit + 1, -maxCredit - 1, math.MinInt64} {
		_, _, err := w.svc.AddCredit(ctx, made.ID, amount, nil)
		refused(t, err, fleet.CodeInvalid, "$.amount")
	}
}

func TestSSHKeys(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	if keys, err := w.svc.SSHKeys(ctx, member(acme)); err != nil || keys == nil || len(keys) != 0 {
		t.Errorf("%v %v", keys, err)
	}
	if err := w.svc.SetSSHKeys(ctx, member(acme), []string{"b", "a ", "b", ""}); err != nil {
		t.Fatal(err)
	}
	if keys, err := w.svc.SSHKeys(ctx, member(acme)); err != nil || !slices.Equal(keys, []string{"b", "a"}) {
		t.Errorf("%v %v", keys, err)
	}
	if keys, err := w.svc.SSHKeys(ctx, member(other)); err != nil || len(keys) != 0 {
		t.Errorf("another account has %v, %v", keys, err)
	}
	if err := w.svc.SetSSHKeys(ctx, member(acme), nil); err != nil {
		t.Fatal(err)
	}
	if keys, err := w.svc.SSHKeys(ctx, member(acme)); err != nil || len(keys) != 0 {
		t.Errorf("%v %v", keys, err)
	}
}
