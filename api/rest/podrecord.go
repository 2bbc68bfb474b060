package rest

import (
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/fleet"
)

// Pod is a pod's record as the contract shows it. Members that may be null are always there.
type Pod struct {
	ID               string            `json:"id" doc:"Pod identifier." example:"k3n8w0zq5r7d2a"`
	Name             string            `json:"name" doc:"Name of the pod."`
	Status           string            `json:"status" doc:"Life-cycle status." enum:"PROVISIONING,STARTING,RUNNING,EXITED,ERROR,TERMINATED"`
	Actions          []string          `json:"actions" doc:"Actions that are allowed now." enum:"start,stop,restart,terminate"`
	Image            string            `json:"image" doc:"Image reference."`
	Args             string            `json:"args" doc:"Arguments; empty when the image's own command runs."`
	Disk             int               `json:"disk" doc:"Container disk in GB, wiped at every start." minimum:"1"`
	Ports            []string          `json:"ports" doc:"Exposed ports, each number/protocol."`
	Env              map[string]string `json:"env" doc:"Environment variables."`
	Registry         *string           `json:"registry" doc:"Registry credential, or null."`
	Mounts           Mounts            `json:"mounts" doc:"Storage mounts; {} when there are none."`
	GPU              *GPUConfig        `json:"gpu,omitempty" doc:"GPUs; on GPU pods only."`
	CPU              *CPUConfig        `json:"cpu,omitempty" doc:"vCPUs; on CPU pods only."`
	Cloud            string            `json:"cloud" doc:"Tier of hosts." enum:"SECURE,COMMUNITY"`
	DataCenterID     *string           `json:"dataCenterId" doc:"Data center of the pod, or null."`
	Template         *string           `json:"template" doc:"Template that the pod was created from, or null."`
	Cost             float64           `json:"cost" doc:"Present cost in USD per hour; 0 while nothing is charged." minimum:"0"`
	Locked           bool              `json:"locked" doc:"When true, stop and restart are refused."`
	GlobalNetworking GlobalNetworking  `json:"globalNetworking" doc:"State of global networking."`
	Runtime          *Runtime          `json:"runtime" doc:"Live measures; null unless the pod is RUNNING on a host that can be reached."`
	CreatedAt        Time              `json:"createdAt" doc:"When the pod was created."`
	StartedAt        *Time             `json:"startedAt" doc:"When its present or last container started; null before."`
	CUDAVersion      *string           `json:"cudaVersion" doc:"CUDA version asked for: the least one, or the only one allowed; null otherwise."`
	SSH              SSH               `json:"ssh" doc:"Ways to log in."`

	Movable      bool            `json:"movable" doc:"Whether a drain of its host may move it."`
	Notice       *Notice         `json:"notice" doc:"What a drain of its host does with it, or null."`
	StatusReason *string         `json:"statusReason" doc:"One sentence on why the pod is as it is, or null. \"stopping\" while a stop is under way."`
	ExitCode     *int            `json:"exitCode" doc:"Exit code of the last container that ended, or null."`
	Incarnation  uint64          `json:"incarnation" doc:"Number of starts; grows with each."`
	HostID       *string         `json:"hostId" doc:"Host that the pod is bound to, or null."`
	Steps        map[string]Time `json:"steps" doc:"When each step of the present start was reached: created, received, pulling, downloaded, pulled, networked, defined, tasked, started, reported, recorded."`
	Progress     *Progress       `json:"progress" doc:"What the host does for the pod right now; null unless it is PROVISIONING or STARTING and the host is heard."`
	URLs         []string        `json:"urls" doc:"Where the http ports are reached once the pod runs, in the order of ports. Known from the pod's creation on; empty without a proxy domain."`
	LogTail      *string         `json:"logTail" doc:"Last log lines of a container that failed; null unless the status is ERROR."`
}

