package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// NetworkVolume is storage that outlives pods.
type NetworkVolume struct {
	ID           string  `json:"id" doc:"Network volume identifier; also its bucket of the S3 interface." example:"v8d2k9s4f1g6j3"`
	Name         string  `json:"name" doc:"Name of the volume."`
	Size         int     `json:"size" doc:"GB of 10^9 bytes that it may hold and that are paid for."`
	DataCenter   string  `json:"dataCenter" doc:"Data center of the volume."`
	Type         string  `json:"type" doc:"Tier." enum:"STANDARD,HIGH_PERFORMANCE"`
	Provisioned  int     `json:"provisioned" doc:"GB that its storage gives it at present; less than size while it is being made or grown."`
	Status       string  `json:"status" doc:"CREATING: its storage is being made, pods that mount it wait; READY; UPDATING: it is larger now, and its storage has not followed yet; READ_ONLY: it holds far more than its size, and cannot be written to until it is grown or emptied." enum:"CREATING,READY,UPDATING,READ_ONLY"`
	StatusReason *string `json:"statusReason" doc:"Why it is not ready, or not as large as it is to be; or null."`
	Used         *int64  `json:"used" doc:"Bytes in use when that was last measured; null: not known."`
	CreatedAt    Time    `json:"createdAt" doc:"When it was made."`
}

// NetworkVolumeList is the answer to listing network volumes.
type NetworkVolumeList struct {
	Page
	NetworkVolumes []NetworkVolume `json:"networkVolumes" doc:"The account's network volumes, oldest first."`
}

// CreateNetworkVolumeRequest is the body that makes a network volume.
type CreateNetworkVolumeRequest struct {
	Name       string `json:"name" doc:"Name of the volume; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"datasets"`
	Size       int    `json:"size" doc:"GB of 10^9 bytes. It can grow later, and never shrink." minimum:"10" maximum:"4096" example:"100"`
	DataCenter string `json:"dataCenter" doc:"Data center of the volume, one that has networkVolumeTypes; pods that mount it run there." minLength:"1" maxLength:"63" example:"EU-RO-1"`
	Type       string `json:"type,omitempty" doc:"Tier. Default: the one that the data center offers, STANDARD before HIGH_PERFORMANCE." enum:"STANDARD,HIGH_PERFORMANCE" example:"STANDARD"`
}

// UpdateNetworkVolumeRequest is the body that changes a network volume.
type UpdateNetworkVolumeRequest struct {
	Name *string `json:"name,omitempty" doc:"Name of the volume." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"datasets"`
	Size *int    `json:"size,omitempty" doc:"GB of 10^9 bytes, not less than before. Pods that run have the room without a restart." minimum:"10" maximum:"4096" example:"200"`
}

// TransformSchema says which members may be null.
func (NetworkVolume) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "statusReason", "used")
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
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: NetworkVolumeList{NetworkVolumes: []NetworkVolume{exampleVolume()}},
	}, a.listVolumes)
	handle(a, route{
		method: http.MethodPost, path: "/v2/network-volumes", id: "createNetworkVolume", tag: "Network Volumes", summary: "Make a network volume",
		text:  "Makes storage in a data center that outlives pods, and that several pods there can have at once. " + textCreateVolume + "\n\n" + onceText,
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, params: []*huma.Param{onceParam()}, errors: []int{http.StatusPaymentRequired, http.StatusConflict},
		in: CreateNetworkVolumeRequest{Name: "datasets", Size: 100, DataCenter: "EU-RO-1"}, out: exampleVolume(),
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
		in: UpdateNetworkVolumeRequest{Size: new(200)}, out: exampleVolume(),
	}, a.updateVolume)
	handle(a, route{
		method: http.MethodDelete, path: "/v2/network-volumes/{id}", id: "deleteNetworkVolume", tag: "Network Volumes", summary: "Delete a network volume",
		text:  textDeleteVolume,
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{volumeIDParam()},
	}, a.deleteVolume)
}

func (a *API) listVolumes(ctx context.Context, c *call, _ *none) (*NetworkVolumeList, error) {
	all, err := showAll(volumeRecord)(a.svc.Volumes(ctx, c.who))
	return &NetworkVolumeList{NetworkVolumes: all}, err
}

func (a *API) createVolume(ctx context.Context, c *call, in *CreateNetworkVolumeRequest) (*NetworkVolume, error) {
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

func (a *API) getVolume(ctx context.Context, c *call, _ *none) (*NetworkVolume, error) {
	return show(volumeRecord)(a.oneVolume(ctx, c))
}

func (a *API) oneVolume(ctx context.Context, c *call) (fleet.VolumeView, error) {
	id, err := pathID[fleet.VolumeID](c, "network volume")
	if err != nil {
		return fleet.VolumeView{}, err
	}
	return a.svc.Volume(ctx, c.who, id)
}

func (a *API) updateVolume(ctx context.Context, c *call, in *UpdateNetworkVolumeRequest) (*NetworkVolume, error) {
	return show(volumeRecord)(a.changeVolume(ctx, c, in))
}

func (a *API) changeVolume(ctx context.Context, c *call, in *UpdateNetworkVolumeRequest) (fleet.VolumeView, error) {
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

func volumeRecord(v fleet.VolumeView) NetworkVolume {
	out := NetworkVolume{
		ID: string(v.Volume.ID), Name: v.Volume.Name, Size: v.Volume.SizeGB, DataCenter: string(v.Volume.DataCenter), Type: string(v.Volume.Type),
		Provisioned: v.Volume.ProvisionedGB, Status: "READY", StatusReason: textOrNull(v.Problem), Used: v.Used, CreatedAt: Time{v.Volume.CreatedAt},
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

func exampleVolume() NetworkVolume {
	used := int64(12_000_000_000)
	return NetworkVolume{
		ID: "v8d2k9s4f1g6j3", Name: "datasets", Size: 100, Provisioned: 100, DataCenter: "EU-RO-1", Type: "STANDARD", Status: "READY", Used: &used, CreatedAt: exampleTime(0),
	}
}
