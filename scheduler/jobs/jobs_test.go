package jobs

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	gocmp "github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/scheduler/bodies"
	"gantry/scheduler/entry"
	"gantry/scheduler/replica"
	"gantry/serverless/queue"
)

func open(t testing.TB, dir string) *Machine {
	t.Helper()
	m, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// apply applies commands as one entry.
func apply(t testing.TB, m *Machine, cmds ...Command) []entry.Result {
	t.Helper()
	data, err := Encode(cmds...)
	if err != nil {
		t.Fatal(err)
	}
	results, err := m.Apply([]entry.Entry{{Index: m.Index() + 1, Term: 1, Data: data}})
	if err != nil {
		t.Fatal(err)
	}
	if len(results[0]) != len(cmds) {
		t.Fatalf("%d results of %d commands", len(results[0]), len(cmds))
	}
	return results[0]
}

// must applies one command and returns its value.
func must[T any](t testing.TB, m *Machine, cmd Command) T {
	t.Helper()
	r := apply(t, m, cmd)[0]
	if r.Err != nil {
		t.Fatalf("%T: %v", cmd, r.Err)
	}
	out, _ := r.Value.(T)
	return out
}

func refused(t testing.TB, m *Machine, code fleet.Code, cmd Command) {
	t.Helper()
	if r := apply(t, m, cmd)[0]; fleet.CodeOf(r.Err) != code {
		t.Errorf("%T: %v, want %s", cmd, r.Err, code)
	}
}

func policy() queue.Policy {
	return queue.Policy{Execution: 60_000, Life: 600_000, Retention: 60_000, Retries: 1}
}

func submit(id byte, input string) Submit {
	return Submit{
		Submit: queue.Submit{
			At: 1000, ID: queue.ID{id}, Endpoint: "ep", Account: "acme", Policy: policy(), MaxWaiting: 100, MaxBytes: 1 << 20,
		},
		Content: Content{Data: []byte(input)},
	}
}

func from(id byte) queue.From { return queue.From{At: 3000, Job: queue.ID{id}, Worker: "w1"} }

// input and output say which body is meant.
func input(j *queue.Job) queue.Body { return j.Input }

func output(j *queue.Job) queue.Body { return j.Run.Output }

func wantBody(t testing.TB, m *Machine, id byte, which func(*queue.Job) queue.Body, want string) {
	t.Helper()
	if _, got, err := m.Read(queue.ID{id}, 4000, which); err != nil || string(got) != want {
		t.Errorf("job %d has %.40q, want %.40q: %v", id, got, want, err)
	}
}

// TestAJob is submitted, taken, reported and finished, with its bodies.
func TestAJob(t *testing.T) {
	m := open(t, t.TempDir())
	made := must[Job](t, m, submit(1, "in"))
	if made.Endpoint != "ep" || made.Account != "acme" || made.Seq != 1 || made.Input.Size != 2 || made.Input.At == 0 {
		t.Errorf("made %+v", made)
	}
	wantBody(t, m, 1, input, "in")
	taken := must[[]Job](t, m, Take{queue.Take{At: 2000, Endpoint: "ep", Worker: "w1", Max: 2}})
	if len(taken) != 1 || taken[0].Status != queue.InProgress || taken[0].Worker() != "w1" {
		t.Errorf("taken %+v", taken)
	}
	must[any](t, m, Progress{queue.Progress{From: from(1)}, Content{Data: []byte("half")}})
	wantBody(t, m, 1, output, "half")
	must[any](t, m, Chunk{queue.Chunk{From: from(1), Number: 1}, Content{Data: []byte("chunk")}})
	refused(t, m, fleet.CodeStale, Chunk{queue.Chunk{From: from(1), Number: 3}, Content{Data: []byte("chunk")}})
	wantBody(t, m, 1, func(j *queue.Job) queue.Body { return j.Run.Chunks[0] }, "chunk")
	must[any](t, m, Read{queue.Read{Job: queue.ID{1}, N: 1, At: 3000}})
	if !must[bool](t, m, Finish{queue.Finish{From: from(1)}, Content{Data: []byte("out")}}) {
		t.Error("the job did not end")
	}
	if must[bool](t, m, Finish{queue.Finish{From: from(1)}, Content{Data: []byte("again")}}) {
		t.Error("the job ended twice")
	}
	wantBody(t, m, 1, output, "out")
	job, err := m.Get(queue.ID{1}, 4000)
	if err != nil || job.Status != queue.Completed || job.Run.Chunks != nil {
		t.Errorf("%+v, %v", job, err)
	}
	if _, err := m.Get(queue.ID{1}, 1e9); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("an expired job: %v", err)
	}
	if _, _, err := m.Read(queue.ID{2}, 4000, input); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("no job: %v", err)
	}
	if n := must[int](t, m, Expire{queue.Expire{At: 1e9, Max: 10}}); n != 1 {
		t.Errorf("%d jobs expired", n)
	}
	if live := m.bodies.Live(); live != 0 {
		t.Errorf("%d bytes of bodies are kept for nobody", live)
	}
}

