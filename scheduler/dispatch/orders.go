package dispatch

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/feed"
	"gantry/scheduler/state"
)

// look finds what the host has to be told to come from what it was told last to what is wanted now: what feeds have to say
// first, so that a pod finds its private networks there.
func (x *session) look() error {
	var host fleet.Host
	var pods []fleet.Pod
	at := map[fleet.PodID][]*agentrpc.OverlayPlace{}
	full := x.fullNext
	err := x.server.Store.View(func(v *state.View) error {
		var ok bool
		if host, ok = v.Host(x.host); !ok || host.State == fleet.HostGone {
			return status.Error(codes.PermissionDenied, "this host is not known any more")
		}
		if full || host.Generation != x.generation {
			pods = v.HostPods(x.host)
			x.accounts = accountsOf(v, pods)
			for i := range pods {
				if p := &pods[i]; len(p.Overlays) > 0 && (full || x.sent[p.ID] != p.Generation) {
					at[p.ID] = places(v, p)
				}
			}
		}
		now := &feed.Host{Host: &host, Accounts: x.accounts}
		for _, line := range x.lines {
			for _, msg := range line.Next(v, now) {
				x.due = append(x.due, cut(msg)...)
			}
		}
		return nil
	})
	if err == nil && (full || host.Generation != x.generation) {
		x.assign(host.Generation, pods, at)
	}
	return err
}

// accountsOf returns the accounts of a host's pods, sorted. A leftover is its account's until nothing is left of it.
func accountsOf(v *state.View, pods []fleet.Pod) (out []fleet.AccountID) {
	for i := range pods {
		account := pods[i].Account
		if account == "" {
			p, _ := v.Pod(pods[i].ID)
			account = p.Account
		}
		if account != "" {
			out = append(out, account)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// assign notes what leads the host from the pods that it was sent last to those of a generation; at holds the places in private
// networks of those that it has not been sent.
func (x *session) assign(generation uint64, pods []fleet.Pod, at map[fleet.PodID][]*agentrpc.OverlayPlace) {
	o := &orders{full: x.fullNext, from: x.generation, to: generation, at: at}
	now := make(map[fleet.PodID]uint64, len(pods))
	for i := range pods {
		p := &pods[i]
		now[p.ID] = p.Generation
		if x.fullNext || x.sent[p.ID] != p.Generation {
			o.put = append(o.put, p)
		}
	}
	for id := range x.sent {
		if _, ok := now[id]; !ok && !o.full {
			o.gone = append(o.gone, string(id))
		}
	}
	x.sent, x.generation, x.fullNext, x.orders = now, generation, false, o
}

// orders are what a host has to be told of its pods and is told in parts. Each part is encoded when it is its turn: the
// environments of all pods together may be large.
type orders struct {
	full     bool
	from, to uint64
	put      []*fleet.Pod
	gone     []string
	at       map[fleet.PodID][]*agentrpc.OverlayPlace
	part     uint32
}

// part returns the next part of the orders.
func (x *session) part() *agentrpc.Down {
	o, size := x.orders, 0
	var put []*agentrpc.Assignment
	for ; len(o.put) > 0 && size < partSize; o.put = o.put[1:] {
		order := x.order(o.put[0], o.at[o.put[0].ID])
		put, size = append(put, order), size+proto.Size(order)
	}
	n := 0
	for ; n < len(o.gone) && size < partSize; n++ {
		size += len(o.gone[n]) + wireOverhead
	}
	gone := o.gone[:n]
	o.gone = o.gone[n:]
	out := &agentrpc.Down{Part: o.part, More: len(o.put)+len(o.gone) > 0}
	if o.full {
		out.Kind = &agentrpc.Down_Full{Full: &agentrpc.FullSet{Generation: o.to, Assignments: put}}
	} else {
		out.Kind = &agentrpc.Down_Difference{Difference: &agentrpc.Difference{From: o.from, To: o.to, Put: put, Gone: gone}}
	}
	if o.part++; !out.GetMore() {
		x.orders = nil
	}
	return out
}

// order encodes what the host has to bring about for a pod.
func (x *session) order(p *fleet.Pod, at []*agentrpc.OverlayPlace) *agentrpc.Assignment {
	a := encodeAssignment(p, x.server.Grace)
	a.Overlays = at
	if p.Goal != fleet.GoalRun {
		return a
	}
	encodeStart(a, p, x.credential(p))
	a.Env, a.Volume, a.Member = x.environment(p), x.volume(p), x.member(p)
	if a.Models = p.Spec.Models; len(a.Models) > 0 {
		a.ModelHub = x.server.ModelHub
	}
	if size := proto.Size(a); size > maxOrder {
		x.server.Log.Error("the order of a pod is too large for its host", "pod", p.ID, "bytes", size)
		a.Env, a.Args, a.Registry, a.Member = nil, "", nil, nil
		a.Refused = "the pod's environment and arguments are too large for its host"
	}
	return a
}

// credential opens what a pod that is to run needs for its image. Without it the pod is assigned all
// the same: its image may be on the host, or its registry open to all.
func (x *session) credential(p *fleet.Pod) *fleet.Credential {
	open := x.server.Credentials
	if open == nil || p.Spec.Registry == "" {
		return nil
	}
	c, err := open(p.Account, p.Spec.Registry)
	if err != nil {
		x.server.Log.Error("open a registry credential", "pod", p.ID, "registry", p.Spec.Registry, "err", err)
		return nil
	}
	return c
}

// environment opens what a pod that is to run has in its environment.
func (x *session) environment(p *fleet.Pod) map[string]string {
	open := x.server.Environment
	if open == nil {
		return p.Spec.Env
	}
	env, err := open(p)
	if err != nil {
		x.server.Log.Error("open the environment of a pod", "pod", p.ID, "err", err)
	}
	return env
}

// member opens what a member of a cluster finds in its container; nil: the pod is none.
func (x *session) member(p *fleet.Pod) *agentrpc.MemberSetup {
	open := x.server.Member
	if open == nil || p.Owner.Kind != fleet.OwnerCluster {
		return nil
	}
	setup, err := open(p)
	if err != nil {
		x.server.Log.Error("prepare a member of a cluster", "pod", p.ID, "err", err)
		return nil
	}
	out := &agentrpc.MemberSetup{Hostname: setup.Hostname, Hosts: setup.Hosts, Fabric: setup.Fabric}
	for _, f := range setup.Files {
		out.Files = append(out.Files, &agentrpc.PodFile{Path: f.Path, Text: []byte(f.Text.Reveal()), Mode: f.Mode})
	}
	return out
}

// places returns the places of a pod in private networks that its host has to give it.
func places(v *state.View, p *fleet.Pod) (out []*agentrpc.OverlayPlace) {
	next := 2
	for _, at := range p.Overlays {
		name := fleet.OverlayLink
		switch at.Overlay {
		case fleet.AccountOverlay(p.Account):
		case fleet.ClusterOverlay(fleet.ClusterID(p.Owner.ID)):
			name = fleet.ClusterLink
		default:
			name = fmt.Sprintf("podnet%d", next)
			next++
		}
		o, there := v.Overlay(at.Overlay)
		if !at.On || !p.Held || !there {
			continue
		}
		out = append(out, &agentrpc.OverlayPlace{
			OverlayId: string(at.Overlay), Vni: o.VNI, Cidr: o.CIDR.String(), Addr: at.Addr.String(), Link: name,
		})
	}
	return out
}
