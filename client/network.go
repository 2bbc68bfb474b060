package client

import (
	"context"
	"net/http"
	"time"
)

// Network is a private network of the account.
type Network struct {
	ID      string          `json:"id"`
	CIDR    string          `json:"cidr"`
	VXLANID int64           `json:"vxlanId"`
	Suffix  string          `json:"suffix"` // of the members' names
	Members []NetworkMember `json:"members"`
}

// NetworkMember is a pod in a private network.
type NetworkMember struct {
	PodID       string `json:"podId"`
	Name        string `json:"name"`
	IP          string `json:"ip"`
	InternalDNS string `json:"internalDns"`
}

// NetworkList is the answer of the list of private networks.
type NetworkList struct {
	Networks []Network `json:"networks"`
}

// Networks lists the account's private networks with the pods in them.
func (c *Client) Networks(ctx context.Context) (Answer[NetworkList], error) {
	return list[NetworkList](ctx, c, "/v2/network", nil)
}

// Probe is one look from a pod to another.
type Probe struct {
	From    string   `json:"from"`
	To      string   `json:"to"`
	IP      string   `json:"ip"`
	OK      bool     `json:"ok"`
	Millis  *float64 `json:"ms"`      // nil: there was no answer
	Problem string   `json:"problem"` // why
}

// NetworkCheck is the answer of a check of private networks.
type NetworkCheck struct {
	Probes []Probe `json:"probes"`
}

// CheckNetwork has the account's pods reach for each other.
func (c *Client) CheckNetwork(ctx context.Context) (Answer[NetworkCheck], error) {
	return call[NetworkCheck](ctx, c, http.MethodPost, "/v2/network/check", nil, nil)
}

// CheckAccountNetwork has the pods of an account reach for each other; for operators.
func (c *Client) CheckAccountNetwork(ctx context.Context, account string) (Answer[NetworkCheck], error) {
	return call[NetworkCheck](ctx, c, http.MethodPost, "/admin/v1/accounts/"+word(account)+"/network-check", nil, nil)
}

// NetworkSettings are the settings of private networks.
type NetworkSettings struct {
	Pool          string   `json:"pool"`
	Bits          int      `json:"bits"`
	FirstVXLANID  int64    `json:"firstVxlanId"`
	Suffix        string   `json:"suffix"`
	Aliases       []string `json:"aliases"`
	MTU           int      `json:"mtu"` // bytes
	VXLANPort     int      `json:"vxlanPort"`
	WireGuardPort int      `json:"wireguardPort"`
	TunnelRange   string   `json:"tunnelRange"`
	PodMbps       int      `json:"podMbps"` // 10^6 bits per second; 0: no limit
	GraceSeconds  int      `json:"graceSeconds"`
}

// NetworkSettings reads the settings of private networks; for operators.
func (c *Client) NetworkSettings(ctx context.Context) (Answer[NetworkSettings], error) {
	return call[NetworkSettings](ctx, c, http.MethodGet, "/admin/v1/network", nil, nil)
}

// UpdateNetwork is the body of a change of the settings of private networks; nil leaves one as it is.
type UpdateNetwork struct {
	Pool          *string   `json:"pool,omitempty"`
	Bits          *int      `json:"bits,omitempty"`
	FirstVXLANID  *int64    `json:"firstVxlanId,omitempty"`
	Suffix        *string   `json:"suffix,omitempty"`
	Aliases       *[]string `json:"aliases,omitempty"` // replaces all
	MTU           *int      `json:"mtu,omitempty"`
	VXLANPort     *int      `json:"vxlanPort,omitempty"`
	WireGuardPort *int      `json:"wireguardPort,omitempty"`
	TunnelRange   *string   `json:"tunnelRange,omitempty"`
	PodMbps       *int      `json:"podMbps,omitempty"`
	GraceSeconds  *int      `json:"graceSeconds,omitempty"`
}

// UpdateNetworkSettings changes settings of private networks; for operators.
func (c *Client) UpdateNetworkSettings(ctx context.Context, body UpdateNetwork) (Answer[NetworkSettings], error) {
	return call[NetworkSettings](ctx, c, http.MethodPatch, "/admin/v1/network", nil, body)
}

// HostNetwork is what a host tells of its network.
type HostNetwork struct {
	Tunnel   string       `json:"tunnel"` // kernel, user space or none
	Problems []string     `json:"problems"`
	Steps    []string     `json:"steps"` // that make Real as Desired; empty: it is
	Tunnels  []HostTunnel `json:"tunnels"`
	Drops    []HostDrop   `json:"drops"`
	Desired  string       `json:"desired"` // an object a line
	Real     string       `json:"real"`
}

// HostTunnel is the way to another host.
type HostTunnel struct {
	HostID    string     `json:"hostId"`
	Addr      string     `json:"addr"`
	Endpoint  string     `json:"endpoint"`  // empty: not heard yet
	Handshake *time.Time `json:"handshake"` // nil: none yet
	Received  int64      `json:"received"`  // bytes
	Sent      int64      `json:"sent"`
	Plain     bool       `json:"plain"` // not encrypted
}

// HostDrop counts what a host's rule dropped.
type HostDrop struct {
	Why     string `json:"why"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// HostNetwork asks a host about its network; for operators.
func (c *Client) HostNetwork(ctx context.Context, id string) (Answer[HostNetwork], error) {
	return call[HostNetwork](ctx, c, http.MethodGet, "/admin/v1/hosts/"+word(id)+"/network", nil, nil)
}
