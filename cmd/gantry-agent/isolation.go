package main

import (
	"errors"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"

	"gantry/agent/inventory"
	"gantry/agent/podnet"
	"gantry/fleet"
	"gantry/internal/userns"
)

const (
	usernsOff    = "off"
	classDefault = "runc"
)

// isolationFlags say what stands between pods and the host.
type isolationFlags struct {
	UserNamespaces string `default:"auto" enum:"auto,off" help:"Give every pod a user namespace, so that its root has no rights on the host: auto (where the kernel can, 5.19 or later) or off."`
	RuntimeClass   string `default:"runc" enum:"runc,gvisor,kata" help:"What runs containers: runc, gvisor (runsc and its containerd shim must be installed) or kata (its shim likewise)."`
}

func (f isolationFlags) validate() error {
	var faults []error
	if !slices.Contains([]string{"auto", usernsOff}, f.UserNamespaces) {
		faults = append(faults, errors.New("--user-namespaces must be auto or off"))
	}
	if !slices.Contains([]string{classDefault, "gvisor", "kata"}, f.RuntimeClass) {
		faults = append(faults, errors.New("--runtime-class must be runc, gvisor or kata"))
	}
	return errors.Join(faults...)
}

// isolation is what the flags come to on this host.
type isolation struct {
	class      string                       // of ctrd.Config and agent.Config: "" for runc
	idBase     func(addr netip.Addr) uint32 // of agent.Config; nil: pods have no user namespaces
	conditions []fleet.Condition
}

// isolation finds out what the kernel can, for images that lie in the file system of dir. Classes other
// than runc isolate by other means, and their pods have no user namespaces.
func (f isolationFlags) isolation(instance, dir string, log *slog.Logger) isolation {
	if f.RuntimeClass != classDefault {
		out := isolation{class: f.RuntimeClass}
		shim := map[string]string{"gvisor": "containerd-shim-runsc-v1", "kata": "containerd-shim-kata-v2"}[f.RuntimeClass]
		if _, err := exec.LookPath(shim); err != nil {
			out.conditions = []fleet.Condition{{
				Code: "runtime_missing", Severe: true,
				Text: "containers cannot run with " + f.RuntimeClass + ": " + shim + " is not installed in a folder of PATH",
			}}
		}
		return out
	}
	if f.UserNamespaces == usernsOff {
		return isolation{}
	}
	if err := userns.Probe(dir); err != nil {
		log.Warn("pods have no user namespaces", "err", err)
		return isolation{conditions: []fleet.Condition{inventory.ConditionNoUserns(err)}}
	}
	return isolation{idBase: podnet.IDBase(instance)}
}
