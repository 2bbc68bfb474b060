package scheduler

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// StartWorker creates a worker of the newest release of an endpoint, on the first of its GPU types or CPUs that there is room for.
// Errors: not_found, no_capacity and others as CreatePods.
func (s *Service) StartWorker(ctx context.Context, id fleet.EndpointID) (fleet.Pod, error) {
	e, wanted, err := s.workersOf(ctx, id)
	if err != nil {
		return fleet.Pod{}, err
	}
	err = fleet.BreaksRule("none of the endpoint's network volumes is there any more")
	for _, req := range wanted {
		set := PodSet{Owner: id.Owner(), Release: e.Version(), Requests: []fleet.PodRequest{req}}
		made, _, why := s.CreatePods(ctx, fleet.Principal{Account: e.Account}, set)
		if why == nil {
			return made[0], nil
		}
		if fleet.CodeOf(err) != fleet.CodeNoCapacity { // else what refused the best of them is what its owner is told
			err = why
		}
		if fleet.CodeOf(why) != fleet.CodeNoCapacity {
			break
		}
	}
	return fleet.Pod{}, err
}

// workersOf returns an endpoint and what a worker of it may be, the best first. Errors: not_found.
func (s *Service) workersOf(ctx context.Context, id fleet.EndpointID) (e fleet.Endpoint, wanted []fleet.PodRequest, err error) {
	err = s.read(ctx, func(v *state.View) error {
		var ok bool
		if e, ok = state.Find[fleet.Endpoint](v, id); !ok {
			return fleet.NotFound("endpoint")
		}
		wanted = workerRequests(v, &e)
		return nil
	})
	return e, wanted, err
}

// PrefetchWorkers has the hosts that the next workers of an endpoint would get, at most so many, get its image and models beforehand. It
// promises nothing. What needs a credential cannot be got so. Errors: those of StartWorker.
func (s *Service) PrefetchWorkers(ctx context.Context, id fleet.EndpointID, hosts int) error {
	e, wanted, err := s.workersOf(ctx, id)
	image, ok := fleet.ImageName(e.Spec.Image)
	if !ok || e.Spec.Registry != "" {
		image = ""
	}
	if err != nil || image == "" && len(e.Spec.Models) == 0 {
		return err
	}
	for _, req := range wanted {
		for n := hosts; n > 0; n-- {
			set := PodSet{Owner: id.Owner(), Release: e.Version(), Requests: slices.Repeat([]fleet.PodRequest{req}, n), OnePerHost: true}
			cmd, why := s.plan(ctx, fleet.Principal{Account: e.Account}, set, nil)
			if why == nil {
				for i := range cmd.Pods {
					s.Dispatch.Prefetch(cmd.Pods[i].Pod.Host, image, e.Spec.Models...)
				}
				return nil
			}
			if err = why; fleet.CodeOf(err) != fleet.CodeNoCapacity {
				return err
			}
		}
	}
	return err
}

// EndWorker terminates a worker. One that is terminated already is no error.
func (s *Service) EndWorker(ctx context.Context, pod *fleet.Pod) error {
	_, err := propose[fleet.Pod](ctx, s, state.ActPod{
		Account: pod.Account, Owner: pod.Owner, Pod: pod.ID, Action: fleet.ActionTerminate, At: s.Now(),
	})
	if code := fleet.CodeOf(err); code == fleet.CodeNotFound || code == fleet.CodeNotAllowed {
		return nil
	}
	return err
}

// FreezeWorker has the host of a worker stop its processes, which stay as they are. Errors: not_allowed (it is none that waits for jobs),
// not_found.
func (s *Service) FreezeWorker(ctx context.Context, pod *fleet.Pod) error {
	_, err := propose[fleet.Pod](ctx, s, state.FreezeWorker{Pod: pod.ID, At: s.Now()})
	return err
}

// ThawWorker has the processes of a frozen worker go on. Errors: not_allowed (it is not frozen any more), not_found, quota_exceeded,
// low_balance.
func (s *Service) ThawWorker(ctx context.Context, pod *fleet.Pod) error {
	_, err := propose[fleet.Pod](ctx, s, state.FreezeWorker{Pod: pod.ID, Thaw: true, At: s.Now()})
	return err
}

