package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// Host is a host's record, for operators.
type Host struct {
	ID           string    `json:"id" doc:"Host identifier." example:"h7d2k9s4f1g6j3"`
	Name         string    `json:"name" doc:"Host name."`
	DataCenterID string    `json:"dataCenterId" doc:"Where it stands."`
	Cloud        string    `json:"cloud" doc:"Tier." enum:"SECURE,COMMUNITY"`
	State        string    `json:"state" doc:"joining: has not connected yet; ready: connected; unreachable: its session is lost, its pods may still run." enum:"joining,ready,unreachable"`
	Epoch        uint64    `json:"epoch" doc:"Number of sessions."`
	Total        Amounts   `json:"total" doc:"What pods may use of it."`
	Used         Amounts   `json:"used" doc:"What pods hold of it."`
	GPUs         []HostGPU `json:"gpus" doc:"Its GPUs."`
	UsedGPUs     int       `json:"usedGpus" doc:"GPUs that pods hold."`
	Pods         int       `json:"pods" doc:"Pods that hold something of it."`
	CUDA         *string   `json:"cuda" doc:"Newest CUDA version that its driver offers, or null."`
	Driver       *string   `json:"driver" doc:"GPU driver, or null."`
	Kernel       *string   `json:"kernel" doc:"Kernel, or null."`
	Runtime      *string   `json:"runtime" doc:"Container runtime, or null."`
	AgentVersion *string   `json:"agentVersion" doc:"Version of its agent, or null."`
	JoinedAt     Time      `json:"joinedAt" doc:"When it joined."`
	StateSince   *Time     `json:"stateSince" doc:"When its state last changed, or null."`
}

// Amounts are shares of a host.
type Amounts struct {
	MilliCPU int64 `json:"milliCpu" doc:"Thousandths of a core."`
	MemoryMB int64 `json:"memoryMb" doc:"Units of 10^6 bytes."`
	DiskGB   int64 `json:"diskGb" doc:"Units of 10^9 bytes."`
}

// HostGPU is a GPU of a host.
type HostGPU struct {
	UUID      string  `json:"uuid" doc:"Device UUID."`
	Type      string  `json:"type" doc:"NVIDIA's device name."`
	MemoryMB  int64   `json:"memoryMb" doc:"Units of 10^6 bytes."`
	NUMA      int     `json:"numa" doc:"NUMA node."`
	Island    int     `json:"island" doc:"GPUs of one number are joined by NVLink."`
	Simulated bool    `json:"simulated" doc:"True for a pretended device."`
	Sick      *string `json:"sick" doc:"Why it is out of placement; null when healthy."`
}

// HostList is the answer to listing hosts.
type HostList struct {
	Hosts []Host `json:"hosts" doc:"All hosts."`
}

// Account is an account's record.
type Account struct {
	ID        string `json:"id" doc:"Account identifier." example:"a5f8k2m7q1w4z9"`
	Name      string `json:"name" doc:"Name."`
	CreatedAt Time   `json:"createdAt" doc:"When it was made."`
}

// AccountList is the answer to listing accounts.
type AccountList struct {
	Accounts []Account `json:"accounts" doc:"All accounts."`
}

// CreateAccountRequest is the body that makes an account.
type CreateAccountRequest struct {
	Name string `json:"name" doc:"Name of the account." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f]*$" patternDescription:"text without control characters" example:"research"`
}

// CreateAccountKeyRequest is the body that makes a key for an account.
type CreateAccountKeyRequest struct {
	Name   string `json:"name" doc:"Name of the key." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f]*$" patternDescription:"text without control characters" example:"first"`
	Preset string `json:"preset" doc:"all, readOnly, or admin, which also opens the operators' routes." enum:"all,readOnly,admin" example:"all"`
}

// CreateTokenRequest is the body that makes a join token.
type CreateTokenRequest struct {
	DataCenterID string `json:"dataCenterId" doc:"Data center of the host; made when it is new." minLength:"1" maxLength:"63" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits, '.', '_' and '-', starting with a letter or digit" example:"EU-RO-1"`
	Cloud        string `json:"cloud,omitempty" doc:"Tier of the host." enum:"SECURE,COMMUNITY" default:"SECURE"`
	TTLSeconds   int    `json:"ttlSeconds,omitempty" doc:"Seconds until the token ends to work, 60 to 604800." minimum:"60" maximum:"604800" default:"3600" example:"3600"`
}

// JoinToken lets one host join, once.
type JoinToken struct {
	Token     string `json:"token" doc:"The token. It is not stored and cannot be shown again."`
	ExpiresAt Time   `json:"expiresAt" doc:"When it ends to work."`
}

const defaultTokenTTL = time.Hour

// TransformSchema says which members may be null.
func (Host) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "stateSince")
}

