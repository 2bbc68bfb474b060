package admin

import (
	"gantry/api/v2"
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
	HostID    string   `json:"hostId" doc:"The other host." example:"h7d2k9s4f1g6j3"`
	Addr      string   `json:"addr" doc:"Its address in the tunnel." example:"100.127.0.3"`
	Endpoint  v2.Text  `json:"endpoint" doc:"Where it was heard last, or null." example:"203.0.113.9:51820"`
	Handshake *v2.Time `json:"handshake" doc:"Last handshake, or null. Older than 3 minutes, nothing gets through."`
	Received  int64    `json:"received" doc:"Bytes." minimum:"0"`
	Sent      int64    `json:"sent" doc:"Bytes." minimum:"0"`
	Plain     bool     `json:"plain" doc:"True where frames go there without the tunnel: the data center's underlay is private."`
}

// HostDrop counts what a rule dropped.
type HostDrop struct {
	Why     string `json:"why" doc:"A word for the reason, such as spoofed, flooded, foreign, host, denied, closed, scheduler, unasked or crowded." example:"spoofed"`
	Packets uint64 `json:"packets" doc:"Packets."`
	Bytes   uint64 `json:"bytes" doc:"Bytes."`
}
