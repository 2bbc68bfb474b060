// Package jobs is the state of serverless jobs as it is replicated: serverless/queue decides, scheduler/bodies keeps inputs,
// outputs and chunks, and a log of their own (scheduler/replica), apart from the control plane's, carries the commands. So a
// flood of jobs delays no pod.
//
// Durability. What Apply returned is durable because it is on the log. In memory are the heads of jobs; on disk are bodies and
// snapshots. A snapshot refers to bodies by place, so that its size does not depend on theirs; one for another
// member (Export) has the bodies too.
package jobs

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"gantry/fleet"
	"gantry/scheduler/bodies"
	"gantry/scheduler/entry"
	"gantry/serverless/queue"
)

// fullFile is from which size on a file of bodies is not written to any more.
const fullFile = 64 << 20

// partsAtOnce is how many parts of large bodies a leader has committed at once, so that few bytes are ahead of others' commands, here and
// on the disk that the control plane's log shares.
const partsAtOnce = 1

// Job is a copy of a queue.Job that stays as it is.
type Job struct {
	queue.Job
	Endpoint fleet.EndpointID
	Account  fleet.AccountID
}

// Machine implements replica.Machine. View, Body and Watch may be called from any number of goroutines.
type Machine struct {
	dir   string
	codec *entry.Codec[Command]
	turns chan struct{} // held while a part of a large body is being committed

	mu       sync.RWMutex // guards the fields below; held by Apply, Restore and for writing only
	index    uint64
	queue    *queue.Queue
	bodies   *bodies.Store
	parts    map[queue.ID]*part
	swept    bool // what the newest snapshot does not need was removed
	watchers watchers
}

// part is a body that comes in Parts.
type part struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	Begun   queue.Millis    `cbor:"2,keyasint"`
	Body    bodies.Part     `cbor:"3,keyasint"`
}

// Open opens the machine whose bodies are in a folder of dir, which is made if it is not there. It is empty: a snapshot and
// the log bring what it had.
func Open(dir string) (*Machine, error) {
	codec, err := wire()
	if err != nil {
		return nil, err
	}
	m := &Machine{dir: dir, codec: codec, turns: make(chan struct{}, partsAtOnce), parts: map[queue.ID]*part{}}
	if m.bodies, err = bodies.Open(filepath.Join(dir, "bodies"), fullFile); err != nil {
		return nil, fmt.Errorf("open jobs: %w", err)
	}
	m.watchers.init()
	m.begin()
	return m, nil
}

// begin makes the queue empty. The caller holds mu, or is Open.
func (m *Machine) begin() {
	m.queue = queue.New()
	m.queue.Drop, m.queue.Changed = m.bodies.Drop, m.watchers.changed
}

// Close closes the files. Nobody may use the machine any more.
func (m *Machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bodies.Close()
}

// Index implements replica.Machine.
func (m *Machine) Index() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.index
}

// Apply implements replica.Machine.
func (m *Machine) Apply(entries []entry.Entry) ([][]entry.Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.sweep(); err != nil {
		return nil, err
	}
	out := make([][]entry.Result, len(entries))
	for i, e := range entries {
		if e.Index <= m.index {
			continue
		}
		cmds, err := m.codec.Decode(e.Data)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", e.Index, err)
		}
		for _, cmd := range cmds {
			value, err := cmd.apply(m)
			var refusal *fleet.Error
			if err != nil && !errors.As(err, &refusal) {
				return nil, fmt.Errorf("entry %d: %w", e.Index, err)
			}
			out[i] = append(out[i], entry.Result{Value: value, Err: err})
		}
		m.index = e.Index
	}
	m.watchers.tell()
	return out, nil
}

// sweep removes, once, the files that are left of before the start. The caller holds mu.
func (m *Machine) sweep() error {
	if m.swept {
		return nil
	}
	m.swept = true
	return m.bodies.Swept()
}

// View calls fn with the jobs, which stay as they are until it returns, and which it must not change or keep.
func (m *Machine) View(fn func(*queue.Queue)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	fn(m.queue)
}

