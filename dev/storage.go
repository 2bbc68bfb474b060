package dev

import (
	"context"
	"fmt"
	"os"
	"slices"

	"gantry/api/admin"
	"gantry/client"
	"gantry/fleet"
)

// The backend of network volumes that every dev has: a folder of the data folder, which the first agent looks after.
const (
	backendID     = "dev"
	backendFolder = "volumes"
)

// provideVolumes has the first agent look after network volumes in the data folder, which all agents of this machine
// can mount. Without them everything else goes on.
func (d *dev) provideVolumes(ctx context.Context, operator *client.Client) {
	if err := d.provide(ctx, operator); err != nil && ctx.Err() == nil {
		d.cfg.Log.Warn("network volumes are unavailable", "err", err)
	}
}

func (d *dev) provide(ctx context.Context, operator *client.Client) error {
	first := d.identityOf(part{roleAgent, 1})
	at := slices.IndexFunc(d.hosts, func(h admin.Host) bool { return h.ID == first })
	if at < 0 {
		return fmt.Errorf("the host %s is not there", first)
	}
	if roles := d.hosts[at].Roles; !slices.Contains(roles, string(fleet.RoleStorage)) {
		if _, err := operator.SetHostRoles(ctx, first, append(roles, string(fleet.RoleStorage))); err != nil {
			return fmt.Errorf("give the first host the role of storage: %w", err)
		}
	}
	all, err := operator.Backends(ctx)
	if err != nil {
		return fmt.Errorf("list the backends of network volumes: %w", err)
	}
	if slices.ContainsFunc(all.Value.Backends, func(b admin.Backend) bool { return b.ID == backendID }) {
		return nil
	}
	folder := d.folder.path(backendFolder)
	if err := os.MkdirAll(folder, 0o711); err != nil { //nolint:gosec // pods reach what is theirs in it
		return err
	}
	_, err = operator.CreateBackend(ctx, admin.CreateBackendRequest{
		ID: backendID, DataCenterID: d.state.DataCenter, Type: string(fleet.VolumeStandard), Kind: string(fleet.BackendLocal),
		BackendSettings: admin.BackendSettings{Local: &admin.LocalBackend{Path: folder}, StorageHost: &first, StoragePath: &folder},
	})
	if err != nil {
		return fmt.Errorf("make a backend of network volumes: %w", err)
	}
	return nil
}