// TestOtherCommands reach the queue.
func TestOtherCommands(t *testing.T) {
	m := open(t, t.TempDir())
	for id := range byte(5) {
		must[Job](t, m, submit(id+1, "in"))
	}
	must[[]Job](t, m, Take{queue.Take{At: 2000, Endpoint: "ep", Worker: "w1", Max: 2}})
	must[any](t, m, Lost{queue.Lost{From: from(1), Reason: "gone", Untouched: true}})
	must[any](t, m, LostWorker{queue.LostWorker{At: 3000, Worker: "w1", Reason: "gone"}})
	if j := must[Job](t, m, Cancel{queue.Cancel{At: 3000, Job: queue.ID{3}}}); j.Status != queue.Cancelled {
		t.Errorf("%+v", j)
	}
	refused(t, m, fleet.CodeNotFound, Cancel{queue.Cancel{At: 3000, Job: queue.ID{9}}})
	refused(t, m, fleet.CodeNotAllowed, Retry{queue.Retry{At: 3000, Job: queue.ID{3}}})
	must[[]Job](t, m, Take{queue.Take{At: 3000, Endpoint: "ep", Worker: "w1", Max: 1}})
	must[bool](t, m, Finish{queue.Finish{From: from(1), Failed: true}, Content{Data: []byte("no")}})
	if j := must[Job](t, m, Retry{queue.Retry{At: 3000, Job: queue.ID{1}}}); j.Status != queue.InQueue {
		t.Errorf("%+v", j)
	}
	must[any](t, m, Retain{queue.Retain{At: 3000, Job: queue.ID{3}, Retention: 1}})
	must[any](t, m, Told{queue.Told{At: 3000, Job: queue.ID{3}}})
	if _, err := m.Get(queue.ID{3}, 3002); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("it is kept: %v", err)
	}
	if n := must[int](t, m, Purge{queue.Purge{At: 3000, Endpoint: "ep", Max: 2}}); n != 2 {
		t.Errorf("%d purged", n)
	}
	m.View(func(q *queue.Queue) {
		if c := q.Counts("ep"); c.Waiting != 2 || c.Retried != 2 {
			t.Errorf("%+v", c)
		}
	})
	for !must[bool](t, m, Forget{queue.Forget{Endpoint: "ep", Max: 2}}) {
	}
	if live := m.bodies.Live(); live != 0 {
		t.Errorf("%d bytes of bodies are kept for nobody", live)
	}
}

