package main

import (
	"cmp"
	"context"
	"fmt"

	"gantry/api/v2"
	"gantry/client"
)

type podCreateCmd struct {
	Name  string `arg:"" placeholder:"NAME" help:"Name of the pod; need not be unique."`
	Image string `arg:"" optional:"" placeholder:"IMAGE" help:"Image reference, for example docker.io/library/nginx:alpine. May be left to --template."`

	CPU   string `name:"cpu" placeholder:"FLAVOR" help:"CPU flavor of a CPU pod: see gantry catalog cpus."`
	VCPU  int    `name:"vcpu" placeholder:"N" help:"vCPUs of a CPU pod, a power of two; 2 when not given."`
	GPU   string `name:"gpu" placeholder:"TYPE" help:"GPU type of a GPU pod, or a part of its name that means one type, such as H100: see gantry catalog gpus."`
	Count int    `name:"count" placeholder:"N" help:"GPUs of a GPU pod; 1 when not given."`

	CUDA          []string `name:"cuda" sep:"none" placeholder:"12.8" help:"Only hosts with exactly this CUDA version. May be repeated."`
	NoCUDA        bool     `name:"no-cuda" help:"Hosts with any CUDA version, whatever the template says."`
	MinCUDA       string   `name:"min-cuda" placeholder:"12.4" help:"Only hosts with this CUDA version or a newer one."`
	MinRAMPerGPU  int      `name:"min-ram-per-gpu" placeholder:"GB" help:"Only hosts with this much memory for each GPU of the pod."`
	MinVCPUPerGPU int      `name:"min-vcpu-per-gpu" placeholder:"N" help:"Only hosts with this many vCPUs for each GPU of the pod."`

	Template string `placeholder:"ID" help:"Template for what is not given here: its id, or the name of one of yours. Variables are merged."`
	containerFlags
	mountFlags
	DataCenter       []string `sep:"none" placeholder:"ID" help:"Data center to choose from; any when not given. May be repeated."`
	Cloud            string   `placeholder:"SECURE" help:"Tier of hosts: SECURE or COMMUNITY."`
	GlobalNetworking bool     `help:"Join the account's private network. Needs an NVIDIA GPU and a data center that has it."`
	Movable          *bool    `negatable:"" help:"Let a drain of the pod's host stop the pod and start it on another, where its place is reserved first."`
	Interruptible    bool     `help:"Rent at a bid: pods on demand and higher bids take the place when there is no other room. GPU pods only."`
	Bid              *float64 `placeholder:"USD" help:"What an interruptible pod pays for each GPU and hour; the minimum bid when not given: see gantry catalog gpus."`
	endFlags
	httpFlags
	SSH     *bool `name:"ssh" negatable:"" help:"Give the pod the account's SSH keys, as PUBLIC_KEY."`
	Jupyter *bool `name:"jupyter" negatable:"" help:"Give the pod a password for Jupyter, as JUPYTER_PASSWORD."`

	DryRun         bool   `help:"Only say whether there is room; create nothing."`
	IdempotencyKey string `placeholder:"TEXT" help:"Idempotency key: run again with it within a day, the command creates nothing new."`
	waiting
}

// Run creates a pod.
func (cmd podCreateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if err := cmd.check(); err != nil {
		return err
	}
	body, err := cmd.body(ctx, a, c)
	if err != nil {
		return err
	}
	if cmd.DryRun {
		var plan client.Answer[v2.Pod]
		err := a.withGPU(ctx, c, &body, func() (err error) {
			plan, err = c.PlanPod(ctx, body)
			return err
		})
		return reply(a, plan, err, planText)
	}
	pod, err := pods.create(a, c, cmd.IdempotencyKey, func(c *client.Client) (pod client.Answer[v2.Pod], err error) {
		err = a.withGPU(ctx, c, &body, func() (err error) {
			pod, err = c.CreatePod(ctx, body)
			return err
		})
		return pod, err
	})
	if err != nil {
		return err
	}
	if cmd.Wait {
		// Said before the wait, so that the pod can be found whatever happens now.
		_, _ = fmt.Fprintf(a.err, "created %s\n", printable(pod.Value.ID))
		if pod, err = a.await(ctx, c, pod, untilRunning(), cmd.Timeout); err != nil {
			return err
		}
	}
	return a.show(pod.Raw, func() string {
		return podTable([]v2.Pod{pod.Value}, a.now()) + portLines(pod.Value)
	})
}

