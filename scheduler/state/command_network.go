package state

import "gantry/fleet"

// PutNetworkSettings replaces the settings of private networks. Those of addresses concern what is made from then on: overlays
// keep their ranges and VNIs, hosts their addresses. Value: fleet.NetworkSettings. Errors: invalid, rule (a host has an address
// that is not of the tunnel's range, or an overlay lies in it).
type PutNetworkSettings struct {
	Settings fleet.NetworkSettings `cbor:"1,keyasint"`
}
