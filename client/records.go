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
	Registry     string                   `json:"registry"` // empty: none
	Mounts       Mounts                   `json:"mounts"`
	GPU          *GPU                     `json:"gpu"`
	CPU          *CPU                     `json:"cpu"`
	Cloud        string                   `json:"cloud"`
	DataCenterID string                   `json:"dataCenterId"`
	Template     string                   `json:"template"` // empty: none
	Cost         float64                  `json:"cost"`     // USD per hour
	Locked       bool                     `json:"locked"`
	Network      GlobalNetworking         `json:"globalNetworking"`
	Runtime      *Runtime                 `json:"runtime"`
	CUDAVersion  string                   `json:"cudaVersion"`
	SSH          SSH                      `json:"ssh"`
	CreatedAt    time.Time                `json:"createdAt"`
	StartedAt    *time.Time               `json:"startedAt"`
	Movable      bool                     `json:"movable"`
	Notice       *Notice                  `json:"notice"` // nil: none
	StatusReason string                   `json:"statusReason"`
	ExitCode     *int                     `json:"exitCode"`
	Incarnation  uint64                   `json:"incarnation"`
	HostID       string                   `json:"hostId"`
	Steps        map[fleet.Step]time.Time `json:"steps"`
	Progress     *Progress                `json:"progress"`
	URLs         []string                 `json:"urls"` // of http ports, also before the pod runs
	LogTail      string                   `json:"logTail"`
}

// Notice tells the owner of a pod that its host is being drained.
type Notice struct {
	Text    string     `json:"text"`
	Reason  string     `json:"reason"`
	Since   time.Time  `json:"since"`
	StopsAt *time.Time `json:"stopsAt"` // nil: never
}

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

// Mounts are the storage mounts of a pod; at most one of the two kinds is there.
type Mounts struct {
	Persistent *PersistentMount `json:"persistent,omitempty"`
	Network    []NetworkMount   `json:"network,omitempty"`
}

// PersistentMount is host-local storage that survives stops.
type PersistentMount struct {
	Size int    `json:"size"` // GB, at least 10
	Path string `json:"path"`
}

// NetworkMount is a network volume in a pod.
type NetworkMount struct {
	VolumeID string `json:"volumeId"`
	Path     string `json:"path"`
}

// GlobalNetworking is a pod's place in the account's private network.
type GlobalNetworking struct {
	Enabled     bool   `json:"enabled"`
	IP          string `json:"ip"`
	InternalDNS string `json:"internalDns"`
}

// SSH tells the ways to log in to a pod; nil is a way that is not there.
type SSH struct {
	Proxy  *SSHAddress `json:"proxy"`
	Direct *SSHAddress `json:"direct"`
}

// SSHAddress is one way to log in.
type SSHAddress struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Username string `json:"username"`
	Command  string `json:"command"`
}

// Runtime is what is live of a running pod.
type Runtime struct {
	Uptime int64      `json:"uptime"` // seconds
	GPUs   []GPUUtil  `json:"gpus"`
	CPU    Util       `json:"cpu"`
	Memory Util       `json:"memory"`
	Disk   Util       `json:"disk"` // of the container
	Ports  []LivePort `json:"ports"`
}

// Util is a share in percent.
type Util struct {
	Util int `json:"util"`
}

// GPUUtil is how busy a GPU is, in percent.
type GPUUtil struct {
	Util       int `json:"util"`
	MemoryUtil int `json:"memoryUtil"`
}

// LivePort is a port mapping.
type LivePort struct {
	URL      string  `json:"url"` // of an http port; empty: none
	Private  int     `json:"private"`
	Public   *int    `json:"public"`
	Type     string  `json:"type"`
	IP       *string `json:"ip"`
	PublicIP bool    `json:"isIpPublic"`
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

// Host is the record of a host, as operators see it.
type Host struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	DataCenterID string          `json:"dataCenterId"`
	Cloud        string          `json:"cloud"`
	State        fleet.HostState `json:"state"`
	Duty         string          `json:"duty"`        // open, cordoned or draining
	TakesNoPods  string          `json:"takesNoPods"` // why; empty: it takes pods
	KeepRunning  bool            `json:"keepRunning"` // its drain waits for running pods
	Labels       Labels          `json:"labels"`
	Roles        []string        `json:"roles"`   // storage, s3
	Volumes      []string        `json:"volumes"` // kinds of backends that it can mount
	Alarm        *HostAlarm      `json:"alarm"`   // nil: none
	Drain        *HostDrain      `json:"drain"`   // nil: it is not drained
	Pods         int             `json:"pods"`
	Total        Resources       `json:"total"`
	Used         Resources       `json:"used"`
	GPUs         []HostGPU       `json:"gpus"`
	GoneGPUs     []GoneGPU       `json:"goneGpus"` // cordoned, and not there any more
	UsedGPUs     int             `json:"usedGpus"`
	PublicIP     string          `json:"publicIp"`    // where pods' tcp ports are published; empty: they are not
	PublicPorts  *PortRange      `json:"publicPorts"` // nil: none
	Runtime      string          `json:"runtime"`
	Kernel       string          `json:"kernel"`
	Driver       string          `json:"driver"`
	CUDA         string          `json:"cuda"`
	AgentVersion string          `json:"agentVersion"`
	RuntimeClass string          `json:"runtimeClass"` // gvisor or kata; empty: neither
	Images       int             `json:"images"`       // that it has, of which at most 200 are counted
	Notices      []HostNotice    `json:"notices"`
	JoinedAt     time.Time       `json:"joinedAt"`
	StateSince   *time.Time      `json:"stateSince"`
}

// Labels are names and values that operators gave a host.
type Labels map[string]string

// HostAlarm is what an operator has to look into.
type HostAlarm struct {
	Text string    `json:"text"`
	At   time.Time `json:"at"`
}

// HostDrain is what an operator said of a drain.
type HostDrain struct {
	Since    time.Time  `json:"since"`
	Reason   string     `json:"reason"`
	Deadline *time.Time `json:"deadline"` // nil: none
}

// Resources is an amount of a host's shared resources.
type Resources struct {
	MilliCPU int64 `json:"milliCpu"` // thousandths of a core
	MemoryMB int64 `json:"memoryMb"` // units of 10^6 bytes
	DiskGB   int64 `json:"diskGb"`
}

// PortRange is from the first port to the last, both in it.
type PortRange struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// HostGPU is one device of a host.
type HostGPU struct {
	UUID      string `json:"uuid"`
	Type      string `json:"type"`
	MemoryMB  int64  `json:"memoryMb"`
	Simulated bool   `json:"simulated"`
	Sick      string `json:"sick"`
	Cordoned  string `json:"cordoned"` // why an operator took it out of service; empty: it is in service
	NUMA      int    `json:"numa"`
	Island    int    `json:"island"` // GPUs of one number are joined by NVLink
	PCI       string `json:"pci"`    // empty: unknown
	Parent    string `json:"parent"` // of a MIG instance: the UUID of its GPU
}

// GoneGPU is a cordoned GPU that its host does not have any more.
type GoneGPU struct {
	UUID       string    `json:"uuid"`
	Type       string    `json:"type"`
	PCI        string    `json:"pci"`
	Reason     string    `json:"reason"`
	CordonedAt time.Time `json:"cordonedAt"`
}

// HostNotice is something that an operator should know of a host.
type HostNotice struct {
	Code   string `json:"code"`
	Text   string `json:"text"`
	Severe bool   `json:"severe"` // the host takes no new pods because of it
}
