package client

import (
	"context"
	"net/http"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/fleet"
)

// Centers lists the data centers; for operators.
func (c *Client) Centers(ctx context.Context) (Answer[admin.DataCenterEntryList], error) {
	return list[admin.DataCenterEntryList](ctx, c, "/admin/v1/datacenters", nil)
}

// PutCenter makes or replaces a data center; for operators.
func (c *Client) PutCenter(ctx context.Context, id string, body admin.PutDataCenterRequest) (Answer[admin.DataCenterEntry], error) {
	return call[admin.DataCenterEntry](ctx, c, http.MethodPut, "/admin/v1/datacenters/"+word(id), nil, body)
}

// DeleteCenter deletes a data center without hosts; for operators.
func (c *Client) DeleteCenter(ctx context.Context, id string) error {
	return c.remove(ctx, "/admin/v1/datacenters/"+word(id))
}

// GPUTypes lists the GPU types; for operators.
func (c *Client) GPUTypes(ctx context.Context) (Answer[admin.GPUTypeEntryList], error) {
	return list[admin.GPUTypeEntryList](ctx, c, "/admin/v1/gpu-types", nil)
}

// PutGPUType makes or replaces a GPU type; for operators.
func (c *Client) PutGPUType(ctx context.Context, id string, body admin.PutGPUTypeRequest) (Answer[admin.GPUTypeEntry], error) {
	return call[admin.GPUTypeEntry](ctx, c, http.MethodPut, "/admin/v1/gpu-types/"+word(id), nil, body)
}

// DeleteGPUType deletes a GPU type; for operators.
func (c *Client) DeleteGPUType(ctx context.Context, id string) error {
	return c.remove(ctx, "/admin/v1/gpu-types/"+word(id))
}

// CPUFlavors lists the CPU flavors; for operators.
func (c *Client) CPUFlavors(ctx context.Context) (Answer[admin.CPUFlavorEntryList], error) {
	return list[admin.CPUFlavorEntryList](ctx, c, "/admin/v1/cpu-flavors", nil)
}

// PutCPUFlavor makes or replaces a CPU flavor; for operators.
func (c *Client) PutCPUFlavor(ctx context.Context, id string, body admin.PutCPUFlavorRequest) (Answer[admin.CPUFlavorEntry], error) {
	return call[admin.CPUFlavorEntry](ctx, c, http.MethodPut, "/admin/v1/cpu-flavors/"+word(id), nil, body)
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
	body := admin.TemplateSourceRequest{Source: string(source)}
	return call[v2.Template](ctx, c, http.MethodPut, "/admin/v1/templates/"+word(id)+"/source", nil, body)
}
