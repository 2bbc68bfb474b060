package netctl

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// FakeKernel keeps the networks of several instances in memory. It is for tests
// of whoever drives a Controller. Safe for concurrent use.
type FakeKernel struct {
	mu    sync.Mutex
	hosts map[string]*fakeHost
	fail  func(verb, pod string) error
}

type fakeHost struct {
	config Config          // bridge and the complete pods
	half   map[string]bool // pods whose build was cut off
	steps  int             // effects on the kernel so far
}

// NewFakeKernel returns an empty kernel.
func NewFakeKernel() *FakeKernel { return &FakeKernel{hosts: map[string]*fakeHost{}} }

// FailWith makes every effect ask f first: an error cuts the effect off half-way
// and is returned by the verb. Verbs are host, add, remove. nil ends it.
func (k *FakeKernel) FailWith(f func(verb, pod string) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = f
}

// String prints all instances, by name.
func (k *FakeKernel) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for name := range k.hosts {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		host := k.hosts[name]
		if host.config.Subnet.IsValid() {
			b.WriteString(host.config.String())
		}
		for _, id := range sortedKeys(host.half) {
			fmt.Fprintf(&b, "half %s\n", NamespaceName(name, id))
		}
	}
	return b.String()
}

// Fake is a Controller over a FakeKernel. A new Fake on the same kernel stands
// for the successor of a crashed agent.
type Fake struct {
	kernel   *FakeKernel
	instance string

	mu    sync.Mutex
	set   bool              // Set has succeeded in this process
	gates map[string]string // of ListenIn
}

var _ Controller = (*Fake)(nil)

// NewFake returns a controller for one instance on the kernel.
func NewFake(k *FakeKernel, instance string) *Fake { return &Fake{kernel: k, instance: instance} }

// ListenIn stands for kernel.ListenIn: it listens on loopback, at a port of its own; see Listens.
func (f *Fake) ListenIn(namespace, address string) (net.Listener, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0") //nolint:noctx // nothing of it waits
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gates == nil {
		f.gates = map[string]string{}
	}
	f.gates[namespace+" "+address] = l.Addr().String()
	return l, nil
}

// Listens returns where on this machine ListenIn listens for an address of a namespace; empty: nowhere.
func (f *Fake) Listens(namespace, address string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gates[namespace+" "+address]
}

// Steps counts the effects on the instance's objects so far.
func (f *Fake) Steps() int {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	return f.host().steps
}

// Set implements Controller.
func (f *Fake) Set(ctx context.Context, want Config) error {
	if err := checkWant(ctx, f.instance, want); err != nil {
		return err
	}
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	host := f.host()
	for _, id := range sortedKeys(host.half) {
		if _, ok := want.Pod(id); !ok {
			if err := f.remove(host, id); err != nil {
				return err
			}
		}
	}
	want = want.Keeping(host.config)
	for _, op := range Diff(host.config, want) {
		if err := f.apply(host, op, want); err != nil {
			return err
		}
	}
	f.setDone(true)
	return nil
}

// Repair implements Controller.
func (f *Fake) Repair(ctx context.Context) error {
	f.kernel.mu.Lock()
	want, set := f.host().config.Clone(), f.isSet()
	f.kernel.mu.Unlock()
	if !set {
		return ErrNoHost
	}
	return f.Set(ctx, want)
}

// SetPublic implements Controller.
func (f *Fake) SetPublic(ctx context.Context, public []netip.Addr) error {
	f.kernel.mu.Lock()
	want, set := f.host().config.Clone(), f.isSet()
	f.kernel.mu.Unlock()
	if !set {
		return ErrNoHost
	}
	want.Public = slices.Clone(public)
	return f.Set(ctx, want)
}

// AddPod implements Controller.
func (f *Fake) AddPod(ctx context.Context, pod Pod) error {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	host := f.host()
	if !f.isSet() {
		return ErrNoHost
	}
	if err := checkWant(ctx, f.instance, host.config.With(pod)); err != nil {
		return err
	}
	if old, ok := host.config.Pod(pod.ID); ok && old.Equal(pod) {
		return nil
	}
	return f.add(host, pod)
}

// RemovePod implements Controller.
func (f *Fake) RemovePod(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	host := f.host()
	if _, ok := host.config.Pod(id); !ok && !host.half[id] {
		return nil
	}
	return f.remove(host, id)
}

// Has implements Controller.
func (f *Fake) Has(ctx context.Context, id string) (bool, error) {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	_, ok := f.host().config.Pod(id)
	return ok, ctx.Err()
}

// IDBase implements Controller.
func (f *Fake) IDBase(ctx context.Context, id string) (uint32, error) {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	pod, _ := f.host().config.Pod(id)
	return pod.IDBase, ctx.Err()
}

// Published implements Controller.
func (f *Fake) Published(ctx context.Context, id string) ([]Port, error) {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	pod, _ := f.host().config.Pod(id)
	if len(f.host().config.Public) == 0 {
		return nil, ctx.Err()
	}
	return slices.Clone(pod.Ports), ctx.Err()
}

// Left implements Controller.
func (f *Fake) Left(ctx context.Context, id string) (bool, error) {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	_, ok := f.host().config.Pod(id)
	return ok || f.host().half[id], ctx.Err()
}

// Observed implements Controller.
func (f *Fake) Observed(ctx context.Context) (State, error) {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	host := f.host()
	st := State{Config: host.config.Clone(), Ready: f.isSet()}
	for _, id := range sortedKeys(host.half) {
		st.Partial = append(st.Partial, "netns "+NamespaceName(f.instance, id))
	}
	return st, ctx.Err()
}

// Clean implements Controller.
func (f *Fake) Clean(ctx context.Context) error {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	delete(f.kernel.hosts, f.instance)
	f.setDone(false)
	return ctx.Err()
}

// host returns the instance's objects; the kernel's mutex is held.
func (f *Fake) host() *fakeHost {
	h, ok := f.kernel.hosts[f.instance]
	if !ok {
		h = &fakeHost{config: Config{Instance: f.instance}, half: map[string]bool{}}
		f.kernel.hosts[f.instance] = h
	}
	return h
}

func (f *Fake) apply(host *fakeHost, op Op, want Config) error {
	switch op.Verb {
	case RemovePod:
		return f.remove(host, op.Pod.ID)
	case SetHost, SetOverlay, RemoveOverlay:
		return f.applyHost(host, op, want)
	default:
		return f.add(host, op.Pod)
	}
}

func (f *Fake) add(host *fakeHost, pod Pod) error {
	if err := f.effect(host, "add", pod.ID); err != nil {
		host.half[pod.ID] = true
		host.config = host.config.Without(pod.ID)
		return err
	}
	delete(host.half, pod.ID)
	host.config = host.config.With(pod)
	return nil
}

func (f *Fake) remove(host *fakeHost, id string) error {
	host.config = host.config.Without(id)
	if err := f.effect(host, "remove", id); err != nil {
		host.half[id] = true
		return err
	}
	delete(host.half, id)
	return nil
}

func (f *Fake) effect(host *fakeHost, verb, pod string) error {
	host.steps++
	if f.kernel.fail == nil {
		return nil
	}
	return f.kernel.fail(verb, pod)
}

func (f *Fake) isSet() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.set
}

func (f *Fake) setDone(done bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set = done
}

func checkWant(ctx context.Context, instance string, want Config) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if want.Instance != instance {
		return fmt.Errorf("instance: want that of the controller")
	}
	return want.Validate()
}

func sortedKeys(m map[string]bool) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
