package rest_test

import (
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(moreCatalogRows, "narrowed availability", "400 CUDA list with floor", "data center filters", "public templates by source", "contributed GPU types")
}

// catalogRow is a row about the public catalog.
func catalogRow(name, rule, path string) row {
	return row{topic: "catalog-more", name: name, rule: rule, method: "GET", path: "/v2/catalog/" + path, key: plane.Reader}
}

// given adds what is there before the request.
func given(r row, setup func(*testing.T, *plane.Plane)) row {
	r.setup = setup
	return r
}

func moreCatalogRows() []row {
	v := catalogRow
	const (
		stock  = "gpus/NVIDIA%20H100%2080GB%20HBM3?include=AVAILABILITY&product=POD"
		second = "gpus/NVIDIA%20GeForce%20RTX%204090?include=AVAILABILITY&product=POD&cloud=COMMUNITY"
	)
	out := []row{
		v("gpu-here", "narrowed availability", stock+"&countryCodes=RO,DE"),
		v("gpu-elsewhere", "narrowed availability", stock+"&countryCodes=US"),
		v("gpu-cuda", "narrowed availability", stock+"&cudaVersions=12.4,12.8"),
		v("gpu-cuda-other", "narrowed availability", stock+"&cudaVersions=12.9"),
		v("gpu-cuda-least", "narrowed availability", stock+"&minCudaVersion=12.8"),
		v("gpu-cuda-least-major", "narrowed availability", stock+"&minCudaVersion=12"),
		v("gpu-cuda-newer", "narrowed availability", stock+"&minCudaVersion=13"),
		v("gpu-cuda-by-number", "narrowed availability", second+"&minCudaVersion=12.10"),
		v("gpu-community", "narrowed availability", second+"&count=2"),
		v("gpu-products", "list parameters are comma-joined or repeated", stock+",CLUSTER&product=SERVERLESS"),
		given(v("gpu-taken", "narrowed availability", stock+"&count=7"), func(t *testing.T, p *plane.Plane) { makePod(t, p) }),
		v("cuda-both", "400 CUDA list with floor", stock+"&cudaVersions=12.8&minCudaVersion=12.4"),
		v("countries-alone", "400 catalog parameters that belong together", "gpus?countryCodes=RO"),
		v("cuda-alone", "400 catalog parameters that belong together", "gpus?cudaVersions=12.8"),
		v("cuda-least-alone", "400 catalog parameters that belong together", "gpus?minCudaVersion=12.8"),
		v("cloud-alone", "400 catalog parameters that belong together", "gpus?cloud=SECURE"),
		v("one-include-alone", "400 catalog parameters that belong together", "cpus/cpu3g?include=AVAILABILITY"),
		v("country-form", "422 parameter", stock+"&countryCodes=RO,de"),
		v("cuda-form", "422 parameter", stock+"&cudaVersions=12"),
		v("cuda-least-form", "422 parameter", stock+"&minCudaVersion=12.x"),
		v("product-unknown", "422 parameter", "gpus?include=AVAILABILITY&product=POD,VOLUME"),
		v("cpu-product", "422 parameter", "cpus?include=AVAILABILITY&product=CLUSTER"),
		v("cloud-unknown", "422 parameter", "gpus?include=AVAILABILITY&product=POD&cloud=ANY"),
		v("count-many", "422 parameter", stock+"&count=65"),
		v("vcpu-zero", "422 parameter", "cpus?include=AVAILABILITY&product=POD&vcpuCount=0"),
		v("cpu-unknown", "404 missing object", "cpus/cpu9z"),
		v("cpu-large", "narrowed availability", "cpus/cpu3m?include=AVAILABILITY&product=SERVERLESS&vcpuCount=32"),
	}
	return append(append(out, centerRows()...), publicTemplateRows()...)
}

func centerRows() []row {
	v := catalogRow
	return []row{
		v("centers-region", "data center filters", "datacenters?regions=NORTH_AMERICA"),
		v("centers-regions", "data center filters", "datacenters?regions=ASIA,EUROPE"),
		v("centers-region-unknown", "422 parameter", "datacenters?regions=EUROPE,MOON"),
		v("centers-compliance", "data center filters", "datacenters?compliance=GDPR,HIPAA"),
		v("centers-compliance-more", "data center filters", "datacenters?compliance=GDPR,ITAR"),
		v("centers-compliance-unknown", "422 parameter", "datacenters?compliance=gdpr"),
		v("centers-volumes-unknown", "422 parameter", "datacenters?networkVolumeTypes=FAST"),
		v("centers-not-global", "data center filters", "datacenters?globalNetwork=false"),
		v("centers-global-form", "422 parameter", "datacenters?globalNetwork=1"),
		v("centers-include-unknown", "422 parameter", "datacenters?include=AVAILABILITY"),
		v("center-stock", "data center filters", "datacenters/dev-2?include=GPU_AVAILABILITY,CPU_AVAILABILITY"),
		v("center-missing", "404 missing object", "datacenters/XX-1"),
	}
}

func publicTemplateRows() []row {
	v := catalogRow
	of := func(source fleet.TemplateSource) func(*testing.T, *plane.Plane) {
		return func(t *testing.T, p *plane.Plane) {
			registry := makeRegistry(t, p)
			makeTemplate(t, p, nil)
			id := makeTemplate(t, p, func(tpl *fleet.Template) { tpl.Public, tpl.Registry = true, registry })
			if source == "" {
				return
			}
			if _, err := p.SetTemplateSource(t.Context(), id, source); err != nil {
				t.Fatal(err)
			}
		}
	}
	return []row{
		given(v("templates", "public templates by source", "templates"), of(fleet.SourceOfficial)),
		given(v("templates-none", "public templates by source", "templates"), of("")),
		given(v("templates-verified", "public templates by source", "templates?source=verified"), of(fleet.SourceVerified)),
		given(v("templates-community", "public templates by source", "templates?source=community"), of("")),
		given(v("templates-community-none", "public templates by source", "templates?source=community"), of(fleet.SourceVerified)),
		v("templates-unknown", "422 parameter", "templates?source=mine"),
		given(v("contributed", "contributed GPU types", "gpus/NVIDIA%20Test%20GPU"), func(_ *testing.T, p *plane.Plane) { contribute(p) }),
		given(v("no-permission", "403 key without the permission", "templates"), func(_ *testing.T, p *plane.Plane) {
			p.Restrict(plane.Reader, map[fleet.Group]fleet.Access{fleet.GroupTemplates: fleet.AccessWrite})
		}),
	}
}
