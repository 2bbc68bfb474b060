package dispatch

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/state"
)

// encodeAssignment says what the bound host has to bring about: what it needs for every goal. For the goal run there is
// encodeStart, too.
func encodeAssignment(p *fleet.Pod, grace time.Duration) *agentrpc.Assignment {
	a := &agentrpc.Assignment{
		PodId: string(p.ID), AccountId: string(p.Account), Incarnation: p.Incarnation, Goal: string(p.Goal),
		Generation: p.Generation, Name: p.Spec.Name, DiskGb: int64(p.Spec.DiskGB), DataCenter: string(p.DataCenter),
		Limits:  &agentrpc.Resources{MilliCpu: p.Need.MilliCPU, MemoryMb: p.Need.MemoryMB, DiskGb: p.Need.DiskGB},
		GraceMs: int32(grace.Milliseconds()), //nolint:gosec // at most two minutes
	}
	if m := p.Spec.Persistent; m != nil {
		a.PersistentGb = int64(m.SizeGB)
	}
	if p.Owner.Kind == fleet.OwnerEndpoint { // also to stop it: an agent that starts anew answers the worker until it has ended
		a.EndpointId, a.Frozen = p.Owner.ID, !p.Frozen.IsZero()
	}
	if p.Goal == fleet.GoalStop && !p.Interrupted.IsZero() {
		a.Notice, a.GraceMs = p.Reason, int32(p.Notice.Milliseconds()) //nolint:gosec // at most fleet.MaxNotice
	}
	if p.Goal != fleet.GoalGone { // its image is kept as long as it may be started again
		a.Image, a.Digest = p.Spec.Image, pinnedDigest(p)
	}
	return a
}

// encodeStart adds what a host needs to start a pod. credential, when it is not nil, opens the pod's image: it goes nowhere
// but into this message.
func encodeStart(a *agentrpc.Assignment, p *fleet.Pod, credential *fleet.Credential) {
	a.Args, a.Gpus, a.Interruptible = p.Spec.Args, p.GPUs, p.Spec.Spot != nil
	public := map[int]int{}
	for _, m := range p.Mappings {
		public[m.Private] = m.Public
	}
	for _, port := range p.Spec.Ports {
		out := &agentrpc.Port{Number: int32(port.Number), Protocol: port.Protocol} //nolint:gosec // at most 65535, as the API checks
		if port.Protocol == "tcp" {
			out.Public = int32(public[port.Number]) //nolint:gosec // of a host's range, which the state checks
		}
		a.Ports = append(a.Ports, out)
	}
	if m := p.Spec.Persistent; m != nil {
		a.PersistentPath = m.Path
	}
	if credential != nil {
		a.Registry = &agentrpc.Credential{Username: credential.Username, Password: credential.Password.Reveal()}
	}
}

func decodeInventory(in *agentrpc.Inventory) fleet.Inventory {
	out := fleet.Inventory{
		Total: fleet.Resources{
			MilliCPU: in.GetTotal().GetMilliCpu(), MemoryMB: in.GetTotal().GetMemoryMb(), DiskGB: in.GetTotal().GetDiskGb(),
		},
		CUDA: word(in.GetCuda()), Driver: word(in.GetDriver()), Kernel: word(in.GetKernel()), Runtime: word(in.GetRuntime()),
		AgentVersion: word(in.GetAgentVersion()), Images: decodeImages(in.GetImages()), Models: decodeImages(in.GetModels()),
	}
	if ip, err := netip.ParseAddr(in.GetPublicIp()); err == nil && isRange(in.GetPortFrom(), in.GetPortTo()) {
		out.PublicIP, out.PortFrom, out.PortTo = ip.String(), int(in.GetPortFrom()), int(in.GetPortTo())
	}
	for _, g := range in.GetGpus()[:min(len(in.GetGpus()), maxGPUs+1)] { // the state refuses one more than there may be
		out.GPUs = append(out.GPUs, fleet.GPU{
			UUID: name(g.GetUuid()), Type: name(g.GetType()), MemoryMB: max(0, g.GetMemoryMb()), NUMA: int(g.GetNuma()), Island: int(g.GetIsland()),
			Simulated: g.GetSimulated(), Sick: agentrpc.Sentence(g.GetSick()), PCI: name(g.GetPci()), Parent: name(g.GetParent()),
		})
	}
	out.Volumes, out.Tunnel = decodeKinds(in.GetVolumes()), decodeTunnel(in.GetTunnel())
	out.Certificate = agentrpc.DecodeCertificate(in.GetCertificate())
	out.Conditions, out.RuntimeClass = decodeConditions(in.GetConditions()), decodeClass(in.GetRuntimeClass())
	out.Fabric, out.Digest = decodeFabric(in.GetFabric()), digestOf(in)
	return out
}

