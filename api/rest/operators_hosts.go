package rest

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// HostService shows hosts and keeps what operators say of them.
type HostService interface {
	Hosts(ctx context.Context) ([]fleet.HostView, error)
	Host(ctx context.Context, id fleet.HostID) (fleet.HostView, error)
	// CreateJoinToken returns the text of a one-use token for a host of the data center, which is
	// made when it is new.
	CreateJoinToken(ctx context.Context, dc fleet.DataCenterID, cloud fleet.Cloud, ttl time.Duration) (fleet.Secret, time.Time, error)
	SetHostCloud(ctx context.Context, id fleet.HostID, cloud fleet.Cloud) (fleet.HostView, error)
	// SetHostRoles replaces what the host may do beside running pods.
	SetHostRoles(ctx context.Context, id fleet.HostID, roles []fleet.HostRole) (fleet.HostView, error)
	SetHostLabels(ctx context.Context, id fleet.HostID, set map[string]string, unset []string) (fleet.HostView, error)
	// CordonGPU takes a GPU of a host, by UUID or place, out of service; OpenGPU ends that, with forget also of one that is gone.
	CordonGPU(ctx context.Context, id fleet.HostID, gpu, reason string) (fleet.HostView, error)
	OpenGPU(ctx context.Context, id fleet.HostID, gpu string, forget bool) (fleet.HostView, error)
}

// split tells what is to be set from what is to be removed.
func splitLabels(l admin.LabelChanges) (set map[string]string, unset []string) {
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

const defaultTokenTTL = time.Hour

func hostIDParam() *huma.Param { return pathParam("Host identifier.", "h7d2k9s4f1g6j3") }

// registerOperators registers what is for operators alone.
func (a *API) registerOperators() {
	a.registerHosts()
	a.registerHostEligibility()
	a.registerHostGPUs()
	a.registerHostNetworks()
	a.registerCapacity()
	a.registerImages()
	a.registerCluster()
	a.registerGateways()
	a.registerCA()
	a.registerSnapshot()
	a.registerAccounts()
	a.registerCatalogEntries()
	a.registerPlaces()
	a.registerBackends()
	a.registerModels()
	a.registerObjectStore()
}

func (a *API) registerHosts() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	rack := "b4"
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/hosts", id: "listHosts", tag: "Operators", summary: "List hosts",
		text: "Lists the hosts with what their pods hold; those that are gone only where state names gone. Memory is in units of 10^6 bytes, disk in GB. " +
			"422: a label filter is not NAME=VALUE.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: hostFilters(), out: admin.HostList{Hosts: []admin.Host{exampleHost()}},
	}, listHosts)
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/hosts/{id}", id: "getHost", tag: "Operators", summary: "Get a host",
		text:  "Returns a host. 404: there is no such host.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{hostIDParam()}, out: exampleHost(),
	}, byID("host", getHost))
	on(a, route{
		method: http.MethodPatch, path: "/admin/v1/hosts/{id}", id: "updateHost", tag: "Operators", summary: "Change a host",
		text: "Says which tier of pods the host takes from now on, what it may do beside running pods, or sets and removes labels. Pods that are on it stay, at " +
			"their price. A host with the role storage gets the keys of the data center's volume backends. 404: there is no such host. 422: nothing is given.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{hostIDParam()},
		in: admin.UpdateHostRequest{Cloud: "SECURE", Labels: admin.LabelChanges{"rack": &rack, "owner": nil}}, out: exampleHost(),
	}, byID("host", updateHost))
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/hosts/tokens", id: "createJoinToken", tag: "Operators", summary: "Make a join token",
		text:  "Makes a token with which one host may join, once. A new data center is made.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, in: admin.CreateTokenRequest{DataCenterID: "EU-RO-1", Cloud: "SECURE", TTLSeconds: 3600},
		out: admin.JoinToken{Token: "one-use-text", ExpiresAt: exampleTime(60)},
	}, createToken)
}

func listHosts(ctx context.Context, svc HostService, c *call, _ *none) (*admin.HostList, error) {
	wanted, err := wantedHosts(c)
	if err != nil {
		return nil, err
	}
	views, err := svc.Hosts(ctx)
	all, err := showAll(hostRecord)(slices.DeleteFunc(views, func(v fleet.HostView) bool { return !wanted(&v.Host) }), err)
	return &admin.HostList{Hosts: all}, err
}

func getHost(ctx context.Context, svc HostService, id fleet.HostID, _ *call, _ *none) (*admin.Host, error) {
	return show(hostRecord)(svc.Host(ctx, id))
}

func updateHost(ctx context.Context, svc HostService, id fleet.HostID, _ *call, in *admin.UpdateHostRequest) (_ *admin.Host, err error) {
	var view fleet.HostView
	if in.Labels != nil { // first, since the service may refuse them
		set, unset := splitLabels(in.Labels)
		if view, err = svc.SetHostLabels(ctx, id, set, unset); err != nil {
			return nil, err
		}
	}
	if in.Roles != nil {
		roles := make([]fleet.HostRole, 0, len(*in.Roles))
		for _, r := range *in.Roles {
			roles = append(roles, fleet.HostRole(r))
		}
		if view, err = svc.SetHostRoles(ctx, id, roles); err != nil {
			return nil, err
		}
	}
	if in.Cloud != "" {
		view, err = svc.SetHostCloud(ctx, id, fleet.Cloud(in.Cloud))
	}
	return show(hostRecord)(view, err)
}

func checkUpdateHost(in *admin.UpdateHostRequest) []string {
	if in.Cloud == "" && in.Labels == nil && in.Roles == nil {
		return []string{"$: must have 'cloud', 'labels' or 'roles'"}
	}
	return nil
}

func createToken(ctx context.Context, svc HostService, _ *call, in *admin.CreateTokenRequest) (*admin.JoinToken, error) {
	cloud, ttl := fleet.CloudSecure, defaultTokenTTL
	if in.Cloud != "" {
		cloud = fleet.Cloud(in.Cloud)
	}
	if in.TTLSeconds > 0 {
		ttl = time.Duration(in.TTLSeconds) * time.Second
	}
	text, expires, err := svc.CreateJoinToken(ctx, fleet.DataCenterID(in.DataCenterID), cloud, ttl)
	if err != nil {
		return nil, err
	}
	return &admin.JoinToken{Token: v2.Hidden(text), ExpiresAt: v2.At(expires)}, nil
}
