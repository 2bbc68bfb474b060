package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// PodService creates, shows and changes pods.
type PodService interface {
	CreatePod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error)
	// PlanPod answers as CreatePod would, and creates nothing.
	PlanPod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error)
	// Pods lists the account's pods, terminated ones too, oldest first.
	Pods(ctx context.Context, who fleet.Principal) ([]fleet.PodView, error)
	// ClusterMembers lists the pods of the account's clusters.
	ClusterMembers(ctx context.Context, who fleet.Principal) ([]fleet.PodView, error)
	Pod(ctx context.Context, who fleet.Principal, id fleet.PodID) (fleet.PodView, error)
	ActPod(ctx context.Context, who fleet.Principal, id fleet.PodID, action fleet.Trigger) (fleet.PodView, error)
	// StartPod is ActPod with start and another bid of an interruptible pod.
	StartPod(ctx context.Context, who fleet.Principal, id fleet.PodID, bid fleet.Money) (fleet.PodView, error)
	UpdatePod(ctx context.Context, who fleet.Principal, id fleet.PodID, change fleet.PodUpdate) (fleet.PodView, error)
	// LinkPort makes a token that opens an http port of a pod until a moment.
	LinkPort(ctx context.Context, who fleet.Principal, id fleet.PodID, port int, life time.Duration) (fleet.PodView, fleet.Secret, time.Time, error)
}

func podIDParam() *huma.Param { return pathParam("Pod identifier.", "k3n8w0zq5r7d2a") }

