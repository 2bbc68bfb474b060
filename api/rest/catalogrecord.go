package rest

import (
	"cmp"

	"gantry/api/v2"
	"gantry/fleet"
)

func gpuRecord(o fleet.GPUOffer, stock, cluster bool) v2.GPUType {
	out := v2.GPUType{
		ID: o.ID, Name: o.Name, Pool: v2.Text(o.Pool), Manufacturer: o.Manufacturer, Memory: o.MemoryGB,
		Secure: o.Secure > 0 || o.MaxSecure > 0, Community: o.Community > 0 || o.MaxCommunity > 0,
		Price:    v2.GPUPrice{Secure: o.Secure.USD(), Community: o.Community.USD()},
		MaxCount: v2.GPUMaxCount{Secure: o.MaxSecure, Community: o.MaxCommunity},
	}
	out.Price.Serverless, out.Price.SecureSpot, out.Price.CommunitySpot = priceOrNull(o.Serverless), priceOrNull(o.SecureSpot), priceOrNull(o.CommunitySpot)
	if !stock {
		return out
	}
	out.Availability, out.DataCenters, out.CUDAVersions = stockOrNone(o.Stock), centerStocks(o.Centers), []v2.CUDAVersion{}
	for _, v := range o.CUDA {
		out.CUDAVersions = append(out.CUDAVersions, v2.CUDAVersion{Version: v, Available: true})
	}
	if cluster {
		out.Fabrics = []v2.Fabric{}
		for _, f := range o.Fabrics {
			out.Fabrics = append(out.Fabrics, v2.Fabric{Kind: f.Kind, Gbps: float64(f.Mbps) / 1000})
		}
	}
	return out
}

// priceOrNull returns nil for no price.
func priceOrNull(m fleet.Money) *float64 {
	if m == 0 {
		return nil
	}
	return new(m.USD())
}

func cpuRecord(o fleet.CPUOffer, stock bool) v2.CPUFlavor {
	out := v2.CPUFlavor{
		ID: o.ID, Name: o.Name, Group: o.Group, VCPU: v2.VCPURange{Min: o.MinVCPU, Max: o.MaxVCPU}, RAMPerVCPU: o.RAMPerVCPU,
		Price: v2.CPUPrice{SecurePerVCPU: o.SecureVCPU.USD(), ServerlessPerVCPU: o.Serverless.USD()},
	}
	if stock {
		out.Availability, out.DataCenters = stockOrNone(o.Stock), centerStocks(o.Centers)
	}
	return out
}

func centerRecord(dc fleet.DataCenter, view fleet.CatalogView, gpus, cpus bool) v2.DataCenter {
	out := v2.DataCenter{
		ID: string(dc.ID), Name: dc.Name, Region: cmp.Or(dc.Region, "UNKNOWN"), GlobalNetwork: dc.GlobalNetwork,
		NetworkVolumeTypes: []string{}, Compliance: append([]string{}, dc.Compliance...),
	}
	for _, tier := range view.VolumeTypes[dc.ID] {
		out.NetworkVolumeTypes = append(out.NetworkVolumeTypes, string(tier))
	}
	if gpus {
		out.GPUAvailability = []v2.Stock{}
		for _, o := range view.GPUs {
			out.GPUAvailability = append(out.GPUAvailability, v2.Stock{ID: o.ID, Name: o.Name, Availability: stockAt(o.Centers, dc.ID)})
		}
	}
	if cpus {
		out.CPUAvailability = []v2.Stock{}
		for _, o := range view.CPUs {
			out.CPUAvailability = append(out.CPUAvailability, v2.Stock{ID: o.ID, Name: o.Name, Availability: stockAt(o.Centers, dc.ID)})
		}
	}
	return out
}

func stockOrNone(a fleet.Availability) string { return string(cmp.Or(a, fleet.AvailableNone)) }

func centerStocks(in []fleet.CenterStock) []v2.CenterStock {
	out := []v2.CenterStock{}
	for _, s := range in {
		out = append(out, v2.CenterStock{ID: string(s.Center.ID), Name: s.Center.Name, Availability: stockOrNone(s.Stock)})
	}
	return out
}

func stockAt(in []fleet.CenterStock, id fleet.DataCenterID) string {
	for _, s := range in {
		if s.Center.ID == id {
			return stockOrNone(s.Stock)
		}
	}
	return string(fleet.AvailableNone)
}
