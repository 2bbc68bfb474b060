package resttest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"gantry/fleet"
)

// CreatePod binds a pod to the one host, or refuses it.
func (f *Fake) CreatePod(_ context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	view, err := f.plan(who, req)
	if err != nil {
		return fleet.PodView{}, err
	}
	view.Pod.ID = fleet.PodID(f.id("pod"))
	f.pods[view.Pod.ID] = &pod{view: view}
	f.take(&view.Pod)
	f.pods[view.Pod.ID].view = view
	f.touch()
	return view, nil
}

// PlanPod answers as CreatePod would.
func (f *Fake) PlanPod(_ context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.plan(who, req)
}

func (f *Fake) plan(who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error) {
	if err := f.up(); err != nil {
		return fleet.PodView{}, err
	}
	h := f.hosts[0].Host
	p := fleet.Pod{
		Account: who.Account, Status: fleet.StatusProvisioning, Goal: fleet.GoalRun, Incarnation: 1, Host: h.ID, DataCenter: h.DataCenter,
		CreatedAt: f.now, Steps: map[fleet.Step]time.Time{fleet.StepCreated: f.now},
		Spec: fleet.PodSpec{
			Name: req.Name, Image: req.Image, Args: req.Args, DiskGB: req.DiskGB, Ports: req.Ports, Env: req.Env,
			GPU: req.GPU, Cloud: req.Cloud, Centers: req.Centers,
		},
	}
	if p.Spec.Cloud == "" {
		p.Spec.Cloud = fleet.CloudSecure
	}
	for i, dc := range req.Centers {
		if dc != h.DataCenter {
			return fleet.PodView{}, fleet.Invalid(fmt.Sprintf("$.dataCenterIds[%d]", i), "no such data center")
		}
	}
	if err := f.price(&p, req); err != nil {
		return fleet.PodView{}, err
	}
	if f.broke[who.Account] {
		return fleet.PodView{}, &fleet.Error{Code: fleet.CodeNoCredit, Msg: "Your account balance is too low to rent a pod"}
	}
	return fleet.PodView{Pod: p}, f.room(&p)
}

func (f *Fake) price(p *fleet.Pod, req fleet.PodRequest) error {
	if g := req.GPU; g != nil {
		i := slices.IndexFunc(f.catalog.GPUs, func(o fleet.GPUOffer) bool { return o.ID == g.Type })
		if i < 0 {
			return fleet.Invalid("$.gpu.id", "no such GPU type")
		}
		p.HourlyRate = fleet.Money(g.Count) * f.catalog.GPUs[i].Secure
		p.Need = fleet.Resources{MilliCPU: int64(g.Count) * 1000, MemoryMB: int64(g.Count) * 4000}
		p.Spec.DiskGB = max(p.Spec.DiskGB, 20)
		return nil
	}
	i := slices.IndexFunc(f.catalog.CPUs, func(o fleet.CPUOffer) bool { return o.ID == req.CPU.Flavor })
	if i < 0 {
		return fleet.Invalid("$.cpu.id", "no such CPU flavor")
	}
	o := f.catalog.CPUs[i]
	if n := req.CPU.VCPU; n < o.MinVCPU || n > o.MaxVCPU {
		return fleet.Invalid("$.cpu.vcpuCount", fmt.Sprintf("must be from %d to %d for this flavor", o.MinVCPU, o.MaxVCPU))
	}
	p.Spec.CPU = &fleet.CPURequest{Flavor: o.ID, VCPU: req.CPU.VCPU, MemoryGB: int(o.RAMPerVCPU * float64(req.CPU.VCPU))}
	p.HourlyRate = fleet.Money(req.CPU.VCPU) * o.SecureVCPU
	p.Need = fleet.Resources{MilliCPU: int64(req.CPU.VCPU) * 1000, MemoryMB: int64(p.Spec.CPU.MemoryGB) * 1000}
	if p.Spec.DiskGB == 0 {
		p.Spec.DiskGB = 10
	}
	return nil
}

// room says whether the one host has what the pod needs.
func (f *Fake) room(p *fleet.Pod) error {
	h, reason := &f.hosts[0], ""
	switch g := p.Spec.GPU; {
	case p.Spec.Cloud != h.Host.Cloud:
		reason = "cloud tier"
	case g != nil && g.Type != h.Host.Inventory.GPUs[0].Type:
		reason = "GPU type"
	case g != nil && g.Count > len(h.Host.Inventory.GPUs)-h.UsedGPUs:
		reason = fmt.Sprintf("%d of %d GPUs free", len(h.Host.Inventory.GPUs)-h.UsedGPUs, len(h.Host.Inventory.GPUs))
	case p.Need.MilliCPU > h.Host.Inventory.Total.MilliCPU-h.Used.MilliCPU:
		reason = "CPU"
	default:
		return nil
	}
	return &fleet.Error{
		Code:     fleet.CodeNoCapacity,
		Msg:      "There are no longer any instances available with the requested specifications. Please refresh and try again.",
		Excluded: []fleet.Exclusion{{Reason: reason, Hosts: 1}},
	}
}

// take gives the pod what it needs of the host; release gives it back.
func (f *Fake) take(p *fleet.Pod) {
	h := &f.hosts[0]
	if g := p.Spec.GPU; g != nil {
		p.GPUs = nil
		for i := range g.Count {
			p.GPUs = append(p.GPUs, h.Host.Inventory.GPUs[h.UsedGPUs+i].UUID)
		}
		h.UsedGPUs += g.Count
	}
	h.Used.MilliCPU += p.Need.MilliCPU
	h.Used.MemoryMB += p.Need.MemoryMB
	h.Pods++
	p.Held = true
}

