package jobs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"gantry/scheduler/bodies"
	"gantry/scheduler/replica"
	"gantry/serverless/queue"
)

// A snapshot is the magic, a byte that says whether the bodies are in it, the index, and frames: each is its length and an
// item in CBOR. The first is a count of what follows: pieces of the queue's image, then the parts. The bodies come
// after them, in the order in which the frames refer to them.
const (
	magic     = "gantry jobs 1\n"
	headBytes = len(magic) + 1 + 8
	maxFrame  = 256 << 20
	// compactBytes is how many bytes of bodies a snapshot moves at most, while nothing is applied.
	compactBytes = 8 << 20
)

// counts is the first frame.
type counts struct {
	Pieces int `cbor:"1,keyasint"`
	Parts  int `cbor:"2,keyasint"`
}

// idPart is a part with its id.
type idPart struct {
	ID   queue.ID `cbor:"1,keyasint"`
	Part part     `cbor:"2,keyasint"`
}

// snapshot is the machine at one moment.
type snapshot struct {
	m     *Machine
	index uint64
	jobs  *queue.Capture
	parts []idPart
	mark  bodies.Mark
}

// Snapshot implements replica.Machine.
func (m *Machine) Snapshot() (replica.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.bodies.Compact(compactBytes, m.queue.Move); err != nil {
		return nil, fmt.Errorf("take a snapshot of the jobs: %w", err)
	}
	s := &snapshot{m: m, index: m.index, jobs: m.queue.Capture(), mark: m.bodies.Mark()}
	for id, p := range m.parts {
		s.parts = append(s.parts, idPart{id, *p})
	}
	return s, nil
}

// Release implements replica.Snapshot.
func (s *snapshot) Release(durable bool) error {
	s.m.mu.Lock()
	s.jobs.Close()
	s.m.mu.Unlock()
	if !durable {
		return nil
	}
	return s.m.bodies.Checkpoint(s.mark)
}

// WriteTo implements io.WriterTo.
func (s *snapshot) WriteTo(to io.Writer) (int64, error) {
	if err := s.m.bodies.Sync(s.mark); err != nil {
		return 0, err
	}
	w := &frameWriter{m: s.m, w: bufio.NewWriter(to)}
	w.raw(head(false, s.index))
	w.frame(counts{Pieces: s.jobs.Len(), Parts: len(s.parts)})
	for i := range s.jobs.Len() {
		s.m.mu.RLock()
		piece := s.jobs.Piece(i)
		s.m.mu.RUnlock()
		w.frame(piece)
	}
	for _, p := range s.parts {
		w.frame(p)
	}
	return w.n, errors.Join(w.err, w.w.Flush())
}

func head(whole bool, index uint64) []byte {
	out := append([]byte(magic), 0)
	if whole {
		out[len(magic)] = 1
	}
	return binary.BigEndian.AppendUint64(out, index)
}

// frameWriter writes until the first error.
type frameWriter struct {
	m   *Machine
	w   *bufio.Writer
	n   int64
	err error
}

func (w *frameWriter) raw(b []byte) {
	if w.err == nil {
		var n int
		n, w.err = w.w.Write(b)
		w.n += int64(n)
	}
}

func (w *frameWriter) frame(v any) {
	data, err := w.m.codec.Enc.Marshal(v)
	if w.err == nil {
		w.err = err
	}
	w.raw(binary.BigEndian.AppendUint32(nil, uint32(len(data)))) //nolint:gosec // far smaller
	w.raw(data)
}

// errSnapshot is matched by errors about bytes that are no snapshot.
var errSnapshot = errors.New("this is no snapshot of jobs")

// readHead reads the beginning of a snapshot.
func readHead(r io.Reader) (whole bool, index uint64, err error) {
	head := make([]byte, headBytes)
	if _, err := io.ReadFull(r, head); err != nil {
		return false, 0, fmt.Errorf("%w: %w", errSnapshot, err)
	}
	if string(head[:len(magic)]) != magic || head[len(magic)] > 1 {
		return false, 0, errSnapshot
	}
	return head[len(magic)] == 1, binary.BigEndian.Uint64(head[len(magic)+1:]), nil
}

// readFrame reads an item.
func (m *Machine) readFrame(r io.Reader, v any) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxFrame {
		return fmt.Errorf("%w: a frame has %d bytes", errSnapshot, n)
	}
	var data bytes.Buffer
	if _, err := io.CopyN(&data, r, int64(n)); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	if err := m.codec.Dec.Unmarshal(data.Bytes(), v); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	return nil
}

// readFrames reads all frames.
func (m *Machine) readFrames(r io.Reader) (image []queue.ImageEndpoint, parts []idPart, err error) {
	var n counts
	if err := m.readFrame(r, &n); err != nil {
		return image, nil, err
	}
	for range n.Pieces {
		var piece queue.ImageEndpoint
		if err := m.readFrame(r, &piece); err != nil {
			return image, nil, err
		}
		image = append(image, piece)
	}
	for range n.Parts {
		var p idPart
		if err := m.readFrame(r, &p); err != nil {
			return image, nil, err
		}
		parts = append(parts, p)
	}
	return image, parts, nil
}

// SnapshotIndex implements replica.Machine.
func (m *Machine) SnapshotIndex(r io.Reader) (uint64, error) {
	_, index, err := readHead(r)
	return index, err
}

