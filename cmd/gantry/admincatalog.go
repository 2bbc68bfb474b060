package main

import (
	"context"
	"fmt"
	"time"

	"gantry/api/admin"
	"gantry/client"
)

type adminGPUCmd struct {
	List   listCmd        `cmd:"" help:"List the GPU types."`
	Put    adminGPUPutCmd `cmd:"" help:"Create a GPU type, or change one: its price, for example."`
	Delete deleteCmd      `cmd:"" help:"Delete GPU types that no host has."`
}

var gpuTypes = noun[admin.GPUTypeEntry, admin.GPUTypeEntryList]{
	kind: "GPU type", bare: true, all: (*client.Client).GPUTypes, remove: (*client.Client).DeleteGPUType,
	items:   func(l admin.GPUTypeEntryList) []admin.GPUTypeEntry { return l.GPUTypes },
	thing:   func(g admin.GPUTypeEntry) thing { return thing{id: g.ID} },
	columns: []string{"ID", "NAME", "POOL", "MADE BY", "MEMORY", "SECURE/H", "COMMUNITY/H", "SERVERLESS/H", "SPOT/H", "COMMUNITY SPOT/H", "CONTRIBUTED"},
	row: func(g admin.GPUTypeEntry, _ time.Time) []string {
		return []string{
			g.ID, g.Name, orDash(g.Pool), g.Manufacturer, fmt.Sprintf("%d GB", g.Memory),
			price(g.Price.Secure), price(g.Price.Community), price(g.Price.Serverless), price(g.Price.SecureSpot), price(g.Price.CommunitySpot), yes(g.Contributed),
		}
	},
}

type adminGPUPutCmd struct {
	ID           string   `arg:"" placeholder:"ID" help:"The device's own name, such as \"NVIDIA H100 80GB HBM3\"."`
	Name         string   `placeholder:"NAME" help:"Short name."`
	Pool         *string  `placeholder:"POOL" help:"Pool of like GPUs, for serverless endpoints."`
	Manufacturer string   `placeholder:"NVIDIA" help:"NVIDIA, AMD or UNKNOWN."`
	Memory       int      `placeholder:"GB" help:"Memory of one GPU."`
	Secure       *float64 `placeholder:"USD" help:"Price per GPU and hour in the tier SECURE; 0: none."`
	Community    *float64 `placeholder:"USD" help:"Price per GPU and hour in the tier COMMUNITY; 0: none."`
	Serverless   *float64 `placeholder:"USD" help:"Price per GPU and hour for serverless workers; 0: none."`

	SecureSpot    *float64 `placeholder:"USD" help:"Lowest bid of interruptible pods in the tier SECURE; 0: there are none."`
	CommunitySpot *float64 `placeholder:"USD" help:"Lowest bid of interruptible pods in the tier COMMUNITY; 0: there are none."`
}

// Run makes or changes a GPU type.
func (cmd adminGPUPutCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	now, known, err := gpuTypes.find(ctx, c, cmd.ID)
	if err != nil {
		return err
	}
	body := now.Body()
	complete := cmd.Name != "" && cmd.Manufacturer != "" && cmd.Memory != 0
	if err := needs("GPU type", cmd.ID, known || complete, "--name, --manufacturer and --memory"); err != nil {
		return err
	}
	body.Name, body.Manufacturer = first(cmd.Name, body.Name), first(cmd.Manufacturer, body.Manufacturer)
	if cmd.Memory != 0 {
		body.Memory = cmd.Memory
	}
	set(&body.Pool, cmd.Pool)
	set(&body.Price.Secure, cmd.Secure)
	set(&body.Price.Community, cmd.Community)
	set(&body.Price.Serverless, cmd.Serverless)
	set(&body.Price.SecureSpot, cmd.SecureSpot)
	set(&body.Price.CommunitySpot, cmd.CommunitySpot)
	g, err := c.PutGPUType(ctx, cmd.ID, body)
	return gpuTypes.show(a, g, err)
}

