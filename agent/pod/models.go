package pod

import (
	"context"
	"errors"
	"path"
	"time"

	"gantry/fleet"
)

// tokenVariable is that of the environment whose value shows a hub who wants a model.
const tokenVariable = "HF_TOKEN"

// getModels gets the models of the order before its container is made.
func (m *machine) getModels(ctx context.Context, want Assignment) error {
	if m.Models == nil {
		return &Error{Class: Fatal, Sentence: "the host keeps no models (--model-cache-size is 0)"}
	}
	ctx, cancel := context.WithDeadline(ctx, m.since.Add(startLimit))
	defer cancel()
	begun := time.Now()
	m.Logs.System(m.id, "get models")
	order := ModelOrder{Hub: want.ModelHub, Models: want.Models, Token: fleet.Secret(want.Env[tokenVariable])}
	got, err := m.Models.Get(ctx, m.id, order, func(model string, done, total int64) {
		if done > 0 || m.trouble == "" {
			m.Reports.Activity(m.id, "fetching model "+model, done, total)
		}
	})
	var e *Error
	if errors.As(err, &e) {
		m.Logs.System(m.id, "error getting models: "+e.Sentence)
		if e.Class == Retry && ctx.Err() == nil {
			m.wait(want, begun)
		}
	}
	if err != nil {
		return err
	}
	m.models, m.modelsFor = got, want.Incarnation
	m.mark(fleet.StepPulled) // as if they were a part of the image
	return nil
}

// modelMounts are the places of models in a container: each in a cache of the hub's clients below the places of a worker's network
// volume, whose other folders stay as they are.
func modelMounts(models []Model) (out []Mount) {
	for _, model := range models {
		for _, at := range []string{fleet.WorkerVolumePath, fleet.OwnWorkerVolumePath} {
			out = append(out, Mount{Source: model.Dir, Target: path.Join(at, fleet.ModelCachePath, model.Folder), ReadOnly: true})
		}
	}
	return out
}
