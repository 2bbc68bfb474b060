package admin

import (
	"gantry/api/v2"
	"gantry/fleet"
)

// CordonGPURequest is the body that takes a GPU out of service.
type CordonGPURequest struct {
	Reason string `json:"reason" doc:"Why, for other operators." minLength:"1" maxLength:"1024" example:"RMA 4711: row remapping failed"`
}

// GoneGPU is a cordoned GPU that the host does not have any more.
type GoneGPU struct {
	UUID       string  `json:"uuid" doc:"Device UUID."`
	Type       v2.Text `json:"type" doc:"NVIDIA's device name, or null."`
	PCI        v2.Text `json:"pci" doc:"Bus address that it had, or null." example:"0000:3b:00.0"`
	Reason     string  `json:"reason" doc:"Why it was cordoned."`
	CordonedAt v2.Time `json:"cordonedAt" doc:"When it was cordoned."`
}

// DrainHostRequest is the body that begins to empty a host.
type DrainHostRequest struct {
	KeepRunning bool     `json:"keepRunning,omitempty" doc:"Move no pods. Excludes force (400)." example:"true"`
	Reason      string   `json:"reason,omitempty" doc:"Why, for the owners of the pods. No control characters." maxLength:"200" pattern:"^[^\\x00-\\x1f\\x7f]*$" patternDescription:"text without control characters" example:"new fans"`
	Deadline    *v2.Time `json:"deadline,omitempty" doc:"From then on what still runs is stopped. Must be in the future (400)." example:"2026-12-01T06:00:00Z"`
	Force       bool     `json:"force,omitempty" doc:"Stop at once what is not moved. Excludes deadline (400)." example:"false"`
}

// HostPod is a pod that holds something of a host, as operators see it.
type HostPod struct {
	ID        string                 `json:"id" doc:"Pod identifier." example:"k3n8w0zq5r7d2a"`
	AccountID string                 `json:"accountId" doc:"Whose pod it is." example:"a5f8k2m7q1w4z9"`
	Status    fleet.PodStatus        `json:"status" doc:"Status of the pod." example:"RUNNING"`
	GPUs      int                    `json:"gpus" doc:"GPUs of the host that it holds."`
	Moving    bool                   `json:"moving" doc:"A drain stops it here and starts it on another host."`
	Waits     v2.Text                `json:"waits" doc:"Why a drain waits for it, or null."`
	To        v2.Text                `json:"to" doc:"Host that a drain moves it to, or null."`
	Stops     bool                   `json:"stops" doc:"A drain that is forced, or comes to its deadline, stops it."`
	Steps     map[fleet.Step]v2.Time `json:"steps" doc:"When each step of the pod's present start was reached, as in the pod's own record."`
}

// HostPodList is the answer to asking for the pods of a host.
type HostPodList struct {
	v2.Page
	Pods []HostPod `json:"pods" doc:"Pods that hold something of the host or keep data there, by id."`
}

