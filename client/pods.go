package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
)

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
func (c *Client) CreatePod(ctx context.Context, body v2.CreatePodRequest) (Answer[v2.Pod], error) {
	return create[v2.Pod](ctx, c, "/v2/pods", body)
}

// PlanPod answers as CreatePod would at this moment, and creates nothing.
func (c *Client) PlanPod(ctx context.Context, body v2.CreatePodRequest) (Answer[v2.Pod], error) {
	return call[v2.Pod](ctx, c, http.MethodPost, "/v2/pods", url.Values{"dryRun": {"true"}}, body)
}

// UpdatePod changes a pod; what its container was made from is taken up by a restart, which the API does at once.
func (c *Client) UpdatePod(ctx context.Context, id string, body v2.UpdatePodRequest) (Answer[v2.Pod], error) {
	return call[v2.Pod](ctx, c, http.MethodPatch, "/v2/pods/"+word(id), nil, body)
}

// PodLink makes a link that opens an http port for a time, a whole number of seconds.
func (c *Client) PodLink(ctx context.Context, id string, port int, life time.Duration) (Answer[v2.PortLink], error) {
	query := url.Values{"port": {strconv.Itoa(port)}, "expiresIn": {strconv.Itoa(int(life / time.Second))}}
	return call[v2.PortLink](ctx, c, http.MethodGet, "/v2/pods/"+word(id)+"/link", query, nil)
}

// ActPod starts, stops or restarts a pod, or terminates it, which answers no record.
func (c *Client) ActPod(ctx context.Context, id string, action fleet.Trigger) (Answer[v2.Pod], error) {
	body := v2.ActionRequest{Action: string(action)}
	return call[v2.Pod](ctx, c, http.MethodPost, "/v2/pods/"+word(id)+"/action", nil, body)
}

// StartPod starts an interruptible pod with another bid, in USD per GPU and hour.
func (c *Client) StartPod(ctx context.Context, id string, bid float64) (Answer[v2.Pod], error) {
	body := v2.ActionRequest{Action: string(fleet.ActionStart), BidPerGPU: &bid}
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
