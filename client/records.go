package client

import (
	"time"

	"gantry/fleet"
)

// Pod is the record of a pod as the API answers it; members that nobody here reads are left out.
type Pod struct {
	ID           string                   `json:"id"`
	Name         string                   `json:"name"`
	Status       fleet.PodStatus          `json:"status"`
	Actions      []string                 `json:"actions"`
	Image        string                   `json:"image"`
	Args         string                   `json:"args"`
	Disk         int                      `json:"disk"` // GB
	Ports        []string                 `json:"ports"`
	Env          map[string]string        `json:"env"`
	GPU          *GPU                     `json:"gpu"`
	CPU          *CPU                     `json:"cpu"`
	Cloud        string                   `json:"cloud"`
	DataCenterID string                   `json:"dataCenterId"`
	Cost         float64                  `json:"cost"` // USD per hour
	Runtime      *Runtime                 `json:"runtime"`
	CreatedAt    time.Time                `json:"createdAt"`
	StartedAt    *time.Time               `json:"startedAt"`
	StatusReason string                   `json:"statusReason"`
	ExitCode     *int                     `json:"exitCode"`
	Incarnation  uint64                   `json:"incarnation"`
	HostID       string                   `json:"hostId"`
	Steps        map[fleet.Step]time.Time `json:"steps"`
	Progress     *Progress                `json:"progress"`
	LogTail      string                   `json:"logTail"`
}

// GPU is what a GPU pod asked for.
type GPU struct {
	ID    string `json:"id"`
	Count int    `json:"count,omitempty"`
}

// CPU is what a CPU pod asked for; Memory (GB) is set by the service and never sent.
type CPU struct {
	ID        string  `json:"id"`
	VCPUCount int     `json:"vcpuCount"`
	Memory    float64 `json:"memory,omitempty"`
}

// Runtime is what is live of a running pod.
type Runtime struct {
	Uptime int64      `json:"uptime"` // seconds
	CPU    Util       `json:"cpu"`
	Memory Util       `json:"memory"`
	Ports  []LivePort `json:"ports"`
}

// Util is a share in percent.
type Util struct {
	Util int `json:"util"`
}

// LivePort is a port mapping.
type LivePort struct {
	Private int     `json:"private"`
	Public  *int    `json:"public"`
	Type    string  `json:"type"`
	IP      *string `json:"ip"`
}

// Progress is what the host does for a pod that comes up.
type Progress struct {
	Activity  string `json:"activity"`
	PullDone  int64  `json:"pullDone"`  // bytes
	PullTotal int64  `json:"pullTotal"` // bytes; 0 while unknown
}

// PodList is the answer of the list of pods.
type PodList struct {
	Pods []Pod `json:"pods"`
}

// CreatePod is the body of a create; exactly one of GPU and CPU is set.
type CreatePod struct {
	Name          string            `json:"name"`
	Image         string            `json:"image"`
	GPU           *GPU              `json:"gpu,omitempty"`
	CPU           *CPU              `json:"cpu,omitempty"`
	Args          string            `json:"args,omitempty"`
	Disk          int               `json:"disk,omitempty"`
	Ports         []string          `json:"ports,omitempty"`
	Env           map[string]string `json:"env,omitempty"`
	Cloud         string            `json:"cloud,omitempty"`
	DataCenterIDs []string          `json:"dataCenterIds,omitempty"`
}

// Stock is what a data center has of a catalog entry, or the other way round.
type Stock struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	Availability string `json:"availability"`
}

// GPUOffer is a GPU type of the catalog. Prices are USD per GPU and hour.
type GPUOffer struct {
	ID     string  `json:"id"`
	Name   string  `json:"name"`
	Pool   string  `json:"pool"`
	Memory float64 `json:"memory"` // GB
	Price  struct {
		Secure    *float64 `json:"secure"`
		Community *float64 `json:"community"`
	} `json:"price"`
	MaxCount struct {
		Secure    int `json:"secure"`
		Community int `json:"community"`
	} `json:"maxCount"`
	Availability string  `json:"availability"`
	DataCenters  []Stock `json:"dataCenters"`
}

// CPUOffer is a CPU flavor of the catalog. Prices are USD per vCPU and hour.
type CPUOffer struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Group string `json:"group"`
	VCPU  struct {
		Min int `json:"min"`
		Max int `json:"max"`
	} `json:"vcpu"`
	RAMGBPerVCPU float64 `json:"ramGbPerVcpu"`
	Price        struct {
		SecurePerVCPU *float64 `json:"securePerVcpu"`
	} `json:"price"`
	Availability string  `json:"availability"`
	DataCenters  []Stock `json:"dataCenters"`
}

// DataCenter is a data center of the catalog.
type DataCenter struct {
	ID            string  `json:"id"`
	Name          string  `json:"name"`
	Region        string  `json:"region"`
	GlobalNetwork bool    `json:"globalNetwork"`
	GPUs          []Stock `json:"gpuAvailability"`
	CPUs          []Stock `json:"cpuAvailability"`
}

// Key is the record of an API key.
type Key struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Hint        string            `json:"hint"` // its first characters
	Permissions map[string]string `json:"permissions"`
	CreatedAt   time.Time         `json:"createdAt"`
	ExpiresAt   *time.Time        `json:"expiresAt"` // nil: never
}

// NewKey is a key that was just made, with its text, which is never shown again.
type NewKey struct {
	Key  Key          `json:"key"`
	Text fleet.Secret `json:"apiKey"`
}

// CreateKey is the body of a key's creation.
type CreateKey struct {
	Name      string     `json:"name"`
	Preset    string     `json:"preset"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
}

// Host is the record of a host, as operators see it.
type Host struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	DataCenterID string          `json:"dataCenterId"`
	Cloud        string          `json:"cloud"`
	State        fleet.HostState `json:"state"`
	Pods         int             `json:"pods"`
	Total        Resources       `json:"total"`
	Used         Resources       `json:"used"`
	GPUs         []HostGPU       `json:"gpus"`
	UsedGPUs     int             `json:"usedGpus"`
	Runtime      string          `json:"runtime"`
	Kernel       string          `json:"kernel"`
	Driver       string          `json:"driver"`
	CUDA         string          `json:"cuda"`
	AgentVersion string          `json:"agentVersion"`
	JoinedAt     time.Time       `json:"joinedAt"`
	StateSince   *time.Time      `json:"stateSince"`
}

// Resources is an amount of a host's shared resources.
type Resources struct {
	MilliCPU int64 `json:"milliCpu"` // thousandths of a core
	MemoryMB int64 `json:"memoryMb"` // units of 10^6 bytes
	DiskGB   int64 `json:"diskGb"`
}

// HostGPU is one device of a host.
type HostGPU struct {
	UUID      string `json:"uuid"`
	Type      string `json:"type"`
	MemoryMB  int64  `json:"memoryMb"`
	Simulated bool   `json:"simulated"`
	Sick      string `json:"sick"`
}

// Account is the record of an account.
type Account struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
}
