package scheduler

import (
	"context"
	"errors"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
)

const (
	defaultDiskGPU = 20 // GB
	defaultDiskCPU = 10 // GB

	// What every GPU brings along at least.
	milliCPUPerGPU = 2000
	memoryMBPerGPU = 8000
)

// CreatePod creates a pod that has a host and its GPUs when the call returns.
func (s *Service) CreatePod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error) {
	pod, err := untilFresh(ctx, func() (fleet.Pod, error) {
		pod, epoch, err := s.plan(ctx, who, req)
		if err != nil {
			return fleet.Pod{}, err
		}
		return propose[fleet.Pod](ctx, s, state.CreatePod{Pod: pod, HostEpoch: epoch})
	})
	if err != nil {
		return fleet.PodView{}, err
	}
	s.Log.Info("pod created", "pod", pod.ID, "account", pod.Account, "host", pod.Host)
	return s.view(pod, false), nil
}

// PlanPod answers as CreatePod would, and creates nothing.
func (s *Service) PlanPod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error) {
	pod, _, err := s.plan(ctx, who, req)
	if err != nil {
		return fleet.PodView{}, err
	}
	pod.Status, pod.Goal, pod.Incarnation = fleet.StatusProvisioning, fleet.GoalRun, 1
	return fleet.PodView{Pod: pod}, nil
}

// plan checks what the request means and picks a host for it.
func (s *Service) plan(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.Pod, uint64, error) {
	if req.GlobalNetworking {
		return fleet.Pod{}, 0, fleet.BreaksRule("globalNetworking needs an NVIDIA GPU and a data center with global networking; none offers it")
	}
	pod := fleet.Pod{ID: fleet.PodID(fleet.NewID()), Account: who.Account, CreatedAt: time.Now()}
	var epoch uint64
	err := s.read(ctx, func(v *state.View) error {
		cat := v.Catalog()
		if err := specify(&pod, req, cat, v); err != nil {
			return err
		}
		candidates := v.Candidates()
		choice, err := place.Pick(requestFor(&pod, ""), candidates)
		if err != nil {
			return err
		}
		host := hostOf(candidates, choice.Host)
		epoch = host.Host.Epoch
		pod.Host, pod.DataCenter, pod.GPUs = choice.Host, choice.DataCenter, choice.GPUs
		pod.Need = shareFor(&pod, host)
		return nil
	})
	return pod, epoch, err
}

// specify fills in spec, needs and rate of a new pod, and refuses what cannot be meant.
func specify(pod *fleet.Pod, req fleet.PodRequest, cat fleet.Catalog, v *state.View) error {
	if (req.GPU == nil) == (req.CPU == nil) {
		return fleet.BreaksRule("exactly one of gpu and cpu must be set")
	}
	pod.Spec = fleet.PodSpec{
		Name: req.Name, Image: req.Image, Args: req.Args, DiskGB: req.DiskGB, Ports: req.Ports, Env: req.Env,
		Cloud: req.Cloud, Centers: req.Centers,
	}
	if pod.Spec.Cloud == "" {
		pod.Spec.Cloud = fleet.CloudSecure
	}
	if err := knownCenters(req.Centers, v); err != nil {
		return err
	}
	if req.GPU != nil {
		return specifyGPU(pod, *req.GPU, cat)
	}
	return specifyCPU(pod, *req.CPU, cat)
}

func knownCenters(centers []fleet.DataCenterID, v *state.View) error {
	known := map[fleet.DataCenterID]bool{}
	for _, dc := range v.DataCenters() {
		known[dc.ID] = true
	}
	for _, id := range centers {
		if !known[id] {
			return fleet.Invalid("$.dataCenterIds", "names a data center that does not exist")
		}
	}
	return nil
}

func specifyGPU(pod *fleet.Pod, gpu fleet.GPURequest, cat fleet.Catalog) error {
	gpu.Count = max(gpu.Count, 1)
	pod.Spec.GPU = &gpu
	if pod.Spec.DiskGB == 0 {
		pod.Spec.DiskGB = defaultDiskGPU
	}
	for _, t := range cat.GPUs {
		if t.ID != gpu.Type {
			continue
		}
		price := t.Secure
		if pod.Spec.Cloud == fleet.CloudCommunity {
			price = t.Community
		}
		pod.HourlyRate = price * fleet.Money(gpu.Count)
		pod.Need = leastNeed(&pod.Spec)
		return nil
	}
	return fleet.Invalid("$.gpu.id", "names a GPU type that is not in the catalog")
}

