package v2

import "gantry/fleet"

// Mounts are the storage mounts of a pod.
type Mounts struct {
	Persistent *PersistentMount `json:"persistent,omitempty" doc:"Host-local storage; not for CPU pods. Deprecated in favor of network mounts."`
	Network    []NetworkMount   `json:"network,omitzero" doc:"Network volumes, at most one." maxItems:"1"`
}

// PersistentMount is host-local storage.
type PersistentMount struct {
	Size int    `json:"size" doc:"Size in GB; it can grow later, and never shrink." minimum:"10" maximum:"65536" example:"20"`
	Path string `json:"path" doc:"Absolute path in the container; not / and not a system path (400 otherwise)." minLength:"1" maxLength:"4096" example:"/workspace"`
}

// NetworkMount is a mounted network volume.
type NetworkMount struct {
	VolumeID string `json:"volumeId" doc:"Network volume of the pod's data center; fixed when the pod is created." minLength:"1" maxLength:"191"`
	Path     string `json:"path" doc:"Absolute path in the container; not / and not a system path (400 otherwise)." minLength:"1" maxLength:"4096" example:"/workspace"`
}

// Pod is a pod's record as the contract shows it. Members that may be null are always there.
type Pod struct {
	ID               string            `json:"id" doc:"Pod identifier." example:"k3n8w0zq5r7d2a"`
	Name             string            `json:"name" doc:"Name of the pod."`
	Status           fleet.PodStatus   `json:"status" doc:"Life-cycle status." enum:"PROVISIONING,STARTING,RUNNING,EXITED,ERROR,TERMINATED"`
	Actions          []string          `json:"actions" doc:"Actions that are allowed now." enum:"start,stop,restart,terminate"`
	Image            string            `json:"image" doc:"Image reference."`
	Args             string            `json:"args" doc:"Arguments; empty when the image's own command runs."`
	Disk             int               `json:"disk" doc:"Container disk in GB, wiped at every start." minimum:"1"`
	Ports            []string          `json:"ports" doc:"Exposed ports, each number/protocol."`
	Env              map[string]string `json:"env" doc:"Environment variables."`
	Registry         Text              `json:"registry" doc:"Registry credential, or null."`
	Mounts           Mounts            `json:"mounts" doc:"Storage mounts; {} when there are none."`
	GPU              *GPUConfig        `json:"gpu,omitempty" doc:"GPUs; on GPU pods only."`
	CPU              *CPUConfig        `json:"cpu,omitempty" doc:"vCPUs; on CPU pods only."`
	Cloud            string            `json:"cloud" doc:"Tier of hosts." enum:"SECURE,COMMUNITY"`
	DataCenterID     Text              `json:"dataCenterId" doc:"Data center of the pod, or null."`
	Template         Text              `json:"template" doc:"Template that the pod was created from, or null."`
	Cost             float64           `json:"cost" doc:"Present cost in USD per hour; 0 while nothing is charged." minimum:"0"`
	Locked           bool              `json:"locked" doc:"When true, stop and restart are refused."`
	GlobalNetworking GlobalNetworking  `json:"globalNetworking" doc:"State of global networking."`
	Runtime          *Runtime          `json:"runtime" doc:"Live measures; null unless the pod is RUNNING on a host that can be reached."`
	CreatedAt        Time              `json:"createdAt" doc:"When the pod was created."`
	StartedAt        *Time             `json:"startedAt" doc:"When its present or last container started; null before."`
	CUDAVersion      Text              `json:"cudaVersion" doc:"CUDA version asked for: the least one, or the only one allowed; null otherwise."`
	SSH              SSH               `json:"ssh" doc:"Ways to log in."`

	Movable      bool                `json:"movable" doc:"Whether a drain of its host may move it."`
	Condition    *Condition          `json:"condition" doc:"What a drain of its host does with it, or null."`
	StatusReason Text                `json:"statusReason" doc:"One sentence on why the pod is as it is, or null. \"stopping\" while a stop is under way."`
	ExitCode     *int                `json:"exitCode" doc:"Exit code of the last container that ended, or null."`
	Incarnation  uint64              `json:"incarnation" doc:"Number of starts; grows with each."`
	HostID       Text                `json:"hostId" doc:"Host that the pod is bound to, or null."`
	Steps        map[fleet.Step]Time `json:"steps" doc:"When each step of the present start was reached: created, received, pulling, downloaded, pulled, networked, defined, tasked, started, reported, recorded."`
	Progress     *Progress           `json:"progress" doc:"What the host does for the pod right now; null unless it is PROVISIONING or STARTING and the host is heard."`
	URLs         []string            `json:"urls" doc:"Where the http ports are reached once the pod runs, in the order of ports. Known from the pod's creation on; empty without a proxy domain."`

	Interruptible  bool     `json:"interruptible,omitempty" doc:"Whether it gives its place to pods on demand, and to higher bids." gantry:"true"`
	BidPerGPU      *float64 `json:"bidPerGpu,omitempty" doc:"What an interruptible pod bids, in USD per GPU and hour." gantry:"true"`
	Return         bool     `json:"return,omitempty" doc:"Whether it starts again by itself after an interruption." gantry:"true"`
	InterruptedAt  *Time    `json:"interruptedAt,omitempty" doc:"When it was told to give up its place; absent after a start." gantry:"true"`
	StopAfter      *Time    `json:"stopAfter,omitempty" doc:"When it is stopped." gantry:"true"`
	TerminateAfter *Time    `json:"terminateAfter,omitempty" doc:"When it is terminated." gantry:"true"`

	PortSettings []PortSetting `json:"portSettings,omitempty" doc:"What is set for http ports; absent: all are public, without a time limit." gantry:"true"`

	Cluster *PodCluster `json:"cluster,omitempty" doc:"Its place in its cluster; on pods of clusters only."`
	LogTail Text        `json:"logTail" doc:"Last log lines of a container that failed; null unless the status is ERROR."`
}

