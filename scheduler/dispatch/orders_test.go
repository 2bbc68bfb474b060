package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// An order to stop or remove a pod holds nothing that only a start needs.
func TestAnOrderHoldsWhatItsGoalNeeds(t *testing.T) {
	x := &session{server: New(Config{
		Grace: 10 * time.Second,
		Credentials: func(fleet.AccountID, fleet.RegistryID) (*fleet.Credential, error) {
			return &fleet.Credential{Password: "p"}, nil
		},
	})}
	p := fleet.Pod{
		ID: "p1", Account: "a", Incarnation: 2, Generation: 3, GPUs: []string{"g"}, Mappings: []fleet.PortMapping{{Private: 22, Public: 30_001}},
		DataCenter: "dc-1", Need: fleet.Resources{MilliCPU: 1000, DiskGB: 30},
		Spec: fleet.PodSpec{
			Name: "n", Image: "i", Args: "secret args", Env: map[string]string{"A": "B"}, DiskGB: 10, Registry: "r",
			Ports: []fleet.Port{{Number: 22, Protocol: "tcp"}}, Persistent: &fleet.PersistentMount{SizeGB: 20, Path: "/workspace"},
		},
	}
	at := []*agentrpc.OverlayPlace{{OverlayId: "o"}}
	for goal, image := range map[fleet.Goal]string{fleet.GoalStop: "i", fleet.GoalGone: ""} {
		p.Goal = goal
		want := &agentrpc.Assignment{
			PodId: "p1", AccountId: "a", Incarnation: 2, Generation: 3, Goal: string(goal), Name: "n", Image: image, DiskGb: 10, PersistentGb: 20,
			DataCenter: "dc-1", GraceMs: 10_000, Limits: &agentrpc.Resources{MilliCpu: 1000, DiskGb: 30}, Overlays: at,
		}
		if d := cmp.Diff(want, x.order(&p, at), protocmp.Transform()); d != "" {
			t.Errorf("%s: %s", goal, d)
		}
	}
	p.Goal = fleet.GoalRun
	got := x.order(&p, at)
	if got.GetEnv()["A"] != "B" || got.GetArgs() != "secret args" || got.GetRegistry().GetPassword() != "p" || len(got.GetGpus())+len(got.GetPorts()) != 2 {
		t.Errorf("to run: %v", got)
	}
}

// A member of a cluster is told what it finds in its container; no other pod is, and none that is only to stop.
func TestAnOrderOfAMemberHoldsItsSetup(t *testing.T) {
	var said safeBuffer
	fails := errors.New("sealed")
	x := &session{server: New(Config{
		Log: slog.New(slog.NewTextHandler(&said, nil)),
		Member: func(p *fleet.Pod) (*fleet.MemberSetup, error) {
			if p.ID == "p2" {
				return nil, fails
			}
			return &fleet.MemberSetup{Hostname: "node-3", Hosts: "h", Files: []fleet.PodFile{{Path: "/k", Text: "secret key", Mode: 0o600}}}, nil
		},
	})}
	member := fleet.Pod{ID: "p1", Goal: fleet.GoalRun, Owner: fleet.ClusterID("c1").Owner()}
	want := &agentrpc.MemberSetup{Hostname: "node-3", Hosts: "h", Files: []*agentrpc.PodFile{{Path: "/k", Text: []byte("secret key"), Mode: 0o600}}}
	if d := cmp.Diff(want, x.order(&member, nil).GetMember(), protocmp.Transform()); d != "" {
		t.Error(d)
	}
	other, stopped, broken := member, member, member
	other.Owner, stopped.Goal, broken.ID = fleet.Owner{}, fleet.GoalStop, "p2"
	for _, p := range []*fleet.Pod{&other, &stopped, &broken} {
		if got := x.order(p, nil).GetMember(); got != nil {
			t.Errorf("%+v is told %v", p, got)
		}
	}
	if text := said.String(); strings.Contains(text, "secret key") || !strings.Contains(text, "sealed") {
		t.Errorf("said %s", text)
	}
}

// What no host takes is not sent: its pod fails by itself, and the session goes on.
func TestAnOrderThatIsTooLargeIsRefusedByItself(t *testing.T) {
	var said safeBuffer
	x := &session{server: New(Config{
		Log: slog.New(slog.NewTextHandler(&said, nil)),
		Environment: func(*fleet.Pod) (map[string]string, error) {
			return map[string]string{"A": strings.Repeat("x", maxOrder)}, nil
		},
	})}
	got := x.order(&fleet.Pod{ID: "p1", Goal: fleet.GoalRun, Spec: fleet.PodSpec{Image: "i"}}, nil)
	if got.GetRefused() == "" || proto.Size(got) > 1000 || got.GetImage() != "i" || !strings.Contains(said.String(), "too large") {
		t.Errorf("got %v, and said %s", got, said.String())
	}
}