// workerRequests lists what a worker may be, the best first: by GPU type or CPU, and within one by network volume.
func workerRequests(v *state.View, e *fleet.Endpoint) (out []fleet.PodRequest) {
	spec, fixed := &e.Spec, false
	base := fleet.PodRequest{
		Name: spec.Name, Image: spec.Image, Args: spec.Args, DiskGB: spec.DiskGB, Ports: spec.Ports, Env: spec.Env, Registry: &spec.Registry,
		Centers: spec.Centers, ArgsSet: true, PortsSet: true, Movable: &fixed, Models: spec.Models,
	}
	var shapes []fleet.PodRequest
	if spec.GPU != nil {
		base.CUDA = spec.GPU.CUDA
		for _, kind := range typesOf(v.Catalog(), spec.GPU) {
			base.GPU = &fleet.GPURequest{Type: kind, Count: spec.GPU.Count}
			shapes = append(shapes, base)
		}
	}
	for i := range spec.CPU {
		base.CPU = &spec.CPU[i]
		shapes = append(shapes, base)
	}
	if len(spec.Volumes) == 0 {
		return shapes
	}
	for _, shape := range shapes {
		for _, id := range spec.Volumes {
			if volume, ok := volumeOf(v, e.Account, id); ok {
				shape.Centers = []fleet.DataCenterID{volume.DataCenter}
				shape.Network = &fleet.NetworkMount{Volume: id, Path: fleet.WorkerVolumePath}
				out = append(out, shape)
			}
		}
	}
	return out
}

// workerEnvironment adds what worker images expect (wire-facts.md, §1.1). The agent answers at fleet.WorkerGate, so the worker's key
// opens nothing anywhere: it is the worker's id. The tunables that an owner set stay.
func workerEnvironment(env map[string]string, p *fleet.Pod) {
	gpu := ""
	if p.Spec.GPU != nil {
		gpu = p.Spec.GPU.Type
	}
	at, arg := "http://"+fleet.WorkerGate+"/v2/"+p.Owner.ID, "?gpu="+url.QueryEscape(gpu)
	maps.Copy(env, map[string]string{
		"RUNPOD_WEBHOOK_GET_JOB":     at + "/job-take/$ID" + arg,
		"RUNPOD_WEBHOOK_POST_OUTPUT": at + "/job-done/$RUNPOD_POD_ID/$ID" + arg,
		"RUNPOD_WEBHOOK_POST_STREAM": at + "/job-stream/$RUNPOD_POD_ID/$ID" + arg,
		"RUNPOD_WEBHOOK_PING":        at + "/ping/$RUNPOD_POD_ID" + arg,
		"RUNPOD_AI_API_KEY":          string(p.ID),
		"RUNPOD_POD_ID":              string(p.ID),
		"RUNPOD_POD_HOSTNAME":        string(p.ID),
		"RUNPOD_ENDPOINT_ID":         p.Owner.ID,
		"GANTRY_ENDPOINT_ID":         p.Owner.ID,
		"RUNPOD_GPU_TYPE_ID":         gpu,
	})
	for _, kept := range slices.Sorted(maps.Keys(workerTunables)) {
		if _, own := env[kept]; !own {
			env[kept] = workerTunables[kept]
		}
	}
	if _, own := env["RUNPOD_SKIP_GPU_CHECK"]; !own && p.Spec.GPU == nil {
		env["RUNPOD_SKIP_GPU_CHECK"] = "true"
	}
}

// servingEnvironment tells a worker where it is expected to serve.
func servingEnvironment(env map[string]string) {
	at, err := fleet.ServingOf(env)
	if err != nil { // its release was refused
		return
	}
	env[fleet.EnvPort], env[fleet.EnvHealthPort], env[fleet.EnvHealthPath] = strconv.Itoa(at.Port), strconv.Itoa(at.Health), at.Path
}

// workerTunables are what an owner may set otherwise. The system checks want the Internet (wire-facts.md, §1.8).
var workerTunables = map[string]string{"RUNPOD_PING_INTERVAL": "10000", "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true"}
