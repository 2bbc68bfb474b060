package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/client"
	"gantry/fleet"
)

type podCmd struct {
	Create  podCreateCmd  `cmd:"" help:"Create a pod, which starts at once."`
	List    podListCmd    `cmd:"" help:"List your pods."`
	Get     podGetCmd     `cmd:"" help:"Show a pod; with -v where the time of its start went."`
	Logs    podLogsCmd    `cmd:"" help:"Show a pod's log, and follow it with -f."`
	Stop    podStopCmd    `cmd:"" help:"Stop pods: their GPUs become free, their record stays."`
	Start   podStartCmd   `cmd:"" help:"Start stopped or failed pods again, with a fresh container."`
	Restart podRestartCmd `cmd:"" help:"Restart the containers of running pods."`
	Delete  podDeleteCmd  `cmd:"" help:"Terminate pods for good."`
}

type podListCmd struct{}

func (podListCmd) Help() string {
	return `Examples:

    gantry pod list
    gantry pod list -o json | jq -r '.pods[] | select(.status=="RUNNING").id'`
}

// Run lists pods.
func (podListCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Pods(ctx)
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string { return podTable(list.Value.Pods, a.now()) })
}

func podTable(pods []client.Pod, now time.Time) string {
	var rows [][]string
	for _, p := range pods {
		rows = append(rows, []string{
			p.ID, p.Name, statusText(p), compute(p), p.Image, orDash(strings.Join(p.Ports, ",")),
			orDash(p.DataCenterID), dollars(p.Cost), age(now, p.CreatedAt),
		})
	}
	return table([]string{"ID", "NAME", "STATUS", "COMPUTE", "IMAGE", "PORTS", "CENTER", "COST/H", "AGE"}, rows)
}

// statusText shows a status, and the one reason that changes what it means.
func statusText(p client.Pod) string {
	if p.StatusReason == "stopping" {
		return string(p.Status) + " (stopping)"
	}
	return string(p.Status)
}

