package state

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// drawCommand draws a command that may well be refused: hosts, pods, GPUs, epochs and incarnations
// are few, so that they meet.
func (w *world) drawCommand(t *rapid.T, now time.Time) Command {
	host := fleet.HostID(rapid.SampledFrom([]string{"host-a", "host-b", "host-c"}).Draw(t, "host"))
	pod := fleet.PodID(rapid.SampledFrom([]string{"p1", "p2", "p3", "p4", "p5"}).Draw(t, "pod"))
	account := fleet.AccountID(rapid.SampledFrom([]string{"acme", "acme", "acme", "other"}).Draw(t, "account"))
	var epoch, rev, incarnation uint64
	w.view(func(v *View) {
		if h, ok := v.Host(host); ok {
			epoch = h.Epoch
		}
		if p, ok := v.Pod(pod); ok {
			rev, incarnation = p.Rev, p.Incarnation
		}
	})
	off := func(n uint64) uint64 {
		return n - min(n, uint64(rapid.SampledFrom([]int{0, 0, 0, 0, 1}).Draw(t, "old")))
	}
	gpus := rapid.SliceOfNDistinct(rapid.IntRange(0, 3), 0, 3, rapid.ID).Draw(t, "gpus")
	switch rapid.IntRange(0, 12).Draw(t, "command") {
	case 0, 1, 2:
		set := CreatePods{Once: drawOnce(t)}
		owner := rapid.SampledFrom([]fleet.Owner{{}, {}, fleet.EndpointID("endpoint000001").Owner(), fleet.ClusterID("cluster0000001").Owner()}).Draw(t, "owner")
		for i := range rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "pods") {
			if i > 0 {
				pod = fleet.PodID(rapid.SampledFrom([]string{"p1", "p2", "p3", "p4", "p5"}).Draw(t, "pod"))
				host = fleet.HostID(rapid.SampledFrom([]string{"host-a", "host-b"}).Draw(t, "host"))
				epoch, gpus = w.epochOf(host), rapid.SliceOfNDistinct(rapid.IntRange(0, 3), 0, 2, rapid.ID).Draw(t, "gpus")
			}
			p := podOn(pod, host, gpus...)
			p.Account, p.CreatedAt, p.Owner = account, now, owner
			p.Need.MilliCPU = rapid.Int64Range(0, 9000).Draw(t, "cpu")
			p.Locked = rapid.IntRange(0, 9).Draw(t, "locked") == 0
			w.enrich(t, &p)
			set.Pods = append(set.Pods, NewPod{Pod: p, HostEpoch: off(epoch), Evict: w.drawEvicted(t, host)})
		}
		return set
	case 3, 4, 5:
		c := ActPod{Account: account, Pod: pod, Action: rapid.SampledFrom(fleet.Actions()).Draw(t, "action"), At: now}
		if rapid.Bool().Draw(t, "with rev") {
			c.Rev = off(rev)
		}
		w.view(func(v *View) {
			if p, ok := v.Pod(pod); ok && rapid.IntRange(0, 4).Draw(t, "its owner") > 0 {
				c.Owner = p.Owner
			}
		})
		if c.Action == fleet.ActionStart {
			c.Bind = w.drawBinding(t, pod, host)
		}
		return c
	case 6, 7, 8:
		if at := w.hostOf(pod); at != "" && rapid.Bool().Draw(t, "its own host") {
			host, epoch = at, w.epochOf(at)
		}
		return ReportPods{Host: host, Epoch: off(epoch), At: now, Reports: []PodReport{{
			Pod: pod, Incarnation: off(incarnation), At: now,
			Event: rapid.SampledFrom(append(fleet.Events(), ReportGone, ReportGone)).Draw(t, "event"),
		}}}
	case 9:
		if rapid.Bool().Draw(t, "connect") {
			inv := inventory(host)
			inv.GPUs = inv.GPUs[:rapid.IntRange(2, 4).Draw(t, "left")]
			if rapid.Bool().Draw(t, "publishes") {
				inv.PublicIP, inv.PortFrom, inv.PortTo = "192.0.2.1", 30_000, 30_004
			}
			return ConnectHost{Host: host, MachineID: "machine-" + string(host[5:]), BootID: "boot", Inventory: inv, At: now, Generation: uint64(rapid.IntRange(0, 30).Draw(t, "seen"))}
		}
		state := rapid.SampledFrom([]fleet.HostState{fleet.HostReady, fleet.HostUnreachable}).Draw(t, "state")
		return SetHostState{Host: host, Epoch: off(epoch), State: state, At: now}
	case 11:
		return FreezeWorker{Pod: pod, Thaw: rapid.Bool().Draw(t, "thaw"), At: now}
	case 10:
		return ReadyWorkers{Pods: []fleet.PodID{pod, "p5"}, At: now}
	}
	return PurgePods{Pods: []fleet.PodID{pod}, Before: now}
}