func (a *API) registerAdmin() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/hosts", id: "listHosts", tag: "Operators", summary: "List hosts",
		text:  "Lists all hosts with what their pods hold. Memory is in units of 10^6 bytes, disk in GB.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: HostList{Hosts: []Host{exampleHost()}},
	}, a.listHosts)
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/hosts/{id}", id: "getHost", tag: "Operators", summary: "Get a host",
		text:  "Returns a host. 404: there is no such host.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{pathParam("Host identifier.", "h7d2k9s4f1g6j3")}, out: exampleHost(),
	}, a.getHost)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/hosts/tokens", id: "createJoinToken", tag: "Operators", summary: "Make a join token",
		text:  "Makes a token with which one host may join, once. A new data center is made.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, in: CreateTokenRequest{DataCenterID: "EU-RO-1", Cloud: "SECURE", TTLSeconds: 3600},
		out: JoinToken{Token: "one-use-text", ExpiresAt: exampleTime(60)},
	}, a.createToken)
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/accounts", id: "listAccounts", tag: "Operators", summary: "List accounts",
		text: "Lists all accounts.", scope: read, limit: limit.PerAccount, status: http.StatusOK, out: AccountList{Accounts: []Account{exampleAccount()}},
	}, a.listAccounts)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/accounts", id: "createAccount", tag: "Operators", summary: "Make an account",
		text: "Makes an account; it has no key yet.", scope: write, limit: limit.PerAccount, status: http.StatusCreated,
		in: CreateAccountRequest{Name: "research"}, out: exampleAccount(),
	}, a.createAccount)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/accounts/{id}/keys", id: "createAccountKey", tag: "Operators", summary: "Make a key for an account",
		text:  "Makes an API key for an account and answers its text once. 404: there is no such account.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, params: []*huma.Param{pathParam("Account identifier.", "a5f8k2m7q1w4z9")},
		in: CreateAccountKeyRequest{Name: "first", Preset: "all"}, out: exampleNewKey(),
	}, a.createAccountKey)
}

func (a *API) listHosts(ctx context.Context, _ *call, _ *none) (*HostList, error) {
	views, err := a.svc.Hosts(ctx)
	if err != nil {
		return nil, err
	}
	out := &HostList{Hosts: []Host{}}
	for _, v := range views {
		out.Hosts = append(out.Hosts, hostRecord(v))
	}
	return out, nil
}

func (a *API) getHost(ctx context.Context, c *call, _ *none) (*Host, error) {
	id := c.args.text("id")
	if !fleet.ValidID(id) {
		return nil, fleet.NotFound("host")
	}
	view, err := a.svc.Host(ctx, fleet.HostID(id))
	if err != nil {
		return nil, err
	}
	out := hostRecord(view)
	return &out, nil
}

func (a *API) createToken(ctx context.Context, _ *call, in *CreateTokenRequest) (*JoinToken, error) {
	cloud, ttl := fleet.CloudSecure, defaultTokenTTL
	if in.Cloud != "" {
		cloud = fleet.Cloud(in.Cloud)
	}
	if in.TTLSeconds > 0 {
		ttl = time.Duration(in.TTLSeconds) * time.Second
	}
	text, expires, err := a.svc.CreateJoinToken(ctx, fleet.DataCenterID(in.DataCenterID), cloud, ttl)
	if err != nil {
		return nil, err
	}
	return &JoinToken{Token: text.Reveal(), ExpiresAt: Time{expires}}, nil
}

func (a *API) listAccounts(ctx context.Context, _ *call, _ *none) (*AccountList, error) {
	accounts, err := a.svc.Accounts(ctx)
	if err != nil {
		return nil, err
	}
	out := &AccountList{Accounts: []Account{}}
	for _, acc := range accounts {
		out.Accounts = append(out.Accounts, accountRecord(acc.Account))
	}
	return out, nil
}

func (a *API) createAccount(ctx context.Context, _ *call, in *CreateAccountRequest) (*Account, error) {
	acc, err := a.svc.CreateAccount(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	out := accountRecord(acc)
	return &out, nil
}

func (a *API) createAccountKey(ctx context.Context, c *call, in *CreateAccountKeyRequest) (*NewKey, error) {
	id := c.args.text("id")
	if !fleet.ValidID(id) {
		return nil, fleet.NotFound("account")
	}
	key, text, err := a.svc.CreateAccountKey(ctx, fleet.AccountID(id), fleet.KeyRequest{Name: in.Name, Preset: in.Preset})
	if err != nil {
		return nil, err
	}
	return &NewKey{Key: keyRecord(key), Text: text.Reveal()}, nil
}

func accountRecord(acc fleet.Account) Account {
	return Account{ID: string(acc.ID), Name: acc.Name, CreatedAt: Time{acc.CreatedAt}}
}

func hostRecord(v fleet.HostView) Host {
	h, inv := v.Host, v.Host.Inventory
	out := Host{
		ID: string(h.ID), Name: h.Name, DataCenterID: string(h.DataCenter), Cloud: string(h.Cloud), State: string(h.State),
		Epoch: h.Epoch, Total: Amounts(inv.Total), Used: Amounts(v.Used), GPUs: []HostGPU{}, UsedGPUs: v.UsedGPUs, Pods: v.Pods,
		CUDA: textOrNull(inv.CUDA), Driver: textOrNull(inv.Driver), Kernel: textOrNull(inv.Kernel),
		Runtime: textOrNull(inv.Runtime), AgentVersion: textOrNull(inv.AgentVersion),
		JoinedAt: Time{h.JoinedAt}, StateSince: timeOrNull(h.SeenAt),
	}
	for _, g := range inv.GPUs {
		out.GPUs = append(out.GPUs, HostGPU{
			UUID: g.UUID, Type: g.Type, MemoryMB: g.MemoryMB, NUMA: g.NUMA, Island: g.Island,
			Simulated: g.Simulated, Sick: textOrNull(g.Sick),
		})
	}
	return out
}
