package netctl

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFakeKeepsTheContract(t *testing.T) {
	ctx := context.Background()
	k := NewFakeKernel()
	a, b := NewFake(k, "0a1b"), NewFake(k, "0a1c")
	c := sample()
	pod := NewPod("0a1b", "b", netip.MustParseAddr("10.88.16.20"))
	if err := a.AddPod(ctx, pod); !errors.Is(err, ErrNoHost) {
		t.Fatalf("before Set: %v", err)
	}
	if err := a.Set(ctx, Config{Instance: "0a1b"}); err == nil {
		t.Fatal("an invalid value passed")
	}
	if err := b.Set(ctx, c); err == nil {
		t.Fatal("another instance's value passed")
	}
	for range 2 {
		check(t, a.Set(ctx, c))
		check(t, a.AddPod(ctx, pod))
		check(t, a.RemovePod(ctx, "a1b2c3d4"))
		c = c.With(pod).Without("a1b2c3d4")
	}
	if got := a.Steps(); got != 5 { // host, two pods, one more, one less; nothing twice
		t.Errorf("%d effects", got)
	}
	other := Config{Instance: "0a1c", Subnet: netip.MustParsePrefix("10.88.32.0/20"), MTU: 1500}
	check(t, b.Set(ctx, other))
	if diff := cmp.Diff(c.String()+other.String(), k.String()); diff != "" {
		t.Error(diff)
	}
	kept := c.Clone()
	kept.Pods[0].IDBase = 0x10000000
	check(t, a.Set(ctx, kept)) // what stands stays the host's
	if got, err := a.IDBase(ctx, kept.Pods[0].ID); err != nil || got != 0 {
		t.Errorf("after set: %d, %v", got, err)
	}
	check(t, a.AddPod(ctx, kept.Pods[0]))
	check(t, a.Set(ctx, c))
	if got, err := a.IDBase(ctx, kept.Pods[0].ID); err != nil || got != 0x10000000 {
		t.Errorf("after add: %d, %v", got, err)
	}
	check(t, a.Clean(ctx))
	if diff := cmp.Diff(other.String(), k.String()); diff != "" {
		t.Error(diff)
	}
}

func TestFakeFailsHalfWayAndASuccessorFinishes(t *testing.T) {
	ctx := context.Background()
	k := NewFakeKernel()
	first, c, broken := NewFake(k, "0a1b"), sample(), errors.New("broken")
	k.FailWith(func(verb, pod string) error {
		if verb == "add" && pod == "m3k9x1q2" {
			return broken
		}
		return nil
	})
	if err := first.Set(ctx, c); !errors.Is(err, broken) {
		t.Fatalf("set: %v", err)
	}
	k.FailWith(nil)
	second := NewFake(k, "0a1b")
	st, err := second.Observed(ctx)
	check(t, err)
	if st.Ready || len(st.Config.Pods) != 1 || len(st.Partial) != 1 {
		t.Errorf("observed %+v", st)
	}
	if has, err := second.Has(ctx, "m3k9x1q2"); err != nil || has {
		t.Errorf("has: %v, %v", has, err)
	}
	check(t, second.Set(ctx, c))
	if diff := cmp.Diff(c.String(), k.String()); diff != "" {
		t.Error(diff)
	}
}

func TestFakeHasOverlays(t *testing.T) {
	ctx := context.Background()
	k := NewFakeKernel()
	f, c := NewFake(k, "0a1b"), joined()
	if err := f.SetOverlay(ctx, c.Overlays[0]); !errors.Is(err, ErrNoHost) {
		t.Errorf("before Set: %v", err)
	}
	host := sample()
	host.Flows = c.Flows
	check(t, f.Set(ctx, host))
	check(t, f.SetUnderlay(ctx, c.Underlay))
	for _, o := range c.Overlays {
		check(t, f.SetOverlay(ctx, o))
	}
	for _, p := range c.Pods {
		check(t, f.AddPod(ctx, p))
	}
	policy := Policy{Names: true, Barred: c.Barred, Mbps: 100, Closed: []string{c.Pods[1].ID, "of no pod"}}
	check(t, f.SetPolicy(ctx, policy))
	if diff := cmp.Diff(c.WithPolicy(policy).String(), k.String()); diff != "" {
		t.Error(diff)
	}
	if err := f.RemoveOverlay(ctx, 4096); !errors.Is(err, ErrOverlayInUse) {
		t.Errorf("in use: %v", err)
	}
	check(t, f.RemovePod(ctx, c.Pods[0].ID))
	check(t, f.RemoveOverlay(ctx, 4096))
	check(t, f.RemoveOverlay(ctx, 4096))
	if drops, err := f.Drops(ctx); err != nil || len(drops) != 0 {
		t.Errorf("drops %v, %v", drops, err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestFakeListens: where a gate of a namespace is on this machine.
func TestFakeListens(t *testing.T) {
	f := NewFake(NewFakeKernel(), "0a1b")
	l, err := f.ListenIn("n1", "127.0.0.1:31271")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if at := f.Listens("n1", "127.0.0.1:31271"); at != l.Addr().String() || f.Listens("n2", "127.0.0.1:31271") != "" {
		t.Errorf("at %q, not at %v", at, l.Addr())
	}
}
