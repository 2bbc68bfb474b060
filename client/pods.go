package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"gantry/api/v2"
	"gantry/fleet"
)

// CreatePod is the body of a create; exactly one of GPU and CPU is set. With a template, what is left out is taken
// from it.
type CreatePod struct {
	Name             string            `json:"name"`
	Image            string            `json:"image,omitempty"`
	GPU              *GPU              `json:"gpu,omitempty"`
	CPU              *CPU              `json:"cpu,omitempty"`
	Args             string            `json:"args,omitempty"`
	Disk             int               `json:"disk,omitempty"` // GB
	Ports            []string          `json:"ports,omitzero"` // empty and not nil: none, also against a template
	Env              map[string]string `json:"env,omitempty"`
	Registry         **string          `json:"registry,omitempty"` // of nil: none, also against a template
	Mounts           *v2.Mounts        `json:"mounts,omitempty"`
	Cloud            string            `json:"cloud,omitempty"`
	DataCenterIDs    []string          `json:"dataCenterIds,omitempty"`
	GlobalNetworking bool              `json:"globalNetworking,omitempty"`
	TemplateID       string            `json:"templateId,omitempty"`
	Movable          *bool             `json:"movable,omitempty"`      // nil: the installation's default
	StartSSH         *bool             `json:"startSsh,omitempty"`     // nil: as the template says
	StartJupyter     *bool             `json:"startJupyter,omitempty"` // nil: as the template says

	OwnArgs        bool   `json:"-"` // Args is empty on purpose: the image's own, also against a template
	IdempotencyKey string `json:"-"` // empty: the client makes one for each call
}

// MarshalJSON writes the body.
func (b CreatePod) MarshalJSON() ([]byte, error) {
	type plain CreatePod
	if !b.OwnArgs {
		return json.Marshal(plain(b))
	}
	return json.Marshal(struct {
		plain
		Args string `json:"args"`
	}{plain: plain(b)})
}

// UpdatePod is the body of a change; nil leaves a field as it is. Env and Ports replace the whole.
type UpdatePod struct {
	Name             *string            `json:"name,omitempty"`
	Image            *string            `json:"image,omitempty"`
	Args             *string            `json:"args,omitempty"`
	Disk             *int               `json:"disk,omitempty"` // GB
	Ports            *[]string          `json:"ports,omitempty"`
	Env              *map[string]string `json:"env,omitempty"`
	Registry         **string           `json:"registry,omitempty"` // of nil: none any more
	Mounts           *v2.Mounts         `json:"mounts,omitempty"`
	Locked           *bool              `json:"locked,omitempty"`
	GlobalNetworking *bool              `json:"globalNetworking,omitempty"`
	Movable          *bool              `json:"movable,omitempty"`
	TemplateID       *string            `json:"templateId,omitempty"` // applied once, under the other fields
}

// PodFilter narrows and widens a list of pods; the zero value lists the pods that are not terminated. Several values of
// a field are alternatives.
type PodFilter struct {
	Name                                     string
	IDs, Statuses, Images                    []string
	ComputeTypes, GPUTypes, CPUFlavors       []string
	DataCenters, Templates, NetworkVolumes   []string
	IncludeTerminated, IncludeClusterMembers bool
}

func (f PodFilter) query() url.Values {
	q := url.Values{}
	for name, values := range map[string][]string{
		"id": f.IDs, "status": f.Statuses, "image": f.Images,
		"computeType": f.ComputeTypes, "gpuTypeId": f.GPUTypes, "cpuFlavorId": f.CPUFlavors,
		"dataCenterId": f.DataCenters, "templateId": f.Templates, "networkVolumeId": f.NetworkVolumes,
	} {
		setList(q, name, values)
	}
	setText(q, "name", f.Name)
	setFlag(q, "includeTerminated", f.IncludeTerminated)
	setFlag(q, "includeClusterPods", f.IncludeClusterMembers)
	return q
}

// setList gives a parameter its values, one after the other.
func setList(q url.Values, name string, values []string) {
	if len(values) > 0 {
		q[name] = values
	}
}

// setText gives a parameter one value, unless that is empty.
func setText(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func setFlag(q url.Values, name string, on bool) {
	if on {
		q.Set(name, "true")
	}
}

// joined gives a parameter its values as one text with commas between them.
func joined(q url.Values, name string, values []string) {
	setText(q, name, strings.Join(values, ","))
}

// Pods lists the caller's pods.
func (c *Client) Pods(ctx context.Context) (Answer[v2.PodList], error) {
	return c.PodsWhere(ctx, PodFilter{})
}

// PodsWhere lists those of the caller's pods that the filter takes.
func (c *Client) PodsWhere(ctx context.Context, f PodFilter) (Answer[v2.PodList], error) {
	return list[v2.PodList](ctx, c, "/v2/pods", f.query())
}

// Pod reads one pod.
func (c *Client) Pod(ctx context.Context, id string) (Answer[v2.Pod], error) {
	return call[v2.Pod](ctx, c, http.MethodGet, "/v2/pods/"+word(id), nil, nil)
}

// CreatePod creates a pod: once it answers, host and devices are reserved.
func (c *Client) CreatePod(ctx context.Context, body CreatePod) (Answer[v2.Pod], error) {
	return create[v2.Pod](ctx, c, "/v2/pods", body.IdempotencyKey, body)
}

// PlanPod answers as CreatePod would at this moment, and creates nothing.
func (c *Client) PlanPod(ctx context.Context, body CreatePod) (Answer[v2.Pod], error) {
	return call[v2.Pod](ctx, c, http.MethodPost, "/v2/pods", url.Values{"dryRun": {"true"}}, body)
}

// UpdatePod changes a pod; what its container was made from is taken up by a restart, which the API does at once.
func (c *Client) UpdatePod(ctx context.Context, id string, body UpdatePod) (Answer[v2.Pod], error) {
	return call[v2.Pod](ctx, c, http.MethodPatch, "/v2/pods/"+word(id), nil, body)
}

// ActPod starts, stops or restarts a pod, or terminates it, which answers no record.
func (c *Client) ActPod(ctx context.Context, id string, action fleet.Trigger) (Answer[v2.Pod], error) {
	body := map[string]string{"action": string(action)}
	return call[v2.Pod](ctx, c, http.MethodPost, "/v2/pods/"+word(id)+"/action", nil, body)
}

// DeletePod terminates a pod for good.
func (c *Client) DeletePod(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/pods/"+word(id))
}

// remove makes a DELETE, whose answer has no body.
func (c *Client) remove(ctx context.Context, path string) error {
	_, err := call[struct{}](ctx, c, http.MethodDelete, path, nil, nil)
	return err
}
