package fakenvml

import (
	"fmt"
	"strings"
)

// Machine is what the fake library says of a machine. The zero value of a field is what a healthy one says.
type Machine struct {
	Driver string // version; 570.124.06 when empty
	CUDA   int    // as NVML writes it, 12080; that when zero
	Init   int    // what nvmlInit returns
	GPUs   []GPU  // at most 16
	XIDs   []XID
	Hang   string // the function, such as nvmlDeviceGetName, that does not return while this stands
	Crash  string // the function that ends its process
}

// GPU is one GPU of a Machine.
type GPU struct {
	Name, UUID    string
	PCI           string // "00000000:3B:00.0"
	Memory, Used  int64  // bytes
	Minor         int    // of its device node
	Util, MemUtil int    // percent
	ECC           int    // uncorrectable errors since the driver was loaded
	Lost          bool   // every call about it says so
	Unreadable    bool   // its memory cannot be read
	RemapFailure  bool
	RemapPending  bool
	Links         []Link // NVLink
	Processes     []int
	MIG           bool
	Instances     []Instance
}

// Link is one NVLink of a GPU.
type Link struct {
	Peer   string // PCI address
	Switch bool   // the peer is a switch
}

// Instance is a MIG instance.
type Instance struct {
	Name, UUID string
	GI, CI     int
	Slices     int // 1, 2, 3, 4 or 7
	MemoryMiB  int
	Processes  []int
}

// XID is an error that the driver reports once to whoever waits. Serials grow; those that stand in the
// script when a process begins to wait are not told.
type XID struct {
	Serial, GPU, Code int
}

// script writes the machine as fake.c reads it.
func (m Machine) script() string {
	var b strings.Builder
	line := func(key string, value any) { fmt.Fprintf(&b, "%s %v\n", key, value) }
	flag := func(key string, on bool) {
		if on {
			line(key, 1)
		}
	}
	line("driver", m.driver())
	line("cuda", m.cuda())
	line("init", m.Init)
	line("hang", m.Hang)
	line("crash", m.Crash)
	for _, g := range m.GPUs {
		line("gpu", "")
		line("name", g.Name)
		line("uuid", g.UUID)
		line("pci", g.PCI)
		line("memory", g.Memory)
		line("used", g.Used)
		line("minor", g.Minor)
		line("util", g.Util)
		line("memutil", g.MemUtil)
		line("ecc", g.ECC)
		flag("lost", g.Lost)
		flag("unreadable", g.Unreadable)
		flag("remapfailure", g.RemapFailure)
		flag("remappending", g.RemapPending)
		flag("mig", g.MIG)
		for _, l := range g.Links {
			kind := 0
			if l.Switch {
				kind = 2
			}
			line("link", fmt.Sprint(kind, " ", l.Peer))
		}
		for _, pid := range g.Processes {
			line("process", pid)
		}
		for _, in := range g.Instances {
			line("instance", "")
			line("iuuid", in.UUID)
			line("iname", in.Name)
			line("iplace", fmt.Sprint(in.GI, in.CI, in.Slices, in.MemoryMiB))
			for _, pid := range in.Processes {
				line("iprocess", pid)
			}
		}
	}
	for _, x := range m.XIDs {
		line("xid", fmt.Sprint(x.Serial, x.GPU, x.Code))
	}
	return b.String()
}

func (m Machine) driver() string {
	if m.Driver == "" {
		return "570.124.06"
	}
	return m.Driver
}

func (m Machine) cuda() int {
	if m.CUDA == 0 {
		return 12080
	}
	return m.CUDA
}

// Healthy returns a machine of n GPUs of one type, 80 GB each, that nothing joins.
func Healthy(n int) Machine {
	var m Machine
	for i := range n {
		m.GPUs = append(m.GPUs, GPU{
			Name: "NVIDIA H100 80GB HBM3", UUID: fmt.Sprintf("GPU-%08x-1111-2222-3333-444444444444", i+1),
			PCI: fmt.Sprintf("00000000:%02X:00.0", 0x10+i), Memory: 85_520_809_984, Minor: i,
		})
	}
	return m
}
