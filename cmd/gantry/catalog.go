package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"gantry/client"
)

type catalogCmd struct {
	GPUs        catalogGPUsCmd    `cmd:"" name:"gpus" help:"GPU types, their prices, and what is free."`
	CPUs        catalogCPUsCmd    `cmd:"" name:"cpus" help:"CPU flavors, their prices, and what is free."`
	DataCenters catalogCentersCmd `cmd:"" name:"datacenters" help:"Data centers."`
}

type catalogGPUsCmd struct {
	Count int    `placeholder:"N" help:"Count what is free for pods with this many GPUs."`
	Cloud string `placeholder:"SECURE" help:"Tier of hosts to count: SECURE or COMMUNITY."`
}

func (catalogGPUsCmd) Help() string {
	return `FREE tells how many such pods could be created now: NONE, LOW (fewer than 4), MEDIUM (fewer than 16), HIGH.

Examples:

    gantry catalog gpus
    gantry catalog gpus --count 8`
}

// Run lists GPU types.
func (cmd catalogGPUsCmd) Run(ctx context.Context, a *app) error {
	query := available()
	setNumber(query, "count", cmd.Count)
	if cmd.Cloud != "" {
		query.Set("cloud", cmd.Cloud)
	}
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.GPUs(ctx, query)
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string {
		var rows [][]string
		for _, g := range list.Value.GPUs {
			rows = append(rows, []string{
				g.ID, orDash(g.Pool), fmt.Sprintf("%g GB", g.Memory), price(g.Price.Secure), price(g.Price.Community),
				fmt.Sprint(max(g.MaxCount.Secure, g.MaxCount.Community)), orDash(g.Availability), centers(g.DataCenters),
			})
		}
		return table([]string{"ID", "POOL", "MEMORY", "SECURE/H", "COMMUNITY/H", "MOST", "FREE", "CENTERS"}, rows)
	})
}

type catalogCPUsCmd struct {
	VCPU int `name:"vcpu" placeholder:"N" help:"Count what is free for pods with this many vCPUs."`
}

func (catalogCPUsCmd) Help() string {
	return `FREE tells how many such pods could be created now: NONE, LOW (fewer than 4), MEDIUM (fewer than 16), HIGH.

Examples:

    gantry catalog cpus
    gantry catalog cpus --vcpu 16`
}

// Run lists CPU flavors.
func (cmd catalogCPUsCmd) Run(ctx context.Context, a *app) error {
	query := available()
	setNumber(query, "vcpuCount", cmd.VCPU)
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.CPUs(ctx, query)
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string {
		var rows [][]string
		for _, f := range list.Value.CPUs {
			rows = append(rows, []string{
				f.ID, f.Name, fmt.Sprintf("%d-%d", f.VCPU.Min, f.VCPU.Max), fmt.Sprintf("%g GB", f.RAMGBPerVCPU),
				price(f.Price.SecurePerVCPU), orDash(f.Availability), centers(f.DataCenters),
			})
		}
		return table([]string{"ID", "NAME", "VCPUS", "RAM/VCPU", "VCPU/H", "FREE", "CENTERS"}, rows)
	})
}

type catalogCentersCmd struct{}

func (catalogCentersCmd) Help() string {
	return `Example:

    gantry catalog datacenters`
}

// Run lists data centers.
func (catalogCentersCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.DataCenters(ctx, url.Values{"include": {"GPU_AVAILABILITY,CPU_AVAILABILITY"}})
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string {
		var rows [][]string
		for _, dc := range list.Value.DataCenters {
			network := "no"
			if dc.GlobalNetwork {
				network = "yes"
			}
			rows = append(rows, []string{dc.ID, dc.Name, dc.Region, network, inStock(dc.GPUs), inStock(dc.CPUs)})
		}
		return table([]string{"ID", "NAME", "REGION", "GLOBAL NETWORK", "FREE GPUS", "FREE CPUS"}, rows)
	})
}

func available() url.Values {
	return url.Values{"include": {"AVAILABILITY"}, "product": {"POD"}}
}

func setNumber(query url.Values, name string, n int) {
	if n != 0 {
		query.Set(name, strconv.Itoa(n))
	}
}

// centers names the data centers that have something free.
func centers(stocks []client.Stock) string {
	var ids []string
	for _, s := range stocks {
		if s.Availability != "NONE" {
			ids = append(ids, s.ID)
		}
	}
	return orDash(strings.Join(ids, ", "))
}

// inStock names the entries of which something is free, by their short names.
func inStock(stocks []client.Stock) string {
	var names []string
	for _, s := range stocks {
		if s.Availability != "NONE" {
			names = append(names, first(s.Name, s.ID))
		}
	}
	return orDash(strings.Join(names, ", "))
}
