package orders

import (
	"errors"
	"time"

	"gantry/agent/pod"
	"gantry/agent/volumes"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

func (o *Orders) decodeAll(in []*agentrpc.Assignment) []pod.Assignment {
	out := make([]pod.Assignment, len(in))
	for i, a := range in {
		out[i] = o.decode(a)
	}
	return out
}

func (o *Orders) decode(a *agentrpc.Assignment) pod.Assignment {
	out := pod.Assignment{
		Pod: fleet.PodID(a.GetPodId()), Account: fleet.AccountID(a.GetAccountId()),
		Incarnation: a.GetIncarnation(), Goal: fleet.Goal(a.GetGoal()), Generation: a.GetGeneration(),
		Name: a.GetName(), Image: a.GetImage(), Args: a.GetArgs(), Env: a.GetEnv(), DiskGB: a.GetDiskGb(),
		Digest: a.GetDigest(), GPUs: a.GetGpus(), DataCenter: fleet.DataCenterID(a.GetDataCenter()),
		Limits: fleet.Resources{
			MilliCPU: a.GetLimits().GetMilliCpu(), MemoryMB: a.GetLimits().GetMemoryMb(), DiskGB: a.GetLimits().GetDiskGb(),
		},
		Grace: time.Duration(a.GetGraceMs()) * time.Millisecond,
	}
	out.Interruptible, out.Notice = a.GetInterruptible(), pod.Readable(a.GetNotice(), pod.MaxReason)
	for _, p := range a.GetPorts() {
		out.Ports = append(out.Ports, fleet.Port{Number: int(p.GetNumber()), Protocol: p.GetProtocol()})
		if p.GetPublic() != 0 {
			out.Mappings = append(out.Mappings, fleet.PortMapping{Private: int(p.GetNumber()), Public: int(p.GetPublic())})
		}
	}
	if a.GetPersistentGb() > 0 {
		out.Persistent = &fleet.PersistentMount{SizeGB: int(a.GetPersistentGb()), Path: a.GetPersistentPath()}
	}
	out.Refused = pod.Readable(a.GetRefused(), pod.MaxReason)
	var err error
	if out.Volume, err = volumes.Decode(a.GetVolume()); err == nil && out.Volume != nil && !volumes.CleanPath(a.GetVolume().GetPath()) {
		err = errors.New("the order mounts a network volume at a path that is not a clean absolute one")
	}
	if out.VolumePath = a.GetVolume().GetPath(); err != nil {
		o.Log.Error("an order was refused", "pod", out.Pod, "err", err)
		out.Volume, out.VolumePath, out.Refused = nil, "", pod.Readable(err.Error(), pod.MaxReason)
	}
	if out.Overlays, err = decodePlaces(a.GetOverlays()); err != nil {
		o.Log.Error("an order was refused", "pod", out.Pod, "err", err)
		out.Refused = pod.Readable(err.Error(), pod.MaxReason)
	}
	if out.Member, err = decodeMember(a.GetMember()); err != nil {
		o.Log.Error("an order was refused", "pod", out.Pod, "err", err)
		out.Refused = pod.Readable(err.Error(), pod.MaxReason)
	}
	if out.Endpoint = fleet.EndpointID(a.GetEndpointId()); out.Endpoint != "" && !fleet.ValidID(string(out.Endpoint)) {
		o.Log.Error("an order was refused", "pod", out.Pod, "err", "the endpoint's id is none")
		out.Endpoint, out.Refused = "", "the order names a serverless endpoint by what is no id"
	}
	if out.Models, _, err = fleet.ParseModelRefs(a.GetModels()); err == nil && len(out.Models) > 0 {
		out.ModelHub = a.GetModelHub()
		err = fleet.CheckModelHub(out.ModelHub)
	}
	if err != nil {
		o.Log.Error("an order was refused", "pod", out.Pod, "err", err)
		out.Models, out.ModelHub, out.Refused = nil, "", "the order names models, or their hub, by what is no address"
	}
	out.Frozen = a.GetFrozen() && out.Endpoint != ""
	if c := a.GetRegistry(); c != nil {
		out.Registry = &fleet.Credential{Username: c.GetUsername(), Password: fleet.Secret(c.GetPassword())}
	}
	return out
}
