package state

import (
	"strings"
	"testing"

	"gantry/fleet"
)

func gatewayToken() PutToken {
	return PutToken{At: at(0), Token: fleet.JoinToken{ID: "gt", Hash: []byte("hash of gt"), Role: fleet.TokenGateway, DataCenter: "dc-1", ExpiresAt: at(1000)}}
}

func joinGateway(id fleet.GatewayID) JoinGateway {
	return JoinGateway{Token: "gt", Hash: []byte("hash of gt"), At: at(1), Gateway: fleet.Gateway{
		ID: id, Name: "edge", Address: string(id) + ":8444", JoinedAt: at(1),
	}}
}

func TestAGatewayJoinsDrainsAndIsRemoved(t *testing.T) {
	w := newWorld(t).settle()
	w.must(gatewayToken())
	index := w.s.Index()
	got := w.must(joinGateway("g1")).(fleet.Gateway)
	if got.DataCenter != "dc-1" || got.Address != "g1:8444" || !got.Draining.IsZero() {
		t.Errorf("joined as %+v", got)
	}
	if evs, _, _ := w.s.Events(index); len(evs) != 1 || evs[0].Kind != KindGateway || evs[0].ID != "g1" {
		t.Errorf("events %v", evs)
	}
	w.refused(fleet.CodeUnauthorized, joinGateway("g2")) // the token is burnt
	if got := w.must(DrainGateway{ID: "g1", Draining: true, At: at(3)}).(fleet.Gateway); !got.Draining.Equal(at(3)) {
		t.Errorf("drains since %v", got.Draining)
	}
	if got := w.must(DrainGateway{ID: "g1", Draining: true, At: at(4)}).(fleet.Gateway); !got.Draining.Equal(at(3)) {
		t.Errorf("drains since %v", got.Draining)
	}
	if got := w.must(DrainGateway{ID: "g1", At: at(5)}).(fleet.Gateway); !got.Draining.IsZero() {
		t.Errorf("drains since %v", got.Draining)
	}
	w.must(RemoveGateway{ID: "g1"})
	w.refused(fleet.CodeNotFound, RemoveGateway{ID: "g1"})
	w.refused(fleet.CodeNotFound, DrainGateway{ID: "g1", Draining: true, At: at(6)})
	w.view(func(v *View) {
		if _, ok := v.Gateway("g1"); ok || len(v.Gateways()) != 0 {
			t.Error("it is still there")
		}
	})
	w.check()
}

func TestWhichGatewaysAreRefused(t *testing.T) {
	w := newWorld(t).settle()
	w.must(gatewayToken())
	for name, change := range map[string]func(*JoinGateway){
		"another secret": func(c *JoinGateway) { c.Hash = []byte("another") }, "too late": func(c *JoinGateway) { c.At = at(1001) },
	} {
		c := joinGateway("g1")
		change(&c)
		if err := w.do(c).Err; fleet.CodeOf(err) != fleet.CodeUnauthorized {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*JoinGateway){
		"no id": func(c *JoinGateway) { c.Gateway.ID = "" }, "no address": func(c *JoinGateway) { c.Gateway.Address = "" },
		"a long name": func(c *JoinGateway) { c.Gateway.Name = strings.Repeat("x", 257) }, "half a request": func(c *JoinGateway) { c.Request = []byte{1} },
	} {
		c := joinGateway("g1")
		change(&c)
		if err := w.do(c).Err; fleet.CodeOf(err) != fleet.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	host := gatewayToken()
	host.Token.ID, host.Token.Role = "ht", fleet.TokenHost
	w.must(host)
	asHost := joinGateway("g1")
	asHost.Token = "ht"
	w.refused(fleet.CodeUnauthorized, asHost)
	unknown := gatewayToken()
	unknown.Token.DataCenter = "nowhere"
	w.refused(fleet.CodeNotFound, unknown)

	w.must(joinGateway("g1"))
	w.must(gatewayToken())
	same := joinGateway("g2")
	same.Gateway.Address = "g1:8444"
	w.refused(fleet.CodeExists, same)
	w.refused(fleet.CodeExists, joinGateway("g1"))
	for i := 1; i < maxGateways; i++ {
		w.must(joinGateway(fleet.GatewayID("h" + strings.Repeat("x", i))))
		w.must(gatewayToken())
	}
	w.refused(fleet.CodeConflictRule, joinGateway("g3"))
}
