package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/sleep"
)

const (
	logTailLines = 20
	defaultGrace = 10 * time.Second
	killTimeout  = 30 * time.Second
	lastTimeout  = 5 * time.Second
	pidsPerCPU   = 2048 // processes and threads that a pod may have for each of its processors
	pidsLeast    = 4096
	pidsMost     = 65536
	shmLeastMB   = 64
	slotMost     = 5 * time.Second // that a pod with a network volume has a slot
)

// do carries out one step. effect ends when a new order makes the step pointless; ctx ends with the
// agent. Steps that are short listen to neither, so that they are not torn in half: when the agent
// ends, they get lastTimeout to finish.
func (m *machine) do(effect, ctx context.Context, s Step, want Assignment, see Seen) error {
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), effectTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastTimeout, cancel) })
	defer stop()
	switch s {
	case StepIdle, StepRefuse:
		if s == StepIdle && see.Record.ended(want.Incarnation) { // its network may have gone without this agent
			if err := m.leaveFabric(short); err != nil {
				return err
			}
		}
		m.Reports.Activity(m.id, "", 0, 0)
		if m.volume.lost >= detachTries {
			_, _ = sleep.Or(ctx, detachLater, m.wake)
			m.volume.lost = 0
			return nil
		}
		m.idle(ctx)
		return nil
	case StepFreeze:
		return m.freeze(short, want)
	case StepThaw:
		return m.thaw(short, want)
	case StepWatch:
		return m.watch(effect, want, see)
	case StepReport:
		m.report(see.Record.Ended)
		return nil
	case StepPull:
		return m.pull(effect, want)
	case StepModels:
		return m.getModels(effect, want)
	case StepNetwork:
		return m.network(short, want, see)
	case StepDefine:
		if err := m.attach(effect, want); err != nil {
			return err
		}
		return m.define(short, want)
	case StepTask:
		if err := m.attach(effect, want); err != nil { // again: the host may have been rebooted since
			return err
		}
		if _, err := m.fabric(short, want, true); err != nil {
			return err
		}
		starting, done := m.starting(short, want)
		defer done()
		return m.task(starting, want)
	case StepStart:
		starting, done := m.starting(short, want)
		defer done()
		return m.start(starting, want, see)
	case StepTerm:
		return m.terminate(effect, want, see)
	case StepEnd:
		return m.end(want, see)
	case StepReboot:
		return m.ended(Ended{Incarnation: want.Incarnation, Event: fleet.EventReboot, At: time.Now()})
	case StepLost:
		return m.ended(Ended{
			Incarnation: want.Incarnation, Event: fleet.EventFailed, At: time.Now(),
			Reason: "the container disappeared from its host", LogFrom: m.steps[fleet.StepReceived],
		})
	case StepRemove:
		m.Logs.System(m.id, "remove container "+string(m.id))
		m.ending(want)
		return m.Runtime.Remove(short, m.id)
	case StepDetach:
		return m.detach(short)
	case StepUnlink:
		if m.Gate != nil {
			m.Gate.Close(m.id)
		}
		if err := m.leaveFabric(short); err != nil {
			return err
		}
		return m.Network.Release(short, m.id)
	case StepForget:
		return m.forget(short, ctx, want)
	}
	return fmt.Errorf("step %q is not known", s)
}

