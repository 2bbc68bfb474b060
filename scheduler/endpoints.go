package scheduler

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// What an endpoint has where nobody says anything else (wire-facts.md, §5.1; decisions.md).
const (
	defaultMaxWorkers = 3
	defaultIdle       = 10      // seconds
	defaultJobTimeout = 300_000 // milliseconds
	defaultRetries    = 1
	defaultFailAfter  = 600 // seconds

	defaultRequestTimeout = 330_000 // milliseconds
	defaultWait           = 120     // seconds
	defaultMaxBody        = 30      // MB
	byType                = -1      // a value that follows from the endpoint's type

	minQueueDelay = 0.5 // seconds
)

// CreateEndpoint makes a serverless endpoint of the caller's account from a template, or from none, and what change does to
// that; change may be called more than once. Errors: invalid, rule, not_found (what it refers to), quota_exceeded.
func (s *Service) CreateEndpoint(
	ctx context.Context, who fleet.Principal, template fleet.TemplateID, change func(*fleet.EndpointSpec), once *fleet.Once,
) (made fleet.EndpointView, replayed bool, err error) {
	e, err := untilFresh(ctx, func() (fleet.Endpoint, error) {
		e, err := s.newEndpoint(ctx, who, template, change)
		if err != nil && once == nil {
			return e, err
		}
		// What cannot be made now may have been made before under the same key: then the state machine answers with that. With a
		// release too few it makes nothing.
		why := err
		if why != nil {
			e.Releases = nil
		}
		out, again, err := writeRecord(ctx, s, who, e.ID, e, once)
		replayed = again
		if why != nil && !again && fleet.CodeOf(err) != fleet.CodeUnavailable {
			err = why
		}
		return out, err
	})
	made, err = s.endpointView(e, err)
	return made, replayed, err
}

// PlanEndpoint answers as CreateEndpoint would, and makes nothing. Errors: those of CreateEndpoint.
func (s *Service) PlanEndpoint(
	ctx context.Context, who fleet.Principal, template fleet.TemplateID, change func(*fleet.EndpointSpec),
) (fleet.EndpointView, error) {
	e, err := s.newEndpoint(ctx, who, template, change)
	if err == nil {
		err = s.Store.View(func(v *state.View) error { return v.MayMake(&e) })
	}
	return fleet.EndpointView{Endpoint: e}, err
}

// newEndpoint returns the endpoint that CreateEndpoint is to make; with an error, as far as it came.
func (s *Service) newEndpoint(
	ctx context.Context, who fleet.Principal, template fleet.TemplateID, change func(*fleet.EndpointSpec),
) (fleet.Endpoint, error) {
	now := s.Now()
	e := fleet.Endpoint{
		ID: fleet.EndpointID(fleet.NewID()), Account: who.Account, CreatedAt: now,
		Releases: []fleet.Release{{ID: fleet.NewID(), Version: 1, By: who.Key, At: now}},
	}
	err := s.read(ctx, func(v *state.View) (err error) {
		if e.Spec, err = endpointBase(v, who.Account, template); err != nil {
			return err
		}
		change(&e.Spec)
		return completeEndpoint(v, who.Account, &e.Spec)
	})
	return e, cmp.Or(err, s.sealWebhookKey(&e))
}

// purposeWebhook is the kind of sealed secrets of webhooks; see sealPurpose.
const purposeWebhook = "webhook secret"

// sealWebhookKey seals the secret that a change set.
func (s *Service) sealWebhookKey(e *fleet.Endpoint) (err error) {
	key := e.Spec.NewWebhookKey
	if e.Spec.NewWebhookKey = nil; key == nil {
		return nil
	}
	if e.Spec.WebhookKey = nil; *key != "" {
		e.Spec.WebhookKey, err = s.Sealer.Seal(sealPurpose(purposeWebhook, e.Account, string(e.ID)), []byte(key.Reveal()))
	}
	return err
}

// webhookKey opens the secret under which the calls of an endpoint's webhooks are signed; empty: they are not.
func (s *Service) webhookKey(account fleet.AccountID, id fleet.EndpointID) (fleet.Secret, error) {
	plain, err := openRecord(s, account, id, purposeWebhook, func(e fleet.Endpoint) []byte { return e.Spec.WebhookKey })
	return fleet.Secret(plain), err
}

// UpdateEndpoint does to an endpoint of the caller's account what change does, which may be called more than once. What its
// workers are made from makes a new release. Errors: those of CreateEndpoint.
func (s *Service) UpdateEndpoint(
	ctx context.Context, who fleet.Principal, id fleet.EndpointID, change func(*fleet.EndpointSpec),
) (fleet.EndpointView, error) {
	e, err := untilFresh(ctx, func() (fleet.Endpoint, error) {
		e, err := s.changedEndpoint(ctx, who, id, change)
		if err != nil {
			return e, err
		}
		out, _, err := writeRecord(ctx, s, who, id, e, nil)
		return out, err
	})
	return s.endpointView(e, err)
}

