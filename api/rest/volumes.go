package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// VolumeService keeps network volumes.
type VolumeService interface {
	// CreateVolume makes a network volume; replayed tells that its Once was seen before.
	CreateVolume(ctx context.Context, who fleet.Principal, req fleet.VolumeRequest) (made fleet.VolumeView, replayed bool, err error)
	// Volumes lists the account's network volumes, oldest first.
	Volumes(ctx context.Context, who fleet.Principal) ([]fleet.VolumeView, error)
	Volume(ctx context.Context, who fleet.Principal, id fleet.VolumeID) (fleet.VolumeView, error)
	UpdateVolume(ctx context.Context, who fleet.Principal, id fleet.VolumeID, change fleet.VolumeUpdate) (fleet.VolumeView, error)
	DeleteVolume(ctx context.Context, who fleet.Principal, id fleet.VolumeID) error
}

func volumeIDParam() *huma.Param {
	return pathParam("Network volume identifier.", "v8d2k9s4f1g6j3")
}

const (
	textNoVolume     = "404: the account has no such network volume."
	textCreateVolume = "The volume can be named in mounts.network of pods at once; such a pod starts when the volume's storage is there, which takes a " +
		"moment. 400: the data center has no network volumes, or none of that tier. 402: the account's balance is below the volume's cost of one hour. " +
		"422: a single value is wrong, or there is no such data center."
	textUpdateVolume = "Renames a network volume, or lets it hold more. 400: it would shrink. 402: the account's balance is below the cost of one hour " +
		"of the larger one. " + textNoVolume
	textDeleteVolume = "Deletes a network volume with all that it holds, which cannot be undone. 400: a pod that is not terminated has it. " + textNoVolume
)

func (a *API) registerVolumes() {
	read, write := auth.Read(fleet.GroupVolumes), auth.Write(fleet.GroupVolumes)
	handle(a, route{
		method: http.MethodGet, path: "/v2/network-volumes", id: "listNetworkVolumes", tag: "Network Volumes", summary: "List network volumes",
		text:  "Lists the account's network volumes, oldest first.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: v2.NetworkVolumeList{NetworkVolumes: []v2.NetworkVolume{exampleVolume()}},
	}, a.listVolumes)
	handle(a, route{
		method: http.MethodPost, path: "/v2/network-volumes", id: "createNetworkVolume", tag: "Network Volumes", summary: "Make a network volume",
		text:  "Makes storage in a data center that outlives pods, and that several pods there can have at once. " + textCreateVolume + "\n\n" + onceText,
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, params: []*huma.Param{onceParam()}, errors: []int{http.StatusPaymentRequired, http.StatusConflict},
		in: v2.CreateNetworkVolumeRequest{Name: "datasets", Size: 100, DataCenter: "EU-RO-1"}, out: exampleVolume(),
	}, a.createVolume)
	handle(a, route{
		method: http.MethodGet, path: "/v2/network-volumes/{id}", id: "getNetworkVolume", tag: "Network Volumes", summary: "Get a network volume",
		text:  "Returns a network volume. " + textNoVolume,
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{volumeIDParam()}, out: exampleVolume(),
	}, a.getVolume)
	handle(a, route{
		method: http.MethodPatch, path: "/v2/network-volumes/{id}", id: "updateNetworkVolume", tag: "Network Volumes", summary: "Rename or grow a network volume",
		text:  textUpdateVolume,
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{volumeIDParam()}, errors: []int{http.StatusPaymentRequired},
		in: v2.UpdateNetworkVolumeRequest{Size: new(200)}, out: exampleVolume(),
	}, a.updateVolume)
	handle(a, route{
		method: http.MethodDelete, path: "/v2/network-volumes/{id}", id: "deleteNetworkVolume", tag: "Network Volumes", summary: "Delete a network volume",
		text:  textDeleteVolume,
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{volumeIDParam()},
	}, a.deleteVolume)
}