// bodiesOf returns what a job refers to.
func bodiesOf(j *queue.Job) (out []*queue.Body) {
	out = append(out, &j.Input)
	if j.Run != nil {
		out = append(out, &j.Run.Output)
		for i := range j.Run.Chunks {
			out = append(out, &j.Run.Chunks[i])
		}
	}
	return out
}

// Restore implements replica.Machine. After an error the machine has nothing, and must not be used.
func (m *Machine) Restore(from io.Reader) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := bufio.NewReader(from)
	whole, index, err := readHead(r)
	if err != nil {
		return err
	}
	image, parts, err := m.readFrames(r)
	if err != nil {
		return err
	}
	m.bodies.Reset()
	m.begin()
	clear(m.parts)
	for e := range image {
		for i := range image[e].Jobs {
			j := &image[e].Jobs[i]
			for _, b := range bodiesOf(j) {
				if err := m.restoreBody(r, whole, j.ID, b); err != nil {
					return fmt.Errorf("restore job %x: %w", j.ID, err)
				}
			}
		}
	}
	for _, p := range parts {
		if err := m.restorePart(r, whole, p); err != nil {
			return fmt.Errorf("restore a part: %w", err)
		}
	}
	if n, err := io.Copy(io.Discard, r); err != nil || n > 0 {
		return fmt.Errorf("%w: %d bytes are too many: %w", errSnapshot, n, err)
	}
	m.queue.Restore(image)
	m.index = index
	m.watchers.tellAll()
	return m.sweep()
}

// restoreBody has a job refer to its body as this member has it.
func (m *Machine) restoreBody(r io.Reader, whole bool, job queue.ID, b *queue.Body) error {
	if b.Size == 0 {
		return nil
	}
	if !whole {
		return m.bodies.Keep(*b)
	}
	data, err := readBody(r, b.Size)
	if err == nil {
		*b, err = m.bodies.Put(job, data)
	}
	return err
}

// restorePart goes on with a part as this member has it.
func (m *Machine) restorePart(r io.Reader, whole bool, p idPart) error {
	m.parts[p.ID] = &p.Part
	if !whole {
		return m.bodies.Resume(p.Part.Body)
	}
	size := p.Part.Body.Body.Size
	data, err := readBody(r, p.Part.Body.Have)
	if err != nil {
		return err
	}
	if size <= 0 || size > MaxBody {
		return errSnapshot
	}
	if p.Part.Body, err = m.bodies.Reserve(p.Part.Body.Job, size); err != nil {
		return err
	}
	return m.bodies.Write(&p.Part.Body, data)
}

func readBody(r io.Reader, size int64) ([]byte, error) {
	if size < 0 || size > MaxBody {
		return nil, fmt.Errorf("%w: a body has %d bytes", errSnapshot, size)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, fmt.Errorf("%w: %w", errSnapshot, err)
	}
	return data, nil
}

// Export implements replica.Machine: it adds the bodies. The heads are in memory until they are sent.
func (m *Machine) Export(file io.ReadCloser, size int64) (io.ReadCloser, int64, error) {
	release := m.bodies.Pin()
	heads := bytes.NewBuffer(make([]byte, 0, headBytes))
	r := bufio.NewReader(file)
	in := io.TeeReader(r, heads)
	whole, index, err := readHead(in)
	if err == nil && whole {
		return struct {
			io.Reader
			io.Closer
		}{io.MultiReader(heads, r), closers{file.Close, release}}, size, nil
	}
	var image []queue.ImageEndpoint
	var parts []idPart
	if err == nil {
		image, parts, err = m.readFrames(in)
	}
	if err != nil {
		return nil, 0, errors.Join(err, release())
	}
	out := &exported{m: m, now: heads}
	copy(heads.Bytes(), head(true, index))
	total := int64(heads.Len())
	for e := range image {
		for i := range image[e].Jobs {
			for _, b := range bodiesOf(&image[e].Jobs[i]) {
				if b.Size > 0 {
					out.bodies, total = append(out.bodies, *b), total+b.Size
				}
			}
		}
	}
	for _, p := range parts {
		out.parts, total = append(out.parts, p.Part.Body), total+p.Part.Body.Have
	}
	out.close = closers{file.Close, release}
	return out, total, nil
}

// closers closes all.
type closers []func() error

// Close implements io.Closer.
func (c closers) Close() (err error) {
	for _, fn := range c {
		err = errors.Join(err, fn())
	}
	return err
}

// exported reads the heads, then one body after the other.
type exported struct {
	m      *Machine
	now    io.Reader
	bodies []queue.Body
	parts  []bodies.Part
	close  closers
}

// Read implements io.Reader.
func (e *exported) Read(p []byte) (int, error) {
	for {
		n, err := e.now.Read(p)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
		var data []byte
		switch {
		case len(e.bodies) > 0:
			data, err = e.m.bodies.Get(e.bodies[0])
			e.bodies = e.bodies[1:]
		case len(e.parts) > 0:
			data, err = e.m.bodies.Read(e.parts[0])
			e.parts = e.parts[1:]
		default:
			return 0, io.EOF
		}
		if err != nil {
			return 0, err
		}
		e.now = bytes.NewReader(data)
	}
}

// Close implements io.Closer.
func (e *exported) Close() error { return e.close.Close() }

var _ replica.Machine = (*Machine)(nil)
