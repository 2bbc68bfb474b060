package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
)

type podCmd struct {
	Create  podCreateCmd  `cmd:"" help:"Create a pod, which starts at once."`
	List    podListCmd    `cmd:"" help:"List your pods."`
	Get     podGetCmd     `cmd:"" help:"Show a pod; with -v where the time of its start went."`
	Update  podUpdateCmd  `cmd:"" help:"Change a pod: its image, its variables, its lock."`
	Logs    podLogsCmd    `cmd:"" help:"Show a pod's log, and follow it with -f."`
	Exec    podExecCmd    `cmd:"" help:"Run a program in a running pod."`
	SSH     podSSHCmd     `cmd:"" name:"ssh" help:"Open a shell in a running pod."`
	Link    podLinkCmd    `cmd:"" help:"Make a link that opens a protected http port in a browser."`
	Cp      podCpCmd      `cmd:"" help:"Copy files into a running pod, or out of it."`
	Stop    podStopCmd    `cmd:"" help:"Stop pods: their GPUs become free, their record stays."`
	Start   podStartCmd   `cmd:"" help:"Start stopped or failed pods again, with a fresh container."`
	Restart podRestartCmd `cmd:"" help:"Restart the containers of running pods."`
	Delete  podDeleteCmd  `cmd:"" help:"Terminate pods for good."`
}

var pods = noun[v2.Pod, v2.PodList]{
	kind: "pod", all: (*client.Client).Pods, one: (*client.Client).Pod, remove: (*client.Client).DeletePod,
	items: func(l v2.PodList) []v2.Pod { return l.Pods },
	thing: func(p v2.Pod) thing { return thing{p.ID, p.Name} },
}

type podListCmd struct {
	Name          string   `placeholder:"NAME" help:"Only pods of this name."`
	ID            []string `name:"id" sep:"none" placeholder:"ID" help:"Only this pod. This and the following may be repeated, which means any of them."`
	Status        []string `sep:"none" placeholder:"RUNNING" help:"Only pods in this status."`
	Image         []string `sep:"none" placeholder:"IMAGE" help:"Only pods with this image."`
	ComputeType   []string `sep:"none" placeholder:"GPU" help:"Only GPU pods, or only CPU pods."`
	GPU           []string `name:"gpu" sep:"none" placeholder:"TYPE" help:"Only pods with this GPU type, or with any that has this in its name, such as H100."`
	CPU           []string `name:"cpu" sep:"none" placeholder:"FLAVOR" help:"Only pods with this CPU flavor."`
	DataCenter    []string `sep:"none" placeholder:"ID" help:"Only pods in this data center."`
	Template      []string `sep:"none" placeholder:"ID" help:"Only pods that were made from this template."`
	NetworkVolume []string `sep:"none" placeholder:"ID" help:"Only pods with this network volume."`

	IncludeTerminated  bool `help:"Also pods that were deleted a moment ago."`
	IncludeClusterPods bool `help:"Also the members of clusters."`
}

// Run lists pods.
func (cmd podListCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	gpus, err := gpuTypesOf(ctx, c, cmd.GPU)
	if err != nil {
		return err
	}
	list, err := c.PodsWhere(ctx, client.PodFilter{
		IDs: cmd.ID, Name: cmd.Name, Statuses: cmd.Status, Images: cmd.Image,
		ComputeTypes: cmd.ComputeType, GPUTypes: gpus, CPUFlavors: cmd.CPU,
		DataCenters: cmd.DataCenter, Templates: cmd.Template, NetworkVolumes: cmd.NetworkVolume,
		IncludeTerminated: cmd.IncludeTerminated, IncludeClusterMembers: cmd.IncludeClusterPods,
	})
	return reply(a, list, err, func(l v2.PodList) string { return podTable(l.Pods, a.now()) })
}

func podTable(pods []v2.Pod, now time.Time) string {
	var rows [][]string
	for _, p := range pods {
		rows = append(rows, []string{
			p.ID, p.Name, statusText(p), compute(p), p.Image, orDash(strings.Join(p.Ports, ",")),
			orDash(p.DataCenterID), dollars(p.Cost), age(now, p.CreatedAt.Time), orDash(whyText(p)),
		})
	}
	head := []string{"ID", "NAME", "STATUS", "COMPUTE", "IMAGE", "~PORTS", "~CENTER", "~COST/H", "AGE", "REASON"}
	return table(trimmed(head, rows, len(head)-1)) // most pods have no reason
}

