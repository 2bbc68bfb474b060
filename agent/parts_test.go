package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gantry/agent/gpu"
	"gantry/agent/inventory"
	"gantry/agent/ledger/ledgertest"
	"gantry/agent/machine"
	"gantry/agent/pod"
	"gantry/agent/storage"
	"gantry/agent/volumes"
	"gantry/agent/volumes/volumestest"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/netctl"
)

// TestWhoAMachineIs is read of it, unless it is named.
func TestWhoAMachineIs(t *testing.T) {
	h := &host{Config: Config{Dir: t.TempDir()}}
	must(t, h.identify())
	id, err := machine.ID(h.Dir)
	must(t, err)
	boot, err := machine.BootID()
	must(t, err)
	if h.machineID != id || h.boot != boot+"/0" || h.hardware != machine.Hardware() {
		t.Errorf("it is %q of %q, at %q", h.machineID, h.hardware, h.boot)
	}
	h.MachineID, h.BootID, h.Hardware = "m", "b", "h"
	if must(t, h.identify()); h.machineID != "m" || h.boot != "b/0" || h.hardware != "h" {
		t.Errorf("named, it is %q of %q, at %q", h.machineID, h.hardware, h.boot)
	}
}

// TestWhatAHostOffers: what it has, unless that is named.
func TestWhatAHostOffers(t *testing.T) {
	book := ledgertest.Open(t, t.TempDir())
	c := Config{Dir: t.TempDir(), GPUs: []fleet.GPU{{UUID: "g"}}}
	has, err := readStock(c, book, nil)
	if err != nil || has.Total.MilliCPU < 1000 || has.Total.MemoryMB == 0 || len(has.GPUs) != 1 {
		t.Errorf("%+v, %v", has, err)
	}
	c.Offer = fleet.Resources{MilliCPU: 5, MemoryMB: 6, DiskGB: 7}
	if has, err := readStock(c, book, nil); err != nil || has.Total != c.Offer || len(has.GPUs) != 1 {
		t.Errorf("named: %+v, %v", has, err)
	}
	c.Dir = "/not/there"
	if _, err := readStock(c, book, nil); err == nil {
		t.Error("a folder that is not there has a disk")
	}
}

// TestWhereEchoesAreSentFrom: the namespace of the pod, where there are such.
func TestWhereEchoesAreSentFrom(t *testing.T) {
	h := &host{Config: Config{Instance: "0a1b"}}
	if _, err := h.pinger("p1"); fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("without namespaces: %v", err)
	}
	away := errors.New("away")
	h.Private.Within = func(name string, _ func() error) error {
		if name != netctl.NamespaceName("0a1b", "p1") {
			t.Errorf("in %q", name)
		}
		return away
	}
	if _, err := h.pinger("p1"); !errors.Is(err, away) {
		t.Errorf("of a namespace that is not there: %v", err)
	}
	h.Private.Within = func(_ string, f func() error) error { return f() }
	p, err := h.pinger("p1")
	must(t, err)
	p.Close()
}

// TestWhatIsReadForMetricsAlone is not read without them.
func TestWhatIsReadForMetricsAlone(t *testing.T) {
	for _, addr := range []string{"", "127.0.0.1:1"} {
		a := &agent{host: &host{Config: Config{Dir: t.TempDir(), Instance: "0a1b", Metrics: addr}}}
		c := a.sampled(func() {})
		if read := addr != ""; (c.Link != nil) != read || (c.Space != nil) != read || (c.All != nil) != read {
			t.Errorf("with metrics at %q: %+v", addr, c)
		}
		if c.Link != nil && c.Link("p1") != netctl.LinkName("0a1b", "p1") {
			t.Errorf("the link of a pod is %s", c.Link("p1"))
		}
	}
}

// failingShelf makes no volumes.
type failingShelf struct {
	storage.Provisioner
	tries atomic.Int32
}