// TestRefusedSubmits leave no body behind.
func TestRefusedSubmits(t *testing.T) {
	m := open(t, t.TempDir())
	must[Job](t, m, submit(1, "in"))
	before := m.bodies.Live()
	again := apply(t, m, submit(1, "other"))[0]
	if j, ok := again.Value.(Job); fleet.CodeOf(again.Err) != fleet.CodeExists || !ok || j.Seq != 1 {
		t.Errorf("%+v", again)
	}
	full, large := submit(2, "in"), submit(3, "in")
	full.MaxWaiting, large.MaxBytes = 1, 3
	refused(t, m, fleet.CodeLimited, full)
	refused(t, m, fleet.CodeLimited, large)
	missing := submit(4, "")
	missing.Content = Content{Parts: queue.ID{9}}
	refused(t, m, fleet.CodeStale, missing)
	if live := m.bodies.Live(); live != before {
		t.Errorf("%d bytes of bodies are kept, %d before", live, before)
	}
}

func partOf(id, job byte, size, from int64, data string) Part {
	return Part{
		At: 1000, ID: queue.ID{id}, Job: queue.ID{job}, Account: "acme", Size: size, From: from, Data: []byte(data), MaxBytes: 1 << 20,
	}
}

// TestPartsOfABody come in order, and are used once, by the job that they are of.
func TestPartsOfABody(t *testing.T) {
	m := open(t, t.TempDir())
	refused(t, m, fleet.CodeStale, partOf(1, 7, 9, 5, "five"))
	refused(t, m, fleet.CodeStale, partOf(1, 7, 0, 0, ""))
	refused(t, m, fleet.CodeStale, partOf(1, 7, MaxBody+1, 0, "five"))
	must[any](t, m, partOf(1, 7, 9, 0, "three"))
	for _, bad := range []Part{partOf(1, 7, 9, 0, "again"), partOf(1, 7, 10, 5, "four"), partOf(1, 7, 9, 5, "longer"), partOf(1, 7, 9, 6, "gap")} {
		refused(t, m, fleet.CodeStale, bad)
	}
	job := submit(7, "")
	job.Content = Content{Parts: queue.ID{1}}
	refused(t, m, fleet.CodeStale, job) // not complete
	must[any](t, m, partOf(1, 7, 9, 5, "four"))
	other := submit(8, "")
	other.Content = Content{Parts: queue.ID{1}}
	refused(t, m, fleet.CodeStale, other) // another job's
	must[Job](t, m, job)
	wantBody(t, m, 7, input, "threefour")
	must[[]Job](t, m, Take{queue.Take{At: 2000, Endpoint: "ep", Worker: "w1", Max: 2}})
	refused(t, m, fleet.CodeStale, Finish{queue.Finish{From: from(7)}, Content{Parts: queue.ID{1}}}) // used
	must[any](t, m, partOf(2, 7, 4, 0, "four"))
	must[bool](t, m, Finish{queue.Finish{From: from(7)}, Content{Parts: queue.ID{2}}})
	wantBody(t, m, 7, output, "four")
}

// TestPartsThatNobodyUses are dropped in time, and bounded by account.
func TestPartsThatNobodyUses(t *testing.T) {
	m := open(t, t.TempDir())
	for id := range byte(maxParts) {
		must[any](t, m, partOf(id+1, 7, 10, 0, "some"))
	}
	refused(t, m, fleet.CodeLimited, partOf(100, 7, 10, 0, "some"))
	other := partOf(100, 7, 10, 0, "some")
	other.Account = "other"
	must[any](t, m, other)
	other.ID, other.MaxBytes = queue.ID{101}, 19
	refused(t, m, fleet.CodeLimited, other)
	must[any](t, m, Drop{ID: queue.ID{1}})
	must[any](t, m, Drop{ID: queue.ID{1}}) // which is no error
	must[any](t, m, partOf(102, 7, 10, 0, "some"))
	if n := must[int](t, m, Expire{queue.Expire{At: 1000 + partLife - 1, Max: 10}}); n != 0 {
		t.Errorf("%d were dropped before their time", n)
	}
	if n := must[int](t, m, Expire{queue.Expire{At: 1000 + partLife, Max: 10}}); n != maxParts+1 || m.bodies.Live() != 0 {
		t.Errorf("%d were dropped, %d bytes are kept", n, m.bodies.Live())
	}
}