// Host is a host's record, for operators.
type Host struct {
	ID           string          `json:"id" doc:"Host identifier." example:"h7d2k9s4f1g6j3"`
	Name         string          `json:"name" doc:"Host name."`
	DataCenterID string          `json:"dataCenterId" doc:"Where it stands."`
	Cloud        string          `json:"cloud" doc:"Tier." enum:"SECURE,COMMUNITY"`
	State        fleet.HostState `json:"state" doc:"joining: has not connected yet; ready: connected, takes pods; cordoned: connected, takes no new pods; draining: cordoned, and to be emptied; unreachable: its session is lost, its pods may still run; fenced: an operator vouches that nothing runs there any more; gone: removed for good." enum:"joining,ready,cordoned,draining,unreachable,fenced,gone"`
	Eligibility  string          `json:"eligibility" doc:"What operators set, whatever its state: open: it takes new pods; cordoned: it takes none; draining: it takes none and is being emptied." enum:"open,cordoned,draining"`
	TakesNoPods  v2.Text         `json:"takesNoPods" doc:"Why it gets no new pods now, or null."`
	KeepRunning  bool            `json:"keepRunning" doc:"Its drain moves no pods."`
	Drain        *HostDrain      `json:"drain" doc:"What was said of its drain, or null."`
	Labels       Labels          `json:"labels" doc:"Labels that operators gave it."`
	Roles        []string        `json:"roles" doc:"What it may do beside running pods: storage: it makes and deletes network volumes; s3: it serves their files over S3."`
	Volumes      []string        `json:"volumes" doc:"Kinds of backends whose network volumes it can mount: nfs, cephfs, local."`
	Alarm        *HostAlarm      `json:"alarm" doc:"What an operator has to look into, or null."`
	Epoch        uint64          `json:"epoch" doc:"Number of sessions."`
	Total        Amounts         `json:"total" doc:"What pods may use of it."`
	Used         Amounts         `json:"used" doc:"What pods hold of it."`
	GPUs         []HostGPU       `json:"gpus" doc:"Its GPUs."`
	GoneGPUs     []GoneGPU       `json:"goneGpus" doc:"Cordoned GPUs that it does not have any more."`
	UsedGPUs     int             `json:"usedGpus" doc:"GPUs that pods hold."`
	Pods         int             `json:"pods" doc:"Pods that hold something of it."`
	PublicIP     v2.Text         `json:"publicIp" doc:"Public address of its pods' tcp ports; null when it publishes none."`
	PublicPorts  *PortRange      `json:"publicPorts" doc:"Ports of that address that it publishes; null when it publishes none."`
	CUDA         v2.Text         `json:"cuda" doc:"Newest CUDA version that its driver offers, or null."`
	Driver       v2.Text         `json:"driver" doc:"GPU driver, or null."`
	Kernel       v2.Text         `json:"kernel" doc:"Kernel, or null."`
	Runtime      v2.Text         `json:"runtime" doc:"Container runtime, or null."`
	AgentVersion v2.Text         `json:"agentVersion" doc:"Version of its agent, or null."`
	RuntimeClass v2.Text         `json:"runtimeClass" doc:"What isolates its pods beyond the kernel: gvisor, kata, or null."`
	Fabric       *HostFabric     `json:"fabric" doc:"Its network with RDMA for pods of clusters, or null."`
	Images       int             `json:"images" doc:"Images that it has, of which at most 200 are counted."`
	Conditions   []HostCondition `json:"conditions" doc:"What it does without, or what is wrong with it."`
	JoinedAt     v2.Time         `json:"joinedAt" doc:"When it joined."`
	StateSince   *v2.Time        `json:"stateSince" doc:"When its state last changed, or null."`
}

// HostFabric is what a host has of a network with RDMA.
type HostFabric struct {
	Mode  string       `json:"mode" doc:"How pods of clusters get it: share: all use the host's devices; vf: each has virtual functions of its own." enum:"share,vf"`
	Kind  v2.Text      `json:"kind" doc:"InfiniBand or RoCE; null while they get none, since no port is fit."`
	Gbps  float64      `json:"gbps" doc:"Rate in Gbit/s of all ports that a pod gets."`
	Ports []FabricPort `json:"ports" doc:"Ports of its devices."`
}

// FabricPort is a port of an RDMA device.
type FabricPort struct {
	Device    string  `json:"device" doc:"Name of the device." example:"mlx5_0"`
	Port      int     `json:"port" doc:"Number of the port."`
	Netdev    v2.Text `json:"netdev" doc:"Its network interface, or null."`
	LinkLayer string  `json:"linkLayer" doc:"InfiniBand or Ethernet."`
	State     string  `json:"state" doc:"ACTIVE, DOWN, INIT, ARMED or ACTIVE_DEFER."`
	Gbps      float64 `json:"gbps" doc:"Rate in Gbit/s."`
	Subnet    v2.Text `json:"subnet" doc:"Subnet prefix of InfiniBand, or null."`
	GUID      v2.Text `json:"guid" doc:"Node GUID of the device, or null."`
	Functions int     `json:"functions" doc:"Virtual functions of the device that pods can have."`
}

// HostDrain is what was said of a drain.
type HostDrain struct {
	Since    v2.Time  `json:"since" doc:"When it began."`
	Reason   v2.Text  `json:"reason" doc:"What the owners of its pods are told, or null."`
	Deadline *v2.Time `json:"deadline" doc:"From when on what still runs is stopped, or null: never."`
}

