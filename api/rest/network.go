package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// Network is a private network of the account.
type Network struct {
	ID      string          `json:"id" doc:"Network identifier; that of global networking is the account's, after account-." example:"account-a5f8k2m7q1w4z9"`
	CIDR    string          `json:"cidr" doc:"Range of its addresses. Another account's may be the same: no packet gets from one into the other." example:"10.65.0.0/16"`
	VXLANID int64           `json:"vxlanId" doc:"VXLAN network identifier, which no other network has." minimum:"1" maximum:"16777215" example:"4096"`
	Suffix  string          `json:"suffix" doc:"What the internal names of its pods end with." example:"gantry.internal"`
	Members []NetworkMember `json:"members" doc:"Pods that take part and are on a host now, by address."`
}

// NetworkMember is a pod in a private network.
type NetworkMember struct {
	PodID       string `json:"podId" doc:"Pod identifier." example:"k3n8w0zq5r7d2a"`
	Name        string `json:"name" doc:"Name of the pod. With the suffix it is an internal name, too, where it can be one and no other member has it." example:"trainer"`
	IP          string `json:"ip" doc:"Its address there." example:"10.65.0.2"`
	InternalDNS string `json:"internalDns" doc:"Its internal name." example:"k3n8w0zq5r7d2a.gantry.internal"`
}

// NetworkList is the answer to listing private networks.
type NetworkList struct {
	Page
	Networks []Network `json:"networks" doc:"The account's private networks; none before the first pod joined one."`
}

// Probe is one look from a pod to another.
type Probe struct {
	From    string   `json:"from" doc:"Pod that looked." example:"k3n8w0zq5r7d2a"`
	To      string   `json:"to" doc:"Pod that was to answer." example:"m5p1x7rt2v9b4c"`
	IP      string   `json:"ip" doc:"Address of that pod." example:"10.65.0.3"`
	OK      bool     `json:"ok" doc:"Whether it answered."`
	Millis  *float64 `json:"ms" doc:"Milliseconds of the fastest answer of three; null without one." minimum:"0" example:"0.4"`
	Problem *string  `json:"problem" doc:"Why there was no answer, in a sentence; null with one."`
}

// NetworkCheck is the answer to a check of an account's private networks.
type NetworkCheck struct {
	Probes []Probe `json:"probes" doc:"What each running pod of a private network found."`
}

// TransformSchema says which members may be null.
func (Probe) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "ms", "problem")
}

const textCheck = "Has every running pod of a private network reach for every other one there, and tells for each pair whether it was answered and how fast. " +
	"Of more than 64 pods each reaches for some of the others. 429: a check of the account is under way."

func (a *API) registerNetwork() {
	handle(a, route{
		method: http.MethodGet, path: "/v2/network", id: "listNetworks", tag: "Network", summary: "List private networks",
		text:  "Lists the account's private networks with the pods that are in them. A pod joins with globalNetworking.",
		scope: auth.Read(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusOK, out: exampleNetworks(),
	}, a.listNetworks)
	handle(a, route{
		method: http.MethodPost, path: "/v2/network/check", id: "checkNetwork", tag: "Network", summary: "Check private networks",
		text:  textCheck,
		scope: auth.Write(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusOK, out: exampleCheck(),
	}, func(ctx context.Context, c *call, _ *none) (*NetworkCheck, error) {
		return a.checkNetwork(ctx, c, c.who.Account)
	})
}

func (a *API) listNetworks(ctx context.Context, c *call, _ *none) (*NetworkList, error) {
	all, err := showAll(networkRecord)(a.svc.Networks(ctx, c.who))
	return &NetworkList{Networks: all}, err
}

// checkNetwork makes one check of an account at a time: each sends packets from all of its pods.
func (a *API) checkNetwork(ctx context.Context, c *call, account fleet.AccountID) (*NetworkCheck, error) {
	if !a.checks.take(account) {
		return nil, limited(c.w, 1, "a check of the account's private networks is under way")
	}
	defer a.checks.give(account)
	all, err := showAll(probeRecord)(a.svc.CheckNetwork(ctx, account))
	return &NetworkCheck{Probes: all}, err
}

func networkRecord(v fleet.NetworkView) Network {
	out := Network{
		ID: string(v.Overlay.ID), CIDR: v.Overlay.CIDR.String(), VXLANID: int64(v.Overlay.VNI), Suffix: v.Suffix, Members: []NetworkMember{},
	}
	for _, m := range v.Members {
		out.Members = append(out.Members, NetworkMember{
			PodID: string(m.Pod), Name: m.Name, IP: m.Addr.String(), InternalDNS: fleet.InternalDNS(m.Pod, v.Suffix),
		})
	}
	return out
}

func probeRecord(p fleet.Probe) Probe {
	out := Probe{From: string(p.From), To: string(p.To), IP: p.Addr, OK: p.Problem == "", Problem: textOrNull(p.Problem)}
	if out.OK {
		out.Millis = &p.Millis
	}
	return out
}

// globalNetworking tells of a pod's place in the account's network.
func globalNetworking(v fleet.PodView) GlobalNetworking {
	at, in := v.Pod.AccountPlace()
	if !in {
		return GlobalNetworking{}
	}
	return GlobalNetworking{Enabled: true, IP: at.Addr.String(), InternalDNS: fleet.InternalDNS(v.Pod.ID, v.Suffix)}
}

func exampleNetworks() NetworkList {
	return NetworkList{Networks: []Network{{
		ID: "account-a5f8k2m7q1w4z9", CIDR: "10.65.0.0/16", VXLANID: 4096, Suffix: "gantry.internal",
		Members: []NetworkMember{{PodID: "k3n8w0zq5r7d2a", Name: "trainer", IP: "10.65.0.2", InternalDNS: "k3n8w0zq5r7d2a.gantry.internal"}},
	}}}
}

func exampleCheck() NetworkCheck {
	ms, why := 0.4, "no answer within 1 s"
	return NetworkCheck{Probes: []Probe{
		{From: "k3n8w0zq5r7d2a", To: "m5p1x7rt2v9b4c", IP: "10.65.0.3", OK: true, Millis: &ms},
		{From: "m5p1x7rt2v9b4c", To: "k3n8w0zq5r7d2a", IP: "10.65.0.2", Problem: &why},
	}}
}