// drawCommands draws what one proposal holds: mostly one command.
func (w *world) drawCommands(t *rapid.T, step int) []Command {
	now := at(100 + step)
	switch rapid.IntRange(0, 12).Draw(t, "realm") {
	case 12:
		return []Command{drawNetwork(t)}
	case 10, 11:
		return []Command{w.drawStorage(t, now)}
	case 0, 1:
		return []Command{w.drawOwned(t, now)}
	case 2:
		return drawOperator(t, now, step)
	case 5, 6:
		return []Command{w.drawFleet(t, now)}
	case 3, 4:
		return []Command{w.drawUpdate(t, fleet.PodID(rapid.SampledFrom([]string{"p1", "p2", "p3"}).Draw(t, "updated")), now)}
	}
	return []Command{w.drawCommand(t, now)}
}

func TestInvariantsHoldWhateverIsProposed(t *testing.T) {
	dir := t.TempDir
	rapid.Check(t, func(t *rapid.T) {
		w := newRapidWorld(t, dir)
		defer func() {
			if err := w.s.Close(); err != nil {
				t.Fatal(err)
			}
		}()
		w.settle().furnish()
		w.publish("host-a")
		books := newLedgers()
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			var batch []entry.Entry
			var proposed []Command
			for range rapid.IntRange(1, 2).Draw(t, "entries") {
				var cmds []Command
				for range rapid.IntRange(1, 3).Draw(t, "commands") {
					cmds = append(cmds, w.drawCommands(t, step)...)
				}
				batch, proposed = append(batch, w.entry(cmds...)), append(proposed, cmds...)
			}
			before, hash, told := w.dump(), w.hash(), w.watch()
			res, err := w.s.Apply(batch)
			if err != nil {
				t.Fatal(err)
			}
			told()
			after := w.dump()
			checkGrowth(t, before, after)
			checkHolding(t, after)
			checkSharing(t, after)
			checkReferences(t, after)
			checkTemplates(t, before, after)
			checkFleet(t, before, after)
			w.checkStorage(t, before, after)
			w.checkNetworks(t, before, after, at(100+step))
			all := slices.Concat(res...)
			books.follow(proposed, all)
			books.check(t, after)
			if !slices.ContainsFunc(all, func(r entry.Result) bool { return r.Err == nil }) && !bytes.Equal(hash, w.hash()) {
				t.Fatal("all were refused, but something was written")
			}
		}
		w.check()
		again := newRapidWorld(t, dir)
		defer func() { _ = again.s.Close() }()
		if _, err := again.s.Apply(w.log); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(w.hash(), again.hash()) {
			same(t, w.dump(), again.dump())
			t.Fatal("the same log in one batch gives another state")
		}
	})
}

// newRapidWorld is newWorld for one run of a property.
func newRapidWorld(t *rapid.T, dir func() string) *world {
	w := &world{t: t, dir: dir, path: filepath.Join(dir(), "state.db")}
	w.open("boot-1")
	return w
}

// checkGrowth checks that numbers only grow and statuses move along the table.
func checkGrowth(t *rapid.T, before, after dump) {
	hosts := map[fleet.HostID]fleet.Host{}
	for _, h := range before.Hosts {
		hosts[h.Host.ID] = h.Host
	}
	anew := map[fleet.HostID]bool{}
	for _, h := range after.Hosts {
		old := hosts[h.Host.ID]
		if anew[h.Host.ID] = !h.Host.JoinedAt.Equal(old.JoinedAt); anew[h.Host.ID] {
			continue
		}
		if h.Host.Epoch < old.Epoch || h.Host.Generation < old.Generation || h.Host.Rev < old.Rev {
			t.Fatalf("host went back from %+v to %+v", old, h.Host)
		}
	}
	for account, pods := range after.Pods {
		for _, p := range pods {
			i := slices.IndexFunc(before.Pods[account], func(o fleet.Pod) bool { return o.ID == p.ID && o.CreatedAt.Equal(p.CreatedAt) })
			if i < 0 {
				continue
			}
			old := before.Pods[account][i]
			if p.Incarnation < old.Incarnation || p.Rev < old.Rev || (p.Host == old.Host && !anew[p.Host] && p.Generation < old.Generation) {
				t.Fatalf("pod went back from %+v to %+v", old, p)
			}
			if !reachable(old.Status, p.Status) {
				t.Fatalf("pod went from %s to %s", old.Status, p.Status)
			}
			if p.Status == old.Status && p.Rev == old.Rev && p.Generation != old.Generation {
				t.Fatalf("the record changed without a revision")
			}
		}
	}
}

