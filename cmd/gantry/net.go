package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
)

type netCmd struct {
	List  viewCmd     `cmd:"" help:"List your private networks and the pods in them."`
	Check netCheckCmd `cmd:"" help:"Probe the connection between all pods of your private networks."`
	Show  netShowCmd  `cmd:"" operator:"" help:"Show a host's network: what it should be, what it is, and what it dropped (for operators)."`
}

func networksText(list v2.NetworkList) string {
	all := list.Networks
	if len(all) == 0 {
		return "There is no private network yet: the first pod with --global-networking makes one.\n"
	}
	var out []string
	for _, n := range all {
		text := sheet([][2]string{{"Network", n.ID}, {"Range", n.CIDR}, {"VXLAN id", fmt.Sprint(n.VXLANID)}, {"Pods", fmt.Sprint(len(n.Members))}})
		var rows [][]string
		for _, m := range n.Members {
			rows = append(rows, []string{m.PodID, m.Name, m.IP, m.InternalDNS})
		}
		if len(rows) > 0 {
			text += table([]string{"POD", "NAME", "ADDRESS", "INTERNAL NAME"}, rows)
		}
		out = append(out, text)
	}
	return strings.Join(out, "\n")
}

type netCheckCmd struct {
	Account string `placeholder:"ID" help:"Check the networks of this account (for operators)."`
}

// Run checks private networks.
func (cmd netCheckCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(cmd.Account != "")
	if err != nil {
		return err
	}
	defer c.Close()
	var check client.Answer[v2.NetworkCheck]
	names := map[string]string{}
	if cmd.Account != "" {
		check, err = c.CheckAccountNetwork(ctx, cmd.Account)
	} else if check, err = c.CheckNetwork(ctx); err == nil && a.forPeople() {
		names, err = podNames(ctx, c)
	}
	if err != nil {
		return err
	}
	if err := a.show(check.Raw, func() string { return checkText(check.Value.Probes, names) }); err != nil {
		return err
	}
	if failed := unanswered(check.Value.Probes); len(failed) > 0 {
		return &exitError{exitFailed, fmt.Errorf("%d of %s got no answer", len(failed), count(len(check.Value.Probes), "probe"))}
	}
	return nil
}

// podNames returns by id the names of the pods of private networks that only one of them has.
func podNames(ctx context.Context, c *client.Client) (map[string]string, error) {
	list, err := c.Networks(ctx)
	if err != nil {
		return nil, err
	}
	out, seen := map[string]string{}, map[string]string{}
	for _, n := range list.Value.Networks {
		for _, m := range n.Members {
			if other, twice := seen[m.Name]; twice && other != m.PodID {
				delete(out, other)
				continue
			}
			seen[m.Name], out[m.PodID] = m.PodID, m.Name
		}
	}
	return out, nil
}

func unanswered(all []v2.Probe) []v2.Probe {
	return slices.DeleteFunc(slices.Clone(all), func(p v2.Probe) bool { return p.OK })
}

// widestCheck is how many pods a matrix shows; of more, only what failed is shown.
const widestCheck = 10

// checkText shows a matrix of few pods, and below it what got no answer.
func checkText(all []v2.Probe, names map[string]string) string {
	if len(all) == 0 {
		return "There is nothing to check: no private network has two running pods.\n"
	}
	pods := probedPods(all)
	name := func(id string) string { return cmp.Or(names[id], id) }
	out := ""
	if len(pods) <= widestCheck {
		out = checkMatrix(all, pods, name)
	}
	for _, p := range unanswered(all) {
		out += printable(fmt.Sprintf("%s to %s (%s): %s", name(p.From), name(p.To), p.IP, p.Problem)) + "\n"
	}
	return out + fmt.Sprintf("%s, %s, %d answered\n", count(len(pods), "pod"), count(len(all), "probe"), len(all)-len(unanswered(all)))
}

// probedPods returns the pods of probes in the order of net list, by address.
func probedPods(all []v2.Probe) (out []string) {
	at := map[string]netip.Addr{} // of those that somebody looked for
	for _, p := range all {
		at[p.To], _ = netip.ParseAddr(p.IP)
		out = append(out, p.From, p.To)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(at[a].Compare(at[b]), strings.Compare(a, b)) })
	return out
}

