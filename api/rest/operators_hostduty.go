package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// DrainHostRequest is the body that begins to empty a host.
type DrainHostRequest struct {
	KeepRunning bool `json:"keepRunning,omitempty" doc:"Wait for running pods rather than move those that may be moved." example:"true"`
}

// HostPod is a pod that holds something of a host, as operators see it.
type HostPod struct {
	ID        string  `json:"id" doc:"Pod identifier." example:"k3n8w0zq5r7d2a"`
	AccountID string  `json:"accountId" doc:"Whose pod it is." example:"a5f8k2m7q1w4z9"`
	Status    string  `json:"status" doc:"Status of the pod." example:"RUNNING"`
	GPUs      int     `json:"gpus" doc:"GPUs of the host that it holds."`
	Moving    bool    `json:"moving" doc:"A drain stops it here and starts it on another host."`
	Waits     *string `json:"waits" doc:"Why a drain waits for it, or null."`
}

// HostPodList is the answer to asking for the pods of a host.
type HostPodList struct {
	Pods []HostPod `json:"pods" doc:"Pods that hold something of the host or keep data there, by id."`
}

const textNoHost = "404: there is no such host."

// hostAction is a route that does something with a host and answers with its record.
func hostAction(word, id, summary, text string) route {
	return route{
		method: http.MethodPost, path: "/admin/v1/hosts/{id}/" + word, id: id, tag: "Operators", summary: summary, text: text + " " + textNoHost,
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{hostIDParam()}, out: exampleHost(),
	}
}

func (a *API) registerHostDuties() {
	duty := func(duty fleet.Duty) func(context.Context, *call, *none) (*Host, error) {
		return a.onHost(func(svc Service, ctx context.Context, id fleet.HostID) (fleet.HostView, error) {
			return svc.SetHostDuty(ctx, id, duty, false)
		})
	}
	conflict := func(rt route) route {
		rt.errors = []int{http.StatusConflict}
		return rt
	}
	handle(a, conflict(hostAction("cordon", "cordonHost", "Give a host no new pods",
		"The host gets no new pods; what is on it stays. A drain ends so, too. 409: the host's state does not allow it.")), duty(fleet.DutyCordoned))
	handle(a, conflict(hostAction("uncordon", "uncordonHost", "Give a host pods again",
		"The host takes new pods again. A host that was fenced first has to be connected and to have removed what was there. 409: it is not so far.")),
		duty(fleet.DutyOpen))
	drain := conflict(hostAction("drain", "drainHost", "Empty a host",
		"The host gets no new pods. Pods that may be moved are stopped and started on other hosts: those that run, are not locked and keep no data on "+
			"the host. The drain waits for the others; GET /admin/v1/hosts/{id}/pods tells which and why. 409: the host's state does not allow it."))
	drain.in = DrainHostRequest{KeepRunning: true}
	handle(a, drain, a.drainHost)
	handle(a, conflict(hostAction("fence", "fenceHost", "Vouch that nothing runs on a host",
		"Call it only when the host is switched off, or surely cut off from everything: its pods are taken as ended, and what they held is given to others. "+
			"Should it come back, everything of before is removed first. 409: the host is connected.")), a.onHost(Service.FenceHost))
	handle(a, hostAction("ack-alarm", "ackHostAlarm", "End a host's alarm", "Takes the alarm off the host."), a.onHost(Service.ClearHostAlarm))
	handle(a, route{
		method: http.MethodDelete, path: "/admin/v1/hosts/{id}", id: "removeHost", tag: "Operators", summary: "Remove a host for good",
		text:  "Takes a host out for ever: its certificate is refused from now on. 400: pods are on it, or keep data there. " + textNoHost,
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{hostIDParam()},
	}, a.removeHost)
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/hosts/{id}/pods", id: "listHostPods", tag: "Operators", summary: "List the pods of a host",
		text:  "Lists the pods that hold something of a host or keep data there, and why a drain waits for them. " + textNoHost,
		scope: auth.Read(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{hostIDParam()},
		out: HostPodList{Pods: []HostPod{{
			ID: "k3n8w0zq5r7d2a", AccountID: "a5f8k2m7q1w4z9", Status: "RUNNING", GPUs: 1, Waits: textOrNull("it keeps data on the host"),
		}}},
	}, a.hostPods)
}

// onHost answers with the record of the host that f did something with.
func (a *API) onHost(f func(Service, context.Context, fleet.HostID) (fleet.HostView, error)) func(context.Context, *call, *none) (*Host, error) {
	return func(ctx context.Context, c *call, _ *none) (*Host, error) {
		id, err := pathID[fleet.HostID](c, "host")
		if err != nil {
			return nil, err
		}
		return show(hostRecord)(f(a.svc, ctx, id))
	}
}

func (a *API) drainHost(ctx context.Context, c *call, in *DrainHostRequest) (*Host, error) {
	id, err := pathID[fleet.HostID](c, "host")
	if err != nil {
		return nil, err
	}
	return show(hostRecord)(a.svc.SetHostDuty(ctx, id, fleet.DutyDraining, in.KeepRunning))
}

func (a *API) removeHost(ctx context.Context, c *call, _ *none) (*none, error) {
	id, err := pathID[fleet.HostID](c, "host")
	if err != nil {
		return nil, err
	}
	return nil, a.svc.RemoveHost(ctx, id)
}

func (a *API) hostPods(ctx context.Context, c *call, _ *none) (*HostPodList, error) {
	id, err := pathID[fleet.HostID](c, "host")
	if err != nil {
		return nil, err
	}
	all, err := showAll(hostPodRecord)(a.svc.HostPods(ctx, id))
	return &HostPodList{Pods: all}, err
}

func hostPodRecord(p fleet.HeldPod) HostPod {
	return HostPod{
		ID: string(p.ID), AccountID: string(p.Account), Status: string(p.Status), GPUs: p.GPUs, Moving: p.Moving, Waits: textOrNull(p.Waits),
	}
}
