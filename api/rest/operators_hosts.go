package rest

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// Host is a host's record, for operators.
type Host struct {
	ID           string       `json:"id" doc:"Host identifier." example:"h7d2k9s4f1g6j3"`
	Name         string       `json:"name" doc:"Host name."`
	DataCenterID string       `json:"dataCenterId" doc:"Where it stands."`
	Cloud        string       `json:"cloud" doc:"Tier." enum:"SECURE,COMMUNITY"`
	State        string       `json:"state" doc:"joining: has not connected yet; ready: connected, takes pods; cordoned: connected, takes no new pods; draining: cordoned, and to be emptied; unreachable: its session is lost, its pods may still run; fenced: an operator vouches that nothing runs there any more; gone: removed for good." enum:"joining,ready,cordoned,draining,unreachable,fenced,gone"`
	Duty         string       `json:"duty" doc:"What operators want of it, whatever its state: open: it takes new pods; cordoned: it takes none; draining: it takes none and is to be emptied." enum:"open,cordoned,draining"`
	TakesNoPods  *string      `json:"takesNoPods" doc:"Why it gets no new pods now, or null."`
	KeepRunning  bool         `json:"keepRunning" doc:"Its drain moves no pods."`
	Drain        *HostDrain   `json:"drain" doc:"What was said of its drain, or null."`
	Labels       Labels       `json:"labels" doc:"Labels that operators gave it."`
	Roles        []string     `json:"roles" doc:"What it may do beside running pods: storage: it makes and deletes network volumes; s3: it serves their files over S3."`
	Volumes      []string     `json:"volumes" doc:"Kinds of backends whose network volumes it can mount: nfs, cephfs, local."`
	Alarm        *HostAlarm   `json:"alarm" doc:"What an operator has to look into, or null."`
	Epoch        uint64       `json:"epoch" doc:"Number of sessions."`
	Total        Amounts      `json:"total" doc:"What pods may use of it."`
	Used         Amounts      `json:"used" doc:"What pods hold of it."`
	GPUs         []HostGPU    `json:"gpus" doc:"Its GPUs."`
	GoneGPUs     []GoneGPU    `json:"goneGpus" doc:"Cordoned GPUs that it does not have any more."`
	UsedGPUs     int          `json:"usedGpus" doc:"GPUs that pods hold."`
	Pods         int          `json:"pods" doc:"Pods that hold something of it."`
	PublicIP     *string      `json:"publicIp" doc:"Public address of its pods' tcp ports; null when it publishes none."`
	PublicPorts  *PortRange   `json:"publicPorts" doc:"Ports of that address that it publishes; null when it publishes none."`
	CUDA         *string      `json:"cuda" doc:"Newest CUDA version that its driver offers, or null."`
	Driver       *string      `json:"driver" doc:"GPU driver, or null."`
	Kernel       *string      `json:"kernel" doc:"Kernel, or null."`
	Runtime      *string      `json:"runtime" doc:"Container runtime, or null."`
	AgentVersion *string      `json:"agentVersion" doc:"Version of its agent, or null."`
	RuntimeClass *string      `json:"runtimeClass" doc:"What isolates its pods beyond the kernel: gvisor, kata, or null."`
	Images       int          `json:"images" doc:"Images that it has, of which at most 200 are counted."`
	Notices      []HostNotice `json:"notices" doc:"What it does without, or what is wrong with it."`
	JoinedAt     Time         `json:"joinedAt" doc:"When it joined."`
	StateSince   *Time        `json:"stateSince" doc:"When its state last changed, or null."`
}

// HostDrain is what was said of a drain.
type HostDrain struct {
	Since    Time    `json:"since" doc:"When it began."`
	Reason   *string `json:"reason" doc:"What the owners of its pods are told, or null."`
	Deadline *Time   `json:"deadline" doc:"From when on what still runs is stopped, or null: never."`
}

// Labels are names and values that operators give a host.
type Labels map[string]string

// HostAlarm is what an operator has to look into.
type HostAlarm struct {
	Text string `json:"text" doc:"What happened, in a sentence."`
	At   Time   `json:"at" doc:"When it happened first."`
}

// HostNotice is something that an operator should know of a host.
type HostNotice struct {
	Code   string `json:"code" doc:"Stable, in snake case." example:"disk_unlimited"`
	Text   string `json:"text" doc:"One sentence."`
	Severe bool   `json:"severe" doc:"Whether the host takes no new pods because of it."`
}

// Amounts are shares of a host.
type Amounts struct {
	MilliCPU int64 `json:"milliCpu" doc:"Thousandths of a core."`
	MemoryMB int64 `json:"memoryMb" doc:"Units of 10^6 bytes."`
	DiskGB   int64 `json:"diskGb" doc:"Units of 10^9 bytes."`
}

// PortRange is a range of ports, both ends included.
type PortRange struct {
	From int `json:"from" doc:"First port." minimum:"1" maximum:"65535"`
	To   int `json:"to" doc:"Last port." minimum:"1" maximum:"65535"`
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
	Cordoned  *string `json:"cordoned" doc:"Why an operator took it out of service, or null. Of a MIG instance also when its GPU is cordoned."`
	PCI       *string `json:"pci" doc:"Bus address, or null." example:"0000:3b:00.0"`
	Parent    *string `json:"parent" doc:"Of a MIG instance the UUID of the GPU that it is a slice of, or null."`
}

// HostList is the answer to listing hosts.
type HostList struct {
	Page
	Hosts []Host `json:"hosts" doc:"The hosts that were asked for."`
}