// Labels are names and values that operators give a host.
type Labels map[string]string

// HostAlarm is what an operator has to look into.
type HostAlarm struct {
	Text string  `json:"text" doc:"What happened, in a sentence."`
	At   v2.Time `json:"at" doc:"When it happened first."`
}

// HostCondition is something that an operator should know of a host.
type HostCondition struct {
	Code   string `json:"code" doc:"Stable, in snake case." example:"disk_unlimited"`
	Text   string `json:"text" doc:"One sentence."`
	Severe bool   `json:"severe" doc:"Whether the host takes no new pods because of it."`
}

// Amounts are shares of a host.
type Amounts struct {
	MilliCPU int64 `json:"milliCpu" doc:"Thousandths of a core."`
	MemoryMB int64 `json:"memoryMb" doc:"Units of 10^6 bytes."`
	DiskGB   int64 `json:"diskGb" doc:"Units of 10^9 bytes."`
}

// PortRange is a range of ports, both ends included.
type PortRange struct {
	From int `json:"from" doc:"First port." minimum:"1" maximum:"65535"`
	To   int `json:"to" doc:"Last port." minimum:"1" maximum:"65535"`
}

// HostGPU is a GPU of a host.
type HostGPU struct {
	UUID      string  `json:"uuid" doc:"Device UUID."`
	Type      string  `json:"type" doc:"NVIDIA's device name."`
	MemoryMB  int64   `json:"memoryMb" doc:"Units of 10^6 bytes."`
	NUMA      int     `json:"numa" doc:"NUMA node."`
	Island    int     `json:"island" doc:"GPUs of one number are joined by NVLink."`
	Simulated bool    `json:"simulated" doc:"True for a pretended device."`
	Sick      v2.Text `json:"sick" doc:"Why it is out of placement; null when healthy."`
	Cordoned  v2.Text `json:"cordoned" doc:"Why an operator took it out of service, or null. Of a MIG instance also when its GPU is cordoned."`
	PCI       v2.Text `json:"pci" doc:"Bus address, or null." example:"0000:3b:00.0"`
	Parent    v2.Text `json:"parent" doc:"Of a MIG instance the UUID of the GPU that it is a slice of, or null."`
}

// HostList is the answer to listing hosts.
type HostList struct {
	v2.Page
	Hosts []Host `json:"hosts" doc:"The hosts that were asked for."`
}

// UpdateHostRequest is the body that changes a host.
type UpdateHostRequest struct {
	Cloud  string       `json:"cloud,omitempty" doc:"Tier of the host." enum:"SECURE,COMMUNITY" example:"COMMUNITY"`
	Roles  *[]string    `json:"roles,omitempty" doc:"All that it may do beside running pods; replaces what it might do before." maxItems:"2" enum:"storage,s3" example:"[\"storage\"]"`
	Labels LabelChanges `json:"labels,omitzero" doc:"Labels to set, and with null to remove; those that are not named stay." maxProperties:"128" example:"{\"rack\":\"b4\",\"owner\":null}"`
}

// LabelChanges are labels to set, and with null to remove.
type LabelChanges map[string]*string

// CreateTokenRequest is the body that makes a join token.
type CreateTokenRequest struct {
	DataCenterID string `json:"dataCenterId" doc:"Data center of the host; made when it is new." minLength:"1" maxLength:"63" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits, '.', '_' and '-', starting with a letter or digit" example:"EU-RO-1"`
	Cloud        string `json:"cloud,omitempty" doc:"Tier of the host." enum:"SECURE,COMMUNITY" default:"SECURE"`
	TTLSeconds   int    `json:"ttlSeconds,omitempty" doc:"Seconds until the token ends to work, 60 to 604800." minimum:"60" maximum:"604800" default:"3600" example:"3600"`
}

// JoinToken lets one host join, once.
type JoinToken struct {
	Token     v2.Hidden `json:"token" doc:"The token. It is not stored and cannot be shown again."`
	ExpiresAt v2.Time   `json:"expiresAt" doc:"When it ends to work."`
}
