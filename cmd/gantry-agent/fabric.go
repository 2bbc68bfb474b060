package main

import (
	"context"
	"log/slog"
	"path/filepath"

	"gantry/agent"
	"gantry/agent/fabric"
	"gantry/fleet"
	"gantry/netctl"
	"gantry/netctl/kernel"
)

// fabricFlags say how members of clusters get RDMA devices of the machine.
type fabricFlags struct {
	Rdma string `name:"rdma" default:"off" enum:"off,share,vf" help:"Pass InfiniBand and RoCE devices into pods of clusters: off; share, all use the same devices; vf, each pod gets virtual functions of its own, which you have made (docs/clusters.md)."`
}

// open returns what passes devices into pods, until stop is called; nil: nothing does.
func (f fabricFlags) open(ctx context.Context, dataDir, instance string, net *kernel.Controller, log *slog.Logger) (_ agent.Fabric, stop func(), err error) {
	if f.Rdma == "off" {
		return nil, func() {}, nil
	}
	h, err := fabric.Open(ctx, fabric.Config{
		Mode: fleet.FabricMode(f.Rdma), Dir: filepath.Join(dataDir, "fabric"), Links: net, Log: log,
		Namespace: func(id fleet.PodID) string { return netctl.NamespaceName(instance, string(id)) },
	})
	if err != nil {
		return nil, nil, err
	}
	return h, h.Close, nil
}
