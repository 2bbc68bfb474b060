package state

import (
	"slices"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// The type numbers of commands about public models; see numbers.go.
const (
	numPutModel uint64 = 108 + iota
	numDeleteModel
	numHoldCredit
	numSettleHolds
)

func (PutModel) number() uint64    { return numPutModel }
func (DeleteModel) number() uint64 { return numDeleteModel }

const maxModels = 1000

// PutModel creates or replaces a public model; the time of its creation stays. Jobs that were submitted before cost what they did
// then. Value: fleet.Model. Errors: invalid, exists (an endpoint has this id), not_found (its endpoint), rule (that has no queue, or
// there are too many models).
type PutModel struct {
	Model fleet.Model `cbor:"1,keyasint"`
}

// DeleteModel deletes a public model. Errors: not_found, in_use (jobs of it wait or run).
type DeleteModel struct {
	ID fleet.ModelID `cbor:"1,keyasint"`
}

func (c PutModel) apply(t *txn) (any, error) {
	in := cloneModel(&c.Model)
	if err := checkModel(&in); err != nil {
		return nil, err
	}
	endpoint, old := t.base.endpoints.Get(t.Txn, in.Endpoint), t.base.models.Get(t.Txn, in.ID)
	switch {
	case t.base.endpoints.Get(t.Txn, fleet.EndpointID(in.ID)) != nil:
		return nil, exists("the id is that of an endpoint")
	case endpoint == nil:
		return nil, fleet.NotFound("endpoint")
	case endpoint.Spec.Type != fleet.EndpointQueue:
		return nil, fleet.BreaksRule("a public model needs an endpoint of the type %s", fleet.EndpointQueue)
	case old == nil && t.base.models.Count(t.Txn, table.All[fleet.Model]) >= maxModels:
		return nil, fleet.BreaksRule("there may be at most %d public models", maxModels)
	case old != nil:
		in.CreatedAt = old.CreatedAt
	}
	in.Owner = endpoint.Account
	t.base.models.Put(t.Txn, in.ID, &in)
	t.Note(KindAccount, string(in.Owner))
	return cloneModel(&in), nil
}

// checkModel refuses values out of their bounds.
func checkModel(m *fleet.Model) error {
	p := m.Price
	switch {
	case !fleet.ValidModelID(string(m.ID)):
		return fleet.Invalid("$.id", fleet.ModelIDRule)
	case len(m.Description) > fleet.MaxModelText:
		return fleet.Invalid("$.description", "must have at most 1000 bytes")
	case len(m.Schema) > fleet.MaxModelSchema:
		return fleet.Invalid("$.inputSchema", "must have at most 65536 bytes")
	case p.Request < 0 || p.Request > fleet.MaxModelPrice:
		return fleet.Invalid("$.price.request", "must be 0 to 1000 USD")
	case p.Unit < 0 || p.Unit > fleet.MaxModelPrice:
		return fleet.Invalid("$.price.unit", "must be 0 to 1000 USD")
	case p.MaxUnits < 0 || p.MaxUnits > fleet.MaxModelUnits:
		return fleet.Invalid("$.price.maxUnits", "must be 0 to 1000000")
	case (p.Counted == "") != (p.Unit == 0) || (p.Counted == "") != (p.MaxUnits == 0) || len(p.Counted) > maxID:
		return fleet.Invalid("$.price.counted", "goes with unit and maxUnits above 0, and has at most 256 bytes")
	case m.Limits.Jobs < 1 || m.Limits.Jobs > fleet.MaxModelJobs:
		return fleet.Invalid("$.limits.jobs", "must be 1 to 1000")
	}
	return nil
}

func cloneModel(m *fleet.Model) fleet.Model {
	out := *m
	out.Schema = slices.Clone(m.Schema)
	return out
}

func (c DeleteModel) apply(t *txn) (any, error) {
	old := t.base.models.Get(t.Txn, c.ID)
	if old == nil {
		return nil, fleet.NotFound("public model")
	}
	if err := inUse("the public model", uses{n: t.base.holdsFor.Count(t.Txn, c.ID), thing: "job"}); err != nil {
		return nil, err
	}
	t.base.models.Drop(t.Txn, c.ID)
	t.Note(KindAccount, string(old.Owner))
	return nil, nil
}

// modelsOn finds the public models behind which an endpoint is.
func (t *txn) modelsOn(id fleet.EndpointID) uses {
	out := uses{thing: "public model"}
	for _, model := range t.base.models.Keys(t.Txn, 0, func(m *fleet.Model) bool { return m.Endpoint == id }) {
		out.add(string(model), "")
	}
	return out
}

// Model returns a public model, with the number of its jobs that wait or run.
func (v *View) Model(id fleet.ModelID) (fleet.ModelView, bool) {
	if m := v.tb.models.Rows[id]; m != nil {
		return fleet.ModelView{Model: cloneModel(m), Jobs: len(v.tb.holdsFor.Rows[id])}, true
	}
	return fleet.ModelView{}, false
}

// Models returns the public models by id.
func (v *View) Models() []fleet.ModelView {
	out := make([]fleet.ModelView, 0, len(v.tb.models.Rows))
	for _, id := range sortedKeys(v.tb.models.Rows) {
		one, _ := v.Model(id)
		out = append(out, one)
	}
	return out
}