func (s *failingShelf) Make(context.Context, storage.Root, storage.Volume) error {
	s.tries.Add(1)
	return errors.New("away")
}

// watched is a network that can be repaired once.
type watched struct {
	netctl.Controller
	repairs atomic.Int32
}

func (w *watched) Repair(context.Context) error {
	if w.repairs.Add(1) > 1 {
		return errors.New("busy")
	}
	return nil
}

// awayRuntime is a runtime that does not answer of pods.
type awayRuntime struct {
	quiet
	looks atomic.Int32
}

func (a *awayRuntime) Look(context.Context, fleet.PodID) (pod.Container, error) {
	a.looks.Add(1)
	return pod.Container{}, errors.New("away")
}

// TestWhatChangesOfAHostIsTold: after a while, at once when its GPUs do, and when a backend of volumes answers again, by which pods and
// storage are tried again, too.
func TestWhatChangesOfAHostIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, shelf := &awayRuntime{}, &failingShelf{}
		var found atomic.Pointer[Publish]
		c := &cards{changed: make(chan struct{})}
		c.found.Store(&gpu.Found{})
		d, end := tended(t, Config{
			Dir: t.TempDir(), Containers: rt, Provisioner: shelf, Accelerators: c, Volumes: &opened{Mounts: &volumestest.Mounts{}},
			Publish: Publish{From: 30_000, To: 30_009}, FindPublish: func() (Publish, error) {
				if at := found.Load(); at != nil {
					return *at, nil
				}
				return Publish{}, errors.New("not yet")
			},
		})
		defer end()
		looked := func() bool {
			synctest.Wait()
			return rt.looks.Swap(0) > 0
		}
		rung := func() bool {
			synctest.Wait()
			select {
			case <-d.changed:
				return true
			default:
				return false
			}
		}
		looked()
		rung()
		d.storage.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{{
			Backend: &agentrpc.VolumeBackend{Id: "b", Kind: "local", Path: "/srv"},
			Volumes: []*agentrpc.StorageVolume{{VolumeId: "v", Dir: strings.Repeat("a", 26), IdBase: fleet.VolumeIDsFirst, SizeGb: 1}},
		}}})
		synctest.Wait()
		if rung() || looked() || shelf.tries.Load() != 1 {
			t.Errorf("something changed at once, and storage was tried %d times", shelf.tries.Load())
		}
		d.volumesChanged()
		if !rung() || !looked() || shelf.tries.Load() != 2 {
			t.Errorf("a backend is back, and storage was tried %d times", shelf.tries.Load())
		}
		c.changed <- struct{}{}
		if !rung() || !looked() {
			t.Error("other GPUs are told to nobody")
		}
		ip := netip.MustParseAddr("203.0.113.7")
		found.Store(&Publish{IP: ip, At: []netip.Addr{ip}, From: 30_000, To: 30_009})
		time.Sleep(findPublicEvery)
		if !rung() || !looked() {
			t.Error("its public address is told to nobody")
		}
		time.Sleep(lookEvery)
		if !rung() {
			t.Error("a host is not looked at again")
		}
	})
}