// decodeFabric reads what a host has of a fabric; what cannot be one is none.
func decodeFabric(in *agentrpc.Fabric) (out fleet.Fabric) {
	mode := fleet.FabricMode(in.GetMode())
	if mode != fleet.FabricShared && mode != fleet.FabricFunctions {
		return out
	}
	out.Mode = mode
	for _, p := range in.GetPorts()[:min(len(in.GetPorts()), fleet.MaxFabricPorts)] {
		if p.GetLink() != fleet.LinkInfiniBand && p.GetLink() != fleet.LinkEthernet {
			continue
		}
		out.Ports = append(out.Ports, fleet.FabricPort{
			Device: word(p.GetDevice()), Port: int(p.GetPort()), Netdev: word(p.GetNetdev()), Link: p.GetLink(), State: word(p.GetState()),
			Mbps: max(0, p.GetMbps()), Subnet: word(p.GetSubnet()), GUID: word(p.GetGuid()), Functions: max(0, int(p.GetFunctions())),
		})
	}
	return out
}

// inventoryForm stands for what decodeInventory makes of an inventory. It is another one whenever that changes, so that hosts say
// theirs anew to schedulers that read more of it.
const inventoryForm = "2:"

// digestOf names what a host says that it has; empty: it does not name it.
func digestOf(in *agentrpc.Inventory) string {
	if in.GetDigest() == "" || len(in.GetDigest()) > maxWord-len(inventoryForm) {
		return ""
	}
	return inventoryForm + in.GetDigest()
}

// What of a host is kept. Nothing that it says may fill the log of the control plane.
const (
	maxConditions = 32
	maxGPUs       = 1024
	maxImages     = 200
	maxImage      = 512      // bytes of a reference: name, tag and digest have no more
	imageBytes    = 64 << 10 // of all of them
	maxWord       = 256      // bytes of a version, or another word
)

// word is a short text of a host that is kept in its record.
func word(s string) string { return agentrpc.Shortened(s, maxWord) }

// name is a text that names something: what is too long for one stays too long, so that the state refuses it.
func name(s string) string { return agentrpc.Shortened(s, maxWord+1) }

// decodeImages reads the references of images, or of models; what is too long for one is left out.
func decodeImages(in []string) []string {
	var out []string
	size := 0
	for _, image := range in {
		if len(out) < maxImages && len(image) <= maxImage && size+len(image) <= imageBytes {
			out, size = append(out, image), size+len(image)
		}
	}
	return out
}

var conditionCode = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// decodeConditions reads conditions by code. What is none is left out, and of too many the severe ones are kept: a host must
// not be lost for what it says beside the matter.
func decodeConditions(in []*agentrpc.Condition) []fleet.Condition {
	var severe, others []fleet.Condition
	for _, n := range in {
		condition := fleet.Condition{Code: n.GetCode(), Text: agentrpc.Sentence(n.GetText()), Severe: n.GetSevere()}
		switch {
		case !conditionCode.MatchString(condition.Code):
		case condition.Severe:
			severe = append(severe, condition)
		default:
			others = append(others, condition)
		}
	}
	out := slices.Concat(severe, others)
	out = out[:min(len(out), maxConditions)]
	slices.SortStableFunc(out, func(a, b fleet.Condition) int { return cmp.Compare(a.Code, b.Code) })
	return out
}

// decodeClass reads what isolates pods beyond the kernel; what is not known is nothing.
func decodeClass(class string) string {
	if class == "gvisor" || class == "kata" {
		return class
	}
	return ""
}

// isRange reports whether these are ports that a host can publish. What is none is taken for none at
// all: a host must not take the leader down with it.
func isRange(from, to int32) bool {
	const most = 1<<16 - 1
	return from >= 1 && from <= to && to <= most
}

// maxTransit is how long a message may be under way before the difference of two clocks is taken for an
// error of the host's.
const maxTransit = 2 * time.Second

// clockError is what has to be added to times of a host's clock, which it said it was by when it sent a
// message that came at now. 0 when it did not say.
func clockError(sentNS int64, now time.Time) time.Duration {
	if sentNS == 0 {
		return 0
	}
	if off := now.Sub(time.Unix(0, sentNS)); off > maxTransit || off < -maxTransit {
		return off
	}
	return 0
}

