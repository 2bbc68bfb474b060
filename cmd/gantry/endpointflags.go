package main

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/client"
)

// endpointFlags are the fields of an endpoint that a create and an update share.
type endpointFlags struct {
	CPU []string `name:"cpu" sep:"none" placeholder:"FLAVOR[:N]" help:"CPU flavor of CPU workers, with N vCPUs, 2 when not given: see gantry catalog cpus. May be repeated: the first that there is room for."`

	GPU     []string `name:"gpu" sep:"none" placeholder:"TYPE" help:"GPU type of GPU workers, or a part of its name that means one type: see gantry catalog gpus. May be repeated: any of them."`
	Pool    []string `sep:"none" placeholder:"POOL" help:"Pool of GPU types instead of --gpu. May be repeated, the preferred first."`
	Exclude []string `sep:"none" placeholder:"TYPE" help:"With --pool: GPU type that no worker gets. May be repeated."`
	Count   *int     `name:"count" placeholder:"N" help:"GPUs of a worker; 1 when not given."`
	CUDA    []string `name:"cuda" sep:"none" placeholder:"12.8" help:"Only hosts with exactly this CUDA version. May be repeated."`
	NoCUDA  bool     `name:"no-cuda" help:"Hosts with any CUDA version."`
	MinCUDA *string  `name:"min-cuda" placeholder:"12.4" help:"Only hosts with this CUDA version or a newer one."`

	MinWorkers   *int           `placeholder:"N" help:"Workers that are kept without jobs; 0 when not given."`
	MaxWorkers   *int           `placeholder:"N" help:"Most workers; 3 when not given."`
	IdleTimeout  *time.Duration `placeholder:"10s" help:"How long a worker stays without a job, in whole seconds."`
	QueueDelay   *time.Duration `placeholder:"4s" help:"More workers when jobs wait this long, which is how a QUEUE endpoint scales when nothing else is given."`
	RequestCount *int           `placeholder:"N" help:"A worker for each N jobs or requests, instead of --queue-delay; 4 for a LOAD_BALANCER endpoint when not given."`

	ExecutionTimeout *time.Duration `placeholder:"5m" help:"Longest execution of a job that says nothing else, or longest time until a worker answers a request; 0s: no limit."`
	Retries          *int           `placeholder:"N" help:"How often a job is given out again after its worker was lost, 0 to 3."`
	FailAfter        *time.Duration `placeholder:"10m" help:"Jobs that can never run fail after this time, in whole seconds; 0s: they wait."`
	WaitTimeout      *time.Duration `placeholder:"2m" help:"Of a LOAD_BALANCER endpoint: how long a request waits for a worker, in whole seconds."`
	MaxBody          *int           `placeholder:"MB" help:"Of a LOAD_BALANCER endpoint: MB that a request may have, and its answer; 30 when not given."`
	FlashBoot        *string        `name:"flashboot" placeholder:"FLASHBOOT" help:"What becomes of workers that have idled out: OFF, FLASHBOOT or PRIORITY_FLASHBOOT."`

	signingFlags

	containerFlags
	NetworkVolume    []string `sep:"none" placeholder:"VOLUME" help:"Network volume of workers in its data center: its id or name. May be repeated."`
	NoNetworkVolumes bool     `help:"No network volume."`
	Model            []string `sep:"none" placeholder:"REFERENCE" help:"Model that workers find on their host: https://huggingface.co/ORGANIZATION/NAME, with :REVISION where it is not main. May be repeated."`
	NoModels         bool     `help:"No models."`
	DataCenter       []string `sep:"none" placeholder:"ID" help:"Data center to choose from; any when not given. May be repeated."`
	AnyDataCenter    bool     `help:"Any data center."`
}