// TestWatchers are told of what they watch.
func TestWatchers(t *testing.T) {
	m := open(t, t.TempDir())
	told := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	one, stopOne := m.Watch(queue.ID{1})
	two, stopTwo := m.Watch(queue.ID{2})
	f := m.Follow()
	must[Job](t, m, submit(1, "in"))
	if !told(one) || told(two) || !told(f.Wake()) {
		t.Error("not told, or told of another job")
	}
	if ids, all := f.Changed(); !slices.Equal(ids, []fleet.EndpointID{"ep"}) || all {
		t.Errorf("%v %v", ids, all)
	}
	if ids, _ := f.Changed(); len(ids) > 0 {
		t.Errorf("%v again", ids)
	}
	stopOne()
	must[Job](t, m, Cancel{queue.Cancel{At: 1000, Job: queue.ID{1}}})
	if told(one) {
		t.Error("told after stop")
	}
	if err := m.Restore(whole(t, m)); err != nil {
		t.Fatal(err)
	}
	if _, all := f.Changed(); !all || !told(two) {
		t.Error("not told of a restore")
	}
	f.Close()
	stopTwo()
	if len(m.watchers.jobs)+len(m.watchers.followers) > 0 {
		t.Errorf("%+v are left", &m.watchers)
	}
}

// local returns a snapshot of this member.
func local(t testing.TB, m *Machine) []byte {
	t.Helper()
	return snapshotOf(t, m, true)
}

func snapshotOf(t testing.TB, m *Machine, durable bool) []byte {
	t.Helper()
	return written(t, begun(t, m), durable)
}

