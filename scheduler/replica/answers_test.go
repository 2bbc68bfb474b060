package replica

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"gantry/scheduler/entry"
)

// TestEachProposalGetsItsPart of an entry's results, and none gets another's where there are too few.
func TestEachProposalGetsItsPart(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		results int
		err     error
		parts   []int // results of each; -1: an error
	}{
		"all": {3, nil, []int{2, 0, 1}}, "more": {5, nil, []int{2, 0, 1}}, "too few": {2, nil, []int{2, 0, -1}},
		"none": {0, nil, []int{-1, -1, -1}}, "an error": {3, failed, []int{-1, -1, -1}}, "an error alone": {0, failed, []int{-1, -1, -1}},
	} {
		var batch []*proposal
		for _, cmds := range []int{2, 0, 1} {
			batch = append(batch, &proposal{cmds: cmds, done: make(chan outcome, 1)})
		}
		var results []entry.Result
		for i := range c.results {
			results = append(results, entry.Result{Value: i})
		}
		deliver(batch, results, c.err)
		first := 0
		for i, p := range batch {
			out := <-p.done
			if fails := c.parts[i] < 0; fails != (out.err != nil) || fails && c.err == nil && !errors.Is(out.err, ErrUnknown) || c.err != nil && !errors.Is(out.err, c.err) {
				t.Errorf("%s: proposal %d: %v", name, i, out.err)
			} else if !fails && (len(out.results) != p.cmds || cap(out.results) != p.cmds) {
				t.Errorf("%s: proposal %d has %v", name, i, out.results)
			}
			for j, r := range out.results {
				if r.Value != first+j {
					t.Errorf("%s: proposal %d has %v, from %d on", name, i, out.results, first)
				}
			}
			first += p.cmds
		}
	}
}

// answering is a state machine that answers as a test says.
type answering struct {
	Machine
	results []entry.Result
	silent  bool // it answers no entry
	err     error
}

func (a *answering) Apply(entries []entry.Entry) ([][]entry.Result, error) {
	if _, err := a.Machine.Apply(entries); err != nil {
		return nil, err
	}
	if a.silent {
		return nil, nil
	}
	out := make([][]entry.Result, len(entries))
	for i := range out {
		out[i] = a.results
	}
	return out, a.err
}

// TestACallerIsTold when the state machine does not answer what was asked: at once, and that nobody knows.
func TestACallerIsTold(t *testing.T) {
	kind := &answering{}
	m := one(t, func(c *Config) {
		kind.Machine, c.Store, c.Machine = storeMachine{c.Store}, nil, kind
		c.RequestTimeout = 2 * patience
	})
	data := []byte{}
	if _, err := m.Append(within(t), 1, data); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "too few results") && !strings.Contains(errors.Unwrap(err).Error(), "too few results") {
		t.Errorf("without a result: %v", err)
	}
	kind.results = []entry.Result{{Value: 7}}
	if got, err := m.Append(within(t), 1, data); err != nil || len(got) != 1 || got[0].Value != 7 {
		t.Errorf("%v, %v", got, err)
	}
	kind.silent = true
	if _, err := m.Append(within(t), 1, data); !errors.Is(err, ErrUnknown) || !strings.Contains(errors.Unwrap(err).Error(), "has no result") {
		t.Errorf("an entry without an answer: %v", err)
	}
	kind.silent, kind.err = false, errors.New("torn")
	if _, err := m.Append(within(t), 1, data); !errors.Is(err, ErrUnknown) || !errors.Is(err, kind.err) {
		t.Errorf("an entry that cannot be applied: %v", err)
	}
	select {
	case err := <-m.fatal:
		if !errors.Is(err, kind.err) {
			t.Error(err)
		}
	case <-within(t).Done():
		t.Error("the process goes on")
	}
}

// TestWhoLedKnowsThatItIsOver: there is no time of leading, and its context is done, once another leads.
func TestWhoLedKnowsThatItIsOver(t *testing.T) {
	members := three(t, calm)
	first := leader(t, members)
	lead, changed := first.leading()
	if lead == nil || lead.ctx.Err() != nil || lead.term != first.Term() {
		t.Fatalf("%+v", lead)
	}
	if err := first.Transfer(within(t), ""); err != nil {
		t.Fatal(err)
	}
	limit := within(t)
	select {
	case <-changed:
	case <-limit.Done():
		t.Fatal("nobody is told")
	}
	select {
	case <-lead.ctx.Done():
	case <-limit.Done():
		t.Fatal("its work goes on")
	}
	eventually(t, "there is no time of leading", func() bool { now, _ := first.leading(); return now == nil || now != lead })
	first.setLead(lead) // too late
	if now, _ := first.leading(); now == lead {
		t.Error("a time that ended has begun")
	}
}

// sink is one of a snapshot, that fails as a test says.
type sink struct {
	raft.SnapshotSink
	writes, closes error
	canceled       bool
}

func (s *sink) Write(p []byte) (int, error) { return len(p), s.writes }
func (s *sink) Close() error                { return s.closes }
func (s *sink) Cancel() error               { s.canceled = true; return nil }

// written is a snapshot that notes how it was released.
type written struct {
	released, durable bool
	err               error
}

func (w *written) WriteTo(to io.Writer) (int64, error) {
	n, err := to.Write([]byte("state"))
	return int64(n), err
}

func (w *written) Release(durable bool) error {
	w.released, w.durable = true, durable
	return w.err
}