func checkMatrix(all []v2.Probe, pods []string, name func(string) string) string {
	cells := map[[2]string]string{}
	for _, p := range all {
		cells[[2]string{p.From, p.To}] = "x"
		if p.OK && p.Millis != nil {
			cells[[2]string{p.From, p.To}] = fmt.Sprintf("%.3g", *p.Millis)
		}
	}
	heading, rows := []string{"MS FROM \\ TO"}, [][]string(nil)
	for _, from := range pods {
		heading = append(heading, name(from))
		row := []string{name(from)}
		for _, to := range pods {
			row = append(row, orDash(cells[[2]string{from, to}]))
		}
		rows = append(rows, row)
	}
	return table(heading, rows)
}

type netShowCmd struct {
	hostRef
	Text bool `help:"Also every object of the network: as it should be and is, with - what is missing and + what is too much."`
}

// Run shows a host's network.
func (cmd netShowCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return hosts.on(ctx, c, cmd.Host, func(id string) error {
		n, err := c.HostNetwork(ctx, id)
		return reply(a, n, err, func(n admin.HostNetwork) string { return hostNetworkText(n, a.now(), cmd.Text) })
	})
}

func hostNetworkText(n admin.HostNetwork, now time.Time, whole bool) string {
	state := "as it should be"
	if len(n.Steps) > 0 {
		state = count(len(n.Steps), "step") + " away from what it should be"
	}
	tunnel := map[string]string{"kernel": "WireGuard of the kernel", "user space": "WireGuard in a process, since the kernel has none", "none": "none: other hosts are reached where the underlay is private, if at all"}[n.Tunnel]
	out := sheet([][2]string{{"Network", state}, {"Tunnel", first(tunnel, n.Tunnel)}})
	for _, p := range n.Problems {
		out += "Problem: " + printable(p) + "\n"
	}
	for _, s := range n.Steps {
		out += "To do: " + printable(s) + "\n"
	}
	if len(n.Tunnels) > 0 {
		out += "\n" + tunnelTable(n.Tunnels, now)
	}
	if len(n.Drops) > 0 {
		out += "\n" + dropTable(n.Drops)
	}
	if whole {
		out += "\n" + bothText(n.Desired, n.Real)
	}
	return out
}

func tunnelTable(all []admin.HostTunnel, now time.Time) string {
	var rows [][]string
	for _, t := range all {
		how, shaken := "encrypted", "never"
		if t.Handshake != nil {
			shaken = age(now, t.Handshake.Time) + " ago"
		}
		if t.Plain {
			how, shaken = "plain", "-"
		}
		rows = append(rows, []string{t.HostID, t.Addr, orDash(t.Endpoint), how, shaken, bytesText(t.Received), bytesText(t.Sent)})
	}
	return table([]string{"TO HOST", "ADDRESS", "HEARD FROM", "HOW", "HANDSHAKE", "RECEIVED", "SENT"}, rows)
}

// dropMeanings say what a host's words for dropped packets mean; docs/networking.md says more of each.
var dropMeanings = map[string]string{
	"spoofed":   "from a pod, with a source that is not its own",
	"flooded":   "from a pod, a broadcast or a request for an address that no pod has",
	"foreign":   "another protocol, or from or to what is not in the network",
	"host":      "from a pod, to the host itself",
	"denied":    "from a pod, to a range or port that pods must not reach",
	"closed":    "from a pod, out of an account without egress",
	"scheduler": "from a pod, to the port at which hosts reach a scheduler",
	"unasked":   "to a pod, from outside, that it had not asked for",
	"crowded":   "a new connection of a pod, or to one, that has as many as the host tracks for it",
}

func dropTable(all []admin.HostDrop) string {
	var rows [][]string
	for _, d := range all {
		rows = append(rows, []string{d.Why, fmt.Sprint(d.Packets), bytesText(int64(min(d.Bytes, 1<<62))), orDash(dropMeanings[d.Why])})
	}
	return table([]string{"DROPPED", "PACKETS", "BYTES", "WHAT"}, rows)
}

// bothText shows the lines of both texts in order: those of desired alone with -, those of real alone with +.
func bothText(desired, real string) string {
	lines := func(text string) []string {
		return slices.DeleteFunc(strings.Split(text, "\n"), func(s string) bool { return strings.TrimSpace(s) == "" })
	}
	want, have := lines(desired), lines(real)
	out := &strings.Builder{}
	put := func(mark, line string) { fmt.Fprintf(out, "%s %s\n", mark, printable(line)) }
	for _, line := range want {
		i := slices.Index(have, line)
		if i < 0 {
			put("-", line)
			continue
		}
		for _, extra := range have[:i] {
			put("+", extra)
		}
		have = have[i+1:]
		put(" ", line)
	}
	for _, extra := range have {
		put("+", extra)
	}
	return out.String()
}
