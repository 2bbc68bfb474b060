package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gantry/api/admin"
	"gantry/client"
)

// hostRef names a host.
type hostRef struct {
	Host string `arg:"" placeholder:"HOST" help:"Id of the host, or its name where only one host has it."`
}

// hostText names a host in a question about it.
func hostText(h admin.Host) string {
	return printable(fmt.Sprintf("host %s (%s, %s, %s)", h.Name, h.ID, h.State, count(h.Pods, "pod")))
}

// sayState tells what a host is now.
func sayState(h admin.Host) string {
	return fmt.Sprintf("%s (%s) is %s\n", printable(h.ID), printable(h.Name), printable(string(h.State)))
}

func labelsText(labels admin.Labels) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, name+"="+labels[name])
	}
	return strings.Join(out, ", ")
}

// hostPods lists the pods of a host.
func hostPods(ctx context.Context, a *app, c *client.Client, ref string) error {
	return hosts.on(ctx, c, ref, func(id string) error {
		list, err := c.HostPods(ctx, id)
		return reply(a, list, err, func(l admin.HostPodList) string {
			var rows [][]string
			for _, p := range l.Pods {
				rows = append(rows, []string{p.ID, p.AccountID, string(p.Status), fmt.Sprint(p.GPUs), yes(p.Moving), orDash(p.Waits)})
			}
			return table([]string{"ID", "ACCOUNT", "STATUS", "GPUS", "MOVING", "A DRAIN WAITS BECAUSE"}, rows)
		})
	})
}

type hostLabelCmd struct {
	hostRef
	Changes []string `arg:"" name:"change" placeholder:"CHANGE" help:"K=V sets a label, K- removes one."`
}

// Run changes labels.
func (cmd hostLabelCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	changes, both := map[string]*string{}, func(name string) error {
		return usage("the label %s is both set and removed", printable(name))
	}
	for _, change := range cmd.Changes {
		name, value, ok := strings.Cut(change, "=")
		bare, removes := strings.CutSuffix(change, "-")
		switch {
		case ok && name != "":
			if was, there := changes[name]; there && was == nil {
				return both(name)
			}
			changes[name] = &value
		case !ok && removes && bare != "":
			if changes[bare] != nil {
				return both(bare)
			}
			changes[bare] = nil
		default:
			return usage("a change must be K=V or K-, not %s", printable(change))
		}
	}
	return hosts.on(ctx, c, cmd.Host, func(id string) error {
		host, err := c.SetHostLabels(ctx, id, changes)
		return reply(a, host, err, func(h admin.Host) string {
			return fmt.Sprintf("%s (%s) has the labels: %s\n", printable(h.ID), printable(h.Name), printable(orDash(labelsText(h.Labels))))
		})
	})
}

type hostFenceCmd struct {
	hostRef
	confirmed
}

// Run fences a host.
func (cmd hostFenceCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return hosts.on(ctx, c, cmd.Host, func(id string) error {
		host, err := c.Host(ctx, id)
		if err == nil {
			err = cmd.confirm(ctx, a, "Is "+hostText(host.Value)+" switched off, so that nothing runs there any more?")
		}
		if err == nil {
			host, err = c.FenceHost(ctx, id)
		}
		return reply(a, host, err, sayState)
	})
}

type hostRemoveCmd struct {
	hostRef
	confirmed
}

// Run removes a host.
func (cmd hostRemoveCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return hosts.on(ctx, c, cmd.Host, func(id string) error {
		host, err := c.Host(ctx, id)
		if err == nil {
			err = cmd.confirm(ctx, a, "Remove "+hostText(host.Value)+" for good? To come back, it has to join again.")
		}
		if err == nil {
			err = c.RemoveHost(ctx, id)
		}
		if err != nil {
			return err
		}
		return a.done("removed", id)
	})
}