// GPUConfig tells a pod's GPUs.
type GPUConfig struct {
	ID    string `json:"id" doc:"GPU type." example:"NVIDIA H100 80GB HBM3"`
	Count int    `json:"count" doc:"Number of GPUs." minimum:"1"`
}

// CPUConfig tells a pod's virtual CPUs.
type CPUConfig struct {
	ID        string `json:"id" doc:"CPU flavor." example:"cpu3g"`
	VCPUCount int    `json:"vcpuCount" doc:"Number of vCPUs." minimum:"2"`
	Memory    int    `json:"memory" doc:"Memory in GB, derived from the flavor." minimum:"1"`
}

// GlobalNetworking is the state of a pod's global networking.
type GlobalNetworking struct {
	Enabled     bool   `json:"enabled" doc:"Whether the pod's present or last start has an address there."`
	IP          string `json:"ip,omitempty" doc:"The address, the same over stops and starts; absent unless enabled." example:"10.65.0.2"`
	InternalDNS string `json:"internalDns,omitempty" doc:"Name under which other pods of the account with global networking reach it; absent unless enabled." example:"k3n8w0zq5r7d2a.gantry.internal"`
}

// Runtime is what is live of a running pod.
type Runtime struct {
	Uptime int64         `json:"uptime" doc:"Seconds since the container started." minimum:"0"`
	GPUs   []GPUUse      `json:"gpus" doc:"One entry for each GPU; zeros while nothing is measured and for simulated GPUs."`
	CPU    Use           `json:"cpu" doc:"CPU use of the pod's share."`
	Memory Use           `json:"memory" doc:"Memory use of the pod's share."`
	Disk   Use           `json:"disk" doc:"Use of the container disk."`
	Ports  []RuntimePort `json:"ports" doc:"Live port mappings."`
}

// GPUUse is the use of one GPU.
type GPUUse struct {
	Util       int `json:"util" doc:"Percent." minimum:"0" maximum:"100"`
	MemoryUtil int `json:"memoryUtil" doc:"Percent." minimum:"0" maximum:"100"`
}

// Use is a share in use.
type Use struct {
	Util int `json:"util" doc:"Percent." minimum:"0" maximum:"100"`
}

// RuntimePort is a live port mapping.
type RuntimePort struct {
	Private    int     `json:"private" doc:"Port in the container; of a symmetrical port the published one, where the host publishes it."`
	Public     *int    `json:"public" doc:"Public port; null for http ports, which have a host name instead, and where the host publishes none."`
	Type       string  `json:"type" enum:"http,tcp" doc:"Protocol."`
	IP         *string `json:"ip" doc:"Public address of the host, or null."`
	IsIPPublic bool    `json:"isIpPublic" doc:"Whether ip is a public address."`
	URL        *string `json:"url" doc:"Where an http port is reached, or null." example:"https://k3n8w0zq5r7d2a-8080.proxy.example.com/"`
}

// SSH tells the ways to log in to a pod.
type SSH struct {
	Proxy  *SSHAddress `json:"proxy" doc:"Through a gateway, or null."`
	Direct *SSHAddress `json:"direct" doc:"At a public port, or null."`
}

// SSHAddress is one way to log in.
type SSHAddress struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Username string `json:"username"`
	Command  string `json:"command"`
}

// Notice tells the owner of a pod that its host is being drained.
type Notice struct {
	Text    string `json:"text" doc:"One sentence: what happens to the pod."`
	Reason  string `json:"reason,omitempty" doc:"Why, in the operator's words."`
	Since   Time   `json:"since" doc:"When the drain began."`
	StopsAt *Time  `json:"stopsAt" doc:"When it is stopped if it still runs there, or null."`
}

// Progress is what a host does for a pod that is not running yet.
type Progress struct {
	Activity  string `json:"activity" doc:"In words."`
	PullDone  int64  `json:"pullDone" doc:"Bytes of the image that have arrived."`
	PullTotal int64  `json:"pullTotal" doc:"Bytes of the image; 0 while unknown."`
}