// whyText is what the list tells of a pod beside its status: why it is as it is, or what an operator does with its host.
func whyText(p v2.Pod) string {
	switch {
	case p.StatusReason != "" && p.StatusReason != "stopping":
		return string(p.StatusReason)
	case p.Condition != nil:
		return p.Condition.Text
	}
	return ""
}

// statusText shows a status, and the one reason that changes what it means.
func statusText(p v2.Pod) string {
	if p.StatusReason == "stopping" {
		return string(p.Status) + " (stopping)"
	}
	return string(p.Status)
}

func compute(p v2.Pod) string {
	switch {
	case p.GPU != nil:
		out := fmt.Sprintf("%d × %s", p.GPU.Count, p.GPU.ID)
		if p.Interruptible {
			out += ", interruptible"
		}
		return out
	case p.CPU != nil && p.CPU.Memory > 0:
		return fmt.Sprintf("%s %d vCPU %d GB", p.CPU.ID, p.CPU.VCPUCount, p.CPU.Memory)
	case p.CPU != nil:
		return fmt.Sprintf("%s %d vCPU", p.CPU.ID, p.CPU.VCPUCount)
	default:
		return "-"
	}
}

// podRef is a pod on the command line.
type podRef struct {
	Pod string `arg:"" placeholder:"POD" help:"Id of the pod, or its name where only one pod has it."`
}

type podGetCmd struct {
	podRef
	Verbose bool `short:"v" help:"Show every step of the start with its time."`
}

// Run shows a pod.
func (cmd podGetCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return pods.on(ctx, c, cmd.Pod, func(id string) error {
		pod, err := c.Pod(ctx, id)
		return reply(a, pod, err, func(p v2.Pod) string {
			text := podSheet(p)
			if cmd.Verbose {
				text += "\n" + timeLine(p.Steps)
			}
			return text
		})
	})
}

// podRefs are several pods on the command line.
type podRefs struct {
	Pods []string `arg:"" placeholder:"POD" help:"Ids of pods, or names where only one pod has them."`
}

// waiting is how a command waits for its pods.
type waiting struct {
	Wait    bool          `help:"Wait until it is done, and show the progress."`
	Timeout time.Duration `default:"15m" help:"Stop waiting after this time."`
}

type podStopCmd struct {
	podRefs
	waiting
}

// Run stops pods.
func (cmd podStopCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return a.act(ctx, c, cmd.Pods, fleet.ActionStop, cmd.waiting, untilStopped())
}

func untilStopped() goal {
	return goal{
		reached: func(p v2.Pod) bool {
			return p.Status == fleet.StatusExited || p.Status == fleet.StatusError
		},
		lost: []fleet.PodStatus{fleet.StatusTerminated},
	}
}

type podStartCmd struct {
	podRefs
	Bid *float64 `placeholder:"USD" help:"What the pods, which are interruptible, bid from now on for each GPU and hour; as before when not given."`
	waiting
}

// Run starts pods.
func (cmd podStartCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd.Bid != nil {
		return a.doOn(ctx, c, cmd.Pods, fleet.ActionStart, cmd.waiting, untilRunning(), func(id string) (client.Answer[v2.Pod], error) {
			return c.StartPod(ctx, id, *cmd.Bid)
		})
	}
	return a.act(ctx, c, cmd.Pods, fleet.ActionStart, cmd.waiting, untilRunning())
}

type podRestartCmd struct {
	podRefs
	waiting
}

// Run restarts pods.
func (cmd podRestartCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return a.act(ctx, c, cmd.Pods, fleet.ActionRestart, cmd.waiting, untilRunning())
}

// act does an action on each pod and shows their records. A pod that refuses does not keep the others from theirs.
func (a *app) act(ctx context.Context, c *client.Client, refs []string, action fleet.Trigger, w waiting, g goal) error {
	return a.doOn(ctx, c, refs, action, w, g, func(id string) (client.Answer[v2.Pod], error) { return c.ActPod(ctx, id, action) })
}