// reachable reports whether moves of the table lead from one status to another.
func reachable(from, to fleet.PodStatus) bool {
	seen, todo := map[fleet.PodStatus]bool{from: true}, []fleet.PodStatus{from}
	for len(todo) > 0 {
		s := todo[0]
		todo = todo[1:]
		for _, trigger := range append(fleet.Actions(), fleet.Events()...) {
			if next, ok := s.Next(trigger); ok && !seen[next] {
				seen[next] = true
				todo = append(todo, next)
			}
		}
	}
	return seen[to]
}

// checkHolding checks that nothing is held twice or beyond what there is, and that only what should
// hold does.
func checkHolding(t *rapid.T, d dump) {
	holders := map[string]fleet.PodID{}
	for account, pods := range d.Pods {
		for _, p := range pods {
			if p.Status.Active() && !p.Held || p.Held && !p.Status.Active() && p.Status != fleet.StatusTerminated {
				t.Fatalf("pod %s of %s is %s and held %t", p.ID, account, p.Status, p.Held)
			}
			if !p.Held && len(p.GPUs) > 0 && p.Status != fleet.StatusTerminated {
				t.Fatalf("pod %s holds nothing but GPUs %v", p.ID, p.GPUs)
			}
			for _, uuid := range slices.Concat(heldGPUs(p), reservedGPUs(p)) {
				if other, ok := holders[uuid]; ok {
					t.Fatalf("GPU %s is held by %s and %s", uuid, other, p.ID)
				}
				holders[uuid] = p.ID
			}
		}
	}
	for _, h := range d.Hosts {
		total := h.Host.Inventory.Total
		if h.Used.MilliCPU > total.MilliCPU || h.Used.MemoryMB > total.MemoryMB || h.Used.DiskGB > total.DiskGB {
			t.Fatalf("host %s is overcommitted: %+v of %+v", h.Host.ID, h.Used, total)
		}
	}
	for _, c := range d.Candidates {
		for _, g := range c.FreeGPUs {
			if id, ok := holders[g.UUID]; ok {
				t.Fatalf("GPU %s is free, and held by %s", g.UUID, id)
			}
		}
	}
	there := slices.DeleteFunc(slices.Clone(d.Hosts), func(h fleet.HostView) bool { return h.Host.State == fleet.HostGone })
	if n := len(d.Candidates); n != len(there) {
		t.Fatalf("%d candidates of %d hosts", n, len(there))
	}
}

func heldGPUs(p fleet.Pod) []string {
	if !p.Held {
		return nil
	}
	return p.GPUs
}

func reservedGPUs(p fleet.Pod) []string {
	if p.Target == nil {
		return nil
	}
	return p.Target.GPUs
}

