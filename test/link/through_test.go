package link

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gantry/agent/session"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/dispatch"
)

// brisk has a silence noticed soon.
var brisk = dispatch.Config{
	Heartbeat: 100 * time.Millisecond, HeartbeatTimeout: time.Second, HostTimeout: 500 * time.Millisecond, Settle: 2 * time.Second,
}

// dials counts the connections that hosts open, by address.
type dials struct {
	mu sync.Mutex
	to map[string]int
}

func (w *world) countDials() *dials {
	d, dial := &dials{to: map[string]int{}}, w.dial
	w.dial = func(ctx context.Context, addr string) (net.Conn, error) {
		d.mu.Lock()
		d.to[addr]++
		d.mu.Unlock()
		return dial(ctx, addr)
	}
	return d
}

func (d *dials) count(addr string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.to[addr]
}

// ways is how many sessions of hosts a scheduler has.
type ways struct{ direct, through, passed int }

func (s *scheduler) ways() (w ways) {
	w.direct, w.through, w.passed = s.dispatch.HostSessions()
	return w
}

// three starts three schedulers, of which the first leads and has heard of the others.
func (w *world) three() (a, b, c *scheduler) {
	w.Helper()
	a, b, c = w.newScheduler(loopback, brisk), w.newScheduler(loopback, brisk), w.newScheduler(loopback, brisk)
	a.begin()
	w.soon("the others are there", func() bool { return a.dispatch.Followers() == 2 })
	return a, b, c
}

// TestHostsHaveTheirSessionsWithFollowers: the leader keeps no connection of a host, and a change of leader ends none.
func TestHostsHaveTheirSessionsWithFollowers(t *testing.T) {
	const hosts = 6
	w := newWorld(t)
	a, b, c := w.three()
	dialed := w.countDials()
	var all []*host
	for range hosts {
		h := w.newHost(a.addr)
		h.start(a.addr)
		all = append(all, h)
	}
	w.soon("all have sessions with followers", func() bool {
		return a.ways() == ways{through: hosts} && b.ways().passed+c.ways().passed == hosts
	})
	there := func(s *scheduler) func() bool {
		return func() bool {
			for _, h := range all {
				if !s.dispatch.Reachable(h.id) {
					return false
				}
			}
			return true
		}
	}
	w.soon("the leader reaches all", there(a))
	time.Sleep(1100 * time.Millisecond) // a session that was shorter begins anew with a connection of its own
	before := map[*scheduler]int{a: dialed.count(a.addr), b: dialed.count(b.addr), c: dialed.count(c.addr)}
	a.resign()
	b.begin()
	w.soon("the next leader reaches all", there(b))
	for s, n := range before {
		if now := dialed.count(s.addr); now != n {
			t.Errorf("hosts opened %d more connections", now-n)
		}
	}
	w.soon("the next leader gives its hosts away", func() bool { return b.ways() == ways{through: hosts} })
	if n := w.transitions(); n != 0 {
		t.Errorf("%d hosts were taken for lost", n)
	}
}

// TestAFollowerDies: its hosts find another, and are not taken for lost.
func TestAFollowerDies(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.three()
	h := w.newHost(b.addr)
	h.start(b.addr)
	w.soon("the host is there", func() bool { return a.dispatch.Reachable(h.id) && a.ways() == ways{through: 1} })
	if b.ways().passed == 0 {
		b, c = c, b
	}
	b.stop()
	w.soon("the host is there by another way", func() bool { return a.dispatch.Reachable(h.id) && c.ways().passed+a.ways().direct == 1 })
	if n := w.transitions(); n != 0 {
		t.Errorf("it was taken for lost")
	}
}

// TestALeaderGivesItsHostsAway when there is a follower.
func TestALeaderGivesItsHostsAway(t *testing.T) {
	w := newWorld(t)
	conf := brisk
	conf.Settle = 200 * time.Millisecond
	a := w.newScheduler(loopback, conf)
	a.begin()
	h := w.newHost(a.addr)
	h.start(a.addr)
	w.soon("the host is there", func() bool { return a.ways() == ways{direct: 1} })
	b := w.newScheduler(loopback, conf)
	w.soon("the host has moved", func() bool { return a.ways() == ways{through: 1} && b.ways().passed == 1 })
	if n := w.transitions(); n != 0 {
		t.Errorf("it was taken for lost")
	}
}

