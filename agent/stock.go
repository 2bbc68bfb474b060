package agent

import (
	"context"
	"slices"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
)

// lookEvery is how often the host looks whether it has become another: its images, its notices.
const lookEvery = 10 * time.Second

// watchHost tells the scheduler of what changes of the host while a session stands.
func (d *daemon) watchHost(ctx context.Context) {
	var gpus <-chan struct{}
	if d.Accelerators != nil {
		gpus = d.Accelerators.Changed()
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-gpus:
			d.pods.Poke() // a GPU may be free, or healthy, again
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		d.stir()
	}
}

// gpus returns the host's GPUs, pretended ones first.
func (d *daemon) gpus() []fleet.GPU {
	if d.Accelerators == nil {
		return d.stock.GPUs
	}
	return slices.Concat(d.stock.GPUs, d.Accelerators.Found().GPUs)
}

// gpuName returns the type of a GPU of this host; "" when there is none.
func (d *daemon) gpuName(uuid string) string {
	for _, g := range d.gpus() {
		if g.UUID == uuid {
			return g.Type
		}
	}
	return ""
}

// podGPUs is what pods are given of the host's GPUs.
func (d *daemon) podGPUs() pod.GPUs {
	if d.Accelerators != nil {
		return d.Accelerators
	}
	return pretended{d.stock.GPUs}
}

// pretended are the GPUs of a host that offers none of its own. A pod that was bound to another one waits: without
// it, it would run and fail.
type pretended struct{ gpus []fleet.GPU }

// Devices returns none for pretended GPUs, and an error of class Retry for others.
func (p pretended) Devices(_ context.Context, uuids []string) (pod.Devices, error) {
	for _, uuid := range uuids {
		if !slices.ContainsFunc(p.gpus, func(g fleet.GPU) bool { return g.UUID == uuid }) {
			return pod.Devices{}, &pod.Error{Class: pod.Retry, Sentence: "the pod's host does not offer its GPU any more"}
		}
	}
	return pod.Devices{}, nil
}

// Busy returns "": nobody holds what is pretended.
func (p pretended) Busy(context.Context, []string) (string, error) { return "", nil }
