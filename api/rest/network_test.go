package rest_test

import (
	"context"
	"net/http"
	"testing"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// slowCheck is a service whose checks of private networks go on until they are let go.
type slowCheck struct {
	rest.Service
	begun, letGo chan struct{}
}

func (h slowCheck) CheckNetwork(ctx context.Context, account fleet.AccountID) ([]fleet.Probe, error) {
	if account == plane.Research {
		h.begun <- struct{}{}
		<-h.letGo
	}
	return h.Service.CheckNetwork(ctx, account)
}

// TestOneCheckOfAnAccountAtATime begins a check while another one is under way: by the account, by an operator, and of
// another account.
func TestOneCheckOfAnAccountAtATime(t *testing.T) {
	h := slowCheck{begun: make(chan struct{}), letGo: make(chan struct{})}
	s := newSite(t, func(cfg *rest.Config) { h.Service, cfg.Service = cfg.Service, &h }, rest.Limits{})
	first := make(chan answer, 1)
	go func() { first <- s.ask(t, "POST", "/v2/network/check", plane.User, "") }() // ends with letGo
	<-h.begun
	for path, key := range map[string]string{
		"/v2/network/check": plane.User, "/admin/v1/accounts/" + string(plane.Research) + "/network-check": plane.Operator,
	} {
		got := s.ask(t, "POST", path, key, "")
		refused(t, got, http.StatusTooManyRequests)
		if got.header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After is %q", got.header.Get("Retry-After"))
		}
	}
	if got := s.ask(t, "POST", "/v2/network/check", plane.Other, ""); got.status != http.StatusOK {
		t.Errorf("of another account: %d", got.status)
	}
	close(h.letGo)
	if got := <-first; got.status != http.StatusOK {
		t.Errorf("the first: %d %s", got.status, got.body)
	}
	go func() { <-h.begun }() // ends with the next request
	if got := s.ask(t, "POST", "/v2/network/check", plane.User, ""); got.status != http.StatusOK {
		t.Errorf("after it: %d %s", got.status, got.body)
	}
}