// doOn is act with what does the action on one pod.
func (a *app) doOn(
	ctx context.Context, c *client.Client, refs []string, action fleet.Trigger, w waiting, g goal, do func(id string) (client.Answer[v2.Pod], error),
) error {
	var done []v2.Pod
	err := pods.each(ctx, a, c, refs, func(id string) error {
		pod, err := do(id)
		if action == fleet.ActionStart {
			pod, err = a.startOnceStopped(ctx, c, id, pod, err, w.Timeout, do)
		}
		if err == nil && w.Wait {
			g := g
			g.incarnation = pod.Value.Incarnation
			pod, err = a.await(ctx, c, pod, g, w.Timeout)
		}
		if err != nil {
			return err
		}
		done = append(done, pod.Value)
		if !a.forPeople() {
			return a.showRaw(pod.Raw)
		}
		return nil
	})
	if ctx.Err() == nil && a.forPeople() && len(done) > 0 {
		return a.several([]error{err, a.page(podTable(done, a.now()))})
	}
	return err
}

// startOnceStopped takes the answer to a start. One that was refused because the pod is being stopped is made again when
// that is done.
func (a *app) startOnceStopped(
	ctx context.Context, c *client.Client, id string, started client.Answer[v2.Pod], refusal error, within time.Duration,
	start func(id string) (client.Answer[v2.Pod], error),
) (client.Answer[v2.Pod], error) {
	var problem *client.Problem
	if !errors.As(refusal, &problem) || problem.Status != http.StatusConflict {
		return started, refusal
	}
	pod, err := c.Pod(ctx, id)
	switch {
	case err != nil:
		return started, refusal
	case pod.Value.Status.Active() && pod.Value.StatusReason != "stopping" && pod.Value.InterruptedAt == nil:
		return started, refusal
	case pod.Value.Status.Active():
		_, _ = fmt.Fprintf(a.err, "pod %s is being stopped; it is started when that is done\n", printable(id))
		if _, err := a.await(ctx, c, pod, untilStopped(), within); err != nil {
			return started, err
		}
	}
	return start(id)
}

// named says which of several records an error is about, unless it does so itself.
func named(err error, ref string, of int) error {
	if err == nil || of == 1 || strings.Contains(err.Error(), ref) {
		return err
	}
	return fmt.Errorf("%s: %w", ref, err)
}

// several explains all errors but the last, which is returned.
func (a *app) several(faults []error) error {
	faults = slices.DeleteFunc(faults, func(err error) bool { return err == nil })
	if len(faults) == 0 {
		return nil
	}
	for _, err := range faults[:len(faults)-1] {
		a.explain(err)
	}
	return faults[len(faults)-1]
}

type podDeleteCmd struct {
	podRefs
	Force bool `short:"f" help:"Delete also pods that are locked."`
	confirmed
	waiting
}

// Run deletes pods.
func (cmd podDeleteCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return pods.each(ctx, a, c, cmd.Pods, func(id string) error {
		pod, err := c.Pod(ctx, id)
		if err == nil {
			err = cmd.allowed(ctx, a, pod.Value)
		}
		if err == nil {
			err = c.DeletePod(ctx, id)
		}
		if err == nil && cmd.Wait {
			err = a.awaitGone(ctx, c, id, cmd.Timeout)
		}
		if err != nil {
			return err
		}
		return a.done("deleted", id)
	})
}

// allowed asks for what must not be deleted by a slip.
func (cmd podDeleteCmd) allowed(ctx context.Context, a *app, pod v2.Pod) error {
	name := printable(first(pod.Name, pod.ID))
	switch {
	case pod.Status == fleet.StatusTerminated:
		return nil
	case pod.Locked && !cmd.Force:
		return &exitError{exitRefused, fmt.Errorf("pod %s is locked: gantry pod update %s --no-locked unlocks it, --force deletes it without", name, pod.ID)}
	}
	return cmd.ask(ctx, a, fmt.Sprintf("Delete pod %s (%s, %s) with its disk and log?", name, printable(pod.ID), pod.Status))
}

// awaitGone waits until a deleted pod's host has nothing of it any more, as far as the API tells.
func (a *app) awaitGone(ctx context.Context, c *client.Client, id string, within time.Duration) error {
	pod, err := c.Pod(ctx, id)
	if err == nil {
		_, err = a.await(ctx, c, pod, goal{
			reached: func(p v2.Pod) bool { return p.Status == fleet.StatusTerminated && p.StatusReason == "" },
		}, within)
	}
	var own *exitError
	if client.IsNotFound(err) && !errors.As(err, &own) {
		return nil
	}
	return err
}
