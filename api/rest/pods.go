package rest

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// ActionRequest is the body that acts on a pod.
type ActionRequest struct {
	Action string `json:"action" doc:"What to do." enum:"start,stop,restart,terminate" example:"stop"`
}

func podIDParam() *huma.Param { return pathParam("Pod identifier.", "k3n8w0zq5r7d2a") }

func (a *API) registerPods() {
	handle(a, route{
		method: http.MethodPost, path: "/v2/pods", id: "createPod", tag: "Pods", summary: "Create a pod",
		text: "Creates a GPU or CPU pod. 201 means that a host and its GPUs are reserved; pulling and starting go on, and " +
			"status moves from PROVISIONING through STARTING to RUNNING. Sizes are GB of 10^9 bytes, cost is USD per hour.\n\n" +
			"400: a rule between fields is broken (code rule), or nothing is free that fits (code no_capacity; excluded tells how many " +
			"hosts each placement rule refused). 402: the balance is below one hour of the pod's cost. 404: a template, registry credential or " +
			"volume does not exist (errors names the field). 422: a single value is wrong, or a GPU type, CPU flavor or data center does not exist.\n\n" +
			"With dryRun=true the answer is 200 with the pod that would be created, whose id is empty; nothing is created.",
		scope: auth.Write(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusCreated, alike: []int{http.StatusOK},
		params: []*huma.Param{flagParam("dryRun", "Answer as a create would, and create nothing.", false)},
		errors: []int{http.StatusPaymentRequired, http.StatusNotFound},
		in:     exampleCreate(), out: examplePod(),
	}, a.createPod)
	handle(a, route{
		method: http.MethodGet, path: "/v2/pods", id: "listPods", tag: "Pods", summary: "List pods",
		text:  "Lists the account's pods, oldest first. TERMINATED pods, which are shown for 10 minutes, are left out unless asked for.",
		scope: auth.Read(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusOK,
		params: []*huma.Param{flagParam("includeTerminated", "Also list pods that were terminated.", false)},
		out:    PodList{Pods: []Pod{examplePod()}},
	}, a.listPods)
	handle(a, route{
		method: http.MethodGet, path: "/v2/pods/{id}", id: "getPod", tag: "Pods", summary: "Get a pod",
		text:  "Returns a pod. 404: there is no such pod, or it is another account's.",
		scope: auth.Read(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusOK,
		params: []*huma.Param{podIDParam()}, out: examplePod(),
	}, a.getPod)
	handle(a, route{
		method: http.MethodPost, path: "/v2/pods/{id}/action", id: "actPod", tag: "Pods", summary: "Start, stop, restart or terminate a pod",
		text: "Acts on a pod and returns its record; terminate answers 204. stop answers at once: the container gets SIGTERM and, 10 seconds later, " +
			"SIGKILL; until it is gone the status stays and statusReason is \"stopping\". Charging ends when the stop is accepted.\n\n" +
			"409: the action is not allowed in the present state; the member actions of a pod lists what is. 400: start finds no room (code no_capacity).",
		scope: auth.Write(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusOK, also: "The pod was terminated.",
		params: []*huma.Param{podIDParam()}, errors: []int{http.StatusPaymentRequired, http.StatusConflict},
		in: ActionRequest{Action: "stop"}, out: examplePod(),
	}, a.actPod)
	handle(a, route{
		method: http.MethodDelete, path: "/v2/pods/{id}", id: "deletePod", tag: "Pods", summary: "Terminate a pod",
		text:  "Terminates a pod for ever, as the action terminate does. 404: there is no such pod. 409: it is terminated already.",
		scope: auth.Write(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusNoContent,
		params: []*huma.Param{podIDParam()}, errors: []int{http.StatusConflict},
	}, a.deletePod)
}

func (a *API) createPod(ctx context.Context, c *call, in *CreatePodRequest) (*Pod, error) {
	if err := in.rules(); err != nil {
		return nil, err
	}
	if c.args.flag("dryRun", false) {
		view, err := a.svc.PlanPod(ctx, c.who, in.request())
		if err != nil {
			return nil, err
		}
		c.status = http.StatusOK
		pod := podRecord(view, a.now())
		return &pod, nil
	}
	return a.shown(a.svc.CreatePod(ctx, c.who, in.request()))
}

func (a *API) listPods(ctx context.Context, c *call, _ *none) (*PodList, error) {
	views, err := a.svc.Pods(ctx, c.who)
	if err != nil {
		return nil, err
	}
	views = slices.Clone(views)
	slices.SortFunc(views, func(x, y fleet.PodView) int {
		return cmp.Or(x.Pod.CreatedAt.Compare(y.Pod.CreatedAt), cmp.Compare(x.Pod.ID, y.Pod.ID))
	})
	out, now := &PodList{Pods: []Pod{}}, a.now()
	for _, v := range views {
		if v.Pod.Status != fleet.StatusTerminated || c.args.flag("includeTerminated", false) {
			out.Pods = append(out.Pods, podRecord(v, now))
		}
	}
	return out, nil
}

func (a *API) getPod(ctx context.Context, c *call, _ *none) (*Pod, error) {
	id, err := c.podID()
	if err != nil {
		return nil, err
	}
	return a.shown(a.svc.Pod(ctx, c.who, id))
}

func (a *API) actPod(ctx context.Context, c *call, in *ActionRequest) (*Pod, error) {
	id, err := c.podID()
	if err != nil {
		return nil, err
	}
	pod, err := a.shown(a.svc.ActPod(ctx, c.who, id, fleet.Trigger(in.Action)))
	if err != nil || fleet.Trigger(in.Action) == fleet.ActionTerminate {
		return nil, err
	}
	return pod, nil
}

func (a *API) deletePod(ctx context.Context, c *call, _ *none) (*none, error) {
	id, err := c.podID()
	if err == nil {
		_, err = a.svc.ActPod(ctx, c.who, id, fleet.ActionTerminate)
	}
	return nil, err
}

// podID returns the pod of the path; what has not the form of an id cannot exist.
func (c *call) podID() (fleet.PodID, error) {
	id := c.args.text("id")
	if !fleet.ValidID(id) {
		return "", fleet.NotFound("pod")
	}
	return fleet.PodID(id), nil
}

func (a *API) shown(v fleet.PodView, err error) (*Pod, error) {
	if err != nil {
		return nil, err
	}
	pod := podRecord(v, a.now())
	return &pod, nil
}
