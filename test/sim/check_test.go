package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// picture is the state at one index.
type picture struct {
	index     uint64
	pods      map[fleet.PodID]fleet.Pod
	hosts     map[fleet.HostID]fleet.Host
	templates []fleet.Template
	volumes   []fleet.Volume
	endpoints []fleet.Endpoint
	clusters  []fleet.Cluster
	books     books
	private   private
	all       []any
}

// text is the whole state in words, the same for the same state.
func (p picture) text() string { return inWords(p.all) }

func inWords(all []any) string {
	text, err := json.Marshal(all)
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(string(text), "[]", "null") // which of the two an empty list is, no reader can tell
}

// take reads the state.
func take(s *state.Store) (picture, error) {
	out := picture{pods: map[fleet.PodID]fleet.Pod{}, hosts: map[fleet.HostID]fleet.Host{}}
	err := s.View(func(v *state.View) (err error) {
		out.index = v.Index()
		cluster, _ := v.Cluster()
		all := []any{cluster, v.Catalog(), v.DataCenters(), v.Accounts()}
		for _, a := range v.Accounts() {
			templates := state.List[fleet.Template](v, a.ID)
			out.templates = append(out.templates, templates...)
			endpoints := state.List[fleet.Endpoint](v, a.ID)
			out.endpoints = append(out.endpoints, endpoints...)
			clusters := state.List[fleet.Cluster](v, a.ID)
			out.clusters = append(out.clusters, clusters...)
			all = append(all, v.Keys(a.ID), templates, endpoints, clusters)
			for _, p := range v.PodsOf(a.ID) {
				out.pods[p.ID] = p
				all = append(all, p)
			}
		}
		for _, h := range v.Hosts() {
			out.hosts[h.ID] = h
			all = append(all, h)
		}
		out.volumes = v.AllVolumes()
		out.private = readNetworks(v)
		all = append(all, v.Backends(), out.volumes, out.private.all)
		out.books, err = readBooks(v)
		all = append(all, out.books.text())
		out.all = all
		return err
	})
	return out, err
}

func find(s *state.Store, id fleet.PodID) (rec fleet.Pod, known bool, err error) {
	err = s.View(func(v *state.View) error { rec, known = v.Pod(id); return nil })
	return rec, known, err
}

// checker compares each picture with the one before, with what was acknowledged and with what runs
// on the machines. Nothing else may run while it looks (synctest.Wait).
type checker struct {
	workload
	w          *world
	before     picture
	hashes     map[uint64]string         // of the state, by index
	hashed     map[*process]uint64       // at which index each was compared last
	acked      map[fleet.PodID]fleet.Pod // the newest answer that a user had
	only       map[string]string         // by name: the one thing that is called so; empty: nothing is
	whole      map[string]bool           // by name: sets of pods that were seen
	ackedGangs map[fleet.ClusterID]bool  // that users were told of, and nobody asked to delete
	credit     map[fleet.AccountID]fleet.Money
	unsure     fleet.Money      // credit of the prepaid account that it has or has not
	clocksJump bool             // money is not checked
	calm       func() time.Time // since when schedulers have no fault; zero: they have
	mixing     mixing
	dry        time.Time // since when that account has no credit and pods; zero: it is not so
}

func newChecker(w *world) *checker {
	return &checker{
		workload: newWorkload(), w: w, hashes: map[uint64]string{}, hashed: map[*process]uint64{}, acked: map[fleet.PodID]fleet.Pod{}, only: map[string]string{}, whole: map[string]bool{}, ackedGangs: map[fleet.ClusterID]bool{}, credit: map[fleet.AccountID]fleet.Money{},
		mixing: mixing{ids: map[uint32]fleet.OverlayID{}, pods: map[*machine]map[fleet.OverlayID]fleet.PodID{}},
	}
}

// look checks everything that must hold at every moment.
func (c *checker) look() {
	now := c.w.picture()
	c.alike()
	c.hangsTooLong()
	for id, old := range c.before.pods {
		c.pod(old, now, id)
	}
	for id, old := range c.before.hosts {
		if h, ok := now.hosts[id]; !ok || h.Epoch < old.Epoch || h.Generation < old.Generation || h.MachineID != old.MachineID {
			c.w.broke("host %s went from %+v to %+v", id, old, h)
		}
	}
	for id, ack := range c.acked {
		rec, ok := now.pods[id]
		switch {
		case !ok && !c.mayBePurged(id):
			c.w.broke("I2: pod %s was acknowledged and is not there", id)
		case ok && (rec.Rev < ack.Rev || rec.Incarnation < ack.Incarnation):
			c.w.broke("I2: pod %s was acknowledged at revision %d and is at %d", id, ack.Rev, rec.Rev)
		}
	}
	c.held(now)
	c.kept(now)
	c.published(now)
	c.apart(now)
	c.processes(now)
	c.once(now)
	c.sets(now)
	c.ganged(now)
	c.worked()
	c.breathes(now)
	if !c.clocksJump {
		c.charged(now)
		c.endsWithCredit(now)
	}
	c.before = now
}

