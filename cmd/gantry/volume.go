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
	List   volumeListCmd   `cmd:"" help:"List your network volumes."`
	Get    volumeGetCmd    `cmd:"" help:"Show a network volume."`
	Create volumeCreateCmd `cmd:"" help:"Make a network volume."`
	Update volumeUpdateCmd `cmd:"" help:"Rename a network volume, or let it hold more."`
	Delete volumeDeleteCmd `cmd:"" help:"Delete network volumes with all that they hold."`
}

type volumeListCmd struct{}

// Run lists network volumes.
func (volumeListCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Volumes(ctx)
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string { return volumeTable(list.Value.NetworkVolumes) })
}

func volumeTable(all []v2.NetworkVolume) string {
	var rows [][]string
	for _, v := range all {
		rows = append(rows, []string{
			v.ID, v.Name, v.Status, sizeText(v), usedText(v.Used), v.DataCenter, v.Type, when(&v.CreatedAt), orDash(v.StatusReason),
		})
	}
	return table([]string{"ID", "NAME", "STATUS", "SIZE", "USED", "DATA CENTER", "~TIER", "~CREATED", "REASON"}, rows)
}

// sizeText shows what a volume holds now and what it is to hold, where they differ.
func sizeText(v v2.NetworkVolume) string {
	if v.Status == "UPDATING" {
		return fmt.Sprintf("%d of %d GB", v.Provisioned, v.Size)
	}
	return fmt.Sprintf("%d GB", v.Size)
}

func volumeSheet(v v2.NetworkVolume) string {
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

// volumesOf lists what a word for a network volume may mean.
func volumesOf(ctx context.Context, c *client.Client) func() ([]thing, error) {
	return func() ([]thing, error) {
		list, err := c.Volumes(ctx)
		var out []thing
		for _, v := range list.Value.NetworkVolumes {
			out = append(out, thing{v.ID, v.Name})
		}
		return out, err
	}
}

// volumeRef names a network volume.
type volumeRef struct {
	Volume string `arg:"" placeholder:"VOLUME" help:"Id of the network volume, or its name where only one has it."`
}

// do makes one call about the volume and shows its record.
func (ref volumeRef) do(
	ctx context.Context, a *app, people func(v2.NetworkVolume) string, f func(c *client.Client, id string) (client.Answer[v2.NetworkVolume], error),
) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	return onThing("network volume", ref.Volume, volumesOf(ctx, c), func(id string) error {
		v, err := f(c, id)
		if err != nil {
			return err
		}
		return a.show(v.Raw, func() string { return people(v.Value) })
	})
}

type volumeGetCmd struct{ volumeRef }

// Run shows a network volume.
func (cmd volumeGetCmd) Run(ctx context.Context, a *app) error {
	return cmd.do(ctx, a, volumeSheet, func(c *client.Client, id string) (client.Answer[v2.NetworkVolume], error) { return c.Volume(ctx, id) })
}

type volumeCreateCmd struct {
	Name           string        `arg:"" placeholder:"NAME" help:"Name of the volume; need not be unique."`
	Size           int           `required:"" placeholder:"GB" help:"GB that it may hold, 10 to 4096. It can grow later, and never shrink."`
	DataCenter     string        `required:"" placeholder:"ID" help:"Data center of the volume, where the pods that have it run: see gantry catalog datacenters."`
	Type           string        `placeholder:"STANDARD" help:"Tier: STANDARD or HIGH_PERFORMANCE; what the data center offers when not given."`
	IdempotencyKey string        `placeholder:"TEXT" help:"Made once under this key, however often the command is run within a day."`
	Wait           bool          `help:"Return when the volume's storage is there."`
	Timeout        time.Duration `default:"5m" help:"With --wait: stop waiting after this time. The volume stays."`
}

// Run makes a network volume.
func (cmd volumeCreateCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	key := onceKey(cmd.IdempotencyKey)
	v, err := c.Keyed(key).CreateVolume(ctx, v2.CreateNetworkVolumeRequest{
		Name: cmd.Name, Size: cmd.Size, DataCenter: cmd.DataCenter, Type: cmd.Type,
	})
	if err != nil {
		return a.uncertain(err, key)
	}
	a.sayReplayed(v.Replayed, v.Value.ID)
	if cmd.Wait {
		_, _ = fmt.Fprintf(a.err, "created %s\n", printable(v.Value.ID))
		if v, err = awaitVolume(ctx, c, v, cmd.Timeout); err != nil {
			return err
		}
	}
	return a.show(v.Raw, func() string { return volumeTable([]v2.NetworkVolume{v.Value}) })
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
func (cmd volumeUpdateCmd) Run(ctx context.Context, a *app) error {
	if cmd.Name == nil && cmd.Size == nil {
		return usage("say what to change: --name or --size")
	}
	one := func(v v2.NetworkVolume) string {
		text := volumeTable([]v2.NetworkVolume{v})
		if v.Status == "UPDATING" {
			text += fmt.Sprintf("Its storage has %d of %d GB so far; pods have the rest as soon as it is there.\n", v.Provisioned, v.Size)
		}
		return text
	}
	return cmd.do(ctx, a, one, func(c *client.Client, id string) (client.Answer[v2.NetworkVolume], error) {
		v, err := c.UpdateVolume(ctx, id, v2.UpdateNetworkVolumeRequest{Name: cmd.Name, Size: cmd.Size})
		if err == nil && cmd.Wait {
			v, err = awaitVolume(ctx, c, v, cmd.Timeout)
		}
		return v, err
	})
}

type volumeDeleteCmd struct {
	Volumes []string `arg:"" name:"volume" placeholder:"VOLUME" help:"Ids or names of network volumes."`
}

// Run deletes network volumes.
func (cmd volumeDeleteCmd) Run(ctx context.Context, a *app) error {
	return a.deleteAll(ctx, false, "network volume", cmd.Volumes, volumesOf, (*client.Client).DeleteVolume)
}