// PlanEndpointUpdate answers as UpdateEndpoint would, and changes nothing. Errors: those of UpdateEndpoint.
func (s *Service) PlanEndpointUpdate(
	ctx context.Context, who fleet.Principal, id fleet.EndpointID, change func(*fleet.EndpointSpec),
) (fleet.EndpointView, error) {
	e, err := s.changedEndpoint(ctx, who, id, change)
	return s.endpointView(e, err)
}

// changedEndpoint returns the endpoint that UpdateEndpoint is to write.
func (s *Service) changedEndpoint(
	ctx context.Context, who fleet.Principal, id fleet.EndpointID, change func(*fleet.EndpointSpec),
) (e fleet.Endpoint, err error) {
	now := s.Now()
	err = s.read(ctx, func(v *state.View) error {
		if e, err = state.Get[fleet.Endpoint](v, who.Account, id); err != nil {
			return err
		}
		old, err := state.Get[fleet.Endpoint](v, who.Account, id)
		if err != nil {
			return err
		}
		change(&e.Spec)
		if e.Spec.Type != old.Spec.Type {
			return fleet.BreaksRule("the type of an endpoint cannot be changed")
		}
		if (e.Spec.GPU == nil) != (old.Spec.GPU == nil) {
			return fleet.BreaksRule("an endpoint of GPU workers cannot become one of CPU workers, nor the reverse")
		}
		if err := completeEndpoint(v, who.Account, &e.Spec); err != nil {
			return err
		}
		if changes := changesOf(&old.Spec, &e.Spec); len(changes) > 0 {
			e.Releases = append(e.Releases, fleet.Release{
				ID: fleet.NewID(), Version: old.Version() + 1, By: who.Key, At: now, Changes: changes,
			})
			e.Releases = e.Releases[max(0, len(e.Releases)-fleet.MaxReleases):]
		}
		return nil
	})
	return e, cmp.Or(err, s.sealWebhookKey(&e))
}

// DeleteEndpoint deletes an endpoint of the caller's account; its workers and jobs go with it. Errors: not_found.
func (s *Service) DeleteEndpoint(ctx context.Context, who fleet.Principal, id fleet.EndpointID) error {
	return deleteRecord[fleet.Endpoint](ctx, s, who, id)
}

// endpointBase is what an endpoint is before its owner says anything but the template.
func endpointBase(v *state.View, account fleet.AccountID, id fleet.TemplateID) (spec fleet.EndpointSpec, err error) {
	spec = fleet.EndpointSpec{
		Type: fleet.EndpointQueue, Workers: fleet.WorkerBounds{Max: defaultMaxWorkers}, TimeoutMS: byType,
		FlashBoot: fleet.FlashBootOff, Retries: defaultRetries, FailAfter: defaultFailAfter,
	}
	if id == "" {
		return spec, nil
	}
	t, err := usableTemplate(v, account, id)
	switch {
	case err != nil:
		return spec, missing("$.templateId", "no such template")
	case !t.Serverless:
		return spec, fleet.BreaksRule("a template that is not serverless cannot be used for an endpoint")
	}
	spec.Template, spec.Image, spec.Args, spec.DiskGB = t.ID, t.Image, t.Args, t.DiskGB
	spec.Ports, spec.Env, spec.Registry = t.Ports, maps.Clone(t.Env), t.Registry
	return spec, nil
}

// completeEndpoint fills in what follows from the rest, and refuses what cannot be meant or names what is not there.
func completeEndpoint(v *state.View, account fleet.AccountID, spec *fleet.EndpointSpec) error {
	cat := v.Catalog()
	switch {
	case spec.Image == "":
		return fleet.Invalid("$", "missing property 'image'")
	case (spec.GPU == nil) == (len(spec.CPU) == 0):
		return fleet.BreaksRule("exactly one of gpu and cpu must be set")
	case len(spec.Env) > maxEnv:
		return fleet.Invalid("$.env", "must have at most 50 variables, those of the template included")
	case spec.Workers.Min > spec.Workers.Max:
		return fleet.BreaksRule("workers.min must not be above workers.max")
	}
	var err error
	if spec.GPU != nil {
		err = completePools(cat, spec)
	} else {
		err = completeFlavors(cat, spec)
	}
	return cmp.Or(
		err, completeScaler(spec), completeBalancing(spec), checkModels(spec), knownCenters(spec.Centers, v), endpointVolumes(v, account, spec),
		knownRegistry(v, account, spec.Registry), checkEnvironment(v, account, spec.Env),
	)
}