func begun(t testing.TB, m *Machine) replica.Snapshot {
	t.Helper()
	snap, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func written(t testing.TB, snap replica.Snapshot, durable bool) []byte {
	t.Helper()
	var out bytes.Buffer
	n, err := snap.WriteTo(&out)
	if err := errors.Join(err, snap.Release(durable)); err != nil || n != int64(out.Len()) {
		t.Fatalf("%d bytes of %d: %v", n, out.Len(), err)
	}
	return out.Bytes()
}

// exportOf returns a snapshot for others, made of a local one.
func exportOf(t testing.TB, m *Machine, local []byte) []byte {
	t.Helper()
	r, size, err := m.Export(io.NopCloser(bytes.NewReader(local)), int64(len(local)))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil || int64(len(data)) != size {
		t.Fatalf("%d bytes, %d were said: %v", len(data), size, err)
	}
	return data
}

func whole(t testing.TB, m *Machine) io.Reader {
	return bytes.NewReader(exportOf(t, m, snapshotOf(t, m, false)))
}

// dump is all that a machine has, with bodies in place of where they are.
func dump(t testing.TB, m *Machine) string {
	t.Helper()
	var out strings.Builder
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := m.queue.Capture()
	defer all.Close()
	for i := range all.Len() {
		e := all.Piece(i)
		fmt.Fprintf(&out, "%s %s %d %+v\n", e.ID, e.Account, e.Seq, e.Counts)
		for i := range e.Jobs {
			j := &e.Jobs[i]
			for _, b := range bodiesOf(j) {
				data, err := m.bodies.Get(*b)
				if err != nil {
					t.Fatalf("job %x: %v", j.ID, err)
				}
				fmt.Fprintf(&out, "  body %s\n", data)
				b.At = 0
			}
			run := queue.Run{}
			if j.Run != nil {
				run = *j.Run
			}
			fmt.Fprintf(&out, "  %x %+v %s %d %d %d %+v\n", j.ID, j.Policy, j.Status, j.Seq, j.Submitted, j.Due, run)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(m.parts), func(a, b queue.ID) int { return cmp.Compare(a[0], b[0]) }) {
		p := m.parts[id]
		data, err := m.bodies.Read(p.Body)
		fmt.Fprintf(&out, "part %x of %s at %d: %d %q %v\n", id, p.Account, p.Begun, p.Body.Body.Size, data, err)
	}
	fmt.Fprintln(&out, m.index, m.bodies.Live())
	return out.String()
}

// TestSnapshotsHoldEverything: after any commands, a member that starts with its own snapshot and the log after it, and one
// that is sent a snapshot, have what the first one has; and no file is left that nobody needs.
func TestSnapshotsHoldEverything(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dirs := []string{tempDir(t), tempDir(t)}
		m := open(t, dirs[0])
		var log, since []entry.Entry // since the newest snapshot, and since the one that is not written yet
		snap, unwritten := []byte(nil), replica.Snapshot(nil)
		now, next := queue.Millis(1000), byte(0)
		some := func() byte { return byte(rapid.IntRange(1, max(1, int(next))).Draw(r, "job")) }
		text := func() []byte { return []byte(rapid.StringMatching(`[a-z]{0,40}`).Draw(r, "text")) }
		speaker := func() queue.From {
			return queue.From{At: now, Job: queue.ID{some()}, Worker: fleet.PodID(rapid.SampledFrom([]string{"w1", "w2"}).Draw(r, "worker"))}
		}
		command := func() Command {
			now += queue.Millis(rapid.IntRange(0, 20_000).Draw(r, "time"))
			switch rapid.IntRange(0, 9).Draw(r, "command") {
			case 0, 1, 2:
				next++
				c := submit(next, string(text()))
				c.At, c.Policy.Webhook = now, rapid.Bool().Draw(r, "webhook")
				return c
			case 3, 4:
				return Take{queue.Take{At: now, Endpoint: "ep", Worker: "w1", Max: 2}}
			case 5:
				return Finish{queue.Finish{From: speaker(), Failed: rapid.Bool().Draw(r, "failed")}, Content{Data: text()}}
			case 6:
				return Chunk{queue.Chunk{From: speaker(), Number: uint32(rapid.IntRange(1, 3).Draw(r, "number"))}, Content{Data: text()}}
			case 7:
				return Expire{queue.Expire{At: now, Max: 3}}
			case 8:
				return Progress{queue.Progress{From: speaker()}, Content{Data: text()}}
			default:
				data := text()
				p := partOf(some(), some(), 30, 0, string(data[:min(len(data), 15)]))
				if has := m.parts[p.ID]; has != nil {
					p.From = has.Body.Have
				}
				p.At = now
				return p
			}
		}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			if rapid.IntRange(0, 9).Draw(r, "step") == 0 {
				if unwritten == nil {
					unwritten, since = begun(t, m), nil
				} else {
					snap, log, unwritten = written(t, unwritten, true), since, nil
				}
				continue
			}
			data, err := Encode(command())
			if err != nil {
				r.Fatal(err)
			}
			e := entry.Entry{Index: m.Index() + 1, Term: 1, Data: data}
			if _, err := m.Apply([]entry.Entry{e}); err != nil {
				r.Fatal(err)
			}
			log, since = append(log, e), append(since, e)
		}
		if unwritten != nil {
			written(t, unwritten, false)
		}
		want := dump(t, m)
		sent := open(t, dirs[1])
		if err := sent.Restore(whole(t, m)); err != nil {
			r.Fatal(err)
		}
		if d := gocmp.Diff(want, dump(t, sent)); d != "" {
			r.Fatalf("sent to another member:\n%s", d)
		}
		_ = m.Close()
		m = open(t, dirs[0])
		if snap != nil {
			if err := m.Restore(bytes.NewReader(snap)); err != nil {
				r.Fatal(err)
			}
		}
		if _, err := m.Apply(log); err != nil {
			r.Fatal(err)
		}
		if d := gocmp.Diff(want, dump(t, m)); d != "" {
			r.Fatalf("started again:\n%s", d)
		}
	})
}

func tempDir(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("%s/%d", t.TempDir(), rand.Uint64())
}

