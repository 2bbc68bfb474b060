package rest

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// NetworkSettings are the settings of private networks.
type NetworkSettings struct {
	Pool          string   `json:"pool" doc:"Range of IPv4 from which each network gets one of its own." example:"10.64.0.0/10"`
	Bits          int      `json:"bits" doc:"Length of a network's range." minimum:"16" maximum:"28" example:"16"`
	FirstVXLANID  int64    `json:"firstVxlanId" doc:"Least VXLAN network identifier." minimum:"1" maximum:"16777215" example:"4096"`
	Suffix        string   `json:"suffix" doc:"What internal names end with." example:"gantry.internal"`
	Aliases       []string `json:"aliases" doc:"Further suffixes that mean the same."`
	MTU           int      `json:"mtu" doc:"Of pods' links in bytes. What is between hosts must carry 130 more." minimum:"1280" maximum:"8930" example:"1370"`
	VXLANPort     int      `json:"vxlanPort" doc:"UDP port of VXLAN." minimum:"1" maximum:"65535" example:"4789"`
	WireGuardPort int      `json:"wireguardPort" doc:"UDP port of WireGuard on hosts that name no other." minimum:"1" maximum:"65535" example:"51820"`
	TunnelRange   string   `json:"tunnelRange" doc:"Range of IPv4 from which each host gets its address in the tunnel." example:"100.127.0.0/16"`
	PodMbps       int      `json:"podMbps" doc:"Most that a pod sends, and apart from that receives, on each of its links, in 10^6 bits per second; 0: nothing limits it." minimum:"0" maximum:"400000" example:"0"`
	GraceSeconds  int      `json:"graceSeconds" doc:"Seconds for which the address of a pod that is gone belongs to nobody." minimum:"0" maximum:"86400" example:"300"`
}

// UpdateNetworkRequest is the body that changes the settings of private networks; what it leaves out stays.
type UpdateNetworkRequest struct {
	Pool          *string   `json:"pool,omitempty" doc:"Range of IPv4 from which each network that is made from now on gets one of its own." maxLength:"18" pattern:"^[0-9./]+$" patternDescription:"an IPv4 range such as 10.64.0.0/10" example:"10.64.0.0/10"`
	Bits          *int      `json:"bits,omitempty" doc:"Length of the range of a network that is made from now on." minimum:"16" maximum:"28" example:"16"`
	FirstVXLANID  *int64    `json:"firstVxlanId,omitempty" doc:"Least VXLAN network identifier of networks that are made from now on." minimum:"1" maximum:"16777215" example:"4096"`
	Suffix        *string   `json:"suffix,omitempty" doc:"What internal names end with. The former one is no name any more unless it is among the aliases." minLength:"1" maxLength:"191" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$" patternDescription:"labels of lower-case letters, digits and '-', joined by dots" example:"gantry.internal"`
	Aliases       *[]string `json:"aliases,omitempty" doc:"Further suffixes that mean the same; replaces those of before." maxItems:"8" example:"[\"runpod.internal\"]"`
	MTU           *int      `json:"mtu,omitempty" doc:"Of pods' links in bytes, from their next start on. What is between hosts must carry 130 more." minimum:"1280" maximum:"8930" example:"1370"`
	VXLANPort     *int      `json:"vxlanPort,omitempty" doc:"UDP port of VXLAN, the same on all hosts." minimum:"1" maximum:"65535" example:"4789"`
	WireGuardPort *int      `json:"wireguardPort,omitempty" doc:"UDP port of WireGuard on hosts that name no other." minimum:"1" maximum:"65535" example:"51820"`
	TunnelRange   *string   `json:"tunnelRange,omitempty" doc:"Range of IPv4 from which each host that joins from now on gets its address in the tunnel." maxLength:"18" pattern:"^[0-9./]+$" patternDescription:"an IPv4 range such as 100.127.0.0/16" example:"100.127.0.0/16"`
	PodMbps       *int      `json:"podMbps,omitempty" doc:"Most that a pod sends, and apart from that receives, on each of its links, in 10^6 bits per second, at once; 0: nothing limits it." minimum:"0" maximum:"400000" example:"1000"`
	GraceSeconds  *int      `json:"graceSeconds,omitempty" doc:"Seconds for which the address of a pod that is gone belongs to nobody." minimum:"0" maximum:"86400" example:"300"`
}

