package graphql

import (
	"context"
	"math"
	"net/url"
	"slices"
	"strconv"

	"gantry/api/v2"
	"gantry/fleet"
)

// podMembers are those of an input that creates a pod. The last ones are written by mountOf, and are here for their names.
var podMembers = []member{
	{from: "name", to: "name"},
	{from: "imageName", to: "image", as: word},
	{from: "dockerArgs", to: "args", as: word},
	{from: "containerDiskInGb", to: "disk", as: notZero},
	{from: "ports", to: "ports", as: splitWord},
	{from: "env", to: "env", as: pairsIfAny},
	{from: "templateId", to: "templateId", as: word},
	{from: "containerRegistryAuthId", to: "registry", as: word},
	{from: "globalNetwork", to: "globalNetworking"},
	{from: "startSsh", to: "startSsh"},
	{from: "startJupyter", to: "startJupyter"},
	{from: "dataCenterId", to: "dataCenterIds", as: one},
	{from: "dataCenterIds", to: "dataCenterIds", as: items},
	{from: "mounts", to: "mounts"},
	{from: "volumeInGb", to: "mounts.persistent.size"},
	{from: "volumeMountPath", to: "mounts.persistent.path"},
	{from: "networkVolumeId", to: "mounts.network[0].volumeId"},
	{from: "volumeMountPath", to: "mounts.network[0].path"},
	{from: "stopAfter", to: "stopAfter"},
	{from: "terminateAfter", to: "terminateAfter"},
}

// gpuMembers are those of an input that creates a GPU pod.
var gpuMembers = append([]member{
	{from: "gpuTypeId", to: "gpu.id", as: word},
	{from: "gpuCount", to: "gpu.count", as: notZero},
	{from: "minCudaVersion", to: "gpu.minCudaVersion", as: word},
	{from: "allowedCudaVersions", to: "gpu.allowedCudaVersions", as: items},
	{from: "minVcpuCount", to: "gpu.minVcpuCountPerGpu", as: notZero},
	{from: "minMemoryInGb", to: "gpu.minRamPerGpu", as: notZero},
	{from: "bidPerGpu", to: "bidPerGpu", as: notZero},
	{from: "interruptible", to: "interruptible"},
}, podMembers...)

// podLacks say why there is no such thing here.
var podLacks = map[string]string{
	"minDownload": "the speed of hosts' networks is not known", "minUpload": "the speed of hosts' networks is not known",
	"countryCode": "pods are placed by data center: give dataCenterId", "volumeKey": "volumes are not encrypted with keys of accounts",
	"savingsPlan": "there are no savings plans",
}

// PodFindAndDeployOnDemand creates a GPU pod.
func (root) PodFindAndDeployOnDemand(ctx context.Context, args with) (*pod, error) {
	return sessionOf(ctx).createGPUPod(args.Input)
}

// PodRentInterruptable creates an interruptible GPU pod.
func (root) PodRentInterruptable(ctx context.Context, args with) (*pod, error) {
	s, in := sessionOf(ctx), args.Input
	if in == nil {
		return nil, s.fail(fleet.Invalid("input", "must be given"))
	}
	in["interruptible"] = true
	return s.createGPUPod(in)
}

func (s *session) createGPUPod(in input) (*pod, error) {
	types := in.texts("gpuTypeIdList")
	if id := in.text("gpuTypeId"); id != "" {
		types = []string{id}
	}
	if len(types) == 0 {
		return nil, s.fail(fleet.Invalid("input.gpuTypeId", "must be given, or gpuTypeIdList"))
	}
	gpus, _ := in.number("gpuCount")
	for _, name := range []string{"minVcpuCount", "minMemoryInGb"} { // the input's floors are the pod's, those of the body are of one GPU
		if n, ok := in.number(name); ok {
			in[name] = math.Ceil(n / max(gpus, 1))
		}
	}
	return s.createPod(in, nil, types, gpuMembers)
}

