package dev

import (
	"context"
	"fmt"
	"slices"

	"gantry/api/admin"
	"gantry/client"
	"gantry/fleet"
)

// serveS3 has the first agent's host serve network volumes over S3, where that is asked for.
func (d *dev) serveS3(ctx context.Context, operator *client.Client) error {
	if d.cfg.S3 == "" {
		return nil
	}
	first := d.identityOf(part{roleAgent, 1})
	hosts, err := operator.Hosts(ctx)
	if err != nil {
		return fmt.Errorf("list the hosts: %w", err)
	}
	at := slices.IndexFunc(hosts.Value.Hosts, func(h admin.Host) bool { return h.ID == first })
	if at < 0 {
		return fmt.Errorf("the host %s is not there", first)
	}
	if roles := hosts.Value.Hosts[at].Roles; !slices.Contains(roles, string(fleet.RoleS3)) {
		if _, err := operator.SetHostRoles(ctx, first, append(roles, string(fleet.RoleS3))); err != nil {
			return fmt.Errorf("give the first host the role of S3: %w", err)
		}
	}
	args := []string{"run", "--agent-data-dir", d.folder.path(roleAgent), "--region", d.state.DataCenter, "--listen", d.cfg.S3, "--metrics", ""}
	for _, api := range d.apis { // the console is served there
		args = append(args, "--console-origin", api)
	}
	d.s3 = d.child(part{roleS3, 1}, d.cfg.Binaries.S3, args...)
	d.s3.start(ctx)
	return nil
}