// HostNetwork tells of a host's network.
type HostNetwork struct {
	Tunnel   string       `json:"tunnel" doc:"What encrypts between hosts: the kernel's WireGuard, a process, or nothing." enum:"kernel,user space,none"`
	Problems []string     `json:"problems" doc:"What does not work, in sentences."`
	Steps    []string     `json:"steps" doc:"What would make the host's network as it should be, in words; empty: it is."`
	Tunnels  []HostTunnel `json:"tunnels" doc:"Ways to the other hosts with pods of the networks that are here."`
	Drops    []HostDrop   `json:"drops" doc:"What rules and tunnel dropped since the rules were written last and the tunnel began."`
	Desired  string       `json:"desired" doc:"What should be, an object a line."`
	Real     string       `json:"real" doc:"What the kernel has, an object a line."`
}

// HostTunnel is the way to another host.
type HostTunnel struct {
	HostID    string  `json:"hostId" doc:"The other host." example:"h7d2k9s4f1g6j3"`
	Addr      string  `json:"addr" doc:"Its address in the tunnel." example:"100.127.0.3"`
	Endpoint  *string `json:"endpoint" doc:"Where it was heard last, or null." example:"203.0.113.9:51820"`
	Handshake *Time   `json:"handshake" doc:"Last handshake, or null. Older than 3 minutes, nothing gets through."`
	Received  int64   `json:"received" doc:"Bytes." minimum:"0"`
	Sent      int64   `json:"sent" doc:"Bytes." minimum:"0"`
	Plain     bool    `json:"plain" doc:"True where frames go there without the tunnel: the data center's underlay is private."`
}

// HostDrop counts what a rule dropped.
type HostDrop struct {
	Why     string `json:"why" doc:"A word for the reason, such as spoofed, flooded, foreign, host, denied, closed, scheduler, unasked, crowded, malformed, unready or unanswered." example:"spoofed"`
	Packets uint64 `json:"packets" doc:"Packets."`
	Bytes   uint64 `json:"bytes" doc:"Bytes."`
}

// TransformSchema says which members may be null.
func (HostTunnel) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "handshake")
}

func (a *API) registerHostNetworks() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	settings := networkSettings(fleet.DefaultNetworkSettings())
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/network", id: "getNetworkSettings", tag: "Operators", summary: "Get the settings of private networks",
		text:  "Returns the settings of private networks.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: settings,
	}, a.getNetworkSettings)
	handle(a, route{
		method: http.MethodPatch, path: "/admin/v1/network", id: "updateNetworkSettings", tag: "Operators", summary: "Change the settings of private networks",
		text: "Changes settings of private networks; what is left out stays. Networks and addresses that are there stay as they are. 400: hosts have tunnel " +
			"addresses outside of tunnelRange. 422: a range is not one of IPv4, a pool is smaller than a network of it, ranges overlap, or a suffix is given twice.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, in: UpdateNetworkRequest{PodMbps: new(1000)}, out: settings,
	}, a.updateNetworkSettings)
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/hosts/{id}/network", id: "getHostNetwork", tag: "Operators", summary: "See a host's network",
		text:  "Asks a host what its network should be, what it is, and what it dropped. 503: the host is not connected. " + textNoHost,
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{hostIDParam()}, out: exampleHostNetwork(),
	}, a.getHostNetwork)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/accounts/{id}/network-check", id: "checkAccountNetwork", tag: "Operators", summary: "Check an account's private networks",
		text:  textCheck + " 404: there is no such account.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{accountIDParam()}, out: exampleCheck(),
	}, func(ctx context.Context, c *call, _ *none) (*NetworkCheck, error) {
		id, err := pathID[fleet.AccountID](c, "account")
		if err != nil {
			return nil, err
		}
		return a.checkNetwork(ctx, c, id)
	})
}

func (a *API) getNetworkSettings(ctx context.Context, _ *call, _ *none) (*NetworkSettings, error) {
	return show(networkSettings)(a.svc.NetworkSettings(ctx))
}

func (a *API) updateNetworkSettings(ctx context.Context, _ *call, in *UpdateNetworkRequest) (*NetworkSettings, error) {
	s, err := a.svc.NetworkSettings(ctx)
	if err != nil {
		return nil, err
	}
	in.apply(&s)
	return show(networkSettings)(s, a.svc.PutNetworkSettings(ctx, s))
}

