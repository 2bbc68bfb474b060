package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// loaded is a hello of a host that has much to say: images, GPUs, and a ledger of pods that run.
func (g *guest) loaded(pods int) *agentrpc.Hello {
	h := g.hello()
	h.Hardware, h.BootId = strings.Repeat("h", 32), strings.Repeat("b", 36)
	for i := range 200 {
		h.Inventory.Images = append(h.Inventory.Images, fmt.Sprintf("registry.example/team/project/image-%03d@sha256:%064d", i, i))
	}
	for i := range 8 {
		h.Inventory.Gpus = append(h.Inventory.Gpus, &agentrpc.GPU{Uuid: fmt.Sprintf("GPU-%032d", i), Type: "NVIDIA H100 80GB HBM3", MemoryMb: 81_559})
	}
	agentrpc.Seal(h.Inventory)
	for i := range pods {
		h.Pods = append(h.Pods, &agentrpc.LedgerPod{PodId: fmt.Sprintf("pod%011d", i), Incarnation: 1, Goal: "run", Need: &agentrpc.Resources{MilliCpu: 1000}})
	}
	return h
}

// greet begins a session as an agent does, and tells how often everything was asked for.
func (g *guest) greet(hello *agentrpc.Hello) (agentrpc.Link_SessionClient, func(), int) {
	g.Helper()
	ctx, cancel := context.WithCancel(g.ctx)
	stream, err := g.client.Session(ctx)
	check(g, err)
	counted := &counting{Link_SessionClient: stream}
	hello.Attempt++
	_, err = agentrpc.Greet(ctx, counted, hello, func() {})
	check(g, err)
	g.Cleanup(cancel)
	return stream, cancel, counted.hellos - 1
}

type counting struct {
	agentrpc.Link_SessionClient
	hellos int
}

func (c *counting) Send(up *agentrpc.Up) error {
	c.hellos++
	return c.Link_SessionClient.Send(up)
}

// sizes has what sessions propose counted by kind, in bytes of the log.
func (y *yard) sizes() (of func(kind string) int) {
	var mu sync.Mutex
	bytes := map[string]int{}
	y.spoil(func(cmd state.Command) error {
		data, err := state.Encode(cmd)
		mu.Lock()
		defer mu.Unlock()
		bytes[fmt.Sprintf("%T", cmd)] += len(data)
		return err
	})
	return func(kind string) int {
		mu.Lock()
		defer mu.Unlock()
		return bytes["state."+kind]
	}
}

// Ten thousand hosts that come back at once add less than 50 MB to the log: of what the state has already nothing is said again.
func TestAHostThatComesBackAddsLittleToTheLog(t *testing.T) {
	const hosts, most, pods = 10_000, 50 << 20, 8
	y := newYard(t)
	g := y.join("h1")
	size := y.sizes()
	hello := g.loaded(0)
	_, leave, asked := g.greet(hello)
	whole := size("ConnectHost")
	if asked != 1 || whole < 10_000 || len(g.host().Inventory.Images) != 200 {
		t.Fatalf("a new host was asked %d times for everything, and added %d bytes", asked, whole)
	}
	reports := &agentrpc.Reports{Sequence: 1}
	epoch := g.host().Epoch
	for i := range pods {
		id := fleet.PodID(fmt.Sprintf("pod%011d", i))
		g.do(state.CreatePods{Pods: []state.NewPod{{HostEpoch: epoch, Pod: fleet.Pod{
			ID: id, Account: "acme", Host: g.id, CreatedAt: time.Now(), Need: fleet.Resources{MilliCPU: 1000}, Spec: fleet.PodSpec{CPU: &fleet.CPURequest{VCPU: 1}, Image: "x"},
		}}}})
		now := time.Now().UnixNano()
		reports.Pods = append(reports.Pods, &agentrpc.PodReport{
			PodId: string(id), Incarnation: 1, Event: "running", AtNs: now, StepsNs: map[string]int64{"received": now, "pulled": now, "started": now, "reported": now},
		})
	}
	hello.Pods = g.loaded(pods).GetPods()
	told := func(stream agentrpc.Link_SessionClient) {
		check(t, stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Reports{Reports: reports}}))
		for kept := false; !kept; {
			msg, err := stream.Recv()
			check(t, err)
			kept = msg.GetReportsKept().GetSequence() == 1
		}
	}
	leave()
	first, leave, asked := g.greet(hello)
	told(first)
	if n := size("ReportPods"); asked != 0 || n == 0 {
		t.Fatalf("the pods were not recorded (%d bytes), or everything was asked for (%d times)", n, asked)
	}
	leave()

	before := g.host()
	for range 3 {
		connects, told0 := size("ConnectHost"), size("ReportPods")
		stream, leave, asked := g.greet(hello)
		told(stream)
		leave()
		connect, report := size("ConnectHost")-connects, size("ReportPods")-told0
		if asked != 0 || connect > 512 || report != 0 || hosts*(connect+report) > most {
			t.Errorf("asked %d times for everything, a session adds %d and %d bytes to the log", asked, connect, report)
		}
	}
	if now := g.host(); now.Epoch != before.Epoch+3 || len(now.Inventory.Images) != 200 || now.State != fleet.HostReady {
		t.Errorf("the host is %+v", now)
	}

	// Another inventory is told whole, and so is everything where the ledger counts.
	hello.Inventory.Images = hello.Inventory.Images[:100]
	agentrpc.Seal(hello.Inventory)
	_, leave, asked = g.greet(hello)
	if leave(); asked != 1 || len(g.host().Inventory.Images) != 100 {
		t.Errorf("asked %d times, and the host has %d images", asked, len(g.host().Inventory.Images))
	}
	y.soon("the session has ended", func() bool { return y.server.session("h1") == nil })
	g.do(state.SetHostState{Host: "h1", Epoch: g.host().Epoch, State: fleet.HostUnreachable, At: time.Now()}, state.FenceHost{Host: "h1", At: time.Now()})
	if _, _, asked = g.greet(hello); asked != 1 || len(g.host().Leftovers) == 0 {
		t.Errorf("a fenced host was asked %d times, and has %d leftovers", asked, len(g.host().Leftovers))
	}
}

