package pod

import (
	"context"
	"strings"

	"gantry/fleet"
)

// Fabric passes the host's RDMA devices into members of clusters. Calls may be repeated. Implementations are safe for concurrent use.
type Fabric interface {
	// Give returns what the container of a member's incarnation gets, and moves into its network namespace what it has alone. made says that
	// the container is there: it gets what it was made for, or nothing. Errors carry a Class.
	Give(ctx context.Context, id fleet.PodID, incarnation uint64, made bool) (Devices, error)
	// Take takes back what a pod was given.
	Take(ctx context.Context, id fleet.PodID) error
}

// fabric returns what the container gets of the host's fabric: something in a member of a cluster alone, and only where its order says so.
func (m *machine) fabric(ctx context.Context, want Assignment, made bool) (Devices, error) {
	switch {
	case want.Member == nil || !want.Member.Fabric:
		return Devices{}, nil
	case m.Fabric == nil:
		return Devices{}, &Error{Class: Retry, Sentence: "the host passes no fabric into pods"}
	}
	return m.Fabric.Give(ctx, m.id, want.Incarnation, made)
}

// leaveFabric takes back what the pod has of the host's fabric.
func (m *machine) leaveFabric(ctx context.Context) error {
	if m.Fabric == nil {
		return nil
	}
	return m.Fabric.Take(ctx, m.id)
}

// addUnset adds variables that the environment does not have: what the owner set stays.
func addUnset(env map[string]string, vars []string) {
	for _, kv := range vars {
		name, value, _ := strings.Cut(kv, "=")
		if _, own := env[name]; !own {
			env[name] = value
		}
	}
}