func (a *API) getHostNetwork(ctx context.Context, c *call, _ *none) (*HostNetwork, error) {
	id, err := pathID[fleet.HostID](c, "host")
	if err != nil {
		return nil, err
	}
	return show(hostNetwork)(a.svc.HostNetwork(ctx, id))
}

// namesPort is where pods' names are answered on every host.
const namesPort = 53

// check finds ranges that are none, and a port that is taken on every host.
func (in *UpdateNetworkRequest) check() []string {
	var out []string
	for _, r := range []struct {
		name string
		text *string
	}{{"pool", in.Pool}, {"tunnelRange", in.TunnelRange}} {
		if r.text == nil {
			continue
		}
		if p, err := netip.ParsePrefix(*r.text); err != nil || !p.Addr().Is4() || p != p.Masked() {
			out = append(out, "$."+r.name+": must be an IPv4 range such as 10.64.0.0/10, without bits set after its length")
		}
	}
	for _, p := range []struct {
		name string
		port *int
	}{{"vxlanPort", in.VXLANPort}, {"wireguardPort", in.WireGuardPort}} {
		if p.port != nil && *p.port == namesPort {
			out = append(out, "$."+p.name+": must not be 53, at which hosts answer the names of pods")
		}
	}
	return out
}

// apply puts what the body names over what is there; check found it good.
func (in *UpdateNetworkRequest) apply(s *fleet.NetworkSettings) {
	prefix := func(into *netip.Prefix, text *string) {
		if text != nil {
			*into, _ = netip.ParsePrefix(*text)
		}
	}
	prefix(&s.Pool, in.Pool)
	prefix(&s.Tunnel, in.TunnelRange)
	put(&s.Bits, in.Bits)
	put(&s.Suffix, in.Suffix)
	put(&s.Aliases, in.Aliases)
	put(&s.MTU, in.MTU)
	put(&s.VXLANPort, in.VXLANPort)
	put(&s.WireGuardPort, in.WireGuardPort)
	put(&s.PodMbps, in.PodMbps)
	if in.FirstVXLANID != nil {
		s.FirstVNI = uint32(*in.FirstVXLANID) //nolint:gosec // bounded by the schema
	}
	if in.GraceSeconds != nil {
		s.Grace = time.Duration(*in.GraceSeconds) * time.Second
	}
}

// put takes over a member that a body names.
func put[T any](into, given *T) {
	if given != nil {
		*into = *given
	}
}

func networkSettings(s fleet.NetworkSettings) NetworkSettings {
	return NetworkSettings{
		Pool: s.Pool.String(), Bits: s.Bits, FirstVXLANID: int64(s.FirstVNI), Suffix: s.Suffix, Aliases: append([]string{}, s.Aliases...), MTU: s.MTU,
		VXLANPort: s.VXLANPort, WireGuardPort: s.WireGuardPort, TunnelRange: s.Tunnel.String(), PodMbps: s.PodMbps, GraceSeconds: int(s.Grace / time.Second),
	}
}

func hostNetwork(n fleet.HostNetwork) HostNetwork {
	out := HostNetwork{
		Tunnel: n.Tunnel, Problems: append([]string{}, n.Problems...), Steps: append([]string{}, n.Steps...), Tunnels: []HostTunnel{}, Drops: []HostDrop{},
		Desired: n.Desired, Real: n.Real,
	}
	for _, p := range n.Tunnels {
		out.Tunnels = append(out.Tunnels, HostTunnel{
			HostID: string(p.Host), Addr: p.Addr, Endpoint: textOrNull(p.Endpoint), Handshake: timeOrNull(p.Handshake),
			Received: p.Received, Sent: p.Sent, Plain: p.Plain,
		})
	}
	for _, d := range n.Drops {
		out.Drops = append(out.Drops, HostDrop(d))
	}
	return out
}

func exampleHostNetwork() HostNetwork {
	shaken, endpoint := exampleTime(1), "203.0.113.9:51820"
	return HostNetwork{
		Tunnel: "kernel", Problems: []string{}, Steps: []string{},
		Tunnels: []HostTunnel{{HostID: "h7d2k9s4f1g6j3", Addr: "100.127.0.3", Endpoint: &endpoint, Handshake: &shaken, Received: 42_000, Sent: 42_000}},
		Drops:   []HostDrop{{Why: "spoofed", Packets: 3, Bytes: 180}}, Desired: "bridge gb4096\n", Real: "bridge gb4096\n",
	}
}
