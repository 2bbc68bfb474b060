package rest

import (
	"context"
	"net/http"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// PlacementService keeps the setting of placement, and tells what fits.
type PlacementService interface {
	Placement(ctx context.Context) (fleet.Placement, error)
	PutPlacement(ctx context.Context, placement fleet.Placement) (fleet.Placement, error)
	// Capacity returns what the hosts have room for.
	Capacity(ctx context.Context) (fleet.Capacity, error)
	// CapacityHistory returns what there was over the last day, oldest first.
	CapacityHistory(ctx context.Context) ([]fleet.CapacityAt, error)
}

func (a *API) registerCapacity() {
	read := auth.Read(fleet.GroupAdmin)
	example := capacityRecord(fleet.Capacity{GPUs: []fleet.GPUCapacity{{
		Type: "NVIDIA H100 80GB HBM3", Total: 16, Free: 11, Most: 8, Fit: map[int]int{8: 1, 4: 2, 2: 4, 1: 8},
		Stranded: map[fleet.Shortage]int{fleet.ShortOfCPU: 3},
	}}, Stranded: []fleet.StrandedGPUs{{
		Host: "h7d2k9s4f1g6j3", Name: "gpu-01", Type: "NVIDIA H100 80GB HBM3", GPUs: 3, Short: fleet.ShortOfCPU, Pods: []fleet.PodID{"k3n8w0zq5r7d2a"},
	}}, Busy: []fleet.BusyHost{{Host: "h7d2k9s4f1g6j3", Util: 87}}})
	settings := admin.PlacementSettings(fleet.DefaultPlacement())
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/placement", id: "getPlacement", tag: "Operators", summary: "Get the setting of placement",
		text:  "Returns how much of a host is kept for its free GPUs.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: settings,
	}, func(ctx context.Context, svc PlacementService, _ *call, _ *none) (*admin.PlacementSettings, error) {
		return show(placementRecord)(svc.Placement(ctx))
	})
	on(a, route{
		method: http.MethodPut, path: "/admin/v1/placement", id: "putPlacement", tag: "Operators", summary: "Set the setting of placement",
		text:  "Sets how much of a host is kept for its free GPUs. Pods keep what they have.",
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, in: settings, out: settings,
	}, func(ctx context.Context, svc PlacementService, _ *call, in *admin.PlacementSettings) (*admin.PlacementSettings, error) {
		return show(placementRecord)(svc.PutPlacement(ctx, fleet.Placement(*in)))
	})
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/capacity", id: "getCapacity", tag: "Operators", summary: "See what the hosts have room for",
		text:  "Returns what is free of each GPU type, how many whole pods fit, and which free GPUs no pod can have.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: example,
	}, func(ctx context.Context, svc PlacementService, _ *call, _ *none) (*admin.Capacity, error) {
		return show(capacityRecord)(svc.Capacity(ctx))
	})
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/capacity/history", id: "getCapacityHistory", tag: "Operators", summary: "See what the hosts had room for",
		text: "Returns what was free of each GPU type (of 32 at most), every 5 minutes of the last day, oldest first. It is what the leader saw since it was " +
			"started: longer histories are Prometheus's.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK,
		out: admin.CapacityHistory{Samples: []admin.CapacityAt{{At: exampleTime(0), GPUs: []admin.GPUsAt{{Type: "NVIDIA H100 80GB HBM3", Total: 16, Free: 11, Most: 8, Stranded: 3}}}}},
	}, func(ctx context.Context, svc PlacementService, _ *call, _ *none) (*admin.CapacityHistory, error) {
		samples, err := showAll(capacityAtRecord)(svc.CapacityHistory(ctx))
		return &admin.CapacityHistory{Samples: samples}, err
	})
}

func capacityAtRecord(c fleet.CapacityAt) admin.CapacityAt {
	out := admin.CapacityAt{At: v2.At(c.At), GPUs: []admin.GPUsAt{}}
	for _, g := range c.GPUs {
		at := admin.GPUsAt{Type: g.Type, Total: g.Total, Free: g.Free, Most: g.Most}
		for _, n := range g.Stranded {
			at.Stranded += n
		}
		out.GPUs = append(out.GPUs, at)
	}
	return out
}

func placementRecord(p fleet.Placement) admin.PlacementSettings { return admin.PlacementSettings(p) }

func capacityRecord(c fleet.Capacity) admin.Capacity {
	out := admin.Capacity{GPUs: []admin.GPUCapacity{}, Stranded: []admin.StrandedGPUs{}, Busy: []admin.BusyHost{}}
	for _, b := range c.Busy {
		out.Busy = append(out.Busy, admin.BusyHost{HostID: string(b.Host), Util: b.Util})
	}
	for _, g := range c.GPUs {
		out.GPUs = append(out.GPUs, admin.GPUCapacity{
			Type: g.Type, Total: g.Total, Free: g.Free, Most: g.Most, Fit: admin.WholePods{Eight: g.Fit[8], Four: g.Fit[4], Two: g.Fit[2], One: g.Fit[1]},
			Stranded: admin.StrandedCounts{
				CPU: g.Stranded[fleet.ShortOfCPU], Memory: g.Stranded[fleet.ShortOfMemory], Disk: g.Stranded[fleet.ShortOfDisk],
			},
		})
	}
	for _, s := range c.Stranded {
		pods := []string{}
		for _, id := range s.Pods {
			pods = append(pods, string(id))
		}
		out.Stranded = append(out.Stranded, admin.StrandedGPUs{
			HostID: string(s.Host), Name: s.Name, Type: s.Type, GPUs: s.GPUs, Short: string(s.Short), Pods: pods,
		})
	}
	return out
}