func (a *API) listVolumes(ctx context.Context, c *call, _ *none) (*v2.NetworkVolumeList, error) {
	all, err := showAll(volumeRecord)(a.svc.Volumes(ctx, c.who))
	return &v2.NetworkVolumeList{NetworkVolumes: all}, err
}

func (a *API) createVolume(ctx context.Context, c *call, in *v2.CreateNetworkVolumeRequest) (*v2.NetworkVolume, error) {
	made, err := a.makeVolume(ctx, c, in, fleet.VolumeRequest{
		Name: in.Name, SizeGB: in.Size, DataCenter: fleet.DataCenterID(in.DataCenter), Type: fleet.VolumeType(in.Type),
	})
	return show(volumeRecord)(made, err)
}

// makeVolume makes a volume at most once for one idempotency key; body is what the request is known by.
func (a *API) makeVolume(ctx context.Context, c *call, body any, req fleet.VolumeRequest) (fleet.VolumeView, error) {
	once, err := c.once(body)
	if err != nil {
		return fleet.VolumeView{}, err
	}
	req.Once = once
	made, replayed, err := a.svc.CreateVolume(ctx, c.who, req)
	c.replayed(replayed)
	return made, err
}

func (a *API) getVolume(ctx context.Context, c *call, _ *none) (*v2.NetworkVolume, error) {
	return show(volumeRecord)(a.oneVolume(ctx, c))
}

func (a *API) oneVolume(ctx context.Context, c *call) (fleet.VolumeView, error) {
	id, err := pathID[fleet.VolumeID](c, "network volume")
	if err != nil {
		return fleet.VolumeView{}, err
	}
	return a.svc.Volume(ctx, c.who, id)
}

func (a *API) updateVolume(ctx context.Context, c *call, in *v2.UpdateNetworkVolumeRequest) (*v2.NetworkVolume, error) {
	return show(volumeRecord)(a.changeVolume(ctx, c, in))
}

func (a *API) changeVolume(ctx context.Context, c *call, in *v2.UpdateNetworkVolumeRequest) (fleet.VolumeView, error) {
	id, err := pathID[fleet.VolumeID](c, "network volume")
	if err != nil {
		return fleet.VolumeView{}, err
	}
	return a.svc.UpdateVolume(ctx, c.who, id, fleet.VolumeUpdate{Name: in.Name, SizeGB: in.Size})
}

func (a *API) deleteVolume(ctx context.Context, c *call, _ *none) (*none, error) {
	id, err := pathID[fleet.VolumeID](c, "network volume")
	if err != nil {
		return nil, err
	}
	return nil, a.svc.DeleteVolume(ctx, c.who, id)
}

func volumeRecord(v fleet.VolumeView) v2.NetworkVolume {
	out := v2.NetworkVolume{
		ID: string(v.Volume.ID), Name: v.Volume.Name, Size: v.Volume.SizeGB, DataCenter: string(v.Volume.DataCenter), Type: string(v.Volume.Type),
		Provisioned: v.Volume.ProvisionedGB, Status: "READY", StatusReason: v2.Text(v.Problem), Used: v.Used, CreatedAt: v2.At(v.Volume.CreatedAt),
	}
	switch {
	case v.Volume.State == fleet.VolumeCreating:
		out.Status = "CREATING"
	case v.Volume.ReadOnly:
		out.Status = "READ_ONLY"
	case v.Volume.ProvisionedGB < v.Volume.SizeGB:
		out.Status = "UPDATING"
	}
	return out
}

func exampleVolume() v2.NetworkVolume {
	used := int64(12_000_000_000)
	return v2.NetworkVolume{
		ID: "v8d2k9s4f1g6j3", Name: "datasets", Size: 100, Provisioned: 100, DataCenter: "EU-RO-1", Type: "STANDARD", Status: "READY", Used: &used, CreatedAt: exampleTime(0),
	}
}