// check finds what no API is needed for.
func (f endpointFlags) check() error {
	gpus := len(f.GPU) + len(f.Pool)
	switch {
	case len(f.CPU) > 0 && gpus > 0:
		return usage("--cpu excludes --gpu and --pool")
	case len(f.GPU) > 0 && gpus > len(f.GPU):
		return usage("--gpu and --pool exclude each other")
	case len(f.GPU) > 0 && len(f.Exclude) > 0:
		return usage("--exclude goes with --pool")
	case len(f.CPU) > 0 && (f.Count != nil || len(f.CUDA) > 0 || f.NoCUDA || f.MinCUDA != nil):
		return usage("--count, --cuda, --no-cuda and --min-cuda go with --gpu or --pool")
	case len(f.CUDA) > 0 && (f.NoCUDA || f.MinCUDA != nil), f.NoCUDA && f.MinCUDA != nil:
		return usage("--cuda, --no-cuda and --min-cuda exclude each other")
	case f.QueueDelay != nil && f.RequestCount != nil:
		return usage("--queue-delay and --request-count exclude each other")
	case len(f.NetworkVolume) > 0 && f.NoNetworkVolumes:
		return usage("--network-volume and --no-network-volumes exclude each other")
	case len(f.Model) > 0 && f.NoModels:
		return usage("--model and --no-models exclude each other")
	case len(f.DataCenter) > 0 && f.AnyDataCenter:
		return usage("--data-center and --any-data-center exclude each other")
	}
	for _, d := range []struct {
		flag  string
		value *time.Duration
		unit  time.Duration
		rule  string
	}{
		{"--idle-timeout", f.IdleTimeout, time.Second, "whole seconds, such as 10s"},
		{"--wait-timeout", f.WaitTimeout, time.Second, "whole seconds, such as 2m"},
		{"--fail-after", f.FailAfter, time.Second, "whole seconds, such as 10m"},
		{"--execution-timeout", f.ExecutionTimeout, time.Millisecond, "whole milliseconds, such as 5m"},
		{"--queue-delay", f.QueueDelay, time.Millisecond, "whole milliseconds, such as 4s"},
	} {
		if d.value != nil && (*d.value < 0 || *d.value%d.unit != 0) {
			return usage("%s must be in %s", d.flag, d.rule)
		}
	}
	return nil
}

// settings makes the members of the command line. What the API checks is left to it.
func (f endpointFlags) settings(ctx context.Context, a *app, c *client.Client) (v2.EndpointSettings, error) {
	out := v2.EndpointSettings{FlashBoot: f.FlashBoot, Retries: f.Retries, FailAfter: inSeconds(f.FailAfter), WaitTimeout: inSeconds(f.WaitTimeout), MaxBody: f.MaxBody}
	if err := f.check(); err != nil {
		return out, err
	}
	box, err := f.read(ctx, a, c)
	if err != nil {
		return out, err
	}
	out.Args, out.Disk, out.Ports, out.Env, out.Registry = box.Args, box.Disk, box.Ports, box.Env, box.Registry
	if out.WebhookSecret, err = f.signedUnder(ctx, a); err != nil {
		return out, err
	}
	if f.ExecutionTimeout != nil {
		out.Timeout = new(f.ExecutionTimeout.Milliseconds())
	}
	if f.MinWorkers != nil || f.MaxWorkers != nil || f.IdleTimeout != nil {
		out.Workers = &v2.WantedWorkers{Min: f.MinWorkers, Max: f.MaxWorkers, IdleTimeout: inSeconds(f.IdleTimeout)}
	}
	if len(f.DataCenter) > 0 || f.AnyDataCenter {
		out.DataCenterIDs = append([]string{}, f.DataCenter...)
	}
	if len(f.Model) > 0 || f.NoModels {
		out.Models = append([]string{}, f.Model...)
	}
	if len(f.NetworkVolume) > 0 || f.NoNetworkVolumes {
		out.NetworkVolumes = []string{}
	}
	for _, ref := range f.NetworkVolume {
		id, err := volumes.id(ctx, c, ref)
		if err != nil {
			return out, err
		}
		out.NetworkVolumes = append(out.NetworkVolumes, id)
	}
	if out.CPU, err = cpuChoices(f.CPU); err != nil {
		return out, err
	}
	out.GPU, err = f.gpus(ctx, c)
	return out, err
}

func inSeconds(d *time.Duration) *int {
	if d == nil {
		return nil
	}
	return new(int(*d / time.Second))
}

// cpuChoices reads FLAVOR or FLAVOR:N.
func cpuChoices(texts []string) (out []v2.CreateCPUConfig, err error) {
	for _, text := range texts {
		flavor, number, given := strings.Cut(text, ":")
		n := 2
		if given {
			n, err = strconv.Atoi(number)
		}
		if err != nil || flavor == "" {
			return nil, usage("--cpu must be FLAVOR or FLAVOR:N, such as cpu3c:2")
		}
		out = append(out, v2.CreateCPUConfig{ID: flavor, VCPUCount: n})
	}
	return out, nil
}

// gpus returns nil when the command line says nothing of GPUs.
func (f endpointFlags) gpus(ctx context.Context, c *client.Client) (*v2.WantedEndpointGPU, error) {
	out := v2.WantedEndpointGPU{Pools: f.Pool, ExcludedTypes: f.Exclude, Count: f.Count, AllowedCUDA: f.CUDA, MinCUDA: f.MinCUDA}
	if f.NoCUDA {
		out.AllowedCUDA, out.MinCUDA = []string{}, new("")
	}
	if len(f.GPU) > 0 {
		list, err := c.GPUs(ctx, client.GPUQuery{})
		if err != nil {
			return nil, err
		}
		if out.Pools, out.ExcludedTypes, err = poolsOf(list.Value.GPUs, f.GPU); err != nil {
			return nil, err
		}
	}
	if reflect.ValueOf(out).IsZero() {
		return nil, nil
	}
	return &out, nil
}

