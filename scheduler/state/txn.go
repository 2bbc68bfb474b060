package state

import (
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// txn is a batch of entries being decided. Commands read through it: first what the command itself
// wrote, then what earlier commands of the batch wrote, then the tables. What a refused command
// wrote is dropped.
type txn struct {
	base   *tables
	batch  map[slot]any // nil: deleted
	onHost map[fleet.HostID][]*fleet.Pod
	// tallies are those that the batch changed.
	tallies map[fleet.AccountID]*tally
	// reserved has the reservations of the hosts where the batch changed one.
	reserved map[fleet.HostID][]*fleet.Pod
	// marks has the keys of the rows that the batch wrote or deleted, refused commands too, by the values that these had or
	// got in indexes: it only says where to look.
	marks  map[mark]map[string]struct{}
	events []Event
	index  uint64 // of the entry at hand
	cold   coldReader
	level  uint64 // that the program understands
	halt   error  // why this replica must stop; what was decided is not written
	// Of the command at hand.
	staged []change
	latest map[slot]int // which of staged is a row's
	notes  []Event
	now    time.Time // the log's, of commands that charge; see timed
	room   int64     // how many hourly records it may still write; see charge
}

// change is a row that the command at hand wrote; a nil row is deleted.
type change struct {
	at    slot
	row   any
	fresh bool // of what a step replaced: the batch had no such row
}

func newTxn(base *tables) *txn {
	return &txn{
		base: base, batch: map[slot]any{}, latest: map[slot]int{}, onHost: map[fleet.HostID][]*fleet.Pod{},
		tallies: map[fleet.AccountID]*tally{}, reserved: map[fleet.HostID][]*fleet.Pod{},
		marks: map[mark]map[string]struct{}{}, room: maxSettle,
	}
}

// run decides the commands of one entry, each on its own.
func (t *txn) run(index uint64, cmds []Command) []entry.Result {
	t.index = index
	out := make([]entry.Result, 0, len(cmds))
	for _, cmd := range cmds {
		t.room = maxSettle
		t.discard()
		cmd, t.now = t.timed(cmd)
		value, err := cmd.apply(t)
		if err != nil {
			out = append(out, entry.Result{Err: err})
			continue
		}
		t.keep()
		out = append(out, entry.Result{Value: value})
	}
	return out
}

// discard forgets what the command wrote.
func (t *txn) discard() {
	t.staged, t.notes = t.staged[:0], t.notes[:0]
	clear(t.latest)
}

// all does several steps of one command, each of which sees what those before it wrote also where only the batch is looked at:
// assignments, reservations, sums. All are done or, when one fails, none; nothing was written before. What the command writes afterwards
// must not fail.
func (t *txn) all(steps int, do func(i int) error) error {
	events, done := len(t.events), []change{}
	for i := range steps {
		if err := do(i); err != nil {
			t.discard()
			t.events = t.events[:events]
			for _, c := range slices.Backward(done) {
				t.revert(c)
			}
			return err
		}
		for _, c := range t.staged {
			row, kept := t.batch[c.at]
			done = append(done, change{at: c.at, row: row, fresh: !kept})
			t.accept(c)
		}
		t.tell()
		t.discard()
	}
	return nil
}

// revert puts a row of the batch back to what it was before a step.
func (t *txn) revert(was change) {
	if !was.fresh {
		t.accept(was)
		return
	}
	was.row = t.base.byName[was.at.bucket].row(was.at.key)
	t.accept(was)
	delete(t.batch, was.at)
}

// keep makes what the command wrote part of the batch.
func (t *txn) keep() {
	for _, c := range t.staged {
		t.accept(c)
	}
	t.tell()
}

// accept makes a row part of the batch.
func (t *txn) accept(c change) {
	if c.at.bucket == t.base.pods.bucket {
		t.rehost(c)
	}
	t.recount(c)
	t.batch[c.at] = c.row
}

// tell makes what the command noted part of the batch.
func (t *txn) tell() {
	for _, e := range t.notes {
		// One entry may hold many commands for one host; saying it once is enough.
		if !slices.Contains(t.events[max(0, len(t.events)-8):], e) {
			t.events = append(t.events, e)
		}
	}
}

// rehost keeps the assignments as the batch has them.
func (t *txn) rehost(c change) {
	var old *fleet.Pod
	if row, ok := t.batch[c.at]; ok {
		old, _ = row.(*fleet.Pod)
	} else {
		old = t.base.pods.rows[fleet.PodID(c.at.key)]
	}
	pod, _ := c.row.(*fleet.Pod)
	relist(t.onHost, t.base.onHost, old, pod)
	relist(t.reserved, t.base.reserved, reservation(old), reservation(pod))
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

// get reads a row; it must not be changed.
func get[K ~string, T any](t *txn, tab *table[K, T], key K) *T {
	at := slot{tab.bucket, string(key)}
	if i, ok := t.latest[at]; ok {
		row, _ := t.staged[i].row.(*T)
		return row
	}
	if row, ok := t.batch[at]; ok {
		row, _ := row.(*T)
		return row
	}
	return tab.rows[key]
}

// put writes a row, which must not be changed afterwards.
func put[K ~string, T any](t *txn, tab *table[K, T], key K, row *T) {
	noteIn(t, tab, key, row)
	t.stage(slot{tab.bucket, string(key)}, row)
}

// noteIn says to the indexes of a table that a row is written, or deleted when it is nil.
func noteIn[K ~string, T any](t *txn, tab *table[K, T], key K, row *T) {
	for _, x := range tab.indexes {
		x.note(t, key, tab.rows[key], row)
	}
}

// drop deletes a row.
func drop[K ~string, T any](t *txn, tab *table[K, T], key K) {
	noteIn(t, tab, key, nil)
	t.stage(slot{tab.bucket, string(key)}, nil)
}

func (t *txn) stage(at slot, row any) {
	t.latest[at] = len(t.staged)
	t.staged = append(t.staged, change{at: at, row: row})
}

// keysOf returns the keys of a table, sorted, as the batch has it before the command at hand.
func keysOf[K ~string, T any](t *txn, tab *table[K, T]) []K {
	out := sortedKeys(tab.rows)
	for at, row := range t.batch {
		if at.bucket != tab.bucket {
			continue
		}
		i, ok := slices.BinarySearch(out, K(at.key))
		switch {
		case row == nil && ok:
			out = slices.Delete(out, i, i+1)
		case row != nil && !ok:
			out = slices.Insert(out, i, K(at.key))
		}
	}
	return out
}

// firstKeys returns the first keys of the rows of a table that match, sorted, as the batch has it before the
// command at hand: at most limit, unless that is not positive.
func firstKeys[K ~string, T any](t *txn, tab *table[K, T], limit int, match func(*T) bool) []K {
	var out []K
	add := func(key K) {
		out = append(out, key)
		if limit > 0 && len(out) >= 2*limit {
			slices.Sort(out)
			out = out[:limit]
		}
	}
	for key, row := range tab.rows {
		if _, changed := t.batch[slot{tab.bucket, string(key)}]; !changed && match(row) {
			add(key)
		}
	}
	for at, row := range t.batch {
		if row, ok := row.(*T); ok && at.bucket == tab.bucket && match(row) {
			add(K(at.key))
		}
	}
	slices.Sort(out)
	if limit > 0 {
		out = out[:min(limit, len(out))]
	}
	return out
}

// count returns how many rows of a table match, as the batch has it before the command at hand.
func count[K ~string, T any](t *txn, tab *table[K, T], match func(*T) bool) int {
	n := 0
	for key, row := range tab.rows {
		if _, changed := t.batch[slot{tab.bucket, string(key)}]; !changed && match(row) {
			n++
		}
	}
	for at, row := range t.batch {
		if row, ok := row.(*T); ok && at.bucket == tab.bucket && match(row) {
			n++
		}
	}
	return n
}

// note records an event.
func (t *txn) note(kind Kind, id string) { t.notes = append(t.notes, Event{t.index, kind, id}) }

// putPod writes a pod's record with the next revision and returns it.
func (t *txn) putPod(p *fleet.Pod) *fleet.Pod {
	p.Rev++
	old := get(t, &t.base.pods, p.ID)
	t.meterPod(old, p)
	t.letGo(old, p)
	t.follow(p)
	if assigned(old) && (!assigned(p) || p.Host != old.Host) {
		t.leaves(old.Host)
	}
	put(t, &t.base.pods, p.ID, p)
	t.note(KindPod, string(p.ID))
	return p
}

// putHost writes a host's record with the next revision and returns it with its generation.
func (t *txn) putHost(h fleet.Host) fleet.Host {
	generation := h.Generation
	h.Generation = 0
	h.Rev++
	cordonGPUs(&h)
	t.settle(get(t, &t.base.hosts, h.ID), &h)
	put(t, &t.base.hosts, h.ID, &h)
	t.note(KindHost, string(h.ID))
	out := cloneHost(&h)
	out.Generation = generation
	return out
}

// host reads a host's record with its generation.
func (t *txn) host(id fleet.HostID) (fleet.Host, bool) {
	h := get(t, &t.base.hosts, id)
	if h == nil {
		return fleet.Host{}, false
	}
	out := *h
	out.Generation = t.generation(id)
	return out, true
}

// generation reads the generation of a host's assignments.
func (t *txn) generation(id fleet.HostID) uint64 {
	if g := get(t, &t.base.generations, id); g != nil {
		return *g
	}
	return 0
}

// reassigned says that a host's assignments change and returns their new generation. A host that is
// gone has none.
func (t *txn) reassigned(id fleet.HostID) uint64 {
	if get(t, &t.base.hosts, id) == nil {
		return 0
	}
	return t.setGeneration(id, max(t.generation(id), lineageFloor(t.lineage()))+1)
}

// leaves says that a pod is none of a host's assignments any more. One new generation of a command tells the host of all that do.
func (t *txn) leaves(id fleet.HostID) {
	if _, told := t.latest[slot{t.base.generations.bucket, string(id)}]; !told {
		t.reassigned(id)
	}
}

// lineage returns that of the cluster.
func (t *txn) lineage() uint64 {
	if c := get(t, &t.base.cluster, onlyKey); c != nil {
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
	put(t, &t.base.generations, id, &generation)
	t.note(KindAssign, string(id))
	return generation
}
