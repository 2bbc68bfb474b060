package gpu

import "gantry/fleet"

// Found is what is known of a machine's GPUs.
type Found struct {
	GPUs       []fleet.GPU // by UUID; MIG instances in the place of the GPU that they are slices of
	CUDA       string      // newest CUDA version that the driver offers, "12.8"; empty: there is no driver
	Driver     string
	Conditions []fleet.Condition
}
