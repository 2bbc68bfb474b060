package admin

import (
	"gantry/api/v2"
)

// DefaultLimits are the limits of accounts that have none of their own.
type DefaultLimits struct {
	Pods               int64 `json:"pods"`
	RunningPods        int64 `json:"runningPods"`
	GPUs               int64 `json:"gpus"`
	VCPUs              int64 `json:"vcpus"`
	NetworkVolumes     int64 `json:"networkVolumes"`
	NetworkVolumeGB    int64 `json:"networkVolumeGB"`
	SpecificationBytes int64 `json:"specificationBytes"`
	Endpoints          int64 `json:"endpoints"`
	Workers            int64 `json:"workers"`
	Clusters           int64 `json:"clusters"`
	SpendPerHour       int64 `json:"spendPerHour"`
}

// LimitChanges sets limits; what is left out stays, and null takes a value back.
type LimitChanges struct {
	Pods               v2.Maybe[int64] `json:"pods,omitzero"`
	RunningPods        v2.Maybe[int64] `json:"runningPods,omitzero"`
	GPUs               v2.Maybe[int64] `json:"gpus,omitzero"`
	VCPUs              v2.Maybe[int64] `json:"vcpus,omitzero"`
	NetworkVolumes     v2.Maybe[int64] `json:"networkVolumes,omitzero"`
	NetworkVolumeGB    v2.Maybe[int64] `json:"networkVolumeGB,omitzero"`
	SpecificationBytes v2.Maybe[int64] `json:"specificationBytes,omitzero"`
	Endpoints          v2.Maybe[int64] `json:"endpoints,omitzero"`
	Workers            v2.Maybe[int64] `json:"workers,omitzero"`
	Clusters           v2.Maybe[int64] `json:"clusters,omitzero"`
	SpendPerHour       v2.Maybe[int64] `json:"spendPerHour,omitzero"`
}
