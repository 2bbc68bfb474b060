package graphql

import (
	"context"
	"slices"

	"gantry/api/v2"
)

// volume shows a network volume.
type volume struct {
	s                      *session
	ID, Name, DataCenterID string
	Size                   int32
}

func newVolume(s *session, r *v2.NetworkVolume) *volume {
	return &volume{s: s, ID: r.ID, Name: r.Name, DataCenterID: r.DataCenter, Size: int32(r.Size)}
}

func (v *volume) DataCenter() (*center, error) {
	all, err := v.s.centers()
	if i := slices.IndexFunc(all, func(d v2.DataCenter) bool { return d.ID == v.DataCenterID }); i >= 0 {
		return newCenter(v.s, &all[i]), nil
	}
	return newCenter(v.s, &v2.DataCenter{ID: v.DataCenterID, Name: v.DataCenterID}), err
}

// volume is the volume with an id, or null; the account's volumes are read once for all that are asked for.
func (s *session) volume(id string) (*volume, error) {
	if id == "" {
		return nil, nil
	}
	all, err := read[v2.NetworkVolumeList](s, "listNetworkVolumes", nil)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all.NetworkVolumes, func(v v2.NetworkVolume) bool { return v.ID == id }); i >= 0 {
		return newVolume(s, &all.NetworkVolumes[i]), nil
	}
	return nil, nil
}

var volumeMembers = []member{{from: "name", to: "name"}, {from: "size", to: "size"}, {from: "dataCenterId", to: "dataCenter"}}

// CreateNetworkVolume makes a network volume.
func (root) CreateNetworkVolume(ctx context.Context, args with) (*volume, error) {
	return save(ctx, "createNetworkVolume", "", args.Input, volumeMembers, newVolume)
}

// UpdateNetworkVolume renames or grows a network volume.
func (root) UpdateNetworkVolume(ctx context.Context, args with) (*volume, error) {
	return save(ctx, "updateNetworkVolume", args.Input.text("id"), args.Input, volumeMembers, newVolume)
}

// DeleteNetworkVolume deletes a network volume.
func (root) DeleteNetworkVolume(ctx context.Context, args with) (*scalar, error) {
	return remove(ctx, "deleteNetworkVolume", args.Input.text("id"))
}