// TestTheSizeOfASnapshot does not depend on the bodies'.
func TestTheSizeOfASnapshot(t *testing.T) {
	m := open(t, t.TempDir())
	small := len(local(t, m))
	must[Job](t, m, submit(1, strings.Repeat("x", 100_000)))
	snap := local(t, m)
	if got := len(snap) - small; got > 500 {
		t.Errorf("a job of 100 kB makes the snapshot %d bytes larger", got)
	}
	if got := len(exportOf(t, m, snap)); got < 100_000 {
		t.Errorf("the exported snapshot has %d bytes", got)
	}
	if again := exportOf(t, m, exportOf(t, m, snap)); len(again) < 100_000 {
		t.Errorf("what was exported, and is exported again, has %d bytes", len(again))
	}
}

// TestAnExportGoesOnWhileItsFilesAreDropped: what a snapshot has can be sent until the end.
func TestAnExportGoesOnWhileItsFilesAreDropped(t *testing.T) {
	m := open(t, t.TempDir())
	must[Job](t, m, submit(1, "in"))
	snap := local(t, m)
	r, _, err := m.Export(io.NopCloser(bytes.NewReader(snap)), int64(len(snap)))
	if err != nil {
		t.Fatal(err)
	}
	must[Job](t, m, Cancel{queue.Cancel{At: 1000, Job: queue.ID{1}}})
	local(t, m) // a newer one, after which the file is not needed
	data, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	other := open(t, t.TempDir())
	if err := other.Restore(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	wantBody(t, other, 1, input, "in")
}

// TestBadSnapshots are refused.
func TestBadSnapshots(t *testing.T) {
	m := open(t, t.TempDir())
	must[Job](t, m, submit(1, "in"))
	must[any](t, m, partOf(1, 7, 9, 0, "three"))
	good, full := local(t, m), exportOf(t, m, local(t, m))
	if index, err := m.SnapshotIndex(bytes.NewReader(good)); err != nil || index != 2 {
		t.Errorf("index %d: %v", index, err)
	}
	for _, snap := range [][]byte{good, full} {
		for n := range snap {
			if err := open(t, t.TempDir()).Restore(bytes.NewReader(snap[:n])); err == nil {
				t.Fatalf("%d of %d bytes were restored", n, len(snap))
			}
		}
		if err := open(t, t.TempDir()).Restore(bytes.NewReader(append(slices.Clone(snap), 0))); err == nil {
			t.Error("a byte too many was restored")
		}
	}
	if err := open(t, t.TempDir()).Restore(bytes.NewReader(good)); !errors.Is(err, bodies.ErrDamaged) {
		t.Errorf("bodies that are not there: %v", err)
	}
	if _, _, err := m.Export(io.NopCloser(bytes.NewReader(good[:30])), 30); err == nil {
		t.Error("half of a snapshot was exported")
	}
}

func FuzzRestore(f *testing.F) {
	m := open(f, f.TempDir())
	must[Job](f, m, submit(1, "in"))
	must[any](f, m, partOf(1, 7, 9, 0, "three"))
	f.Add(local(f, m))
	f.Add(exportOf(f, m, local(f, m)))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := open(t, t.TempDir())
		if m.Restore(bytes.NewReader(data)) == nil {
			whole(t, m)
		}
	})
}

// TestAnEntryThatCannotBeRead stops the replica; one that was applied is skipped.
func TestAnEntryThatCannotBeRead(t *testing.T) {
	m := open(t, t.TempDir())
	must[Job](t, m, submit(1, "in"))
	again, err := Encode(submit(2, "in"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := m.Apply([]entry.Entry{{Index: 1, Term: 1, Data: again}}); err != nil || len(out) != 1 || out[0] != nil {
		t.Errorf("%v, %v", out, err)
	}
	if _, err := m.Apply([]entry.Entry{{Index: 2, Term: 1, Data: []byte("no command")}}); err == nil || m.Index() != 1 {
		t.Errorf("%v at %d", err, m.Index())
	}
}
