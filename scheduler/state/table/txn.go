package table

import "slices"

// Txn is a batch of entries being decided. Commands read through it: first what the command itself wrote, then what earlier
// commands of the batch wrote, then the tables. What a refused command wrote is dropped.
type Txn struct {
	// Kept is called before a row of the batch takes the place of old, either of which may be nil; nil: nobody is told.
	Kept func(at Slot, old, row any)
	// Told returns what is to be told of a row that a command of the batch wrote in the place of old, either of which may be nil;
	// nil: nothing. A row that is not kept in memory has no old. Nil: nothing is told.
	Told func(at Slot, old, row any) any

	tables map[string]Any
	batch  map[Slot]any // nil: deleted
	// marks has the keys of the rows that the batch wrote or deleted, refused commands too, by the values that these had or
	// got in indexes: it only says where to look.
	marks  map[mark]map[string]struct{}
	events []Event
	// changes are what Told said.
	changes []Change
	index   uint64 // of the entry at hand
	cold    coldReader
	err     error // why this replica must stop; what was decided is not written
	// Of the command at hand.
	staged []change
	latest map[Slot]int // which of staged is a row's
	notes  []Event
}

// change is a row that the command at hand wrote; a nil row is deleted.
type change struct {
	at    Slot
	row   any
	fresh bool // of what a step replaced: the batch had no such row
}

// Halt stops the replica after the entry at hand, which does not happen here.
func (t *Txn) Halt(err error) {
	if t.err == nil {
		t.err = err
	}
}

// Index is that of the entry at hand.
func (t *Txn) Index() uint64 { return t.index }

// Note records an event.
func (t *Txn) Note(kind Kind, id string) { t.notes = append(t.notes, Event{t.index, kind, id}) }

func (t *Txn) stage(at Slot, row any) {
	t.latest[at] = len(t.staged)
	t.staged = append(t.staged, change{at: at, row: row})
}

// Discard forgets what the command at hand wrote and noted. A command begins with it.
func (t *Txn) Discard() {
	t.staged, t.notes = t.staged[:0], t.notes[:0]
	clear(t.latest)
}

// Keep makes what the command at hand wrote and noted part of the batch.
func (t *Txn) Keep() {
	before := t.before()
	for _, c := range t.staged {
		t.accept(c)
	}
	t.tell(before)
	for _, e := range t.notes {
		// One entry may hold many commands for one thing; saying it once is enough.
		if !slices.Contains(t.events[max(0, len(t.events)-8):], e) {
			t.events = append(t.events, e)
		}
	}
}

// Steps does several steps of one command, each of which sees what those before it wrote also where only the batch is looked at:
// what is derived. All are done or, when one fails, none; nothing was written before. What the command writes afterwards
// must not fail.
func (t *Txn) Steps(steps int, do func(i int) error) error {
	events, changes, done := len(t.events), len(t.changes), []change{}
	for i := range steps {
		if err := do(i); err != nil {
			t.Discard()
			t.events, t.changes = t.events[:events], t.changes[:changes]
			for _, c := range slices.Backward(done) {
				t.revert(c)
			}
			return err
		}
		for _, c := range t.staged {
			row, kept := t.batch[c.at]
			done = append(done, change{at: c.at, row: row, fresh: !kept})
		}
		t.Keep()
		t.Discard()
	}
	return nil
}

// revert puts a row of the batch back to what it was before a step.
func (t *Txn) revert(was change) {
	if was.fresh {
		was.row = t.tables[was.at.Bucket].row(was.at.Key)
	}
	t.accept(was)
	if was.fresh {
		delete(t.batch, was.at)
	}
}

// accept makes a row part of the batch.
func (t *Txn) accept(c change) {
	if t.Kept != nil {
		old, changed := t.batch[c.at]
		if !changed {
			old = t.tables[c.at.Bucket].row(c.at.Key)
		}
		t.Kept(c.at, old, c.row)
	}
	t.batch[c.at] = c.row
}