func (a *API) registerPods() {
	on(a, route{
		method: http.MethodPost, path: "/v2/pods", id: "createPod", tag: "Pods", summary: "Create a pod",
		text: "Creates a GPU or CPU pod. 201 means that a host and its GPUs are reserved; pulling and starting go on, and " +
			"status moves from PROVISIONING through STARTING to RUNNING. Sizes are GB of 10^9 bytes, cost is USD per hour. image may be left out " +
			"when templateId is given.\n\n" +
			"400: a rule between fields is broken (code rule), or nothing is free that fits (code no_capacity; excluded tells how many " +
			"hosts each placement rule refused). 402: the balance is below one hour of the pod's cost. 404: a template, registry credential or " +
			"volume does not exist (errors names the field). 422: a single value is wrong, or a GPU type, CPU flavor or data center does not exist.\n\n" +
			"With dryRun=true the answer is 200 with the pod that would be created, whose id is empty; nothing is created.\n\n" + onceText,
		scope: auth.Write(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusCreated, alike: []int{http.StatusOK},
		params: []*huma.Param{flagParam("dryRun", "Answer as a create would, and create nothing.", false), onceParam()},
		errors: []int{http.StatusPaymentRequired, http.StatusNotFound, http.StatusConflict},
		in:     exampleCreate(), out: examplePod(),
	}, a.createPod)
	a.registerPodList()
	on(a, route{
		method: http.MethodGet, path: "/v2/pods/{id}", id: "getPod", tag: "Pods", summary: "Get a pod",
		text:  "Returns a pod. 404: there is no such pod, or it is another account's.",
		scope: auth.Read(fleet.GroupPods).OrPod(), limit: limit.PerAccount, status: http.StatusOK,
		params: []*huma.Param{podIDParam()}, out: examplePod(),
	}, byID("pod", a.getPod))
	on(a, route{
		method: http.MethodPatch, path: "/v2/pods/{id}", id: "updatePod", tag: "Pods", summary: "Change a pod",
		text: "Changes what the body names and returns the pod. name, locked, registry, globalNetworking and mounts change in place; paths, registry and " +
			"globalNetworking count from the next start on. image, args, env, ports and disk, when they are really different, restart an active pod, " +
			"which wipes its container disk.\n\n" +
			"400: the mounts' kind or volume would change, host-local storage would shrink, network is empty, or the new disk finds no room. 404: the pod, " +
			"template or registry credential does not exist. 409: the pod is terminated, or it is locked and the change would restart it.",
		scope: auth.Write(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusOK,
		params: []*huma.Param{podIDParam()}, errors: []int{http.StatusPaymentRequired, http.StatusConflict},
		in: v2.UpdatePodRequest{Name: new("trainer-2"), PodSettings: v2.PodSettings{Env: map[string]string{"EPOCHS": "4"}}}, out: examplePod(),
	}, byID("pod", a.updatePod))
	a.registerPodActions()
}

func (a *API) registerPodActions() {
	on(a, route{
		method: http.MethodPost, path: "/v2/pods/{id}/action", id: "actPod", tag: "Pods", summary: "Start, stop, restart or terminate a pod",
		text: "Acts on a pod and returns its record; terminate answers 204. A pod's own key starts nothing (403). stop answers at once: the container gets SIGTERM and, 10 seconds later, " +
			"SIGKILL; until it is gone the status stays and statusReason is \"stopping\". Charging ends when the stop is accepted.\n\n" +
			"409: the action is not allowed in the present state; the member actions of a pod lists what is. 400: start finds no room (code no_capacity).",
		scope: auth.Write(fleet.GroupPods).OrPod(), limit: limit.PerAccount, status: http.StatusOK, also: "The pod was terminated.",
		params: []*huma.Param{podIDParam()}, errors: []int{http.StatusPaymentRequired, http.StatusConflict},
		in: v2.ActionRequest{Action: "stop"}, out: examplePod(),
	}, byID("pod", a.actPod))
	on(a, route{
		method: http.MethodDelete, path: "/v2/pods/{id}", id: "deletePod", tag: "Pods", summary: "Terminate a pod",
		text:  "Terminates a pod for ever, as the action terminate does. 404: there is no such pod. 409: it is terminated already.",
		scope: auth.Write(fleet.GroupPods).OrPod(), limit: limit.PerAccount, status: http.StatusNoContent,
		params: []*huma.Param{podIDParam()}, errors: []int{http.StatusConflict},
	}, byID("pod", deletePod))
	port := countParam("port", "Number of an http port of the pod.", 1, maxPort)
	port.Required, port.Schema.Examples = true, []any{8080}
	on(a, route{
		method: http.MethodGet, path: "/v2/pods/{id}/link", id: "linkPod", tag: "Pods", summary: "Make a link to an http port",
		text: "Returns an address that opens an http port whose portSettings have access KEY, for whoever has it, until it expires. It ends earlier with " +
			"the pod alone, so keep it short. 400: the port is no http port of the pod, or there is no proxy domain (code rule). 404: there is no such pod.",
		scope: auth.Write(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusOK, errors: []int{http.StatusBadRequest},
		params: []*huma.Param{podIDParam(), port, countParam("expiresIn", "Seconds that it is good for; 3600 if left out.", 1, 7*24*60*60)},
		out:    v2.PortLink{URL: "https://k3n8w0zq5r7d2a-8888.pods.example.com/?gantry-link=1793000000.AAAA", ExpiresAt: examplePod().CreatedAt},
	}, byID("pod", linkPod))
}

func linkPod(ctx context.Context, svc PodService, id fleet.PodID, c *call, _ *none) (*v2.PortLink, error) {
	port := c.args.number("port", 0)
	life := time.Duration(c.args.number("expiresIn", 3600)) * time.Second
	view, token, until, err := svc.LinkPort(ctx, c.who, id, port, life)
	if err != nil {
		return nil, err
	}
	address := urlOf(&view, fleet.Port{Number: port, Protocol: "http"})
	if address == "" {
		return nil, fleet.BreaksRule("the installation has no proxy domain")
	}
	return &v2.PortLink{URL: v2.Hidden(address + "?" + fleet.LinkName + "=" + token.Reveal()), ExpiresAt: v2.At(until)}, nil
}

func (a *API) createPod(ctx context.Context, svc PodService, c *call, in *v2.CreatePodRequest) (*v2.Pod, error) {
	req := podRequest(in)
	if c.args.flag("dryRun", false) {
		view, err := svc.PlanPod(ctx, c.who, req)
		if err != nil {
			return nil, err
		}
		c.status = http.StatusOK
		view.Pod.ID = "" // nothing was made that it could name
		pod := podRecord(&view, a.now())
		return &pod, nil
	}
	var err error
	if req.Once, err = c.once(in); err != nil {
		return nil, err
	}
	view, err := svc.CreatePod(ctx, c.who, req)
	if err != nil {
		return nil, err
	}
	c.replayed(view.Replayed)
	return a.shown(view, nil)
}

func (a *API) getPod(ctx context.Context, svc PodService, id fleet.PodID, c *call, _ *none) (*v2.Pod, error) {
	return a.shown(svc.Pod(ctx, c.who, id))
}

func (a *API) actPod(ctx context.Context, svc PodService, id fleet.PodID, c *call, in *v2.ActionRequest) (*v2.Pod, error) {
	if in.BidPerGPU != nil {
		if fleet.Trigger(in.Action) != fleet.ActionStart {
			return nil, fleet.BreaksRule("bidPerGpu goes with the action start")
		}
		return a.shown(svc.StartPod(ctx, c.who, id, fleet.MoneyUSD(*in.BidPerGPU)))
	}
	pod, err := a.shown(svc.ActPod(ctx, c.who, id, fleet.Trigger(in.Action)))
	if err != nil || fleet.Trigger(in.Action) == fleet.ActionTerminate {
		return nil, err
	}
	return pod, nil
}

func deletePod(ctx context.Context, svc PodService, id fleet.PodID, c *call, _ *none) (*none, error) {
	_, err := svc.ActPod(ctx, c.who, id, fleet.ActionTerminate)
	return nil, err
}

func (a *API) shown(v fleet.PodView, err error) (*v2.Pod, error) {
	if err != nil {
		return nil, err
	}
	pod := podRecord(&v, a.now())
	return &pod, nil
}