// GPUConfig tells a pod's GPUs.
type GPUConfig struct {
	ID    string `json:"id" doc:"GPU type." example:"NVIDIA H100 80GB HBM3"`
	Count int    `json:"count" doc:"Number of GPUs." minimum:"1"`
}

// CPUConfig tells a pod's virtual CPUs.
type CPUConfig struct {
	ID        string `json:"id" doc:"CPU flavor." example:"cpu3g"`
	VCPUCount int    `json:"vcpuCount" doc:"Number of vCPUs." minimum:"2"`
	Memory    int    `json:"memory" doc:"Memory in GB, derived from the flavor." minimum:"1"`
}

// GlobalNetworking is the state of a pod's global networking.
type GlobalNetworking struct {
	Enabled     bool   `json:"enabled" doc:"Whether the pod's present or last start has an address there."`
	IP          string `json:"ip,omitempty" doc:"The address, the same over stops and starts; absent unless enabled." example:"10.65.0.2"`
	InternalDNS string `json:"internalDns,omitempty" doc:"Name under which other pods of the account with global networking reach it; absent unless enabled." example:"k3n8w0zq5r7d2a.gantry.internal"`
}

// Runtime is what is live of a running pod.
type Runtime struct {
	Uptime int64         `json:"uptime" doc:"Seconds since the container started." minimum:"0"`
	GPUs   []GPUUse      `json:"gpus" doc:"One entry for each GPU; zeros while nothing is measured and for simulated GPUs."`
	CPU    Use           `json:"cpu" doc:"CPU use of the pod's share."`
	Memory Use           `json:"memory" doc:"Memory use of the pod's share."`
	Disk   Use           `json:"disk" doc:"Use of the container disk."`
	Ports  []RuntimePort `json:"ports" doc:"Live port mappings."`
}

// GPUUse is the use of one GPU.
type GPUUse struct {
	Util       int `json:"util" doc:"Percent." minimum:"0" maximum:"100"`
	MemoryUtil int `json:"memoryUtil" doc:"Percent." minimum:"0" maximum:"100"`
}