// A queue of commands that takes nothing now ends no session, neither one that begins nor one that reports.
func TestAFullQueueEndsNoSession(t *testing.T) {
	y := newYard(t)
	g := y.join("h1")
	g.ready()
	g.crowd(0, 1, 0)
	var refused atomic.Int64
	y.spoil(func(cmd state.Command) error {
		if refused.Add(1)%5 != 0 {
			return &fleet.Error{Code: fleet.CodeUnavailable, Msg: "busy", NothingDone: true}
		}
		return nil
	})
	stream, _, _ := g.greet(g.hello())
	check(t, stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Reports{Reports: &agentrpc.Reports{
		Sequence: 7, Pods: []*agentrpc.PodReport{{PodId: "pod00000000000", Incarnation: 1, Event: "exited"}},
	}}}))
	for kept := false; !kept; {
		msg, err := stream.Recv()
		check(t, err)
		kept = msg.GetReportsKept().GetSequence() == 7
	}
	if refused.Load() < 5 {
		t.Error("nothing was refused")
	}
}

// A host that waits for its turn hears of it, keeps its place, and does not count as lost.
func TestAHostThatWaitsForItsTurnIsNotLost(t *testing.T) {
	y := newYard(t)
	g := y.join("h1")
	g.ready()
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)
	y.spoil(func(cmd state.Command) error {
		if _, ok := cmd.(state.ConnectHost); ok {
			<-held
		}
		return nil
	})
	stream, err := g.client.Session(y.ctx)
	check(t, err)
	beats := 0
	_, err = agentrpc.Greet(y.ctx, stream, g.hello(), func() {
		beats++
		y.server.mu.Lock()
		y.server.absent["h1"] = time.Now().Add(-time.Hour)
		y.server.mu.Unlock()
		if due := y.server.due(time.Now()); len(due) != 0 {
			t.Errorf("%v count as lost", due)
		}
		if beats == 3 {
			release()
		}
	})
	check(t, err)
	if beats < 3 {
		t.Errorf("%d beats", beats)
	}
}

// slowly commits after a moment, and counts how many do so at once.
type slowly struct {
	Proposer
	now, most atomic.Int64
}

