package client

import (
	"context"
	"net/http"
)

// Placement is the setting of where pods go.
type Placement struct {
	KeepPercent int `json:"keepPercent"` // of a free GPU's share of its host's cores and memory, from pods without GPUs
}

// Placement reads the setting of where pods go; for operators.
func (c *Client) Placement(ctx context.Context) (Answer[Placement], error) {
	return call[Placement](ctx, c, http.MethodGet, "/admin/v1/placement", nil, nil)
}

// SetPlacement replaces the setting of where pods go; for operators.
func (c *Client) SetPlacement(ctx context.Context, p Placement) (Answer[Placement], error) {
	return call[Placement](ctx, c, http.MethodPut, "/admin/v1/placement", nil, p)
}

// Capacity is what the hosts have room for.
type Capacity struct {
	GPUs     []GPUCapacity  `json:"gpus"` // by type
	Stranded []StrandedGPUs `json:"stranded"`
}

// GPUCapacity is what is free of a GPU type.
type GPUCapacity struct {
	Type     string         `json:"gpuTypeId"`
	Total    int            `json:"total"`
	Free     int            `json:"free"` // in service, in no pod, on hosts that take pods
	Most     int            `json:"mostOnOneHost"`
	Fit      map[string]int `json:"fit"`      // pods, by their GPUs: 8, 4, 2 and 1
	Stranded map[string]int `json:"stranded"` // GPUs, by what their hosts have too little of: cpu, memory or disk
}

// StrandedGPUs are free GPUs of a host that no pod can have.
type StrandedGPUs struct {
	HostID string   `json:"hostId"`
	Name   string   `json:"name"`
	Type   string   `json:"gpuTypeId"`
	GPUs   int      `json:"gpus"`
	Short  string   `json:"short"`
	PodIDs []string `json:"podIds"` // that hold more of it than falls to their GPUs
}

// Capacity reads what the hosts have room for; for operators.
func (c *Client) Capacity(ctx context.Context) (Answer[Capacity], error) {
	return call[Capacity](ctx, c, http.MethodGet, "/admin/v1/capacity", nil, nil)
}