// TestANewSessionHearsOfAllAgain that the host has reported of pods that it knows, and says who is there now.
func TestANewSessionHearsOfAllAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &slowRuntime{looked: map[fleet.PodID]bool{}}
		d, end := tended(t, Config{Dir: t.TempDir(), Containers: rt})
		defer end()
		synctest.Wait()
		for d.reports.Next() != nil {
		}
		d.reports.Report(pod.Report{Pod: "p1", Incarnation: 1, Event: fleet.EventWaiting})
		d.reports.Report(pod.Report{Pod: "unknown", Incarnation: 1, Event: fleet.EventWaiting})
		if told := d.reports.Next().GetReports().GetPods(); len(told) != 2 || d.reports.Next() != nil {
			t.Errorf("told %v", told)
		}
		gap := &agentrpc.Down{Kind: &agentrpc.Down_Overlay{Overlay: &agentrpc.OverlayChange{OverlayId: "account-a", AccountId: "a", Vni: 4096, Cidr: "10.64.0.0/16", From: 3, To: 4}}}
		if !d.net.Overlays.Hear(gap) || d.net.Overlays.Hear(gap) {
			t.Error("after a gap all of it is not asked for once")
		}
		var ends []func()
		for _, r := range d.rooms() {
			if r.Begin != nil {
				ends = append(ends, r.Begin(nil))
			}
		}
		if told := d.reports.Next().GetReports().GetPods(); len(told) != 1 || told[0].GetPodId() != "p1" {
			t.Errorf("a new session is told %v", told)
		}
		if !d.net.Overlays.Hear(gap) {
			t.Error("in a new session it is not asked for again")
		}
		for _, end := range ends {
			end()
		}
		if hello := d.hello(); hello.GetInventory().GetRuntime() != "test" || len(hello.GetPods()) != 1 || hello.GetRun() != d.run {
			t.Errorf("it says %v", hello)
		}
	})
}

// TestGantryS3IsAnsweredWhereItAsks: where there is a socket, and volumes that can be opened.
func TestGantryS3IsAnsweredWhereItAsks(t *testing.T) {
	for _, c := range []struct {
		volumes volumes.Mounts
		socket  string
		rooms   int
	}{
		{&opened{Mounts: &volumestest.Mounts{}}, "s3/agent.sock", 7}, {&opened{Mounts: &volumestest.Mounts{}}, "", 6}, {&volumestest.Mounts{}, "s3/agent.sock", 6}, {nil, "s3/agent.sock", 6},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		dir := t.TempDir()
		a, err := newAgent(ctx, Config{
			Dir: dir, Instance: "0a1b", Containers: &awayRuntime{}, Network: netctl.NewFake(netctl.NewFakeKernel(), "0a1b"), Volumes: c.volumes, S3Socket: c.socket,
			PickSubnet: func(context.Context) (netip.Prefix, error) { return netip.MustParsePrefix("10.88.0.0/20"), nil }, Log: slog.New(slog.DiscardHandler),
		}, someJoined(t), ledgertest.Open(t, dir))
		must(t, err)
		if (a.s3 != nil) != (c.rooms == 7) || len(a.rooms()) != c.rooms {
			t.Errorf("at %q of %T: %v, %d rooms", c.socket, c.volumes, a.s3 != nil, len(a.rooms()))
		}
		if (a.podDeps().Volumes != nil) != (c.volumes != nil) {
			t.Errorf("pods have the volumes of %T", a.podDeps().Volumes)
		}
		if runtime := a.hello().GetInventory().GetRuntime(); runtime != "test" {
			t.Errorf("the first hello names the runtime %q", runtime)
		}
		if _, pretended := a.podDeps().GPUs.(inventory.Pretended); !pretended {
			t.Errorf("without GPUs of the machine pods get those of %T", a.podDeps().GPUs)
		}
		cancel()
		a.close()
	}
}

// TestANetworkIsPutBack again and again, and what prevents it is said while the agent goes on.
func TestANetworkIsPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &said{}
		w := &watched{}
		a := &agent{host: &host{Config: Config{Network: w, Log: slog.New(slog.NewTextHandler(log, nil))}}}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); a.keepNetwork(ctx) }()
		time.Sleep(repairEvery + time.Second)
		synctest.Wait()
		if w.repairs.Load() != 1 || log.text() != "" {
			t.Errorf("%d repairs, said %s", w.repairs.Load(), log.text())
		}
		time.Sleep(repairEvery)
		synctest.Wait()
		if w.repairs.Load() != 2 || strings.Count(log.text(), "repair the host's network") != 1 {
			t.Errorf("%d repairs, said %s", w.repairs.Load(), log.text())
		}
		cancel()
		<-over
	})
}
