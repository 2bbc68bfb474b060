package state

import (
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state/table"
)

// txn is a batch of entries being decided: an overlay over the tables, with what is derived of it.
type txn struct {
	*table.Txn
	base   *tables
	onHost map[fleet.HostID][]*fleet.Pod
	// tallies are those that the batch changed.
	tallies map[fleet.AccountID]*tally
	// reserved has the reservations of the hosts where the batch changed one.
	reserved map[fleet.HostID][]*fleet.Pod
	// Of the command at hand.
	now  time.Time // the log's, of commands that charge; see timed
	room int64     // how many hourly records it may still write; see charge
	// changed says that the command before it in its entry was accepted, and no Replay.
	changed bool
}

func newTxn(base *tables, batch *table.Txn) *txn {
	t := &txn{
		Txn: batch, base: base, onHost: map[fleet.HostID][]*fleet.Pod{}, tallies: map[fleet.AccountID]*tally{},
		reserved: map[fleet.HostID][]*fleet.Pod{}, room: maxSettle,
	}
	batch.Kept, batch.Told = t.kept, t.told
	return t
}

// run decides the commands of one entry, each on its own.
func (t *txn) run(cmds []Command) []entry.Result {
	out := make([]entry.Result, 0, len(cmds))
	t.changed = false
	for _, cmd := range cmds {
		t.room = maxSettle
		t.Discard()
		cmd, t.now = t.timed(cmd)
		value, err := cmd.apply(t)
		if err != nil {
			t.changed = false
			out = append(out, entry.Result{Err: err})
			continue
		}
		t.Keep()
		_, again := value.(Replay)
		t.changed = !again
		out = append(out, entry.Result{Value: value})
	}
	return out
}

// kept keeps assignments and tallies as the batch has them.
func (t *txn) kept(_ table.Slot, old, row any) {
	was, _ := old.(*fleet.Pod) // nil of another row
	pod, _ := row.(*fleet.Pod)
	relist(t.onHost, t.base.onHost, was, pod)
	relist(t.reserved, t.base.reserved, reservation(was), reservation(pod))
	t.recount(old, row)
}

// relist replaces old by pod, either of which may be nil, in the lists of a batch, which begin as those of the tables.
func relist(batch, base map[fleet.HostID][]*fleet.Pod, old, pod *fleet.Pod) {
	for _, p := range []*fleet.Pod{old, pod} {
		if p == nil {
			continue
		}
		if _, ok := batch[p.Host]; !ok {
			batch[p.Host] = slices.Clone(base[p.Host])
		}
	}
	reassign(batch, old, pod)
}

// podsOn returns the assignments of a host as the batch has them, before the command at hand.
func (t *txn) podsOn(host fleet.HostID) []*fleet.Pod {
	if list, ok := t.onHost[host]; ok {
		return list
	}
	return t.base.onHost[host]
}

// reservedOn returns what is reserved on a host, and occupants that and its assignments, as podsOn does.
func (t *txn) reservedOn(host fleet.HostID) []*fleet.Pod {
	if list, ok := t.reserved[host]; ok {
		return list
	}
	return t.base.reserved[host]
}

func (t *txn) occupants(host fleet.HostID) []*fleet.Pod {
	return joined(t.podsOn(host), t.reservedOn(host))
}

// putPod writes a pod's record with the next revision and returns it.
func (t *txn) putPod(p *fleet.Pod) *fleet.Pod {
	p.Rev++
	old := t.base.pods.Get(t.Txn, p.ID)
	t.meterPod(old, p)
	t.letGo(old, p)
	t.follow(p)
	if assigned(old) && (!assigned(p) || p.Host != old.Host) {
		t.leaves(old.Host)
	}
	t.base.pods.Put(t.Txn, p.ID, p)
	t.Note(KindPod, string(p.ID))
	return p
}

// putHost writes a host's record with the next revision and returns it with its generation.
func (t *txn) putHost(h fleet.Host) fleet.Host {
	generation := h.Generation
	h.Generation = 0
	h.Rev++
	cordonGPUs(&h)
	t.settle(t.base.hosts.Get(t.Txn, h.ID), &h)
	t.base.hosts.Put(t.Txn, h.ID, &h)
	t.Note(KindHost, string(h.ID))
	out := cloneHost(&h)
	out.Generation = generation
	return out
}

// host reads a host's record with its generation.
func (t *txn) host(id fleet.HostID) (fleet.Host, bool) {
	h := t.base.hosts.Get(t.Txn, id)
	if h == nil {
		return fleet.Host{}, false
	}
	out := *h
	out.Generation = t.generation(id)
	return out, true
}

// generation reads the generation of a host's assignments.
func (t *txn) generation(id fleet.HostID) uint64 {
	if g := t.base.generations.Get(t.Txn, id); g != nil {
		return *g
	}
	return 0
}

// reassigned says that a host's assignments change and returns their new generation. A host that is
// gone has none.
func (t *txn) reassigned(id fleet.HostID) uint64 {
	if t.base.hosts.Get(t.Txn, id) == nil {
		return 0
	}
	return t.setGeneration(id, max(t.generation(id), lineageFloor(t.lineage()))+1)
}

// leaves says that a pod is none of a host's assignments any more. One new generation of a command tells the host of all that do.
func (t *txn) leaves(id fleet.HostID) {
	if !t.base.generations.Wrote(t.Txn, id) {
		t.reassigned(id)
	}
}

// lineage returns that of the cluster.
func (t *txn) lineage() uint64 {
	if c := t.base.cluster.Get(t.Txn, onlyKey); c != nil {
		return c.Lineage
	}
	return 0
}

// lineageBits is how many bits of incarnations and generations count within a lineage.
const lineageBits = 20

// lineageFloor is below every number that a lineage gives out, and above those of lineages before.
func lineageFloor(lineage uint64) uint64 { return lineage << lineageBits }

// renumber says that what the pod's host is told of it changes.
func (t *txn) renumber(pod *fleet.Pod) {
	if generation := t.reassigned(pod.Host); generation != 0 {
		pod.Generation = generation
	}
}

func (t *txn) setGeneration(id fleet.HostID, generation uint64) uint64 {
	t.base.generations.Put(t.Txn, id, &generation)
	t.Note(KindAssign, string(id))
	return generation
}
