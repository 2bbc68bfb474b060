package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// dialData makes a data connection of a host, or of whoever has the certificates.
func (y *yard) dialData(certs *pki.Store, epoch uint64) (*agentrpc.DataConn, error) {
	ctx, cancel := context.WithTimeout(y.ctx, patience)
	defer cancel()
	d, err := agentrpc.DialData(ctx, certs, func(ctx context.Context, addr string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}, agentrpc.DataPeer{Addr: y.addr}, &agentrpc.DataHello{Epoch: epoch})
	if err == nil {
		y.Cleanup(func() { _ = d.Close() })
	}
	return d, err
}

func (g *guest) epoch() (epoch uint64) {
	check(g, g.store.View(func(v *state.View) error { h, _ := v.Host(g.id); epoch = h.Epoch; return nil }))
	return epoch
}

// echoes plays the agent on a data connection: it consents to what is asked of pod1 and sends everything back.
func echoes(d *agentrpc.DataConn) {
	for {
		s, err := d.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = s.Reset() }()
			ask, err := s.RecvAsk()
			if err != nil {
				return
			}
			if ask.GetPort().GetPodId() != string(testPod) {
				_ = s.Send(&agentrpc.Frame{Error: "the pod does not run here", Code: string(fleet.CodeNotAllowed)})
				_, _ = s.Recv()
				return
			}
			if s.Send(&agentrpc.Frame{}) == nil {
				_, _ = io.Copy(s, s)
				_ = s.CloseWrite()
			}
		}()
	}
}

func echoed(s fleet.Stream, text string) error {
	if _, err := io.WriteString(s, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(s, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("%q came back for %q", got, text)
	}
	return nil
}

// TestOnlyHostsOfThisSessionGetDataConnections: who they are tells their certificate, and that a leader has admitted this very agent tells
// the epoch, which the copy of a disk does not know.
func TestOnlyHostsOfThisSessionGetDataConnections(t *testing.T) {
	y := newYard(t)
	g := y.join("h1").connect()
	certs, epoch := y.certs(pki.RoleHost, "h1"), g.epoch()
	for name, c := range map[string]struct {
		certs *pki.Store
		epoch uint64
		words string
	}{
		"an older session":    {certs, epoch - 1, "another session"},
		"no session":          {certs, 0, "another session"},
		"a host of no record": {y.certs(pki.RoleHost, "h2"), epoch, "not known here"},
		"a scheduler":         {y.certs(pki.RoleScheduler, "s2"), epoch, ""},
	} {
		if d, err := y.dialData(c.certs, c.epoch); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v %v", name, d, err)
		}
	}
	if y.server.Data().Connected("h1") || y.server.Data().Connected("h2") {
		t.Error("one of them counts as connected")
	}
	// A session that this scheduler has yet to learn of.
	taken := make(chan error, 1)
	go func() { _, err := y.dialData(certs, epoch+1); taken <- err }()
	g.leave()
	y.soon("the session ended", func() bool { return !y.server.Reachable("h1") })
	g.connect()
	check(t, <-taken)
	y.soon("it counts as connected", func() bool { return y.server.Data().Connected("h1") })
}

func TestDataConnectionsOfOneHostAreBounded(t *testing.T) {
	y := newYard(t)
	g := y.join("h1").connect()
	certs := y.certs(pki.RoleHost, "h1")
	var first *agentrpc.DataConn
	for i := range 4 {
		d, err := y.dialData(certs, g.epoch())
		check(t, err)
		y.soon("it is known", func() bool { return y.server.Data().Count() == i+1 })
		if first == nil {
			first = d
		}
	}
	if _, err := y.dialData(certs, g.epoch()); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("one more: %v", err)
	}
	check(t, first.Close())
	y.soon("it is forgotten", func() bool { return y.server.Data().Count() == 4-1 })
	_, err := y.dialData(certs, g.epoch())
	check(t, err)
}

