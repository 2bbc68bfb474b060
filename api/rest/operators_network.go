package rest

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

func (a *API) registerHostNetworks() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	settings := networkSettings(fleet.DefaultNetworkSettings())
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/network", id: "getNetworkSettings", tag: "Operators", summary: "Get the settings of private networks",
		text:  "Returns the settings of private networks.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: settings,
	}, getNetworkSettings)
	on(a, route{
		method: http.MethodPatch, path: "/admin/v1/network", id: "updateNetworkSettings", tag: "Operators", summary: "Change the settings of private networks",
		text: "Changes settings of private networks; what is left out stays. Networks and addresses that are there stay as they are. 400: hosts have tunnel " +
			"addresses outside of tunnelRange. 422: a range is not one of IPv4, a pool is smaller than a network of it, ranges overlap, or a suffix is given twice.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, in: admin.UpdateNetworkRequest{PodMbps: new(1000)}, out: settings,
	}, updateNetworkSettings)
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/hosts/{id}/network", id: "getHostNetwork", tag: "Operators", summary: "See a host's network",
		text:  "Asks a host what its network should be, what it is, and what it dropped. 503: the host is not connected. " + textNoHost,
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{hostIDParam()}, out: exampleHostNetwork(),
	}, byID("host", getHostNetwork))
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/accounts/{id}/network-check", id: "checkAccountNetwork", tag: "Operators", summary: "Check an account's private networks",
		text:  textCheck + " 404: there is no such account.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{accountIDParam()}, out: exampleCheck(),
	}, byID("account", a.checkNetwork))
}

func getNetworkSettings(ctx context.Context, svc NetworkService, _ *call, _ *none) (*admin.NetworkSettings, error) {
	return show(networkSettings)(svc.NetworkSettings(ctx))
}

func updateNetworkSettings(ctx context.Context, svc NetworkService, _ *call, in *admin.UpdateNetworkRequest) (*admin.NetworkSettings, error) {
	s, err := svc.NetworkSettings(ctx)
	if err != nil {
		return nil, err
	}
	applyNetwork(in, &s)
	return show(networkSettings)(s, svc.PutNetworkSettings(ctx, s))
}

func getHostNetwork(ctx context.Context, svc NetworkService, id fleet.HostID, _ *call, _ *none) (*admin.HostNetwork, error) {
	return show(hostNetwork)(svc.HostNetwork(ctx, id))
}

// namesPort is where pods' names are answered on every host.
const namesPort = 53

// check finds ranges that are none, and a port that is taken on every host.
func checkUpdateNetwork(in *admin.UpdateNetworkRequest) []string {
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
func applyNetwork(in *admin.UpdateNetworkRequest, s *fleet.NetworkSettings) {
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

func networkSettings(s fleet.NetworkSettings) admin.NetworkSettings {
	return admin.NetworkSettings{
		Pool: s.Pool.String(), Bits: s.Bits, FirstVXLANID: int64(s.FirstVNI), Suffix: s.Suffix, Aliases: append([]string{}, s.Aliases...), MTU: s.MTU,
		VXLANPort: s.VXLANPort, WireGuardPort: s.WireGuardPort, TunnelRange: s.Tunnel.String(), PodMbps: s.PodMbps, GraceSeconds: int(s.Grace / time.Second),
	}
}

func hostNetwork(n fleet.HostNetwork) admin.HostNetwork {
	out := admin.HostNetwork{
		Tunnel: n.Tunnel, Problems: append([]string{}, n.Problems...), Steps: append([]string{}, n.Steps...), Tunnels: []admin.HostTunnel{}, Drops: []admin.HostDrop{},
		Desired: n.Desired, Real: n.Real,
	}
	for _, p := range n.Tunnels {
		out.Tunnels = append(out.Tunnels, admin.HostTunnel{
			HostID: string(p.Host), Addr: p.Addr, Endpoint: v2.Text(p.Endpoint), Handshake: v2.AtOrNull(p.Handshake),
			Received: p.Received, Sent: p.Sent, Plain: p.Plain,
		})
	}
	for _, d := range n.Drops {
		out.Drops = append(out.Drops, admin.HostDrop(d))
	}
	return out
}

func exampleHostNetwork() admin.HostNetwork {
	shaken := exampleTime(1)
	return admin.HostNetwork{
		Tunnel: "kernel", Problems: []string{}, Steps: []string{},
		Tunnels: []admin.HostTunnel{{HostID: "h7d2k9s4f1g6j3", Addr: "100.127.0.3", Endpoint: "203.0.113.9:51820", Handshake: &shaken, Received: 42_000, Sent: 42_000}},
		Drops:   []admin.HostDrop{{Why: "spoofed", Packets: 3, Bytes: 180}}, Desired: "bridge gb4096\n", Real: "bridge gb4096\n",
	}
}