func compute(p client.Pod) string {
	switch {
	case p.GPU != nil:
		return fmt.Sprintf("%d × %s", p.GPU.Count, p.GPU.ID)
	case p.CPU != nil && p.CPU.Memory > 0:
		return fmt.Sprintf("%s %d vCPU %g GB", p.CPU.ID, p.CPU.VCPUCount, p.CPU.Memory)
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

// find returns the id that a person's word for a pod means.
func find(ctx context.Context, c *client.Client, text string) (string, error) {
	list, err := c.Pods(ctx)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, p := range list.Value.Pods {
		if p.ID == text {
			return p.ID, nil
		}
		if p.Name == text {
			ids = append(ids, p.ID)
		}
	}
	switch len(ids) {
	case 1:
		return ids[0], nil
	case 0:
		return "", &exitError{exitNotFound, fmt.Errorf("no pod has the id or name %s", text)}
	default:
		return "", usage("%d pods have the name %s: say which by its id: %s", len(ids), text, strings.Join(ids, ", "))
	}
}

// onPod calls f with the id that text means. Text that has the form of an id is tried as one first, so that it costs
// one call.
func onPod(ctx context.Context, c *client.Client, text string, f func(id string) error) error {
	if fleet.ValidID(text) {
		err := f(text)
		if !client.IsNotFound(err) {
			return err
		}
		id, findErr := find(ctx, c, text)
		if findErr != nil || id == text {
			return err
		}
		return f(id)
	}
	id, err := find(ctx, c, text)
	if err != nil {
		return err
	}
	return f(id)
}

type podGetCmd struct {
	podRef
	Verbose bool `short:"v" help:"Show every step of the start with its time."`
}

func (podGetCmd) Help() string {
	return `Examples:

    gantry pod get web
    gantry pod get web -v
    gantry pod get web -o json | jq .runtime`
}

// Run shows a pod.
func (cmd podGetCmd) Run(ctx context.Context, a *app) error {
	c, conn, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	return onPod(ctx, c, cmd.Pod, func(id string) error {
		pod, err := c.Pod(ctx, id)
		if err != nil {
			return err
		}
		return a.show(pod.Raw, func() string {
			text := podSheet(pod.Value, conn)
			if cmd.Verbose {
				text += "\n" + timeLine(pod.Value.Steps)
			}
			return text
		})
	})
}

func podSheet(p client.Pod, conn connection) string {
	exit := ""
	if p.ExitCode != nil {
		exit = fmt.Sprint(*p.ExitCode)
	}
	fields := [][2]string{
		{"Id", p.ID},
		{"Name", p.Name},
		{"Status", string(p.Status)},
		{"Reason", p.StatusReason},
		{"Exit code", exit},
		{"Doing", progressText(p.Progress)},
		{"Image", p.Image},
		{"Args", p.Args},
		{"Compute", compute(p)},
		{"Disk", fmt.Sprintf("%d GB", p.Disk)},
		{"Ports", strings.Join(p.Ports, ", ")},
	}
	for _, port := range p.Ports {
		if address := portAddress(p.ID, port, conn); address != "" {
			fields = append(fields, [2]string{"Address", address})
		}
	}
	var names []string
	for name := range p.Env {
		names = append(names, name)
	}
	slices.Sort(names)
	fields = append(fields, [][2]string{
		{"Env", strings.Join(names, ", ")}, // names alone: values are often secret
		{"Cloud", p.Cloud},
		{"Data center", p.DataCenterID},
		{"Host", p.HostID},
		{"Cost", dollars(p.Cost) + " per hour"},
		{"Can", strings.Join(p.Actions, ", ")},
		{"Created", when(&p.CreatedAt)},
		{"Started", when(p.StartedAt)},
	}...)
	if p.Incarnation > 1 {
		fields = append(fields, [2]string{"Starts", fmt.Sprint(p.Incarnation)})
	}
	if r := p.Runtime; r != nil {
		fields = append(fields, [2]string{"Up", fmt.Sprint(time.Duration(r.Uptime) * time.Second)},
			[2]string{"Use", fmt.Sprintf("CPU %d %%, memory %d %%", r.CPU.Util, r.Memory.Util)})
	}
	return sheet(fields) + logTail(p.LogTail)
}

// portAddress is where an http port of a pod is reached, as far as this command line knows it.
func portAddress(id, port string, conn connection) string {
	number, isHTTP := strings.CutSuffix(port, "/http")
	if !isHTTP || conn.dev.ProxyDomain == "" {
		return ""
	}
	at := strings.LastIndexByte(conn.dev.API, ':')
	return fmt.Sprintf("http://%s-%s.%s%s/", id, number, conn.dev.ProxyDomain, conn.dev.API[at:])
}

func logTail(text string) string {
	if strings.TrimSpace(text) == "" {
		return ""
	}
	out := "Last lines of its log:\n"
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		out += "  " + printable(line) + "\n"
	}
	return out
}

// timeLine shows where each millisecond of a start went.
func timeLine(steps map[fleet.Step]time.Time) string {
	order := []fleet.Step{
		fleet.StepCreated, fleet.StepReceived, fleet.StepPulling, fleet.StepPulled, fleet.StepNetworked,
		fleet.StepDefined, fleet.StepTasked, fleet.StepStarted, fleet.StepReported, fleet.StepRecorded,
	}
	var names []fleet.Step
	for name := range steps {
		names = append(names, name)
	}
	slices.SortFunc(names, func(x, y fleet.Step) int {
		if c := steps[x].Compare(steps[y]); c != 0 {
			return c
		}
		return slices.Index(order, x) - slices.Index(order, y)
	})
	if len(names) == 0 {
		return "No step of a start is recorded.\n"
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }
	rows := [][]string{{"STEP", "AT MS", "TOOK MS", "CLOCK"}}
	for i, name := range names {
		took := "-"
		if i > 0 {
			took = ms(steps[name].Sub(steps[names[i-1]]))
		}
		rows = append(rows, []string{string(name), ms(steps[name].Sub(steps[names[0]])), took, steps[name].UTC().Format("15:04:05.000")})
	}
	alignRight(rows, 1, 2)
	return table(rows[0], rows[1:])
}

// alignRight pads columns so that their ends align.
func alignRight(rows [][]string, columns ...int) {
	for _, c := range columns {
		width := 0
		for _, row := range rows {
			width = max(width, len(row[c]))
		}
		for _, row := range rows {
			row[c] = fmt.Sprintf("%*s", width, row[c])
		}
	}
}

// podRefs are several pods on the command line.
type podRefs struct {
	Pods []string `arg:"" placeholder:"POD" help:"Ids of pods, or names where only one pod has them."`
}

// waiting is how a command waits for its pods.
type waiting struct {
	Wait    bool          `help:"Wait until it is done, and show the progress."`
	Timeout time.Duration `default:"15m" help:"Give up waiting after this time."`
}

type podStopCmd struct {
	podRefs
	waiting
}

func (podStopCmd) Help() string {
	return `The container gets SIGTERM, and SIGKILL after a grace period of 10 seconds.

Examples:

    gantry pod stop web
    gantry pod stop web train --wait`
}

// Run stops pods.
func (cmd podStopCmd) Run(ctx context.Context, a *app) error {
	return a.act(ctx, cmd.Pods, fleet.ActionStop, cmd.waiting, goal{
		reached: func(p client.Pod) bool {
			return p.Status == fleet.StatusExited || p.Status == fleet.StatusError
		},
		lost: []fleet.PodStatus{fleet.StatusTerminated},
	})
}

type podStartCmd struct {
	podRefs
	waiting
}

func (podStartCmd) Help() string {
	return `Example:

    gantry pod start web --wait`
}

// Run starts pods.
func (cmd podStartCmd) Run(ctx context.Context, a *app) error {
	return a.act(ctx, cmd.Pods, fleet.ActionStart, cmd.waiting, untilRunning())
}

type podRestartCmd struct {
	podRefs
	waiting
}

func (podRestartCmd) Help() string {
	return `Example:

    gantry pod restart web --wait`
}

// Run restarts pods.
func (cmd podRestartCmd) Run(ctx context.Context, a *app) error {
	return a.act(ctx, cmd.Pods, fleet.ActionRestart, cmd.waiting, untilRunning())
}

// act does an action on each pod and shows their records. A pod that refuses does not keep the others from theirs.
func (a *app) act(ctx context.Context, refs []string, action fleet.Trigger, w waiting, g goal) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	var faults []error
	var pods []client.Pod
	for _, ref := range refs {
		err := onPod(ctx, c, ref, func(id string) error {
			pod, err := c.ActPod(ctx, id, action)
			if err != nil {
				return err
			}
			if w.Wait {
				g := g
				g.incarnation = pod.Value.Incarnation
				if pod, err = a.await(ctx, c, pod, g, w.Timeout); err != nil {
					return err
				}
			}
			pods = append(pods, pod.Value)
			if a.cli.Output == "json" {
				return a.showJSON(pod.Raw)
			}
			return nil
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		faults = append(faults, named(err, ref, len(refs)))
	}
	if a.cli.Output != "json" && len(pods) > 0 {
		_, err := a.out.Write([]byte(podTable(pods, a.now())))
		faults = append(faults, err)
	}
	return a.several(faults)
}

// named says which of several pods an error is about.
func named(err error, ref string, of int) error {
	if err == nil || of == 1 {
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
	waiting
}

func (podDeleteCmd) Help() string {
	return `A pod that runs is stopped first. Its log and its disk are gone with it.

Examples:

    gantry pod delete web
    gantry pod delete web train --wait`
}

// Run deletes pods.
func (cmd podDeleteCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	var faults []error
	for _, ref := range cmd.Pods {
		err := onPod(ctx, c, ref, func(id string) error {
			if err := c.DeletePod(ctx, id); err != nil {
				return err
			}
			if cmd.Wait {
				if err := a.awaitGone(ctx, c, id, cmd.Timeout); err != nil {
					return err
				}
			}
			if a.cli.Output == "json" {
				return nil // the API says nothing
			}
			_, err := fmt.Fprintf(a.out, "deleted %s\n", id)
			return err
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		faults = append(faults, named(err, ref, len(cmd.Pods)))
	}
	return a.several(faults)
}

// awaitGone waits until a deleted pod's host has nothing of it any more, as far as the API tells.
func (a *app) awaitGone(ctx context.Context, c *client.Client, id string, within time.Duration) error {
	pod, err := c.Pod(ctx, id)
	if err == nil {
		_, err = a.await(ctx, c, pod, goal{
			reached: func(p client.Pod) bool { return p.Status == fleet.StatusTerminated && p.StatusReason == "" },
		}, within)
	}
	var own *exitError
	if client.IsNotFound(err) && !errors.As(err, &own) {
		return nil
	}
	return err
}
