package scheduler

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"time"

	"gantry/fleet"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
	"gantry/serverless/schema"
)

// holdTimeout is the most that passes between a hold of credit and the submit of its job; see workers.Workers.
const holdTimeout = time.Minute

// Models lists the public models by id.
func (s *Service) Models(ctx context.Context) (out []fleet.ModelView, err error) {
	err = s.read(ctx, func(v *state.View) error { out = v.Models(); return nil })
	return out, err
}

// Model returns a public model. Errors: not_found.
func (s *Service) Model(ctx context.Context, id fleet.ModelID) (out fleet.ModelView, err error) {
	err = s.read(ctx, func(v *state.View) error {
		var ok bool
		if out, ok = v.Model(id); !ok {
			return fleet.NotFound("public model")
		}
		return nil
	})
	return out, err
}

// PutModel creates or replaces a public model. Errors: invalid, exists (an endpoint has this id), not_found (its endpoint), rule.
func (s *Service) PutModel(ctx context.Context, m fleet.Model) (fleet.ModelView, error) {
	if len(m.Schema) > 0 {
		if _, err := schema.Compile(m.Schema); err != nil {
			return fleet.ModelView{}, fleet.Invalid("$.inputSchema", err.Error())
		}
	}
	m.CreatedAt = s.Now()
	made, err := propose[fleet.Model](ctx, s, state.PutModel{Model: m})
	if fleet.CodeOf(err) == fleet.CodeNotFound {
		return fleet.ModelView{}, missing("$.endpointId", "there is no such endpoint")
	}
	if err != nil {
		return fleet.ModelView{}, err
	}
	s.Log.Info("public model set", "model", string(made.ID), "endpoint", string(made.Endpoint), "account", string(made.Owner))
	return s.Model(ctx, made.ID)
}

// DeleteModel deletes a public model. Errors: not_found, in_use (jobs of it wait or run).
func (s *Service) DeleteModel(ctx context.Context, id fleet.ModelID) error {
	return s.operate(ctx, "public model deleted", "model", string(id), state.DeleteModel{ID: id})
}

// mayCall refuses a job whose input is not as the model's schema says, and has none take longer than the endpoint's jobs may.
// Errors: invalid, not_allowed (the model is closed).
func (s *Service) mayCall(m *fleet.ModelView, req *fleet.JobRequest, timeout int64) error {
	if m.Closed {
		return fleet.NotAllowed("this model takes no new requests")
	}
	if timeout > 0 && req.Execution > timeout {
		req.Execution = timeout
	}
	if len(m.Schema) == 0 {
		return nil
	}
	var body struct {
		Input json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(req.Body, &body); err != nil {
		return fleet.Invalid("$.input", "must be an object")
	}
	compiled, err := schema.Compile(m.Schema)
	if err != nil {
		return err // it was checked when it was put
	}
	if wrong := compiled.Check(body.Input); len(wrong) > 0 {
		return &fleet.Error{Code: fleet.CodeInvalid, Msg: "the input is not as the model's schema says", Details: wrong, NothingDone: true}
	}
	return nil
}

// held does something that makes a job wait, and holds the caller's credit for it before, if the job is one of a public model. A hold
// whose job was refused is released; one of which that is not known is released by the leader if there is no such job. Errors: those of
// HoldCredit and of do.
func (s *Service) held(
	ctx context.Context, t *target, job queue.ID, do func(context.Context, *queue.Sale) (jobs.Job, error),
) (jobs.Job, error) {
	if t.model == nil {
		return do(ctx, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, holdTimeout)
	defer cancel()
	hold, err := s.commit(ctx, state.HoldCredit{Hold: fleet.CreditHold{ID: rand.Text(), Account: t.who, Model: t.model.ID, Job: job, At: s.Now()}})
	if err != nil {
		return jobs.Job{}, err
	}
	made := hold.(fleet.CreditHold) //nolint:forcetypeassert // the command's value
	out, err := do(ctx, &queue.Sale{Account: t.who, Model: t.model.ID, Hold: made.ID, Price: made.Price})
	if err != nil && (fleet.NothingDone(err) || fleet.CodeOf(err) == fleet.CodeExists || fleet.CodeOf(err) == fleet.CodeNotAllowed) {
		_, _ = s.commit(context.WithoutCancel(ctx), state.SettleHolds{Holds: []state.SettledHold{{ID: made.ID}}, At: s.Now()}) // or the leader does
	}
	return out, err
}

// commit proposes a command that is no change by a user which the audit log tells.
func (s *Service) commit(ctx context.Context, cmd state.Command) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	results, err := s.Node.Propose(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return results[0].Value, results[0].Err
}