func specifyCPU(pod *fleet.Pod, cpu fleet.CPURequest, cat fleet.Catalog) error {
	if pod.Spec.DiskGB == 0 {
		pod.Spec.DiskGB = defaultDiskCPU
	}
	for _, f := range cat.CPUs {
		if f.ID != cpu.Flavor {
			continue
		}
		if cpu.VCPU < f.MinVCPU || cpu.VCPU > f.MaxVCPU || cpu.VCPU&(cpu.VCPU-1) != 0 {
			return fleet.Invalid("$.cpu.vcpuCount", "must be a power of two that the flavor offers")
		}
		if pod.Spec.DiskGB > f.DiskPerVCPU*cpu.VCPU {
			return fleet.Invalid("$.disk", "is above the flavor's limit for this vCPU count")
		}
		cpu.MemoryGB = int(f.RAMPerVCPU * float64(cpu.VCPU))
		pod.Spec.CPU = &cpu
		pod.HourlyRate = f.SecureVCPU * fleet.Money(cpu.VCPU)
		pod.Need = leastNeed(&pod.Spec)
		return nil
	}
	return fleet.Invalid("$.cpu.id", "names a CPU flavor that is not in the catalog")
}

// leastNeed is what a pod holds of any host at least.
func leastNeed(spec *fleet.PodSpec) fleet.Resources {
	if spec.GPU != nil {
		n := int64(spec.GPU.Count)
		return fleet.Resources{MilliCPU: milliCPUPerGPU * n, MemoryMB: memoryMBPerGPU * n, DiskGB: int64(spec.DiskGB)}
	}
	return fleet.Resources{
		MilliCPU: 1000 * int64(spec.CPU.VCPU), MemoryMB: int64(spec.CPU.MemoryGB) * 1000, DiskGB: int64(spec.DiskGB),
	}
}

// requestFor states what a pod needs of its host.
func requestFor(pod *fleet.Pod, prefer fleet.HostID) place.Request {
	return place.Request{
		GPU: pod.Spec.GPU, Need: pod.Need, Cloud: pod.Spec.Cloud, Centers: pod.Spec.Centers,
		Image: pod.Spec.Image, Prefer: prefer,
	}
}

func hostOf(candidates []place.Candidate, id fleet.HostID) *place.Candidate {
	for i := range candidates {
		if candidates[i].Host.ID == id {
			return &candidates[i]
		}
	}
	return nil
}

// shareFor gives a GPU pod its fair share of the host: as much of processors and memory as its GPUs
// are of the host's, as far as that is free, and at least what it needs.
func shareFor(pod *fleet.Pod, on *place.Candidate) fleet.Resources {
	need := pod.Need
	total := int64(len(on.Host.Inventory.GPUs))
	if pod.Spec.GPU == nil || total == 0 {
		return need
	}
	count := int64(pod.Spec.GPU.Count)
	need.MilliCPU = max(need.MilliCPU, min(on.Host.Inventory.Total.MilliCPU*count/total, on.Free.MilliCPU))
	need.MemoryMB = max(need.MemoryMB, min(on.Host.Inventory.Total.MemoryMB*count/total, on.Free.MemoryMB))
	return need
}

// Pods lists the pods of the caller's account, oldest first.
func (s *Service) Pods(ctx context.Context, who fleet.Principal) ([]fleet.PodView, error) {
	var out []fleet.PodView
	err := s.read(ctx, func(v *state.View) error {
		pods := v.PodsOf(who.Account)
		out = make([]fleet.PodView, len(pods))
		for i, p := range pods {
			out[i] = s.view(p, unreachable(v, p.Host))
		}
		return nil
	})
	return out, err
}

// Pod returns a pod of the caller's account.
func (s *Service) Pod(ctx context.Context, who fleet.Principal, id fleet.PodID) (fleet.PodView, error) {
	var out fleet.PodView
	err := s.read(ctx, func(v *state.View) error {
		p, ok := v.Pod(id)
		if !ok || p.Account != who.Account {
			return fleet.NotFound("pod")
		}
		out = s.view(p, unreachable(v, p.Host))
		return nil
	})
	return out, err
}

func unreachable(v *state.View, id fleet.HostID) bool {
	h, ok := v.Host(id)
	return ok && h.State == fleet.HostUnreachable
}

