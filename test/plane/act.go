package plane

import (
	"slices"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// Who returns who holds the key with this name.
func (p *Plane) Who(key string) fleet.Principal {
	p.t.Helper()
	who, err := p.Authenticate(p.t.Context(), KeyText(key))
	if err != nil {
		p.t.Fatal(err)
	}
	return who
}

// key returns the record of the key with this name.
func (p *Plane) key(name string) fleet.Key {
	p.t.Helper()
	hash, err := p.sealer.MAC(purposeAPIKey, []byte(KeyText(name).Reveal()))
	if err != nil {
		p.t.Fatal(err)
	}
	var key fleet.Key
	var ok bool
	p.View(func(v *state.View) { key, ok = v.KeyByHash(hash[:]) })
	if !ok {
		p.t.Fatalf("there is no key %s", name)
	}
	return key
}

// Restrict changes what a key may do.
func (p *Plane) Restrict(name string, can map[fleet.Group]fleet.Access) {
	p.t.Helper()
	key := p.key(name)
	key.Can = can
	p.Do(state.PutKey{Key: key})
}

// SetBroke makes the account of a key a prepaid one without credit, or one that is not prepaid.
func (p *Plane) SetBroke(key string, broke bool) {
	p.t.Helper()
	p.Do(state.UpdateAccount{Account: p.key(key).Account, Prepaid: &broke})
}

// Expire sets when a key ends to work.
func (p *Plane) Expire(name string, at time.Time) {
	p.t.Helper()
	key := p.key(name)
	key.ExpiresAt = at
	p.Do(state.PutKey{Key: key})
}

// SetQuotas gives the account of a key request quotas of its own; the zero value takes them away.
func (p *Plane) SetQuotas(key string, q fleet.Quotas) {
	p.t.Helper()
	p.Do(state.UpdateAccount{Account: p.key(key).Account, Quotas: &q})
}

// Record returns a pod's record as the state has it.
func (p *Plane) Record(id fleet.PodID) (pod fleet.Pod, ok bool) {
	p.t.Helper()
	p.View(func(v *state.View) { pod, ok = v.Pod(id) })
	return pod, ok
}

// Report plays the host: it reports an event of the pod's present incarnation, with changes of the test's.
// It fails when the event is not possible in the pod's status.
func (p *Plane) Report(id fleet.PodID, event fleet.Trigger, change ...func(*state.PodReport)) error {
	p.t.Helper()
	pod, ok := p.Record(id)
	if !ok {
		return fleet.NotFound("pod")
	}
	_, legal := pod.Status.Next(event)
	if event != state.ReportGone && (!legal || !slices.Contains(fleet.Events(), event)) {
		return fleet.NotAllowed("%s is not possible while the pod is %s", event, pod.Status)
	}
	report := state.PodReport{Pod: id, Incarnation: pod.Incarnation, Event: event, At: p.Now()}
	for _, c := range change {
		c(&report)
	}
	host := p.host(pod.Host)
	p.Do(state.ReportPods{Host: host.ID, Epoch: host.Epoch, At: p.Now(), Reports: []state.PodReport{report}})
	return nil
}

// EndMember stops or terminates a member of a cluster, as only its cluster does.
func (p *Plane) EndMember(id fleet.PodID, how fleet.Trigger) {
	pod, _ := p.Record(id)
	p.Do(state.ActPod{Account: pod.Account, Pod: id, Owner: pod.Owner, Action: how, At: p.Now()})
}

// Lock locks a pod, or unlocks it.
func (p *Plane) Lock(id fleet.PodID, locked bool) {
	p.t.Helper()
	pod, ok := p.Record(id)
	if !ok {
		p.t.Fatal("there is no such pod")
	}
	p.Do(state.UpdatePod{
		Account: pod.Account, Pod: id, Rev: pod.Rev, Spec: pod.Spec, Locked: locked, Need: pod.Need, Mappings: pod.Mappings, At: p.Now(),
	})
}

func (p *Plane) host(id fleet.HostID) fleet.Host {
	p.t.Helper()
	var host fleet.Host
	var ok bool
	p.View(func(v *state.View) { host, ok = v.Host(id) })
	if !ok {
		p.t.Fatalf("there is no host %s", id)
	}
	return host
}

// SetReachable ends the session of a host, or lets it come back.
func (p *Plane) SetReachable(id fleet.HostID, reachable bool) {
	p.t.Helper()
	to := fleet.HostReady
	if !reachable {
		to = fleet.HostUnreachable
	}
	p.hosts.setLost(id, !reachable)
	p.Do(state.SetHostState{Host: id, Epoch: p.host(id).Epoch, State: to, At: p.Now()})
}

// Alarm says what an operator has to look into about a host.
func (p *Plane) Alarm(id fleet.HostID, text string) {
	p.t.Helper()
	p.Do(state.AlarmHost{Host: id, Text: text, At: p.Now()})
}

// SetLive tells what a pod's host said last of it; a zero At stands for a moment from now.
func (p *Plane) SetLive(id fleet.PodID, live fleet.Live) {
	if live.At.IsZero() {
		live.At = p.Now().Add(time.Millisecond)
	}
	p.hosts.setLive(id, live)
}

// Log appends a line to a pod's log.
func (p *Plane) Log(id fleet.PodID, source, line string) { p.hosts.log(id, source, line, p.Now()) }

// BeginRun lets the lines that are logged from here on be of a new run of the container.
func (p *Plane) BeginRun(id fleet.PodID) {
	p.hosts.change(func() { p.hosts.runs[id] = append(p.hosts.runs[id], len(p.hosts.lines[id])) })
}

// BreakLog lets every reading of a pod's log fail after the lines that are there.
func (p *Plane) BreakLog(id fleet.PodID) { p.hosts.breakLog(id) }

// Serve puts what listens at addr behind a pod's port; an empty addr takes it away.
func (p *Plane) Serve(id fleet.PodID, port int, addr string) { p.hosts.serve(id, port, addr) }

// PutFile puts a file into a pod; File reads one.
func (p *Plane) PutFile(id fleet.PodID, path, text string) { p.hosts.putFile(id, path, text) }

// File returns a file of a pod.
func (p *Plane) File(id fleet.PodID, path string) (string, bool) { return p.hosts.file(id, path) }

// Prefetched lists the images that hosts were asked to get, each "HOST IMAGE".
func (p *Plane) Prefetched() (out []string) {
	p.hosts.change(func() { out = slices.Clone(p.hosts.fetched) })
	return out
}

// AddHost adds a host like Host, of the same data center, whose GPUs have other identifiers.
func (p *Plane) AddHost(id fleet.HostID) {
	p.t.Helper()
	ca, err := pki.NewCA("planeplaneplane"[:fleet.IDLength], p.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	inv := p.host(Host).Inventory
	inv.GPUs = slices.Clone(inv.GPUs)
	for i := range inv.GPUs {
		inv.GPUs[i].UUID += string(id)
	}
	p.do(p.join(ca, id, "dev-1", fleet.CloudSecure, inv)...)
}

// Sessions returns how many exec sessions are open.
func (p *Plane) Sessions() int { return p.hosts.sessions() }

// PodReport is what a host says of one pod; a face's tests need no import of the state machine for it.
type PodReport = state.PodReport

// Restock plays a host that says what it has now.
func (p *Plane) Restock(id fleet.HostID, change func(*fleet.Inventory)) {
	p.t.Helper()
	host := p.host(id)
	change(&host.Inventory)
	p.Do(state.UpdateInventory{Host: id, Epoch: host.Epoch, Inventory: host.Inventory, At: p.Now()})
}