// PodList is the answer to listing pods.
type PodList struct {
	Page
	Pods []Pod `json:"pods" doc:"The account's pods."`
}

// TransformSchema says which members may be null.
func (Pod) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "runtime", "startedAt", "progress", "notice")
}

// TransformSchema says which members may be null.
func (SSH) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "proxy", "direct")
}

// TransformSchema says which members may be null.
func (Notice) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "stopsAt")
}

// nullable lets properties be null.
func nullable(s *huma.Schema, names ...string) *huma.Schema {
	for _, name := range names {
		p := s.Properties[name]
		if p.Ref == "" {
			p.Nullable = true
			continue
		}
		s.Properties[name] = &huma.Schema{
			Description: p.Description,
			AnyOf:       []*huma.Schema{{Ref: p.Ref}, {Type: "null"}},
		}
	}
	return s
}

const textUnreachable = "the pod's host cannot be reached; the pod may still run there"

// podRecord shows a pod as of now.
func podRecord(v fleet.PodView, now time.Time) Pod {
	p := &v.Pod
	out := Pod{
		ID: string(p.ID), Name: p.Spec.Name, Status: string(p.Status), Actions: []string{},
		Image: p.Spec.Image, Args: p.Spec.Args, Disk: p.Spec.DiskGB, Ports: []string{}, Env: p.Spec.Env,
		Registry: textOrNull(p.Spec.Registry), Mounts: mountsOf(&p.Spec), Template: textOrNull(p.Spec.Template),
		Cloud: string(p.Spec.Cloud), DataCenterID: textOrNull(p.DataCenter), Locked: p.Locked, CUDAVersion: cudaOf(p.Spec.CUDA),
		CreatedAt: Time{p.CreatedAt}, StartedAt: timeOrNull(p.StartedAt), SSH: sshOf(v),
		URLs: urlsOf(v), Movable: p.Spec.Movable, Notice: noticeOf(v),
		StatusReason: statusReason(v), ExitCode: p.ExitCode, Incarnation: p.Incarnation,
		HostID: textOrNull(p.Host), Steps: map[string]Time{}, Runtime: runtimeOf(v, now), Progress: progressOf(v), GlobalNetworking: globalNetworking(v),
	}
	for _, a := range fleet.AllowedActions(p.Status, p.Goal) {
		out.Actions = append(out.Actions, string(a))
	}
	for _, port := range p.Spec.Ports {
		out.Ports = append(out.Ports, strconv.Itoa(port.Number)+"/"+port.Protocol)
	}
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	if g := p.Spec.GPU; g != nil {
		out.GPU = &GPUConfig{ID: g.Type, Count: g.Count}
	} else if c := p.Spec.CPU; c != nil {
		out.CPU = &CPUConfig{ID: c.Flavor, VCPUCount: c.VCPU, Memory: c.MemoryGB}
	}
	if p.Status.Active() && !p.Stopping() && p.Waiting.IsZero() {
		out.Cost = p.HourlyRate.USD()
	}
	for step, at := range p.Steps {
		out.Steps[string(step)] = Time{at}
	}
	if p.Status == fleet.StatusError {
		out.LogTail = textOrNull(p.LogTail)
	}
	return out
}

// cudaOf shows which CUDA version was asked for, where that is one.
func cudaOf(r *fleet.CUDARange) *string {
	switch {
	case r == nil:
		return nil
	case len(r.Allowed) == 1:
		return textOrNull(r.Allowed[0])
	}
	return textOrNull(r.Min)
}

func statusReason(v fleet.PodView) *string {
	switch {
	case v.Pod.Stopping():
		return textOrNull("stopping")
	case v.Unreachable && v.Pod.Status.Active():
		return textOrNull(textUnreachable)
	}
	return textOrNull(v.Pod.Reason)
}

