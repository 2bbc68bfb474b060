package state

import (
	"time"

	"gantry/fleet"
)

// UsageHour is what was charged for one resource in one hour.
type UsageHour struct {
	Hour    time.Time // its beginning, UTC
	Kind    fleet.ChargeKind
	ID      string
	Amounts fleet.Amounts
}

// Balance returns what is left of an account's credit at now.
func (v *View) Balance(fleet.AccountID, time.Time) fleet.Money { return 0 }

// HourlyRate returns what an account spends per hour now, storage included.
func (v *View) HourlyRate(fleet.AccountID) fleet.Money { return 0 }

// PodRate returns what a pod of a specification costs per hour while it runs: compute and its disks.
func (v *View) PodRate(_ fleet.PodSpec, compute fleet.Money) fleet.Money { return compute }

// Usage returns what an account was charged in the hours from from to to, running charges up to now
// included. Kind and id select; empty ones do not. It is ordered by hour, kind and id.
func (v *View) Usage(fleet.AccountID, fleet.ChargeKind, string, time.Time, time.Time, time.Time) ([]UsageHour, error) {
	return nil, nil
}