// poolsOf returns the pools of the GPU types that texts mean, and the other types of these pools.
func poolsOf(all []v2.GPUType, texts []string) (pools, others []string, err error) {
	var wanted []string
	for _, text := range texts {
		id, err := gpuType(all, text)
		if err != nil {
			return nil, nil, err
		}
		wanted = append(wanted, id)
		at := slices.IndexFunc(all, func(g v2.GPUType) bool { return g.ID == id })
		switch pool := string(all[at].Pool); {
		case pool == "":
			return nil, nil, usage("--gpu: %s is in no pool, of which workers are made", id)
		case !slices.Contains(pools, pool):
			pools = append(pools, pool)
		}
	}
	for _, g := range all {
		if slices.Contains(pools, string(g.Pool)) && !slices.Contains(wanted, g.ID) {
			others = append(others, g.ID)
		}
	}
	return pools, others, nil
}

// scaling returns nil when the command line says nothing of it.
func (f endpointFlags) scaling() *v2.Scaling {
	switch {
	case f.RequestCount != nil:
		return &v2.Scaling{Type: "REQUEST_COUNT", RequestCount: f.RequestCount}
	case f.QueueDelay != nil:
		return &v2.Scaling{Type: "QUEUE_DELAY", QueueDelay: new(f.QueueDelay.Seconds())}
	}
	return nil
}

type endpointCreateCmd struct {
	Name     string `arg:"" placeholder:"NAME" help:"Name of the endpoint; need not be unique."`
	Image    string `arg:"" optional:"" placeholder:"IMAGE" help:"Image of its workers. May be left to --template."`
	Type     string `default:"QUEUE" placeholder:"QUEUE" help:"QUEUE: workers take jobs from its queue. LOAD_BALANCER: they serve HTTP requests."`
	Template string `placeholder:"ID" help:"Serverless template for what is not given here: its id, or the name of one of yours. Variables are merged."`
	endpointFlags
	IdempotencyKey string `placeholder:"TEXT" help:"Idempotency key: run again with it within a day, the command creates nothing new."`
}

// Run makes an endpoint.
func (cmd endpointCreateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	switch {
	case len(cmd.CPU)+len(cmd.GPU)+len(cmd.Pool) == 0:
		return usage("say --cpu FLAVOR, --gpu TYPE or --pool POOL: see gantry catalog cpus and gantry catalog gpus")
	case cmd.Image == "" && cmd.Template == "":
		return usage("say the image, or --template")
	}
	settings, err := cmd.settings(ctx, a, c)
	if err != nil {
		return err
	}
	body := v2.CreateEndpointRequest{Name: cmd.Name, Type: cmd.Type, Scaling: v2.Scaling{Type: "QUEUE_DELAY", QueueDelay: new(4.0)}, EndpointSettings: settings}
	if body.Type = strings.ToUpper(strings.ReplaceAll(cmd.Type, "-", "_")); body.Type == "LOAD_BALANCER" {
		body.Scaling = v2.Scaling{Type: "REQUEST_COUNT", RequestCount: new(4)}
	}
	if s := cmd.scaling(); s != nil {
		body.Scaling = *s
	}
	if cmd.Image != "" {
		body.Image = &cmd.Image
	}
	if body.TemplateID, err = templates.id(ctx, c, cmd.Template); err != nil {
		return err
	}
	e, err := endpoints.create(a, c, cmd.IdempotencyKey, func(c *client.Client) (client.Answer[v2.Endpoint], error) { return c.CreateEndpoint(ctx, body) })
	return endpoints.show(a, e, err)
}

type endpointUpdateCmd struct {
	endpointRef
	Name  *string `placeholder:"NAME" help:"New name."`
	Image *string `placeholder:"IMAGE" help:"New image reference."`
	endpointFlags
	envChange
}

// Run changes an endpoint.
func (cmd endpointUpdateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if err := cmd.envChange.check(cmd.containerFlags); err != nil {
		return err
	}
	settings, err := cmd.settings(ctx, a, c)
	if err != nil {
		return err
	}
	body := v2.UpdateEndpointRequest{Name: cmd.Name, Scaling: cmd.scaling(), EndpointSettings: settings}
	body.Image = cmd.Image
	if cmd.NoEnv {
		body.Env = map[string]string{}
	}
	if reflect.ValueOf(body).IsZero() && !cmd.single() {
		return usage("say what to change")
	}
	return endpoints.on(ctx, c, cmd.Endpoint, func(id string) error {
		if cmd.single() {
			now, err := c.Endpoint(ctx, id)
			if err == nil {
				body.Env, err = cmd.edit(a, now.Value.Env)
			}
			if err != nil {
				return err
			}
		}
		e, err := c.UpdateEndpoint(ctx, id, body)
		return endpoints.show(a, e, err)
	})
}