// noticeOf is null unless the pod's host is being drained.
func noticeOf(v fleet.PodView) *Notice {
	d, p := v.Drain, &v.Pod
	if d == nil {
		return nil
	}
	out := &Notice{Reason: d.Reason, Since: Time{d.Since}, StopsAt: timeOrNull(d.Deadline)}
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
func progressOf(v fleet.PodView) *Progress {
	starting := v.Pod.Status == fleet.StatusProvisioning || v.Pod.Status == fleet.StatusStarting
	if v.Live == nil || !starting || v.Unreachable {
		return nil
	}
	return &Progress{Activity: v.Live.Activity, PullDone: v.Live.PullDone, PullTotal: v.Live.PullTotal}
}

// runtimeOf is null unless the pod runs and its host can be reached. Measures that the host has not
// sent yet are 0.
func runtimeOf(v fleet.PodView, now time.Time) *Runtime {
	if v.Pod.Status != fleet.StatusRunning || v.Unreachable {
		return nil
	}
	out := &Runtime{GPUs: make([]GPUUse, len(v.Pod.GPUs)), Ports: []RuntimePort{}}
	if l := v.Live; l != nil {
		out.CPU.Util, out.Memory.Util, out.Disk.Util = percent(l.CPUPercent), percent(l.MemoryPercent), percent(l.DiskPercent)
		for i, g := range l.GPUs[:min(len(l.GPUs), len(out.GPUs))] {
			out.GPUs[i] = GPUUse{Util: percent(g.Util), MemoryUtil: percent(g.MemoryUtil)}
		}
	}
	if since := v.Pod.StartedAt; !since.IsZero() {
		out.Uptime = max(0, int64(now.Sub(since)/time.Second))
	}
	for _, port := range v.Pod.Spec.Ports {
		out.Ports = append(out.Ports, runtimePort(v, port))
	}
	return out
}

// urlOf is where an http port is reached; empty: nowhere.
func urlOf(v fleet.PodView, port fleet.Port) string {
	scheme, domain, ok := strings.Cut(v.ProxyURL, "://")
	if !ok || port.Protocol != "http" || v.Pod.ID == "" {
		return ""
	}
	return scheme + "://" + string(v.Pod.ID) + "-" + strconv.Itoa(port.Number) + "." + domain + "/"
}

func urlsOf(v fleet.PodView) []string {
	out := []string{}
	for _, port := range v.Pod.Spec.Ports {
		if url := urlOf(v, port); url != "" {
			out = append(out, url)
		}
	}
	return out
}

// runtimePort shows a port with its public one: only tcp ports have one, where the host publishes ports.
func runtimePort(v fleet.PodView, port fleet.Port) RuntimePort {
	out := RuntimePort{Private: port.Number, Type: port.Protocol}
	out.URL = textOrNull(urlOf(v, port))
	if public := publicPort(v, port); public != 0 {
		out.Private = fleet.PortMapping{Private: port.Number, Public: public}.Inside()
		out.Public, out.IP, out.IsIPPublic = &public, textOrNull(v.PublicIP), true
	}
	return out
}

// publicPort returns 0 when the port has none.
func publicPort(v fleet.PodView, port fleet.Port) int {
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
func sshOf(v fleet.PodView) SSH {
	public := publicPort(v, fleet.Port{Number: sshPort, Protocol: "tcp"})
	if v.Pod.Status != fleet.StatusRunning || v.Unreachable || public == 0 {
		return SSH{}
	}
	return SSH{Direct: &SSHAddress{
		Host: v.PublicIP, Port: public, Username: "root", Command: "ssh root@" + v.PublicIP + " -p " + strconv.Itoa(public),
	}}
}

func percent(n int) int { return min(max(n, 0), 100) }

// textOrNull returns nil for the empty text.
func textOrNull[T ~string](s T) *string {
	if s == "" {
		return nil
	}
	text := string(s)
	return &text
}
