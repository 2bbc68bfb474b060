package admin

import (
	"gantry/api/v2"
)

// GPUTypeEntry is a GPU type of the catalog, for operators.
type GPUTypeEntry struct {
	ID string `json:"id" doc:"NVIDIA's device name." example:"NVIDIA H100 80GB HBM3"`
	PutGPUTypeRequest
	Pool        v2.Text `json:"pool" doc:"Pool of like GPUs, or null." example:"ADA_80_PRO"`
	Contributed bool    `json:"contributed" doc:"True for a type that a host brought along and no operator has put yet."`
}

// PutGPUTypeRequest is the body that puts a GPU type.
type PutGPUTypeRequest struct {
	Name         string        `json:"name" doc:"Short name." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"H100 SXM"`
	Pool         string        `json:"pool,omitempty" doc:"Pool of like GPUs; omitted: none." maxLength:"63" pattern:"^[A-Z0-9_]*$" patternDescription:"capital letters, digits and '_'" example:"ADA_80_PRO"`
	Manufacturer string        `json:"manufacturer" doc:"Manufacturer." enum:"NVIDIA,AMD,UNKNOWN" example:"NVIDIA"`
	Memory       int           `json:"memory" doc:"Memory of one GPU in GB." minimum:"1" maximum:"4096" example:"80"`
	Price        GPUEntryPrice `json:"price" doc:"Prices in USD per GPU and hour; 0: not priced."`
}

// GPUEntryPrice are prices of a GPU.
type GPUEntryPrice struct {
	Secure     float64 `json:"secure" doc:"USD per GPU and hour on SECURE." minimum:"0" maximum:"1000" example:"2.69"`
	Community  float64 `json:"community" doc:"USD per GPU and hour on COMMUNITY." minimum:"0" maximum:"1000" example:"2.39"`
	Serverless float64 `json:"serverless" doc:"USD per GPU and hour for serverless workers." minimum:"0" maximum:"1000" example:"4.18"`

	SecureSpot    float64 `json:"secureSpot,omitempty" doc:"Lowest bid of interruptible pods on SECURE, at most secure (400); omitted or 0: there are none." minimum:"0" maximum:"1000" example:"1.35"`
	CommunitySpot float64 `json:"communitySpot,omitempty" doc:"Lowest bid of interruptible pods on COMMUNITY, at most community (400); omitted or 0: there are none." minimum:"0" maximum:"1000" example:"1.2"`
}

// GPUTypeEntryList is the answer to listing GPU types for operators.
type GPUTypeEntryList struct {
	v2.Page
	GPUTypes []GPUTypeEntry `json:"gpuTypes" doc:"GPU types."`
}

// CPUFlavorEntry is a CPU flavor of the catalog, for operators.
type CPUFlavorEntry struct {
	ID string `json:"id" doc:"Flavor." example:"cpu3g"`
	PutCPUFlavorRequest
}

// PutCPUFlavorRequest is the body that puts a CPU flavor.
type PutCPUFlavorRequest struct {
	Name        string        `json:"name" doc:"Name." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"General Purpose"`
	Group       string        `json:"group" doc:"Group of flavors." minLength:"1" maxLength:"63" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"cpu3"`
	VCPU        VCPUBounds    `json:"vcpu" doc:"vCPU counts, powers of two. min must not be above max (400)."`
	RAMPerVCPU  float64       `json:"ramGbPerVcpu" doc:"GB of memory for each vCPU." minimum:"0.5" maximum:"64" example:"4"`
	DiskPerVCPU int           `json:"diskGbPerVcpu" doc:"GB of container disk at most for each vCPU." minimum:"1" maximum:"1024" example:"10"`
	Price       CPUEntryPrice `json:"price" doc:"Prices in USD per vCPU and hour."`
}

// VCPUBounds bounds the vCPUs of a pod.
type VCPUBounds struct {
	Min int `json:"min" doc:"Fewest." minimum:"1" maximum:"256" example:"2"`
	Max int `json:"max" doc:"Most." minimum:"1" maximum:"256" example:"32"`
}

// CPUEntryPrice are prices of a vCPU.
type CPUEntryPrice struct {
	SecurePerVCPU     float64 `json:"securePerVcpu" doc:"USD per vCPU and hour on SECURE." minimum:"0" maximum:"1000" example:"0.04"`
	ServerlessPerVCPU float64 `json:"serverlessPerVcpu" doc:"USD per vCPU and hour for serverless workers." minimum:"0" maximum:"1000" example:"0.05"`
}

// CPUFlavorEntryList is the answer to listing CPU flavors for operators.
type CPUFlavorEntryList struct {
	v2.Page
	CPUFlavors []CPUFlavorEntry `json:"cpuFlavors" doc:"CPU flavors."`
}

