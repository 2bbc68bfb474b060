package client

import (
	"context"
	"net/http"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/fleet"
)

// Center is a data center as operators describe it.
type Center struct {
	ID            string   `json:"id,omitempty"` // in answers
	Name          string   `json:"name"`
	Region        string   `json:"region"`
	Country       string   `json:"country,omitempty"` // ISO 3166-1 alpha-2
	GlobalNetwork bool     `json:"globalNetwork"`
	Underlay      string   `json:"underlay,omitempty"` // encrypted or private
	Compliance    []string `json:"compliance,omitempty"`
}

// CenterList is the answer of the operators' list of data centers.
type CenterList struct {
	DataCenters []Center `json:"dataCenters"`
}

// Centers lists the data centers; for operators.
func (c *Client) Centers(ctx context.Context) (Answer[CenterList], error) {
	return list[CenterList](ctx, c, "/admin/v1/datacenters", nil)
}

// PutCenter makes or replaces a data center; for operators.
func (c *Client) PutCenter(ctx context.Context, id string, body Center) (Answer[Center], error) {
	body.ID = ""
	return call[Center](ctx, c, http.MethodPut, "/admin/v1/datacenters/"+word(id), nil, body)
}

// DeleteCenter deletes a data center without hosts; for operators.
func (c *Client) DeleteCenter(ctx context.Context, id string) error {
	return c.remove(ctx, "/admin/v1/datacenters/"+word(id))
}

// GPUType is a GPU type as operators describe it.
type GPUType struct {
	ID           string   `json:"id,omitempty"` // in answers
	Name         string   `json:"name"`
	Pool         string   `json:"pool,omitempty"`
	Manufacturer string   `json:"manufacturer"`
	Memory       int      `json:"memory"` // GB
	Price        GPUPrice `json:"price"`
	Contributed  bool     `json:"contributed,omitempty"` // in answers: a host brought it along and nobody has described it yet
}

// GPUPrice is in USD per GPU and hour; 0: not offered.
type GPUPrice struct {
	Secure     float64 `json:"secure"`
	Community  float64 `json:"community"`
	Serverless float64 `json:"serverless"`
}

// GPUTypeList is the answer of the operators' list of GPU types.
type GPUTypeList struct {
	GPUTypes []GPUType `json:"gpuTypes"`
}

// GPUTypes lists the GPU types; for operators.
func (c *Client) GPUTypes(ctx context.Context) (Answer[GPUTypeList], error) {
	return list[GPUTypeList](ctx, c, "/admin/v1/gpu-types", nil)
}

// PutGPUType makes or replaces a GPU type; for operators.
func (c *Client) PutGPUType(ctx context.Context, id string, body GPUType) (Answer[GPUType], error) {
	body.ID, body.Contributed = "", false
	return call[GPUType](ctx, c, http.MethodPut, "/admin/v1/gpu-types/"+word(id), nil, body)
}

// DeleteGPUType deletes a GPU type; for operators.
func (c *Client) DeleteGPUType(ctx context.Context, id string) error {
	return c.remove(ctx, "/admin/v1/gpu-types/"+word(id))
}

// CPUFlavor is a CPU flavor as operators describe it.
type CPUFlavor struct {
	ID            string   `json:"id,omitempty"` // in answers
	Name          string   `json:"name"`
	Group         string   `json:"group"`
	VCPU          Range    `json:"vcpu"`
	RAMGBPerVCPU  float64  `json:"ramGbPerVcpu"`
	DiskGBPerVCPU int      `json:"diskGbPerVcpu"` // container disk at most
	Price         CPUPrice `json:"price"`
}

// CPUPrice is in USD per vCPU and hour.
type CPUPrice struct {
	SecurePerVCPU     float64 `json:"securePerVcpu"`
	ServerlessPerVCPU float64 `json:"serverlessPerVcpu"`
}

// CPUFlavorList is the answer of the operators' list of CPU flavors.
type CPUFlavorList struct {
	CPUFlavors []CPUFlavor `json:"cpuFlavors"`
}

// CPUFlavors lists the CPU flavors; for operators.
func (c *Client) CPUFlavors(ctx context.Context) (Answer[CPUFlavorList], error) {
	return list[CPUFlavorList](ctx, c, "/admin/v1/cpu-flavors", nil)
}

// PutCPUFlavor makes or replaces a CPU flavor; for operators.
func (c *Client) PutCPUFlavor(ctx context.Context, id string, body CPUFlavor) (Answer[CPUFlavor], error) {
	body.ID = ""
	return call[CPUFlavor](ctx, c, http.MethodPut, "/admin/v1/cpu-flavors/"+word(id), nil, body)
}

// DeleteCPUFlavor deletes a CPU flavor; for operators.
func (c *Client) DeleteCPUFlavor(ctx context.Context, id string) error {
	return c.remove(ctx, "/admin/v1/cpu-flavors/"+word(id))
}

// StoragePrices reads the prices of storage; for operators.
func (c *Client) StoragePrices(ctx context.Context) (Answer[admin.StoragePrices], error) {
	return call[admin.StoragePrices](ctx, c, http.MethodGet, "/admin/v1/storage-prices", nil, nil)
}

// PutStoragePrices replaces the prices of storage; for operators.
func (c *Client) PutStoragePrices(ctx context.Context, body admin.StoragePrices) (Answer[admin.StoragePrices], error) {
	return call[admin.StoragePrices](ctx, c, http.MethodPut, "/admin/v1/storage-prices", nil, body)
}

// SetTemplateSource puts a public template into a slice of the catalog; for operators.
func (c *Client) SetTemplateSource(ctx context.Context, id string, source fleet.TemplateSource) (Answer[v2.Template], error) {
	body := map[string]string{"source": string(source)}
	return call[v2.Template](ctx, c, http.MethodPut, "/admin/v1/templates/"+word(id)+"/source", nil, body)
}
