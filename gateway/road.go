package gateway

import (
	"net/http"

	"gantry/api/balance"
	"gantry/api/proxy"
	"gantry/fleet"
	"gantry/scheduler/routes"
)

// Road tells which requests flow through this process, a gateway or a scheduler.
type Road struct {
	Domain    string // of the proxy
	Store     routes.Store
	Connected func(fleet.HostID) bool // whether a host has a data connection here
	Balance   *balance.API
}

// Here reports whether a request to a pod's port or an endpoint that balances is served here, and whether it is one. Where no leader is
// known (led) it is served as well as that goes: nobody else could be asked.
func (o *Road) Here(r *http.Request, led bool) (here, ours bool) {
	if e, _, named, ok := o.Balance.Find(r); named || ok { // one that is not known here may be known to the leader
		return !led || ok && routes.Serves(o.Store, o.Connected, e.ID), true
	}
	if target, toPod, ok := proxy.ParseHost(r.Host, o.Domain); toPod {
		return !ok || !led || routes.Flows(o.Store, o.Connected, target.Pod), true
	}
	return false, false
}
