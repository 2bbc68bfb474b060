package inventory

import (
	"context"
	"slices"

	"gantry/agent/pod"
	"gantry/fleet"
)

// Pretended are the GPUs of a host that offers none of its own. A pod that was bound to another one waits: without
// it, it would run and fail.
type Pretended struct{ GPUs []fleet.GPU }

// Devices returns none for pretended GPUs, and an error of class Retry for others.
func (p Pretended) Devices(_ context.Context, uuids []string) (pod.Devices, error) {
	for _, uuid := range uuids {
		if !slices.ContainsFunc(p.GPUs, func(g fleet.GPU) bool { return g.UUID == uuid }) {
			return pod.Devices{}, &pod.Error{Class: pod.Retry, Sentence: "the pod's host does not offer its GPU any more"}
		}
	}
	return pod.Devices{}, nil
}

// Busy returns "": nobody holds what is pretended.
func (p Pretended) Busy(context.Context, []string) (string, error) { return "", nil }
