package sim

import (
	"context"
	"os"
	"slices"
	"strconv"

	"gantry/agent/pod"
	"gantry/netctl"
)

// checkHostSide holds what a container gets of its host beside the image: its published ports lead to
// it and to no other container that runs, none that is to run on believes to have one of them, and its
// mounts are there. The caller holds the machine's lock.
func (m *machine) checkHostSide(spec pod.ContainerSpec) {
	have, err := netctl.NewFake(m.kernel, m.instance).Published(context.Background(), string(spec.Pod))
	if err != nil {
		m.watch.broke("%s: ports of pod %s: %v", m.name, spec.Pod, err)
	}
	for _, p := range have {
		name, public := "GANTRY_TCP_PORT_"+strconv.Itoa(int(p.Private)), strconv.Itoa(int(p.Public))
		if spec.Env[name] != public {
			m.watch.broke("%s: pod %s is published at %s and told %q", m.name, spec.Pod, public, spec.Env[name])
		}
		for id, b := range m.boxes {
			if id == spec.Pod || b.Task != pod.TaskRunning {
				continue
			}
			others, err := netctl.NewFake(m.kernel, m.instance).Published(context.Background(), string(id))
			if err != nil || slices.ContainsFunc(others, func(o netctl.Port) bool { return o.Public == p.Public }) {
				m.watch.broke("%s: port %s leads to pods %s and %s (%v)", m.name, public, spec.Pod, id, err)
			}
			// A change that gives a port up frees it at once: what runs of the incarnation before was told of it.
			if b.spec.Env[name] == public && !m.watch.superseded(id, b.Incarnation) {
				m.watch.broke("%s: pods %s and %s are both told of port %s", m.name, spec.Pod, id, public)
			}
		}
	}
	if _, told := spec.Env["GANTRY_TCP_PORT_22"]; told && len(have) == 0 {
		m.watch.broke("%s: pod %s is told of a port that nothing leads to it from", m.name, spec.Pod)
	}
	for _, mount := range spec.Mounts {
		if mount.AsIs {
			if m.attached[spec.Pod] == "" {
				m.watch.broke("%s: pod %s has a network volume that is not attached", m.name, spec.Pod)
			}
			continue
		}
		if info, err := os.Stat(mount.Source); err != nil || !info.IsDir() {
			m.watch.broke("%s: pod %s has a mount that is not there: %v", m.name, spec.Pod, err)
		}
	}
}
