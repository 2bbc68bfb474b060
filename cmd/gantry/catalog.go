package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
)

type catalogCmd struct {
	GPUs        catalogGPUsCmd      `cmd:"" name:"gpus" help:"GPU types, their prices, and what is free."`
	CPUs        catalogCPUsCmd      `cmd:"" name:"cpus" help:"CPU flavors, their prices, and what is free."`
	DataCenters catalogCentersCmd   `cmd:"" name:"datacenters" help:"Data centers, and what is free in them."`
	Templates   catalogTemplatesCmd `cmd:"" help:"Public templates."`
}

type catalogGPUsCmd struct {
	Count   int      `placeholder:"N" help:"Count what is free for pods with this many GPUs."`
	Cloud   string   `placeholder:"SECURE" help:"Tier of hosts to count: SECURE or COMMUNITY."`
	Country []string `sep:"none" placeholder:"CODE" help:"Count in this country alone, such as RO. May be repeated."`
	CUDA    []string `name:"cuda" sep:"none" placeholder:"12.8" help:"Count hosts with exactly this CUDA version. May be repeated."`
	MinCUDA string   `name:"min-cuda" placeholder:"12.4" help:"Count hosts with this CUDA version or a newer one."`
	Free    bool     `help:"Only types of which something is free."`
}

// Run lists GPU types.
func (cmd catalogGPUsCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	list, err := c.GPUs(ctx, client.GPUQuery{
		Count: cmd.Count, Cloud: cmd.Cloud, Countries: cmd.Country, CUDAVersions: cmd.CUDA, MinCUDAVersion: cmd.MinCUDA,
	})
	return reply(a, list, err, func(list v2.GPUList) string {
		var rows [][]string
		for _, g := range list.GPUs {
			if cmd.Free && (g.Availability == "" || g.Availability == "NONE") {
				continue
			}
			rows = append(rows, []string{
				g.ID, orDash(g.Pool), fmt.Sprintf("%d GB", g.Memory), cudaVersions(g), price(g.Price.Secure), price(g.Price.Community),
				bidsFrom(g.Price),
				fmt.Sprint(max(g.MaxCount.Secure, g.MaxCount.Community)), orDash(g.Availability), centers(g.DataCenters),
			})
		}
		return table([]string{"ID", "~POOL", "MEMORY", "~CUDA", "SECURE/H", "~COMMUNITY/H", "~BID FROM", "~MOST", "FREE", "CENTERS"}, rows)
	})
}

// bidsFrom shows the lowest bids for interruptible pods, of each tier that has one.
func bidsFrom(p v2.GPUPrice) string {
	var out []string
	if p.SecureSpot != nil {
		out = append(out, dollars(*p.SecureSpot))
	}
	if p.CommunitySpot != nil {
		out = append(out, dollars(*p.CommunitySpot)+" (community)")
	}
	return orDash(strings.Join(out, ", "))
}

// cudaVersions lists what hosts with a GPU type offer.
func cudaVersions(g v2.GPUType) string {
	var out []string
	for _, v := range g.CUDAVersions {
		if v.Available {
			out = append(out, v.Version)
		}
	}
	return orDash(strings.Join(out, ", "))
}

type catalogCPUsCmd struct {
	VCPU int `name:"vcpu" placeholder:"N" help:"Count what is free for pods with this many vCPUs."`
}

// Run lists CPU flavors.
func (cmd catalogCPUsCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	list, err := c.CPUs(ctx, cmd.VCPU)
	return reply(a, list, err, func(list v2.CPUList) string {
		var rows [][]string
		for _, f := range list.CPUs {
			rows = append(rows, []string{
				f.ID, f.Name, fmt.Sprintf("%d-%d", f.VCPU.Min, f.VCPU.Max), fmt.Sprintf("%g GB", f.RAMPerVCPU),
				price(f.Price.SecurePerVCPU), orDash(f.Availability), centers(f.DataCenters),
			})
		}
		return table([]string{"ID", "NAME", "VCPUS", "RAM/VCPU", "VCPU/H", "FREE", "CENTERS"}, rows)
	})
}

type catalogCentersCmd struct {
	Region            []string `sep:"none" placeholder:"EUROPE" help:"Only data centers of this region. May be repeated."`
	Compliance        []string `sep:"none" placeholder:"GDPR" help:"Only data centers with this certificate. May be repeated: with all of them."`
	NetworkVolumeType []string `sep:"none" placeholder:"STANDARD" help:"Only data centers with this tier of network volumes. May be repeated: with all of them."`
	GlobalNetwork     *bool    `negatable:"" help:"Only data centers with the account's private network, or only those without."`
}

// Run lists data centers.
func (cmd catalogCentersCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	list, err := c.DataCenters(ctx, client.DataCenterQuery{
		Regions: cmd.Region, NetworkVolumeTypes: cmd.NetworkVolumeType, Compliance: cmd.Compliance, GlobalNetwork: cmd.GlobalNetwork,
	})
	return reply(a, list, err, func(list v2.DataCenterList) string {
		var rows [][]string
		for _, dc := range list.DataCenters {
			rows = append(rows, []string{dc.ID, dc.Name, dc.Region, yes(dc.GlobalNetwork), orDash(strings.Join(dc.NetworkVolumeTypes, ", ")), inStock(dc.GPUAvailability), inStock(dc.CPUAvailability)})
		}
		return table([]string{"ID", "NAME", "REGION", "GLOBAL NETWORK", "VOLUMES", "FREE GPUS", "FREE CPUS"}, rows)
	})
}

// centers names the data centers that have something free.
func centers(stocks []v2.CenterStock) string {
	var ids []string
	for _, s := range stocks {
		if s.Availability != "NONE" {
			ids = append(ids, s.ID)
		}
	}
	return orDash(strings.Join(ids, ", "))
}

// inStock names the entries of which something is free, by their short names.
func inStock(stocks []v2.Stock) string {
	var names []string
	for _, s := range stocks {
		if s.Availability != "NONE" {
			names = append(names, first(s.Name, s.ID))
		}
	}
	slices.Sort(names)
	names = slices.Compact(names) // several flavors may share a short name
	return orDash(strings.Join(names, ", "))
}

type catalogTemplatesCmd struct {
	Source string `enum:"official,verified,community" default:"official" help:"Which: official, verified or community."`
}

// Run lists public templates.
func (cmd catalogTemplatesCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	list, err := c.PublicTemplates(ctx, fleet.TemplateSource(cmd.Source))
	return templates.showList(a, list, err)
}
