package kernel

import (
	"context"
	"testing"

	"gantry/netctl"
)

// breakPorts makes the kernel refuse to change which ports are published, and keeps what leads to an
// address readable: the map's keys have another type. The returned function puts a right map in its
// place, with the same lead.
func breakPorts(t *testing.T, instance, public, to string) (mend func()) {
	t.Helper()
	table := netctl.TableName(instance)
	remake := func(types, key string) {
		nft(t, "flush", "chain", "inet", table, "at_prerouting")
		nft(t, "flush", "chain", "inet", table, "at_output")
		nft(t, "delete", "map", "inet", table, portMap)
		nft(t, "add", "map", "inet", table, portMap, "{ type "+types+" : ipv4_addr . inet_service ; }")
		nft(t, "add", "element", "inet", table, portMap, "{ "+key+" : "+to+" }")
	}
	remake("ipv4_addr", "10.9.9.9")
	return func() { remake("inet_service", public) }
}

func wantLeft(t *testing.T, c *Controller, id string, want bool) {
	t.Helper()
	if left, err := c.Left(context.Background(), id); err != nil || left != want {
		t.Errorf("%s is left: %v, %v; want %v", id, left, err, want)
	}
}

func wantLeads(t *testing.T, c *Controller, want ...netctl.Pod) {
	t.Helper()
	have, err := c.rules.ports()
	must(t, err)
	if !have.equal(portsOf(want...)) {
		t.Errorf("published: %v, want those of %v", have, want)
	}
}

// TestFailedRemovalIsFinished fails to take a port away, and goes on once that is possible.
func TestFailedRemovalIsFinished(t *testing.T) {
	t.Run("by the same verb", func(t *testing.T) {
		failRemoval(t, func(c *Controller, mend func()) error {
			mend()
			return c.RemovePod(t.Context(), "beta")
		})
	})
	t.Run("by a repair", func(t *testing.T) {
		failRemoval(t, func(c *Controller, _ func()) error { return c.Repair(t.Context()) })
	})
}

func failRemoval(t *testing.T, finish func(c *Controller, mend func()) error) {
	t.Helper()
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := publishing(t)
	must(t, c.Set(ctx, cfg))
	gamma := newPod("0a1b", "gamma", cfg.Pods[1].Addr)
	mend := breakPorts(t, "0a1b", "30002", "10.88.16.3 . 8080")
	for range 2 {
		if err := c.RemovePod(ctx, "beta"); err == nil {
			t.Fatal("no error though the kernel refused")
		}
		wantLeft(t, c, "beta", true)
		if has, err := c.Has(ctx, "beta"); err != nil || has {
			t.Errorf("complete: %v, %v", has, err)
		}
		if err := c.AddPod(ctx, gamma); err == nil {
			t.Fatal("another pod got an address that a port still leads to")
		}
	}
	if got := objectsOf(t, "0a1b-beta"); got != "" {
		t.Errorf("the rest was not tried: %s", got)
	}
	must(t, finish(c, mend))
	wantLeft(t, c, "beta", false)
	must(t, c.Repair(ctx)) // it brings alpha's port back, and nothing of beta
	wantLeft(t, c, "beta", false)
	wantLeads(t, c, cfg.Pods[0])
	must(t, c.AddPod(ctx, gamma))
	wantLeads(t, c, cfg.Pods[0])
	wantLeft(t, c, "gamma", true)
}

// TestFailedMoveIsFinished fails to take the port of a pod's last address away, then goes on.
func TestFailedMoveIsFinished(t *testing.T) {
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := publishing(t)
	must(t, c.Set(ctx, cfg))
	moved := newPod("0a1b", "beta", cfg.Pods[1].Addr.Next())
	mend := breakPorts(t, "0a1b", "30002", "10.88.16.3 . 8080")
	if err := c.AddPod(ctx, moved); err == nil {
		t.Fatal("no error though the kernel refused")
	}
	gamma := newPod("0a1b", "gamma", cfg.Pods[1].Addr)
	if err := c.AddPod(ctx, gamma); err == nil {
		t.Fatal("another pod got an address that a port still leads to")
	}
	mend()
	must(t, c.AddPod(ctx, moved))
	must(t, c.AddPod(ctx, gamma))
	must(t, c.Repair(ctx)) // alpha's port went with the map
	wantLeads(t, c, cfg.Pods[0])
	must(t, c.RemovePod(ctx, "beta"))
	wantLeft(t, c, "beta", false)
}

// TestLeftSeesEveryPart takes a pod's parts away one after the other.
func TestLeftSeesEveryPart(t *testing.T) {
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := publishing(t)
	must(t, c.Set(ctx, cfg))
	c.setWant(cfg.Without("beta")) // as a successor that did not know of it
	link := netctl.LinkName("0a1b", "beta")
	wantLeft(t, c, "beta", true)
	must(t, c.removeLink(link))
	wantLeft(t, c, "beta", true)
	must(t, removeNamespace(ns("0a1b", "beta")))
	wantLeft(t, c, "beta", true)
	must(t, c.rules.unpin(link))
	wantLeft(t, c, "beta", false)
	c.setWant(cfg)
	wantLeft(t, c, "beta", true)
	must(t, c.RemovePod(ctx, "beta"))
	wantLeft(t, c, "beta", false)
	wantLeads(t, c, cfg.Pods[0])
}

func TestSetPublic(t *testing.T) {
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := publishing(t)
	public := cfg.Public
	if err := c.SetPublic(ctx, public); err == nil {
		t.Error("no error before the first Set")
	}
	cfg.Public = nil
	must(t, c.Set(ctx, cfg))
	wantPublished(t, c, "alpha", nil)
	links := fingerprint(t)
	must(t, c.SetPublic(ctx, public))
	wantPublished(t, c, "alpha", cfg.Pods[0].Ports)
	if got := fingerprint(t); got != links {
		t.Errorf("links changed:\n%s\nwas\n%s", got, links)
	}
	st, err := c.Observed(ctx)
	must(t, err)
	if len(st.Config.Public) != 1 || st.Config.Public[0] != public[0] || !st.Ready {
		t.Errorf("observed %v", st.Config.Public)
	}
	if err := c.SetPublic(ctx, append(public, public...)); err == nil {
		t.Error("a bad value was taken")
	}
}
