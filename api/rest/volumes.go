package rest

import (
	"context"
	"net/http"
	"time"

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
	// LinkVolume makes an address that does one thing with one file of a volume, until a moment.
	LinkVolume(ctx context.Context, who fleet.Principal, id fleet.VolumeID, q fleet.VolumeLinkRequest) (fleet.VolumeLink, error)
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
	n := noun[VolumeService, fleet.VolumeID, fleet.VolumeView, v2.NetworkVolume, v2.NetworkVolumeList]{
		path: "/v2/network-volumes", tag: "Network Volumes", one: "a network volume", name: "NetworkVolume", names: "NetworkVolumes",
		group: fleet.GroupVolumes, id: volumeIDParam(), example: exampleVolume(), record: volumeRecord,
		records: func(all []v2.NetworkVolume) v2.NetworkVolumeList { return v2.NetworkVolumeList{NetworkVolumes: all} },
	}
	n.list(a, "Lists the account's network volumes, oldest first.", VolumeService.Volumes)
	on(a, n.create("Makes storage in a data center that outlives pods, and that several pods there can have at once. "+textCreateVolume,
		v2.CreateNetworkVolumeRequest{Name: "datasets", Size: 100, DataCenter: "EU-RO-1"}).once().fails(http.StatusPaymentRequired, http.StatusConflict),
		func(ctx context.Context, svc VolumeService, c *call, in *v2.CreateNetworkVolumeRequest) (*v2.NetworkVolume, error) {
			return show(volumeRecord)(createVolume(ctx, svc, c, in, fleet.VolumeRequest{
				Name: in.Name, SizeGB: in.Size, DataCenter: fleet.DataCenterID(in.DataCenter), Type: fleet.VolumeType(in.Type),
			}))
		})
	n.get(a, "Returns a network volume. "+textNoVolume, VolumeService.Volume)
	update := n.update(textUpdateVolume, v2.UpdateNetworkVolumeRequest{Size: new(200)}).fails(http.StatusPaymentRequired)
	update.summary = "Rename or grow a network volume"
	on(a, update, byID(n.kind(), func(ctx context.Context, svc VolumeService, id fleet.VolumeID, c *call, in *v2.UpdateNetworkVolumeRequest) (*v2.NetworkVolume, error) {
		return show(volumeRecord)(svc.UpdateVolume(ctx, c.who, id, fleet.VolumeUpdate{Name: in.Name, SizeGB: in.Size}))
	}))
	n.delete(a, textDeleteVolume, VolumeService.DeleteVolume)
	act := wordParam("do", "What it does: list a folder, get, put (write) or delete a file.", "list", "get", "put", "delete")
	act.Required, act.Schema.Examples = true, []any{"get"}
	on(a, route{
		method: http.MethodGet, path: "/v2/network-volumes/{id}/link", id: "linkNetworkVolume", tag: "Network Volumes", summary: "Make a link to a file of a network volume",
		text: "Returns a presigned request of S3 that does one thing with one file, for whoever has it, until it expires. It does not end with the key that " +
			"made it, so keep it short. put and delete need s3:write. 400: the schedulers know no S3 server of the data center (code rule). " + textNoVolume,
		scope: auth.Read(fleet.GroupS3), limit: limit.PerAccount, status: http.StatusOK, errors: []int{http.StatusBadRequest},
		params: []*huma.Param{
			volumeIDParam(), act,
			lengthParam("key", "Path in the volume, of a folder with a slash at its end; to list: the folder, and none is the top.", maxLinkKey, "data/train.csv"),
			lengthParam("cursor", "To list: the NextContinuationToken of the page before.", maxLinkCursor, "Y29udGludWU="),
			countParam("expiresIn", "Seconds that it is good for; 300 if left out.", 1, 3600),
		},
		out: v2.VolumeLink{Method: "GET", URL: "https://s3.example.com/v8d2k9s4f1g6j3/data/train.csv?X-Amz-Signature=00", ExpiresAt: exampleTime(5)},
	}, byID("network volume", linkVolume))
}

const (
	maxLinkKey    = 1024
	maxLinkCursor = 2048
)

func linkVolume(ctx context.Context, svc VolumeService, id fleet.VolumeID, c *call, _ *none) (*v2.VolumeLink, error) {
	link, err := svc.LinkVolume(ctx, c.who, id, fleet.VolumeLinkRequest{
		Act: fleet.LinkAct(c.args.text("do")), Key: c.args.text("key"), Cursor: c.args.text("cursor"), Life: time.Duration(c.args.number("expiresIn", 300)) * time.Second,
	})
	if err != nil {
		return nil, err
	}
	return &v2.VolumeLink{Method: link.Method, URL: v2.Hidden(link.URL), ExpiresAt: v2.At(link.ExpiresAt)}, nil
}

func volumeIDParam() *huma.Param { return pathParam("Network volume identifier.", "v8d2k9s4f1g6j3") }

// createVolume makes a volume at most once for one idempotency key; body is what the request is known by.
func createVolume(ctx context.Context, svc VolumeService, c *call, body any, req fleet.VolumeRequest) (fleet.VolumeView, error) {
	return atMostOnce(c, body, func(once *fleet.Once) (fleet.VolumeView, bool, error) {
		req.Once = once
		return svc.CreateVolume(ctx, c.who, req)
	})
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
