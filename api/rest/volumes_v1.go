package rest

import (
	"context"
	"net/http"

	"gantry/api/v2"
	"gantry/fleet"
)

// registerVolumesV1 registers what version 1 of the API has of network volumes: bare arrays and records, 200 for every
// write but a delete, and a POST twin of PATCH (wire-facts.md, 3.3).
func (a *API) registerVolumesV1() {
	n := noun[VolumeService, fleet.VolumeID, fleet.VolumeView, v2.VolumeV1, v2.VolumeListV1]{
		path: "/v1/networkvolumes", tag: "Network Volumes (v1)", one: "a network volume", name: "NetworkVolumeV1", names: "NetworkVolumesV1",
		group: fleet.GroupVolumes, id: volumeIDParam(), example: exampleVolumeV1(), record: volumeV1,
		records: func(all []v2.VolumeV1) v2.VolumeListV1 { return all },
	}
	n.list(a, "Lists the account's network volumes, oldest first.", VolumeService.Volumes)
	create := n.create("Makes a network volume. "+textCreateVolume, v2.CreateVolumeV1Request{Name: "datasets", Size: 100, DataCenterID: "EU-RO-1"}).
		once().fails(http.StatusPaymentRequired, http.StatusConflict)
	create.status = http.StatusOK
	on(a, create, func(ctx context.Context, svc VolumeService, c *call, in *v2.CreateVolumeV1Request) (*v2.VolumeV1, error) {
		return show(volumeV1)(createVolume(ctx, svc, c, in, fleet.VolumeRequest{
			Name: in.Name, SizeGB: in.Size, DataCenter: fleet.DataCenterID(in.DataCenterID),
		}))
	})
	n.get(a, "Returns a network volume. "+textNoVolume, VolumeService.Volume)
	update := growVolume(n.update("", nil))
	twin := update
	twin.method, twin.path, twin.id = http.MethodPost, n.path+"/{id}/update", "updateNetworkVolumeByPostV1"
	on(a, update, updateVolume(volumeV1))
	on(a, twin, updateVolume(volumeV1))
	n.delete(a, textDeleteVolume, VolumeService.DeleteVolume)
}

func volumeV1(v fleet.VolumeView) v2.VolumeV1 {
	return v2.VolumeV1{ID: string(v.Volume.ID), Name: v.Volume.Name, Size: v.Volume.SizeGB, DataCenterID: string(v.Volume.DataCenter)}
}

func exampleVolumeV1() v2.VolumeV1 {
	return v2.VolumeV1{ID: "v8d2k9s4f1g6j3", Name: "datasets", Size: 100, DataCenterID: "EU-RO-1"}
}