// DeployCPUPod creates a CPU pod.
func (root) DeployCPUPod(ctx context.Context, args with) (*pod, error) {
	s := sessionOf(ctx)
	share, err := s.share(args.Input.text("instanceId"), "instanceId")
	if err != nil {
		return nil, err
	}
	return s.createPod(args.Input, share, []string{""}, podMembers)
}

// libraryTemplate is what a client library names as the template of CPU pods whose user named none. It is not an id.
const libraryTemplate = "runpod-ubuntu"

// createPod tries types of GPUs one after the other, each in the tiers of the input, until there is room. An empty type is none.
func (s *session) createPod(in input, cpu body, types []string, members []member) (*pod, error) {
	if err := unsupported(in, podLacks); err != nil {
		return nil, s.fail(err)
	}
	mountOf(in)
	if in.text("templateId") == libraryTemplate && in.text("imageName") != "" {
		delete(in, "templateId")
	}
	b := in.body(members)
	if b["name"] == nil {
		b["name"] = "my pod"
	}
	if cpu != nil {
		b["cpu"] = cpu
	}
	oneRange(b)
	if err := s.placesOf(in, b); err != nil {
		return nil, err
	}
	clouds := []string{in.text("cloudType")}
	if clouds[0] == "ALL" {
		clouds = []string{string(fleet.CloudSecure), string(fleet.CloudCommunity)}
	}
	var first error
	for _, id := range types {
		for _, cloud := range clouds {
			if id != "" {
				b.set("gpu.id", id)
			}
			if cloud != "" {
				b["cloud"] = cloud
			}
			rec, err := act[v2.Pod](s, "createPod", nil, b)
			if codeOf(err) != fleet.CodeNoCapacity {
				return shown(s, rec, renamed(err, members), newPod)
			}
			if first == nil {
				first = err
			}
		}
	}
	return nil, first
}

// placesOf leaves in a body only the data centers that have all certificates that the input asks for.
func (s *session) placesOf(in input, b body) error {
	want := in.texts("compliance")
	if len(want) == 0 {
		return nil
	}
	all, err := read[v2.DataCenterList](s, "listDataCenters", url.Values{"compliance": want})
	if err != nil {
		return renamed(err, []member{{from: "compliance", to: "query.compliance"}})
	}
	named, _ := b["dataCenterIds"].([]string)
	places := []string{}
	for _, d := range all.DataCenters {
		if len(named) == 0 || slices.Contains(named, d.ID) {
			places = append(places, d.ID)
		}
	}
	if len(places) == 0 {
		return s.fail(refused("input.compliance: no data center that may be used has all of these certificates"))
	}
	b["dataCenterIds"] = places
	return nil
}

// share is what an instance, flavor-vCPUs-GB, asks for. Its memory must be the flavor's.
func (s *session) share(id, from string) (body, error) {
	name, vcpus, gb, ok := instance(id)
	if !ok {
		return nil, s.fail(fleet.Invalid("input."+from, "must be a flavor, vCPUs and GB of memory, as in cpu3c-2-4"))
	}
	all, err := s.flavors(nil)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, func(f v2.CPUFlavor) bool { return f.ID == name }); i >= 0 {
		if has := strconv.Itoa(int(all[i].RAMPerVCPU * float64(vcpus))); has != gb {
			return nil, s.fail(fleet.Invalid("input."+from, "an instance of this flavor with as many vCPUs has "+has+" GB"))
		}
	}
	return body{"id": name, "vcpuCount": vcpus}, nil
}

// The messages of refusals that clients compare with.
const (
	textNoPod  = "pod not found to terminate"
	textSpot   = "Cannot resume a spot pod as an on demand pod."
	textNoRoom = "There are not enough free GPUs on the host machine to start this pod."
)

// PodStop stops a pod.
func (root) PodStop(ctx context.Context, args with) (*pod, error) {
	return save(ctx, "actPod", args.Input.text("podId"), input{"action": "stop"}, actionMembers, newPod)
}

var actionMembers = []member{{from: "action", to: "action"}, {from: "bidPerGpu", to: "bidPerGpu", as: notZero}}

