package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
)

type adminCmd struct {
	DataCenter     adminCenterCmd    `cmd:"" name:"datacenter" help:"Describe data centers."`
	GPUType        adminGPUCmd       `cmd:"" name:"gpu-type" help:"Describe and price GPU types."`
	CPUFlavor      adminCPUCmd       `cmd:"" name:"cpu-flavor" help:"Describe and price CPU flavors."`
	VolumeBackend  adminBackendCmd   `cmd:"" help:"Manage the storage of network volumes: NFS, CephFS or a directory."`
	Model          adminModelCmd     `cmd:"" help:"Manage public models: endpoints that every account with credit may call, for a price."`
	ObjectStorage  adminObjectsCmd   `cmd:"" help:"Show and change the bucket of S3 in which files of public models' results are."`
	Network        adminNetworkCmd   `cmd:"" help:"Show and change the settings of private networks."`
	Placement      adminPlacementCmd `cmd:"" help:"Show and change the share of hosts that is reserved for their GPUs."`
	StoragePrices  adminStorageCmd   `cmd:"" help:"Show and change the prices of storage."`
	Audit          adminAuditCmd     `cmd:"" help:"See who changed what in all accounts, and from where."`
	TemplateSource adminSourceCmd    `cmd:"" help:"Put a public template into a slice of the catalog."`
}

// needs refuses to make a new thing from less than its required fields; existing ones are changed field by field.
func needs(kind, id string, given bool, flags string) error {
	if given {
		return nil
	}
	return usage("there is no %s %s yet: a new one needs %s", kind, id, flags)
}

type adminCenterCmd struct {
	List   listCmd           `cmd:"" help:"List the data centers."`
	Put    adminCenterPutCmd `cmd:"" help:"Create a data center, or change one."`
	Delete deleteCmd         `cmd:"" help:"Delete data centers that have no hosts."`
}

var dataCenters = noun[admin.DataCenterEntry, admin.DataCenterEntryList]{
	kind: "data center", bare: true, all: (*client.Client).Centers, remove: (*client.Client).DeleteCenter,
	items:   func(l admin.DataCenterEntryList) []admin.DataCenterEntry { return l.DataCenters },
	thing:   func(dc admin.DataCenterEntry) thing { return thing{id: dc.ID} },
	columns: []string{"ID", "NAME", "REGION", "COUNTRY", "GLOBAL NETWORK", "UNDERLAY", "COMPLIANCE"},
	row: func(dc admin.DataCenterEntry, _ time.Time) []string {
		return []string{
			dc.ID, dc.Name, dc.Region, orDash(dc.Country), yes(dc.GlobalNetwork), orDash(dc.Underlay), orDash(strings.Join(dc.Compliance, ", ")),
		}
	},
}

type adminCenterPutCmd struct {
	ID            string   `arg:"" placeholder:"ID" help:"Id of the data center, such as EU-RO-1."`
	Name          string   `placeholder:"NAME" help:"Name."`
	Region        string   `placeholder:"EUROPE" help:"NORTH_AMERICA, SOUTH_AMERICA, EUROPE, ASIA, MIDDLE_EAST, AFRICA, OCEANIA, ANTARCTICA or UNKNOWN."`
	Country       *string  `placeholder:"CODE" help:"Country as two letters, such as RO."`
	GlobalNetwork *bool    `negatable:"" help:"Pods here can join their account's private network."`
	Underlay      string   `placeholder:"KIND" help:"How hosts here reach each other for private networks: encrypted, or private, which is unencrypted, for a network that is yours alone."`
	Compliance    []string `sep:"none" placeholder:"GDPR" help:"Certificate. May be repeated; replaces all."`
}

