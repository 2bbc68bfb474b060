package devtest

import (
	"context"
	"errors"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// RuntimeCensus lists what a containerd holds in a namespace for containers and for what is being pulled: containers,
// snapshots that are not images', leases, and downloads that were begun.
func RuntimeCensus(ctx context.Context, socket, namespace string) (out []string, err error) {
	c, err := containerd.New(socket)
	if err != nil {
		return nil, fmt.Errorf("connect to containerd: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx = namespaces.WithNamespace(ctx, namespace)
	list, err1 := c.ContainerService().List(ctx)
	for _, x := range list {
		out = append(out, "container "+x.ID)
	}
	err2 := c.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, x snapshots.Info) error {
		if x.Kind != snapshots.KindCommitted {
			out = append(out, fmt.Sprintf("snapshot %s of kind %v", x.Name, x.Kind))
		}
		return nil
	})
	leases, err3 := c.LeasesService().List(ctx)
	for _, x := range leases {
		out = append(out, "lease "+x.ID)
	}
	ingests, err4 := c.ContentStore().ListStatuses(ctx)
	for _, x := range ingests {
		out = append(out, "download "+x.Ref)
	}
	return out, errors.Join(err1, err2, err3, err4)
}
