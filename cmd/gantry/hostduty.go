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

// hostsOf lists the hosts for findThing.
func hostsOf(ctx context.Context, c *client.Client) func() ([]thing, error) {
	return func() ([]thing, error) {
		list, err := c.Hosts(ctx)
		var out []thing
		for _, h := range list.Value.Hosts {
			out = append(out, thing{h.ID, h.Name})
		}
		return out, err
	}
}

// on calls f with a client and the host's id.
func (ref hostRef) on(ctx context.Context, a *app, f func(c *client.Client, id string) error) error {
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	return onThing("host", ref.Host, hostsOf(ctx, c), func(id string) error { return f(c, id) })
}

// do makes one call about the host and shows its record.
func (ref hostRef) do(
	ctx context.Context, a *app, f func(*client.Client, context.Context, string) (client.Answer[admin.Host], error), show func(admin.Host) string,
) error {
	return ref.on(ctx, a, func(c *client.Client, id string) error {
		host, err := f(c, ctx, id)
		if err != nil {
			return err
		}
		return a.show(host.Raw, func() string { return show(host.Value) })
	})
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

type hostPodsCmd struct{ hostRef }

// Run lists the pods of a host.
func (cmd hostPodsCmd) Run(ctx context.Context, a *app) error {
	return cmd.on(ctx, a, func(c *client.Client, id string) error {
		list, err := c.HostPods(ctx, id)
		if err != nil {
			return err
		}
		return a.show(list.Raw, func() string {
			var rows [][]string
			for _, p := range list.Value.Pods {
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
func (cmd hostLabelCmd) Run(ctx context.Context, a *app) error {
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
	return cmd.do(ctx, a, func(c *client.Client, ctx context.Context, id string) (client.Answer[admin.Host], error) {
		return c.SetHostLabels(ctx, id, changes)
	}, func(h admin.Host) string {
		return fmt.Sprintf("%s (%s) has the labels: %s\n", printable(h.ID), printable(h.Name), printable(orDash(labelsText(h.Labels))))
	})
}

type hostCordonCmd struct{ hostRef }

// Run cordons a host.
func (cmd hostCordonCmd) Run(ctx context.Context, a *app) error {
	return cmd.do(ctx, a, (*client.Client).CordonHost, sayState)
}

type hostUncordonCmd struct{ hostRef }

// Run opens a host again.
func (cmd hostUncordonCmd) Run(ctx context.Context, a *app) error {
	return cmd.do(ctx, a, (*client.Client).UncordonHost, sayState)
}

type hostAckCmd struct{ hostRef }

// Run ends an alarm.
func (cmd hostAckCmd) Run(ctx context.Context, a *app) error {
	return cmd.do(ctx, a, (*client.Client).AckHostAlarm, func(h admin.Host) string {
		return fmt.Sprintf("%s (%s) has no alarm\n", printable(h.ID), printable(h.Name))
	})
}

type hostFenceCmd struct {
	hostRef
	confirmed
}

// Run fences a host.
func (cmd hostFenceCmd) Run(ctx context.Context, a *app) error {
	return cmd.do(ctx, a, func(c *client.Client, ctx context.Context, id string) (client.Answer[admin.Host], error) {
		host, err := c.Host(ctx, id)
		if err == nil {
			err = cmd.confirm(ctx, a, "Is "+hostText(host.Value)+" switched off, so that nothing runs there any more?")
		}
		if err != nil {
			return host, err
		}
		return c.FenceHost(ctx, id)
	}, sayState)
}

type hostRemoveCmd struct {
	hostRef
	confirmed
}

// Run removes a host.
func (cmd hostRemoveCmd) Run(ctx context.Context, a *app) error {
	return cmd.on(ctx, a, func(c *client.Client, id string) error {
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
