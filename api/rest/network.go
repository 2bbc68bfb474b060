package rest

import (
	"context"
	"net/http"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// NetworkService shows and checks private networks, and keeps their settings.
type NetworkService interface {
	// Networks lists the account's private networks with the pods in them.
	Networks(ctx context.Context, who fleet.Principal) ([]fleet.NetworkView, error)
	// CheckNetwork has the account's running pods reach for each other.
	CheckNetwork(ctx context.Context, account fleet.AccountID) ([]fleet.Probe, error)
	NetworkSettings(ctx context.Context) (fleet.NetworkSettings, error)
	PutNetworkSettings(ctx context.Context, s fleet.NetworkSettings) error
	// HostNetwork asks a connected host about its network.
	HostNetwork(ctx context.Context, id fleet.HostID) (fleet.HostNetwork, error)
}

const textCheck = "Has every running pod of a private network reach for every other one there, and tells for each pair whether it was answered and how fast. " +
	"Of more than 64 pods each reaches for some of the others. 429: a check of the account is under way."

func (a *API) registerNetwork() {
	on(a, route{
		method: http.MethodGet, path: "/v2/network", id: "listNetworks", tag: "Network", summary: "List private networks",
		text:  "Lists the account's private networks with the pods that are in them. A pod joins with globalNetworking.",
		scope: auth.Read(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusOK, out: exampleNetworks(),
	}, listNetworks)
	on(a, route{
		method: http.MethodPost, path: "/v2/network/check", id: "checkNetwork", tag: "Network", summary: "Check private networks",
		text:  textCheck,
		scope: auth.Write(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusOK, out: exampleCheck(),
	}, func(ctx context.Context, svc NetworkService, c *call, _ *none) (*v2.NetworkCheck, error) {
		return a.checkNetwork(ctx, svc, c.who.Account, c, nil)
	})
}

func listNetworks(ctx context.Context, svc NetworkService, c *call, _ *none) (*v2.NetworkList, error) {
	all, err := showAll(networkRecord)(svc.Networks(ctx, c.who))
	return &v2.NetworkList{Networks: all}, err
}

// checkNetwork makes one check of an account at a time: each sends packets from all of its pods.
func (a *API) checkNetwork(ctx context.Context, svc NetworkService, account fleet.AccountID, c *call, _ *none) (*v2.NetworkCheck, error) {
	if !a.checks.take(account) {
		return nil, limited(c.w, 1, "a check of the account's private networks is under way")
	}
	defer a.checks.give(account)
	all, err := showAll(probeRecord)(svc.CheckNetwork(ctx, account))
	return &v2.NetworkCheck{Probes: all}, err
}

func networkRecord(v fleet.NetworkView) v2.Network {
	out := v2.Network{
		ID: string(v.Overlay.ID), CIDR: v.Overlay.CIDR.String(), VXLANID: int64(v.Overlay.VNI), Suffix: v.Suffix, Members: []v2.NetworkMember{},
	}
	for _, m := range v.Members {
		out.Members = append(out.Members, v2.NetworkMember{
			PodID: string(m.Pod), Name: m.Name, IP: m.Addr.String(), InternalDNS: fleet.InternalDNS(m.Pod, v.Suffix),
		})
	}
	return out
}

func probeRecord(p fleet.Probe) v2.Probe {
	out := v2.Probe{From: string(p.From), To: string(p.To), IP: p.Addr, OK: p.Problem == "", Problem: v2.Text(p.Problem)}
	if out.OK {
		out.Millis = &p.Millis
	}
	return out
}

// globalNetworking tells of a pod's place in the account's network.
func globalNetworking(v *fleet.PodView) v2.GlobalNetworking {
	at, in := v.Pod.AccountPlace()
	if !in {
		return v2.GlobalNetworking{}
	}
	return v2.GlobalNetworking{Enabled: true, IP: at.Addr.String(), InternalDNS: fleet.InternalDNS(v.Pod.ID, v.Suffix)}
}

func exampleNetworks() v2.NetworkList {
	return v2.NetworkList{Networks: []v2.Network{{
		ID: "account-a5f8k2m7q1w4z9", CIDR: "10.65.0.0/16", VXLANID: 4096, Suffix: "gantry.internal",
		Members: []v2.NetworkMember{{PodID: "k3n8w0zq5r7d2a", Name: "trainer", IP: "10.65.0.2", InternalDNS: "k3n8w0zq5r7d2a.gantry.internal"}},
	}}}
}

func exampleCheck() v2.NetworkCheck {
	return v2.NetworkCheck{Probes: []v2.Probe{
		{From: "k3n8w0zq5r7d2a", To: "m5p1x7rt2v9b4c", IP: "10.65.0.3", OK: true, Millis: new(0.4)},
		{From: "m5p1x7rt2v9b4c", To: "k3n8w0zq5r7d2a", IP: "10.65.0.2", Problem: "no answer within 1 s"},
	}}
}