// PodResume starts a pod on demand, which keeps its number of GPUs.
func (root) PodResume(ctx context.Context, args with) (*pod, error) {
	return sessionOf(ctx).resume(ctx, args.Input, false)
}

// PodBidResume starts an interruptible pod, with another bid where one is given.
func (root) PodBidResume(ctx context.Context, args with) (*pod, error) {
	return sessionOf(ctx).resume(ctx, args.Input, true)
}

func (s *session) resume(ctx context.Context, in input, bids bool) (*pod, error) {
	id := in.text("podId")
	rec, err := ask[v2.Pod](s, "getPod", idOf(id))
	if err != nil {
		return nil, err
	}
	switch {
	case rec.Interruptible && !bids:
		return nil, s.fail(refused(textSpot))
	case bids && !rec.Interruptible:
		return nil, s.fail(refused("input.podId: the pod is not interruptible: resume it with podResume"))
	}
	has := newPod(s, rec).GpuCount
	if n, _ := in.number("gpuCount"); n > 0 && int32(n) != has {
		return nil, s.fail(refused("input.gpuCount: a pod keeps its number of GPUs, %d: leave it out", has))
	}
	start := input{"action": "start"}
	if bids {
		start["bidPerGpu"] = in["bidPerGpu"]
	}
	out, err := save(ctx, "actPod", id, start, actionMembers, newPod)
	if codeOf(err) == fleet.CodeNoCapacity {
		return nil, s.said(fleet.CodeNoCapacity, textNoRoom)
	}
	return out, err
}

// PodTerminate terminates a pod.
func (root) PodTerminate(ctx context.Context, args with) (*scalar, error) {
	s, id := sessionOf(ctx), args.Input.text("podId")
	_, err := remove(ctx, "deletePod", id)
	gone := codeOf(err) == fleet.CodeNotFound
	if codeOf(err) == fleet.CodeNotAllowed {
		rec, unread := ask[v2.Pod](s, "getPod", idOf(id))
		gone = unread == nil && rec.Status == fleet.StatusTerminated
	}
	if gone {
		return nil, s.said(fleet.CodeNotFound, textNoPod)
	}
	return nil, err
}

// editMembers are those of an input that changes a pod. A text that is empty empties what it changes.
var editMembers = append([]member{
	{from: "name", to: "name"},
	{from: "imageName", to: "image"},
	{from: "dockerArgs", to: "args"},
	{from: "containerDiskInGb", to: "disk"},
	{from: "ports", to: "ports", as: split},
	{from: "env", to: "env", as: pairs},
	{from: "containerRegistryAuthId", to: "registry", as: orNull},
}, podMembers[13:]...)

// PodEditJob changes a pod.
func (root) PodEditJob(ctx context.Context, args with) (*pod, error) {
	s, in := sessionOf(ctx), args.Input
	size, _ := in.number("volumeInGb")
	if path := in.text("volumeMountPath"); path != "" || size > 0 {
		had, err := ask[v2.Pod](s, "getPod", idOf(in.text("podId")))
		if err != nil {
			return nil, err
		}
		in["mounts"] = editedMounts(had.Mounts, int(size), path)
	}
	delete(in, "volumeInGb")
	delete(in, "volumeMountPath")
	return save(ctx, "updatePod", in.text("podId"), in, editMembers, newPod)
}

// editedMounts are a pod's mounts with another size or path.
func editedMounts(had v2.Mounts, size int, path string) v2.Mounts {
	if len(had.Network) > 0 {
		m := had.Network[0]
		if path != "" {
			m.Path = path
		}
		return v2.Mounts{Network: []v2.NetworkMount{m}}
	}
	m := v2.PersistentMount{Path: defaultPath}
	if had.Persistent != nil {
		m = *had.Persistent
	}
	if size > 0 {
		m.Size = size
	}
	if path != "" {
		m.Path = path
	}
	return v2.Mounts{Persistent: &m}
}