// raw begins a session that takes messages as large as they may be, and returns the first message after the welcome on.
func (g *guest) raw() (agentrpc.Link_SessionClient, *agentrpc.Welcome) {
	g.Helper()
	conf, err := agentrpc.HostClientTLS(g.certs(pki.RoleHost, string(g.id)))
	check(g, err)
	conn, err := grpc.NewClient("passthrough:///"+g.addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxDown)))
	check(g, err)
	g.Cleanup(func() { check(g, conn.Close()) })
	ctx, cancel := context.WithCancel(g.ctx)
	g.Cleanup(cancel)
	stream, err := agentrpc.NewLinkClient(conn).Session(ctx)
	check(g, err)
	check(g, stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: g.hello()}}))
	for {
		msg, err := stream.Recv()
		check(g, err)
		if w := msg.GetWelcome(); w != nil {
			return stream, w
		}
	}
}

func (g *guest) hello() *agentrpc.Hello {
	return &agentrpc.Hello{
		MachineId: "m-" + string(g.id), BootId: "b", Run: fleet.NewID(), Inventory: &agentrpc.Inventory{
			Total: &agentrpc.Resources{MilliCpu: 640_000, MemoryMb: 64_000, DiskGb: 1000},
		},
	}
}

// crowd makes pods on the host that each have nearly the largest environment; of the first ones some are stopped.
func (g *guest) crowd(from, pods, stopped int) {
	g.Helper()
	env := map[string]string{}
	for i := range 33 {
		env[fmt.Sprintf("V%d", i)] = strings.Repeat("x", 31_500)
	}
	epoch := g.host().Epoch
	for i := from; i < from+pods; i++ {
		id := fleet.PodID(fmt.Sprintf("pod%011d", i))
		g.do(state.CreatePods{Pods: []state.NewPod{{HostEpoch: epoch, Pod: fleet.Pod{
			ID: id, Account: "acme", Host: g.id, CreatedAt: time.Now(), Need: fleet.Resources{MilliCPU: 1000},
			Spec: fleet.PodSpec{CPU: &fleet.CPURequest{VCPU: 1}, Image: "x", Env: env},
		}}}})
		if i < from+stopped {
			g.do(
				state.ActPod{Account: "acme", Pod: id, Action: fleet.ActionStop, At: time.Now()},
				state.ReportPods{Host: g.id, Epoch: epoch, At: time.Now(), Reports: []state.PodReport{{Pod: id, Incarnation: 1, Event: fleet.EventExited}}},
			)
		}
	}
}

// host returns the host's record.
func (g *guest) host() (h fleet.Host) {
	g.Helper()
	check(g, g.store.View(func(v *state.View) error { h, _ = v.Host(g.id); return nil }))
	return h
}

// ready makes the host one that has connected.
func (g *guest) ready() {
	g.Helper()
	g.do(state.ConnectHost{Host: g.id, MachineID: "m-" + string(g.id), BootID: "b", At: time.Now(), Inventory: fleet.Inventory{
		Total: fleet.Resources{MilliCPU: 640_000, MemoryMB: 64_000, DiskGB: 1000},
	}})
}

// However many pods of a host have large environments, no message to it is large, and it speaks and is heard between the parts.
func TestAHostGetsASetOfAnySizeInParts(t *testing.T) {
	y := newYard(t)
	g := y.join("h1")
	g.ready()
	const pods, stopped = 40, 20
	g.crowd(0, pods, stopped)
	stream, _ := g.raw()
	var parts agentrpc.Parts
	messages, last := 0, time.Time{}
	whole := func(ok func(*agentrpc.Down) bool) *agentrpc.Down {
		for {
			msg, err := stream.Recv()
			check(t, err)
			messages++
			if size := proto.Size(msg); size > maxDown {
				t.Fatalf("a message has %d bytes", size)
			}
			check(t, stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Heartbeat{Heartbeat: &agentrpc.Heartbeat{}}}))
			last = time.Now()
			msg, err = parts.Add(msg)
			check(t, err)
			if ok(msg) {
				return msg
			}
		}
	}
	full := whole(func(m *agentrpc.Down) bool { return m.GetFull() != nil }).GetFull()
	heard := y.server.session("h1")
	runs := slices.DeleteFunc(slices.Clone(full.GetAssignments()), func(a *agentrpc.Assignment) bool { return a.GetGoal() != "run" })
	ids := map[string]bool{}
	for _, a := range full.GetAssignments() {
		if ids[a.GetPodId()] = true; a.GetGoal() == "run" != (len(a.GetEnv()) == 33) {
			t.Errorf("an order to %s has an environment of %d", a.GetGoal(), len(a.GetEnv()))
		}
	}
	if full.GetGeneration() != g.host().Generation || len(runs) != pods-stopped || len(ids) != len(full.GetAssignments()) || messages < pods-stopped {
		t.Errorf("generation %d of %d pods, %d of them run, in %d messages", full.GetGeneration(), len(ids), len(runs), messages)
	}
	y.soon("what the host says between parts is heard", func() bool { return heard.lastSeen.Load() >= last.Add(-time.Second).UnixNano() })

	// A difference as large as that comes in parts, too.
	before := g.host().Generation
	func() {
		y.server.mu.Lock() // nobody is told meanwhile
		defer y.server.mu.Unlock()
		defer func() { heard.lastSeen.Store(time.Now().UnixNano()) }() // it was the test that said nothing
		g.crowd(pods, 8, 0)
	}()
	put := 0
	for generation := before; put < 8; {
		d := whole(func(m *agentrpc.Down) bool { return m.GetDifference() != nil }).GetDifference()
		if d.GetFrom() != generation {
			t.Fatalf("a difference from %d after generation %d", d.GetFrom(), generation)
		}
		generation, put = d.GetTo(), put+len(d.GetPut())
	}
	if put != 8 || parts != (agentrpc.Parts{}) {
		t.Errorf("%d pods, and of a message came no end", put)
	}
}