// TestAHostThatIsSilentAtAFollower is lost as soon as at the leader.
func TestAHostThatIsSilentAtAFollower(t *testing.T) {
	w := newWorld(t)
	a, b, _ := w.three()
	h := w.newHost(b.addr)
	c := w.rawHost(h, b.addr)
	stream := c.hello(t, agentrpc.Place_PLACE_ANYWHERE)
	w.soon("it is ready", h.is(fleet.HostReady))
	began := time.Now()
	w.soon("it is lost", h.is(fleet.HostUnreachable))
	if took := time.Since(began); took < brisk.HeartbeatTimeout+brisk.HostTimeout-200*time.Millisecond {
		t.Errorf("it was lost after %s", took)
	}
	if a.ways().through != 0 {
		t.Error("it has its session still")
	}
	for {
		if _, err := stream.Recv(); err != nil {
			break
		}
	}
}

// TestACopyIsNoticedAtAFollower: the leader hears nothing of a host that has nothing to tell, and knows all the same that it lives.
func TestACopyIsNoticedAtAFollower(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.three()
	h := w.newHost(b.addr)
	h.start(b.addr)
	w.soon("the host is there", func() bool { return a.dispatch.Reachable(h.id) && a.ways() == ways{through: 1} })
	copied := h.copied()
	copied.start(c.addr)
	w.soon("there is an alarm", func() bool { return strings.Contains(h.record().Alarm, "at the same time") })
}

// TestWhatBeatsTellComesThroughAFollower: of a new scheduler, though the leader answers no heartbeat.
func TestWhatBeatsTellComesThroughAFollower(t *testing.T) {
	w := newWorld(t)
	a, b, _ := w.three()
	h := w.newHost(b.addr)
	h.start(b.addr)
	w.soon("the host is there", func() bool { return a.dispatch.Reachable(h.id) && a.ways() == ways{through: 1} })
	d := w.newScheduler(loopback, brisk)
	w.soon("the host knows the new one", func() bool { return slices.Contains(session.KnownSchedulers(h.dir, nil), d.addr) })
}

// TestAnAgentOfAnEarlierRelease is sent to the leader, which keeps it.
func TestAnAgentOfAnEarlierRelease(t *testing.T) {
	w := newWorld(t)
	a, b, _ := w.three()
	h := w.newHost(b.addr)
	stream := w.rawHost(h, b.addr).hello(t, agentrpc.Place_PLACE_LEADER)
	_, err := stream.Recv()
	if status.Code(err) != codes.Unavailable || agentrpc.LeaderHint(stream.Trailer()) != a.addr {
		t.Errorf("%v, sent to %q", err, agentrpc.LeaderHint(stream.Trailer()))
	}
	w.rawHost(h, a.addr).hello(t, agentrpc.Place_PLACE_LEADER)
	w.soon("it has its session with the leader", func() bool { return a.ways() == ways{direct: 1} })
}