// troubled reports whether schedulers have faults, or had a short time ago.
func (c *checker) troubled() bool {
	return c.calm().IsZero() || time.Since(c.calm()) < leaderBy+callLimit
}

func (c *checker) mayBePurged(id fleet.PodID) bool {
	old, seen := c.before.pods[id]
	return !seen || purgeable(old)
}

func purgeable(p fleet.Pod) bool {
	return p.Status == fleet.StatusTerminated && time.Since(p.TerminatedAt) >= keepTerminated
}

// pod checks what became of one pod: I5 and counters that only grow.
func (c *checker) pod(old fleet.Pod, now picture, id fleet.PodID) {
	rec, ok := now.pods[id]
	rank := map[fleet.PodStatus]int{
		fleet.StatusProvisioning: 1, fleet.StatusStarting: 2, fleet.StatusRunning: 3,
		fleet.StatusExited: 4, fleet.StatusError: 4, fleet.StatusTerminated: 5,
	}
	switch {
	case !ok && !purgeable(old):
		c.w.broke("pod %s is gone before its time: %+v", id, old)
	case !ok:
	case rec.Rev < old.Rev || rec.Incarnation < old.Incarnation || rec.Host == old.Host && rec.Generation < old.Generation:
		c.w.broke("pod %s goes backwards: from %+v to %+v", id, old, rec)
	case old.Status == fleet.StatusTerminated && rec.Status != fleet.StatusTerminated:
		c.w.broke("I5: pod %s was terminated and is %s", id, rec.Status)
	case rec.Incarnation == old.Incarnation && rank[rec.Status] < rank[old.Status]:
		c.w.broke("I5: pod %s goes from %s to %s within incarnation %d", id, old.Status, rec.Status, rec.Incarnation)
	case rec.Moving && !rec.Spec.Movable || rec.Target != nil && (!rec.Moving || rec.Target.Host == rec.Host):
		c.w.broke("pod %s is moved against its owner's word, or has a place reserved for nothing: %+v", id, rec)
	case strings.HasPrefix(rec.Reason, "an operator stopped it") && !c.w.mayEvict(rec.Host):
		c.w.broke("pod %s was stopped by a drain without a deadline: %+v", id, rec)
	case old.KeepsData() && rec.Host != old.Host:
		c.w.broke("pod %s has its data on host %s and goes to %s", id, old.Host, rec.Host)
	case rec.Incarnation == old.Incarnation && rec.Host != old.Host:
		c.w.broke("I1: pod %s moves from host %s to %s within incarnation %d", id, old.Host, rec.Host, rec.Incarnation)
	}
}

// held checks I4 in the state: GPUs belong to one pod, and hosts are not promised twice.
func (c *checker) held(now picture) {
	gpus := map[string]fleet.PodID{}
	used := map[fleet.HostID]fleet.Resources{}
	for id, p := range now.pods {
		sum := used[p.Host]
		sum.DiskGB += dataOf(p)
		used[p.Host] = sum
		if to := p.Target; to != nil {
			c.reserved(id, to, gpus, used)
		}
		if !p.Held {
			if len(p.GPUs)+len(p.Mappings) > 0 {
				c.w.broke("I4: pod %s holds nothing and has GPUs %v and ports %v", id, p.GPUs, p.Mappings)
			}
			if p.Status.Active() {
				c.w.broke("pod %s is %s and holds nothing", id, p.Status)
			}
			continue
		}
		for _, g := range p.GPUs {
			if other, taken := gpus[g]; taken {
				c.w.broke("I4: GPU %s belongs to pods %s and %s", g, other, id)
			}
			gpus[g] = id
		}
		sum.MilliCPU, sum.MemoryMB, sum.DiskGB = sum.MilliCPU+p.Need.MilliCPU, sum.MemoryMB+p.Need.MemoryMB, sum.DiskGB+p.Need.DiskGB
		used[p.Host] = sum
	}
	for id, sum := range used {
		total := now.hosts[id].Inventory.Total
		if sum.MilliCPU > total.MilliCPU || sum.MemoryMB > total.MemoryMB || sum.DiskGB > total.DiskGB {
			c.w.broke("I4: host %s has %+v and is promised %+v", id, total, sum)
		}
	}
}

