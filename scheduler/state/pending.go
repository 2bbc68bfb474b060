package state

import (
	"errors"

	"gantry/fleet"
)

// MeterID names an open meter.
type MeterID struct {
	Kind fleet.ChargeKind `cbor:"1,keyasint"`
	ID   string           `cbor:"2,keyasint"`
}

var errPending = errors.New("pending")

func (c AddCredit) apply(*txn) (any, error)       { return nil, errPending }
func (c SettleMeters) apply(*txn) (any, error)    { return nil, errPending }
func (c ExhaustAccounts) apply(*txn) (any, error) { return nil, errPending }
func (c PurgeUsage) apply(*txn) (any, error)      { return nil, errPending }
