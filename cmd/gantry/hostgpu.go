package main

import (
	"context"
	"fmt"

	"gantry/api/admin"
	"gantry/client"
)

type hostGPUCmd struct {
	Cordon   gpuCordonCmd   `cmd:"" help:"Give a GPU no new pods; those that have it keep it."`
	Uncordon gpuUncordonCmd `cmd:"" help:"Give a cordoned GPU new pods again."`
	Clear    gpuClearCmd    `cmd:"" help:"Remove the cordon of a GPU, also of one that is gone."`
}

// gpuRef names a GPU of a host.
type gpuRef struct {
	hostRef
	GPU string `arg:"" name:"gpu" placeholder:"GPU" help:"UUID of the GPU, or its place in gantry host get, from 0 on."`
}

// tell makes one call about the GPU and shows the GPUs of the host.
func (ref gpuRef) tell(
	ctx context.Context, a *app, c *client.Client, f func(c *client.Client, ctx context.Context, id, gpu string) (client.Answer[admin.Host], error),
) error {
	return hosts.on(ctx, c, ref.Host, func(id string) error {
		host, err := f(c, ctx, id, ref.GPU)
		if client.IsNotFound(err) {
			err = &lacking{fmt.Errorf("host %s has no GPU %s", printable(ref.Host), printable(ref.GPU)), err}
		}
		return reply(a, host, err, func(h admin.Host) string { return conditionLines(h) + gpuTable(h) })
	})
}

type gpuCordonCmd struct {
	gpuRef
	Reason string `required:"" placeholder:"TEXT" help:"Why, for other operators."`
}

// Run cordons a GPU.
func (cmd gpuCordonCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return cmd.tell(ctx, a, c, func(c *client.Client, ctx context.Context, id, gpu string) (client.Answer[admin.Host], error) {
		return c.CordonGPU(ctx, id, gpu, cmd.Reason)
	})
}

type gpuUncordonCmd struct{ gpuRef }

// Run puts a GPU back into service.
func (cmd gpuUncordonCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return cmd.tell(ctx, a, c, (*client.Client).UncordonGPU)
}

type gpuClearCmd struct{ gpuRef }

// Run forgets a cordon.
func (cmd gpuClearCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return cmd.tell(ctx, a, c, (*client.Client).ClearGPU)
}