func (s *slowly) Propose(context.Context, ...state.Command) ([]entry.Result, error) {
	n := s.now.Add(1)
	defer s.now.Add(-1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	time.Sleep(time.Millisecond)
	return []entry.Result{{}}, nil
}

// However many hosts come, they leave room in the queue of commands for others, and all have their turn.
func TestHostsTakeTurns(t *testing.T) {
	node := &slowly{}
	s := New(Config{Node: node, Log: slog.New(slog.DiscardHandler)})
	var all sync.WaitGroup
	var failed atomic.Int64
	for range 10_000 {
		all.Go(func() {
			if err := s.propose(t.Context(), state.ConnectHost{}); err != nil {
				failed.Add(1)
			}
		})
	}
	all.Wait()
	if failed.Load() > 0 || node.most.Load() > maxTurns || len(s.turns) != 0 {
		t.Errorf("%d failed, %d at once", failed.Load(), node.most.Load())
	}
}

// As long as hosts find a new leader the others are given time, though not for ever.
func TestHostsSettleWhileOthersCome(t *testing.T) {
	began := time.Unix(1000, 0)
	after := began.Add
	s := New(Config{Settle: 10 * time.Second, HostTimeout: 2 * time.Second})
	s.settled = newSettling(began, s.Settle, 0)
	s.absent["late"], s.absent["left"] = time.Time{}, after(time.Minute)
	due := func(at time.Duration) []fleet.HostID {
		s.settled.last = after(at) // it has looked all the time
		return s.due(after(at))
	}
	lost := func(at time.Duration) bool { return len(due(at)) == 1 }
	if lost(10*time.Second-1) || !lost(10*time.Second) {
		t.Error("not lost when all had their time")
	}
	for at := 5 * time.Second; at < 9*time.Second; at += time.Second {
		s.settled.came(after(at), s.HostTimeout)
	}
	if !lost(10*time.Second) || s.settled.by != after(10*time.Second) {
		t.Error("hosts that come early change something")
	}
	for at := 9 * time.Second; at < 28*time.Second; at += time.Second {
		if s.settled.came(after(at), s.HostTimeout); lost(at + time.Second) {
			t.Errorf("lost at %s, while others come", at)
		}
	}
	for at := 28 * time.Second; at < 40*time.Second; at += time.Second / 2 {
		s.settled.came(after(at), s.HostTimeout)
	}
	if !lost(30*time.Second) || lost(30*time.Second-1) {
		t.Errorf("lost by %s", s.settled.by.Sub(began))
	}
	if got := due(2 * time.Minute); len(got) != 2 {
		t.Errorf("%v are lost", got)
	}
}

// Ten thousand hosts that come one after the other, as fast as one core serves them, are none of them lost, and who is dead is soon
// after the last of them.
func TestTenThousandHostsSettle(t *testing.T) {
	const hosts, each = 10_000, 4 * time.Millisecond
	began := time.Unix(1000, 0)
	s := New(Config{})
	for i := range hosts {
		s.absent[fleet.HostID(fmt.Sprint(i))] = time.Time{}
	}
	s.absent["dead"] = time.Time{}
	s.settled = newSettling(began, s.Settle, len(s.absent))
	now := began.Add(9 * time.Second)
	for i := range hosts {
		now = now.Add(each)
		id := fleet.HostID(fmt.Sprint(i))
		if lost := s.due(now); len(lost) > 0 {
			t.Fatalf("after %s %d are lost, %d have come", now.Sub(began), len(lost), i)
		}
		s.settled.came(now, s.HostTimeout)
		s.sessions[id] = &session{}
		delete(s.absent, id)
	}
	s.due(now.Add(s.HostTimeout / 2))
	if lost := s.due(now.Add(s.HostTimeout)); len(lost) != 1 || lost[0] != "dead" {
		t.Errorf("lost when all the others had come: %v", lost)
	}
}

// A host that has begun its session gives the others time, also before it is welcomed.
func TestAHostAtTheDoorGivesOthersTime(t *testing.T) {
	s := New(Config{HostTimeout: time.Hour})
	s.lead = t.Context()
	now := time.Now()
	s.settled = newSettling(now, time.Minute, 1<<20)
	s.absent["h1"], s.absent["h2"] = time.Time{}, now
	for host, more := range map[fleet.HostID]bool{"h2": false, "h1": true} {
		by := s.settled.by
		if err := s.enter(t.Context(), &session{host: host}); err != nil || s.settled.by.After(by) != more {
			t.Errorf("%s: %v, %s more", host, err, s.settled.by.Sub(by))
		}
	}
}

// A scheduler that was itself halted for a while takes nobody for lost for that.
func TestTimeInWhichTheSchedulerStoodStillDoesNotCount(t *testing.T) {
	began := time.Unix(1000, 0)
	s := New(Config{HostTimeout: 2 * time.Second})
	s.settled = newSettling(began, 10*time.Second, 0)
	now := began.Add(time.Hour) // of the first look nobody knows how long it took
	for _, step := range []struct{ gap, more time.Duration }{
		{0, 0}, {200 * time.Millisecond, 0}, {time.Second, 0}, {8 * time.Second, 8 * time.Second}, {time.Second, 0},
	} {
		before := s.settled
		now = now.Add(step.gap)
		s.due(now)
		if by, most := s.settled.by.Sub(before.by), s.settled.most.Sub(before.most); by != step.more || most != step.more {
			t.Errorf("a look after %s gives hosts %s and %s more", step.gap, by, most)
		}
	}
}
