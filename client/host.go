package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"gantry/api/admin"
)

// Hosts lists the hosts that are not gone; for operators.
func (c *Client) Hosts(ctx context.Context) (Answer[admin.HostList], error) {
	return c.FindHosts(ctx, HostQuery{})
}

// HostQuery narrows a list of hosts; the zero value: all but those that are gone.
type HostQuery struct {
	States []string
	Labels []string // each NAME=VALUE; a host has all of them
}

// FindHosts lists hosts; for operators.
func (c *Client) FindHosts(ctx context.Context, q HostQuery) (Answer[admin.HostList], error) {
	query := url.Values{}
	if len(q.States) > 0 {
		query["state"] = q.States
	}
	if len(q.Labels) > 0 {
		query["label"] = q.Labels
	}
	return list[admin.HostList](ctx, c, "/admin/v1/hosts", query)
}

// Host reads one host; for operators.
func (c *Client) Host(ctx context.Context, id string) (Answer[admin.Host], error) {
	return call[admin.Host](ctx, c, http.MethodGet, "/admin/v1/hosts/"+word(id), nil, nil)
}

// SetHostCloud puts a host into another tier; its pods stay. For operators.
func (c *Client) SetHostCloud(ctx context.Context, id, cloud string) (Answer[admin.Host], error) {
	return call[admin.Host](ctx, c, http.MethodPatch, "/admin/v1/hosts/"+word(id), nil, admin.UpdateHostRequest{Cloud: cloud})
}

// SetHostLabels sets labels of a host, and removes those whose value is nil; others stay. For operators.
func (c *Client) SetHostLabels(ctx context.Context, id string, changes map[string]*string) (Answer[admin.Host], error) {
	return call[admin.Host](ctx, c, http.MethodPatch, "/admin/v1/hosts/"+word(id), nil, admin.UpdateHostRequest{Labels: changes})
}

// CordonHost gives a host no new pods; for operators.
func (c *Client) CordonHost(ctx context.Context, id string) (Answer[admin.Host], error) {
	return c.onHost(ctx, id, "cordon", nil)
}

// CordonGPU gives a GPU of a host, by UUID or by its place in the host's record, no new pods; for operators.
func (c *Client) CordonGPU(ctx context.Context, id, gpu, reason string) (Answer[admin.Host], error) {
	return c.onHost(ctx, id, "gpus/"+word(gpu)+"/cordon", admin.CordonGPURequest{Reason: reason})
}

// UncordonGPU gives a cordoned GPU pods again; for operators.
func (c *Client) UncordonGPU(ctx context.Context, id, gpu string) (Answer[admin.Host], error) {
	return c.onHost(ctx, id, "gpus/"+word(gpu)+"/uncordon", nil)
}

// ClearGPU forgets that a GPU, which may be gone, was cordoned; for operators.
func (c *Client) ClearGPU(ctx context.Context, id, gpu string) (Answer[admin.Host], error) {
	return c.onHost(ctx, id, "gpus/"+word(gpu)+"/clear", nil)
}

// UncordonHost gives a host new pods again; for operators.
func (c *Client) UncordonHost(ctx context.Context, id string) (Answer[admin.Host], error) {
	return c.onHost(ctx, id, "uncordon", nil)
}

// DrainHost begins to empty a host, or changes how that is done; for operators.
func (c *Client) DrainHost(ctx context.Context, id string, drain admin.DrainHostRequest) (Answer[admin.Host], error) {
	return c.onHost(ctx, id, "drain", drain)
}

// PlanDrain tells what a drain would do with the pods of a host; for operators.
func (c *Client) PlanDrain(ctx context.Context, id string, keepRunning bool) (Answer[admin.HostPodList], error) {
	query := url.Values{"keepRunning": {strconv.FormatBool(keepRunning)}}
	return call[admin.HostPodList](ctx, c, http.MethodGet, "/admin/v1/hosts/"+word(id)+"/drain", query, nil)
}

// FenceHost vouches that nothing runs on a host any more; for operators.
func (c *Client) FenceHost(ctx context.Context, id string) (Answer[admin.Host], error) {
	return c.onHost(ctx, id, "fence", nil)
}

// AckHostAlarm ends the alarm of a host; for operators.
func (c *Client) AckHostAlarm(ctx context.Context, id string) (Answer[admin.Host], error) {
	return c.onHost(ctx, id, "ack-alarm", nil)
}

func (c *Client) onHost(ctx context.Context, id, what string, body any) (Answer[admin.Host], error) {
	return call[admin.Host](ctx, c, http.MethodPost, "/admin/v1/hosts/"+word(id)+"/"+what, nil, body)
}

// RemoveHost takes a host out for ever; for operators.
func (c *Client) RemoveHost(ctx context.Context, id string) error {
	return c.remove(ctx, "/admin/v1/hosts/"+word(id))
}

// HostPods lists what pods hold something of a host or keep data there; for operators.
func (c *Client) HostPods(ctx context.Context, id string) (Answer[admin.HostPodList], error) {
	return list[admin.HostPodList](ctx, c, "/admin/v1/hosts/"+word(id)+"/pods", nil)
}

// CreateJoinToken makes a join token; for operators.
func (c *Client) CreateJoinToken(ctx context.Context, body admin.CreateTokenRequest) (Answer[admin.JoinToken], error) {
	return call[admin.JoinToken](ctx, c, http.MethodPost, "/admin/v1/hosts/tokens", nil, body)
}
