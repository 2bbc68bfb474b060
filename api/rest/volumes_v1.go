package rest

import (
	"context"
	"net/http"

	"gantry/api/v2"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// registerVolumesV1 registers what version 1 of the API has of network volumes: bare arrays and records, 200 for every
// write but a delete, and a POST twin of PATCH (wire-facts.md, 3.3).
func (a *API) registerVolumesV1() {
	read, write := auth.Read(fleet.GroupVolumes), auth.Write(fleet.GroupVolumes)
	const tag = "Network Volumes (v1)"
	handle(a, route{
		method: http.MethodGet, path: "/v1/networkvolumes", id: "listNetworkVolumesV1", tag: tag, summary: "List network volumes",
		text:  "Lists the account's network volumes, oldest first.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: v2.VolumeListV1{exampleVolumeV1()},
	}, func(ctx context.Context, c *call, _ *none) (*v2.VolumeListV1, error) {
		all, err := showAll(volumeV1)(a.svc.Volumes(ctx, c.who))
		out := v2.VolumeListV1(all)
		return &out, err
	})
	handle(a, route{
		method: http.MethodPost, path: "/v1/networkvolumes", id: "createNetworkVolumeV1", tag: tag, summary: "Make a network volume",
		text:  "Makes a network volume. " + textCreateVolume + "\n\n" + onceText,
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{onceParam()}, errors: []int{http.StatusPaymentRequired, http.StatusConflict},
		in: v2.CreateVolumeV1Request{Name: "datasets", Size: 100, DataCenterID: "EU-RO-1"}, out: exampleVolumeV1(),
	}, func(ctx context.Context, c *call, in *v2.CreateVolumeV1Request) (*v2.VolumeV1, error) {
		return show(volumeV1)(a.makeVolume(ctx, c, in, fleet.VolumeRequest{
			Name: in.Name, SizeGB: in.Size, DataCenter: fleet.DataCenterID(in.DataCenterID),
		}))
	})
	handle(a, route{
		method: http.MethodGet, path: "/v1/networkvolumes/{id}", id: "getNetworkVolumeV1", tag: tag, summary: "Get a network volume",
		text:  "Returns a network volume. " + textNoVolume,
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{volumeIDParam()}, out: exampleVolumeV1(),
	}, func(ctx context.Context, c *call, _ *none) (*v2.VolumeV1, error) {
		return show(volumeV1)(a.oneVolume(ctx, c))
	})
	update := route{
		method: http.MethodPatch, path: "/v1/networkvolumes/{id}", id: "updateNetworkVolumeV1", tag: tag, summary: "Rename or grow a network volume",
		text: textUpdateVolume, scope: write, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{volumeIDParam()},
		errors: []int{http.StatusPaymentRequired},
		in:     v2.UpdateNetworkVolumeRequest{Size: new(200)}, out: exampleVolumeV1(),
	}
	twin := update
	twin.method, twin.path, twin.id = http.MethodPost, "/v1/networkvolumes/{id}/update", "updateNetworkVolumeByPostV1"
	for _, rt := range []route{update, twin} {
		handle(a, rt, func(ctx context.Context, c *call, in *v2.UpdateNetworkVolumeRequest) (*v2.VolumeV1, error) {
			return show(volumeV1)(a.changeVolume(ctx, c, in))
		})
	}
	handle(a, route{
		method: http.MethodDelete, path: "/v1/networkvolumes/{id}", id: "deleteNetworkVolumeV1", tag: tag, summary: "Delete a network volume",
		text:  textDeleteVolume,
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{volumeIDParam()},
	}, a.deleteVolume)
}

func volumeV1(v fleet.VolumeView) v2.VolumeV1 {
	return v2.VolumeV1{ID: string(v.Volume.ID), Name: v.Volume.Name, Size: v.Volume.SizeGB, DataCenterID: string(v.Volume.DataCenter)}
}

func exampleVolumeV1() v2.VolumeV1 {
	return v2.VolumeV1{ID: "v8d2k9s4f1g6j3", Name: "datasets", Size: 100, DataCenterID: "EU-RO-1"}
}