// TestStreamsOutliveSessionAndLeader: what runs through a data connection ends neither with the host's session nor with leadership.
func TestStreamsOutliveSessionAndLeader(t *testing.T) {
	y := newYard(t)
	g := y.join("h1").connect()
	d, err := y.dialData(y.certs(pki.RoleHost, "h1"), g.epoch())
	check(t, err)
	go echoes(d)
	y.soon("it is connected", func() bool { return y.server.Data().Connected("h1") })
	s, err := y.server.OpenPort(y.ctx, "h1", testPod, 80)
	check(t, err)
	check(t, echoed(s, "before"))
	_, err = y.server.OpenPort(y.ctx, "h1", "other", 80)
	if fleet.CodeOf(err) != fleet.CodeNotAllowed || !strings.Contains(err.Error(), "does not run here") {
		t.Errorf("another pod: %v", err)
	}
	g.leave()
	y.follows.Store(true)
	y.resign()
	y.soon("it does not lead", func() bool { y.server.mu.Lock(); defer y.server.mu.Unlock(); return y.server.lead == nil })
	check(t, echoed(s, "after"))
	again, err := y.server.OpenPort(y.ctx, "h1", testPod, 80)
	check(t, err)
	check(t, echoed(again, "a follower opens others"))
	check(t, again.CloseWrite())
	if rest, err := io.ReadAll(again); err != nil || len(rest) > 0 {
		t.Errorf("at its end: %q %v", rest, err)
	}
	check(t, d.Close())
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a stream that broke off ended with %v", err)
	}
	y.soon("it is not connected", func() bool { return !y.server.Data().Connected("h1") })
}

// TestHostsThatMayNotHaveThemLoseTheirDataConnections: those that are gone, and those that are lost and silent; one that only has no session
// keeps them.
func TestHostsThatMayNotHaveThemLoseTheirDataConnections(t *testing.T) {
	y := newYard(t)
	g := y.join("h1").connect()
	open := func() *agentrpc.DataConn {
		d, err := y.dialData(y.certs(pki.RoleHost, "h1"), g.epoch())
		check(t, err)
		y.soon("it is connected", func() bool { return y.server.Data().Connected("h1") })
		return d
	}
	d := open()
	y.do(state.SetHostState{Host: "h1", State: fleet.HostUnreachable, Epoch: g.epoch(), At: time.Now()})
	if !d.Answers(patience) || !y.server.Data().Connected("h1") {
		t.Error("a host without a session lost its data connection")
	}
	y.do(state.FenceHost{Host: "h1", At: time.Now()})
	select {
	case <-d.Done():
	case <-y.ctx.Done():
		t.Error("a fenced host keeps its data connection")
	}
}

// TestAHostThatWasFencedGetsNoDataConnection: not by the session that it had then.
func TestAHostThatWasFencedGetsNoDataConnection(t *testing.T) {
	y := newYard(t)
	g := y.join("h1").connect()
	certs, epoch := y.certs(pki.RoleHost, "h1"), g.epoch()
	g.leave()
	y.soon("the session ended", func() bool { return !y.server.Reachable("h1") })
	check(t, y.server.propose(y.ctx, state.SetHostState{Host: "h1", Epoch: epoch, State: fleet.HostUnreachable, At: time.Now()}))
	check(t, y.server.propose(y.ctx, state.FenceHost{Host: "h1", At: time.Now()}))
	if d, err := y.dialData(certs, epoch); err == nil || !strings.Contains(err.Error(), "fenced") {
		t.Errorf("%v %v", d, err)
	}
}

// TestHostsAreToldOfTheirGateways: of those of their data center, and of those of all.
func TestHostsAreToldOfTheirGateways(t *testing.T) {
	all := []fleet.Gateway{{ID: "g1", Address: "a:1"}, {ID: "g2", Address: "b:1", DataCenter: "dc-1"}, {ID: "g3", Address: "c:1", DataCenter: "dc-2"}}
	var told []string
	for _, g := range gatewaysOf(all, "dc-1").GetGateways() {
		told = append(told, g.GetId()+" "+g.GetAddress())
	}
	if got := strings.Join(told, ", "); got != "g1 a:1, g2 b:1" {
		t.Errorf("told of %s", got)
	}
	_, s, _ := newBetween(t)
	x := newSession(s, "h1", &agentrpc.Hello{}, nil)
	x.told, x.toldTrust, x.gateways, x.center = s.members.Load(), s.trust.Load(), s.gateways.Load(), "dc-2"
	x.changed.Store(false)
	x.fullNext = false
	if msg, err := x.next(); err != nil || msg != nil {
		t.Errorf("it was told %v, %v", msg, err)
	}
	s.gateways.Store(&all)
	for _, want := range []int{2, 0} { // once
		if msg, err := x.next(); err != nil || len(msg.GetGateways().GetGateways()) != want {
			t.Errorf("it was told %v, %v", msg, err)
		}
	}
}