// Get returns a job that has not expired. Errors: not_found.
func (m *Machine) Get(id queue.ID, now queue.Millis) (Job, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	j := m.queue.Get(id)
	if j == nil || j.Expired(now) {
		return Job{}, fleet.NotFound("job")
	}
	return copyOf(j), nil
}

// Read returns a job that has not expired, and one of its bodies. Errors: not_found; bodies.ErrDamaged.
func (m *Machine) Read(id queue.ID, now queue.Millis, which func(*queue.Job) queue.Body) (Job, []byte, error) {
	m.mu.RLock()
	j := m.queue.Get(id)
	if j == nil || j.Expired(now) {
		m.mu.RUnlock()
		return Job{}, nil, fleet.NotFound("job")
	}
	job, body := copyOf(j), which(j)
	release := m.bodies.Pin()
	m.mu.RUnlock()
	data, err := m.bodies.Get(body)
	return job, data, errors.Join(err, release())
}

// List returns copies of jobs; see queue.Queue.List.
func (m *Machine) List(id fleet.EndpointID, before uint64, limit int, keep func(*queue.Job) bool) (out []Job, next uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	page, next := m.queue.List(id, before, limit, keep)
	for _, j := range page {
		out = append(out, copyOf(j))
	}
	return out, next
}

// copyOf copies what commands change. The caller holds mu.
func copyOf(j *queue.Job) Job {
	out := Job{Job: j.Copy()}
	out.Endpoint, out.Account = j.Endpoint()
	return out
}

// result makes a value of what a method of the queue returns.
func result(j *queue.Job, err error) (any, error) {
	if j == nil {
		return nil, err
	}
	return copyOf(j), err
}

var errParts = &fleet.Error{Code: fleet.CodeStale, Msg: "the parts of the body are not there", NothingDone: true}

// sizeOf returns the size of a command's body. Errors: stale, when its parts are not all there.
func (m *Machine) sizeOf(job queue.ID, c Content) (int64, error) {
	if c.Parts == (queue.ID{}) {
		return int64(len(c.Data)), nil
	}
	p := m.parts[c.Parts]
	if p == nil || p.Body.Have != p.Body.Body.Size || p.Body.Job != job {
		return 0, errParts
	}
	return p.Body.Have, nil
}

// put puts the body of a command where bodies are.
func (m *Machine) put(job queue.ID, c Content) (queue.Body, error) {
	if _, err := m.sizeOf(job, c); err != nil {
		return queue.Body{}, err
	}
	if c.Parts == (queue.ID{}) {
		return m.bodies.Put(job, c.Data)
	}
	p := m.parts[c.Parts]
	delete(m.parts, c.Parts)
	return m.bodies.Seal(p.Body)
}

func (c Submit) apply(m *Machine) (any, error) {
	size, err := m.sizeOf(c.ID, c.Content)
	if err != nil {
		return nil, err
	}
	// Nothing is put for a job that is refused or there already: until then its input is at a place where none is.
	c.Input = queue.Body{Size: size}
	j, err := m.queue.Submit(c.Submit)
	if err != nil {
		return result(j, err)
	}
	input, err := m.put(c.ID, c.Content)
	if err != nil {
		return nil, err
	}
	m.queue.Move(c.ID, c.Input, input)
	return copyOf(j), nil
}

func (c Take) apply(m *Machine) (any, error) {
	var out []Job
	for _, j := range m.queue.Take(c.Take) {
		out = append(out, copyOf(j))
	}
	return out, nil
}

func (c Finish) apply(m *Machine) (_ any, err error) {
	if c.Output, err = m.put(c.Job, c.Content); err != nil {
		return false, err
	}
	return m.queue.Finish(c.Finish), nil
}

func (c Progress) apply(m *Machine) (_ any, err error) {
	if c.Output, err = m.put(c.Job, c.Content); err == nil {
		m.queue.Progress(c.Progress)
	}
	return nil, err
}

