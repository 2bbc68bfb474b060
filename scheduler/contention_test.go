package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

const clusterLimit = 2 * time.Minute

// cluster is a service on a real log of one member, with fsync.
type cluster struct {
	t     *testing.T
	svc   *Service
	node  *replica.Node
	store *state.Store
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	c := &cluster{t: t}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	seal := filepath.Join(dir, "seal.key")
	must(pki.NewSealKeyFile(seal))
	sealer, err := pki.LoadSealer(seal)
	must(err)
	must(replica.Create(dir))
	c.store, err = state.Open(filepath.Join(dir, replica.StateFile), state.Options{})
	must(err)
	c.node, err = replica.Open(replica.Config{
		Dir: dir, ID: "a", Address: "a", Store: c.store, Log: log,
		Fatal: func(err error) { t.Errorf("replica: %v", err) },
	})
	must(err)
	t.Cleanup(func() { must(errors.Join(c.node.Close(), c.store.Close())) })
	ctx, cancel := context.WithTimeout(t.Context(), clusterLimit)
	defer cancel()
	must(c.node.Bootstrap(ctx))
	led := errors.New("led")
	if err := c.node.WhileLeader(ctx, func(context.Context) error { return led }); !errors.Is(err, led) {
		t.Fatal(err)
	}
	c.svc = New(Config{Store: c.store, Node: c.node, Dispatch: &edge{}, Sealer: sealer, Log: log})
	ca, err := pki.NewCA(fleet.NewID(), time.Now())
	must(err)
	boot, err := Bootstrap(sealer, ca, time.Now())
	must(err)
	c.must(boot, state.PutAccount{Account: fleet.Account{ID: acme, Name: "Acme", CreatedAt: time.Now(), Limits: fleet.Limits{"runningPods": fleet.MaxLimit}}})
	return c
}

// must commits commands that are accepted, in one entry.
func (c *cluster) must(cmds ...state.Command) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), clusterLimit)
	defer cancel()
	res, err := c.node.Propose(ctx, cmds...)
	for _, r := range res {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// addHosts adds ready hosts.
func (c *cluster) addHosts(hosts, gpus int, opts ...hostOption) {
	c.t.Helper()
	now := time.Now()
	var cmds []state.Command
	for i := range hosts {
		id := fleet.HostID(fmt.Sprintf("host-%03d", i))
		inv := fleet.Inventory{Total: fleet.Resources{MilliCPU: 64_000, MemoryMB: 256_000, DiskGB: 2000}}
		for j := range gpus {
			inv.GPUs = append(inv.GPUs, fleet.GPU{UUID: fmt.Sprintf("%s-gpu-%d", id, j), Type: h100, MemoryMB: 80_000})
		}
		for _, o := range opts {
			o(&inv)
		}
		token := fleet.JoinToken{
			ID: fleet.TokenID("t-" + id), Hash: []byte("h"), DataCenter: "dc-1", Cloud: fleet.CloudSecure, ExpiresAt: now.Add(time.Hour),
		}
		cmds = append(cmds,
			state.PutToken{Token: token, At: now},
			state.JoinHost{Token: token.ID, Hash: token.Hash, Host: fleet.Host{ID: id, Name: string(id), MachineID: string(id), JoinedAt: now}, At: now},
			state.ConnectHost{Host: id, MachineID: string(id), BootID: "b", Inventory: inv, At: now})
	}
	c.must(cmds...)
}

// outcome is what one of many requests got.
type outcome struct {
	pod fleet.Pod
	err error
}

// together makes n requests at the same time.
func together(n int, ask func(i int) (fleet.PodView, error)) []outcome {
	out := make([]outcome, n)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			<-start
			view, err := ask(i)
			if out[i].err = err; view.Pod != nil {
				out[i].pod = *view.Pod
			}
		})
	}
	close(start)
	group.Wait()
	return out
}