// completePools checks what GPUs the workers get.
func completePools(cat fleet.Catalog, spec *fleet.EndpointSpec) error {
	gpu := spec.GPU
	gpu.Count, spec.DiskGB = max(gpu.Count, 1), cmp.Or(spec.DiskGB, defaultDiskGPU)
	if gpu.CUDA != nil && len(gpu.CUDA.Allowed) > 0 && gpu.CUDA.Min != "" {
		return fleet.BreaksRule("gpu.allowedCudaVersions and gpu.minCudaVersion exclude each other")
	}
	var pools []string
	for _, t := range cat.GPUs {
		pools = append(pools, t.Pool)
	}
	for _, pool := range gpu.Pools {
		if pool == "" || !slices.Contains(pools, pool) {
			return fleet.Invalid("$.gpu.pools", "names a pool of GPUs that is not in the catalog"+meant(pool, pools))
		}
	}
	for _, id := range gpu.Excluded {
		if _, ok := gpuTypeOf(cat, id); !ok {
			return fleet.Invalid("$.gpu.excludedTypes", "names a GPU type that is not in the catalog")
		}
	}
	if len(typesOf(cat, gpu)) == 0 {
		return fleet.BreaksRule("gpu.excludedTypes leaves no GPU type of gpu.pools")
	}
	return nil
}

// typesOf lists the GPU types that a worker may get, those of the first pool first, in each pool the cheapest first.
func typesOf(cat fleet.Catalog, gpu *fleet.EndpointGPU) (out []string) {
	for _, pool := range gpu.Pools {
		var some []fleet.GPUType
		for _, t := range cat.GPUs {
			if t.Pool == pool && !slices.Contains(gpu.Excluded, t.ID) {
				some = append(some, t)
			}
		}
		slices.SortStableFunc(some, func(a, b fleet.GPUType) int {
			return cmp.Or(cmp.Compare(a.Serverless, b.Serverless), cmp.Compare(a.ID, b.ID))
		})
		for _, t := range some {
			out = append(out, t.ID)
		}
	}
	return out
}

// completeFlavors checks what CPUs the workers get, and fills in their memory.
func completeFlavors(cat fleet.Catalog, spec *fleet.EndpointSpec) error {
	for i := range spec.CPU {
		one := fleet.PodSpec{DiskGB: spec.DiskGB}
		if err := specifyCPU(&one, spec.CPU[i], cat); err != nil {
			return err
		}
		if err := checkDisk(cat, &one); err != nil {
			return err
		}
		spec.CPU[i], spec.DiskGB = *one.CPU, one.DiskGB
	}
	return nil
}

// completeScaler checks when there are more workers, and for how long one stays.
func completeScaler(spec *fleet.EndpointSpec) error {
	byCount := spec.Scaler.Type == fleet.ScaleByRequests
	switch {
	case spec.Type == fleet.EndpointBalanced && !byCount:
		return fleet.Invalid("$.scaling.type", "must be REQUEST_COUNT for a LOAD_BALANCER endpoint")
	case byCount && (spec.Scaler.Value < 1 || spec.Scaler.Value != math.Trunc(spec.Scaler.Value)):
		return fleet.Invalid("$.scaling.requestCount", "must be at least 1")
	case !byCount && spec.Scaler.Value < minQueueDelay:
		return fleet.Invalid("$.scaling.queueDelay", "must be at least 0.5")
	case byCount && spec.Type == fleet.EndpointQueue && spec.Workers.Idle != 0:
		return fleet.Invalid("$.workers.idleTimeout", "must not be set for a QUEUE endpoint with REQUEST_COUNT: the scaler alone decides")
	case byCount && spec.Type == fleet.EndpointQueue:
	default:
		spec.Workers.Idle = cmp.Or(spec.Workers.Idle, defaultIdle)
	}
	return nil
}

// completeBalancing checks how requests reach workers directly, and what is said about jobs alone or requests alone.
func completeBalancing(spec *fleet.EndpointSpec) error {
	if spec.Type != fleet.EndpointBalanced {
		if spec.TimeoutMS == byType {
			spec.TimeoutMS = defaultJobTimeout
		}
		switch {
		case spec.WaitSeconds != 0:
			return fleet.Invalid("$.waitTimeout", "must not be set for a QUEUE endpoint")
		case spec.MaxBodyMB != 0:
			return fleet.Invalid("$.maxBody", "must not be set for a QUEUE endpoint")
		}
		return nil
	}
	if spec.TimeoutMS == byType {
		spec.TimeoutMS = defaultRequestTimeout
	}
	spec.WaitSeconds, spec.MaxBodyMB = cmp.Or(spec.WaitSeconds, defaultWait), cmp.Or(spec.MaxBodyMB, defaultMaxBody)
	_, err := fleet.ServingOf(spec.Env)
	return err
}

