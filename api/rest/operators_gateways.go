package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// GatewayService shows and changes gateways.
type GatewayService interface {
	ListGateways(ctx context.Context) ([]fleet.GatewayView, error)
	// CreateGatewayToken returns the text of a one-use token for a new gateway; dc may be empty.
	CreateGatewayToken(ctx context.Context, dc fleet.DataCenterID, ttl time.Duration) (fleet.Secret, time.Time, error)
	DrainGateway(ctx context.Context, id fleet.GatewayID, draining bool) (fleet.GatewayView, error)
	RemoveGateway(ctx context.Context, id fleet.GatewayID) error
}

func (a *API) registerGateways() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	id, example := pathParam("Gateway identifier.", "g5t8w2n6k9r3v7"), exampleGateway()
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/gateways", id: "listGateways", tag: "Operators", summary: "List gateways",
		text: "Lists the gateways, with what they told the leader.", scope: read, limit: limit.PerAccount, status: http.StatusOK,
		out: admin.GatewayList{Gateways: []admin.Gateway{example}},
	}, func(ctx context.Context, svc GatewayService, _ *call, _ *none) (*admin.GatewayList, error) {
		all, err := showAll(gatewayRecord)(svc.ListGateways(ctx))
		return &admin.GatewayList{Gateways: all}, err
	})
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/gateways/tokens", id: "createGatewayToken", tag: "Operators", summary: "Make a token for a gateway",
		text:  "Makes a token with which one gateway may join, once. 404: there is no such data center.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, errors: []int{http.StatusNotFound},
		in: admin.CreateGatewayTokenRequest{DataCenterID: "EU-RO-1", TTLSeconds: 3600}, out: admin.JoinToken{Token: "one-use-text", ExpiresAt: exampleTime(60)},
	}, createGatewayToken)
	drain := func(word, operation, summary, text string, draining bool) {
		on(a, route{
			method: http.MethodPost, path: "/admin/v1/gateways/{id}/" + word, id: operation, tag: "Operators", summary: summary,
			text: text + " 404: there is no such gateway.", scope: write, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{id}, out: example,
		}, byID("gateway", func(ctx context.Context, svc GatewayService, id fleet.GatewayID, _ *call, _ *none) (*admin.Gateway, error) {
			return show(gatewayRecord)(svc.DrainGateway(ctx, id, draining))
		}))
	}
	drain("drain", "drainGateway", "Drain a gateway", "The gateway takes no new requests; those under way end, or are ended after its limit.", true)
	drain("undrain", "undrainGateway", "Let a gateway take requests again", "Ends a drain.", false)
	on(a, route{
		method: http.MethodDelete, path: "/admin/v1/gateways/{id}", id: "removeGateway", tag: "Operators", summary: "Remove a gateway for good",
		text:  "Takes a gateway out for ever: its certificate is refused from now on, and what runs through it ends. 404: there is no such gateway.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{id},
	}, byID("gateway", func(ctx context.Context, svc GatewayService, id fleet.GatewayID, _ *call, _ *none) (*none, error) {
		return nil, svc.RemoveGateway(ctx, id)
	}))
}

func createGatewayToken(ctx context.Context, svc GatewayService, _ *call, in *admin.CreateGatewayTokenRequest) (*admin.JoinToken, error) {
	ttl := defaultTokenTTL
	if in.TTLSeconds > 0 {
		ttl = time.Duration(in.TTLSeconds) * time.Second
	}
	text, expires, err := svc.CreateGatewayToken(ctx, fleet.DataCenterID(in.DataCenterID), ttl)
	if err != nil {
		return nil, err
	}
	return &admin.JoinToken{Token: v2.Hidden(text), ExpiresAt: v2.At(expires)}, nil
}

func gatewayRecord(g fleet.GatewayView) admin.Gateway {
	state := "connected"
	switch {
	case !g.Connected:
		state = "silent"
	case !g.Draining.IsZero() && g.Open > 0:
		state = "draining"
	case !g.Draining.IsZero():
		state = "drained"
	}
	return admin.Gateway{
		ID: string(g.ID), Name: g.Name, Address: g.Address, DataCenterID: v2.Text(g.DataCenter), State: state, Requests: g.Open, Hosts: g.Hosts,
		Version: v2.Text(g.Version), JoinedAt: v2.At(g.JoinedAt), DrainingAt: v2.AtOrNull(g.Draining), HeardAt: v2.AtOrNull(g.Heard),
	}
}

func exampleGateway() admin.Gateway {
	return gatewayRecord(fleet.GatewayView{
		Gateway: fleet.Gateway{ID: "g5t8w2n6k9r3v7", Name: "edge-1", Address: "10.0.0.21:8444", DataCenter: "EU-RO-1", JoinedAt: exampleTime(0).Time},
		Heard:   exampleTime(60).Time, Connected: true, Open: 812, Hosts: 40, Version: "1.2.0",
	})
}