func (c Chunk) apply(m *Machine) (_ any, err error) {
	if c.Body, err = m.put(c.Job, c.Content); err == nil {
		err = m.queue.Chunk(c.Chunk)
	}
	return nil, err
}

// Taken are chunks that were read, and how many are left.
type Taken struct {
	Chunks []queue.Body
	Left   int
}

func (c Read) apply(m *Machine) (any, error) {
	j := m.queue.Get(c.Job)
	if j == nil {
		return Taken{}, nil
	}
	unread := j.Run.Unread()
	n := max(0, min(c.N, len(unread)))
	out := Taken{Chunks: slices.Clone(unread[:n]), Left: len(unread) - n}
	m.queue.Read(c.Read)
	return out, nil
}

func (c Lost) apply(m *Machine) (any, error) { m.queue.Lost(c.Lost); return nil, nil }

func (c LostWorker) apply(m *Machine) (any, error) { m.queue.LostWorker(c.LostWorker); return nil, nil }

func (c Cancel) apply(m *Machine) (any, error) { return result(m.queue.Cancel(c.Cancel)) }

func (c Retry) apply(m *Machine) (any, error) { return result(m.queue.Retry(c.Retry)) }

func (c Told) apply(m *Machine) (any, error) { m.queue.Told(c.Told); return nil, nil }

func (c Settled) apply(m *Machine) (any, error) { m.queue.Settled(c.Settled); return nil, nil }

func (c Retain) apply(m *Machine) (any, error) { m.queue.Retain(c.Retain); return nil, nil }

func (c Purge) apply(m *Machine) (any, error) { return m.queue.Purge(c.Purge), nil }

func (c Forget) apply(m *Machine) (any, error) { return m.queue.Forget(c.Forget), nil }

func (c Expire) apply(m *Machine) (any, error) {
	n := m.queue.Expire(c.Expire)
	for id, p := range m.parts {
		if c.At-p.Begun >= partLife {
			m.abandon(id, p)
			n++
		}
	}
	return n, nil
}

func (c Part) apply(m *Machine) (any, error) {
	p := m.parts[c.ID]
	if p == nil {
		if c.From != 0 || c.Size <= 0 || c.Size > MaxBody {
			return nil, &fleet.Error{Code: fleet.CodeStale, Msg: "the parts before this one are not there", NothingDone: true}
		}
		if err := m.mayBegin(c); err != nil {
			return nil, err
		}
		body, err := m.bodies.Reserve(c.Job, c.Size)
		if err != nil {
			return nil, err
		}
		p = &part{Account: c.Account, Begun: c.At, Body: body}
		m.parts[c.ID] = p
	}
	if c.From != p.Body.Have || c.Size != p.Body.Body.Size || c.From+int64(len(c.Data)) > c.Size {
		return nil, &fleet.Error{Code: fleet.CodeStale, Msg: "this is not the next part", NothingDone: true}
	}
	return nil, m.bodies.Write(&p.Body, c.Data)
}

// mayBegin refuses another incomplete body of an account that has too much.
func (m *Machine) mayBegin(c Part) error {
	n, bytes := 0, m.queue.Bytes(c.Account)+c.Size
	for _, p := range m.parts {
		if p.Account == c.Account {
			n, bytes = n+1, bytes+p.Body.Body.Size
		}
	}
	switch {
	case n >= maxParts:
		return &fleet.Error{Code: fleet.CodeLimited, Msg: fmt.Sprintf("%d large bodies of this account are on their way, which is the most that may be", n), NothingDone: true}
	case bytes > c.MaxBytes:
		return &fleet.Error{Code: fleet.CodeLimited, Msg: fmt.Sprintf("the jobs of this account would hold more than %d bytes", c.MaxBytes), NothingDone: true}
	}
	return nil
}

func (c Drop) apply(m *Machine) (any, error) {
	if p := m.parts[c.ID]; p != nil {
		m.abandon(c.ID, p)
	}
	return nil, nil
}

func (m *Machine) abandon(id queue.ID, p *part) {
	delete(m.parts, id)
	m.bodies.Abandon(p.Body)
}
