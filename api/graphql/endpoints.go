package graphql

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gantry/api/v2"
	"gantry/fleet"
)

// endpoint shows a serverless endpoint.
type endpoint struct {
	s   *session
	rec *v2.Endpoint

	ID, Name, GpuIDs, Locations, ScalerType, Type, UserID, FlashBootType, ComputeType, AllowedCudaVersions string
	AiKey, NetworkVolumeID, TemplateID, MinCudaVersion                                                     *string
	IdleTimeout, Version, WorkersMax, WorkersMin, WorkersStandby, GpuCount                                 int32
	ScalerValue, ExecutionTimeoutMs                                                                        float64
	Env                                                                                                    []pair
	CreatedAt                                                                                              scalar
	InstanceIDs, ModelReferences                                                                           []string
}

func newEndpoint(s *session, r *v2.Endpoint) *endpoint {
	e := &endpoint{
		s: s, rec: r, ID: r.ID, Name: r.Name, Locations: join(r.DataCenterIDs), ScalerType: r.Scaling.Type, Type: typeWords[r.Type], ComputeType: "CPU",
		UserID: string(s.caller.Who.Account), FlashBootType: r.FlashBoot, TemplateID: null(r.Template), IdleTimeout: int32(r.Workers.IdleTimeout),
		Version: int32(r.Version), WorkersMax: int32(r.Workers.Max), WorkersMin: int32(r.Workers.Min), WorkersStandby: fleet.StandbyWorkers,
		ExecutionTimeoutMs: float64(r.Timeout),
		Env:                pairsOf(r.Env), CreatedAt: scalar{r.CreatedAt}, InstanceIDs: []string{}, ModelReferences: r.Models,
	}
	if g := r.GPU; g != nil {
		e.ComputeType, e.GpuCount, e.AllowedCudaVersions, e.MinCudaVersion = "GPU", int32(g.Count), join(g.AllowedCUDA), null(g.MinCUDA)
		ids := slices.Clone(g.Pools)
		for _, id := range g.ExcludedTypes {
			ids = append(ids, "-"+id)
		}
		e.GpuIDs = join(ids)
	}
	for _, c := range r.CPU {
		e.InstanceIDs = append(e.InstanceIDs, c.ID+"-"+strconv.Itoa(c.VCPUCount)+"-"+strconv.Itoa(c.Memory))
	}
	if n := r.Scaling.RequestCount; n != nil {
		e.ScalerValue = float64(*n)
	} else {
		e.ScalerValue = *r.Scaling.QueueDelay
	}
	if len(r.NetworkVolumes) > 0 {
		e.NetworkVolumeID = &r.NetworkVolumes[0]
	}
	return e
}

// The types of endpoints in the words of GraphQL, and the other way around.
var (
	typeWords  = map[string]string{string(fleet.EndpointQueue): "QB", string(fleet.EndpointBalanced): "LB"}
	typeOfWord = map[string]string{"QB": string(fleet.EndpointQueue), "LB": string(fleet.EndpointBalanced)}
)

func (e *endpoint) NetworkVolume() (*volume, error) { return e.s.volume(text(e.NetworkVolumeID)) }

// endpointVolume shows a network volume of an endpoint.
type endpointVolume struct {
	NetworkVolumeID string
	DataCenterID    *string
}

func (e *endpoint) NetworkVolumeIDs() ([]endpointVolume, error) {
	out := []endpointVolume{}
	for _, id := range e.rec.NetworkVolumes {
		at := endpointVolume{NetworkVolumeID: id}
		v, err := e.s.volume(id)
		if err != nil {
			return nil, err
		}
		if v != nil {
			at.DataCenterID = &v.DataCenterID
		}
		out = append(out, at)
	}
	return out, nil
}

// Template is what its workers are made from; the account's templates are read once for all endpoints.
func (e *endpoint) Template() (*template, error) {
	own := newTemplate(e.s, &v2.Template{
		Name: e.rec.Name, Image: e.rec.Image, Args: e.rec.Args, Disk: e.rec.Disk, Ports: e.rec.Ports, Env: e.rec.Env, Registry: e.rec.Registry, Serverless: true,
	})
	if e.rec.Template == "" {
		return own, nil
	}
	all, err := read[v2.TemplateList](e.s, "listTemplates", nil)
	if err == nil {
		if i := slices.IndexFunc(all.Templates, func(t v2.Template) bool { return t.ID == string(e.rec.Template) }); i >= 0 {
			return newTemplate(e.s, &all.Templates[i]), nil
		}
	}
	one, err := read[v2.Template](e.s, "getTemplate", idOf(string(e.rec.Template)))
	if codeOf(err) == fleet.CodeNotFound {
		return own, nil
	}
	return shown(e.s, one, err, newTemplate)
}

