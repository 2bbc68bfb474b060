package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"gantry/api/v2"
)

// GPUQuery says which stock of GPU types is counted: for pods of Count GPUs on hosts of Cloud, in Countries, whose
// driver offers the CUDA versions. The zero value counts single GPUs of the tier SECURE.
type GPUQuery struct {
	Count          int
	Cloud          string
	Countries      []string // ISO 3166-1 alpha-2
	CUDAVersions   []string // one of these; excludes MinCUDAVersion
	MinCUDAVersion string
}

func (q GPUQuery) query() url.Values {
	out := withStock()
	setNumber(out, "count", q.Count)
	setText(out, "cloud", q.Cloud)
	joined(out, "countryCodes", q.Countries)
	joined(out, "cudaVersions", q.CUDAVersions)
	setText(out, "minCudaVersion", q.MinCUDAVersion)
	return out
}

func withStock() url.Values {
	return url.Values{"include": {"AVAILABILITY"}, "product": {"POD"}}
}

func setNumber(q url.Values, name string, n int) {
	if n != 0 {
		q.Set(name, strconv.Itoa(n))
	}
}

// GPUs lists the GPU types with their stock.
func (c *Client) GPUs(ctx context.Context, q GPUQuery) (Answer[v2.GPUList], error) {
	return list[v2.GPUList](ctx, c, "/v2/catalog/gpus", q.query())
}

// GPU reads one GPU type with its stock.
func (c *Client) GPU(ctx context.Context, id string, q GPUQuery) (Answer[v2.GPUType], error) {
	return call[v2.GPUType](ctx, c, http.MethodGet, "/v2/catalog/gpus/"+word(id), q.query(), nil)
}

// CPUs lists the CPU flavors with their stock for pods of vcpu vCPUs; 0 counts the smallest of each flavor.
func (c *Client) CPUs(ctx context.Context, vcpu int) (Answer[v2.CPUList], error) {
	q := withStock()
	setNumber(q, "vcpuCount", vcpu)
	return list[v2.CPUList](ctx, c, "/v2/catalog/cpus", q)
}

// DataCenterQuery narrows the list of data centers; the zero value takes all.
type DataCenterQuery struct {
	Regions            []string // any of these
	NetworkVolumeTypes []string // all of these
	Compliance         []string // all of these
	GlobalNetwork      *bool
}

// DataCenters lists data centers with what is free in them.
func (c *Client) DataCenters(ctx context.Context, q DataCenterQuery) (Answer[v2.DataCenterList], error) {
	query := url.Values{"include": {"GPU_AVAILABILITY,CPU_AVAILABILITY"}}
	joined(query, "regions", q.Regions)
	joined(query, "networkVolumeTypes", q.NetworkVolumeTypes)
	joined(query, "compliance", q.Compliance)
	if q.GlobalNetwork != nil {
		query.Set("globalNetwork", strconv.FormatBool(*q.GlobalNetwork))
	}
	return list[v2.DataCenterList](ctx, c, "/v2/catalog/datacenters", query)
}