// Run makes or changes a data center.
func (cmd adminCenterPutCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	now, known, err := dataCenters.find(ctx, c, cmd.ID)
	if err != nil {
		return err
	}
	body := now.Body()
	if err := needs("data center", cmd.ID, known || cmd.Name != "" && cmd.Region != "", "--name and --region"); err != nil {
		return err
	}
	body.Name, body.Region = first(cmd.Name, body.Name), first(cmd.Region, body.Region)
	set(&body.Country, cmd.Country)
	set(&body.GlobalNetwork, cmd.GlobalNetwork)
	body.Underlay = first(cmd.Underlay, body.Underlay)
	if len(cmd.Compliance) > 0 {
		body.Compliance = cmd.Compliance
	}
	dc, err := c.PutCenter(ctx, cmd.ID, body)
	return dataCenters.show(a, dc, err)
}

// set takes over a value that the command line gives.
func set[T any](into, given *T) {
	if given != nil {
		*into = *given
	}
}

type adminStorageCmd struct {
	Get viewCmd            `cmd:"" help:"Show the prices of storage."`
	Set adminStorageSetCmd `cmd:"" help:"Change prices of storage."`
}

func storageSheet(p admin.StoragePrices) string {
	usd := func(d float64) string {
		return "$" + strconv.FormatFloat(d, 'f', -1, 64) + " per GB and month"
	}
	return sheet([][2]string{
		{"Container disk", usd(p.ContainerDisk)},
		{"Persistent mount, running", usd(p.PersistentRunning)},
		{"Persistent mount, stopped", usd(p.PersistentStopped)},
		{"Network volume, first TB", usd(p.VolumeFirst)},
		{"Network volume, beyond", usd(p.VolumeBeyond)},
		{"Fast volume, first TB", usd(p.FastFirst)},
		{"Fast volume, beyond", usd(p.FastBeyond)},
	})
}

type adminStorageSetCmd struct {
	ContainerDisk     *float64 `placeholder:"USD" help:"Container disk, while a pod is charged."`
	PersistentRunning *float64 `placeholder:"USD" help:"Persistent mount, while its pod is charged."`
	PersistentStopped *float64 `placeholder:"USD" help:"Persistent mount, while its pod is stopped."`
	VolumeFirst       *float64 `placeholder:"USD" help:"Network volume, its first 1000 GB."`
	VolumeBeyond      *float64 `placeholder:"USD" help:"Network volume, above."`
	FastFirst         *float64 `placeholder:"USD" help:"High-performance network volume, its first 1000 GB."`
	FastBeyond        *float64 `placeholder:"USD" help:"High-performance network volume, above."`
}

// Run changes prices of storage.
func (cmd adminStorageSetCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd == (adminStorageSetCmd{}) {
		return usage("say which price to change")
	}
	prices, err := c.StoragePrices(ctx)
	if err != nil {
		return err
	}
	p := prices.Value
	set(&p.ContainerDisk, cmd.ContainerDisk)
	set(&p.PersistentRunning, cmd.PersistentRunning)
	set(&p.PersistentStopped, cmd.PersistentStopped)
	set(&p.VolumeFirst, cmd.VolumeFirst)
	set(&p.VolumeBeyond, cmd.VolumeBeyond)
	set(&p.FastFirst, cmd.FastFirst)
	set(&p.FastBeyond, cmd.FastBeyond)
	prices, err = c.PutStoragePrices(ctx, p)
	return reply(a, prices, err, storageSheet)
}

type adminSourceCmd struct {
	Template string `arg:"" placeholder:"TEMPLATE" help:"Id of the template."`
	Source   string `arg:"" enum:"official,verified,community" placeholder:"SOURCE" help:"official, verified or community."`
}

// Run puts a template into a slice of the catalog.
func (cmd adminSourceCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	t, err := c.SetTemplateSource(ctx, cmd.Template, fleet.TemplateSource(cmd.Source))
	return reply(a, t, err, func(t v2.Template) string {
		return fmt.Sprintf("%s is in the catalog as %s\n", printable(t.ID), printable(first(string(t.Source), cmd.Source)))
	})
}
