package fleet

import "time"

// Capacity is what the fleet has room for, by what GPUs are whole.
type Capacity struct {
	GPUs     []GPUCapacity // by type
	Stranded []StrandedGPUs
	Busy     []BusyHost
}

// BusyHost is how busy the GPUs of a host are that pods hold, where that is measured.
type BusyHost struct {
	Host HostID
	Util int // per cent, a mean
}

// CapacityAt is what was free at a moment.
type CapacityAt struct {
	At   time.Time
	GPUs []GPUCapacity // by type
}

// GPUCapacity is what is free of a GPU type. What is free is in service, held by no pod, and on a host that takes pods.
type GPUCapacity struct {
	Type        string
	Total, Free int
	Most        int // free on one host
	// Fit are how many pods of so many GPUs fit now, one beside the other, with the least that such pods hold.
	Fit map[int]int
	// Stranded are those of the free ones that no pod can have, by what their hosts have too little of.
	Stranded map[Shortage]int
}

// WholeGPUs are the counts of GPUs of a pod that Fit tells of.
func WholeGPUs() []int { return []int{8, 4, 2, 1} }

// Shortage is a resource of which a host has too little for its free GPUs.
type Shortage string

// The resources.
const (
	ShortOfCPU    Shortage = "cpu"
	ShortOfMemory Shortage = "memory"
	ShortOfDisk   Shortage = "disk"
)

// Shortages returns all of them.
func Shortages() []Shortage { return []Shortage{ShortOfCPU, ShortOfMemory, ShortOfDisk} }

// StrandedGPUs are free GPUs of a host that no pod can have.
type StrandedGPUs struct {
	Host  HostID
	Name  string
	Type  string
	GPUs  int
	Short Shortage
	Pods  []PodID // that hold more of it than falls to their GPUs, what holds most first; a few at most
}
