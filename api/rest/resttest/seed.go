package resttest

import (
	"fmt"
	"time"

	"gantry/fleet"
)

// SimGPU is the GPU type of the one host.
const SimGPU = "NVIDIA H100 80GB HBM3"

// catalog has a type that the host has, one that it has not, and two flavors.
func catalog(dc fleet.DataCenter) fleet.CatalogView {
	gpu := func(id, name, pool string, memory int, secure, community, serverless float64) fleet.GPUOffer {
		return fleet.GPUOffer{GPUType: fleet.GPUType{
			ID: id, Name: name, Pool: pool, Manufacturer: "NVIDIA", MemoryGB: memory,
			Secure: fleet.MoneyUSD(secure), Community: fleet.MoneyUSD(community), Serverless: fleet.MoneyUSD(serverless),
		}}
	}
	cpu := func(id, name string, ram float64, usd float64) fleet.CPUOffer {
		return fleet.CPUOffer{CPUFlavor: fleet.CPUFlavor{
			ID: id, Name: name, Group: "cpu3", MinVCPU: 2, MaxVCPU: 32, RAMPerVCPU: ram, DiskPerVCPU: 10,
			SecureVCPU: fleet.MoneyUSD(usd), Serverless: fleet.MoneyUSD(usd + 0.01),
		}}
	}
	return fleet.CatalogView{
		Centers: []fleet.DataCenter{dc},
		GPUs: []fleet.GPUOffer{
			gpu(SimGPU, "H100 SXM", "ADA_80_PRO", 80, 2.69, 2.39, 4.18),
			gpu("NVIDIA GeForce RTX 4090", "RTX 4090", "ADA_24", 24, 0.69, 0.34, 1.1),
			gpu("NVIDIA A30", "A30", "", 24, 0.4, 0, 0),
		},
		CPUs: []fleet.CPUOffer{cpu("cpu3c", "Compute-Optimized", 2, 0.03), cpu("cpu3g", "General Purpose", 4, 0.04)},
	}
}

func host(dc fleet.DataCenterID, now time.Time) fleet.Host {
	h := fleet.Host{
		ID: "host0000000001", Name: "host-1", DataCenter: dc, Cloud: fleet.CloudSecure, State: fleet.HostReady, Epoch: 1, JoinedAt: now, SeenAt: now,
		Inventory: fleet.Inventory{
			Total: fleet.Resources{MilliCPU: 64000, MemoryMB: 512000, DiskGB: 1000}, CUDA: "12.8", Driver: "570.86", Kernel: "6.1.0",
			Runtime: "containerd 1.6.20, runc 1.1.5", AgentVersion: "1.0.0",
		},
	}
	for i := range 8 {
		h.Inventory.GPUs = append(h.Inventory.GPUs, fleet.GPU{
			UUID: fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i), Type: SimGPU, MemoryMB: 80000, Island: 1, Simulated: true,
		})
	}
	return h
}
