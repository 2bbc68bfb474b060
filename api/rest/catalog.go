package rest

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// CatalogService shows what can be asked for.
type CatalogService interface {
	Catalog(ctx context.Context, q fleet.CatalogQuery) (fleet.CatalogView, error)
	PublicTemplates(ctx context.Context, source fleet.TemplateSource) ([]fleet.Template, error)
}

const stockText = " Availability counts how many such pods could be created now: NONE, LOW (fewer than 4), MEDIUM (fewer than 16), HIGH; " +
	"it comes from the code that places pods."

// The words of the catalog.
const (
	countryPattern  = `^[A-Z]{2}$`
	minCUDAPattern  = `^\d+(\.\d+)?$`
	maxCatalogWords = 16
)

func regionWords() []string {
	return []string{"NORTH_AMERICA", "SOUTH_AMERICA", "EUROPE", "ASIA", "MIDDLE_EAST", "AFRICA", "OCEANIA", "ANTARCTICA", "UNKNOWN"}
}

func complianceWords() []string {
	return []string{
		"GDPR", "ISO_IEC_27001", "ISO_14001", "PCI_DSS", "HITRUST", "SOC_1_TYPE_2", "SOC_2_TYPE_2", "SOC_3_TYPE_2", "ITAR", "FISMA_HIGH", "HIPAA", "RENEWABLE",
	}
}

// formList is a list parameter whose items have a form.
func formList(name, text, pattern, form string) *huma.Param {
	p := listParam(name, text, maxCatalogWords)
	p.Schema.Items.Pattern, p.Schema.Items.PatternDescription = pattern, form
	return p
}

func gpuParams() []*huma.Param {
	return []*huma.Param{
		listParam("include", "AVAILABILITY adds what is free; needs product.", maxCatalogWords, "AVAILABILITY"),
		listParam("product", "What the availability is for; needs include. All products are placed alike.", maxCatalogWords, "POD", "CLUSTER", "SERVERLESS"),
		countParam("count", "GPUs of one pod, 1 to 64, for the availability; needs include. Default 1.", 1, 64),
		wordParam("cloud", "Tier for the availability; needs include. Default SECURE.", "SECURE", "COMMUNITY"),
		formList("countryCodes",
			"Only hosts in these countries (ISO 3166-1 alpha-2) count for the availability; needs include.", countryPattern, "two capital letters"),
		formList("cudaVersions",
			"Only hosts with exactly one of these CUDA versions count for the availability; needs include, excludes minCudaVersion.", cudaPattern, cudaForm),
		queryParam("minCudaVersion", "Only hosts with this CUDA version or a newer one count for the availability; needs include, excludes cudaVersions.",
			huma.Schema{Type: huma.TypeString, Pattern: minCUDAPattern, PatternDescription: "major or major.minor"}),
	}
}

func cpuParams() []*huma.Param {
	return []*huma.Param{
		listParam("include", "AVAILABILITY adds what is free; needs product.", maxCatalogWords, "AVAILABILITY"),
		listParam("product", "What the availability is for; needs include. All products are placed alike.", maxCatalogWords, "POD", "SERVERLESS"),
		countParam("vcpuCount", "vCPUs of one pod, 1 to 256, for the availability; needs include. Default: the flavor's least.", 1, 256),
	}
}

func centerParams() []*huma.Param {
	return []*huma.Param{listParam("include", "Adds what is free of GPU types or CPU flavors.", maxCatalogWords, "GPU_AVAILABILITY", "CPU_AVAILABILITY")}
}

func centerFilters() []*huma.Param {
	return []*huma.Param{
		listParam("regions", "Only data centers of one of these regions.", maxCatalogWords, regionWords()...),
		listParam("networkVolumeTypes", "Only data centers that have all these tiers of network volumes.", maxCatalogWords, "STANDARD", "HIGH_PERFORMANCE"),
		listParam("compliance", "Only data centers that have all these certificates.", maxCatalogWords, complianceWords()...),
		queryParam("globalNetwork", "Only data centers that have global networking, or have not.", huma.Schema{Type: huma.TypeBoolean}),
	}
}

func (a *API) registerCatalog() {
	const rule = "\n\n400: include and product come together; count, cloud, countryCodes, cudaVersions, minCudaVersion and vcpuCount need include; " +
		"cudaVersions and minCudaVersion exclude each other. 422: a word that is not known."
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
	on(a, get("gpus", "listGpuTypes", "List GPU types", gpuText, gpuParams(), v2.GPUList{GPUs: []v2.GPUType{exampleGPU()}}), listGPUs)
	on(a, get("gpus/{id}", "getGpuType", "Get a GPU type", gpuText, one("NVIDIA H100 80GB HBM3", gpuParams()), exampleGPU()), getGPU)
	on(a, get("cpus", "listCpuFlavors", "List CPU flavors", cpuText, cpuParams(), v2.CPUList{CPUs: []v2.CPUFlavor{exampleCPU()}}), listCPUs)
	on(a, get("cpus/{id}", "getCpuFlavor", "Get a CPU flavor", cpuText, one("cpu3g", cpuParams()), exampleCPU()), getCPU)
	on(a, get("datacenters", "listDataCenters", "List data centers", centerText, slices.Concat(centerParams(), centerFilters()),
		v2.DataCenterList{DataCenters: []v2.DataCenter{exampleCenter()}}), listCenters)
	on(a, get("datacenters/{id}", "getDataCenter", "Get a data center", centerText, one("EU-RO-1", centerParams()), exampleCenter()), getCenter)
	on(a, get("templates", "listPublicTemplates", "List public templates",
		"Lists the public templates of one source, without their registry credentials. A pod made with templateId takes from one what its own body leaves out.",
		[]*huma.Param{wordParam("source", "Slice of the public catalog. Default official.", "official", "verified", "community")},
		v2.TemplateList{Templates: []v2.Template{examplePublicTemplate()}}), listPublicTemplates)
}