// DataCenterEntry is a data center, for operators.
type DataCenterEntry struct {
	ID string `json:"id" doc:"Data center." example:"EU-RO-1"`
	PutDataCenterRequest
	Country       v2.Text  `json:"country" doc:"ISO 3166-1 alpha-2, or null." example:"RO"`
	GlobalNetwork bool     `json:"globalNetwork" doc:"Whether pods here can join the account's private network."`
	Underlay      string   `json:"underlay" doc:"How its hosts reach each other for private networks." enum:"encrypted,private"`
	Compliance    []string `json:"compliance" doc:"Certificates."`
}

// PutDataCenterRequest is the body that puts a data center.
type PutDataCenterRequest struct {
	Name          string   `json:"name" doc:"Name." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"Bucharest 1"`
	Region        string   `json:"region" doc:"Part of the world." enum:"NORTH_AMERICA,SOUTH_AMERICA,EUROPE,ASIA,MIDDLE_EAST,AFRICA,OCEANIA,ANTARCTICA,UNKNOWN" example:"EUROPE"`
	Country       string   `json:"country,omitempty" doc:"ISO 3166-1 alpha-2; omitted: not known." pattern:"^[A-Z]{2}$" patternDescription:"two capital letters" example:"RO"`
	GlobalNetwork bool     `json:"globalNetwork,omitempty" doc:"Whether pods here can join the account's private network." default:"false"`
	Underlay      string   `json:"underlay,omitempty" doc:"How its hosts reach each other for private networks. encrypted: WireGuard; private: plain VXLAN, for a wire that nobody else can read or write. What goes to other data centers is always encrypted." enum:"encrypted,private" default:"encrypted" example:"encrypted"`
	Compliance    []string `json:"compliance,omitempty" doc:"Certificates." maxItems:"12" enum:"GDPR,ISO_IEC_27001,ISO_14001,PCI_DSS,HITRUST,SOC_1_TYPE_2,SOC_2_TYPE_2,SOC_3_TYPE_2,ITAR,FISMA_HIGH,HIPAA,RENEWABLE" example:"[\"GDPR\"]"`
}

// DataCenterEntryList is the answer to listing data centers for operators.
type DataCenterEntryList struct {
	v2.Page
	DataCenters []DataCenterEntry `json:"dataCenters" doc:"Data centers."`
}

// StoragePrices are the prices of storage, in USD per GB and month, of which a year has 12.
type StoragePrices struct {
	ContainerDisk     float64 `json:"containerDisk" doc:"Container disk while the pod is charged, USD per GB and month." minimum:"0" maximum:"1000" example:"0.1"`
	PersistentRunning float64 `json:"persistentRunning" doc:"Persistent mount while the pod is charged, USD per GB and month." minimum:"0" maximum:"1000" example:"0.1"`
	PersistentStopped float64 `json:"persistentStopped" doc:"Persistent mount while it is not, USD per GB and month." minimum:"0" maximum:"1000" example:"0.2"`
	VolumeFirst       float64 `json:"volumeFirst" doc:"First 1000 GB of each STANDARD network volume, USD per GB and month." minimum:"0" maximum:"1000" example:"0.07"`
	VolumeBeyond      float64 `json:"volumeBeyond" doc:"What a STANDARD network volume has above, USD per GB and month." minimum:"0" maximum:"1000" example:"0.05"`
	FastFirst         float64 `json:"fastFirst" doc:"First 1000 GB of each HIGH_PERFORMANCE network volume, USD per GB and month." minimum:"0" maximum:"1000" example:"0.14"`
	FastBeyond        float64 `json:"fastBeyond" doc:"What a HIGH_PERFORMANCE network volume has above, USD per GB and month." minimum:"0" maximum:"1000" example:"0.1"`
}

// TemplateSourceRequest is the body that says where a public template is listed.
type TemplateSourceRequest struct {
	Source string `json:"source" doc:"Slice of the public catalog." enum:"official,verified,community" example:"verified"`
}

// Body returns what puts the data center as it is.
func (dc DataCenterEntry) Body() PutDataCenterRequest {
	return PutDataCenterRequest{
		Name: dc.Name, Region: dc.Region, Country: string(dc.Country), GlobalNetwork: dc.GlobalNetwork, Underlay: dc.Underlay, Compliance: dc.Compliance,
	}
}

// Body returns what puts the GPU type as it is.
func (t GPUTypeEntry) Body() PutGPUTypeRequest {
	out := t.PutGPUTypeRequest
	out.Pool = string(t.Pool)
	return out
}