func (c *cluster) createTogether(n int, req fleet.PodRequest) []outcome {
	return together(n, func(int) (fleet.PodView, error) {
		ctx, cancel := context.WithTimeout(c.t.Context(), clusterLimit)
		defer cancel()
		return c.svc.CreatePod(ctx, member(acme), req)
	})
}

// apart fails unless every request was granted, and no two pods share a GPU or a public port of a host.
func apart(t *testing.T, all []outcome) {
	t.Helper()
	seen := map[string]fleet.PodID{}
	hold := func(what string, pod fleet.PodID) {
		if other, ok := seen[what]; ok {
			t.Errorf("%s and %s both have %s", other, pod, what)
		}
		seen[what] = pod
	}
	for _, o := range all {
		if o.err != nil {
			t.Errorf("%v (%v)", o.err, fleet.CodeOf(o.err))
			continue
		}
		for _, uuid := range o.pod.GPUs {
			hold(uuid, o.pod.ID)
		}
		for _, m := range o.pod.Mappings {
			hold(fmt.Sprintf("%s:%d", o.pod.Host, m.Public), o.pod.ID)
		}
	}
}

// short counts the requests that were granted and those that were refused for want of room; any other
// answer fails.
func short(t *testing.T, all []outcome) (granted, refused int) {
	t.Helper()
	for _, o := range all {
		switch {
		case o.err == nil:
			granted++
		case fleet.CodeOf(o.err) == fleet.CodeNoCapacity:
			refused++
		default:
			t.Errorf("%v (%v)", o.err, fleet.CodeOf(o.err))
		}
	}
	return granted, refused
}

// TestManyCreatesAtOnce makes pods on an almost empty fleet, all at the same time.
func TestManyCreatesAtOnce(t *testing.T) {
	for _, n := range []int{20, 50, 100, 300} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := newCluster(t)
			c.addHosts(100, 8)
			apart(t, c.createTogether(n, gpuPod(1)))
		})
	}
}

// TestEveryGPUAtOnce asks for all that there is, and for more.
func TestEveryGPUAtOnce(t *testing.T) {
	c := newCluster(t)
	c.addHosts(20, 8)
	granted, refused := short(t, c.createTogether(200, gpuPod(1)))
	if granted != 160 || refused != 40 {
		t.Errorf("%d granted and %d refused, want 160 and 40", granted, refused)
	}
}

// TestLastGPUAtOnce has one GPU for fifty.
func TestLastGPUAtOnce(t *testing.T) {
	c := newCluster(t)
	c.addHosts(1, 8)
	apart(t, c.createTogether(7, gpuPod(1)))
	granted, refused := short(t, c.createTogether(50, gpuPod(1)))
	if granted != 1 || refused != 49 {
		t.Errorf("%d granted and %d refused, want 1 and 49", granted, refused)
	}
}

// TestManyStartsAtOnce starts stopped pods, all at the same time.
func TestManyStartsAtOnce(t *testing.T) {
	const n = 60
	c := newCluster(t)
	c.addHosts(10, 8)
	made := c.createTogether(n, gpuPod(1))
	apart(t, made)
	for i := range made {
		p := made[i].pod
		c.must(state.ReportPods{Host: p.Host, Epoch: 1, At: time.Now(), Reports: []state.PodReport{{
			Pod: p.ID, Incarnation: p.Incarnation, Event: fleet.EventExited, At: time.Now(),
		}}})
	}
	apart(t, together(n, func(i int) (fleet.PodView, error) {
		return c.svc.ActPod(t.Context(), member(acme), made[i].pod.ID, fleet.ActionStart)
	}))
}

// TestPublicPortsAtOnce has as many public ports as pods that want one.
func TestPublicPortsAtOnce(t *testing.T) {
	c := newCluster(t)
	c.addHosts(4, 0, publicPorts(30_000, 30_009))
	req := cpuPod(2)
	req.Ports = []fleet.Port{tcp(22)}
	all := c.createTogether(40, req)
	apart(t, all)
	_, err := c.svc.CreatePod(t.Context(), member(acme), req)
	refused(t, err, fleet.CodeNoCapacity, "")
}