func (f *Fake) release(p *fleet.Pod) {
	if !p.Held {
		return
	}
	h := &f.hosts[0]
	h.UsedGPUs -= len(p.GPUs)
	h.Used.MilliCPU -= p.Need.MilliCPU
	h.Used.MemoryMB -= p.Need.MemoryMB
	h.Pods--
	p.Held, p.GPUs = false, nil
}

// Pods lists the account's pods.
func (f *Fake) Pods(_ context.Context, who fleet.Principal) ([]fleet.PodView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []fleet.PodView
	for _, p := range f.pods {
		if p.view.Pod.Account == who.Account {
			out = append(out, p.view)
		}
	}
	return out, f.up()
}

// Pod returns a pod of the account.
func (f *Fake) Pod(_ context.Context, who fleet.Principal, id fleet.PodID) (fleet.PodView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(who, id)
	if err != nil {
		return fleet.PodView{}, err
	}
	return p.view, nil
}

func (f *Fake) find(who fleet.Principal, id fleet.PodID) (*pod, error) {
	if err := f.up(); err != nil {
		return nil, err
	}
	p, ok := f.pods[id]
	if !ok || p.view.Pod.Account != who.Account {
		return nil, fleet.NotFound("pod")
	}
	return p, nil
}

// ActPod acts on a pod. A stop ends when the test reports the container gone.
func (f *Fake) ActPod(_ context.Context, who fleet.Principal, id fleet.PodID, action fleet.Trigger) (fleet.PodView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	found, err := f.find(who, id)
	if err != nil {
		return fleet.PodView{}, err
	}
	p := &found.view.Pod
	switch {
	case !fleet.Allowed(p.Status, p.Goal, action):
		return fleet.PodView{}, fleet.NotAllowed("%s is not allowed while the pod is %s", action, p.Status)
	case p.Locked && (action == fleet.ActionStop || action == fleet.ActionRestart):
		return fleet.PodView{}, fleet.NotAllowed("the pod is locked")
	}
	switch action {
	case fleet.ActionStop:
		p.Goal = fleet.GoalStop
	case fleet.ActionStart:
		if err := f.room(p); err != nil {
			return fleet.PodView{}, err
		}
		f.take(p)
		p.Goal, p.Status, p.Reason, p.ExitCode, p.LogTail = fleet.GoalRun, fleet.StatusProvisioning, "", nil, ""
		p.Incarnation++
		p.Steps = map[fleet.Step]time.Time{fleet.StepCreated: f.now}
	case fleet.ActionRestart:
		p.Status = fleet.StatusStarting
		p.Incarnation++
	case fleet.ActionTerminate:
		p.Status, p.Goal, p.TerminatedAt = fleet.StatusTerminated, fleet.GoalGone, f.now
		f.release(p)
	}
	f.touch()
	return found.view, nil
}

// PodLogs sends the lines that the test wrote with Log.
func (f *Fake) PodLogs(ctx context.Context, who fleet.Principal, id fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error {
	f.mu.Lock()
	p, err := f.find(who, id)
	if err != nil {
		f.mu.Unlock()
		return err
	}
	next := first(p.lines, q)
	f.mu.Unlock()
	for {
		f.mu.Lock()
		lines, changed, failed := slices.Clone(p.lines[next:]), f.changed, p.view.Unreachable
		f.mu.Unlock()
		next += len(lines)
		for _, l := range lines {
			if q.Source != "" && q.Source != l.Source {
				continue
			}
			if err := sink(l); err != nil {
				return err
			}
		}
		if failed {
			return fleet.Unavailable("the pod's host cannot be reached", nil)
		}
		if !q.Follow {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// first returns the index of the first line that q asks for.
func first(lines []fleet.LogLine, q fleet.LogQuery) int {
	switch {
	case q.After != "":
		return slices.IndexFunc(lines, func(l fleet.LogLine) bool { return l.ID == q.After }) + 1
	case !q.Since.IsZero():
		if i := slices.IndexFunc(lines, func(l fleet.LogLine) bool { return !l.At.Before(q.Since) }); i >= 0 {
			return i
		}
		return len(lines)
	}
	return max(0, len(lines)-q.Tail)
}

// Serve puts what listens at addr behind a pod's port; an empty addr takes it away.
func (f *Fake) Serve(id fleet.PodID, port int, addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams[target{id, port}] = addr
}

// HTTPPort says whether a pod has such an http port and runs.
func (f *Fake) HTTPPort(_ context.Context, id fleet.PodID, port int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.up(); err != nil {
		return err
	}
	p, ok := f.pods[id]
	if !ok || !slices.Contains(p.view.Pod.Spec.Ports, fleet.Port{Number: port, Protocol: "http"}) {
		return fleet.NotFound("port")
	}
	if p.view.Pod.Status != fleet.StatusRunning {
		return fleet.NotAllowed("the pod is %s", p.view.Pod.Status)
	}
	return nil
}

// DialPod connects to what Serve put there.
func (f *Fake) DialPod(ctx context.Context, id fleet.PodID, port int) (fleet.Stream, error) {
	f.mu.Lock()
	addr, unreachable := f.streams[target{id, port}], f.pods[id] != nil && f.pods[id].view.Unreachable
	f.mu.Unlock()
	if addr == "" || unreachable {
		return nil, fleet.Unavailable("nothing listens on the port", nil)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fleet.Unavailable("nothing listens on the port", err)
	}
	return conn.(*net.TCPConn), nil
}
