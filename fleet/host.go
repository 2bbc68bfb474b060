package fleet

import "time"

// HostState is what the control plane knows of a host's readiness.
type HostState string

// The states of a host.
const (
	HostJoining     HostState = "joining"     // has a certificate, has not connected yet
	HostReady       HostState = "ready"       // connected
	HostUnreachable HostState = "unreachable" // its session is lost; its pods may still run
)

// GPU is one device of a host.
type GPU struct {
	UUID      string `cbor:"1,keyasint"`
	Type      string `cbor:"2,keyasint"` // NVIDIA's device name
	MemoryMB  int64  `cbor:"3,keyasint"`
	NUMA      int    `cbor:"4,keyasint"`
	Island    int    `cbor:"5,keyasint"` // GPUs of one number are joined by NVLink
	Simulated bool   `cbor:"6,keyasint,omitempty"`
	Sick      string `cbor:"7,keyasint,omitempty"` // why it is out of placement; empty when healthy
}

// Inventory is what a host has, as its agent reports it when it connects.
type Inventory struct {
	Total        Resources `cbor:"1,keyasint"` // what pods may use: the system's reserve is already off
	GPUs         []GPU     `cbor:"2,keyasint,omitempty"`
	CUDA         string    `cbor:"3,keyasint,omitempty"` // newest CUDA version that the driver offers, "12.8"
	Driver       string    `cbor:"4,keyasint,omitempty"`
	Kernel       string    `cbor:"5,keyasint,omitempty"`
	Runtime      string    `cbor:"6,keyasint,omitempty"` // "containerd 1.6.20, runc 1.1.5"
	AgentVersion string    `cbor:"7,keyasint,omitempty"`
	Images       []string  `cbor:"8,keyasint,omitempty"` // references that are on the host, at most 200
	// Public ports: PortFrom to PortTo of PublicIP are forwarded to pods. Zero: the host publishes none.
	PublicIP string `cbor:"9,keyasint,omitempty"`
	PortFrom int    `cbor:"10,keyasint,omitempty"`
	PortTo   int    `cbor:"11,keyasint,omitempty"`
}

// Host is the record of a host.
type Host struct {
	ID         HostID       `cbor:"1,keyasint"`
	Name       string       `cbor:"2,keyasint"`
	DataCenter DataCenterID `cbor:"3,keyasint"`
	Cloud      Cloud        `cbor:"4,keyasint"`
	State      HostState    `cbor:"5,keyasint"`
	MachineID  string       `cbor:"6,keyasint"` // bound at join
	BootID     string       `cbor:"7,keyasint,omitempty"`
	Epoch      uint64       `cbor:"8,keyasint"` // grows with every session
	Rev        uint64       `cbor:"9,keyasint"`
	Generation uint64       `cbor:"10,keyasint"` // of its assignments; grows with every change of one
	Inventory  Inventory    `cbor:"11,keyasint"`
	JoinedAt   time.Time    `cbor:"12,keyasint"`
	SeenAt     time.Time    `cbor:"13,keyasint,omitempty"` // when State last changed
}

// DataCenter is a place where hosts stand.
type DataCenter struct {
	ID            DataCenterID `cbor:"1,keyasint"`
	Name          string       `cbor:"2,keyasint"`
	Region        string       `cbor:"3,keyasint"`
	GlobalNetwork bool         `cbor:"4,keyasint,omitempty"`
	Country       string       `cbor:"5,keyasint,omitempty"` // ISO 3166-1 alpha-2, upper case
	Compliance    []string     `cbor:"6,keyasint,omitempty"` // words of wire-facts 3.4
}

// GPUType is a kind of GPU in the catalog.
type GPUType struct {
	ID           string `cbor:"1,keyasint"` // NVIDIA's device name
	Name         string `cbor:"2,keyasint"` // short
	Pool         string `cbor:"3,keyasint,omitempty"`
	Manufacturer string `cbor:"4,keyasint"`
	MemoryGB     int    `cbor:"5,keyasint"`
	Secure       Money  `cbor:"6,keyasint"` // per GPU and hour
	Community    Money  `cbor:"7,keyasint"`
	Serverless   Money  `cbor:"8,keyasint"`
	// Contributed marks a type that a host brought along and no operator has named or priced yet.
	Contributed bool `cbor:"9,keyasint,omitempty"`
}

// CPUFlavor is a kind of CPU share in the catalog.
type CPUFlavor struct {
	ID          string  `cbor:"1,keyasint"`
	Name        string  `cbor:"2,keyasint"`
	Group       string  `cbor:"3,keyasint"`
	MinVCPU     int     `cbor:"4,keyasint"`
	MaxVCPU     int     `cbor:"5,keyasint"`
	RAMPerVCPU  float64 `cbor:"6,keyasint"` // GB
	DiskPerVCPU int     `cbor:"7,keyasint"` // GB of container disk at most
	SecureVCPU  Money   `cbor:"8,keyasint"` // per vCPU and hour
	Serverless  Money   `cbor:"9,keyasint"`
}

// Catalog is what can be asked for, whatever is free at the moment.
type Catalog struct {
	GPUs []GPUType   `cbor:"1,keyasint"`
	CPUs []CPUFlavor `cbor:"2,keyasint"`
	// Storage is nil in clusters that were made before storage had prices; then it is free.
	Storage *StoragePrices `cbor:"3,keyasint,omitempty"`
}

// StoragePrices are per GB and month, of which a year has 12: an hour is 1/730 of it.
type StoragePrices struct {
	ContainerDisk     Money `cbor:"1,keyasint"` // while the pod is charged
	PersistentRunning Money `cbor:"2,keyasint"` // host-local mount, while the pod is charged
	PersistentStopped Money `cbor:"3,keyasint"` // host-local mount, while it is not
	VolumeFirst       Money `cbor:"4,keyasint"` // network volume, first 1000 GB of each
	VolumeBeyond      Money `cbor:"5,keyasint"` // network volume, above
	FastFirst         Money `cbor:"6,keyasint"` // the same of the high-performance tier
	FastBeyond        Money `cbor:"7,keyasint"`
}
