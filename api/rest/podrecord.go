package rest

import (
	"strconv"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
)

const textUnreachable = "the pod's host cannot be reached; the pod may still run there"

// podRecord shows a pod as of now.
func podRecord(v *fleet.PodView, now time.Time) v2.Pod {
	p := v.Pod
	out := v2.Pod{
		ID: string(p.ID), Name: p.Spec.Name, Status: p.Status, Actions: []string{},
		Image: p.Spec.Image, Args: p.Spec.Args, Disk: p.Spec.DiskGB, Ports: []string{}, Env: p.Spec.Env,
		Registry: v2.Text(p.Spec.Registry), Mounts: mountsOf(&p.Spec), Template: v2.Text(p.Spec.Template),
		Cloud: string(p.Spec.Cloud), DataCenterID: v2.Text(p.DataCenter), Locked: p.Locked, CUDAVersion: cudaOf(p.Spec.CUDA),
		CreatedAt: v2.At(p.CreatedAt), StartedAt: v2.AtOrNull(p.StartedAt), SSH: sshOf(v),
		URLs: urlsOf(v), Movable: p.Spec.Movable, Condition: conditionOf(v),
		StatusReason: statusReason(v), ExitCode: p.ExitCode, Incarnation: p.Incarnation,
		HostID: v2.Text(p.Host), Steps: stepsOf(p.Steps), Runtime: runtimeOf(v, gaugesOf(nil, v, now)), Progress: progressOf(v), GlobalNetworking: globalNetworking(v), Cluster: placeInCluster(v),
		Cost: costOf(p).USD(),
	}
	if s := p.Spec.Spot; s != nil {
		out.Interruptible, out.BidPerGPU, out.Return, out.InterruptedAt = true, new(s.Bid.USD()), s.Return, v2.AtOrNull(p.Interrupted)
	}
	out.StopAfter, out.TerminateAfter = v2.AtOrNull(p.Spec.StopAfter), v2.AtOrNull(p.Spec.TerminateAfter)
	for _, a := range fleet.AllowedActions(p.Status, p.Goal) {
		out.Actions = append(out.Actions, string(a))
	}
	for _, port := range p.Spec.Ports {
		out.Ports = append(out.Ports, strconv.Itoa(port.Number)+"/"+port.Protocol)
	}
	for _, one := range p.Spec.HTTP {
		access := v2.AccessPublic
		if one.Keyed {
			access = v2.AccessKey
		}
		out.PortSettings = append(out.PortSettings, v2.PortSetting{Port: one.Port, Access: access, Timeout: one.Most})
	}
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	if g := p.Spec.GPU; g != nil {
		out.GPU = &v2.GPUConfig{ID: g.Type, Count: g.Count}
	} else if c := p.Spec.CPU; c != nil {
		out.CPU = &v2.CPUConfig{ID: c.Flavor, VCPUCount: c.VCPU, Memory: c.MemoryGB}
	}
	if p.Status == fleet.StatusError {
		out.LogTail = v2.Text(p.LogTail)
	}
	return out
}

func stepsOf(steps map[fleet.Step]time.Time) map[fleet.Step]v2.Time {
	out := make(map[fleet.Step]v2.Time, len(steps))
	for step, at := range steps {
		out[step] = v2.At(at)
	}
	return out
}

// costOf is what a pod costs per hour now.
func costOf(p *fleet.Pod) fleet.Money {
	if p.Status.Active() && !p.Stopping() && p.Waiting.IsZero() {
		return p.HourlyRate
	}
	return 0
}

// cudaOf shows which CUDA version was asked for, where that is one.
func cudaOf(r *fleet.CUDARange) v2.Text {
	switch {
	case r == nil:
		return ""
	case len(r.Allowed) == 1:
		return v2.Text(r.Allowed[0])
	}
	return v2.Text(r.Min)
}

func statusReason(v *fleet.PodView) v2.Text {
	switch {
	case v.Pod.Stopping() && v.Pod.Interrupted.IsZero():
		return "stopping"
	case v.Unreachable && v.Pod.Status.Active():
		return textUnreachable
	}
	return v2.Text(v.Reason)
}

// conditionOf is null unless the pod's host is being drained.
func conditionOf(v *fleet.PodView) *v2.Condition {
	d, p := v.Drain, v.Pod
	if d == nil {
		return nil
	}
	out := &v2.Condition{Reason: d.Reason, Since: v2.At(d.Since), StopsAt: v2.AtOrNull(d.Deadline)}
	switch {
	case p.Moving:
		out.Text, out.StopsAt = "the pod's host is being drained: the pod is being moved to another, where its place is reserved", nil
	case !p.Status.Active():
		out.Text, out.StopsAt = "the pod's host is being drained: the pod, whose data is there, cannot start until the drain ends", nil
	case p.MayMove():
		out.Text = "the pod's host is being drained: the pod is moved to another as soon as one has room"
	default:
		out.Text = "the pod's host is being drained: the pod runs on until it ends, and cannot start there again until the drain ends"
	}
	return out
}

