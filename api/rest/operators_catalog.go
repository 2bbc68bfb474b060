package rest

import (
	"context"
	"math/bits"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// CatalogEntryService keeps the entries of the catalog and the prices of storage.
type CatalogEntryService interface {
	PutDataCenter(ctx context.Context, dc fleet.DataCenter) error
	DeleteDataCenter(ctx context.Context, id fleet.DataCenterID) error
	PutGPUType(ctx context.Context, t fleet.GPUType) error
	DeleteGPUType(ctx context.Context, id string) error
	PutCPUFlavor(ctx context.Context, f fleet.CPUFlavor) error
	DeleteCPUFlavor(ctx context.Context, id string) error
	StoragePrices(ctx context.Context) (fleet.StoragePrices, error)
	PutStoragePrices(ctx context.Context, p fleet.StoragePrices) error
}

const (
	// gpuIDPattern takes device names as drivers print them; a comma would break lists in queries.
	gpuIDPattern    = `^[!-+\--~]( ?[!-+\--~]){0,190}$`
	flavorIDPattern = `^[a-z][a-z0-9]{0,31}$`
	centerIDPattern = `^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`
)

// putRoutes registers what the three tables of the catalog have in common: list, put and delete.
func putRoutes[ID ~string, Body, Record, List any](
	a *API, path, noun string, id *huma.Param, text string, body Body, record Record, list List,
	all func(context.Context, CatalogService, *call, *none) (*List, error), put func(context.Context, CatalogEntryService, *call, *Body) (*Record, error),
	remove func(CatalogEntryService, context.Context, ID) error,
) {
	at, name := "/admin/v1/"+path, operationName(noun)
	on(a, route{
		method: http.MethodGet, path: at, id: "list" + name + "Entries", tag: "Operators", summary: "List " + noun + "s of the catalog",
		text: "Lists the catalog's " + noun + "s as they were put. " + text, scope: auth.Read(fleet.GroupAdmin), limit: limit.PerAccount,
		status: http.StatusOK, out: list,
	}, all)
	on(a, route{
		method: http.MethodPut, path: at + "/{id}", id: "put" + name, tag: "Operators", summary: "Make or replace a " + noun,
		text:  "Makes a " + noun + ", or replaces the one of this id. " + text + " Prices hold for what starts from now on.",
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{id}, in: body, out: record,
	}, put)
	on(a, route{
		method: http.MethodDelete, path: at + "/{id}", id: "delete" + name, tag: "Operators", summary: "Delete a " + noun,
		text:  "Deletes a " + noun + ". 400: it is in use. 404: there is none of this id.",
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{id},
	}, func(ctx context.Context, svc CatalogEntryService, c *call, _ *none) (*none, error) {
		return nil, remove(svc, ctx, ID(c.args.text("id")))
	})
}

// operationName writes the words of a noun as part of an operationId.
func operationName(noun string) string {
	return map[string]string{"data center": "DataCenter", "GPU type": "GpuType", "CPU flavor": "CpuFlavor"}[noun]
}

// entryParam is the parameter {id} of a catalog entry that may be new.
func entryParam(text, example, pattern, rule string) *huma.Param {
	p := pathParam(text, example)
	p.Schema.Pattern, p.Schema.PatternDescription = pattern, rule
	return p
}

func (a *API) registerCatalogEntries() {
	gpu := admin.GPUTypeEntry{ID: "NVIDIA H100 80GB HBM3", Pool: "ADA_80_PRO", PutGPUTypeRequest: exampleGPUBody()}
	putRoutes(a, "gpu-types", "GPU type",
		entryParam("NVIDIA's device name, percent-encoded.", gpu.ID, gpuIDPattern, "printable ASCII without commas, single spaces inside"),
		"Memory is GB, prices are USD per GPU and hour. Types that hosts bring along are added by themselves, without a price (contributed); a type without a "+
			"price is refused to prepaid accounts.", gpu.PutGPUTypeRequest, gpu, admin.GPUTypeEntryList{GPUTypes: []admin.GPUTypeEntry{gpu}},
		listGPUEntries, putGPUType, CatalogEntryService.DeleteGPUType)
	cpu := admin.CPUFlavorEntry{ID: "cpu3g", PutCPUFlavorRequest: exampleCPUBody()}
	putRoutes(a, "cpu-flavors", "CPU flavor",
		entryParam("CPU flavor.", cpu.ID, flavorIDPattern, "small letters and digits, starting with a letter, at most 32"),
		"Memory and disk are GB, prices are USD per vCPU and hour. Pods keep a flavor that is deleted.",
		cpu.PutCPUFlavorRequest, cpu, admin.CPUFlavorEntryList{CPUFlavors: []admin.CPUFlavorEntry{cpu}},
		listCPUEntries, putCPUFlavor, CatalogEntryService.DeleteCPUFlavor)
}

func listGPUEntries(ctx context.Context, svc CatalogService, _ *call, _ *none) (*admin.GPUTypeEntryList, error) {
	view, err := svc.Catalog(ctx, fleet.CatalogQuery{})
	all, err := showAll(func(o fleet.GPUOffer) admin.GPUTypeEntry { return gpuEntry(o.GPUType) })(view.GPUs, err)
	return &admin.GPUTypeEntryList{GPUTypes: all}, err
}

func putGPUType(ctx context.Context, svc CatalogEntryService, c *call, in *admin.PutGPUTypeRequest) (*admin.GPUTypeEntry, error) {
	t := fleet.GPUType{
		ID: c.args.text("id"), Name: in.Name, Pool: in.Pool, Manufacturer: in.Manufacturer, MemoryGB: in.Memory, Secure: fleet.MoneyUSD(in.Price.Secure),
		Community: fleet.MoneyUSD(in.Price.Community), Serverless: fleet.MoneyUSD(in.Price.Serverless),
		SecureSpot: fleet.MoneyUSD(in.Price.SecureSpot), CommunitySpot: fleet.MoneyUSD(in.Price.CommunitySpot),
	}
	return show(gpuEntry)(t, svc.PutGPUType(ctx, t))
}

func listCPUEntries(ctx context.Context, svc CatalogService, _ *call, _ *none) (*admin.CPUFlavorEntryList, error) {
	view, err := svc.Catalog(ctx, fleet.CatalogQuery{})
	all, err := showAll(func(o fleet.CPUOffer) admin.CPUFlavorEntry { return cpuEntry(o.CPUFlavor) })(view.CPUs, err)
	return &admin.CPUFlavorEntryList{CPUFlavors: all}, err
}

func putCPUFlavor(ctx context.Context, svc CatalogEntryService, c *call, in *admin.PutCPUFlavorRequest) (*admin.CPUFlavorEntry, error) {
	if in.VCPU.Min > in.VCPU.Max {
		return nil, fleet.BreaksRule("vcpu.min must not be above vcpu.max")
	}
	f := fleet.CPUFlavor{
		ID: c.args.text("id"), Name: in.Name, Group: in.Group, MinVCPU: in.VCPU.Min, MaxVCPU: in.VCPU.Max, RAMPerVCPU: in.RAMPerVCPU, DiskPerVCPU: in.DiskPerVCPU,
		SecureVCPU: fleet.MoneyUSD(in.Price.SecurePerVCPU), Serverless: fleet.MoneyUSD(in.Price.ServerlessPerVCPU),
	}
	return show(cpuEntry)(f, svc.PutCPUFlavor(ctx, f))
}

func checkPutCPUFlavor(in *admin.PutCPUFlavorRequest) []string {
	var out []string
	if bits.OnesCount(uint(in.VCPU.Min)) != 1 {
		out = append(out, "$.vcpu.min: must be a power of two")
	}
	if bits.OnesCount(uint(in.VCPU.Max)) != 1 {
		out = append(out, "$.vcpu.max: must be a power of two")
	}
	return out
}

func gpuEntry(t fleet.GPUType) admin.GPUTypeEntry {
	return admin.GPUTypeEntry{ID: t.ID, Pool: v2.Text(t.Pool), Contributed: t.Contributed, PutGPUTypeRequest: admin.PutGPUTypeRequest{
		Name: t.Name, Manufacturer: t.Manufacturer, Memory: t.MemoryGB,
		Price: admin.GPUEntryPrice{
			Secure: t.Secure.USD(), Community: t.Community.USD(), Serverless: t.Serverless.USD(),
			SecureSpot: t.SecureSpot.USD(), CommunitySpot: t.CommunitySpot.USD(),
		},
	}}
}

func cpuEntry(f fleet.CPUFlavor) admin.CPUFlavorEntry {
	return admin.CPUFlavorEntry{ID: f.ID, PutCPUFlavorRequest: admin.PutCPUFlavorRequest{
		Name: f.Name, Group: f.Group, VCPU: admin.VCPUBounds{Min: f.MinVCPU, Max: f.MaxVCPU}, RAMPerVCPU: f.RAMPerVCPU, DiskPerVCPU: f.DiskPerVCPU,
		Price: admin.CPUEntryPrice{SecurePerVCPU: f.SecureVCPU.USD(), ServerlessPerVCPU: f.Serverless.USD()},
	}}
}

func exampleGPUBody() admin.PutGPUTypeRequest {
	return admin.PutGPUTypeRequest{
		Name: "H100 SXM", Pool: "ADA_80_PRO", Manufacturer: "NVIDIA", Memory: 80, Price: admin.GPUEntryPrice{Secure: 2.69, Community: 2.39, Serverless: 4.18},
	}
}

func exampleCPUBody() admin.PutCPUFlavorRequest {
	return admin.PutCPUFlavorRequest{
		Name: "General Purpose", Group: "cpu3", VCPU: admin.VCPUBounds{Min: 2, Max: 32}, RAMPerVCPU: 4, DiskPerVCPU: 10,
		Price: admin.CPUEntryPrice{SecurePerVCPU: 0.04, ServerlessPerVCPU: 0.05},
	}
}