// starting returns a context that ends with ctx, and with ErrUnwanted once the order is another than the one that the
// step works for. The caller calls done at its end.
func (m *machine) starting(ctx context.Context, want Assignment) (_ context.Context, done func()) {
	ctx, abandon := context.WithCancelCause(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.abandon = abandon
	if m.want.otherThan(want) {
		abandon(ErrUnwanted)
	}
	return ctx, func() {
		abandon(nil)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.abandon = nil
	}
}

// otherThan reports whether what is to run differs.
func (a Assignment) otherThan(b Assignment) bool {
	return a.Goal != b.Goal || a.Incarnation != b.Incarnation
}

// mark notes when a step of the start was reached.
func (m *machine) mark(s fleet.Step) { m.steps[s] = time.Now() }

func (m *machine) stepsCopy() map[fleet.Step]time.Time {
	out := make(map[fleet.Step]time.Time, len(m.steps))
	for k, v := range m.steps {
		out[k] = v
	}
	return out
}

func (m *machine) pull(ctx context.Context, want Assignment) error {
	ctx, cancel := context.WithDeadline(ctx, m.since.Add(startLimit))
	defer cancel()
	if waited, err := m.imported(ctx); waited || err != nil {
		return err
	}
	m.mark(fleet.StepPulling)
	begun := m.steps[fleet.StepPulling]
	m.Logs.System(m.id, "pull image "+want.Image)
	const pulling = "pulling image"
	if m.trouble == "" {
		m.Reports.Activity(m.id, pulling, 0, 0)
	} else { // a registry that does not answer takes long not to
		m.Reports.Activity(m.id, again(m.trouble), 0, 0)
	}
	delete(m.steps, fleet.StepDownloaded) // of an earlier try
	digest, err := m.Runtime.Pull(ctx, imageOf(want), want.Registry, func(done, total int64) {
		if total > 0 && done == total { // the last time counts: the total is known bit by bit
			m.mark(fleet.StepDownloaded)
		}
		if done > 0 || m.trouble == "" {
			m.Reports.Activity(m.id, pulling, done, total)
		}
	})
	if err != nil {
		err = pinLost(err, want)
		var e *Error
		if errors.As(err, &e) {
			m.Logs.System(m.id, "error pulling image: "+e.Sentence)
		}
		if e != nil && e.Class == Retry && ctx.Err() == nil { // nothing that the owner is to be charged for
			m.wait(want, begun)
		}
		return err
	}
	m.digest = digest
	m.mark(fleet.StepPulled)
	return nil
}

// wait reports, once per incarnation, that its image or a model cannot be had since an attempt that began then. The next report, of the container
// that is made once it can, ends that.
func (m *machine) wait(want Assignment, since time.Time) {
	if m.waits {
		return
	}
	m.waits = true
	r := m.observed(want, fleet.EventWaiting)
	r.At = since
	m.Reports.Report(r)
}

// imported waits for the images that the host's operator brought along, and reports whether it had to: the order's may
// be among them.
func (m *machine) imported(ctx context.Context) (bool, error) {
	if m.Imported == nil {
		return false, nil
	}
	select {
	case <-m.Imported:
		return false, nil
	default:
	}
	m.Reports.Activity(m.id, "waits until the host has loaded its image archives", 0, 0)
	select {
	case <-m.Imported:
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

func (m *machine) network(ctx context.Context, want Assignment, see Seen) error {
	if !see.Record.Addr.IsValid() {
		return &Error{Class: Fatal, Sentence: "the host has no network address left for the pod"}
	}
	if m.steps[fleet.StepPulled].IsZero() {
		m.mark(fleet.StepPulled)
	}
	m.Reports.Activity(m.id, "making the network", 0, 0)
	if err := m.Network.Ensure(ctx, m.id, m.attachment(want, see.Record.Addr)); err != nil {
		return &Error{Class: Retry, Sentence: "the pod's network could not be made", Err: err}
	}
	m.mark(fleet.StepNetworked)
	return nil
}

// LinkAt is how the order has the pod with that address connected. of is IDBase of Deps.
func (a Assignment) LinkAt(addr netip.Addr, of func(addr netip.Addr) uint32) Link {
	return Link{Addr: addr, IDBase: a.IDBase(of, addr), Ports: a.Mappings, Account: a.Account, Overlays: a.Overlays}
}

// attachment is how the order has the pod connected.
func (m *machine) attachment(want Assignment, addr netip.Addr) Link {
	return want.LinkAt(addr, m.IDBase)
}

func (m *machine) define(ctx context.Context, want Assignment) error {
	m.Reports.Report(m.observed(want, fleet.EventStarting))
	m.Reports.Activity(m.id, "creating the container", 0, 0)
	if err := m.Logs.Prepare(m.id); err != nil {
		return err
	}
	m.Logs.System(m.id, "create container "+want.Image)
	spec, err := m.containerSpec(ctx, want)
	if err != nil {
		return err
	}
	return m.inSlot(ctx, want, func() error {
		if err := m.Runtime.Define(ctx, spec); err != nil {
			m.digest = "" // the image may be gone: ask again
			return err
		}
		m.mark(fleet.StepDefined)
		return nil
	})
}

func (m *machine) task(ctx context.Context, want Assignment) error {
	return m.inSlot(ctx, want, func() error {
		if err := m.Runtime.Task(ctx, m.id); err != nil {
			return err
		}
		m.mark(fleet.StepTasked)
		return nil
	})
}

// start writes down that the incarnation may run before it runs, so that it never runs twice.
func (m *machine) start(ctx context.Context, want Assignment, see Seen) error {
	if err := m.limit(ctx, want, see.Container.PID, m.volume.of == want.Incarnation); err != nil {
		return m.volumeTrouble(err)
	}
	if err := m.open(want, want.Incarnation, true); err != nil {
		return err
	}
	if err := m.begun(want); err != nil {
		return fmt.Errorf("write the start down: %w", err)
	}
	m.Logs.System(m.id, "start container for "+want.Image+": begin")
	at, err := m.Runtime.Start(ctx, m.id)
	if err != nil {
		return err
	}
	if at.IsZero() { // it has ended already, or began before a crash that nobody timed
		at = time.Now()
	}
	m.steps[fleet.StepStarted] = at
	m.tellRunning(want, at)
	return nil
}

// tellRunning reports a running process once per incarnation and agent life.
func (m *machine) tellRunning(want Assignment, started time.Time) {
	if m.toldRun == want.Incarnation {
		return
	}
	m.toldRun = want.Incarnation
	m.Reports.Activity(m.id, "", 0, 0)
	r := m.observed(want, fleet.EventRunning)
	if !started.IsZero() {
		r.At = started
	}
	m.Reports.Report(r)
}

func (m *machine) observed(want Assignment, event fleet.Trigger) Report {
	return Report{
		Pod: m.id, Incarnation: want.Incarnation, Event: event, At: time.Now(),
		Steps: m.stepsCopy(), Digest: m.digest,
	}
}

// watch waits until the process has ended or the order has changed.
func (m *machine) watch(effect context.Context, want Assignment, see Seen) error {
	m.tellRunning(want, see.Container.StartedAt)
	if err := m.open(want, want.Incarnation, false); err != nil {
		return err
	}
	ctx := effect
	if err := m.limit(effect, want, see.Container.PID, false); err != nil {
		m.Log.Warn("change the pod's access to its network volume; will retry", "in", accessAgain, "err", err)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(effect, accessAgain)
		defer cancel()
	}
	err := m.Runtime.Wait(ctx, m.id)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// report tells how an incarnation ended, after its container is gone: only then is its log whole.
func (m *machine) report(e *Ended) {
	m.told = e.Incarnation
	m.Reports.Activity(m.id, "", 0, 0)
	tail := ""
	if e.Event == fleet.EventFailed {
		tail = m.Logs.Tail(m.id, logTailLines, e.LogFrom)
	}
	m.Reports.Report(Report{
		Pod: m.id, Incarnation: e.Incarnation, Event: e.Event, Reason: e.Reason, ExitCode: e.ExitCode,
		At: e.At, LogTail: tail, Digest: m.digest, Steps: m.stepsCopy(),
	})
}

// forget removes the last traces and reports the pod gone. When the scheduler still lists it, the machine
// waits until it is taken off the list; one that it does not list is forgotten.
func (m *machine) forget(short, ctx context.Context, want Assignment) error {
	if rec, known := m.Ledger.Record(m.id); known && rec.Assignment.Goal != fleet.GoalGone {
		return errSuperseded // it was assigned to this host again
	}
	// Also when there is no container: a crash may have left its snapshot.
	if err := m.Runtime.Remove(short, m.id); err != nil {
		return err
	}
	if err := m.leaveFabric(short); err != nil {
		return err
	}
	if m.Gate != nil {
		m.Gate.Forget(m.id)
	}
	// Others may have its GPUs from here on, however long its data takes to go.
	rec, known := m.Ledger.Record(m.id)
	if known && rec.Assignment.Goal != fleet.GoalGone {
		return errSuperseded // it was assigned again meanwhile: its log and its files are the new incarnation's, too
	}
	if known && !rec.ended(want.Incarnation) {
		if err := m.ended(Ended{Incarnation: want.Incarnation, Event: fleet.EventExited, At: time.Now()}); err != nil {
			return fmt.Errorf("write how the pod ended: %w", err)
		}
	}
	if rec.Orphan && rec.KeepLog {
		m.Logs.Leave(m.id)
		m.toldGone = true // its end was told; the pod is not gone, but elsewhere
	} else if err := m.Logs.Remove(m.id); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(m.Dir, string(m.id))); err != nil {
		return err
	}
	// Last, and only here: nothing of the container is left that could still use it. It may be large,
	// so it ends with the agent alone, and the next agent goes on.
	if err := m.dropData(ctx); err != nil {
		return err
	}
	if rec, ok := m.Ledger.Record(m.id); !ok || rec.Orphan {
		m.gone = true
		m.Reports.Forget(m.id)
		if err := m.Ledger.Forget(m.id); err != nil {
			return err
		}
		if _, again := m.Ledger.Record(m.id); !again && !m.toldGone {
			m.reportGone(want)
		}
		return nil
	}
	m.Reports.Activity(m.id, "", 0, 0)
	m.reportGone(want)
	m.toldGone = true
	m.idle(ctx)
	return nil
}

func (m *machine) reportGone(want Assignment) {
	m.Reports.Report(Report{Pod: m.id, Incarnation: want.Incarnation, Event: EventGone, At: time.Now()})
}

// inSlot bounds how many containers are made at once on the host. What takes longest for a pod with a network volume
// waits for a server that died in this moment: it does not keep others from being made.
func (m *machine) inSlot(ctx context.Context, want Assignment, f func() error) error {
	select {
	case m.Slots <- struct{}{}:
	case <-ctx.Done():
		return &Error{Class: Retry, Sentence: "the host is busy starting other pods", Err: ctx.Err()}
	}
	leave := sync.OnceFunc(func() { <-m.Slots })
	defer leave()
	if want.Volume != nil {
		defer time.AfterFunc(slotMost, leave).Stop()
	}
	return f()
}