// progressOf is null unless the pod is on its way and its host is heard.
func progressOf(v *fleet.PodView) *v2.Progress {
	starting := v.Pod.Status == fleet.StatusProvisioning || v.Pod.Status == fleet.StatusStarting
	if v.Live == nil || !starting || v.Unreachable {
		return nil
	}
	return &v2.Progress{Activity: v.Live.Activity, PullDone: v.Live.PullDone, PullTotal: v.Live.PullTotal}
}

// gaugesOf appends the numbers of v2.Runtime that change by themselves, in its order: what is live of a pod that runs on a host that can be
// reached. Of another pod there are none. Measures that the host has not sent yet are 0.
func gaugesOf(dst []int64, v *fleet.PodView, now time.Time) []int64 {
	if v.Pod.Status != fleet.StatusRunning || v.Unreachable {
		return dst
	}
	live, uptime := v.Live, int64(0)
	if live == nil {
		live = &fleet.Live{}
	}
	if since := v.Pod.StartedAt; !since.IsZero() {
		uptime = max(0, int64(now.Sub(since)/time.Second))
	}
	dst = append(dst, uptime)
	for i := range v.Pod.GPUs {
		var g fleet.GPUUse
		if i < len(live.GPUs) {
			g = live.GPUs[i]
		}
		dst = append(dst, percent(g.Util), percent(g.MemoryUtil))
	}
	return append(dst, percent(live.CPUPercent), percent(live.MemoryPercent), percent(live.DiskPercent))
}

// runtimeOf shows a pod's gauges and ports; nil when it has no gauges.
func runtimeOf(v *fleet.PodView, gauges []int64) *v2.Runtime {
	if len(gauges) == 0 {
		return nil
	}
	out := &v2.Runtime{Uptime: gauges[0], GPUs: make([]v2.GPUUse, len(v.Pod.GPUs)), Ports: []v2.RuntimePort{}}
	gauges = gauges[1:]
	for i := range out.GPUs {
		out.GPUs[i] = v2.GPUUse{Util: int(gauges[2*i]), MemoryUtil: int(gauges[2*i+1])}
	}
	gauges = gauges[2*len(out.GPUs):]
	out.CPU.Util, out.Memory.Util, out.Disk.Util = int(gauges[0]), int(gauges[1]), int(gauges[2])
	for _, port := range v.Pod.Spec.Ports {
		out.Ports = append(out.Ports, runtimePort(v, port))
	}
	return out
}

// urlOf is where an http port is reached; empty: nowhere.
func urlOf(v *fleet.PodView, port fleet.Port) string {
	scheme, domain, ok := strings.Cut(v.ProxyURL, "://")
	if !ok || port.Protocol != "http" || v.Pod.ID == "" {
		return ""
	}
	return scheme + "://" + string(v.Pod.ID) + "-" + strconv.Itoa(port.Number) + "." + domain + "/"
}

func urlsOf(v *fleet.PodView) []string {
	out := []string{}
	for _, port := range v.Pod.Spec.Ports {
		if url := urlOf(v, port); url != "" {
			out = append(out, url)
		}
	}
	return out
}

// runtimePort shows a port with its public one: only tcp ports have one, where the host publishes ports.
func runtimePort(v *fleet.PodView, port fleet.Port) v2.RuntimePort {
	out := v2.RuntimePort{Private: port.Number, Type: port.Protocol}
	out.URL = v2.Text(urlOf(v, port))
	if public := publicPort(v, port); public != 0 {
		out.Private = fleet.PortMapping{Private: port.Number, Public: public}.Inside()
		out.Public, out.IP, out.IsIPPublic = &public, v2.Text(v.PublicIP), true
	}
	return out
}

// publicPort returns 0 when the port has none.
func publicPort(v *fleet.PodView, port fleet.Port) int {
	if port.Protocol != "tcp" || v.PublicIP == "" {
		return 0
	}
	for _, m := range v.Pod.Mappings {
		if m.Private == port.Number {
			return m.Public
		}
	}
	return 0
}

// sshPort is the port at which a pod's SSH server listens.
const sshPort = 22

// sshOf tells the ways to log in: directly, when the pod runs and its port 22/tcp is published.
func sshOf(v *fleet.PodView) v2.SSH {
	public := publicPort(v, fleet.Port{Number: sshPort, Protocol: "tcp"})
	if v.Pod.Status != fleet.StatusRunning || v.Unreachable || public == 0 {
		return v2.SSH{}
	}
	return v2.SSH{Direct: &v2.SSHAddress{
		Host: v.PublicIP, Port: public, Username: "root", Command: "ssh root@" + v.PublicIP + " -p " + strconv.Itoa(public),
	}}
}

func percent(n int) int64 { return int64(min(max(n, 0), 100)) }

// portTexts shows ports as the API writes them.
func portTexts(ports []fleet.Port) []string {
	out := []string{}
	for _, p := range ports {
		out = append(out, strconv.Itoa(p.Number)+"/"+p.Protocol)
	}
	return out
}
