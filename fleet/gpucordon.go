package fleet

import "time"

// GPUCordon is an operator's word that a GPU of a host, which may be gone, takes no new pods.
type GPUCordon struct {
	UUID   string    `cbor:"1,keyasint"`
	Reason string    `cbor:"2,keyasint"`
	At     time.Time `cbor:"3,keyasint"`
	Type   string    `cbor:"4,keyasint,omitempty"` // as it was then
	PCI    string    `cbor:"5,keyasint,omitempty"` // where it was then
}

// Out says why no new pod gets the GPU: it is sick, or an operator has cordoned it. Empty: it is in service.
func (g *GPU) Out() string {
	if g.Sick != "" {
		return g.Sick
	}
	return g.Cordoned
}

// CordonOf returns an operator's word about a GPU of the host; of a MIG instance that about the GPU that it is a slice
// of, too. Nil: there is none.
func (h *Host) CordonOf(g *GPU) *GPUCordon {
	for i := range h.GPUCordons {
		if c := &h.GPUCordons[i]; c.UUID == g.UUID || g.Parent != "" && c.UUID == g.Parent {
			return c
		}
	}
	return nil
}

// GoneGPUs returns the cordons of GPUs that the host does not have any more.
func (h *Host) GoneGPUs() (out []GPUCordon) {
	for _, c := range h.GPUCordons {
		there := false
		for _, g := range h.Inventory.GPUs {
			there = there || g.UUID == c.UUID || g.Parent == c.UUID
		}
		if !there {
			out = append(out, c)
		}
	}
	return out
}