// TestOnlyASnapshotThatIsWholeIsDurable: the state machine is told so, and what is not is thrown away.
func TestOnlyASnapshotThatIsWholeIsDurable(t *testing.T) {
	failed := errors.New("no room")
	for name, c := range map[string]struct {
		sink     sink
		err      error
		canceled bool
		says     string
	}{
		"good": {sink{}, nil, false, ""}, "not written": {sink{writes: failed}, nil, true, ""}, "not synced": {sink{closes: failed}, nil, false, ""},
		"not released": {sink{}, failed, false, "release snapshot"},
	} {
		var said bytes.Buffer
		w := &written{err: c.err}
		s := &fsmSnapshot{snap: w, log: slog.New(slog.NewTextHandler(&said, nil))}
		err := s.Persist(&c.sink)
		s.Release()
		good := c.sink.writes == nil && c.sink.closes == nil
		if (err == nil) != good || !good && !errors.Is(err, failed) || w.durable != good || !w.released || c.sink.canceled != c.canceled {
			t.Errorf("%s: %v, durable %v, canceled %v", name, err, w.durable, c.sink.canceled)
		}
		if !strings.Contains(said.String(), c.says) || (said.Len() == 0) != (c.says == "") {
			t.Errorf("%s: said %q", name, said.String())
		}
	}
}

// TestWhatASnapshotsFilesSay: one is good with its sum, or with none of before there were sums, and damaged with another one, or without
// a part.
func TestWhatASnapshotsFilesSay(t *testing.T) {
	for name, c := range map[string]struct {
		change func(dir string) error
		good   bool
	}{
		"good":           {func(string) error { return nil }, true},
		"of before":      {func(dir string) error { return os.Remove(filepath.Join(dir, metaSumFile)) }, true},
		"another sum":    {func(dir string) error { return os.WriteFile(filepath.Join(dir, metaSumFile), []byte("0\n"), 0o600) }, false},
		"no description": {func(dir string) error { return os.Remove(filepath.Join(dir, metaFile)) }, false},
		"no state":       {func(dir string) error { return os.Remove(filepath.Join(dir, "state.bin")) }, false},
		"another state":  {func(dir string) error { return os.WriteFile(filepath.Join(dir, "state.bin"), []byte("other"), 0o600) }, false},
		"a sum that cannot be read": {func(dir string) error {
			path := filepath.Join(dir, metaSumFile)
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		}, false},
	} {
		snaps, err := openSnapshots(t.TempDir(), hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		var made []position
		snaps.made = func(p position) { made = append(made, p) }
		s, err := snaps.Create(1, 20, 3, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write([]byte("state")); err != nil || s.Close() != nil || s.Close() != nil {
			t.Fatal(err)
		}
		if len(made) != 1 || made[0] != (position{20, 3}) {
			t.Errorf("%s: told of %v", name, made)
		}
		if err := c.change(filepath.Join(snaps.dir, s.ID())); err != nil {
			t.Fatal(err)
		}
		good, lost, err := snaps.check()
		if err != nil || c.good && (good != 20 || lost != 0) || !c.good && (good != 0 || lost != 20) {
			t.Errorf("%s: good to %d, lost to %d, %v", name, good, lost, err)
		}
	}
	snaps, err := openSnapshots(t.TempDir(), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	snaps.made = func(p position) { t.Errorf("told of %v, which was thrown away", p) }
	s, err := snaps.Create(1, 20, 3, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Cancel(), s.Close()); err != nil || len(names(t, snaps.dir)) != 0 {
		t.Errorf("%v, left %v", err, names(t, snaps.dir))
	}
	if err := os.RemoveAll(snaps.dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := snaps.check(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without its folder: %v", err)
	}
}

// TestANumberOfTheLogHasEightBytes, no more and no fewer.
func TestANumberOfTheLogHasEightBytes(t *testing.T) {
	dir := t.TempDir()
	if err := Create(dir); err != nil {
		t.Fatal(err)
	}
	l, err := openLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for n, good := range map[int]bool{0: false, 7: false, 8: true, 9: false, 16: false} {
		if err := l.Set([]byte(keyTerm), make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		if _, err := l.GetUint64([]byte(keyTerm)); (err == nil) != good || err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// handled is a transport that keeps what handles its heartbeats.
type handled struct {
	Transport
	handle func(raft.RPC)
}

func (h *handled) SetHeartbeatHandler(handle func(raft.RPC)) { h.handle = handle }

// TestAHeartbeatOfAClosedNodeIsAnswered, and not handled.
func TestAHeartbeatOfAClosedNodeIsAnswered(t *testing.T) {
	for _, closed := range []bool{false, true} {
		trans, got, answers := &handled{}, 0, make(chan raft.RPCResponse, 1)
		in := &inbound{Transport: trans, during: func(do func()) bool {
			if !closed {
				do()
			}
			return !closed
		}}
		in.SetHeartbeatHandler(func(raft.RPC) { got++ })
		trans.handle(raft.RPC{RespChan: answers})
		if (got == 0) != closed || (len(answers) == 1) != closed {
			t.Errorf("closed %v: handled %d times, answered %d times", closed, got, len(answers))
		}
		if closed {
			if a := <-answers; !errors.Is(a.Error, raft.ErrRaftShutdown) {
				t.Errorf("answered %v", a.Error)
			}
		}
	}
}

// restoring is a state machine that restores, or does not.
type restoring struct {
	Machine
	err error
}

func (r restoring) Restore(io.Reader) error { return r.err }

// TestWhatIsRestoredIsGivenOut as other members need it, and only then.
func TestWhatIsRestoredIsGivenOut(t *testing.T) {
	for _, failed := range []error{nil, errors.New("torn")} {
		n := &Node{machine: restoring{err: failed}, exports: &exporter{}}
		if err := (&fsm{n: n}).Restore(io.NopCloser(strings.NewReader(""))); !errors.Is(err, failed) || n.exports.restored.Load() != (failed == nil) {
			t.Errorf("%v: restored %v, %v", failed, n.exports.restored.Load(), err)
		}
	}
}
