package v1

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/rest"
	"gantry/fleet"
)

// others registers the routes of templates, network volumes and registry credentials.
func (f *face) others() {
	n := f.nouns["Templates"]
	f.register(crud{
		noun: n, one: "Template", several: "Templates", list: "listTemplates", make: "createTemplate", get: "getTemplate", change: "updateTemplate",
		remove: "deleteTemplate", member: "templates", made: http.StatusOK,
		example: object{"name": "notebook", "imageName": "docker.io/library/nginx:1.29"}, changed: object{"name": "notebook-2"},
		text: "Pods that exist keep what they were made with.",
		create: func(v *view, in object) (any, error) {
			var leave []string
			if in["category"] == string(fleet.CategoryCPU) {
				leave = []string{"containerDiskInGb", "volumeInGb", "volumeMountPath"}
			}
			if in["isServerless"] == true {
				leave = append(leave, "volumeInGb", "volumeMountPath")
			}
			n.defaults(in, leave...)
			if zero(in["volumeInGb"]) {
				delete(in, "volumeMountPath")
			}
			out, err := n.body("c", in)
			if err == nil {
				err = setArgs(in, out, "")
			}
			if err != nil {
				return nil, err
			}
			return v.Call(v.ctx, "createTemplate", v.params, out)
		},
		update: func(_ *view, in, had object) (object, error) {
			out := object{}
			before, _ := had["args"].(string)
			if _, path := in["volumeMountPath"]; path || !zero(in["volumeInGb"]) {
				out["mounts"] = object{"persistent": persistent(in, had)}
			}
			return out, setArgs(in, out, before)
		},
	})
	f.register(crud{
		noun: f.nouns["Network volumes"], one: "NetworkVolume", several: "NetworkVolumes", list: "listNetworkVolumes", make: "createNetworkVolume", get: "getNetworkVolume",
		change: "updateNetworkVolume", remove: "deleteNetworkVolume", member: "networkVolumes", made: http.StatusOK,
		example: object{"name": "datasets", "size": 100, "dataCenterId": "EU-RO-1"}, changed: object{"size": 200}, text: "It can grow, and never shrink.",
	})
	f.register(crud{
		noun: f.nouns["Container registry credentials"], one: "ContainerRegistryAuth", several: "ContainerRegistryAuths", list: "listRegistries", make: "createRegistry",
		get: "getRegistry", remove: "deleteRegistry", member: "registries", made: http.StatusOK,
		example: object{"name": "team images", "username": "robot", "password": "placeholder"},
	})
}

// bill is a route about charges.
type bill struct {
	path, id, operation string
	one                 string            // member that names what was charged; empty: charges are summed for each time
	of                  string            // its name in version 2
	filters             map[string]string // query parameters by those of version 2
	amounts             map[string]string // members by those of version 2
}

func (f *face) billing() {
	number := func(text string) *huma.Schema { return of(huma.TypeNumber, text) }
	for _, b := range []bill{
		{path: "pods", id: "Pod", operation: "getPodBilling", one: "podId", of: "podId", filters: map[string]string{"podId": "podId"}, amounts: map[string]string{"amount": "totalAmount"}},
		{
			path: "endpoints", id: "Endpoint", operation: "getServerlessBilling", one: "endpointId", of: "serverlessId",
			filters: map[string]string{"endpointId": "serverlessId"}, amounts: map[string]string{"amount": "totalAmount"},
		},
		{
			path: "networkvolumes", id: "NetworkVolume", operation: "getNetworkVolumeBilling",
			amounts: map[string]string{"amount": "totalAmount", "highPerformanceStorageAmount": "highPerformanceAmount"},
		},
	} {
		params := f.Params(b.operation, "bucketSize", "startTime", "endTime")
		s := &huma.Schema{Type: huma.TypeObject, Properties: map[string]*huma.Schema{"time": of(huma.TypeString, "Begin of the bucket.")}, AdditionalProperties: true}
		shown := object{"time": "2026-10-01T00:00:00.000Z"}
		for name := range b.amounts {
			s.Properties[name], shown[name] = number("USD."), 1.5
		}
		for v1, name := range b.filters {
			p := *f.Params(b.operation, name)[0]
			p.Name = v1
			params = append(params, &p)
		}
		if b.one != "" {
			s.Properties[b.one], shown[b.one] = of(huma.TypeString, "What was charged."), "k3n8w0zq5r7d2a"
			params = append(params, &huma.Param{Name: "grouping", In: "query", Description: "Records are of one each.", Schema: words("", b.one)})
		}
		f.Handle(rest.FaceRoute{
			Method: http.MethodGet, Path: "/v1/billing/" + b.path, ID: "get" + b.id + "Billing", Tag: "Billing", Summary: "Charges of " + b.path,
			Text: "As " + b.operation + " of version 2, as a bare array. Other groupings than the one by id are refused.", Operation: b.operation, Params: params,
			Status: http.StatusOK, Out: &huma.Schema{Type: huma.TypeArray, Items: f.Component(b.id+"Charges", s)}, Shown: []any{shown}, Do: b.do,
		})
	}
}

func (b bill) do(ctx context.Context, call *rest.Caller, params url.Values, _ object) (any, error) {
	query := url.Values{"bucketSize": params["bucketSize"], "startTime": params["startTime"], "endTime": params["endTime"]}
	for v1, name := range b.filters {
		query[name] = params[v1]
	}
	v := &view{Caller: call, ctx: ctx}
	tree, err := v.tree(b.operation, query)
	if err != nil {
		return nil, err
	}
	out, all := []object{}, []any(nil)
	all, _ = tree["records"].([]any)
	for _, r := range all {
		had, _ := r.(object)
		one := object{"time": had["startTime"]}
		if b.one != "" {
			one[b.one] = had[b.of]
		} else if i := slices.IndexFunc(out, func(o object) bool { return o["time"] == one["time"] }); i >= 0 {
			b.add(out[i], had)
			continue
		}
		b.add(one, had)
		out = append(out, one)
	}
	return out, nil
}

// add adds the amounts of a record of version 2.
func (b bill) add(to, had object) {
	for v1, name := range b.amounts {
		sum, _ := to[v1].(float64)
		amount, _ := had[name].(float64)
		to[v1] = sum + amount
	}
}
