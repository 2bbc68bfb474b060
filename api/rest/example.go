package rest

import "time"

// The examples of the document. A test checks them against the schemas.

func exampleTime(minute int) Time {
	return Time{time.Date(2026, 10, 1, 12, minute, 0, 0, time.UTC)}
}

func exampleCreate() CreatePodRequest {
	return CreatePodRequest{
		Name: "trainer", GPU: &CreateGPUConfig{ID: "NVIDIA H100 80GB HBM3", Count: 1}, Cloud: "SECURE",
		PodSettings: PodSettings{
			Image: "docker.io/library/nginx:1.29", Disk: 20, Ports: []string{"8080/http"}, Env: map[string]string{"EPOCHS": "3"},
		},
	}
}

func examplePod() Pod {
	dc, host, started := "EU-RO-1", "h7d2k9s4f1g6j3", exampleTime(1)
	return Pod{
		ID: "k3n8w0zq5r7d2a", Name: "trainer", Status: "RUNNING", Actions: []string{"stop", "restart", "terminate"},
		Image: "docker.io/library/nginx:1.29", Disk: 20, Ports: []string{"8080/http"}, Env: map[string]string{"EPOCHS": "3"},
		GPU: &GPUConfig{ID: "NVIDIA H100 80GB HBM3", Count: 1}, Cloud: "SECURE", DataCenterID: &dc, Cost: 2.69,
		Runtime: &Runtime{
			Uptime: 42, GPUs: []GPUUse{{Util: 93, MemoryUtil: 60}}, CPU: Use{Util: 12}, Memory: Use{Util: 30}, Disk: Use{Util: 8},
			Ports: []RuntimePort{{Private: 8080, Type: "http"}},
		},
		CreatedAt: exampleTime(0), StartedAt: &started, Incarnation: 1, HostID: &host,
		URLs:  []string{"https://k3n8w0zq5r7d2a-8080.proxy.example.com/"},
		Steps: map[string]Time{"created": exampleTime(0), "started": started},
	}
}

func exampleGPU() GPUType {
	pool, usd, stock := "ADA_80_PRO", 4.18, "HIGH"
	return GPUType{
		ID: "NVIDIA H100 80GB HBM3", Name: "H100 SXM", Pool: &pool, Manufacturer: "NVIDIA", Memory: 80, Secure: true, Community: true,
		Price: GPUPrice{Secure: 2.69, Community: 2.39, Serverless: &usd}, MaxCount: GPUMaxCount{Secure: 8, Community: 8},
		Availability: &stock, DataCenters: []CenterStock{{ID: "EU-RO-1", Name: "EU-RO-1", Availability: "HIGH"}},
		CUDAVersions: []CUDAVersion{{Version: "12.8", Available: true}},
	}
}

func exampleCPU() CPUFlavor {
	stock := "MEDIUM"
	return CPUFlavor{
		ID: "cpu3g", Name: "General Purpose", Group: "cpu3", VCPU: VCPURange{Min: 2, Max: 32}, RAMPerVCPU: 4,
		Price: CPUPrice{SecurePerVCPU: 0.04, ServerlessPerVCPU: 0.05}, Availability: &stock,
		DataCenters: []CenterStock{{ID: "EU-RO-1", Name: "EU-RO-1", Availability: "MEDIUM"}},
	}
}

func exampleCenter() DataCenter {
	return DataCenter{
		ID: "EU-RO-1", Name: "EU-RO-1", Region: "EUROPE", NetworkVolumeTypes: []string{"STANDARD"}, Compliance: []string{},
		GPUAvailability: []Stock{{ID: "NVIDIA H100 80GB HBM3", Name: "H100 SXM", Availability: "HIGH"}},
	}
}

func exampleAccount() Account {
	return Account{ID: "a5f8k2m7q1w4z9", Name: "research", Egress: wordOpen, CreatedAt: exampleTime(0), Limits: exampleAccountLimits()}
}

func exampleHost() Host {
	cuda, driver, since := "12.8", "570.86", exampleTime(1)
	return Host{
		ID: "h7d2k9s4f1g6j3", Name: "gpu-01", DataCenterID: "EU-RO-1", Cloud: "SECURE", State: "ready", Duty: dutyOpen,
		Labels: Labels{"rack": "b4"}, Roles: []string{"storage"}, Volumes: []string{"nfs", "cephfs", "local"}, Epoch: 1,
		Total: Amounts{MilliCPU: 127000, MemoryMB: 1000000, DiskGB: 3000}, Used: Amounts{MilliCPU: 16000, MemoryMB: 120000, DiskGB: 20},
		Notices: []HostNotice{}, GoneGPUs: []GoneGPU{}, GPUs: []HostGPU{{UUID: "GPU-0b1c2d3e-0000-0000-0000-000000000000", Type: "NVIDIA H100 80GB HBM3", MemoryMB: 80000, Island: 1}},
		UsedGPUs: 1, Pods: 1, CUDA: &cuda, Driver: &driver, JoinedAt: exampleTime(0), StateSince: &since,
	}
}
