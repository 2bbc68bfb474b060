package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// Stock is what a data center has of a catalog entry, or the other way round.
type Stock struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	Availability string `json:"availability"`
}

// GPUOffer is a GPU type of the catalog. Prices are USD per GPU and hour.
type GPUOffer struct {
	ID           string  `json:"id"`
	Name         string  `json:"name"`
	Pool         string  `json:"pool"`
	Manufacturer string  `json:"manufacturer"`
	Memory       float64 `json:"memory"` // GB
	Price        struct {
		Secure     *float64 `json:"secure"`
		Community  *float64 `json:"community"`
		Serverless *float64 `json:"serverless"`
	} `json:"price"`
	MaxCount struct {
		Secure    int `json:"secure"`
		Community int `json:"community"`
	} `json:"maxCount"`
	Availability string  `json:"availability"`
	DataCenters  []Stock `json:"dataCenters"`
	CUDAVersions []struct {
		Version   string `json:"version"`
		Available bool   `json:"available"`
	} `json:"cudaVersions"`
}

// CPUOffer is a CPU flavor of the catalog. Prices are USD per vCPU and hour.
type CPUOffer struct {
	ID           string  `json:"id"`
	Name         string  `json:"name"`
	Group        string  `json:"group"`
	VCPU         Range   `json:"vcpu"`
	RAMGBPerVCPU float64 `json:"ramGbPerVcpu"`
	Price        struct {
		SecurePerVCPU     *float64 `json:"securePerVcpu"`
		ServerlessPerVCPU *float64 `json:"serverlessPerVcpu"`
	} `json:"price"`
	Availability string  `json:"availability"`
	DataCenters  []Stock `json:"dataCenters"`
}

// Range is the fewest and the most of something.
type Range struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// DataCenter is a data center of the catalog.
type DataCenter struct {
	ID                 string   `json:"id"`
	Name               string   `json:"name"`
	Region             string   `json:"region"`
	GlobalNetwork      bool     `json:"globalNetwork"`
	NetworkVolumeTypes []string `json:"networkVolumeTypes"`
	Compliance         []string `json:"compliance"`
	GPUs               []Stock  `json:"gpuAvailability"`
	CPUs               []Stock  `json:"cpuAvailability"`
}

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

// GPUList is the answer of the catalog of GPU types.
type GPUList struct {
	GPUs []GPUOffer `json:"gpus"`
}

// GPUs lists the GPU types with their stock.
func (c *Client) GPUs(ctx context.Context, q GPUQuery) (Answer[GPUList], error) {
	return list[GPUList](ctx, c, "/v2/catalog/gpus", q.query())
}

// GPU reads one GPU type with its stock.
func (c *Client) GPU(ctx context.Context, id string, q GPUQuery) (Answer[GPUOffer], error) {
	return call[GPUOffer](ctx, c, http.MethodGet, "/v2/catalog/gpus/"+word(id), q.query(), nil)
}

// CPUList is the answer of the catalog of CPU flavors.
type CPUList struct {
	CPUs []CPUOffer `json:"cpus"`
}

// CPUs lists the CPU flavors with their stock for pods of vcpu vCPUs; 0 counts the smallest of each flavor.
func (c *Client) CPUs(ctx context.Context, vcpu int) (Answer[CPUList], error) {
	q := withStock()
	setNumber(q, "vcpuCount", vcpu)
	return list[CPUList](ctx, c, "/v2/catalog/cpus", q)
}

// DataCenterQuery narrows the list of data centers; the zero value takes all.
type DataCenterQuery struct {
	Regions            []string // any of these
	NetworkVolumeTypes []string // all of these
	Compliance         []string // all of these
	GlobalNetwork      *bool
}

// DataCenterList is the answer of the catalog of data centers.
type DataCenterList struct {
	DataCenters []DataCenter `json:"dataCenters"`
}

// DataCenters lists data centers with what is free in them.
func (c *Client) DataCenters(ctx context.Context, q DataCenterQuery) (Answer[DataCenterList], error) {
	query := url.Values{"include": {"GPU_AVAILABILITY,CPU_AVAILABILITY"}}
	joined(query, "regions", q.Regions)
	joined(query, "networkVolumeTypes", q.NetworkVolumeTypes)
	joined(query, "compliance", q.Compliance)
	if q.GlobalNetwork != nil {
		query.Set("globalNetwork", strconv.FormatBool(*q.GlobalNetwork))
	}
	return list[DataCenterList](ctx, c, "/v2/catalog/datacenters", query)
}