// TestWhoMayPassSessionsOn: schedulers that were not removed, and have said that they are there.
func TestWhoMayPassSessionsOn(t *testing.T) {
	w := newWorld(t)
	conf := brisk
	gone := errors.New("removed")
	conf.Refuse = func(who pki.Identity) error {
		if who.ID == "gone" {
			return gone
		}
		return nil
	}
	a := w.newScheduler(loopback, conf)
	a.begin()
	h := w.newHost(a.addr)
	ask := func(who pki.Identity, host string, vouch bool) error {
		t.Helper()
		certs, err := pki.OpenStore(t.TempDir())
		must(t, err)
		must(t, certs.Enroll(w.ca, who, time.Hour, time.Now()))
		hosts := agentrpc.NewHostsClient(w.raw(certs, a.addr))
		ctx, cancel := context.WithTimeout(w.ctx, patience)
		defer cancel()
		if vouch {
			if _, err := hosts.Vouch(ctx, &agentrpc.VouchRequest{Address: "127.0.0.1:1"}); err != nil {
				return err
			}
		}
		stream, err := hosts.Session(metadata.AppendToOutgoingContext(ctx, "gantry-host", host))
		must(t, err)
		_ = stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: h.hello(agentrpc.Place_PLACE_ANYWHERE)}})
		_, err = stream.Recv()
		return err
	}
	scheduler := pki.Identity{Role: pki.RoleScheduler, ID: "s2"}
	for name, x := range map[string]struct {
		who   pki.Identity
		host  string
		vouch bool
		code  codes.Code
	}{
		"a host":                       {pki.Identity{Role: pki.RoleHost, ID: string(h.id)}, string(h.id), false, codes.PermissionDenied},
		"a host that vouches":          {pki.Identity{Role: pki.RoleHost, ID: string(h.id)}, string(h.id), true, codes.PermissionDenied},
		"a gateway":                    {pki.Identity{Role: pki.RoleGateway, ID: "g"}, string(h.id), true, codes.PermissionDenied},
		"a scheduler that was removed": {pki.Identity{Role: pki.RoleScheduler, ID: "gone"}, string(h.id), true, codes.PermissionDenied},
		"one that has not vouched":     {pki.Identity{Role: pki.RoleScheduler, ID: "s3"}, string(h.id), false, codes.Unavailable},
		"for no host":                  {scheduler, "", true, codes.InvalidArgument},
		"for a host of a long name":    {scheduler, strings.Repeat("h", 257), true, codes.InvalidArgument},
		"for an unknown host":          {scheduler, "nobody", true, codes.NotFound},
		"for a host":                   {scheduler, string(h.id), true, codes.OK},
	} {
		if err := ask(x.who, x.host, x.vouch); status.Code(err) != x.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestASchedulerThatChangesItsAddress keeps the sessions that it passes on.
func TestASchedulerThatChangesItsAddress(t *testing.T) {
	w := newWorld(t)
	a := w.newScheduler(loopback, brisk)
	a.begin()
	h := w.newHost(a.addr)
	certs, err := pki.OpenStore(t.TempDir())
	must(t, err)
	must(t, certs.Enroll(w.ca, pki.Identity{Role: pki.RoleScheduler, ID: "s2"}, time.Hour, time.Now()))
	hosts := agentrpc.NewHostsClient(w.raw(certs, a.addr))
	vouch := func(address string) {
		_, err := hosts.Vouch(w.ctx, &agentrpc.VouchRequest{Address: address})
		must(t, err)
	}
	vouch("127.0.0.1:1")
	stream, err := hosts.Session(metadata.AppendToOutgoingContext(w.ctx, "gantry-host", string(h.id)))
	must(t, err)
	must(t, stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: h.hello(agentrpc.Place_PLACE_ANYWHERE)}}))
	w.soon("the session stands", func() bool { return a.dispatch.Reachable(h.id) })
	began := time.Now()
	w.soon("a silence would have been noticed", func() bool {
		vouch("127.0.0.1:2")
		return time.Since(began) > 2*brisk.HeartbeatTimeout
	})
	if a.ways() != (ways{through: 1}) || h.record().Epoch != 1 {
		t.Errorf("sessions %+v, epoch %d", a.ways(), h.record().Epoch)
	}
}

// raw is a connection with a certificate.
func (w *world) raw(certs *pki.Store, addr string) *grpc.ClientConn {
	w.Helper()
	var conf *tls.Config
	conf, err := agentrpc.HostClientTLS(certs)
	must(w, err)
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	must(w, err)
	w.Cleanup(func() { _ = conn.Close() })
	return conn
}

// rawHost is a host whose end a test has.
type rawHost struct {
	*host
	link agentrpc.LinkClient
}

func (w *world) rawHost(h *host, addr string) rawHost {
	w.Helper()
	certs, err := pki.OpenStore(h.dir + "/pki")
	must(w, err)
	return rawHost{h, agentrpc.NewLinkClient(w.raw(certs, addr))}
}

func (h *host) hello(place agentrpc.Place) *agentrpc.Hello {
	return &agentrpc.Hello{MachineId: h.machine, Hardware: "board-1", BootId: "boot/0", Run: "raw", Attempt: 1, Place: place, Inventory: &agentrpc.Inventory{}}
}

func (h rawHost) hello(t *testing.T, place agentrpc.Place) agentrpc.Link_SessionClient {
	t.Helper()
	stream, err := h.link.Session(h.world.ctx)
	must(t, err)
	must(t, stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: h.host.hello(place)}}))
	return stream
}
