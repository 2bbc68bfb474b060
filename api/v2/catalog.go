package v2

// GPUType is a GPU of the catalog. The last three members are there with include=AVAILABILITY.
type GPUType struct {
	ID           string        `json:"id" doc:"NVIDIA's device name; contains spaces." example:"NVIDIA H100 80GB HBM3"`
	Name         string        `json:"name" doc:"Short name." example:"H100 SXM"`
	Pool         Text          `json:"pool" doc:"Pool of like GPUs, or null." example:"ADA_80_PRO"`
	Manufacturer string        `json:"manufacturer" doc:"NVIDIA, AMD or UNKNOWN."`
	Memory       int           `json:"memory" doc:"Memory of one GPU in GB."`
	Secure       bool          `json:"secure" doc:"Whether the tier SECURE has a price or a host for it."`
	Community    bool          `json:"community" doc:"Whether the tier COMMUNITY has a price or a host for it."`
	Price        GPUPrice      `json:"price" doc:"Prices."`
	MaxCount     GPUMaxCount   `json:"maxCount" doc:"Most GPUs of one pod."`
	Availability string        `json:"availability,omitempty" doc:"What is free for the count and tier asked for." enum:"NONE,LOW,MEDIUM,HIGH"`
	DataCenters  []CenterStock `json:"dataCenters,omitzero" doc:"What each data center has free."`
	CUDAVersions []CUDAVersion `json:"cudaVersions,omitzero" doc:"CUDA versions that hosts with this type offer, newest first."`
	Fabrics      []Fabric      `json:"fabrics,omitzero" doc:"With product=CLUSTER: networks with RDMA that hosts with this type pass into pods of clusters." gantry:"true"`
}

// Fabric is a network with RDMA.
type Fabric struct {
	Kind string  `json:"kind" doc:"Kind of network." enum:"InfiniBand,RoCE"`
	Gbps float64 `json:"gbps" doc:"Rate in Gbit/s of all adapters of a pod together, on the fastest host." minimum:"0" example:"3200"`
}

// GPUPrice is in USD per GPU and hour.
type GPUPrice struct {
	Secure     float64  `json:"secure" doc:"USD per GPU and hour on SECURE; 0 when it has no price."`
	Community  float64  `json:"community" doc:"USD per GPU and hour on COMMUNITY; 0 when it has no price."`
	Serverless *float64 `json:"serverless" doc:"USD per GPU and hour for serverless workers, or null."`

	SecureSpot    *float64 `json:"secureSpot,omitempty" doc:"Minimum bid of interruptible pods on SECURE, per GPU and hour; absent: there are none." gantry:"true"`
	CommunitySpot *float64 `json:"communitySpot,omitempty" doc:"Minimum bid on COMMUNITY, likewise." gantry:"true"`
}

// GPUMaxCount tells the most GPUs of one pod.
type GPUMaxCount struct {
	Secure    int `json:"secure" doc:"On SECURE."`
	Community int `json:"community" doc:"On COMMUNITY."`
}

// CenterStock is what one data center has free.
type CenterStock struct {
	ID           string `json:"id" doc:"Data center."`
	Name         string `json:"name" doc:"Its name."`
	Availability string `json:"availability" doc:"NONE: nothing; LOW, MEDIUM, HIGH: fewer than 4, fewer than 16, or more pods could be created now." enum:"NONE,LOW,MEDIUM,HIGH"`
}

// CUDAVersion is a CUDA version that hosts offer.
type CUDAVersion struct {
	Version   string `json:"version" doc:"Version." example:"12.8"`
	Available bool   `json:"available" doc:"Whether a host offers it."`
}

// CPUFlavor is a CPU share of the catalog. The last two members are there with include=AVAILABILITY.
type CPUFlavor struct {
	ID           string        `json:"id" doc:"Flavor." example:"cpu3g"`
	Name         string        `json:"name" doc:"Name." example:"General Purpose"`
	Group        string        `json:"group" doc:"Group of flavors."`
	VCPU         VCPURange     `json:"vcpu" doc:"vCPU counts; powers of two."`
	RAMPerVCPU   float64       `json:"ramGbPerVcpu" doc:"GB of memory for each vCPU."`
	Price        CPUPrice      `json:"price" doc:"Prices."`
	Availability string        `json:"availability,omitempty" doc:"What is free for the vCPU count asked for." enum:"NONE,LOW,MEDIUM,HIGH"`
	DataCenters  []CenterStock `json:"dataCenters,omitzero" doc:"What each data center has free."`
}

// VCPURange bounds the vCPUs of a pod.
type VCPURange struct {
	Min int `json:"min" doc:"Fewest."`
	Max int `json:"max" doc:"Most."`
}

// CPUPrice is in USD per vCPU and hour.
type CPUPrice struct {
	SecurePerVCPU     float64 `json:"securePerVcpu" doc:"USD per vCPU and hour on SECURE."`
	ServerlessPerVCPU float64 `json:"serverlessPerVcpu" doc:"USD per vCPU and hour for serverless workers."`
}

// DataCenter is a place of the catalog. The last two members are there when asked for.
type DataCenter struct {
	ID                 string   `json:"id" doc:"Identifier." example:"EU-RO-1"`
	Name               string   `json:"name" doc:"Name."`
	Region             string   `json:"region" doc:"NORTH_AMERICA, SOUTH_AMERICA, EUROPE, ASIA, MIDDLE_EAST, AFRICA, OCEANIA, ANTARCTICA or UNKNOWN."`
	GlobalNetwork      bool     `json:"globalNetwork" doc:"Whether pods here can join the account's private network."`
	NetworkVolumeTypes []string `json:"networkVolumeTypes" doc:"Tiers in which a network volume can be made here now; empty: none."`
	Compliance         []string `json:"compliance" doc:"Certificates."`
	GPUAvailability    []Stock  `json:"gpuAvailability,omitzero" doc:"With include=GPU_AVAILABILITY."`
	CPUAvailability    []Stock  `json:"cpuAvailability,omitzero" doc:"With include=CPU_AVAILABILITY."`
}

// Stock is what is free of one catalog entry.
type Stock struct {
	ID           string `json:"id" doc:"GPU type or CPU flavor."`
	Name         string `json:"name" doc:"Its name."`
	Availability string `json:"availability" doc:"What is free." enum:"NONE,LOW,MEDIUM,HIGH"`
}

// GPUList is the answer to listing GPU types.
type GPUList struct {
	Page
	GPUs []GPUType `json:"gpus" doc:"GPU types."`
}

// CPUList is the answer to listing CPU flavors.
type CPUList struct {
	Page
	CPUs []CPUFlavor `json:"cpus" doc:"CPU flavors."`
}

// DataCenterList is the answer to listing data centers.
type DataCenterList struct {
	Page
	DataCenters []DataCenter `json:"dataCenters" doc:"Data centers."`
}