// stock reads the parameters that ask for availability and reports whether it was asked for.
func (c *call) stock() (fleet.CatalogQuery, bool, error) {
	q := fleet.CatalogQuery{
		Count: c.args.number("count", 0), VCPU: c.args.number("vcpuCount", 0), Cloud: fleet.Cloud(c.args.text("cloud")),
		CUDA: fleet.CUDARange{Allowed: c.args["cudaVersions"], Min: c.args.text("minCudaVersion")}, Countries: c.args["countryCodes"],
	}
	if q.CUDA.Min != "" && !strings.Contains(q.CUDA.Min, ".") {
		q.CUDA.Min += ".0"
	}
	switch {
	case c.args.has("include") && !c.args.has("product"):
		return q, false, fleet.BreaksRule("include needs product")
	case c.args.has("include"):
		return q, true, nil
	}
	for _, name := range []string{"product", "count", "cloud", "countryCodes", "cudaVersions", "minCudaVersion", "vcpuCount"} {
		if c.args.has(name) {
			return q, false, fleet.BreaksRule("%s needs include", name)
		}
	}
	return q, false, nil
}

func listPublicTemplates(ctx context.Context, svc CatalogService, c *call, _ *none) (*v2.TemplateList, error) {
	source := fleet.TemplateSource(cmp.Or(c.args.text("source"), string(fleet.SourceOfficial)))
	all, err := showAll(publicRecord)(svc.PublicTemplates(ctx, source))
	return &v2.TemplateList{Templates: all}, err
}

func listGPUs(ctx context.Context, svc CatalogService, c *call, _ *none) (*v2.GPUList, error) {
	q, stock, err := c.stock()
	if err != nil {
		return nil, err
	}
	view, err := svc.Catalog(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &v2.GPUList{GPUs: []v2.GPUType{}}
	for _, o := range view.GPUs {
		out.GPUs = append(out.GPUs, gpuRecord(o, stock, slices.Contains(c.args["product"], "CLUSTER")))
	}
	return out, nil
}

func getGPU(ctx context.Context, svc CatalogService, c *call, in *none) (*v2.GPUType, error) {
	all, err := listGPUs(ctx, svc, c, in)
	if err != nil {
		return nil, err
	}
	return find(all.GPUs, func(g v2.GPUType) bool { return g.ID == c.args.text("id") })
}

func listCPUs(ctx context.Context, svc CatalogService, c *call, _ *none) (*v2.CPUList, error) {
	q, stock, err := c.stock()
	if err != nil {
		return nil, err
	}
	view, err := svc.Catalog(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &v2.CPUList{CPUs: []v2.CPUFlavor{}}
	for _, o := range view.CPUs {
		out.CPUs = append(out.CPUs, cpuRecord(o, stock))
	}
	return out, nil
}

func getCPU(ctx context.Context, svc CatalogService, c *call, in *none) (*v2.CPUFlavor, error) {
	all, err := listCPUs(ctx, svc, c, in)
	if err != nil {
		return nil, err
	}
	return find(all.CPUs, func(f v2.CPUFlavor) bool { return f.ID == c.args.text("id") })
}

func listCenters(ctx context.Context, svc CatalogService, c *call, _ *none) (*v2.DataCenterList, error) {
	view, err := svc.Catalog(ctx, fleet.CatalogQuery{})
	if err != nil {
		return nil, err
	}
	gpus, cpus := slices.Contains(c.args["include"], "GPU_AVAILABILITY"), slices.Contains(c.args["include"], "CPU_AVAILABILITY")
	out := &v2.DataCenterList{DataCenters: []v2.DataCenter{}}
	for _, dc := range view.Centers {
		if rec := centerRecord(dc, view, gpus, cpus); c.wants(rec) {
			out.DataCenters = append(out.DataCenters, rec)
		}
	}
	return out, nil
}

// wants reports whether the data center passes the filters of the request.
func (c *call) wants(dc v2.DataCenter) bool {
	hasAll := func(have []string, want []string) bool {
		return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) })
	}
	return (!c.args.has("regions") || slices.Contains(c.args["regions"], dc.Region)) &&
		hasAll(dc.NetworkVolumeTypes, c.args["networkVolumeTypes"]) && hasAll(dc.Compliance, c.args["compliance"]) &&
		(!c.args.has("globalNetwork") || c.args.flag("globalNetwork", false) == dc.GlobalNetwork)
}

func getCenter(ctx context.Context, svc CatalogService, c *call, in *none) (*v2.DataCenter, error) {
	all, err := listCenters(ctx, svc, c, in)
	if err != nil {
		return nil, err
	}
	return find(all.DataCenters, func(dc v2.DataCenter) bool { return dc.ID == c.args.text("id") })
}

func find[T any](all []T, is func(T) bool) (*T, error) {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return &all[i], nil
	}
	return nil, fleet.NotFound("catalog entry")
}
