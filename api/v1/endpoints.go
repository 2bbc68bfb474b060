package v1

import (
	"net/http"
	"net/url"
	"slices"

	"gantry/fleet"
)

func (f *face) endpoints() {
	c := crud{
		noun: f.nouns["Endpoints"], one: "Endpoint", several: "Endpoints", list: "listEndpoints", make: "createEndpoint", get: "getEndpoint",
		change: "updateEndpoint", remove: "deleteEndpoint", member: "endpoints", made: http.StatusOK,
		include: []string{"includeTemplate", "includeWorkers"},
		example: object{"name": "embed", "templateId": "t5f8k2m7q1w4z9", "gpuTypeIds": []any{"NVIDIA H100 80GB HBM3"}, "workersMax": 3},
		changed: object{"workersMax": 5},
		text:    "Counts, times, the scaler and flashboot change in place; what else is different is a new release.",
	}
	n := c.noun
	c.create = func(v *view, in object) (any, error) {
		leave := []string{"vcpuCount"}
		if in["scalerType"] == string(fleet.ScaleByRequests) {
			leave = append(leave, "idleTimeout")
		}
		n.defaults(in, leave...)
		out, err := n.body("c", in)
		if err != nil {
			return nil, err
		}
		out["type"] = string(fleet.EndpointQueue)
		if in["computeType"] == "CPU" {
			delete(out, "gpu")
			if in["vcpuCount"] == nil {
				in["vcpuCount"] = 2
			}
		} else if len(wordsOf(in["gpuTypeIds"])) == 0 {
			return nil, fleet.Invalid("$.gpuTypeIds", "must name at least one")
		}
		if err := shapeEndpoint(v, in, out, object{}); err != nil {
			return nil, err
		}
		return v.Call(v.ctx, "createEndpoint", v.params, out)
	}
	c.update = func(v *view, in, had object) (object, error) {
		out := object{}
		return out, shapeEndpoint(v, in, out, had)
	}
	c.finish = func(v *view, had, out object) error { return f.finishEndpoint(v, had, out) }
	f.register(c)
}

// shapeEndpoint completes what a body says of GPUs, vCPUs and the scaler, by what the endpoint has. A path that it sets has no
// dots where it takes the place of a whole.
func shapeEndpoint(v *view, in, out, had object) error {
	if types := wordsOf(in["gpuTypeIds"]); len(types) > 0 && in["computeType"] != "CPU" {
		pools, excluded, err := poolsOf(v, types)
		if err != nil {
			return err
		}
		put(out, "gpu.pools", pools)
		put(out, "gpu.excludedTypes", excluded)
	}
	flavors := wordsOf(in["cpuFlavorIds"])
	if in["vcpuCount"] != nil && len(flavors) == 0 {
		all, _ := had["cpu"].([]any)
		for _, c := range all {
			cpu, _ := c.(object)
			id, _ := cpu["id"].(string)
			flavors = append(flavors, id)
		}
	}
	var cpu []any
	for _, flavor := range flavors {
		count := in["vcpuCount"]
		if count == nil {
			if count, _ = get(had, "cpu[0].vcpuCount"); count == nil {
				count = 2
			}
		}
		cpu = append(cpu, object{"id": flavor, "vcpuCount": count})
	}
	if cpu != nil {
		out["cpu"] = cpu
	}
	shapeScaling(in, out, had)
	return nil
}

// shapeScaling writes the scaler of a body; of one that names its type or its value alone, the other is as before.
func shapeScaling(in, out, had object) {
	kind, value := in["scalerType"], in["scalerValue"]
	if kind == nil && value == nil {
		return
	}
	before, _ := get(had, "scaling.type")
	if kind == nil {
		kind = before
	}
	name, other := "queueDelay", "requestCount"
	if kind == string(fleet.ScaleByRequests) {
		name, other = other, name
	}
	for _, from := range []string{name, other} {
		if value == nil {
			value, _ = get(had, "scaling."+from)
		}
	}
	out["scaling"] = object{"type": kind, name: value}
}

// poolsOf returns the pools of GPU types in order, and the other types of these pools.
func poolsOf(v *view, types []string) (pools, excluded []string, err error) {
	all, err := v.table("listGpuTypes", "gpus")
	if err != nil {
		return nil, nil, err
	}
	excluded = []string{}
	for _, id := range types {
		pool, _ := all[id]["pool"].(string)
		if pool == "" {
			return nil, nil, fleet.Invalid("$.gpuTypeIds", "names a GPU type that is not in the catalog, or in no pool of it")
		}
		if !slices.Contains(pools, pool) {
			pools = append(pools, pool)
		}
	}
	for id, gpu := range all {
		if pool, _ := gpu["pool"].(string); slices.Contains(pools, pool) && !slices.Contains(types, id) {
			excluded = append(excluded, id)
		}
	}
	slices.Sort(excluded)
	return pools, excluded, nil
}

// typesOf returns the GPU types of an endpoint's pools but for those that are excluded, in the order of the pools.
func typesOf(v *view, had object) ([]string, error) {
	pools, _ := get(had, "gpu.pools")
	excluded, _ := get(had, "gpu.excludedTypes")
	all, err := v.table("listGpuTypes", "gpus")
	if fleet.CodeOf(err) == fleet.CodeForbidden { // a key that does not see the catalog sees the rest
		return nil, nil
	}
	out := []string{}
	for _, pool := range wordsOf(pools) {
		var types []string
		for id, gpu := range all {
			if gpu["pool"] == pool && !slices.Contains(wordsOf(excluded), id) {
				types = append(types, id)
			}
		}
		slices.Sort(types)
		out = append(out, types...)
	}
	return out, err
}

func (f *face) finishEndpoint(v *view, had, out object) error {
	out["computeType"] = "CPU"
	if had["gpu"] != nil {
		out["computeType"] = "GPU"
		types, err := typesOf(v, had)
		if err != nil {
			return err
		}
		if types != nil {
			out["gpuTypeIds"] = types
		}
	}
	for _, from := range []string{"queueDelay", "requestCount"} {
		if value, ok := get(had, "scaling."+from); ok {
			out["scalerValue"] = value
		}
	}
	if id := out["templateId"]; id != nil && v.wants("includeTemplate") {
		if err := v.add(out, "template", f.nouns["Templates"], "listTemplates", "templates", id); err != nil {
			return err
		}
	}
	if !v.wants("includeWorkers") {
		return nil
	}
	workers, err := v.tree("listEndpointWorkers", url.Values{"id": {out["id"].(string)}})
	if err != nil {
		return err
	}
	all, _ := workers["workers"].([]any)
	shown := []any{} // without their variables, in which secrets may be
	for _, one := range all {
		w, _ := one.(object)
		shown = append(shown, object{
			"id": w["id"], "endpointId": out["id"], "imageName": w["image"], "desiredStatus": "RUNNING", "lastStatusChange": w["reason"],
			"lastStartedAt": w["startedAt"], "createdAt": w["createdAt"], "slsVersion": w["version"], "machine": object{"gpuTypeId": w["gpuTypeId"], "dataCenterId": w["dataCenterId"]},
		})
	}
	out["workers"] = shown
	return nil
}
