package state

import (
	"time"

	"gantry/fleet"
)

// PutPlacement replaces the setting of where pods go. Pods keep what they have. Value: fleet.Placement. Errors: invalid.
type PutPlacement struct {
	Placement fleet.Placement `cbor:"1,keyasint"`
}

func (c PutPlacement) apply(t *txn) (any, error) {
	if p := c.Placement.KeepPercent; p < 0 || p > 100 {
		return nil, fleet.Invalid("$.keepPercent", "must be 0 to 100")
	}
	if n := c.Placement.NoticeSeconds; n < 0 || time.Duration(n)*time.Second > fleet.MaxNotice {
		return nil, fleet.Invalid("$.noticeSeconds", "must be 0 to 600")
	}
	placement := c.Placement
	t.base.placement.Put(t.Txn, onlyKey, &placement)
	return placement, nil
}

// Placement returns the setting of where pods go.
func (v *View) Placement() fleet.Placement { return placementOf(v.tb.placement.Rows[onlyKey]) }

// placementOf returns a row, or what holds where there is none.
func placementOf(row *fleet.Placement) fleet.Placement {
	if row == nil {
		return fleet.DefaultPlacement()
	}
	return *row
}