// checkSharing checks that a public port of a host has one holder, and that used disk is what its pods
// hold and what they keep there.
func checkSharing(t *rapid.T, d dump) {
	type port struct {
		host   fleet.HostID
		public int
	}
	holders, disk := map[port]fleet.PodID{}, map[fleet.HostID]int64{}
	for _, pods := range d.Pods {
		for _, p := range pods {
			if to := p.Target; to != nil {
				disk[to.Host] += to.Need.DiskGB
				for _, m := range to.Mappings {
					if other, ok := holders[port{to.Host, m.Public}]; ok {
						t.Fatalf("port %d of %s is held by %s and reserved for %s", m.Public, to.Host, other, p.ID)
					}
					holders[port{to.Host, m.Public}] = p.ID
				}
			}
			switch {
			case p.Held:
				disk[p.Host] += p.Need.DiskGB
			case len(p.Mappings) > 0:
				t.Fatalf("pod %s holds nothing but ports %v", p.ID, p.Mappings)
			case p.KeepsData() && p.Status != fleet.StatusTerminated:
				disk[p.Host] += int64(p.Spec.Persistent.SizeGB)
			}
			if p.Held && p.KeepsData() && p.Need.DiskGB < int64(p.Spec.Persistent.SizeGB) {
				t.Fatalf("pod %s holds %d GB for data of %d", p.ID, p.Need.DiskGB, p.Spec.Persistent.SizeGB)
			}
			for _, m := range p.Mappings {
				at := port{p.Host, m.Public}
				if other, ok := holders[at]; ok {
					t.Fatalf("port %v is held by %s and %s", at, other, p.ID)
				}
				holders[at] = p.ID
				if p.Held && !PortFits(&p.Spec, m.Private, m.Public) && p.Status.Active() && !p.Stopping() {
					t.Fatalf("pod %s has two uses for port %d", p.ID, m.Public)
				}
			}
		}
	}
	there := map[fleet.HostID]bool{}
	for _, h := range d.Hosts {
		there[h.Host.ID] = true
		if h.Used.DiskGB != disk[h.Host.ID] {
			t.Fatalf("host %s uses %d GB, its pods %d", h.Host.ID, h.Used.DiskGB, disk[h.Host.ID])
		}
		for _, free := range d.FreePorts[h.Host.ID] {
			if id, ok := holders[port{h.Host.ID, free}]; ok {
				t.Fatalf("port %d of %s is free, and held by %s", free, h.Host.ID, id)
			}
		}
	}
	for host, gb := range disk {
		if gb > 0 && !there[host] {
			t.Fatalf("host %s is gone with %d GB of its pods", host, gb)
		}
	}
}

// checkReferences checks that what pods and templates refer to is there.
func checkReferences(t *rapid.T, d dump) {
	registries, volumes := map[fleet.RegistryID]fleet.AccountID{}, map[fleet.VolumeID]fleet.DataCenterID{}
	for account := range d.Pods {
		for _, r := range d.Registries[account] {
			registries[r.ID] = account
		}
		for _, v := range d.Volumes[account] {
			volumes[v.ID] = v.DataCenter
		}
	}
	for account := range d.Pods {
		for _, m := range d.Templates[account] {
			if m.Registry != "" && registries[m.Registry] != account {
				t.Fatalf("template %s of %s refers to %s of %q", m.ID, account, m.Registry, registries[m.Registry])
			}
		}
	}
	for account, pods := range d.Pods {
		for _, p := range pods {
			switch {
			case p.Status == fleet.StatusTerminated:
			case p.Spec.Registry != "" && registries[p.Spec.Registry] != account:
				t.Fatalf("pod %s of %s refers to credential %s", p.ID, account, p.Spec.Registry)
			case p.Spec.Env["T"] != "" && !slices.ContainsFunc(d.Secrets[account], func(s fleet.AccountSecret) bool {
				return p.Spec.Env["T"] == "{{ GANTRY_SECRET_"+s.Name+" }}"
			}):
				t.Fatalf("pod %s of %s names a secret that is not there: %s", p.ID, account, p.Spec.Env["T"])
			case p.Spec.Network != nil && volumes[p.Spec.Network.Volume] != p.DataCenter:
				t.Fatalf("pod %s in %s has a volume in %q", p.ID, p.DataCenter, volumes[p.Spec.Network.Volume])
			}
		}
	}
}

// checkTemplates checks that a template stays while its owner has a pod that was made from it.
func checkTemplates(t *rapid.T, before, after dump) {
	names := func(d dump, account fleet.AccountID, id fleet.TemplateID) bool {
		return slices.ContainsFunc(d.Templates[account], func(m fleet.Template) bool { return m.ID == id })
	}
	for account, pods := range before.Pods {
		for _, p := range pods {
			i := slices.IndexFunc(after.Pods[account], func(q fleet.Pod) bool { return q.ID == p.ID })
			if i < 0 || p.Status == fleet.StatusTerminated || after.Pods[account][i].Status == fleet.StatusTerminated {
				continue
			}
			id := p.Spec.Template
			if after.Pods[account][i].Spec.Template == id && names(before, account, id) && !names(after, account, id) {
				t.Fatalf("pod %s of %s is made from its template %s, which is gone", p.ID, account, id)
			}
		}
	}
}
