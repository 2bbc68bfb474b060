package rest

import (
	"gantry/api/v2"
	"gantry/fleet"
)

// accountAmounts shows what was charged for each kind of resource.
func accountAmounts(by map[fleet.ChargeKind]fleet.Amounts) v2.AccountAmounts {
	var all fleet.Amounts
	for _, a := range by {
		all = all.Plus(a)
	}
	pods, workers, members := by[fleet.ChargePod], by[fleet.ChargeEndpoint], by[fleet.ChargeCluster]
	return v2.AccountAmounts{
		Total: all.Total().USD(), PodGPU: pods.GPU.USD(), PodCPU: pods.CPU.USD(), PodDisk: pods.Disk.USD(),
		ServerlessGPU: workers.GPU.USD(), ServerlessCPU: workers.CPU.USD(), ServerlessDisk: workers.Disk.USD(),
		StorageStandard: all.Standard.USD(), StorageHigh: all.Fast.USD(),
		Endpoint: all.Calls.USD(), EndpointRevenue: all.Revenue.USD(), ClusterGPU: members.GPU.USD(), ClusterDisk: members.Disk.USD(),
	}
}

func podAmounts(a fleet.Amounts) v2.PodAmounts {
	return v2.PodAmounts{Total: a.Total().USD(), GPU: a.GPU.USD(), CPU: a.CPU.USD(), Disk: a.Disk.USD()}
}

func volumeAmounts(a fleet.Amounts) v2.VolumeAmounts {
	return v2.VolumeAmounts{Total: a.Total().USD(), Standard: a.Standard.USD(), High: a.Fast.USD()}
}

func clusterAmounts(a fleet.Amounts) v2.ClusterAmounts {
	return v2.ClusterAmounts{Total: a.Total().USD(), GPU: a.GPU.USD(), Disk: a.Disk.USD()}
}

func endpointAmounts(a fleet.Amounts) v2.EndpointAmounts {
	return v2.EndpointAmounts{Total: a.Total().USD(), Revenue: a.Revenue.USD()}
}

func period(r fleet.BillingRecord) v2.BillingPeriod {
	return v2.BillingPeriod{StartTime: v2.At(r.Start), EndTime: v2.At(r.End)}
}

func window(v fleet.BillingView) v2.BillingWindow {
	return v2.BillingWindow{StartTime: v2.At(v.Start), EndTime: v2.At(v.End), BucketSize: string(v.Bucket)}
}
