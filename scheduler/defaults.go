package scheduler

import "gantry/fleet"

// DefaultCatalog is the catalog of a new cluster: NVIDIA's device names with the pools and sizes of
// wire-facts 6.6, its CPU flavors, and list prices that operators change to theirs.
func DefaultCatalog() fleet.Catalog {
	return fleet.Catalog{GPUs: append(pooledGPUs(), otherGPUs()...), CPUs: defaultFlavors(), Storage: defaultStorage()}
}

// gpu is a GPU type with its prices in USD per hour.
func gpu(pool, id, name string, memory int, secure, community float64) fleet.GPUType {
	return fleet.GPUType{
		ID: id, Name: name, Pool: pool, Manufacturer: "NVIDIA", MemoryGB: memory,
		Secure: fleet.MoneyUSD(secure), Community: fleet.MoneyUSD(community), Serverless: fleet.MoneyUSD(secure * 1.3),
		SecureSpot: fleet.MoneyUSD(secure * 0.5), CommunitySpot: fleet.MoneyUSD(community * 0.5),
	}
}

// defaultStorage is in USD per GB and month.
func defaultStorage() *fleet.StoragePrices {
	return &fleet.StoragePrices{
		ContainerDisk: fleet.MoneyUSD(0.10), PersistentRunning: fleet.MoneyUSD(0.10), PersistentStopped: fleet.MoneyUSD(0.20),
		VolumeFirst: fleet.MoneyUSD(0.07), VolumeBeyond: fleet.MoneyUSD(0.05),
		FastFirst: fleet.MoneyUSD(0.14), FastBeyond: fleet.MoneyUSD(0.10),
	}
}

func defaultFlavors() []fleet.CPUFlavor {
	cpu := func(id, name, group string, ram float64, disk int, perVCPU float64) fleet.CPUFlavor {
		return fleet.CPUFlavor{
			ID: id, Name: name, Group: group, MinVCPU: 2, MaxVCPU: 32, RAMPerVCPU: ram, DiskPerVCPU: disk,
			SecureVCPU: fleet.MoneyUSD(perVCPU), Serverless: fleet.MoneyUSD(perVCPU * 1.3),
		}
	}
	return []fleet.CPUFlavor{
		cpu("cpu3c", "Compute-Optimized", "CPU3", 2, 10, 0.030),
		cpu("cpu3g", "General Purpose", "CPU3", 4, 10, 0.040),
		cpu("cpu3m", "Memory-Optimized", "CPU3", 8, 10, 0.055),
		cpu("cpu5c", "Compute-Optimized", "CPU5", 2, 15, 0.035),
		cpu("cpu5g", "General Purpose", "CPU5", 4, 15, 0.045),
		cpu("cpu5m", "Memory-Optimized", "CPU5", 8, 15, 0.065),
	}
}

