package main

import (
	"cmp"
	"context"
	"fmt"
	"reflect"

	"gantry/api/v2"
	"gantry/client"
)

type podUpdateCmd struct {
	podRef
	Name  *string `placeholder:"NAME" help:"New name."`
	Image *string `placeholder:"IMAGE" help:"New image reference."`
	containerFlags
	envChange
	mountFlags
	Locked           *bool `negatable:"" help:"Refuse stop and restart, or allow them again."`
	GlobalNetworking *bool `negatable:"" help:"Join the account's private network, or leave it, from the next start on."`
	Movable          *bool `negatable:"" help:"Let a drain of the pod's host move the pod, or no longer."`
	endFlags
	httpFlags
	Template string `placeholder:"ID" help:"Take once what this template says and is not given here."`
	confirmed
	waiting
}

// Run changes a pod.
func (cmd podUpdateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if err := cmd.check(cmd.containerFlags); err != nil {
		return err
	}
	body, err := cmd.body(ctx, a, c)
	if err != nil {
		return err
	}
	single := cmd.single()
	if reflect.ValueOf(body).IsZero() && !single {
		return usage("say what to change")
	}
	return pods.on(ctx, c, cmd.Pod, func(id string) error {
		if single || restarts(body) {
			now, err := c.Pod(ctx, id)
			if err == nil && single {
				body.Env, err = cmd.edit(a, now.Value.Env)
			}
			if err == nil {
				err = cmd.warn(ctx, a, now.Value)
			}
			if err != nil {
				return err
			}
		}
		pod, err := c.UpdatePod(ctx, id, body)
		if err != nil {
			return err
		}
		if cmd.Wait && pod.Value.Status.Active() {
			g := untilRunning()
			g.incarnation = pod.Value.Incarnation
			pod, err = a.await(ctx, c, pod, g, cmd.Timeout)
		}
		return reply(a, pod, err, func(p v2.Pod) string { return podTable([]v2.Pod{p}, a.now()) })
	})
}

func (cmd podUpdateCmd) body(ctx context.Context, a *app, c *client.Client) (v2.UpdatePodRequest, error) {
	settings, err := cmd.read(ctx, a, c)
	body := v2.UpdatePodRequest{PodSettings: settings, Name: cmd.Name, Locked: cmd.Locked}
	if err != nil {
		return body, err
	}
	if err := cmp.Or(cmd.endFlags.into(&body.PodSettings, a.now()), cmd.httpFlags.into(&body.PodSettings)); err != nil {
		return body, err
	}
	body.Image, body.GlobalNetworking, body.Movable = cmd.Image, cmd.GlobalNetworking, cmd.Movable
	if cmd.NoEnv {
		body.Env = map[string]string{}
	}
	if body.Mounts, err = cmd.mounts(ctx, c); err != nil || cmd.Template == "" {
		return body, err
	}
	body.TemplateID, err = templates.id(ctx, c, cmd.Template)
	return body, err
}

// restarts reports whether a change may restart a pod that runs.
func restarts(body v2.UpdatePodRequest) bool {
	return body.Image != nil || body.Args != nil || body.Env != nil || body.Ports != nil || body.Disk != nil || body.TemplateID != ""
}

// warn asks on a terminal before a change that restarts a pod and wipes its container disk; elsewhere it says so.
func (cmd podUpdateCmd) warn(ctx context.Context, a *app, pod v2.Pod) error {
	if !pod.Status.Active() {
		return nil
	}
	what := printable(fmt.Sprintf("This restarts pod %s, which is %s, and wipes its container disk.", first(pod.Name, pod.ID), pod.Status))
	if cmd.Yes || terminalOf(a.in) != nil {
		return cmd.ask(ctx, a, what)
	}
	_, _ = fmt.Fprintln(a.err, what)
	return nil
}
