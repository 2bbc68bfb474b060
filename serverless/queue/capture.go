package queue

import (
	"cmp"
	"maps"
	"slices"

	"gantry/fleet"
)

// pieceJobs is how many jobs one piece of a Capture has at most.
const pieceJobs = 1000

// Capture is a queue as it was at one moment, read in pieces while commands go on. It holds copies of those jobs alone that
// have changed since and were not read yet. Who has one ends it with Close. Pieces are read while no command runs.
type Capture struct {
	q      *Queue
	pieces []*piece
	of     map[*endpoint][]*piece // by Seq
}

// piece is the jobs of an endpoint from one Seq to before another.
type piece struct {
	image    ImageEndpoint // without its jobs
	e        *endpoint
	from, to uint64
	read     bool
	before   map[uint64]Job // what changed since, as it was, by Seq
}

// ImageEndpoint is jobs of an endpoint, by Seq. An endpoint with many jobs has several, one after the other.
type ImageEndpoint struct {
	ID      fleet.EndpointID `cbor:"1,keyasint"`
	Account fleet.AccountID  `cbor:"2,keyasint"`
	Seq     uint64           `cbor:"3,keyasint"`
	Counts  Counts           `cbor:"4,keyasint"`
	Jobs    []Job            `cbor:"5,keyasint"`
}

// Capture returns everything that the queue has. It takes no longer for more jobs, but for a few steps per thousand.
func (q *Queue) Capture() *Capture { return q.capture(pieceJobs) }

func (q *Queue) capture(pieceJobs int) *Capture {
	c := &Capture{q: q, of: map[*endpoint][]*piece{}}
	for _, id := range q.Endpoints() {
		e := q.endpoints[id]
		for i := 0; i == 0 || i < len(e.jobs); i += pieceJobs {
			p := &piece{image: ImageEndpoint{ID: id, Account: e.account, Seq: e.seq, Counts: e.counts}, e: e, to: e.seq + 1, before: map[uint64]Job{}}
			if i < len(e.jobs) {
				p.from = e.jobs[i].Seq
			}
			if i+pieceJobs < len(e.jobs) {
				p.to = e.jobs[i+pieceJobs].Seq
			}
			c.of[e] = append(c.of[e], p)
		}
		c.pieces = append(c.pieces, c.of[e]...)
	}
	q.captures = append(q.captures, c)
	return c
}

// Close lets the queue forget it.
func (c *Capture) Close() {
	c.q.captures = slices.DeleteFunc(c.q.captures, func(one *Capture) bool { return one == c })
}

// Len returns how many pieces there are.
func (c *Capture) Len() int { return len(c.pieces) }

// Piece returns a copy of one of the pieces. Each is read once.
func (c *Capture) Piece(i int) ImageEndpoint {
	p := c.pieces[i]
	out := p.image
	for _, j := range p.e.jobs[p.e.find(p.from):] {
		if j.Seq >= p.to {
			break
		}
		if _, changed := p.before[j.Seq]; !changed && c.q.jobs[j.ID] == j {
			out.Jobs = append(out.Jobs, j.Copy())
		}
	}
	out.Jobs = slices.AppendSeq(out.Jobs, maps.Values(p.before))
	slices.SortFunc(out.Jobs, func(a, b Job) int { return cmp.Compare(a.Seq, b.Seq) })
	p.read, p.before = true, nil
	return out
}

// touch comes before each change of a job: captures that have not read it keep it as it was.
func (q *Queue) touch(j *Job) {
	for _, c := range q.captures {
		all := c.of[j.endpoint]
		if len(all) == 0 || j.Seq < all[0].from || j.Seq >= all[len(all)-1].to {
			continue
		}
		i, found := slices.BinarySearchFunc(all, j.Seq, func(p *piece, seq uint64) int { return cmp.Compare(p.from, seq) })
		if !found {
			i--
		}
		p := all[i]
		if _, kept := p.before[j.Seq]; !p.read && !kept {
			p.before[j.Seq] = j.Copy()
		}
	}
}

// Copy returns a copy that stays as it is.
func (j *Job) Copy() Job {
	c := *j
	c.Sale = cloneSale(j.Sale)
	if j.Run != nil {
		r := *j.Run
		r.Workers, r.Chunks = slices.Clone(r.Workers), slices.Clone(r.Chunks)
		c.Run = &r
	}
	return c
}

// Restore makes an empty queue what all pieces of a Capture say, in their order. It keeps their jobs.
func (q *Queue) Restore(image []ImageEndpoint) {
	var running []*Job
	for i := range image {
		from := &image[i]
		e := q.endpoint(from.ID, from.Account)
		e.seq = from.Seq
		for k := range from.Jobs {
			j := &from.Jobs[k]
			j.endpoint, j.waitAt, j.dueAt = e, -1, -1
			q.jobs[j.ID] = j
			e.jobs = append(e.jobs, j)
			q.hold(e, j.bytes())
			q.due.add(j)
			if j.Status == InProgress {
				running = append(running, j)
				continue
			}
			q.enter(j)
		}
	}
	slices.SortFunc(running, func(a, b *Job) int {
		return cmp.Or(cmp.Compare(a.Run.Started, b.Run.Started), cmp.Compare(a.endpoint.id, b.endpoint.id), cmp.Compare(a.Seq, b.Seq))
	})
	for _, j := range running {
		q.enter(j)
	}
	for _, from := range image {
		q.endpoints[from.ID].counts = from.Counts
	}
}