func pooledGPUs() []fleet.GPUType {
	return []fleet.GPUType{
		gpu("AMPERE_16", "NVIDIA RTX A4000", "RTX A4000", 16, 0.25, 0.17),
		gpu("AMPERE_16", "NVIDIA RTX A4500", "RTX A4500", 20, 0.25, 0.19),
		gpu("AMPERE_16", "NVIDIA RTX 4000 Ada Generation", "RTX 4000 Ada", 20, 0.26, 0.20),
		gpu("AMPERE_16", "NVIDIA RTX 2000 Ada Generation", "RTX 2000 Ada", 16, 0.24, 0.18),
		gpu("AMPERE_24", "NVIDIA RTX A5000", "RTX A5000", 24, 0.27, 0.16),
		gpu("AMPERE_24", "NVIDIA L4", "L4", 24, 0.39, 0.32),
		gpu("AMPERE_24", "NVIDIA GeForce RTX 3090", "RTX 3090", 24, 0.46, 0.22),
		gpu("ADA_24", "NVIDIA GeForce RTX 4090", "RTX 4090", 24, 0.69, 0.34),
		gpu("ADA_32_PRO", "NVIDIA GeForce RTX 5090", "RTX 5090", 32, 0.99, 0.69),
		gpu("AMPERE_48", "NVIDIA A40", "A40", 48, 0.40, 0.35),
		gpu("AMPERE_48", "NVIDIA RTX A6000", "RTX A6000", 48, 0.49, 0.33),
		gpu("ADA_48_PRO", "NVIDIA L40", "L40", 48, 0.99, 0.69),
		gpu("ADA_48_PRO", "NVIDIA L40S", "L40S", 48, 0.86, 0.79),
		gpu("ADA_48_PRO", "NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 48, 0.77, 0.74),
		gpu("AMPERE_80", "NVIDIA A100 80GB PCIe", "A100 PCIe", 80, 1.64, 1.19),
		gpu("AMPERE_80", "NVIDIA A100-SXM4-80GB", "A100 SXM", 80, 1.74, 1.39),
		gpu("ADA_80_PRO", "NVIDIA H100 PCIe", "H100 PCIe", 80, 2.39, 1.99),
		gpu("ADA_80_PRO", "NVIDIA H100 80GB HBM3", "H100 SXM", 80, 2.69, 2.69),
		gpu("ADA_80_PRO", "NVIDIA H100 NVL", "H100 NVL", 94, 2.79, 2.59),
		gpu("HOPPER_141", "NVIDIA H200", "H200 SXM", 141, 3.59, 3.59),
		gpu("BLACKWELL_96", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000", 96, 1.84, 1.69),
		gpu("BLACKWELL_96", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 WK", 96, 1.84, 1.69),
		gpu("BLACKWELL_96", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 MaxQ", 96, 1.74, 1.59),
		gpu("BLACKWELL_180", "NVIDIA B200", "B200", 180, 5.98, 5.98),
	}
}

// otherGPUs are those that belong to no pool.
func otherGPUs() []fleet.GPUType {
	mi300 := gpu("", "AMD Instinct MI300X OAM", "MI300X", 192, 2.99, 2.49)
	mi300.Manufacturer = "AMD"
	return []fleet.GPUType{
		mi300,
		gpu("", "NVIDIA B300 SXM6 AC", "B300", 288, 7.49, 7.49),
		gpu("", "NVIDIA H200 NVL", "H200 NVL", 143, 3.39, 3.39),
		gpu("", "NVIDIA A30", "A30", 24, 0.32, 0.22),
		gpu("", "NVIDIA RTX 5000 Ada Generation", "RTX 5000 Ada", 32, 0.78, 0.54),
		gpu("", "NVIDIA RTX 4000 SFF Ada Generation", "RTX 4000 Ada SFF", 20, 0.24, 0.18),
		gpu("", "NVIDIA RTX A2000", "RTX A2000", 6, 0.14, 0.12),
		gpu("", "NVIDIA RTX PRO 4500 Blackwell", "RTX PRO 4500", 32, 0.74, 0.64),
		gpu("", "NVIDIA GeForce RTX 3070", "RTX 3070", 8, 0.16, 0.13),
		gpu("", "NVIDIA GeForce RTX 3080", "RTX 3080", 10, 0.20, 0.17),
		gpu("", "NVIDIA GeForce RTX 3080 Ti", "RTX 3080 Ti", 12, 0.22, 0.18),
		gpu("", "NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti", 24, 0.48, 0.27),
		gpu("", "NVIDIA GeForce RTX 4070 Ti", "RTX 4070 Ti", 12, 0.24, 0.19),
		gpu("", "NVIDIA GeForce RTX 4080", "RTX 4080", 16, 0.34, 0.27),
		gpu("", "NVIDIA GeForce RTX 4080 SUPER", "RTX 4080 SUPER", 16, 0.36, 0.28),
		gpu("", "NVIDIA GeForce RTX 5080", "RTX 5080", 16, 0.49, 0.39),
		gpu("", "Tesla V100-PCIE-16GB", "V100", 16, 0.23, 0.19),
		gpu("", "Tesla V100-SXM2-16GB", "V100 SXM2", 16, 0.25, 0.21),
		gpu("", "Tesla V100-SXM2-32GB", "V100 SXM2 32GB", 32, 0.35, 0.29),
		gpu("", "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb", "RTX PRO 6000 MIG 1g.24gb", 24, 0.49, 0.45),
		gpu("", "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 2g.48gb", "RTX PRO 6000 MIG 2g.48gb", 48, 0.95, 0.87),
	}
}
