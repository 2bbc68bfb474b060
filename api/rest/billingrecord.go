package rest

import (
	"gantry/api/v2"
	"gantry/fleet"
)

func accountAmounts(a fleet.Amounts) v2.AccountAmounts {
	return v2.AccountAmounts{
		Total: a.Total().USD(), PodGPU: a.GPU.USD(), PodCPU: a.CPU.USD(), PodDisk: a.Disk.USD(),
		StorageStandard: a.Standard.USD(), StorageHigh: a.Fast.USD(),
	}
}

func podAmounts(a fleet.Amounts) v2.PodAmounts {
	return v2.PodAmounts{Total: a.Total().USD(), GPU: a.GPU.USD(), CPU: a.CPU.USD(), Disk: a.Disk.USD()}
}

func volumeAmounts(a fleet.Amounts) v2.VolumeAmounts {
	return v2.VolumeAmounts{Total: a.Total().USD(), Standard: a.Standard.USD(), High: a.Fast.USD()}
}

func period(r fleet.BillingRecord) v2.BillingPeriod {
	return v2.BillingPeriod{StartTime: v2.At(r.Start), EndTime: v2.At(r.End)}
}

func window(v fleet.BillingView) v2.BillingWindow {
	return v2.BillingWindow{StartTime: v2.At(v.Start), EndTime: v2.At(v.End), BucketSize: string(v.Bucket)}
}
