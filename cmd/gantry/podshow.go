package main

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
)

func podSheet(p v2.Pod) string {
	fields := [][2]string{
		{"Id", p.ID},
		{"Name", p.Name},
		{"Status", string(p.Status)},
		{"Reason", reasonText(p)},
		{"Condition", conditionText(p.Condition)},
		{"Exit code", number(p.ExitCode)},
		{"Progress", progressText(p.Progress)},
		{"Image", p.Image},
		{"Args", p.Args},
		{"Template", string(p.Template)},
		{"Registry", string(p.Registry)},
		{"Compute", compute(p)},
		{"CUDA", string(p.CUDAVersion)},
		{"Disk", fmt.Sprintf("%d GB", p.Disk)},
		{"Mounts", mountsText(p.Mounts)},
		{"Ports", strings.Join(p.Ports, ", ")},
	}
	for _, address := range portAddresses(p) {
		fields = append(fields, [2]string{"Address", address})
	}
	if p.SSH.Proxy != nil {
		fields = append(fields, [2]string{"SSH by proxy", p.SSH.Proxy.Command})
	}
	if p.SSH.Direct != nil {
		fields = append(fields, [2]string{"SSH", p.SSH.Direct.Command})
	}
	fields = append(fields, [][2]string{
		{"Network", networkText(p.GlobalNetworking)},
		{"Env", strings.Join(slices.Sorted(maps.Keys(p.Env)), ", ")}, // names alone: values are often secret
		{"Cloud", p.Cloud},
		{"Data center", string(p.DataCenterID)},
		{"Host", string(p.HostID)},
		{"Cost", dollars(p.Cost) + " per hour"},
		{"Locked", lockText(p.Locked)},
		{"Movable", movableText(p.Movable)},
		{"HTTP ports", httpText(p.PortSettings)},
		{"Interruptible", spotText(p)},
		{"Stops at", when(p.StopAfter)},
		{"Terminates at", when(p.TerminateAfter)},
		{"Actions", strings.Join(p.Actions, ", ")},
		{"Created", when(&p.CreatedAt)},
		{"Started", when(p.StartedAt)},
	}...)
	if p.Incarnation > 1 {
		fields = append(fields, [2]string{"Starts", fmt.Sprint(p.Incarnation)})
	}
	if r := p.Runtime; r != nil {
		fields = append(fields, [2]string{"Up", fmt.Sprint(time.Duration(r.Uptime) * time.Second)}, [2]string{"Use", useText(r)})
	}
	return sheet(fields) + logTail(p.LogTail)
}

// reasonText is a pod's reason, unless what its host does for it says the same.
func reasonText(p v2.Pod) string {
	if p.Progress != nil && p.Progress.Activity == string(p.StatusReason) {
		return ""
	}
	return string(p.StatusReason)
}

func number(n *int) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

func lockText(locked bool) string {
	if locked {
		return "yes: stop and restart are refused"
	}
	return ""
}

func movableText(movable bool) string {
	if movable {
		return "yes: a drain of its host moves it"
	}
	return ""
}

// conditionText shows what an operator does with the pod's host; empty when there is nothing.
func conditionText(n *v2.Condition) string {
	if n == nil {
		return ""
	}
	out := n.Text
	if n.StopsAt != nil {
		out += "; it is stopped at " + when(n.StopsAt) + " if it still runs there"
	}
	if n.Reason != "" {
		out += " (" + n.Reason + ")"
	}
	return out + ", since " + when(&n.Since)
}

// mountsText shows storage mounts; empty when there are none.
func mountsText(m v2.Mounts) string {
	var out []string
	if m.Persistent != nil {
		out = append(out, fmt.Sprintf("%d GB of the host at %s", m.Persistent.Size, m.Persistent.Path))
	}
	for _, n := range m.Network {
		out = append(out, fmt.Sprintf("network volume %s at %s", n.VolumeID, n.Path))
	}
	return strings.Join(out, ", ")
}

func networkText(n v2.GlobalNetworking) string {
	if !n.Enabled {
		return ""
	}
	return strings.TrimSpace(n.IP + " " + n.InternalDNS)
}

func useText(r *v2.Runtime) string {
	out := fmt.Sprintf("CPU %d %%, memory %d %%, disk %d %%", r.CPU.Util, r.Memory.Util, r.Disk.Util)
	for i, g := range r.GPUs {
		out += fmt.Sprintf(", GPU %d %d %% (memory %d %%)", i, g.Util, g.MemoryUtil)
	}
	return out
}

// portAddresses are where the ports of a pod that runs are reached.
func portAddresses(p v2.Pod) []string {
	if p.Runtime == nil {
		return nil
	}
	var out []string
	for _, m := range p.Runtime.Ports {
		if m.URL != "" {
			out = append(out, string(m.URL))
		}
		if m.Public != nil && m.IP != "" {
			out = append(out, fmt.Sprintf("%d/%s at %s", m.Private, m.Type, net.JoinHostPort(string(m.IP), fmt.Sprint(*m.Public))))
		}
	}
	return out
}

// portLines are portAddresses, a line each. Before the pod runs only those of http ports are known.
func portLines(p v2.Pod) string {
	out := ""
	for _, address := range portAddresses(p) {
		out += printable(address) + "\n"
	}
	if p.Runtime == nil {
		for _, url := range p.URLs {
			out += printable(url) + " (once it runs)\n"
		}
	}
	return out
}

func logTail[T ~string](text T) string {
	if strings.TrimSpace(string(text)) == "" {
		return ""
	}
	out := "Last lines of its log:\n"
	for _, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		out += "  " + printable(line) + "\n"
	}
	return out
}

// timeLine shows where each millisecond of a start went.
func timeLine(steps map[fleet.Step]v2.Time) string {
	order := []fleet.Step{
		fleet.StepCreated, fleet.StepReceived, fleet.StepPulling, fleet.StepDownloaded, fleet.StepPulled, fleet.StepNetworked,
		fleet.StepDefined, fleet.StepTasked, fleet.StepStarted, fleet.StepReported, fleet.StepRecorded,
	}
	var names []fleet.Step
	for name := range steps {
		names = append(names, name)
	}
	slices.SortFunc(names, func(x, y fleet.Step) int {
		if c := steps[x].Compare(steps[y].Time); c != 0 {
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
			took = ms(steps[name].Sub(steps[names[i-1]].Time))
		}
		rows = append(rows, []string{string(name), ms(steps[name].Sub(steps[names[0]].Time)), took, steps[name].UTC().Format("15:04:05.000")})
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