// Use is a share in use.
type Use struct {
	Util int `json:"util" doc:"Percent." minimum:"0" maximum:"100"`
}

// Measure is what was live of a pod at a moment.
type Measure struct {
	At      Time     `json:"at"`
	Runtime *Runtime `json:"runtime"`
}

// RuntimePort is a live port mapping.
type RuntimePort struct {
	Private    int    `json:"private" doc:"Port in the container; of a symmetrical port the published one, where the host publishes it."`
	Public     *int   `json:"public" doc:"Public port; null for http ports, which have a host name instead, and where the host publishes none."`
	Type       string `json:"type" enum:"http,tcp" doc:"Protocol."`
	IP         Text   `json:"ip" doc:"Public address of the host, or null."`
	IsIPPublic bool   `json:"isIpPublic" doc:"Whether ip is a public address."`
	URL        Text   `json:"url" doc:"Where an http port is reached, or null." example:"https://k3n8w0zq5r7d2a-8080.proxy.example.com/"`
}

// SSH tells the ways to log in to a pod.
type SSH struct {
	Proxy  *SSHAddress `json:"proxy" doc:"Through a gateway, or null."`
	Direct *SSHAddress `json:"direct" doc:"At a public port, or null."`
}

// SSHAddress is one way to log in.
type SSHAddress struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Username string `json:"username"`
	Command  string `json:"command"`
}

// Condition tells the owner of a pod that its host is being drained.
type Condition struct {
	Text    string `json:"text" doc:"One sentence: what happens to the pod."`
	Reason  string `json:"reason,omitempty" doc:"Why, in the operator's words."`
	Since   Time   `json:"since" doc:"When the drain began."`
	StopsAt *Time  `json:"stopsAt" doc:"When it is stopped if it still runs there, or null."`
}

// Progress is what a host does for a pod that is not running yet.
type Progress struct {
	Activity  string `json:"activity" doc:"In words."`
	PullDone  int64  `json:"pullDone" doc:"Bytes of the image that have arrived."`
	PullTotal int64  `json:"pullTotal" doc:"Bytes of the image; 0 while unknown."`
}

// PodList is the answer to listing pods.
type PodList struct {
	Page
	Pods []Pod `json:"pods" doc:"The account's pods."`
}

// CreatePodRequest is the body that creates a pod.
type CreatePodRequest struct {
	PodSettings
	Name          string           `json:"name" doc:"Name of the pod; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"trainer"`
	GPU           *CreateGPUConfig `json:"gpu,omitempty" doc:"GPUs of a GPU pod. Exactly one of gpu and cpu must be set (400 otherwise)."`
	CPU           *CreateCPUConfig `json:"cpu,omitempty" doc:"vCPUs of a CPU pod. Exactly one of gpu and cpu must be set (400 otherwise)."`
	Cloud         string           `json:"cloud,omitempty" doc:"Tier of hosts." enum:"SECURE,COMMUNITY" default:"SECURE"`
	DataCenterIDs []string         `json:"dataCenterIds,omitempty" doc:"Data centers to choose from; omitted or empty: any." maxItems:"32" minLength:"1" maxLength:"64" example:"[\"EU-RO-1\"]"`
	StartSSH      *bool            `json:"startSsh,omitempty" doc:"Put the account's SSH keys, one per line, into the variable PUBLIC_KEY, unless env sets PUBLIC_KEY or SSH_PUBLIC_KEY or the account has none. Omitted: as the template says, or false."`
	StartJupyter  *bool            `json:"startJupyter,omitempty" doc:"Put a random password into the variable JUPYTER_PASSWORD, unless env sets it. Omitted: as the template says, or false."`
	Interruptible bool             `json:"interruptible,omitempty" doc:"Rent at the bid. A pod on demand that finds no room, and one with a higher bid, takes the place: SIGTERM, a notice in /run/gantry/interruption.json, SIGKILL after 30 s (setting). GPU pods only." gantry:"true"`
	BidPerGPU     *float64         `json:"bidPerGpu,omitempty" doc:"Of an interruptible pod: USD per GPU and hour that it bids and pays, from the minimum bid to the price on demand. Omitted: the minimum." minimum:"0.000000001" maximum:"1000" example:"1.35" gantry:"true"`
}