// Pods are its workers, as pods.
func (e *endpoint) Pods() ([]*pod, error) {
	all, err := read[v2.WorkerList](e.s, "listEndpointWorkers", idOf(e.ID))
	if err != nil {
		return nil, err
	}
	return list(e.s, all.Workers, func(s *session, w *v2.Worker) *pod {
		r := &v2.Pod{
			ID: w.ID, Name: e.Name, Status: fleet.StatusRunning, Image: string(w.Image), Args: e.rec.Args, Disk: e.rec.Disk, Ports: e.rec.Ports, Env: e.rec.Env,
			Registry: e.rec.Registry, Template: e.rec.Template, Cloud: string(fleet.CloudSecure), DataCenterID: w.DataCenterID, CreatedAt: w.CreatedAt,
			StartedAt: w.StartedAt, StatusReason: w.Reason, Incarnation: w.Version,
		}
		if w.GPUTypeID != "" {
			r.GPU = &v2.GPUConfig{ID: string(w.GPUTypeID), Count: w.GPUCount}
		}
		if w.Uptime != nil {
			r.Runtime = &v2.Runtime{Uptime: *w.Uptime}
		}
		return newPod(s, r)
	})
}

// containerMembers are those that a template in an endpoint's input has.
var containerMembers = []member{
	{from: "imageName", to: "image", as: word},
	{from: "dockerArgs", to: "args"},
	{from: "containerDiskInGb", to: "disk"},
	{from: "ports", to: "ports", as: split},
	{from: "env", to: "env", as: pairs},
	{from: "containerRegistryAuthId", to: "registry", as: orNull},
}

// endpointMembers have the default that one which is left out returns to.
var endpointMembers = []member{
	{from: "name", to: "name"},
	{from: "templateId", to: "templateId", as: word},
	{from: "gpuCount", to: "gpu.count"},
	{from: "gpuIds", to: "gpu.pools"},
	{from: "instanceIds", to: "cpu"},
	{from: "locations", to: "dataCenterIds", as: split},
	{from: "workersMin", to: "workers.min"},
	{from: "workersMax", to: "workers.max"},
	{from: "idleTimeout", to: "workers.idleTimeout"},
	{from: "executionTimeoutMs", to: "timeout"},
	{from: "flashBootType", to: "flashboot"},
	{from: "minCudaVersion", to: "gpu.minCudaVersion"},
	{from: "allowedCudaVersions", to: "gpu.allowedCudaVersions", as: split},
	{from: "networkVolumeIds", to: "networkVolumes"},
	{from: "modelReferences", to: "modelReferences"},
	{from: "scalerType", to: "scaling.type"},
	{from: "scalerValue", to: "scaling.queueDelay"},
	{from: "scalerValue", to: "scaling.requestCount"},
}

// endpointDefaults are what members of an endpoint's input stand at when they are left out.
var endpointDefaults = input{
	"locations": "", "workersMin": int32(0), "workersMax": int32(3), "idleTimeout": int32(5), "executionTimeoutMs": 300_000.0,
	"flashBootType": string(fleet.FlashBootOff), "scalerType": string(fleet.ScaleByDelay), "scalerValue": 4.0,
}

// endpointLacks say why there is no such thing here.
var endpointLacks = map[string]string{
	"hubReleaseId":       "this installation has no hub: give a template with the release's image",
	"flashEnvironmentId": "this installation has no environments of flash", "activeBuildid": "this installation builds no images",
	"idePodId": "this installation has no editors",
}

// SaveEndpoint makes an endpoint or replaces its settings.
func (root) SaveEndpoint(ctx context.Context, args with) (*endpoint, error) {
	s, in := sessionOf(ctx), args.Input
	if err := unsupported(in, endpointLacks); err != nil {
		return nil, s.fail(err)
	}
	b, err := s.endpointBody(in)
	if err != nil {
		return nil, err
	}
	operation := "createEndpoint"
	if id := in.text("id"); id != "" {
		operation = "updateEndpoint"
		if err := s.keepsTemplate(id, in.text("templateId")); err != nil {
			return nil, err
		}
		delete(b, "templateId")
	} else if b["type"] == nil {
		b["type"] = string(fleet.EndpointQueue)
	}
	rec, err := act[v2.Endpoint](s, operation, idOf(in.text("id")), b)
	return shown(s, rec, renamed(renamed(err, endpointMembers), containerMembers), newEndpoint)
}

// endpointBody is the body that makes or replaces an endpoint.
func (s *session) endpointBody(in input) (body, error) {
	all := input(maps.Clone(endpointDefaults))
	if in.text("type") == "LB" {
		all["scalerType"] = string(fleet.ScaleByRequests)
	}
	for name, v := range in {
		if v != nil {
			all[name] = v
		}
	}
	b := all.body(endpointMembers[:2])
	inside, _ := in["template"].(map[string]any)
	if err := unsupported(inside, map[string]string{"startScript": textNoScript}); err != nil {
		return nil, s.fail(err)
	}
	for name, v := range input(inside).body(containerMembers) {
		b[name] = v
	}
	for name, v := range all.body(endpointMembers[5:11]) {
		b[name] = v
	}
	if env, ok := pairs(all["env"]).(map[string]string); ok && len(env) > 0 {
		had, _ := b["env"].(map[string]string)
		for key, value := range had {
			if _, own := env[key]; !own {
				env[key] = value
			}
		}
		b["env"] = env
	}
	scalingOf(all, b)
	if t := all.text("type"); t != "" {
		if b["type"] = typeOfWord[t]; b["type"] == "" {
			return nil, s.fail(fleet.Invalid("input.type", "value must be one of 'QB', 'LB'"))
		}
	}
	if err := s.computeOf(all, b); err != nil {
		return nil, err
	}
	return b, s.placesOf(in, b)
}