// reserved counts what is reserved for a pod on the move.
func (c *checker) reserved(id fleet.PodID, to *fleet.Reservation, gpus map[string]fleet.PodID, used map[fleet.HostID]fleet.Resources) {
	for _, g := range to.GPUs {
		if other, taken := gpus[g]; taken {
			c.w.broke("I4: GPU %s belongs to pod %s and is reserved for %s", g, other, id)
		}
		gpus[g] = id
	}
	used[to.Host] = plus(used[to.Host], to.Need)
}

func plus(a, b fleet.Resources) fleet.Resources {
	return fleet.Resources{MilliCPU: a.MilliCPU + b.MilliCPU, MemoryMB: a.MemoryMB + b.MemoryMB, DiskGB: a.DiskGB + b.DiskGB}
}

// dataOf is the room that a pod's data has on its host though the pod holds nothing else there, in GB.
func dataOf(p fleet.Pod) int64 {
	if p.Held || !p.KeepsData() || p.Status == fleet.StatusTerminated {
		return 0
	}
	return int64(p.Spec.Persistent.SizeGB)
}

// published checks I4 of public ports: each belongs to one pod of its host, and is one of the host's.
func (c *checker) published(now picture) {
	type public struct {
		host fleet.HostID
		port int
	}
	holder := map[public]fleet.PodID{}
	for id, p := range now.pods {
		if to := p.Target; to != nil {
			for _, m := range to.Mappings {
				if other, taken := holder[public{to.Host, m.Public}]; taken {
					c.w.broke("I4: port %d of host %s belongs to pod %s and is reserved for %s", m.Public, to.Host, other, id)
				}
				holder[public{to.Host, m.Public}] = id
			}
		}
		for _, m := range p.Mappings {
			at := public{p.Host, m.Public}
			if other, taken := holder[at]; taken {
				c.w.broke("I4: port %d of host %s belongs to pods %s and %s", m.Public, p.Host, other, id)
			}
			holder[at] = id
			if inv := now.hosts[p.Host].Inventory; m.Public < inv.PortFrom || m.Public > inv.PortTo {
				c.w.broke("I4: pod %s has port %d, which host %s does not publish", id, m.Public, p.Host)
			}
		}
	}
}

// once checks that what is created under an idempotency key is there once, and what was refused never.
func (c *checker) once(now picture) {
	see := func(name, id string) {
		if name = strings.TrimRight(name, "'"); !strings.HasPrefix(name, "once-") {
			return
		}
		if other, known := c.only[name]; known && other != id {
			c.w.brokeKey("one key made %q and %q, called %s", other, id, name)
		}
		c.only[name] = id
	}
	for id, p := range now.pods {
		see(p.Spec.Name, string(id))
	}
	for _, t := range now.templates {
		see(t.Name, string(t.ID))
	}
	for _, v := range now.volumes {
		see(v.Name, string(v.ID))
	}
	for _, c := range now.clusters {
		see(c.Name, string(c.ID))
	}
}

// sets checks that of a set of pods, whose name ends with its number, all are there when the first is seen.
func (c *checker) sets(now picture) {
	size := map[string]int{}
	for _, p := range now.pods {
		name := strings.TrimRight(p.Spec.Name, "'")
		if strings.HasPrefix(name, "set-") && !c.whole[name] {
			size[name]++
		}
	}
	for name, n := range size {
		if !strings.HasSuffix(name, fmt.Sprintf("-%d", n)) {
			c.w.brokeKey("a part of a set is there: %d pods are called %q", n, name)
		}
		c.whole[name] = true
	}
}

// processes checks I1 and I4 on the machines: what is there is bound to where it is, which with held
// keeps every GPU with one container.
func (c *checker) processes(now picture) {
	for _, h := range c.w.allHosts() {
		running, _ := h.census()
		for id, incarnation := range running {
			if c.w.isStray(h.machine, id, incarnation) {
				continue
			}
			rec, ok := now.pods[id]
			if !ok || !rec.Held || rec.Host != h.id || c.w.machineOf(rec.Host) != h.machine || rec.Incarnation < incarnation {
				c.w.broke("I1: incarnation %d of pod %s runs on %s; the state says %+v", incarnation, id, h.name, rec)
			}
		}
		c.w.dataIsThere(h.machine)
		c.dataIsGone(now, h)
		for id := range h.bound() {
			if c.w.wasThere(h.machine, id) {
				continue
			}
			if rec, ok := now.pods[id]; !ok || !rec.Held || rec.Host != h.id {
				c.w.broke("I4: %s has a container of pod %s; the state says %+v", h.name, id, rec)
			}
		}
	}
}

