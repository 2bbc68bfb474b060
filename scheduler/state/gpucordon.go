package state

import (
	"cmp"
	"slices"
	"time"
	"unicode/utf8"

	"gantry/fleet"
)

// CordonGPU takes a GPU of a host out of service: it is bound to no new pod. Pods that have it keep it. The word stays
// over sessions and reboots, and when the GPU is gone. Value: fleet.Host. Errors: not_found (host, GPU), invalid,
// not_allowed (the host is gone).
type CordonGPU struct {
	Host   fleet.HostID `cbor:"1,keyasint"`
	GPU    string       `cbor:"2,keyasint"` // UUID
	Reason string       `cbor:"3,keyasint"`
	At     time.Time    `cbor:"4,keyasint"`
}

// OpenGPU ends a CordonGPU. With Forget the GPU may be gone. Value: fleet.Host. Errors: not_found (host, or no such GPU
// is cordoned), rule (the GPU is gone, without Forget), not_allowed (the host is gone).
type OpenGPU struct {
	Host   fleet.HostID `cbor:"1,keyasint"`
	GPU    string       `cbor:"2,keyasint"` // UUID
	Forget bool         `cbor:"3,keyasint,omitempty"`
}

// maxCordonReason is the most bytes of the reason of a cordon.
const maxCordonReason = 1 << 10

func (c CordonGPU) apply(t *txn) (any, error) {
	host, err := t.known(c.Host)
	if err != nil {
		return nil, err
	}
	i, cordoned := findCordon(&host, c.GPU)
	gpu := gpuOrParent(&host, c.GPU)
	switch {
	case gpu == nil && !cordoned:
		return nil, fleet.NotFound("GPU")
	case c.Reason == "" || len(c.Reason) > maxCordonReason || !utf8.ValidString(c.Reason):
		return nil, fleet.Invalid("$.reason", "must be 1 to 1024 bytes of UTF-8")
	case !cordoned && len(host.GPUCordons) >= maxGPUs:
		return nil, fleet.BreaksRule("a host can have no more than %d cordoned GPUs: clear those that are gone", maxGPUs)
	}
	word := fleet.GPUCordon{UUID: c.GPU, Reason: c.Reason, At: c.At}
	if gpu != nil {
		word.Type, word.PCI = gpu.Type, gpu.PCI
	}
	host.GPUCordons = slices.Clone(host.GPUCordons)
	if cordoned {
		word.Type, word.PCI = cmp.Or(word.Type, host.GPUCordons[i].Type), cmp.Or(word.PCI, host.GPUCordons[i].PCI)
		host.GPUCordons[i] = word
	} else {
		host.GPUCordons = slices.Insert(host.GPUCordons, i, word)
	}
	return t.putHost(host), nil
}

func (c OpenGPU) apply(t *txn) (any, error) {
	host, err := t.known(c.Host)
	if err != nil {
		return nil, err
	}
	i, cordoned := findCordon(&host, c.GPU)
	switch {
	case !cordoned:
		return nil, fleet.NotFound("cordoned GPU")
	case !c.Forget && gpuOrParent(&host, c.GPU) == nil:
		return nil, fleet.BreaksRule("the host does not have this GPU any more: clear it")
	}
	host.GPUCordons = slices.Delete(slices.Clone(host.GPUCordons), i, i+1)
	if len(host.GPUCordons) == 0 {
		host.GPUCordons = nil
	}
	return t.putHost(host), nil
}

// findCordon returns where among a host's cordons, which are sorted, that of a GPU is or would be.
func findCordon(h *fleet.Host, uuid string) (int, bool) {
	return slices.BinarySearchFunc(h.GPUCordons, uuid, func(c fleet.GPUCordon, uuid string) int { return cmp.Compare(c.UUID, uuid) })
}

// gpuOrParent returns a GPU of a host, or one of its MIG instances where it is cut into those; nil: it is not there.
func gpuOrParent(h *fleet.Host, uuid string) *fleet.GPU {
	i := slices.IndexFunc(h.Inventory.GPUs, func(g fleet.GPU) bool { return g.UUID == uuid || g.Parent == uuid })
	if i < 0 || uuid == "" {
		return nil
	}
	return &h.Inventory.GPUs[i]
}

// cordonGPUs says in a host's inventory which GPUs are cordoned, and why.
func cordonGPUs(h *fleet.Host) {
	gpus := slices.Clone(h.Inventory.GPUs) // records are never changed in place
	for i := range gpus {
		gpus[i].Cordoned = ""
		if c := h.CordonOf(&gpus[i]); c != nil {
			gpus[i].Cordoned = c.Reason
		}
	}
	h.Inventory.GPUs = gpus
}