// UpdateHostRequest is the body that changes a host.
type UpdateHostRequest struct {
	Cloud  string       `json:"cloud,omitempty" doc:"Tier of the host." enum:"SECURE,COMMUNITY" example:"COMMUNITY"`
	Roles  *[]string    `json:"roles,omitempty" doc:"All that it may do beside running pods; replaces what it might do before." maxItems:"2" enum:"storage,s3" example:"[\"storage\"]"`
	Labels LabelChanges `json:"labels,omitzero" doc:"Labels to set, and with null to remove; those that are not named stay." example:"{\"rack\":\"b4\",\"owner\":null}"`
}

// LabelChanges are labels to set, and with null to remove.
type LabelChanges map[string]*string

// Schema lets values be null.
func (LabelChanges) Schema(huma.Registry) *huma.Schema {
	most := maxLabelChanges
	return &huma.Schema{
		Type: huma.TypeObject, MaxProperties: &most,
		AdditionalProperties: &huma.Schema{Type: huma.TypeString, Nullable: true},
	}
}

// maxLabelChanges replaces all the labels that a host can have.
const maxLabelChanges = 128

// split tells what is to be set from what is to be removed.
func (l LabelChanges) split() (set map[string]string, unset []string) {
	set = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(l)) {
		if value := l[name]; value != nil {
			set[name] = *value
		} else {
			unset = append(unset, name)
		}
	}
	return set, unset
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
	return nullable(s, "stateSince", "publicPorts", "alarm", "drain")
}

// TransformSchema says which members may be null.
func (HostDrain) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "deadline")
}

func hostIDParam() *huma.Param { return pathParam("Host identifier.", "h7d2k9s4f1g6j3") }

// registerOperators registers what is for operators alone.
func (a *API) registerOperators() {
	a.registerHosts()
	a.registerHostDuties()
	a.registerHostGPUs()
	a.registerHostNetworks()
	a.registerCapacity()
	a.registerImages()
	a.registerCluster()
	a.registerCA()
	a.registerSnapshot()
	a.registerAccounts()
	a.registerCatalogEntries()
	a.registerPlaces()
	a.registerBackends()
	a.registerTemplateSource()
}

func (a *API) registerHosts() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	rack := "b4"
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/hosts", id: "listHosts", tag: "Operators", summary: "List hosts",
		text: "Lists the hosts with what their pods hold; those that are gone only where state names gone. Memory is in units of 10^6 bytes, disk in GB. " +
			"422: a label filter is not NAME=VALUE.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: hostFilters(), out: HostList{Hosts: []Host{exampleHost()}},
	}, a.listHosts)
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/hosts/{id}", id: "getHost", tag: "Operators", summary: "Get a host",
		text:  "Returns a host. 404: there is no such host.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{hostIDParam()}, out: exampleHost(),
	}, a.getHost)
	handle(a, route{
		method: http.MethodPatch, path: "/admin/v1/hosts/{id}", id: "updateHost", tag: "Operators", summary: "Change a host",
		text: "Says which tier of pods the host takes from now on, what it may do beside running pods, or sets and removes labels. Pods that are on it stay, at " +
			"their price. A host with the role storage gets the keys of the data center's volume backends. 404: there is no such host. 422: nothing is given.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{hostIDParam()},
		in: UpdateHostRequest{Cloud: "SECURE", Labels: LabelChanges{"rack": &rack, "owner": nil}}, out: exampleHost(),
	}, a.updateHost)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/hosts/tokens", id: "createJoinToken", tag: "Operators", summary: "Make a join token",
		text:  "Makes a token with which one host may join, once. A new data center is made.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, in: CreateTokenRequest{DataCenterID: "EU-RO-1", Cloud: "SECURE", TTLSeconds: 3600},
		out: JoinToken{Token: "one-use-text", ExpiresAt: exampleTime(60)},
	}, a.createToken)
}

func (a *API) listHosts(ctx context.Context, c *call, _ *none) (*HostList, error) {
	wanted, err := wantedHosts(c)
	if err != nil {
		return nil, err
	}
	views, err := a.svc.Hosts(ctx)
	all, err := showAll(hostRecord)(slices.DeleteFunc(views, func(v fleet.HostView) bool { return !wanted(&v.Host) }), err)
	return &HostList{Hosts: all}, err
}

func (a *API) getHost(ctx context.Context, c *call, _ *none) (*Host, error) {
	id, err := pathID[fleet.HostID](c, "host")
	if err != nil {
		return nil, err
	}
	return show(hostRecord)(a.svc.Host(ctx, id))
}

func (a *API) updateHost(ctx context.Context, c *call, in *UpdateHostRequest) (*Host, error) {
	id, err := pathID[fleet.HostID](c, "host")
	if err != nil {
		return nil, err
	}
	var view fleet.HostView
	if in.Labels != nil { // first, since the service may refuse them
		set, unset := in.Labels.split()
		if view, err = a.svc.SetHostLabels(ctx, id, set, unset); err != nil {
			return nil, err
		}
	}
	if in.Roles != nil {
		roles := make([]fleet.HostRole, 0, len(*in.Roles))
		for _, r := range *in.Roles {
			roles = append(roles, fleet.HostRole(r))
		}
		if view, err = a.svc.SetHostRoles(ctx, id, roles); err != nil {
			return nil, err
		}
	}
	if in.Cloud != "" {
		view, err = a.svc.SetHostCloud(ctx, id, fleet.Cloud(in.Cloud))
	}
	return show(hostRecord)(view, err)
}

func (in *UpdateHostRequest) check() []string {
	if in.Cloud == "" && in.Labels == nil && in.Roles == nil {
		return []string{"$: must have 'cloud', 'labels' or 'roles'"}
	}
	return nil
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
