package fleet

import "time"

// GatewayID identifies a gateway. It is never used again after the gateway was removed.
type GatewayID string

// Gateway is the record of a process that carries requests to pods and has no copy of the state.
type Gateway struct {
	ID         GatewayID    `cbor:"1,keyasint"`
	Name       string       `cbor:"2,keyasint"`           // for people
	Address    string       `cbor:"3,keyasint"`           // host:port at which hosts reach it
	DataCenter DataCenterID `cbor:"4,keyasint,omitempty"` // whose hosts it reaches; empty: all hosts
	JoinedAt   time.Time    `cbor:"5,keyasint"`
	Draining   time.Time    `cbor:"6,keyasint,omitzero"` // since when it takes no new requests; zero: it takes them
}

// GatewayView is a gateway's record with what it said last to the leader.
type GatewayView struct {
	Gateway
	Heard       time.Time // when it did; zero: not since this scheduler leads
	Connected   bool      // it was heard within the last seconds
	Open        int       // requests under way, WebSockets among them
	Hosts       int       // that have a data connection with it
	Version     string
	Certificate NodeCertificate
}
