package rest_test

import (
	"context"
	"errors"
	"testing"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// halfway is a service that loses its leadership in the middle of a change, or before it.
type halfway struct {
	rest.Service
	done bool
}

func (h halfway) CreateAccount(ctx context.Context, _ string) (fleet.Account, error) {
	if h.done {
		fleet.Touch(ctx)
	}
	return fleet.Account{}, &fleet.Error{Code: fleet.CodeUnavailable, Msg: "no leader", NothingDone: true, Err: errors.New("cause")}
}

func TestNothingDoneIsSaidOnlyWhenItIsSure(t *testing.T) {
	for _, done := range []bool{false, true} {
		s := newSite(t, func(cfg *rest.Config) { cfg.Service = halfway{cfg.Service, done} }, rest.Limits{})
		got := s.ask(t, "POST", "/admin/v1/accounts", plane.Operator, `{"name":"a"}`)
		if said := got.header.Get("X-Gantry-Nothing-Done") == "1"; got.status != 503 || said == done || got.header.Get("Retry-After") != "1" {
			t.Errorf("done %v: %d %v", done, got.status, got.header)
		}
	}
	s := newSite(t, nil, rest.Limits{}) // a write that was committed, and then a read without a leader
	ctx, attempt := fleet.WithAttempt(t.Context())
	if _, err := s.plane.CreateAccount(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	s.plane.SetDown(true)
	if _, err := s.plane.Hosts(ctx); !fleet.NothingDone(err) || attempt.Untouched(err) {
		t.Errorf("got %v", err)
	}
}
