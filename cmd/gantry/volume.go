package main

import (
	"context"
	"fmt"
	"time"

	"gantry/api/v2"
	"gantry/client"
	"gantry/internal/sleep"
)

type volumeCmd struct {
	List   listCmd         `cmd:"" help:"List your network volumes."`
	Get    getCmd          `cmd:"" help:"Show a network volume."`
	Create volumeCreateCmd `cmd:"" help:"Create a network volume."`
	Update volumeUpdateCmd `cmd:"" help:"Rename or enlarge a network volume."`
	Delete deleteAskingCmd `cmd:"" help:"Delete network volumes with their contents."`
}

var volumes = noun[v2.NetworkVolume, v2.NetworkVolumeList]{
	kind: "network volume", loss: "its contents", all: (*client.Client).Volumes, one: (*client.Client).Volume, remove: (*client.Client).DeleteVolume,
	items:   func(l v2.NetworkVolumeList) []v2.NetworkVolume { return l.NetworkVolumes },
	thing:   func(v v2.NetworkVolume) thing { return thing{v.ID, v.Name} },
	columns: []string{"ID", "NAME", "STATUS", "SIZE", "USED", "DATA CENTER", "~TIER", "~CREATED", "REASON"},
	row: func(v v2.NetworkVolume, _ time.Time) []string {
		return []string{
			v.ID, v.Name, v.Status, sizeText(v), usedText(v.Used), v.DataCenter, v.Type, when(&v.CreatedAt), orDash(v.StatusReason),
		}
	},
	sheet: volumeSheet,
}

// sizeText shows what a volume holds now and what it is to hold, where they differ.
func sizeText(v v2.NetworkVolume) string {
	if v.Status == "UPDATING" {
		return fmt.Sprintf("%d of %d GB", v.Provisioned, v.Size)
	}
	return fmt.Sprintf("%d GB", v.Size)
}

func volumeSheet(v v2.NetworkVolume, _ time.Time) string {
	return sheet([][2]string{
		{"Id", v.ID},
		{"Name", v.Name},
		{"Status", v.Status},
		{"Reason", string(v.StatusReason)},
		{"Size", sizeText(v)},
		{"Used", usedText(v.Used)},
		{"Data center", v.DataCenter},
		{"Tier", v.Type},
		{"Created", when(&v.CreatedAt)},
	})
}

func usedText(bytes *int64) string {
	if bytes == nil {
		return "-"
	}
	return bytesText(*bytes)
}

// volumeRef names a network volume.
type volumeRef struct {
	Volume string `arg:"" placeholder:"VOLUME" help:"Id of the network volume, or its name where only one has it."`
}

type volumeCreateCmd struct {
	Name           string        `arg:"" placeholder:"NAME" help:"Name of the volume; need not be unique."`
	Size           int           `required:"" placeholder:"GB" help:"GB that it may hold, 10 to 4096. It can grow later, and never shrink."`
	DataCenter     string        `required:"" placeholder:"ID" help:"Data center of the volume, where the pods that have it run: see gantry catalog datacenters."`
	Type           string        `placeholder:"STANDARD" help:"Tier: STANDARD or HIGH_PERFORMANCE; what the data center offers when not given."`
	IdempotencyKey string        `placeholder:"TEXT" help:"Idempotency key: run again with it within a day, the command creates nothing new."`
	Wait           bool          `help:"Return when the volume's storage is there."`
	Timeout        time.Duration `default:"5m" help:"With --wait: stop waiting after this time. The volume stays."`
}

// Run makes a network volume.
func (cmd volumeCreateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	v, err := volumes.create(a, c, cmd.IdempotencyKey, func(c *client.Client) (client.Answer[v2.NetworkVolume], error) {
		return c.CreateVolume(ctx, v2.CreateNetworkVolumeRequest{Name: cmd.Name, Size: cmd.Size, DataCenter: cmd.DataCenter, Type: cmd.Type})
	})
	if err == nil && cmd.Wait {
		_, _ = fmt.Fprintf(a.err, "created %s\n", printable(v.Value.ID))
		v, err = awaitVolume(ctx, c, v, cmd.Timeout)
	}
	return volumes.show(a, v, err)
}

// awaitVolume looks at a volume until its storage is there, as large as it is to be.
func awaitVolume(ctx context.Context, c *client.Client, v client.Answer[v2.NetworkVolume], within time.Duration) (client.Answer[v2.NetworkVolume], error) {
	last := v.Value
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for pause := lookMin; v.Value.Status == "CREATING" || v.Value.Status == "UPDATING"; pause = min(pause*5/4, lookMax) {
		if err := sleep.For(ctx, pause); err != nil {
			if ctx.Err() == context.DeadlineExceeded {
				err = &exitError{exitTimeout, fmt.Errorf("gave up waiting for network volume %s after %v: %s", last.ID, within, orDash(printable(last.StatusReason)))}
			}
			return v, err
		}
		var err error
		if v, err = c.Volume(ctx, last.ID); err != nil && !client.Temporary(err) {
			return v, err
		} else if err != nil {
			v.Value = last
		}
		last = v.Value
	}
	return v, nil
}

type volumeUpdateCmd struct {
	volumeRef
	Name *string `placeholder:"NAME" help:"New name."`
	Size *int    `placeholder:"GB" help:"GB that it may hold, not less than before. Pods that run have the room without a restart."`

	Wait    bool          `help:"Return when the volume's storage has the new size."`
	Timeout time.Duration `default:"5m" help:"With --wait: stop waiting after this time. The change goes on."`
}

// Run changes a network volume.
func (cmd volumeUpdateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd.Name == nil && cmd.Size == nil {
		return usage("say what to change: --name or --size")
	}
	one := func(v v2.NetworkVolume) string {
		text := volumes.table(a, v)
		if v.Status == "UPDATING" {
			text += fmt.Sprintf("Its storage has %d of %d GB so far; pods have the rest as soon as it is there.\n", v.Provisioned, v.Size)
		}
		return text
	}
	return volumes.on(ctx, c, cmd.Volume, func(id string) error {
		v, err := c.UpdateVolume(ctx, id, v2.UpdateNetworkVolumeRequest{Name: cmd.Name, Size: cmd.Size})
		if err == nil && cmd.Wait {
			v, err = awaitVolume(ctx, c, v, cmd.Timeout)
		}
		return reply(a, v, err, one)
	})
}