// The bounds of what a host reports of one pod.
const (
	maxReason  = 4 << 10  // bytes
	maxTail    = 16 << 10 // bytes of the log's end
	maxReports = 1024     // of one message; more are not looked at
	maxPorts   = 1 << 10  // of one pod
)

var imageDigest = regexp.MustCompile(`^(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`)

// decodeReports reads reports; off is the error of the host's clock.
func decodeReports(in []*agentrpc.PodReport, off time.Duration) []state.PodReport {
	out := make([]state.PodReport, 0, min(len(in), maxReports))
	for _, r := range in[:min(len(in), maxReports)] {
		if !isID(r.GetPodId()) || !reported(fleet.Trigger(r.GetEvent())) {
			continue
		}
		p := state.PodReport{
			Pod: fleet.PodID(r.GetPodId()), Incarnation: r.GetIncarnation(), Event: fleet.Trigger(r.GetEvent()),
			Reason: agentrpc.Shortened(r.GetReason(), maxReason), LogTail: strings.ToValidUTF8(r.GetLogTail()[max(0, len(r.GetLogTail())-maxTail):], ""),
		}
		if imageDigest.MatchString(r.GetDigest()) { // later starts are made from it
			p.Digest = r.GetDigest()
		}
		if r.GetAtNs() != 0 {
			p.At = time.Unix(0, r.GetAtNs()).Add(off)
		}
		if r.GetHasExitCode() {
			code := int(r.GetExitCode())
			p.ExitCode = &code
		}
		for _, step := range state.ReportedSteps() {
			if ns, ok := r.GetStepsNs()[string(step)]; ok {
				if p.Steps == nil {
					p.Steps = map[fleet.Step]time.Time{}
				}
				p.Steps[step] = time.Unix(0, ns).Add(off)
			}
		}
		out = append(out, p)
	}
	return out
}

// isID reports whether a text may be an id; others are of nothing that the state has.
func isID(s string) bool { return s != "" && len(s) <= maxWord }

// reported reports whether an event is a host's to report.
func reported(event fleet.Trigger) bool {
	switch event {
	case fleet.EventWaiting, fleet.EventStarting, fleet.EventRunning, fleet.EventExited, fleet.EventFailed, fleet.EventReboot, state.ReportGone:
		return true
	}
	return false
}

// maxLedgerPods is how many pods a host may say that it knows of; more are not looked at.
const maxLedgerPods = 10_000

func decodePods(in []*agentrpc.LedgerPod) []state.HostPod {
	var out []state.HostPod
	for _, p := range in[:min(len(in), maxLedgerPods)] {
		if !isID(p.GetPodId()) {
			continue
		}
		pod := state.HostPod{
			Pod: fleet.PodID(p.GetPodId()), Incarnation: p.GetIncarnation(), Ended: p.GetEnded(),
			Need: fleet.Resources{MilliCPU: p.GetNeed().GetMilliCpu(), MemoryMB: p.GetNeed().GetMemoryMb(), DiskGB: p.GetNeed().GetDiskGb()},
		}
		switch goal := fleet.Goal(p.GetGoal()); goal {
		case fleet.GoalRun, fleet.GoalStop, fleet.GoalGone:
			pod.Goal = goal
		}
		for _, uuid := range p.GetGpus()[:min(len(p.GetGpus()), maxGPUs)] {
			if isID(uuid) {
				pod.GPUs = append(pod.GPUs, uuid)
			}
		}
		for _, m := range p.GetPorts()[:min(len(p.GetPorts()), maxPorts)] {
			if isRange(m.GetNumber(), m.GetNumber()) && isRange(m.GetPublic(), m.GetPublic()) {
				pod.Mappings = append(pod.Mappings, fleet.PortMapping{Private: int(m.GetNumber()), Public: int(m.GetPublic())})
			}
		}
		out = append(out, pod)
	}
	return out
}

// decodeTunnel reads a host's end of the tunnel; what cannot be read is nothing. The state decides what of it is fit for
// other hosts.
func decodeTunnel(in *agentrpc.HostTunnel) fleet.HostTunnel {
	out := fleet.HostTunnel{PublicKey: word(in.GetPublicKey()), UserSpace: in.GetUserSpace(), MTU: int(in.GetMtu())}
	if at, err := netip.ParseAddrPort(in.GetEndpoint()); err == nil {
		out.Endpoint = at
	}
	if addr, err := netip.ParseAddr(in.GetPlain()); err == nil {
		out.Plain = addr
	}
	return out
}
