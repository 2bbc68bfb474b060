package rest

import (
	"cmp"
	"context"
	"math/bits"
	"net/http"
	"slices"
	"strconv"

	"gantry/api/forward"
	"gantry/api/v2"
	"gantry/fleet"
)

// EndpointService keeps serverless endpoints.
type EndpointService interface {
	// CreateEndpoint makes an endpoint from a template, or from none, and what change does to that, which may be called more than once;
	// replayed tells that once was seen before.
	CreateEndpoint(
		ctx context.Context, who fleet.Principal, template fleet.TemplateID, change func(*fleet.EndpointSpec), once *fleet.Once,
	) (made fleet.EndpointView, replayed bool, err error)
	// PlanEndpoint answers as CreateEndpoint would, and makes nothing.
	PlanEndpoint(ctx context.Context, who fleet.Principal, template fleet.TemplateID, change func(*fleet.EndpointSpec)) (fleet.EndpointView, error)
	// Endpoints lists the account's endpoints, oldest first.
	Endpoints(ctx context.Context, who fleet.Principal) ([]fleet.EndpointView, error)
	Endpoint(ctx context.Context, who fleet.Principal, id fleet.EndpointID) (fleet.EndpointView, error)
	// UpdateEndpoint does to an endpoint what change does, which may be called more than once.
	UpdateEndpoint(ctx context.Context, who fleet.Principal, id fleet.EndpointID, change func(*fleet.EndpointSpec)) (fleet.EndpointView, error)
	// PlanEndpointUpdate answers as UpdateEndpoint would, and changes nothing.
	PlanEndpointUpdate(ctx context.Context, who fleet.Principal, id fleet.EndpointID, change func(*fleet.EndpointSpec)) (fleet.EndpointView, error)
	DeleteEndpoint(ctx context.Context, who fleet.Principal, id fleet.EndpointID) error
	EndpointWorkers(ctx context.Context, who fleet.Principal, id fleet.EndpointID) (fleet.EndpointWorkers, error)
	// WorkerLogs streams a worker's log to sink until it ends, the query is answered, or ctx ends.
	WorkerLogs(ctx context.Context, who fleet.Principal, id fleet.EndpointID, worker fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error
}

const (
	textEndpointErrors = "400: values exclude each other. 404: what it refers to does not exist (errors names the field). 422: a single value is wrong, " +
		"or not in the catalog."
	textCreateEndpoint = "Makes an endpoint, which answers jobs with workers that are started when there are jobs. Sizes are GB of 10^9 bytes. " +
		"With dryRun=true the answer is 200 with the endpoint that would be made, whose id is empty; nothing is made. " + textEndpointErrors
	textUpdateEndpoint = "Changes an endpoint; what is left out stays, and lists and env are replaced as a whole. A change of what its workers are made " +
		"from (image, args, disk, ports, env, registry, gpu, cpu, dataCenterIds, networkVolumes, modelReferences) is a new release, whose workers take the place of " +
		"the earlier ones step by step. With dryRun=true nothing is changed. " + textEndpointErrors
)

type endpointNoun = noun[EndpointService, fleet.EndpointID, fleet.EndpointView, v2.Endpoint, v2.EndpointList]

func (a *API) registerServerless() {
	n := endpointNoun{
		path: "/v2/serverless", tag: "Serverless", one: "a serverless endpoint", name: "Endpoint", names: "Endpoints",
		group: fleet.GroupServerless, id: pathParam("Endpoint identifier.", "e4m7x1c9v2b6n8"), example: exampleEndpoint(),
	}
	list := n.operation(http.MethodGet, "", "", "List", "Lists the account's endpoints, oldest first.", nil)
	list.id, list.summary, list.out = "listEndpoints", "List serverless endpoints", v2.EndpointList{Endpoints: []v2.Endpoint{n.example}}
	on(a, list, func(ctx context.Context, svc EndpointService, c *call, _ *none) (*v2.EndpointList, error) {
		all, err := showAll(endpointRecord(c.base()))(svc.Endpoints(ctx, c.who))
		return &v2.EndpointList{Endpoints: all}, err
	})
	create := n.create(textCreateEndpoint, exampleCreateEndpoint()).once().fails(http.StatusNotFound)
	create.alike, create.params = []int{http.StatusOK}, append(create.params, flagParam("dryRun", "Answer as a create would, and create nothing.", false))
	on(a, create, createEndpoint)
	on(a, n.operation(http.MethodGet, "/{id}", "get", "Get", "Returns an endpoint. 404: the account has no such endpoint.", nil),
		byID(n.kind(), func(ctx context.Context, svc EndpointService, id fleet.EndpointID, c *call, _ *none) (*v2.Endpoint, error) {
			return show(endpointRecord(c.base()))(svc.Endpoint(ctx, c.who, id))
		}))
	update := n.update(textUpdateEndpoint, v2.UpdateEndpointRequest{EndpointSettings: v2.EndpointSettings{Workers: &v2.WantedWorkers{Max: new(5)}}})
	update.params = append(update.params, flagParam("dryRun", "Answer as a change would, and change nothing.", false))
	on(a, update, byID(n.kind(), updateEndpoint))
	n.delete(a, "Deletes an endpoint with its jobs, and ends its workers. It cannot be undone. 404: the account has no such endpoint.",
		EndpointService.DeleteEndpoint)
	a.registerWorkers(&n)
}

// base is the address that the call came to, without a path.
func (c *call) base() string { return forward.Scheme(c.r) + "://" + c.r.Host }

func createEndpoint(ctx context.Context, svc EndpointService, c *call, in *v2.CreateEndpointRequest) (*v2.Endpoint, error) {
	if c.args.flag("dryRun", false) {
		c.status = http.StatusOK
		planned, err := svc.PlanEndpoint(ctx, c.who, fleet.TemplateID(in.TemplateID), newEndpoint(in))
		planned.ID = "" // nothing was made that it could name
		return show(endpointRecord(c.base()))(planned, err)
	}
	known := *in
	if in.WebhookSecret != nil {
		known.WebhookSecret = new(*in.WebhookSecret)
		if err := c.slow(known.WebhookSecret); err != nil {
			return nil, err
		}
	}
	return show(endpointRecord(c.base()))(atMostOnce(c, &known, func(once *fleet.Once) (fleet.EndpointView, bool, error) {
		return svc.CreateEndpoint(ctx, c.who, fleet.TemplateID(in.TemplateID), newEndpoint(in), once)
	}))
}

// newEndpoint returns what a body makes of an endpoint's defaults, or of a template.
func newEndpoint(in *v2.CreateEndpointRequest) func(*fleet.EndpointSpec) {
	return func(s *fleet.EndpointSpec) {
		s.Name, s.Type = in.Name, fleet.EndpointType(in.Type)
		settings := in.EndpointSettings
		settings.Env = nil
		changeEndpoint(s, &settings, &in.Scaling)
		for name, value := range in.Env {
			if s.Env == nil {
				s.Env = map[string]string{}
			}
			s.Env[name] = value
		}
	}
}

func updateEndpoint(ctx context.Context, svc EndpointService, id fleet.EndpointID, c *call, in *v2.UpdateEndpointRequest) (*v2.Endpoint, error) {
	update := svc.UpdateEndpoint
	if c.args.flag("dryRun", false) {
		update = svc.PlanEndpointUpdate
	}
	return show(endpointRecord(c.base()))(update(ctx, c.who, id, func(s *fleet.EndpointSpec) {
		put(&s.Name, in.Name)
		put(&s.Type, (*fleet.EndpointType)(in.Type))
		changeEndpoint(s, &in.EndpointSettings, in.Scaling)
	}))
}

// changeEndpoint writes what a body says into an endpoint.
func changeEndpoint(s *fleet.EndpointSpec, in *v2.EndpointSettings, scaling *v2.Scaling) {
	put(&s.Image, in.Image)
	put(&s.Args, in.Args)
	put(&s.DiskGB, in.Disk)
	put(&s.Registry, wantedRegistry(in.Registry))
	put(&s.TimeoutMS, in.Timeout)
	put(&s.FlashBoot, (*fleet.FlashBoot)(in.FlashBoot))
	put(&s.Retries, in.Retries)
	put(&s.FailAfter, in.FailAfter)
	put(&s.WaitSeconds, in.WaitTimeout)
	put(&s.MaxBodyMB, in.MaxBody)
	if in.WebhookSecret != nil {
		s.NewWebhookKey = new(in.WebhookSecret.Secret())
	}
	if in.Ports != nil {
		s.Ports = parsePorts(in.Ports)
	}
	if in.Env != nil {
		s.Env = in.Env
	}
	if in.DataCenterIDs != nil {
		s.Centers = distinct[fleet.DataCenterID](in.DataCenterIDs)
	}
	if in.NetworkVolumes != nil {
		s.Volumes = distinct[fleet.VolumeID](in.NetworkVolumes)
	}
	if in.Models != nil {
		s.Models = in.Models
	}
	if in.GPU != nil {
		s.GPU = changedGPU(s.GPU, in.GPU)
	}
	if in.CPU != nil {
		s.CPU = nil
		for _, c := range in.CPU {
			s.CPU = append(s.CPU, fleet.CPURequest{Flavor: c.ID, VCPU: c.VCPUCount})
		}
	}
	if scaling != nil {
		s.Scaler = fleet.Scaler{Type: fleet.ScalerType(scaling.Type), Value: cmp.Or(given(scaling.QueueDelay), float64(given(scaling.RequestCount)))}
		if s.Type == fleet.EndpointQueue && s.Scaler.Type == fleet.ScaleByRequests {
			s.Workers.Idle = 0 // the scaler alone decides
		}
	}
	if w := in.Workers; w != nil {
		put(&s.Workers.Min, w.Min)
		put(&s.Workers.Max, w.Max)
		put(&s.Workers.Idle, w.IdleTimeout)
	}
}

// changedGPU is what workers had of GPUs with what a body says; it shares nothing with what they had.
func changedGPU(had *fleet.EndpointGPU, in *v2.WantedEndpointGPU) *fleet.EndpointGPU {
	out := given(had)
	cuda := given(out.CUDA)
	if in.Pools != nil {
		out.Pools, out.Excluded = distinct[string](in.Pools), nil
	}
	if in.ExcludedTypes != nil {
		out.Excluded = distinct[string](in.ExcludedTypes)
	}
	put(&out.Count, in.Count)
	if in.AllowedCUDA != nil {
		cuda.Allowed = in.AllowedCUDA
	}
	put(&cuda.Min, in.MinCUDA)
	out.CUDA = nil
	if len(cuda.Allowed) > 0 || cuda.Min != "" {
		out.CUDA = &cuda
	}
	return &out
}

// distinct leaves out what a list has already.
func distinct[T ~string](texts []string) (out []T) {
	for _, text := range texts {
		if !slices.Contains(out, T(text)) {
			out = append(out, T(text))
		}
	}
	return out
}

func checkCreateEndpoint(in *v2.CreateEndpointRequest) []string {
	var out []string
	if in.Image == nil && in.TemplateID == "" {
		out = append(out, "$: missing property 'image'")
	}
	if in.GPU != nil && in.GPU.Pools == nil {
		out = append(out, "$.gpu: missing property 'pools'")
	}
	return append(out, checkEndpoint(&in.EndpointSettings, &in.Scaling)...)
}

// checkEndpoint checks what making and changing an endpoint have in common.
func checkEndpoint(in *v2.EndpointSettings, scaling *v2.Scaling) []string {
	out := checkSettings(in.Args, in.Ports, in.Env)
	for i, c := range in.CPU {
		if bits.OnesCount(uint(c.VCPUCount)) != 1 {
			out = append(out, "$.cpu["+strconv.Itoa(i)+"].vcpuCount: must be a power of two")
		}
	}
	if scaling == nil {
		return out
	}
	wanted, other, has, hasOther := "queueDelay", "requestCount", scaling.QueueDelay != nil, scaling.RequestCount != nil
	if scaling.Type == string(fleet.ScaleByRequests) {
		wanted, other, has, hasOther = other, wanted, hasOther, has
	}
	if !has {
		out = append(out, "$.scaling: missing property "+quoteName(wanted))
	}
	if hasOther {
		out = append(out, "$.scaling."+other+": must not be set with "+scaling.Type)
	}
	return out
}

// endpointRecord shows endpoints to who came to base.
func endpointRecord(base string) func(fleet.EndpointView) v2.Endpoint {
	return func(e fleet.EndpointView) v2.Endpoint {
		s := &e.Spec
		out := v2.Endpoint{
			ID: string(e.ID), Name: s.Name, Type: string(s.Type), Image: s.Image, Args: s.Args, Disk: s.DiskGB, Ports: portTexts(s.Ports), Env: s.Env,
			Registry: v2.Text(s.Registry), Template: v2.Text(s.Template), DataCenterIDs: texts(s.Centers), NetworkVolumes: texts(s.Volumes), Models: texts(s.Models),
			Workers: v2.WorkerBounds{Min: s.Workers.Min, Max: s.Workers.Max, IdleTimeout: s.Workers.Idle}, Scaling: v2.Scaling{Type: string(s.Scaler.Type)},
			Timeout: s.TimeoutMS, FlashBoot: string(s.FlashBoot), Retries: s.Retries, FailAfter: s.FailAfter, Version: e.Version(), CreatedAt: v2.At(e.CreatedAt),
			Reason: v2.Text(e.Reason), WebhookSigned: len(s.WebhookKey) > 0, WaitTimeout: s.WaitSeconds, MaxBody: s.MaxBodyMB,
		}
		if e.Rollout.InProgress() {
			out.Rollout = new(rolloutRecord(e.Rollout))
		}
		if out.Env == nil {
			out.Env = map[string]string{}
		}
		if s.Scaler.Type == fleet.ScaleByRequests {
			out.Scaling.RequestCount = new(int(s.Scaler.Value))
		} else {
			out.Scaling.QueueDelay = new(s.Scaler.Value)
		}
		switch at := base + "/v2/" + out.ID; {
		case e.ID == "":
		case s.Type == fleet.EndpointQueue:
			out.RequestURLs = requestURLs(at)
		default:
			out.RequestURLs = &v2.RequestURLs{Base: cmp.Or(e.URL, at), Health: at + "/health"}
		}
		if g := s.GPU; g != nil {
			cuda := given(g.CUDA)
			out.GPU = &v2.EndpointGPU{
				Pools: g.Pools, ExcludedTypes: texts(g.Excluded), Count: g.Count, AllowedCUDA: texts(cuda.Allowed), MinCUDA: v2.Text(cuda.Min),
			}
		}
		for _, c := range s.CPU {
			out.CPU = append(out.CPU, v2.CPUConfig{ID: c.Flavor, VCPUCount: c.VCPU, Memory: c.MemoryGB})
		}
		return out
	}
}

func requestURLs(at string) *v2.RequestURLs {
	return &v2.RequestURLs{
		Run: at + "/run", RunSync: at + "/runsync", Status: at + "/status/{job_id}", Stream: at + "/stream/{job_id}",
		Cancel: at + "/cancel/{job_id}", Retry: at + "/retry/{job_id}", PurgeQueue: at + "/purge-queue", Health: at + "/health",
	}
}

// texts is a list that is never null.
func texts[T ~string](list []T) []string {
	out := []string{}
	for _, v := range list {
		out = append(out, string(v))
	}
	return out
}

func exampleCreateEndpoint() v2.CreateEndpointRequest {
	return v2.CreateEndpointRequest{
		Name: "embed", Type: string(fleet.EndpointQueue), Scaling: v2.Scaling{Type: string(fleet.ScaleByDelay), QueueDelay: new(4.0)},
		EndpointSettings: v2.EndpointSettings{
			Image: new("docker.io/library/nginx:1.29"), GPU: &v2.WantedEndpointGPU{Pools: []string{"ADA_80_PRO"}},
		},
	}
}

func exampleEndpoint() v2.Endpoint {
	in := exampleCreateEndpoint()
	e := fleet.Endpoint{
		ID: "e4m7x1c9v2b6n8", CreatedAt: exampleTime(0).Time, Releases: []fleet.Release{{Version: 1}},
		Spec: fleet.EndpointSpec{
			DiskGB: 20, Workers: fleet.WorkerBounds{Max: 3, Idle: 10}, TimeoutMS: 300_000, FlashBoot: fleet.FlashBootOff, Retries: 1, FailAfter: 600,
		},
	}
	newEndpoint(&in)(&e.Spec)
	e.Spec.GPU.Count = 1
	return endpointRecord("https://gantry.example.com")(fleet.EndpointView{Endpoint: e})
}