// A set that is asked for anew while one is under way begins anew.
func TestASetBeginsAnewWhenItIsAskedForAgain(t *testing.T) {
	y := newYard(t)
	g := y.join("h1")
	g.ready()
	g.crowd(0, 12, 0)
	x := newSession(y.server, "h1", &agentrpc.Hello{}, nil)
	msg := func() *agentrpc.Down {
		for {
			m, err := x.next()
			check(t, err)
			if m.GetFull() != nil {
				return m
			}
		}
	}
	var parts agentrpc.Parts
	for range 3 {
		_, err := parts.Add(msg())
		check(t, err)
	}
	x.fullNext, x.due, x.orders = true, nil, nil // as the sending goroutine does
	for {
		m, err := parts.Add(msg())
		check(t, err)
		if m.GetFull() != nil {
			if n := len(m.GetFull().GetAssignments()); n != 12 {
				t.Errorf("%d pods", n)
			}
			return
		}
	}
}

// Lists of private networks and storage are cut, and joined they are what they were.
func TestLargeListsAreCut(t *testing.T) {
	overlay := &agentrpc.OverlayChange{OverlayId: "o", AccountId: "a", Vni: 7, Cidr: "10.0.0.0/8", From: 1, To: 2}
	peers, storage := &agentrpc.PeerChange{Full: true}, &agentrpc.StorageSet{}
	for i := range 20_000 {
		text := fmt.Sprintf("%030d", i)
		overlay.Put = append(overlay.Put, &agentrpc.OverlayMember{Addr: "10.0.0.1", PodId: text, Name: text, HostId: text})
		overlay.Gone = append(overlay.Gone, text)
		peers.Put = append(peers.Put, &agentrpc.HostPeer{HostId: text, TunnelAddr: "10.0.0.1", PublicKey: text + text})
	}
	for range 2 {
		root := &agentrpc.StorageRoot{Backend: &agentrpc.VolumeBackend{Id: fleet.NewID(), Kind: "nfs"}, Fresh: true}
		for i := range 10_000 {
			root.Volumes = append(root.Volumes, &agentrpc.StorageVolume{VolumeId: fmt.Sprintf("%014d", i), Dir: fmt.Sprintf("%026d", i), SizeGb: 10})
		}
		storage.Roots = append(storage.Roots, root)
	}
	for name, msg := range map[string]*agentrpc.Down{
		"overlay": {Kind: &agentrpc.Down_Overlay{Overlay: overlay}}, "peers": {Kind: &agentrpc.Down_Peers{Peers: peers}},
		"storage": {Kind: &agentrpc.Down_Storage{Storage: storage}}, "few peers": {Kind: &agentrpc.Down_Peers{Peers: &agentrpc.PeerChange{Full: true}}},
		"no work": {Kind: &agentrpc.Down_Storage{Storage: &agentrpc.StorageSet{}}},
	} {
		before := proto.Clone(msg)
		var parts agentrpc.Parts
		var joined *agentrpc.Down
		for _, part := range cut(msg) {
			if size := proto.Size(part); size > 2*partSize {
				t.Errorf("%s: a part has %d bytes", name, size)
			}
			var err error
			joined, err = parts.Add(part)
			check(t, err)
		}
		if name == "storage" { // the agent joins these roots
			one := map[string]*agentrpc.StorageRoot{}
			for _, r := range joined.GetStorage().GetRoots() {
				if have := one[r.GetBackend().GetId()]; have != nil {
					have.Volumes = append(have.Volumes, r.GetVolumes()...)
				} else {
					one[r.GetBackend().GetId()] = r
				}
			}
			joined = &agentrpc.Down{Kind: &agentrpc.Down_Storage{Storage: &agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{
				one[storage.GetRoots()[0].GetBackend().GetId()], one[storage.GetRoots()[1].GetBackend().GetId()],
			}}}}
		}
		if joined.Part, joined.More = 0, false; !proto.Equal(joined, before) || !proto.Equal(msg, before) {
			t.Errorf("%s: joined it is another message", name)
		}
	}
}
