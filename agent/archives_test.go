package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"gantry/agent/images"
	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/agent/session"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/netctl"
)

// quiet is a runtime with no containers.
type quiet struct{ pod.Runtime }

func (quiet) Usage(context.Context, fleet.PodID) (pod.Usage, error) { return pod.Usage{}, nil }
func (quiet) Remove(context.Context, fleet.PodID) error             { return nil }
func (quiet) Version(context.Context) (string, error)               { return "test", nil }
func (quiet) List(context.Context) ([]fleet.PodID, error)           { return nil, nil }
func (quiet) Images(context.Context) ([]string, error)              { return nil, nil }
func (quiet) Import(context.Context, io.Reader) ([]string, error) {
	return nil, errors.New("not asked")
}
func (quiet) Clean(context.Context, bool) error { return nil }

// slowRuntime is a runtime whose imports take until they are let go, and that notes of which pods was asked.
type slowRuntime struct {
	quiet
	gate chan struct{}

	mu     sync.Mutex
	looked map[fleet.PodID]bool
	pulled bool
	images map[string]string
}

func (s *slowRuntime) Look(_ context.Context, id fleet.PodID) (pod.Container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked[id] = true
	return pod.Container{}, nil
}

func (s *slowRuntime) Image(_ context.Context, ref string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.images[ref], nil
}

func (s *slowRuntime) Pull(ctx context.Context, _ string, _ *fleet.Credential, _ func(done, total int64)) (string, error) {
	s.mu.Lock()
	s.pulled = true
	s.mu.Unlock()
	<-ctx.Done()
	return "", ctx.Err()
}

func (s *slowRuntime) Define(ctx context.Context, _ pod.ContainerSpec) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s *slowRuntime) Import(ctx context.Context, _ io.Reader) ([]string, error) {
	select {
	case <-s.gate:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images["brought"] = "sha256:brought"
	return []string{"brought"}, nil
}

// atOnce notes how many images are got at once.
type atOnce struct {
	images.Store
	mu        sync.Mutex
	now, most int
}

func (a *atOnce) Prefetch(ctx context.Context, _ string) error {
	a.mu.Lock()
	a.now++
	a.most = max(a.most, a.now)
	a.mu.Unlock()
	<-ctx.Done()
	a.mu.Lock()
	a.now--
	a.mu.Unlock()
	return ctx.Err()
}

func (a *atOnce) Room(context.Context) (used, size int64, err error) { return 0, 1, nil }

// tended is an agent that looks after pods and host, without a session, until the returned function is called.
func tended(t *testing.T, c Config) (d *agent, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c.Instance, c.Network, c.Log = "0a1b", netctl.NewFake(netctl.NewFakeKernel(), "0a1b"), slog.New(slog.DiscardHandler)
	c.PickSubnet = func(context.Context) (netip.Prefix, error) { return netip.MustParsePrefix("10.88.0.0/20"), nil }
	book := ledgertest.Open(t, c.Dir)
	ledgertest.SetFull(t, book, pod.Assignment{Pod: "p1", Incarnation: 1, Goal: fleet.GoalRun, Generation: 1, Image: "brought"})
	d, err := newAgent(ctx, c, someJoined(t), book)
	if err != nil {
		t.Fatal(err)
	}
	d.heard.Store(true)
	var wg sync.WaitGroup
	d.lookAfter(ctx, &wg)
	return d, func() {
		cancel()
		wg.Wait()
		d.pods.Wait()
		d.close()
	}
}

// TestPodsAreLookedAfterWhileArchivesAreLoaded: those that need an image wait, and do not pull what is in an archive.
func TestPodsAreLookedAfterWhileArchivesAreLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		archive := filepath.Join(dir, "image.tar")
		if err := os.WriteFile(archive, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		rt := &slowRuntime{gate: make(chan struct{}), looked: map[fleet.PodID]bool{}, images: map[string]string{}}
		d, end := tended(t, Config{Dir: dir, Archives: []string{archive}, Containers: rt})
		defer end()
		synctest.Wait()
		doing := func() string { return d.reports.Activities()["p1"].Words }
		rt.mu.Lock()
		if !rt.looked["p1"] || rt.pulled || !strings.Contains(doing(), "archives") {
			t.Errorf("looked at %v, pulled %t, doing %q", rt.looked, rt.pulled, doing())
		}
		rt.mu.Unlock()
		close(rt.gate)
		synctest.Wait()
		rt.mu.Lock()
		defer rt.mu.Unlock()
		if rt.pulled || doing() != "creating the container" {
			t.Errorf("pulled %t, doing %q", rt.pulled, doing())
		}
	})
}

// TestOneLooksAfterImages: they are got one after the other.
func TestOneLooksAfterImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		images := &atOnce{}
		d, end := tended(t, Config{Dir: t.TempDir(), Images: images, Containers: &slowRuntime{looked: map[fleet.PodID]bool{}}})
		for _, image := range []string{"a", "b", "c"} {
			if _, err := d.images.Take(t.Context(), &agentrpc.Down_Prefetch{Prefetch: &agentrpc.Prefetch{Image: image}}); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		end()
		if images.most != 1 {
			t.Errorf("%d are got at once", images.most)
		}
	})
}

// someJoined is a host that has joined and knows a scheduler that nobody is.
func someJoined(t *testing.T) joined {
	t.Helper()
	where, err := session.OpenDirectory(t.TempDir(), []string{"127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	store, err := session.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return joined{"h1", store, where}
}
