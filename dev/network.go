package dev

import (
	"context"
	"fmt"

	"gantry/client"
)

// joinNetworks lets pods of the data center into their account's private network, through which pods of several agents reach each
// other. Without it everything else goes on.
func (d *dev) joinNetworks(ctx context.Context, operator *client.Client) {
	if err := d.openNetworks(ctx, operator); err != nil && ctx.Err() == nil {
		d.cfg.Log.Warn("pods cannot join private networks", "err", err)
	}
}

func (d *dev) openNetworks(ctx context.Context, operator *client.Client) error {
	all, err := operator.Centers(ctx)
	if err != nil {
		return fmt.Errorf("list the data centers: %w", err)
	}
	for _, center := range all.Value.DataCenters {
		if center.ID != d.state.DataCenter || center.GlobalNetwork {
			continue
		}
		body := center.Body()
		body.GlobalNetwork = true
		if _, err := operator.PutCenter(ctx, center.ID, body); err != nil {
			return fmt.Errorf("open the data center to private networks: %w", err)
		}
	}
	return nil
}