// scalingOf writes when an endpoint has more workers into its body.
func scalingOf(all input, b body) {
	kind := all.text("scalerType")
	b.set("scaling.type", kind)
	if kind == string(fleet.ScaleByRequests) {
		b.set("scaling.requestCount", all["scalerValue"])
		if all.text("type") != "LB" { // the scaler alone decides
			delete(b["workers"].(body), "idleTimeout") //nolint:forcetypeassert // it has members by default
		}
		return
	}
	b.set("scaling.queueDelay", all["scalerValue"])
}

// computeOf writes GPUs, or vCPUs, and network volumes of workers into an endpoint's body.
func (s *session) computeOf(all input, b body) error {
	instances := all.texts("instanceIds")
	if len(instances) > 0 && all.text("gpuIds") == "" {
		cpus := []body{}
		for _, id := range instances {
			share, err := s.share(id, "instanceIds")
			if err != nil {
				return err
			}
			cpus = append(cpus, share)
		}
		b["cpu"] = cpus
	} else if ids, _ := split(all["gpuIds"]).([]string); len(ids) > 0 {
		pools, excluded := []string{}, []string{}
		for _, id := range ids {
			if name, not := strings.CutPrefix(id, "-"); not {
				excluded = append(excluded, name)
			} else {
				pools = append(pools, id)
			}
		}
		for name, v := range all.body([]member{endpointMembers[2], endpointMembers[11], endpointMembers[12]}) {
			b[name] = v
		}
		b.set("gpu.pools", pools)
		b.set("gpu.excludedTypes", excluded)
		oneRange(b)
	}
	volumes := []string{}
	if id := all.text("networkVolumeId"); id != "" {
		volumes = append(volumes, id)
	}
	more, _ := all["networkVolumeIds"].([]any)
	for _, v := range more {
		at, _ := v.(map[string]any)
		if id := input(at).text("networkVolumeId"); id != "" && !slices.Contains(volumes, id) {
			volumes = append(volumes, id)
		}
	}
	b["networkVolumes"], b["modelReferences"] = volumes, append([]string{}, all.texts("modelReferences")...)
	return nil
}

// oneRange leaves out the least CUDA version where a list of versions says as much, which is the only one that a body may have.
func oneRange(b body) {
	g, _ := b["gpu"].(body)
	versions, _ := g["allowedCudaVersions"].([]string)
	if least, _ := g["minCudaVersion"].(string); least != "" && len(versions) > 0 {
		delete(g, "minCudaVersion")
		g["allowedCudaVersions"] = slices.DeleteFunc(versions, func(v string) bool { return older(v, least) })
	}
}

// older reports whether a version is older than another, as far as both are versions.
func older(v, than string) bool {
	major, minor, ok := fleet.ParseCUDA(v)
	thanMajor, thanMinor, both := fleet.ParseCUDA(than)
	return ok && both && (major < thanMajor || major == thanMajor && minor < thanMinor)
}

// keepsTemplate refuses another template for an endpoint than it has.
func (s *session) keepsTemplate(id, template string) error {
	if template == "" {
		return nil
	}
	had, err := ask[v2.Endpoint](s, "getEndpoint", idOf(id))
	if err == nil && string(had.Template) != template {
		err = s.fail(refused("input.templateId: an endpoint keeps its template: give other settings of its workers as template of saveEndpoint"))
	}
	return err
}

// UpdateEndpointTemplate shows an endpoint that has the template already; another is refused.
func (root) UpdateEndpointTemplate(ctx context.Context, args with) (*endpoint, error) {
	s, id := sessionOf(ctx), args.Input.text("endpointId")
	if err := s.keepsTemplate(id, args.Input.text("templateId")); err != nil {
		return nil, err
	}
	rec, err := ask[v2.Endpoint](s, "getEndpoint", idOf(id))
	return shown(s, rec, err, newEndpoint)
}

// DeleteEndpoint deletes an endpoint that can have no workers.
func (root) DeleteEndpoint(ctx context.Context, args byID) (*scalar, error) {
	s, id := sessionOf(ctx), text(args.ID)
	rec, err := ask[v2.Endpoint](s, "getEndpoint", idOf(id))
	if err != nil {
		return nil, err
	}
	if rec.Workers.Min > 0 || rec.Workers.Max > 0 {
		return nil, s.fail(&fleet.Error{Code: fleet.CodeNotAllowed, Msg: "an endpoint is deleted only after workersMin and workersMax were set to 0"})
	}
	return remove(ctx, "deleteEndpoint", id)
}
