package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// HostEligibilityService takes hosts out of service.
type HostEligibilityService interface {
	SetHostEligibility(ctx context.Context, id fleet.HostID, eligibility fleet.Eligibility) (fleet.HostView, error)
	DrainHost(ctx context.Context, id fleet.HostID, req fleet.DrainRequest) (fleet.HostView, error)
	PlanDrain(ctx context.Context, id fleet.HostID, keepRunning bool) ([]fleet.HeldPod, error)
	FenceHost(ctx context.Context, id fleet.HostID) (fleet.HostView, error)
	RemoveHost(ctx context.Context, id fleet.HostID) error
	ClearHostAlarm(ctx context.Context, id fleet.HostID) (fleet.HostView, error)
	HostPods(ctx context.Context, id fleet.HostID) ([]fleet.HeldPod, error)
}

const textNoHost = "404: there is no such host."

// hostAction is a route that does something with a host and answers with its record.
func hostAction(word, id, summary, text string) route {
	return route{
		method: http.MethodPost, path: "/admin/v1/hosts/{id}/" + word, id: id, tag: "Operators", summary: summary, text: text + " " + textNoHost,
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{hostIDParam()}, out: exampleHost(),
	}
}

func (a *API) registerHostEligibility() {
	eligibility := func(eligibility fleet.Eligibility) func(context.Context, HostEligibilityService, *call, *none) (*admin.Host, error) {
		return onHost(func(svc HostEligibilityService, ctx context.Context, id fleet.HostID) (fleet.HostView, error) {
			return svc.SetHostEligibility(ctx, id, eligibility)
		})
	}
	conflict := func(rt route) route {
		rt.errors = []int{http.StatusConflict}
		return rt
	}
	on(a, conflict(hostAction("cordon", "cordonHost", "Give a host no new pods",
		"The host gets no new pods; what is on it stays. A drain ends so, too. 409: the host's state does not allow it.")), eligibility(fleet.EligibilityCordoned))
	on(a, conflict(hostAction("uncordon", "uncordonHost", "Give a host pods again",
		"The host takes new pods again. A host that was fenced first has to be connected and to have removed what was there. 409: it is not so far.")),
		eligibility(fleet.EligibilityOpen))
	a.registerDrain(conflict)
	on(a, conflict(hostAction("fence", "fenceHost", "Vouch that nothing runs on a host",
		"Call it only when the host is switched off, or surely cut off from everything: its pods are taken as ended, and what they held is given to others. "+
			"Should it come back, everything of before is removed first. 409: the host is connected.")), onHost(HostEligibilityService.FenceHost))
	on(a, hostAction("ack-alarm", "ackHostAlarm", "End a host's alarm", "Takes the alarm off the host."), onHost(HostEligibilityService.ClearHostAlarm))
	on(a, route{
		method: http.MethodDelete, path: "/admin/v1/hosts/{id}", id: "removeHost", tag: "Operators", summary: "Remove a host for good",
		text:  "Takes a host out for ever: its certificate is refused from now on. 400: pods are on it, or keep data there. " + textNoHost,
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{hostIDParam()},
	}, byID("host", removeHost))
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/hosts/{id}/pods", id: "listHostPods", tag: "Operators", summary: "List the pods of a host",
		text:  "Lists the pods that hold something of a host or keep data there, and why a drain waits for them. " + textNoHost,
		scope: auth.Read(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{hostIDParam()},
		out: admin.HostPodList{Pods: []admin.HostPod{{
			ID: "k3n8w0zq5r7d2a", AccountID: "a5f8k2m7q1w4z9", Status: "RUNNING", GPUs: 1, Waits: "it keeps data on the host", Steps: examplePod().Steps,
		}}},
	}, byID("host", hostPods))
}

func (a *API) registerDrain(conflict func(route) route) {
	drain := conflict(hostAction("drain", "drainHost", "Empty a host",
		"The host gets no new pods, and the owners of its pods are told (condition). A pod that is movable, not locked and keeps no data on the host is moved: its place "+
			"on another host is reserved in the step that stops it. All others run on until they end, until the deadline, or until force. Called again, it replaces what was said. "+
			"400: members exclude each other, or the deadline is over. 409: the host's state does not allow it."))
	drain.in = admin.DrainHostRequest{Reason: "new fans"}
	on(a, drain, byID("host", drainHost))
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/hosts/{id}/drain", id: "planDrain", tag: "Operators", summary: "Tell what a drain would do",
		text:  "Tells of each pod of a host where a drain would move it, or why it would run on, and whether force would stop it. Nothing is changed. " + textNoHost,
		scope: auth.Read(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK,
		params: []*huma.Param{hostIDParam(), flagParam("keepRunning", "As in the drain.", false)},
		out: admin.HostPodList{Pods: []admin.HostPod{{
			ID: "k3n8w0zq5r7d2a", AccountID: "a5f8k2m7q1w4z9", Status: "RUNNING", GPUs: 1, To: "h7d2k9s4f1g6j3", Steps: examplePod().Steps,
		}}},
	}, byID("host", planDrain))
}

// onHost answers with the record of the host that f did something with.
func onHost(f func(HostEligibilityService, context.Context, fleet.HostID) (fleet.HostView, error)) func(context.Context, HostEligibilityService, *call, *none) (*admin.Host, error) {
	return byID("host", func(ctx context.Context, svc HostEligibilityService, id fleet.HostID, _ *call, _ *none) (*admin.Host, error) {
		return show(hostRecord)(f(svc, ctx, id))
	})
}

func drainHost(ctx context.Context, svc HostEligibilityService, id fleet.HostID, _ *call, in *admin.DrainHostRequest) (*admin.Host, error) {
	req := fleet.DrainRequest{KeepRunning: in.KeepRunning, Reason: in.Reason, Force: in.Force}
	if in.Deadline != nil {
		req.Deadline = in.Deadline.Time
	}
	return show(hostRecord)(svc.DrainHost(ctx, id, req))
}

func planDrain(ctx context.Context, svc HostEligibilityService, id fleet.HostID, c *call, _ *none) (*admin.HostPodList, error) {
	all, err := showAll(hostPodRecord)(svc.PlanDrain(ctx, id, c.args.flag("keepRunning", false)))
	return &admin.HostPodList{Pods: all}, err
}

func removeHost(ctx context.Context, svc HostEligibilityService, id fleet.HostID, _ *call, _ *none) (*none, error) {
	return nil, svc.RemoveHost(ctx, id)
}

func hostPods(ctx context.Context, svc HostEligibilityService, id fleet.HostID, _ *call, _ *none) (*admin.HostPodList, error) {
	all, err := showAll(hostPodRecord)(svc.HostPods(ctx, id))
	return &admin.HostPodList{Pods: all}, err
}

func hostPodRecord(p fleet.HeldPod) admin.HostPod {
	return admin.HostPod{
		ID: string(p.ID), AccountID: string(p.Account), Status: p.Status, GPUs: p.GPUs, Moving: p.Moving, Waits: v2.Text(p.Waits),
		To: v2.Text(p.To), Stops: p.Stops, Steps: stepsOf(p.Steps),
	}
}
