package rest

import (
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/fleet"
)

// The examples of the document. A test checks them against the schemas.

func exampleTime(minute int) v2.Time {
	return v2.At(time.Date(2026, 10, 1, 12, minute, 0, 0, time.UTC))
}

func exampleCreate() v2.CreatePodRequest {
	return v2.CreatePodRequest{
		Name: "trainer", GPU: &v2.CreateGPUConfig{ID: "NVIDIA H100 80GB HBM3", Count: 1}, Cloud: "SECURE",
		PodSettings: v2.PodSettings{
			Image: new("docker.io/library/nginx:1.29"), Disk: new(20), Ports: []string{"8080/http"}, Env: map[string]string{"EPOCHS": "3"},
		},
	}
}

func examplePod() v2.Pod {
	started := exampleTime(1)
	return v2.Pod{
		ID: "k3n8w0zq5r7d2a", Name: "trainer", Status: "RUNNING", Actions: []string{"stop", "restart", "terminate"},
		Image: "docker.io/library/nginx:1.29", Disk: 20, Ports: []string{"8080/http"}, Env: map[string]string{"EPOCHS": "3"},
		GPU: &v2.GPUConfig{ID: "NVIDIA H100 80GB HBM3", Count: 1}, Cloud: "SECURE", DataCenterID: "EU-RO-1", Cost: 2.69,
		Runtime: &v2.Runtime{
			Uptime: 42, GPUs: []v2.GPUUse{{Util: 93, MemoryUtil: 60}}, CPU: v2.Use{Util: 12}, Memory: v2.Use{Util: 30}, Disk: v2.Use{Util: 8},
			Ports: []v2.RuntimePort{{Private: 8080, Type: "http"}},
		},
		CreatedAt: exampleTime(0), StartedAt: &started, Incarnation: 1, HostID: "h7d2k9s4f1g6j3",
		URLs:  []string{"https://k3n8w0zq5r7d2a-8080.proxy.example.com/"},
		Steps: map[fleet.Step]v2.Time{"created": exampleTime(0), "started": started},
	}
}

func exampleGPU() v2.GPUType {
	return v2.GPUType{
		ID: "NVIDIA H100 80GB HBM3", Name: "H100 SXM", Pool: "ADA_80_PRO", Manufacturer: "NVIDIA", Memory: 80, Secure: true, Community: true,
		Price: v2.GPUPrice{Secure: 2.69, Community: 2.39, Serverless: new(4.18)}, MaxCount: v2.GPUMaxCount{Secure: 8, Community: 8},
		Availability: "HIGH", DataCenters: []v2.CenterStock{{ID: "EU-RO-1", Name: "EU-RO-1", Availability: "HIGH"}},
		CUDAVersions: []v2.CUDAVersion{{Version: "12.8", Available: true}},
	}
}

func exampleCPU() v2.CPUFlavor {
	return v2.CPUFlavor{
		ID: "cpu3g", Name: "General Purpose", Group: "cpu3", VCPU: v2.VCPURange{Min: 2, Max: 32}, RAMPerVCPU: 4,
		Price: v2.CPUPrice{SecurePerVCPU: 0.04, ServerlessPerVCPU: 0.05}, Availability: "MEDIUM",
		DataCenters: []v2.CenterStock{{ID: "EU-RO-1", Name: "EU-RO-1", Availability: "MEDIUM"}},
	}
}

func exampleCenter() v2.DataCenter {
	return v2.DataCenter{
		ID: "EU-RO-1", Name: "EU-RO-1", Region: "EUROPE", NetworkVolumeTypes: []string{"STANDARD"}, Compliance: []string{},
		GPUAvailability: []v2.Stock{{ID: "NVIDIA H100 80GB HBM3", Name: "H100 SXM", Availability: "HIGH"}},
	}
}

func exampleAccount() v2.Account {
	return v2.Account{ID: "a5f8k2m7q1w4z9", Name: "research", Egress: wordOpen, CreatedAt: exampleTime(0), Limits: exampleAccountLimits()}
}

func exampleFabric() *admin.HostFabric {
	return &admin.HostFabric{Mode: "share", Kind: "InfiniBand", Gbps: 400, Ports: []admin.FabricPort{{
		Device: "mlx5_0", Port: 1, Netdev: "ib0", LinkLayer: "InfiniBand", State: "ACTIVE", Gbps: 400, Subnet: "fe80:0000:0000:0000", GUID: "b8ce:f603:0011:2233",
	}}}
}

func exampleHost() admin.Host {
	since := exampleTime(1)
	return admin.Host{
		ID: "h7d2k9s4f1g6j3", Name: "gpu-01", DataCenterID: "EU-RO-1", Cloud: "SECURE", State: "ready", Eligibility: eligible,
		Labels: admin.Labels{"rack": "b4"}, Roles: []string{"storage"}, Volumes: []string{"nfs", "cephfs", "local"}, Epoch: 1,
		Total: admin.Amounts{MilliCPU: 127000, MemoryMB: 1000000, DiskGB: 3000}, Used: admin.Amounts{MilliCPU: 16000, MemoryMB: 120000, DiskGB: 20},
		Conditions: []admin.HostCondition{}, GoneGPUs: []admin.GoneGPU{}, GPUs: []admin.HostGPU{{UUID: "GPU-0b1c2d3e-0000-0000-0000-000000000000", Type: "NVIDIA H100 80GB HBM3", MemoryMB: 80000, Island: 1}},
		UsedGPUs: 1, Pods: 1, Fabric: exampleFabric(), CUDA: "12.8", Driver: "570.86", JoinedAt: exampleTime(0), StateSince: &since,
	}
}