// view adds what is live. A pod of an unreachable host keeps its status: it may still run.
func (s *Service) view(p fleet.Pod, lost bool) fleet.PodView {
	out := fleet.PodView{Pod: p}
	if p.Status == fleet.StatusTerminated && p.Held {
		out.Pod.Reason = "its host is removing what it left"
	}
	if !p.Status.Active() {
		return out
	}
	out.Unreachable = lost
	if live := s.Dispatch.Live(p.Host, p.ID); live != nil && live.At.After(p.Steps[fleet.StepCreated]) {
		out.Live = live // what was heard before belongs to an earlier incarnation
	}
	if lost {
		out.Pod.Reason = "the pod's host cannot be reached; the pod may still run there"
	}
	return out
}

// ActPod starts, stops, restarts or terminates a pod of the caller's account.
func (s *Service) ActPod(ctx context.Context, who fleet.Principal, id fleet.PodID, action fleet.Trigger) (fleet.PodView, error) {
	pod, err := untilFresh(ctx, func() (fleet.Pod, error) {
		cmd := state.ActPod{Account: who.Account, Pod: id, Action: action, At: time.Now()}
		if action == fleet.ActionStart {
			if err := s.bind(ctx, who, &cmd); err != nil {
				return fleet.Pod{}, err
			}
		}
		return propose[fleet.Pod](ctx, s, cmd)
	})
	if err != nil {
		return fleet.PodView{}, err
	}
	s.Log.Info("pod action", "pod", id, "account", who.Account, "action", action)
	return s.view(pod, false), nil
}

// bind picks a host for a start, the one of before when it has room.
func (s *Service) bind(ctx context.Context, who fleet.Principal, cmd *state.ActPod) error {
	return s.read(ctx, func(v *state.View) error {
		p, ok := v.Pod(cmd.Pod)
		if !ok || p.Account != who.Account {
			return fleet.NotFound("pod")
		}
		cmd.Rev = p.Rev
		if !fleet.Allowed(p.Status, p.Goal, fleet.ActionStart) {
			return nil // the state machine says why
		}
		candidates := v.Candidates()
		p.Need = leastNeed(&p.Spec) // its share was one of the earlier host
		choice, err := place.Pick(requestFor(&p, p.Host), candidates)
		if err != nil {
			return err
		}
		host := hostOf(candidates, choice.Host)
		need := shareFor(&p, host)
		cmd.Bind = &state.Binding{
			Host: choice.Host, HostEpoch: host.Host.Epoch, GPUs: choice.GPUs, HourlyRate: p.HourlyRate, Need: &need,
		}
		return nil
	})
}

// PodLogs streams a pod's log.
func (s *Service) PodLogs(
	ctx context.Context, who fleet.Principal, id fleet.PodID, q fleet.LogQuery, sink fleet.LogSink,
) error {
	view, err := s.Pod(ctx, who, id)
	if err != nil {
		return err
	}
	if view.Pod.Status == fleet.StatusTerminated {
		return fleet.NotAllowed("a terminated pod's log is gone")
	}
	return s.Dispatch.Logs(ctx, view.Pod.Host, id, q, sink)
}

// HTTPPort says whether anybody may reach the port of the pod over HTTP now.
func (s *Service) HTTPPort(ctx context.Context, id fleet.PodID, port int) error {
	_, err := s.exposed(ctx, id, port)
	return err
}

// DialPod connects to an HTTP port that a running pod exposes. It is open to anybody, as the
// contract says of http ports.
func (s *Service) DialPod(ctx context.Context, id fleet.PodID, port int) (fleet.Stream, error) {
	host, err := s.exposed(ctx, id, port)
	if err != nil {
		return nil, err
	}
	return s.Dispatch.OpenPort(ctx, host, id, port)
}

func (s *Service) exposed(ctx context.Context, id fleet.PodID, port int) (fleet.HostID, error) {
	var host fleet.HostID
	err := s.read(ctx, func(v *state.View) error {
		p, ok := v.Pod(id)
		switch {
		case !ok || p.Status == fleet.StatusTerminated:
			return fleet.NotFound("pod")
		case !slices.Contains(p.Spec.Ports, fleet.Port{Number: port, Protocol: "http"}):
			return fleet.NotFound("port")
		case p.Status != fleet.StatusRunning || p.Goal != fleet.GoalRun:
			return fleet.NotAllowed("the pod does not run")
		}
		host = p.Host
		return nil
	})
	return host, err
}

// errNoCA says that the cluster was not bootstrapped.
var errNoCA = errors.New("the cluster has no CA: it was not initialised")
