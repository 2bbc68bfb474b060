package client

// GPU is what a GPU pod asked for. What follows Count is of a create alone.
type GPU struct {
	ID    string `json:"id"`
	Count int    `json:"count,omitempty"`

	AllowedCUDAVersions []string `json:"allowedCudaVersions,omitzero"` // exactly one of these; empty and not nil: any, also against a template
	MinCUDAVersion      string   `json:"minCudaVersion,omitempty"`     // this one or newer
	MinRAMPerGPU        int      `json:"minRamPerGpu,omitempty"`       // GB that the host has for each GPU
	MinVCPUCountPerGPU  int      `json:"minVcpuCountPerGpu,omitempty"` // that the host has for each GPU
}

// CPU is what a CPU pod asked for; Memory (GB) is set by the service and never sent.
type CPU struct {
	ID        string  `json:"id"`
	VCPUCount int     `json:"vcpuCount"`
	Memory    float64 `json:"memory,omitempty"`
}
