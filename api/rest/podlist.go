package rest

import (
	"context"
	"net/http"
	"slices"

	"gantry/api/v2"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// maxFilter is how many values one filter takes.
const maxFilter = 100

func (a *API) registerPodList() {
	var statuses []string
	for _, s := range fleet.PodStatuses() {
		statuses = append(statuses, string(s))
	}
	on(a, route{
		method: http.MethodGet, path: "/v2/pods", id: "listPods", tag: "Pods", summary: "List pods",
		text: "Lists the account's pods, oldest first. TERMINATED pods, which are shown for 10 minutes, are left out unless they are asked for. A pod must pass " +
			"all filters that are given, and one value of each.",
		scope: auth.Read(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusOK,
		params: []*huma.Param{
			listParam("id", "Only pods with these identifiers.", maxFilter),
			queryParam("name", "Only pods with exactly this name.", huma.Schema{Type: huma.TypeString}),
			listParam("status", "Only pods in these statuses; TERMINATED asks for terminated ones.", maxFilter, statuses...),
			listParam("image", "Only pods with exactly these image references.", maxFilter),
			listParam("computeType", "Only GPU pods, or only CPU pods.", maxFilter, "GPU", "CPU"),
			listParam("gpuTypeId", "Only pods with these GPU types.", maxFilter),
			listParam("cpuFlavorId", "Only pods with these CPU flavors.", maxFilter),
			listParam("dataCenterId", "Only pods in these data centers.", maxFilter),
			listParam("templateId", "Only pods that were created from these templates.", maxFilter),
			listParam("networkVolumeId", "Only pods with these network volumes.", maxFilter),
			flagParam("includeTerminated", "Also list pods that were terminated.", false),
			flagParam("includeClusterPods", "Also list the pods of clusters.", false),
		},
		out: v2.PodList{Pods: []v2.Pod{examplePod()}},
	}, a.listPods)
}

func (a *API) listPods(ctx context.Context, svc PodService, c *call, _ *none) (*v2.PodList, error) {
	views, err := svc.Pods(ctx, c.who)
	if err != nil {
		return nil, err
	}
	if c.args.flag("includeClusterPods", false) {
		members, err := svc.ClusterMembers(ctx, c.who)
		if err != nil {
			return nil, err
		}
		views = append(views, members...)
		slices.SortStableFunc(views, func(a, b fleet.PodView) int { return a.Pod.CreatedAt.Compare(b.Pod.CreatedAt) })
	}
	terminated := c.args.flag("includeTerminated", false) || slices.Contains(c.args["status"], string(fleet.StatusTerminated))
	all := len(views)
	views = slices.DeleteFunc(views, func(v fleet.PodView) bool {
		return v.Pod.Status == fleet.StatusTerminated && !terminated || !c.args.wantPod(v.Pod)
	})
	if c.direct {
		c.write = func() error { return a.writePods(c, views, all) }
		return nil, nil
	}
	return a.podList(views), nil
}

// podFilters are the filters of a list by the values that pods have.
var podFilters = map[string]func(*fleet.Pod) string{
	"id":           func(p *fleet.Pod) string { return string(p.ID) },
	"name":         func(p *fleet.Pod) string { return p.Spec.Name },
	"status":       func(p *fleet.Pod) string { return string(p.Status) },
	"image":        func(p *fleet.Pod) string { return p.Spec.Image },
	"dataCenterId": func(p *fleet.Pod) string { return string(p.DataCenter) },
	"templateId":   func(p *fleet.Pod) string { return string(p.Spec.Template) },
	"computeType": func(p *fleet.Pod) string {
		if p.Spec.GPU != nil {
			return "GPU"
		}
		return "CPU"
	},
	"gpuTypeId": func(p *fleet.Pod) string {
		if p.Spec.GPU == nil {
			return ""
		}
		return p.Spec.GPU.Type
	},
	"cpuFlavorId": func(p *fleet.Pod) string {
		if p.Spec.CPU == nil {
			return ""
		}
		return p.Spec.CPU.Flavor
	},
	"networkVolumeId": func(p *fleet.Pod) string {
		if p.Spec.Network == nil {
			return ""
		}
		return string(p.Spec.Network.Volume)
	},
}

// wantPod reports whether a pod passes the filters.
func (a args) wantPod(p *fleet.Pod) bool {
	for name, wanted := range a {
		if value, ok := podFilters[name]; ok && len(wanted) > 0 && !slices.Contains(wanted, value(p)) {
			return false
		}
	}
	return true
}
