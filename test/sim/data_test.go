package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gantry/agent/pod"
	"gantry/fleet"
)

// note is what a process leaves in its pod's data, and where.
type note struct {
	at   *machine
	path string
	text string
	gone bool // perhaps: its pod was terminated before the state was replaced by an older one
}

// writes is what every process does with its pod's data: it finds what the incarnation before left
// there, and leaves its own.
func (w *world) writes(m *machine, spec pod.ContainerSpec) {
	for _, mount := range spec.Mounts {
		if mount.AsIs {
			continue // a network volume outlives the pod, and others may have it
		}
		w.mu.Lock()
		last, known := w.written[spec.Pod]
		w.mu.Unlock()
		if known && last.at != m && !last.gone {
			w.broke("pod %s starts on %s, and its data is on %s", spec.Pod, m.name, last.at.name)
		}
		now := note{at: m, path: filepath.Join(mount.Source, "written"), text: fmt.Sprintf("incarnation %d", spec.Incarnation)}
		found, err := os.ReadFile(now.path)
		switch {
		case last.gone && errors.Is(err, fs.ErrNotExist):
		case known && (err != nil || string(found) != last.text):
			w.broke("pod %s left %q and incarnation %d finds %q (%v)", spec.Pod, last.text, spec.Incarnation, found, err)
		case !known && err == nil:
			w.broke("incarnation %d of pod %s finds %q, which nobody wrote", spec.Incarnation, spec.Pod, found)
		}
		w.check(os.WriteFile(now.path, []byte(now.text), 0o600))
		w.mu.Lock()
		w.written[spec.Pod] = now
		if known {
			w.reread++
		}
		w.mu.Unlock()
	}
}

// dataIsThere checks that a process that runs has its pod's data.
func (w *world) dataIsThere(m *machine) {
	running, _ := m.census()
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range running {
		left, has := w.written[id]
		if !has {
			continue
		}
		if found, err := os.ReadFile(left.path); err != nil || string(found) != left.text {
			w.faults = append(w.faults, fmt.Sprintf("pod %s runs on %s, and its data is %q (%v)", id, m.name, found, err))
		}
	}
}

// dataIsGone checks that a host that released a terminated pod has nothing of its data.
func (c *checker) dataIsGone(now picture, h *host) {
	kept, err := pod.DataOf(filepath.Join(h.dir, "persistent"))
	c.w.check(err)
	for _, id := range kept {
		if now.hosts[h.id].Eligibility != fleet.EligibilityOpen || c.w.wasThere(h.machine, id) {
			continue // what a fence freed, or a restore forgot, goes when the host is back
		}
		if p, ok := now.pods[id]; !ok || p.Status == fleet.StatusTerminated && !p.Held {
			c.w.broke("%s keeps data of pod %s, and the state says %+v", h.name, id, p)
		}
	}
}

// stored tells where the data on hosts is not that of pods that are there.
func (c *checker) stored(now picture) (wrong []string) {
	for _, h := range c.w.allHosts() {
		kept, err := pod.DataOf(filepath.Join(h.dir, "persistent"))
		c.w.check(err)
		for _, id := range kept {
			if p, ok := now.pods[id]; !ok || p.Host != h.id || !p.KeepsData() || p.Status == fleet.StatusTerminated {
				wrong = append(wrong, fmt.Sprintf("%s keeps data of pod %s, which is %s on host %s", h.name, id, p.Status, p.Host))
			}
		}
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	for id, left := range c.w.written {
		p, ok := now.pods[id]
		if !ok || p.Status == fleet.StatusTerminated || left.gone {
			continue
		}
		if found, err := os.ReadFile(left.path); err != nil || string(found) != left.text {
			wrong = append(wrong, fmt.Sprintf("pod %s is %s, and its data is %q (%v)", id, p.Status, found, err))
		}
	}
	return wrong
}
