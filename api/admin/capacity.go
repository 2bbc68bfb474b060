package admin

import "gantry/api/v2"

// PlacementSettings is the setting of where pods go.
type PlacementSettings struct {
	KeepPercent   int `json:"keepPercent" doc:"Percent of a free GPU's share of its host's cores and memory that pods without GPUs leave to it; 0: nothing is kept." minimum:"0" maximum:"100" example:"50"`
	NoticeSeconds int `json:"noticeSeconds,omitempty" doc:"Time between SIGTERM and SIGKILL of an interruptible pod whose place another takes; omitted or 0: 30." minimum:"0" maximum:"600" example:"30"`
}

// Capacity is what the hosts have room for.
type Capacity struct {
	GPUs     []GPUCapacity  `json:"gpus" doc:"By GPU type."`
	Stranded []StrandedGPUs `json:"stranded" doc:"Hosts with free GPUs that no pod can have, at most 100."`
	Busy     []BusyHost     `json:"busy" doc:"How busy the GPUs are that pods hold, of hosts where that was measured."`
}

// BusyHost is how busy the GPUs of a host are.
type BusyHost struct {
	HostID string `json:"hostId" doc:"Host."`
	Util   int    `json:"gpuUtil" doc:"Per cent, as a mean over the GPUs that pods hold."`
}

// CapacityHistory is what the hosts had room for.
type CapacityHistory struct {
	Samples []CapacityAt `json:"samples" doc:"Oldest first."`
}

// CapacityAt is what was free at a moment.
type CapacityAt struct {
	At   v2.Time  `json:"at" doc:"When."`
	GPUs []GPUsAt `json:"gpus" doc:"By GPU type."`
}

// GPUsAt is what was free of a GPU type.
type GPUsAt struct {
	Type     string `json:"gpuTypeId" doc:"GPU type."`
	Total    int    `json:"total" doc:"GPUs of all hosts."`
	Free     int    `json:"free" doc:"Free GPUs."`
	Most     int    `json:"mostOnOneHost" doc:"Free on one host."`
	Stranded int    `json:"stranded" doc:"Free, but no pod can have them."`
}

// GPUCapacity is what is free of a GPU type.
type GPUCapacity struct {
	Type     string         `json:"gpuTypeId" doc:"GPU type." example:"NVIDIA H100 80GB HBM3"`
	Total    int            `json:"total" doc:"GPUs of all hosts." minimum:"0" example:"16"`
	Free     int            `json:"free" doc:"In service, in no pod, and on a host that takes pods." minimum:"0" example:"11"`
	Most     int            `json:"mostOnOneHost" doc:"Of those, the most that one host has." minimum:"0" example:"8"`
	Fit      WholePods      `json:"fit" doc:"Pods that fit now, one beside the other, with the least cores and memory."`
	Stranded StrandedCounts `json:"stranded" doc:"Free GPUs that no pod can have, by what their hosts have too little of."`
}

// WholePods are numbers of pods by their GPUs.
type WholePods struct {
	Eight int `json:"8" minimum:"0"`
	Four  int `json:"4" minimum:"0"`
	Two   int `json:"2" minimum:"0"`
	One   int `json:"1" minimum:"0"`
}

// StrandedCounts are numbers of GPUs by what is too little.
type StrandedCounts struct {
	CPU    int `json:"cpu" minimum:"0"`
	Memory int `json:"memory" minimum:"0"`
	Disk   int `json:"disk" minimum:"0"`
}

// StrandedGPUs are free GPUs of a host that no pod can have.
type StrandedGPUs struct {
	HostID string   `json:"hostId" example:"h7d2k9s4f1g6j3"`
	Name   string   `json:"name" doc:"Host name." example:"gpu-01"`
	Type   string   `json:"gpuTypeId" example:"NVIDIA H100 80GB HBM3"`
	GPUs   int      `json:"gpus" minimum:"1" example:"3"`
	Short  string   `json:"short" doc:"What the host has too little of." enum:"cpu,memory,disk" example:"cpu"`
	Pods   []string `json:"podIds" doc:"Pods that hold more of it than falls to their GPUs, at most 8." example:"[\"k3n8w0zq5r7d2a\"]"`
}
