package plane

import (
	"gantry/fleet"
	"gantry/scheduler/state"
)

// CallModel plays a call of a public model by the account of a key: its credit is held under an id.
func (p *Plane) CallModel(key string, model fleet.ModelID, hold string) {
	p.t.Helper()
	p.Do(state.HoldCredit{Hold: fleet.CreditHold{ID: hold, Account: p.Who(key).Account, Model: model, At: p.Now()}})
}

// SettleCall plays the end of a call that completed, at a cost.
func (p *Plane) SettleCall(hold string, cost fleet.Money) {
	p.t.Helper()
	p.Do(state.SettleHolds{Holds: []state.SettledHold{{ID: hold, Cost: cost}}, At: p.Now()})
}

// KeepFile plays a file of a result that is put into the object storage for the account of a key.
func (p *Plane) KeepFile(key, id string, bytes int64) {
	p.t.Helper()
	p.Do(state.KeepFiles{Files: []fleet.ResultFile{{ID: id, Account: p.Who(key).Account, Bytes: bytes, Expires: p.Now().Add(fleet.FileLife)}}})
}