type adminCPUCmd struct {
	List   listCmd        `cmd:"" help:"List the CPU flavors."`
	Put    adminCPUPutCmd `cmd:"" help:"Create a CPU flavor, or change one: its price, for example."`
	Delete deleteCmd      `cmd:"" help:"Delete CPU flavors."`
}

var cpuFlavors = noun[admin.CPUFlavorEntry, admin.CPUFlavorEntryList]{
	kind: "CPU flavor", bare: true, all: (*client.Client).CPUFlavors, remove: (*client.Client).DeleteCPUFlavor,
	items:   func(l admin.CPUFlavorEntryList) []admin.CPUFlavorEntry { return l.CPUFlavors },
	thing:   func(f admin.CPUFlavorEntry) thing { return thing{id: f.ID} },
	columns: []string{"ID", "NAME", "GROUP", "VCPUS", "RAM/VCPU", "DISK/VCPU", "VCPU/H", "SERVERLESS/H"},
	row: func(f admin.CPUFlavorEntry, _ time.Time) []string {
		return []string{
			f.ID, f.Name, f.Group, fmt.Sprintf("%d-%d", f.VCPU.Min, f.VCPU.Max), fmt.Sprintf("%g GB", f.RAMPerVCPU),
			fmt.Sprintf("%d GB", f.DiskPerVCPU), price(f.Price.SecurePerVCPU), price(f.Price.ServerlessPerVCPU),
		}
	},
}

type adminCPUPutCmd struct {
	ID                string   `arg:"" placeholder:"ID" help:"Id of the flavor, such as cpu3g."`
	Name              string   `placeholder:"NAME" help:"Name."`
	Group             string   `placeholder:"GROUP" help:"Group of flavors."`
	MinVCPU           int      `name:"min-vcpu" placeholder:"N" help:"Fewest vCPUs of a pod, a power of two."`
	MaxVCPU           int      `name:"max-vcpu" placeholder:"N" help:"Most vCPUs of a pod, a power of two."`
	RAMPerVCPU        float64  `name:"ram-per-vcpu" placeholder:"GB" help:"Memory for each vCPU."`
	DiskPerVCPU       int      `name:"disk-per-vcpu" placeholder:"GB" help:"Most container disk for each vCPU."`
	SecurePerVCPU     *float64 `name:"secure-per-vcpu" placeholder:"USD" help:"Price per vCPU and hour in the tier SECURE."`
	ServerlessPerVCPU *float64 `name:"serverless-per-vcpu" placeholder:"USD" help:"Price per vCPU and hour for serverless workers."`
}

// Run makes or changes a CPU flavor.
func (cmd adminCPUPutCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	now, known, err := cpuFlavors.find(ctx, c, cmd.ID)
	if err != nil {
		return err
	}
	body := now.PutCPUFlavorRequest
	complete := cmd.Name != "" && cmd.Group != "" && cmd.MinVCPU != 0 && cmd.MaxVCPU != 0 && cmd.RAMPerVCPU != 0 && cmd.DiskPerVCPU != 0
	if err := needs("CPU flavor", cmd.ID, known || complete,
		"--name, --group, --min-vcpu, --max-vcpu, --ram-per-vcpu and --disk-per-vcpu"); err != nil {
		return err
	}
	cmd.fill(&body)
	f, err := c.PutCPUFlavor(ctx, cmd.ID, body)
	return cpuFlavors.show(a, f, err)
}

// fill puts what is given over what the flavor has.
func (cmd adminCPUPutCmd) fill(body *admin.PutCPUFlavorRequest) {
	body.Name, body.Group = first(cmd.Name, body.Name), first(cmd.Group, body.Group)
	for into, given := range map[*int]int{&body.VCPU.Min: cmd.MinVCPU, &body.VCPU.Max: cmd.MaxVCPU, &body.DiskPerVCPU: cmd.DiskPerVCPU} {
		if given != 0 {
			*into = given
		}
	}
	if cmd.RAMPerVCPU != 0 {
		body.RAMPerVCPU = cmd.RAMPerVCPU
	}
	set(&body.Price.SecurePerVCPU, cmd.SecurePerVCPU)
	set(&body.Price.ServerlessPerVCPU, cmd.ServerlessPerVCPU)
}