// settled tells what is not yet as it should be: I10. It is empty when the hosts run exactly what is
// wanted, hold nothing more, and the users' view says the same.
func (c *checker) settled() (wrong []string) {
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	now := c.w.picture()
	wanted := map[*machine][]fleet.PodID{}
	for id, p := range now.pods {
		switch {
		case p.Status == fleet.StatusRunning && p.Goal == fleet.GoalRun:
			m := c.w.machineOf(p.Host)
			wanted[m] = append(wanted[m], id)
			if running, _ := m.census(); running[id] != p.Incarnation {
				add("pod %s is RUNNING in incarnation %d; on %s runs %d", id, p.Incarnation, m.name, running[id])
			}
		case p.Status.Active():
			add("pod %s is %s, goal %s", id, p.Status, p.Goal)
		case p.Held:
			add("pod %s is %s and still held", id, p.Status)
		}
		if p.Owner.Kind == fleet.OwnerEndpoint { // which no user sees among pods
			continue
		}
		if v, err := c.w.view(p.Account, id); err != nil || v.Pod.Rev != p.Rev || v.Unreachable || (v.Live == nil) != (p.Status != fleet.StatusRunning) {
			add("the owner of pod %s, which is %s, sees %+v, live %v, unreachable %v (%v)", id, p.Status, v.Pod.Status, v.Live, v.Unreachable, err)
		}
	}
	for _, h := range c.w.allHosts() {
		if now.hosts[h.id].State != fleet.HostReady {
			add("host %s is %s", h.name, now.hosts[h.id].State)
		}
		want := wanted[h.machine]
		slices.Sort(want)
		_, boxes := h.census()
		if !slices.Equal(boxes, want) {
			add("%s has containers %v, wanted are %v", h.name, boxes, want)
		}
		nets := h.networks()
		slices.Sort(nets)
		if !slices.EqualFunc(nets, want, func(a string, b fleet.PodID) bool { return a == string(b) }) {
			add("%s has networks %v, wanted are %v", h.name, nets, want)
		}
		for _, id := range h.folders("pods") {
			if p, ok := now.pods[id]; !ok || p.Host != h.id || p.Status == fleet.StatusTerminated {
				add("%s keeps files of pod %s, which is %s on host %s", h.name, id, p.Status, p.Host)
			}
		}
		for _, id := range h.folders("logs") { // those of pods that left it stay for a while
			if p, ok := now.pods[id]; ok && p.Host == h.id && p.Status == fleet.StatusTerminated {
				add("%s keeps the log of pod %s, which is terminated", h.name, id)
			}
		}
	}
	wrong = append(wrong, c.united()...)
	wrong = append(wrong, c.stored(now)...)
	wrong = append(wrong, c.housed(now)...)
	wrong = append(wrong, c.joined(now)...)
	wrong = append(wrong, c.idle(now)...)
	wrong = append(wrong, c.unstopped(now)...)
	if !c.clocksJump {
		wrong = append(wrong, c.spent(now)...)
	}
	return append(wrong, c.accounted(now)...)
}

// accounted tells where the operators' view of what hosts have left is wrong.
func (c *checker) accounted(now picture) (wrong []string) {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	p := c.w.scheduler()
	if p == nil {
		return []string{"no scheduler runs"}
	}
	views, err := p.service.Hosts(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	for _, v := range views {
		var used fleet.Resources
		gpus := 0
		for _, p := range now.pods {
			if to := p.Target; to != nil && to.Host == v.Host.ID {
				used = plus(used, to.Need)
				gpus += len(to.GPUs)
			}
			if p.Host == v.Host.ID {
				used.DiskGB += dataOf(p)
			}
			if p.Held && p.Host == v.Host.ID {
				used.MilliCPU, used.MemoryMB, used.DiskGB = used.MilliCPU+p.Need.MilliCPU, used.MemoryMB+p.Need.MemoryMB, used.DiskGB+p.Need.DiskGB
				gpus += len(p.GPUs)
			}
		}
		if v.Used != used || v.UsedGPUs != gpus {
			wrong = append(wrong, fmt.Sprintf("host %s: %+v and %d GPUs are used, its view says %+v and %d", v.Host.ID, used, gpus, v.Used, v.UsedGPUs))
		}
	}
	return wrong
}
