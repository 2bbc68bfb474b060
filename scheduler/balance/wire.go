package balance

import (
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// EncodeReport is what the leader is told over the link.
func EncodeReport(r Report) *agentrpc.RequestsReport {
	out := &agentrpc.RequestsReport{Heard: r.Heard, Process: r.Process}
	for id, n := range r.Ended {
		out.Ended = append(out.Ended, &agentrpc.EndpointEnded{EndpointId: string(id), Completed: n.Completed, Failed: n.Failed})
	}
	for id, of := range r.Of {
		one := &agentrpc.EndpointDemand{EndpointId: string(id), Waiting: count(of.Waiting), Serving: map[string]uint32{}}
		for pod, n := range of.Serving {
			one.Serving[string(pod)] = count(n)
		}
		for _, pod := range of.Wake {
			one.Wake = append(one.Wake, string(pod))
		}
		out.Endpoints = append(out.Endpoints, one)
	}
	return out
}

func count(n int) uint32 { return uint32(max(0, n)) } //nolint:gosec // connections of one machine

// DecodeReport reads a report of another scheduler, or of a gateway.
func DecodeReport(from fleet.MemberID, in *agentrpc.RequestsReport) Report {
	r := Report{Member: from, Heard: in.GetHeard(), Of: map[fleet.EndpointID]Demand{}, Process: in.GetProcess(), Ended: map[fleet.EndpointID]Ended{}}
	for _, one := range in.GetEnded() {
		r.Ended[fleet.EndpointID(one.GetEndpointId())] = Ended{Completed: one.GetCompleted(), Failed: one.GetFailed()}
	}
	for _, one := range in.GetEndpoints() {
		of := Demand{Waiting: int(one.GetWaiting()), Serving: map[fleet.PodID]int{}}
		for pod, n := range one.GetServing() {
			of.Serving[fleet.PodID(pod)] = int(n)
		}
		for _, pod := range one.GetWake() {
			of.Wake = append(of.Wake, fleet.PodID(pod))
		}
		r.Of[fleet.EndpointID(one.GetEndpointId())] = of
	}
	return r
}

// EncodeWord is what the leader answers over the link.
func EncodeWord(w Word) *agentrpc.RequestsWord {
	out := &agentrpc.RequestsWord{Version: w.Version}
	for _, pod := range w.Closing {
		out.Closing = append(out.Closing, string(pod))
	}
	return out
}

// DecodeWord reads the leader's answer.
func DecodeWord(in *agentrpc.RequestsWord) Word {
	w := Word{Version: in.GetVersion()}
	for _, pod := range in.GetClosing() {
		w.Closing = append(w.Closing, fleet.PodID(pod))
	}
	return w
}
