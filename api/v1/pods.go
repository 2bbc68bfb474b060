package v1

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"gantry/api/rest"
	"gantry/api/v2"
	"gantry/fleet"
)

// actions are those of a pod by the last word of their path.
var actions = map[string]fleet.Trigger{
	"start": fleet.ActionStart, "stop": fleet.ActionStop, "restart": fleet.ActionRestart, "reset": fleet.ActionRestart,
}

func (f *face) pods() {
	c := crud{
		noun: f.nouns["Pods"], one: "Pod", several: "Pods", list: "listPods", make: "createPod", get: "getPod", change: "updatePod", remove: "deletePod",
		member: "pods", made: http.StatusCreated,
		filters: map[string]string{
			"id": "id", "name": "name", "desiredStatus": "status", "imageName": "image", "computeType": "computeType", "gpuTypeId": "gpuTypeId",
			"cpuFlavorId": "cpuFlavorId", "dataCenterId": "dataCenterId", "templateId": "templateId", "networkVolumeId": "networkVolumeId",
		},
		include: []string{"includeMachine", "includeNetworkVolume", "includeTemplate"},
		example: object{"name": "trainer", "imageName": "docker.io/library/nginx:1.29", "gpuTypeIds": []any{"NVIDIA H100 80GB HBM3"}, "gpuCount": 1},
		changed: object{"name": "trainer-2"},
		text:    "name and locked change in place; what else is really different restarts an active pod, which wipes its container disk.",
		create:  createPod, update: updatePod,
	}
	c.finish = func(v *view, had, out object) error { return f.finishPod(v, had, out) }
	f.register(c)
	for _, name := range slices.Sorted(maps.Keys(actions)) {
		action := actions[name]
		f.Handle(rest.FaceRoute{
			Method: http.MethodPost, Path: c.noun.Path + "/{id}/" + name, ID: name + "Pod", Tag: c.noun.Title, Summary: "Have a pod " + name,
			Text: "As the action " + string(action) + " of actPod of version 2.", Operation: "actPod", Status: http.StatusOK,
			Params: f.Params("actPod", "id"), Out: f.Component("Pod", f.schema(c.noun, "r")), Shown: c.sample(f.Sample("getPod")),
			Do: func(ctx context.Context, call *rest.Caller, params url.Values, _ object) (any, error) {
				return c.show(c.view(ctx, call, params))(call.Call(ctx, "actPod", params, v2.ActionRequest{Action: string(action)}))
			},
		})
	}
}

// createPod makes a pod of the first GPU type or CPU flavor that has room.
func createPod(v *view, in object) (any, error) {
	n := v.noun
	cpu := in["computeType"] == "CPU"
	var leave []string
	if in["templateId"] != nil {
		leave = []string{"containerDiskInGb", "volumeInGb", "volumeMountPath", "ports"}
	}
	if cpu {
		leave = append(leave, "containerDiskInGb", "volumeInGb")
	} else {
		leave = append(leave, "vcpuCount")
	}
	if in["networkVolumeId"] != nil {
		leave = append(leave, "volumeInGb")
	}
	n.defaults(in, leave...)
	kind, other, choices := "gpu", "cpu", "gpuTypeIds"
	if cpu {
		kind, other, choices = other, kind, "cpuFlavorIds"
	}
	path := in["volumeMountPath"]
	delete(in, "volumeMountPath")
	out, err := n.body("c", in)
	if err != nil {
		return nil, err
	}
	if in["networkVolumeId"] != nil {
		put(out, "mounts.network[0].path", path)
	} else if !zero(in["volumeInGb"]) {
		if path == nil {
			path = defaultMount
		}
		put(out, "mounts.persistent.path", path)
	}
	if err := setArgs(in, out, ""); err != nil {
		return nil, err
	}
	delete(out, other)
	names := wordsOf(in[choices])
	if len(names) == 0 {
		return nil, fleet.Invalid("$."+choices, "must name at least one")
	}
	return rest.FirstWithRoom(names, func(name string) (any, error) {
		put(out, kind+".id", name)
		return v.Call(v.ctx, "createPod", v.params, out)
	})
}

// updatePod completes what a change says of mounts and of the command by what the pod has.
func updatePod(v *view, in, had object) (object, error) {
	out := object{}
	before, _ := had["args"].(string)
	if err := setArgs(in, out, before); err != nil {
		return nil, err
	}
	_, path := in["volumeMountPath"]
	if volume, ok := get(had, "mounts.network[0].volumeId"); ok && path {
		out["mounts"] = object{"network": []any{object{"volumeId": volume, "path": in["volumeMountPath"]}}}
	} else if path || !zero(in["volumeInGb"]) {
		out["mounts"] = object{"persistent": persistent(in, had)}
	}
	return out, nil
}

// persistent is the host-local mount of a change: what it leaves out is as before.
func persistent(in, had object) object {
	out := object{}
	for v1, name := range map[string]string{"volumeInGb": "size", "volumeMountPath": "path"} {
		if v := in[v1]; !zero(v) {
			out[name] = v
		} else if v, ok := get(had, "mounts.persistent."+name); ok {
			out[name] = v
		} else if name == "path" {
			out[name] = defaultMount
		}
	}
	return out
}

// defaultMount is where version 1 mounts volumes.
const defaultMount = "/workspace"

// finishPod adds to a pod what names alone cannot say.
func (f *face) finishPod(v *view, had, out object) error {
	if path, ok := get(had, "mounts.network[0].path"); ok {
		out["volumeMountPath"] = path
	}
	if gpu, ok := out["gpu"].(object); ok {
		gpu["displayName"] = gpu["id"]
	}
	out["publicIp"] = nil
	if out["portMappings"] == nil {
		out["portMappings"] = nil
	}
	ports, _ := get(had, "runtime.ports")
	all, _ := ports.([]any)
	for _, p := range all {
		if port, _ := p.(object); port["public"] != nil {
			out["publicIp"] = port["ip"]
		}
	}
	if v.wants("includeMachine") {
		machine := object{"dataCenterId": had["dataCenterId"], "location": had["dataCenterId"], "secureCloud": had["cloud"] == string(fleet.CloudSecure)}
		if id, ok := get(had, "gpu.id"); ok {
			machine["gpuTypeId"], machine["gpuDisplayName"] = id, id
		}
		out["machine"] = machine
	}
	var err error
	if id := out["networkVolumeId"]; id != nil && v.wants("includeNetworkVolume") {
		err = v.add(out, "networkVolume", f.nouns["Network volumes"], "listNetworkVolumes", "networkVolumes", id)
	}
	if id := out["templateId"]; err == nil && id != nil && v.wants("includeTemplate") {
		err = v.add(out, "template", f.nouns["Templates"], "listTemplates", "templates", id)
	}
	return err
}

// statusesOf are the statuses of pods that are to be as version 1 says.
func statusesOf(words []string) (out []string) {
	for _, word := range words {
		for _, s := range fleet.PodStatuses() {
			if desired(string(s)) == word {
				out = append(out, string(s))
			}
		}
	}
	return out
}

func wordsOf(list any) (out []string) {
	all, _ := list.([]any)
	for _, v := range all {
		if word, _ := v.(string); word != "" {
			out = append(out, word)
		}
	}
	return out
}
