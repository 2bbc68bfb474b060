package limit

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

const (
	windows    = 3
	parts      = 64
	sweepEvery = time.Second // one part's turn; all have had theirs after about a minute
	sample     = 8           // entries of a full part that are compared to give one up
)

// table counts requests by key. It is safe for concurrent use. Moments in it are times since its start.
type table[K comparable] struct {
	most    int // entries per part
	now     func() time.Time
	start   time.Time
	seed    maphash.Seed
	sweepAt atomic.Int64
	turn    atomic.Uint32
	parts   [parts]part[K]
}

type part[K comparable] struct {
	mu      sync.Mutex
	entries map[K]*entry
	_       [40]byte // keeps the next part's lock out of this cache line
}

type entry struct {
	counts [windows]count // in the order of Quotas.every; a window without a quota is not counted
	seen   time.Duration
}

type count struct {
	begun time.Duration
	used  int64
}

// newTable returns a table of about most entries, or fewer where keys fall into few parts.
func newTable[K comparable](most int, now func() time.Time) *table[K] {
	t := &table[K]{most: max(1, most/parts), now: now, start: now(), seed: maphash.MakeSeed()}
	for i := range t.parts {
		t.parts[i].entries = map[K]*entry{}
	}
	return t
}

// take counts a request of key unless a window is used up.
func (t *table[K]) take(key K, q Quotas) Verdict {
	if q == (Quotas{}) {
		return Verdict{}
	}
	ws := q.every()
	now := t.now().Sub(t.start)
	t.sweep(now)
	p := t.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[key]
	if e == nil {
		e = t.add(p, key)
	}
	e.seen = now
	fits := true
	for i, w := range ws {
		if w.quota == 0 {
			continue
		}
		c := &e.counts[i]
		if c.used == 0 || now-c.begun >= w.length {
			*c = count{begun: now}
		}
		fits = fits && c.used < w.quota
	}
	for i, w := range ws {
		if fits && w.quota > 0 {
			e.counts[i].used++
		}
	}
	return verdict(ws, e, now, !fits)
}

// look answers what take would refuse; it counts nothing and keeps nothing.
func (t *table[K]) look(key K, q Quotas) Verdict {
	if q == (Quotas{}) {
		return Verdict{}
	}
	ws := q.every()
	now := t.now().Sub(t.start)
	p := t.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[key]
	if e == nil {
		return Verdict{}
	}
	full := false
	for i, w := range ws {
		full = full || w.quota > 0 && e.counts[i].used >= w.quota && now-e.counts[i].begun < w.length
	}
	if !full {
		return Verdict{}
	}
	return verdict(ws, e, now, true)
}

// verdict tells what is left in e, whose part is locked.
func verdict(ws [windows]window, e *entry, now time.Duration, refused bool) Verdict {
	v := Verdict{windows: ws, refused: refused}
	for i, w := range ws {
		if w.quota == 0 {
			continue
		}
		c := e.counts[i]
		since := max(0, now-c.begun)       // who comes in may have read the clock before who began the window
		v.left[i] = max(0, w.quota-c.used) // a quota may have been lowered in the middle of a window
		v.reset[i] = max(1, int64((w.length-since+time.Second-1)/time.Second))
	}
	return v
}

func (t *table[K]) part(key K) *part[K] {
	return &t.parts[maphash.Comparable(t.seed, key)%parts]
}

// add makes an entry in p, which is locked, where there is none.
func (t *table[K]) add(p *part[K], key K) *entry {
	if len(p.entries) >= t.most {
		p.giveUp()
	}
	e := &entry{}
	p.entries[key] = e
	return e
}

// giveUp drops the least recent of a few entries, which map order picks.
func (p *part[K]) giveUp() {
	var oldest K
	var seen time.Duration
	n := 0
	for key, e := range p.entries {
		if n == 0 || e.seen < seen {
			oldest, seen = key, e.seen
		}
		if n++; n == sample {
			break
		}
	}
	delete(p.entries, oldest)
}

// sweep drops what has passed from the part whose turn it is, when one is due.
func (t *table[K]) sweep(now time.Duration) {
	due := t.sweepAt.Load()
	if int64(now) < due || !t.sweepAt.CompareAndSwap(due, int64(now+sweepEvery)) {
		return
	}
	p := &t.parts[t.turn.Add(1)%parts]
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, e := range p.entries {
		passed := true
		for i, w := range (Quotas{}).every() {
			passed = passed && (e.counts[i].used == 0 || now-e.counts[i].begun >= w.length)
		}
		if passed {
			delete(p.entries, key)
		}
	}
}

// size counts the entries.
func (t *table[K]) size() int {
	n := 0
	for i := range t.parts {
		p := &t.parts[i]
		p.mu.Lock()
		n += len(p.entries)
		p.mu.Unlock()
	}
	return n
}
