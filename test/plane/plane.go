// Package plane has a control plane in memory for tests of what stands on the scheduler's service: the REST
// face, the proxy, the command line. The service and the state machine are the real ones, over a file of the
// test's own; commands are applied at once instead of through a log of several members. Time stands still
// but for Advance, and the hosts are played by the test: Report, Log, Serve, SetLive. Nothing that a Plane
// holds outlives the test.
package plane

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler"
	"gantry/scheduler/balance"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// Start is the moment at which every Plane begins.
func Start() time.Time { return time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC) }

// Plane is a control plane. It is safe for concurrent use.
type Plane struct {
	*scheduler.Service

	t      testing.TB
	store  *state.Store
	sealer *pki.Sealer
	hosts  *hosts
	names  names

	members *members

	balancer *balance.Balancer // nil: there is none

	applying sync.Mutex // one command after the other

	mu          sync.Mutex
	now         time.Time
	down        bool
	cutSnapshot int // bytes after which a snapshot fails; 0: it does not
}

// New returns a control plane with three accounts, the keys that this package names, the default catalog,
// three schedulers, two data centers and a host in each: eight GPUs of SimGPU in the SECURE tier of "dev-1", two of
// CommunityGPU in the COMMUNITY tier of "dev-2". It ends with the test.
func New(t testing.TB) *Plane {
	t.Helper()
	dir := t.TempDir()
	if err := begin(t, dir); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

// open returns a plane on the files of a folder. It ends with the test.
func open(t testing.TB, dir string) *Plane {
	t.Helper()
	p := &Plane{t: t, now: Start(), hosts: newHosts(), names: newNames()}
	var err error
	if p.sealer, err = pki.LoadSealer(filepath.Join(dir, sealFile)); err != nil {
		t.Fatal(err)
	}
	if p.store, err = state.Open(filepath.Join(dir, stateFile), state.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.store.Close(); err != nil {
			t.Errorf("close state: %v", err)
		}
	})
	p.members = newMembers(p)
	p.Service = scheduler.New(scheduler.Config{
		Store: p.store, Node: node{p}, Dispatch: p.hosts, Storage: p.hosts, Sealer: p.sealer, Members: p.members, Clock: clock{p},
		Log: slog.New(slog.DiscardHandler), Now: p.Now, ProxyURL: "https://proxy.example.com:8443", S3URLs: map[string]string{"dev-1": "https://s3.example.com"},
	})
	return p
}

// Now returns the plane's time, which only Advance moves.
func (p *Plane) Now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// Advance moves the plane's time.
func (p *Plane) Advance(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = p.now.Add(d)
}

// SetDown makes every call answer unavailable, as without a leader, or not.
func (p *Plane) SetDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *Plane) up() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return &fleet.Error{
			Code: fleet.CodeUnavailable, Msg: "The control plane cannot take the request now. Please try again.", NothingDone: true,
		}
	}
	return nil
}

// Do applies a command that must succeed and returns its value.
func (p *Plane) Do(cmd state.Command) any {
	p.t.Helper()
	return p.do(cmd)[0].Value
}

// do applies commands that must succeed, at once.
func (p *Plane) do(cmds ...state.Command) []entry.Result {
	p.t.Helper()
	res, err := p.apply(cmds...)
	if err != nil {
		p.t.Fatal(err)
	}
	for i, cmd := range cmds {
		if res[i].Err != nil {
			p.t.Fatalf("%T: %v", cmd, res[i].Err)
		}
	}
	return res
}

// View reads the state.
func (p *Plane) View(fn func(*state.View)) {
	p.t.Helper()
	if err := p.store.View(func(v *state.View) error { fn(v); return nil }); err != nil {
		p.t.Fatal(err)
	}
}

// apply is what a log does with one entry.
func (p *Plane) apply(cmds ...state.Command) ([]entry.Result, error) {
	data, err := state.Encode(cmds...)
	if err != nil {
		return nil, fmt.Errorf("encode commands: %w", err)
	}
	p.applying.Lock()
	defer p.applying.Unlock()
	out, err := p.store.Apply([]entry.Entry{{Index: p.store.Index() + 1, Term: 1, Data: data}})
	if err != nil {
		return nil, fmt.Errorf("apply commands: %w", err)
	}
	for i, cmd := range cmds {
		if out[0][i].Err == nil {
			p.names.learn(cmd)
		}
	}
	return out[0], nil
}

// node commits at once.
type node struct{ p *Plane }

// Propose applies the commands, unless the plane is down.
func (n node) Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error) {
	if err := n.Barrier(ctx); err != nil {
		return nil, err
	}
	return n.p.apply(cmds...)
}

// Barrier has nothing to wait for: what was proposed is applied.
func (n node) Barrier(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return n.p.up()
}

// IsLeader reports whether the plane is up.
func (n node) IsLeader() bool { return n.p.up() == nil }