// PodSettings are the members that creating and updating a pod have in common; what is left out stays as it
// is, is the template's, or is the default. A tag change says what one does to a pod that exists, where that is something
// else.
type PodSettings struct {
	Image            *string           `json:"image,omitempty" doc:"Image reference, with an optional registry, tag and digest." minLength:"1" maxLength:"512" example:"docker.io/library/nginx:1.29"`
	Args             *string           `json:"args,omitempty" doc:"Replaces the image's command: words as a POSIX shell splits them, or a JSON object with \"entrypoint\" and \"cmd\", lists of strings. Empty keeps the image's own." maxLength:"32768" example:"python train.py --epochs 3"`
	Disk             *int              `json:"disk,omitempty" doc:"Container disk in GB (10^9 bytes), wiped at every start. Default: 20 for GPU pods, 10 for CPU pods." change:"Container disk in GB (10^9 bytes), wiped at every start. A new size restarts the pod." minimum:"1" maximum:"65536" example:"20"`
	Ports            []string          `json:"ports,omitzero" doc:"Ports to expose, each number/protocol: 1 to 65535, http or tcp; at most 10 of http, none twice. A tcp port from 70000 to 135535 is symmetrical: the container listens at the very port that is published, and reads it from RUNPOD_TCP_PORT_70000 or GANTRY_TCP_PORT_70000." maxItems:"40" pattern:"^[0-9]{1,8}/(http|tcp)$" patternDescription:"number/protocol with the protocol http or tcp" example:"[\"8080/http\",\"22/tcp\"]"`
	Env              map[string]string `json:"env,omitzero" doc:"Environment variables, at most 50. Names are letters, digits and underscores, at most 256; values have at most 32768 characters and no NUL." change:"Replaces all environment variables, at most 50. Names are letters, digits and underscores, at most 256; values have at most 32768 characters and no NUL. A change restarts the pod." maxProperties:"50" example:"{\"EPOCHS\":\"3\"}"`
	Registry         Maybe[string]     `json:"registry,omitzero" doc:"Registry credential for a private image, or null: none." minLength:"1" maxLength:"191"`
	Mounts           *Mounts           `json:"mounts,omitempty" doc:"Storage mounts. persistent and network exclude each other (400)." change:"Omitted or {}: as they are. The kind and the volume cannot change, a path can, and host-local storage can grow (400 otherwise)."`
	GlobalNetworking *bool             `json:"globalNetworking,omitempty" doc:"Join the account's private network. Needs an NVIDIA GPU and a data center that has it (400 otherwise). Default false." change:"Join the account's private network, or leave it, from the next start on. Needs an NVIDIA GPU and a data center that has it (400 otherwise)."`
	Movable          *bool             `json:"movable,omitempty" doc:"Let a drain of its host stop the pod and start it on another, where its place is reserved first. Omitted in a create: the installation's default."`
	Return           *bool             `json:"return,omitempty" doc:"Of an interruptible pod: start it again by itself, at its bid, as soon as there is room after an interruption." gantry:"true"`
	StopAfter        Maybe[Time]       `json:"stopAfter,omitzero" doc:"When it is stopped, in the future; null: never. A locked pod is not before it is unlocked." gantry:"true"`
	TerminateAfter   Maybe[Time]       `json:"terminateAfter,omitzero" doc:"When it is terminated, in the future, also if it is locked; null: never." gantry:"true"`
	PortSettings     []PortSetting     `json:"portSettings,omitzero" doc:"Settings of http ports, each one of ports; those of others are the defaults." change:"Replaces all settings of http ports." maxItems:"10" gantry:"true"`
	TemplateID       string            `json:"templateId,omitempty" doc:"Template to fill in what the body leaves out; env is merged, the body's values win." change:"Template to apply once, under the other members of the body; its mounts are not applied, and the pod keeps no link to it." minLength:"1" maxLength:"191"`
}