// endpointVolumes checks that the network volumes are there, one in a data center at most, and where workers may be.
func endpointVolumes(v *state.View, account fleet.AccountID, spec *fleet.EndpointSpec) error {
	taken := map[fleet.DataCenterID]bool{}
	for _, id := range spec.Volumes {
		volume, ok := volumeOf(v, account, id)
		switch {
		case !ok:
			return missing("$.networkVolumes", "no such network volume")
		case taken[volume.DataCenter]:
			return fleet.BreaksRule("networkVolumes has more than one volume in data center %s", volume.DataCenter)
		case len(spec.Centers) > 0 && !slices.Contains(spec.Centers, volume.DataCenter):
			return fleet.BreaksRule("a network volume is in data center %s, which is not one of dataCenterIds", volume.DataCenter)
		}
		taken[volume.DataCenter] = true
	}
	return nil
}

// checkModels checks the references of models.
func checkModels(spec *fleet.EndpointSpec) error {
	if _, wrong, err := fleet.ParseModelRefs(spec.Models); err != nil {
		return fleet.Invalid(fmt.Sprintf("$.modelReferences[%d]", wrong), err.Error())
	}
	return nil
}

// maxShown is how many bytes of a value a release shows.
const maxShown = 1024

// changesOf lists what is different in what workers are made from, as the API names and shows it.
func changesOf(old, now *fleet.EndpointSpec) (out []fleet.FieldChange) {
	type field struct {
		name string
		of   func(*fleet.EndpointSpec) any
	}
	for _, f := range []field{
		{"image", func(s *fleet.EndpointSpec) any { return s.Image }},
		{"args", func(s *fleet.EndpointSpec) any { return s.Args }},
		{"disk", func(s *fleet.EndpointSpec) any { return s.DiskGB }},
		{"ports", func(s *fleet.EndpointSpec) any { return portTexts(s.Ports) }},
		{"env", func(s *fleet.EndpointSpec) any { return s.Env }},
		{"registry", func(s *fleet.EndpointSpec) any { return s.Registry }},
		{"gpu.pools", func(s *fleet.EndpointSpec) any { return gpuOf(s).Pools }},
		{"gpu.excludedTypes", func(s *fleet.EndpointSpec) any { return gpuOf(s).Excluded }},
		{"gpu.count", func(s *fleet.EndpointSpec) any { return gpuOf(s).Count }},
		{"gpu.allowedCudaVersions", func(s *fleet.EndpointSpec) any { return gpuOf(s).CUDA.Allowed }},
		{"gpu.minCudaVersion", func(s *fleet.EndpointSpec) any { return gpuOf(s).CUDA.Min }},
		{"cpu", func(s *fleet.EndpointSpec) any { return flavorTexts(s.CPU) }},
		{"dataCenterIds", func(s *fleet.EndpointSpec) any { return s.Centers }},
		{"modelReferences", func(s *fleet.EndpointSpec) any { return s.Models }},
		{"networkVolumes", func(s *fleet.EndpointSpec) any { return s.Volumes }},
	} {
		before, after := shownJSON(f.of(old)), shownJSON(f.of(now))
		if before != after {
			out = append(out, fleet.FieldChange{Field: f.name, Old: cut(before), New: cut(after)})
		}
	}
	return out
}

// gpuOf is what is asked for of GPUs, with nothing left nil.
func gpuOf(s *fleet.EndpointSpec) (out fleet.EndpointGPU) {
	if s.GPU != nil {
		out = *s.GPU
	}
	if out.CUDA == nil {
		out.CUDA = &fleet.CUDARange{}
	}
	return out
}

func portTexts(ports []fleet.Port) (out []string) {
	for _, p := range ports {
		out = append(out, fmt.Sprintf("%d/%s", p.Number, p.Protocol))
	}
	return out
}

func flavorTexts(flavors []fleet.CPURequest) (out []map[string]any) {
	for _, f := range flavors {
		out = append(out, map[string]any{"id": f.Flavor, "vcpuCount": f.VCPU})
	}
	return out
}

// shownJSON writes what was asked for; what is not there is like what is empty.
func shownJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil || string(text) == "[]" || string(text) == "{}" || string(text) == `""` {
		return "null"
	}
	return string(text)
}

// cut makes of a long JSON text a string with its beginning.
func cut(text string) string {
	if len(text) <= maxShown {
		return text
	}
	short, _ := json.Marshal(strings.ToValidUTF8(text[:maxShown], "") + "…") // a string
	return string(short)
}
