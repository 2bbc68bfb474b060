package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// The type numbers of commands about gateways; see numbers.go.
const (
	numJoinGateway uint64 = 92 + iota
	numDrainGateway
	numRemoveGateway
)

func (JoinGateway) number() uint64   { return numJoinGateway }
func (DrainGateway) number() uint64  { return numDrainGateway }
func (RemoveGateway) number() uint64 { return numRemoveGateway }

// maxGateways bounds the data connections that each host keeps.
const maxGateways = 64

// JoinGateway burns a gateway's join token and creates the gateway. Of Gateway the proposer sets ID, Name, Address and JoinedAt; the data
// center is the token's. Value: fleet.Gateway. Errors: unauthorized (token unknown, expired, wrong or another role's), exists, invalid,
// rule (there are too many gateways).
type JoinGateway struct {
	Token   fleet.TokenID `cbor:"1,keyasint"`
	Hash    []byte        `cbor:"2,keyasint"` // of the token's secret
	Gateway fleet.Gateway `cbor:"3,keyasint"`
	At      time.Time     `cbor:"4,keyasint"`
	Request []byte        `cbor:"5,keyasint,omitempty"` // as JoinHost's
}

// DrainGateway has a gateway take no new requests, or take them again. Value: fleet.Gateway. Errors: not_found.
type DrainGateway struct {
	ID       fleet.GatewayID `cbor:"1,keyasint"`
	Draining bool            `cbor:"2,keyasint,omitempty"`
	At       time.Time       `cbor:"3,keyasint"`
}

// RemoveGateway takes a gateway out for ever: a certificate without a record is refused. Errors: not_found.
type RemoveGateway struct {
	ID fleet.GatewayID `cbor:"1,keyasint"`
}

func (c JoinGateway) apply(t *txn) (any, error) {
	token, err := t.useToken(c.Token, fleet.TokenGateway, func(k *fleet.JoinToken) bool {
		return !expired(k, c.At) && sameHash(k.Hash, c.Hash)
	})
	in := c.Gateway
	if err == nil {
		err = cmp.Or(checkID("$.id", string(in.ID)), checkID("$.address", in.Address))
	}
	switch {
	case err != nil:
		return nil, err
	case len(in.Name) > maxID:
		return nil, fleet.Invalid("$.name", "must have at most 256 bytes")
	case t.base.gateways.Get(t.Txn, in.ID) != nil:
		return nil, exists("there is a gateway with this id")
	case t.base.gateways.Count(t.Txn, table.All[fleet.Gateway]) >= maxGateways:
		return nil, fleet.BreaksRule("there may be at most %d gateways; remove those that are gone", maxGateways)
	}
	for _, id := range t.base.gateways.Keys(t.Txn, 0, table.All[fleet.Gateway]) {
		if t.base.gateways.Get(t.Txn, id).Address == in.Address {
			return nil, exists("the gateway " + string(id) + " has this address: remove it if it is gone")
		}
	}
	if err := t.burn(token, c.Request, string(in.ID)); err != nil {
		return nil, err
	}
	return t.putGateway(fleet.Gateway{ID: in.ID, Name: in.Name, Address: in.Address, DataCenter: token.DataCenter, JoinedAt: in.JoinedAt}), nil
}

func (t *txn) putGateway(g fleet.Gateway) fleet.Gateway {
	t.base.gateways.Put(t.Txn, g.ID, &g)
	t.Note(KindGateway, string(g.ID))
	return g
}

func (c DrainGateway) apply(t *txn) (any, error) {
	old := t.base.gateways.Get(t.Txn, c.ID)
	switch {
	case old == nil:
		return nil, fleet.NotFound("gateway")
	case !old.Draining.IsZero() == c.Draining:
		return *old, nil
	}
	g := *old
	if g.Draining = (time.Time{}); c.Draining {
		g.Draining = c.At
	}
	return t.putGateway(g), nil
}

func (c RemoveGateway) apply(t *txn) (any, error) {
	if t.base.gateways.Get(t.Txn, c.ID) == nil {
		return nil, fleet.NotFound("gateway")
	}
	t.base.gateways.Drop(t.Txn, c.ID)
	t.Note(KindGateway, string(c.ID))
	return nil, nil
}

// Gateway returns a gateway.
func (v *View) Gateway(id fleet.GatewayID) (fleet.Gateway, bool) {
	if g := v.tb.gateways.Rows[id]; g != nil {
		return *g, true
	}
	return fleet.Gateway{}, false
}

// Gateways returns the gateways by id.
func (v *View) Gateways() []fleet.Gateway {
	out := make([]fleet.Gateway, 0, len(v.tb.gateways.Rows))
	for _, id := range sortedKeys(v.tb.gateways.Rows) {
		out = append(out, *v.tb.gateways.Rows[id])
	}
	return out
}

// Routed returns the pods that are not terminated, and the endpoints. They are the state's own and must not be changed; they stay as they
// are after the view.
func (v *View) Routed() (pods []*fleet.Pod, endpoints []*fleet.Endpoint) {
	for _, p := range v.tb.pods.Rows {
		if p.Status != fleet.StatusTerminated {
			pods = append(pods, p)
		}
	}
	return pods, slices.Collect(maps.Values(v.tb.endpoints.Rows))
}