// PortSetting is about requests to an http port.
type PortSetting struct {
	Port    int    `json:"port" doc:"Number of the port." minimum:"1" maximum:"65535" example:"8888"`
	Access  string `json:"access,omitempty" doc:"Who may send requests: PUBLIC, everybody; KEY, who has a key of the account with pods: write, or a link of GET /v2/pods/{id}/link." enum:"PUBLIC,KEY" default:"PUBLIC"`
	Timeout int    `json:"timeout,omitempty" doc:"Seconds that a request may take, a WebSocket included; omitted: any." minimum:"1" maximum:"604800" example:"300"`
}

// The values of PortSetting.Access.
const (
	AccessPublic = "PUBLIC"
	AccessKey    = "KEY"
)

// PortLink opens an http port that needs a key.
type PortLink struct {
	URL       Hidden `json:"url" doc:"Address that opens the port in a browser, for whoever has it."`
	ExpiresAt Time   `json:"expiresAt" doc:"Until when."`
}

// CreateGPUConfig asks for GPUs.
type CreateGPUConfig struct {
	ID            string   `json:"id" doc:"GPU type, as GET /v2/catalog/gpus lists it." minLength:"1" maxLength:"191" example:"NVIDIA H100 80GB HBM3"`
	Count         int      `json:"count,omitempty" doc:"Number of GPUs." minimum:"1" maximum:"64" default:"1" example:"1"`
	AllowedCUDA   []string `json:"allowedCudaVersions,omitzero" doc:"Only hosts whose CUDA version is one of these, as major.minor. Empty: any, also against a template. Excludes minCudaVersion (400)." maxItems:"32" maxLength:"16" pattern:"^\\d+\\.\\d+$" patternDescription:"major.minor" example:"[\"12.8\"]"`
	MinCUDA       string   `json:"minCudaVersion,omitempty" doc:"Only hosts whose CUDA version is this or newer, as major.minor. Excludes allowedCudaVersions (400)." maxLength:"16" pattern:"^\\d+\\.\\d+$" patternDescription:"major.minor" example:"12.4"`
	MinRAMPerGPU  int      `json:"minRamPerGpu,omitempty" doc:"Only hosts with at least this memory in GB for each GPU asked for; the pod gets at least that." minimum:"1" maximum:"65536" example:"32"`
	MinVCPUPerGPU int      `json:"minVcpuCountPerGpu,omitempty" doc:"Only hosts with at least this many vCPUs for each GPU asked for; the pod gets at least that." minimum:"1" maximum:"4096" example:"8"`
}

// CreateCPUConfig asks for virtual CPUs.
type CreateCPUConfig struct {
	ID        string `json:"id" doc:"CPU flavor, as GET /v2/catalog/cpus lists it." minLength:"1" maxLength:"191" example:"cpu3g"`
	VCPUCount int    `json:"vcpuCount" doc:"Number of vCPUs: a power of two that the flavor allows." minimum:"2" maximum:"256" example:"4"`
}

// ActionRequest is the body that acts on a pod.
type ActionRequest struct {
	Action string `json:"action" doc:"What to do." enum:"start,stop,restart,terminate" example:"stop"`

	BidPerGPU *float64 `json:"bidPerGpu,omitempty" doc:"With start, of an interruptible pod: its bid from now on, in USD per GPU and hour. Omitted: as before." minimum:"0.000000001" maximum:"1000" gantry:"true"`
}

// UpdatePodRequest is the body that changes a pod; what it leaves out stays as it is.
type UpdatePodRequest struct {
	PodSettings
	Name   *string `json:"name,omitempty" doc:"Name of the pod; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"trainer"`
	Locked *bool   `json:"locked,omitempty" doc:"When true, stop, restart and changes that restart the pod are refused."`
}
