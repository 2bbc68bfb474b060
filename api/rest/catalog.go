package rest

import (
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

const stockText = " Availability counts how many such pods could be created now: NONE, LOW (fewer than 4), MEDIUM (fewer than 16), HIGH; " +
	"it comes from the code that places pods."

func (a *API) registerCatalog() {
	gpuParams := []*huma.Param{
		listParam("include", "AVAILABILITY adds what is free; needs product.", 8, "AVAILABILITY"),
		wordParam("product", "What the availability is for; needs include.", "POD", "CLUSTER", "SERVERLESS"),
		countParam("count", "GPUs of one pod, 1 to 64, for the availability; needs include. Default 1.", 1, 64),
		wordParam("cloud", "Tier for the availability; needs include. Default SECURE.", "SECURE", "COMMUNITY"),
	}
	cpuParams := []*huma.Param{
		listParam("include", "AVAILABILITY adds what is free; needs product.", 8, "AVAILABILITY"),
		wordParam("product", "What the availability is for; needs include.", "POD", "SERVERLESS"),
		countParam("vcpuCount", "vCPUs of one pod, 1 to 256, for the availability; needs include. Default: the flavor's least.", 1, 256),
	}
	centerParams := []*huma.Param{listParam("include", "Adds what is free of GPU types or CPU flavors.", 8, "GPU_AVAILABILITY", "CPU_AVAILABILITY")}
	filters := []*huma.Param{
		listParam("regions", "Only data centers of these regions.", 16),
		listParam("networkVolumeTypes", "Only data centers that have all these tiers of network volumes.", 16),
		listParam("compliance", "Only data centers that have all these certificates.", 16),
		queryParam("globalNetwork", "Only data centers that have global networking, or have not.", huma.Schema{Type: huma.TypeBoolean}),
	}
	const rule = "\n\n400: include and product come together; count, cloud and vcpuCount need include."
	gpuText := "Ids are NVIDIA's device names and contain spaces: percent-encode them in paths. Memory is GB, prices are USD per GPU and hour." + stockText + rule
	cpuText := "Memory is GB for each vCPU, prices are USD per vCPU and hour, vCPU counts are powers of two." + stockText + rule
	const centerText = "Places where hosts stand; a pod's dataCenterId is one of them." + stockText
	get := func(path, id, summary, text string, params []*huma.Param, out any) route {
		return route{
			method: http.MethodGet, path: "/v2/catalog/" + path, id: id, tag: "Catalog", summary: summary, text: text,
			scope: auth.Read(fleet.GroupCatalog), limit: limit.PerAccount, status: http.StatusOK, params: params, out: out,
		}
	}
	one := func(example string, params []*huma.Param) []*huma.Param {
		return slices.Concat([]*huma.Param{pathParam("Identifier, percent-encoded.", example)}, params)
	}
	handle(a, get("gpus", "listGpuTypes", "List GPU types", gpuText, gpuParams, GPUList{GPUs: []GPUType{exampleGPU()}}), a.listGPUs)
	handle(a, get("gpus/{id}", "getGpuType", "Get a GPU type", gpuText, one("NVIDIA H100 80GB HBM3", gpuParams), exampleGPU()), a.getGPU)
	handle(a, get("cpus", "listCpuFlavors", "List CPU flavors", cpuText, cpuParams, CPUList{CPUs: []CPUFlavor{exampleCPU()}}), a.listCPUs)
	handle(a, get("cpus/{id}", "getCpuFlavor", "Get a CPU flavor", cpuText, one("cpu3g", cpuParams), exampleCPU()), a.getCPU)
	handle(a, get("datacenters", "listDataCenters", "List data centers", centerText, slices.Concat(centerParams, filters),
		DataCenterList{DataCenters: []DataCenter{exampleCenter()}}), a.listCenters)
	handle(a, get("datacenters/{id}", "getDataCenter", "Get a data center", centerText, one("EU-RO-1", centerParams), exampleCenter()), a.getCenter)
}

// stock reads the parameters that ask for availability and reports whether it was asked for.
func (c *call) stock() (fleet.CatalogQuery, bool, error) {
	q := fleet.CatalogQuery{
		Count: c.args.number("count", 0), VCPU: c.args.number("vcpuCount", 0), Cloud: fleet.Cloud(c.args.text("cloud")),
	}
	if c.args.has("include") {
		if !c.args.has("product") {
			return q, false, fleet.BreaksRule("include needs product")
		}
		return q, true, nil
	}
	for _, name := range []string{"product", "count", "cloud", "vcpuCount"} {
		if c.args.has(name) {
			return q, false, fleet.BreaksRule("%s needs include", name)
		}
	}
	return q, false, nil
}

func (a *API) listGPUs(ctx context.Context, c *call, _ *none) (*GPUList, error) {
	q, stock, err := c.stock()
	if err != nil {
		return nil, err
	}
	view, err := a.svc.Catalog(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &GPUList{GPUs: []GPUType{}}
	for _, o := range view.GPUs {
		out.GPUs = append(out.GPUs, gpuRecord(o, stock))
	}
	return out, nil
}

func (a *API) getGPU(ctx context.Context, c *call, in *none) (*GPUType, error) {
	all, err := a.listGPUs(ctx, c, in)
	if err != nil {
		return nil, err
	}
	return find(all.GPUs, func(g GPUType) bool { return g.ID == c.args.text("id") })
}

func (a *API) listCPUs(ctx context.Context, c *call, _ *none) (*CPUList, error) {
	q, stock, err := c.stock()
	if err != nil {
		return nil, err
	}
	view, err := a.svc.Catalog(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &CPUList{CPUs: []CPUFlavor{}}
	for _, o := range view.CPUs {
		out.CPUs = append(out.CPUs, cpuRecord(o, stock))
	}
	return out, nil
}

func (a *API) getCPU(ctx context.Context, c *call, in *none) (*CPUFlavor, error) {
	all, err := a.listCPUs(ctx, c, in)
	if err != nil {
		return nil, err
	}
	return find(all.CPUs, func(f CPUFlavor) bool { return f.ID == c.args.text("id") })
}

func (a *API) listCenters(ctx context.Context, c *call, _ *none) (*DataCenterList, error) {
	view, err := a.svc.Catalog(ctx, fleet.CatalogQuery{})
	if err != nil {
		return nil, err
	}
	gpus, cpus := slices.Contains(c.args["include"], "GPU_AVAILABILITY"), slices.Contains(c.args["include"], "CPU_AVAILABILITY")
	out := &DataCenterList{DataCenters: []DataCenter{}}
	for _, dc := range view.Centers {
		if rec := centerRecord(dc, view, gpus, cpus); c.wants(rec) {
			out.DataCenters = append(out.DataCenters, rec)
		}
	}
	return out, nil
}

// wants reports whether the data center passes the filters of the request.
func (c *call) wants(dc DataCenter) bool {
	hasAll := func(have []string, want []string) bool {
		return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) })
	}
	return (!c.args.has("regions") || slices.Contains(c.args["regions"], dc.Region)) &&
		hasAll(dc.NetworkVolumeTypes, c.args["networkVolumeTypes"]) && hasAll(dc.Compliance, c.args["compliance"]) &&
		(!c.args.has("globalNetwork") || c.args.flag("globalNetwork", false) == dc.GlobalNetwork)
}

func (a *API) getCenter(ctx context.Context, c *call, in *none) (*DataCenter, error) {
	all, err := a.listCenters(ctx, c, in)
	if err != nil {
		return nil, err
	}
	return find(all.DataCenters, func(dc DataCenter) bool { return dc.ID == c.args.text("id") })
}

func find[T any](all []T, is func(T) bool) (*T, error) {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return &all[i], nil
	}
	return nil, fleet.NotFound("catalog entry")
}