func planText(p v2.Pod) string {
	where := orDash(p.DataCenterID)
	if p.HostID != "" {
		where += ", host " + string(p.HostID)
	}
	return fmt.Sprintf("There is room: %s in data center %s, for %s per hour. Nothing was created.\n",
		printable(compute(p)), printable(where), dollars(p.Cost))
}

// check finds what no API is needed for.
func (cmd podCreateCmd) check() error {
	switch {
	case cmd.CPU == "" && cmd.GPU == "":
		return usage("say --cpu FLAVOR or --gpu TYPE: see gantry catalog cpus and gantry catalog gpus")
	case cmd.CPU != "" && cmd.GPU != "":
		return usage("--cpu and --gpu exclude each other")
	case cmd.CPU == "" && cmd.VCPU != 0:
		return usage("--vcpu goes with --cpu")
	case cmd.GPU == "" && cmd.Interruptible:
		return usage("--interruptible goes with --gpu")
	case !cmd.Interruptible && (cmd.Bid != nil || cmd.Return != nil):
		return usage("--bid and --return go with --interruptible")
	case cmd.GPU == "" && cmd.Count != 0:
		return usage("--count goes with --gpu")
	case cmd.GPU == "" && (len(cmd.CUDA) > 0 || cmd.NoCUDA || cmd.MinCUDA != "" || cmd.MinRAMPerGPU != 0 || cmd.MinVCPUPerGPU != 0):
		return usage("--cuda, --no-cuda, --min-cuda, --min-ram-per-gpu and --min-vcpu-per-gpu go with --gpu")
	case len(cmd.CUDA) > 0 && cmd.NoCUDA:
		return usage("--cuda and --no-cuda exclude each other")
	case cmd.Image == "" && cmd.Template == "":
		return usage("say the image, or --template")
	}
	return nil
}

// body makes the request of the command line. What the API checks is left to it.
func (cmd podCreateCmd) body(ctx context.Context, a *app, c *client.Client) (v2.CreatePodRequest, error) {
	settings, err := cmd.read(ctx, a, c)
	body := v2.CreatePodRequest{
		PodSettings: settings, Name: cmd.Name, Cloud: cmd.Cloud, DataCenterIDs: cmd.DataCenter, StartSSH: cmd.SSH, StartJupyter: cmd.Jupyter,
	}
	if err != nil {
		return body, err
	}
	body.Movable, body.Interruptible, body.BidPerGPU = cmd.Movable, cmd.Interruptible, cmd.Bid
	if err := cmp.Or(cmd.endFlags.into(&body.PodSettings, a.now()), cmd.httpFlags.into(&body.PodSettings)); err != nil {
		return body, err
	}
	if cmd.Image != "" {
		body.Image = &cmd.Image
	}
	if cmd.GlobalNetworking {
		body.GlobalNetworking = new(true)
	}
	if cmd.CPU != "" {
		body.CPU = &v2.CreateCPUConfig{ID: cmd.CPU, VCPUCount: cmd.VCPU}
		if cmd.VCPU == 0 {
			body.CPU.VCPUCount = 2
		}
	} else {
		body.GPU = cmd.gpu()
	}
	if body.Mounts, err = cmd.mounts(ctx, c); err != nil {
		return body, err
	}
	body.TemplateID, err = templates.id(ctx, c, cmd.Template)
	return body, err
}

func (cmd podCreateCmd) gpu() *v2.CreateGPUConfig {
	out := &v2.CreateGPUConfig{
		ID: cmd.GPU, Count: max(cmd.Count, 1), AllowedCUDA: cmd.CUDA, MinCUDA: cmd.MinCUDA,
		MinRAMPerGPU: cmd.MinRAMPerGPU, MinVCPUPerGPU: cmd.MinVCPUPerGPU,
	}
	if cmd.NoCUDA {
		out.AllowedCUDA = []string{}
	}
	if cmd.Count < 0 {
		out.Count = cmd.Count // the API says what is wrong with it
	}
	return out
}
