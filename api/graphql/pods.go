package graphql

import (
	"context"
	"strconv"

	"gantry/api/v2"
	"gantry/fleet"
)

// pod shows a pod.
type pod struct {
	s   *session
	rec *v2.Pod

	ID, Name, ImageName, DockerArgs, DesiredStatus, LastStatusChange, PodType, Ports                      string
	DockerID, VolumeMountPath, MachineID, ClusterIP, ContainerRegistryAuthID, TemplateID, NetworkVolumeID *string
	ContainerDiskInGb, GpuCount, UptimeSeconds, Version                                                   int32
	VolumeInGb, CostPerHr, AdjustedCostPerHr, VcpuCount, MemoryInGb                                       float64
	VolumeEncrypted, Locked                                                                               bool
	Env                                                                                                   []string
	Port, LastStartedAt                                                                                   *scalar
	CreatedAt                                                                                             scalar
	Runtime                                                                                               *runtime
}

func newPod(s *session, r *v2.Pod) *pod {
	p := &pod{
		s: s, rec: r, ID: r.ID, Name: r.Name, ImageName: r.Image, DockerArgs: r.Args, DesiredStatus: desired(r), LastStatusChange: lastChange(r),
		PodType: "RESERVED", Ports: join(r.Ports), MachineID: null(r.HostID), ClusterIP: null(r.GlobalNetworking.IP), Locked: r.Locked,
		ContainerRegistryAuthID: null(r.Registry), TemplateID: null(r.Template), ContainerDiskInGb: int32(r.Disk), Version: int32(r.Incarnation),
		CostPerHr: r.Cost, AdjustedCostPerHr: r.Cost, CreatedAt: scalar{r.CreatedAt}, LastStartedAt: moment(r.StartedAt), Runtime: runtimeOf(r),
		Env: make([]string, 0, len(r.Env)),
	}
	for _, v := range pairsOf(r.Env) {
		p.Env = append(p.Env, v.Key+"="+v.Value)
	}
	if r.Interruptible {
		p.PodType = "INTERRUPTABLE"
	}
	if r.GPU != nil {
		p.GpuCount = int32(r.GPU.Count)
	} else if r.CPU != nil {
		p.VcpuCount, p.MemoryInGb = float64(r.CPU.VCPUCount), float64(r.CPU.Memory)
	}
	if r.Cluster != nil {
		p.ClusterIP = null(r.Cluster.IP)
	}
	if r.Runtime != nil {
		p.UptimeSeconds = int32(r.Runtime.Uptime)
	}
	if m := r.Mounts.Persistent; m != nil {
		p.VolumeInGb, p.VolumeMountPath = float64(m.Size), &m.Path
	} else if len(r.Mounts.Network) > 0 {
		p.NetworkVolumeID, p.VolumeMountPath = &r.Mounts.Network[0].VolumeID, &r.Mounts.Network[0].Path
	}
	return p
}

// Pod is a pod of the account, or null.
func (root) Pod(ctx context.Context, args with) (*pod, error) {
	return maybe(ctx, "getPod", args.Input.text("podId"), newPod)
}

// desired is what the pod is to be: its owner's wish, as far as that can still come true.
func desired(r *v2.Pod) string {
	switch {
	case r.Status == fleet.StatusTerminated:
		return "TERMINATED"
	case r.Status == fleet.StatusExited, r.Status == fleet.StatusError, r.StatusReason == "stopping":
		return "EXITED"
	}
	return "RUNNING"
}

// lastChange is the status, and why it is so.
func lastChange(r *v2.Pod) string {
	at := r.CreatedAt
	for _, t := range r.Steps {
		if t.After(at.Time) {
			at = t
		}
	}
	out := string(r.Status) + " since " + at.UTC().Format("2006-01-02 15:04:05 UTC")
	if r.StatusReason != "" {
		out += ": " + string(r.StatusReason)
	}
	return out
}

func (p *pod) NetworkVolume() (*volume, error) { return p.s.volume(text(p.NetworkVolumeID)) }

// machine shows the host of a pod.
type machine struct {
	PodHostID, GpuTypeID, DataCenterID *string
	SecureCloud                        bool
	CostPerHr                          float64
	Location, GpuDisplayName           func() *string
}

func (p *pod) Machine() *machine {
	m := &machine{DataCenterID: null(p.rec.DataCenterID), SecureCloud: p.rec.Cloud == string(fleet.CloudSecure), CostPerHr: p.rec.Cost}
	m.Location = func() *string { return null(p.s.centerName(string(p.rec.DataCenterID))) }
	m.GpuDisplayName = func() *string { return null(p.s.gpuName(p.rec.GPU)) }
	if p.rec.SSH.Proxy != nil {
		m.PodHostID = &p.rec.SSH.Proxy.Username
	}
	if p.rec.GPU != nil {
		m.GpuTypeID = &p.rec.GPU.ID
	}
	return m
}

// runtime shows what is live of a pod.
type runtime struct {
	UptimeInSeconds int32
	Ports           []port
	Gpus            []gpuUse
	Container       container
}

type container struct{ CPUPercent, MemoryPercent float64 }

type port struct {
	IP          *string
	IsIPPublic  bool
	PrivatePort int32
	PublicPort  *int32
	Type        string
}

type gpuUse struct {
	ID                                string
	GpuUtilPercent, MemoryUtilPercent float64
}

func runtimeOf(p *v2.Pod) *runtime {
	r := p.Runtime
	if r == nil {
		return nil
	}
	out := &runtime{
		UptimeInSeconds: int32(r.Uptime), Container: container{float64(r.CPU.Util), float64(r.Memory.Util)}, Ports: []port{}, Gpus: []gpuUse{},
	}
	for _, x := range r.Ports {
		shown := port{IP: null(x.IP), IsIPPublic: x.IsIPPublic, PrivatePort: int32(x.Private), Type: x.Type}
		if x.Public != nil {
			shown.PublicPort = new(int32(*x.Public))
		}
		out.Ports = append(out.Ports, shown)
	}
	for i, g := range r.GPUs {
		out.Gpus = append(out.Gpus, gpuUse{p.ID + "-" + strconv.Itoa(i), float64(g.Util), float64(g.MemoryUtil)})
	}
	return out
}
