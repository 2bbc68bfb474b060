package membership

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

func TestTheKeeperTakesInWhoJoinedAndLetsThemGo(t *testing.T) {
	w := newWorld(t)
	b := w.member(false)
	if !w.lead.keeper.MayLead(b.id) || w.lead.keeper.MayLead("nobody") || b.keeper.MayLead(w.lead.id) {
		t.Error("who may lead: the member that answers its leader, and nobody else")
	}
	w.must(w.lead.keeper.Demote(within(t), fleet.MemberID(b.id)))
	eventually(t, "no vote", func() bool { s, ok := w.server(b.id); return ok && !s.Voter })
	w.must(w.lead.keeper.Promote(within(t), fleet.MemberID(b.id)))
	eventually(t, "a vote", func() bool { s, ok := w.server(b.id); return ok && s.Voter })
	w.must(w.lead.keeper.Remove(within(t), fleet.MemberID(b.id), false))
	eventually(t, "gone", func() bool { _, ok := w.server(b.id); return !ok })
	eventually(t, "one that is gone may not lead", func() bool { return !w.lead.keeper.MayLead(b.id) })
}

func TestTheKeeperReachesMembersOverItsOwnWire(t *testing.T) {
	w := newWorld(t)
	dialled := make(chan string, 1)
	conf := w.lead.server.cfg
	conf.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		select {
		case dialled <- address:
		default:
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	}
	conn, err := conf.dial(w.lead.address)
	w.must(err)
	defer func() { _ = conn.Close() }()
	out, err := agentrpc.NewPeerClient(conn).Status(within(t), &agentrpc.StatusRequest{})
	if err != nil || out.GetMemberId() != w.lead.id || <-dialled != w.lead.address {
		t.Errorf("%v %v", out, err)
	}
}

func TestARefusedJoinTakesNobodyOut(t *testing.T) {
	w := newWorld(t)
	b := w.member(false)
	m := w.machine()
	m.address = b.address
	token := w.token(func(k *fleet.JoinToken) { k.Replaces = fleet.MemberID(b.id) })
	if err := w.join(m, token, state.Level-1); err == nil || !strings.Contains(err.Error(), "too old") {
		t.Fatalf("an old program joins: %v", err)
	}
	s, ok := w.server(b.id)
	if _, recorded := w.members()[b.id]; !ok || !s.Voter || !recorded {
		t.Errorf("the join was refused, and the member to be replaced is not what it was: %+v in Raft %v, recorded %v", s, ok, recorded)
	}
	b.close()
}

func TestARebuildCanBeRepeated(t *testing.T) {
	w := newWorld(t)
	b := w.member(true)
	b.close()
	lost, err := w.rejoin(b) // its answer never arrived
	w.must(err)
	again, err := w.rejoin(b)
	w.must(err)
	if have := w.members(); have[lost.id].ID != "" || have[again.id].ID == "" || have[b.id].ID == "" {
		t.Errorf("%+v", have)
	}
	again.ln, err = net.Listen("tcp", b.address)
	w.must(err)
	w.start(again)
	eventually(t, "only the new one is left", func() bool {
		have := w.members()
		_, in := w.server(again.id)
		return in && len(have) == 2 && have[again.id].ID != ""
	})
	if _, err := w.rejoin(b); err == nil || !strings.Contains(err.Error(), "was removed") {
		t.Errorf("the identity before: %v", err)
	}
}

func TestOneThatNeverCameDoesNotBlockItsAddress(t *testing.T) {
	w := newWorld(t)
	m := w.machine()
	w.must(w.join(m, w.token(func(*fleet.JoinToken) {}), state.Level))
	phantom := m.id
	token := w.token(func(*fleet.JoinToken) {})
	err := w.join(m, token, state.Level)
	if err == nil || !strings.Contains(err.Error(), "gantry raft remove "+phantom+", then join anew") {
		t.Fatalf("it says %v", err)
	}
	w.must(w.lead.keeper.Remove(within(t), fleet.MemberID(phantom), false))
	w.must(w.join(m, token, state.Level))
}

func TestAJoinOfUnknownOutcomeIsNotRepeated(t *testing.T) {
	for name, lost := range map[string]func(*world, context.Context) error{
		"the leader does not know": func(*world, context.Context) error { return fleet.Unavailable("unknown", replica.ErrUnknown) },
		"the answer is lost": func(w *world, ctx context.Context) error {
			go w.lead.service.Stop()
			<-ctx.Done()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			calls := 0
			conf := w.lead.server.cfg
			conf.Node = &hooked{Node: w.lead.node, spoil: func(ctx context.Context) error {
				calls++
				return lost(w, ctx)
			}}
			token := w.token(func(*fleet.JoinToken) {})
			w.lead.server.cfg = conf
			if err := w.join(w.machine(), token, state.Level); !errors.Is(err, errUnsure) || calls != 1 {
				t.Errorf("%d calls: %v", calls, err)
			}
		})
	}
}

// The same request, with the key that the folder holds, is answered again for the same member until that comes; no other request is.
func TestAJoinWhoseAnswerWasLostIsAskedAgain(t *testing.T) {
	w := newWorld(t)
	m := w.machine()
	token := w.token(func(*fleet.JoinToken) {})
	conf := w.lead.server.cfg
	heard := conf
	conf.Node = &hooked{Node: w.lead.node, spoil: func(ctx context.Context) error { return fleet.Unavailable("unknown", replica.ErrUnknown) }}
	w.lead.server.cfg = conf
	if err := w.join(m, token, state.Level); !errors.Is(err, errUnsure) {
		t.Fatalf("the first time: %v", err)
	}
	w.lead.server.cfg = heard
	made := w.members()
	w.must(w.join(m, token, state.Level))
	if again := w.members(); len(again) != 2 || again[m.id].ID == "" || len(made) != 2 || made[m.id].ID == "" {
		t.Errorf("members %v, at first %v, it is %s", again, made, m.id)
	}
	if err := w.join(w.machine(), token, state.Level); err == nil || !strings.Contains(err.Error(), "unknown, used or expired") {
		t.Errorf("another machine: %v", err)
	}
	w.start(m)
	eventually(t, "it is one of Raft's", func() bool { return len(w.lead.node.Servers()) == 2 })
	if err := w.join(m, token, state.Level); err == nil || !strings.Contains(err.Error(), "unknown, used or expired") {
		t.Errorf("after it came: %v", err)
	}
}

func TestAMemberThatBeginsAnewTwiceLeavesNobodyBehind(t *testing.T) {
	w := newWorld(t)
	b := w.member(true)
	b.close()
	c, err := w.rejoin(b)
	w.must(err)
	d, err := w.rejoin(c)
	w.must(err)
	d.ln, err = net.Listen("tcp", b.address)
	w.must(err)
	w.start(d)
	eventually(t, "only the newest is left", func() bool {
		have := w.members()
		return len(have) == 2 && have[d.id].ID != ""
	})
}

func TestAJoinGoesOnPastWhoDoesNotLead(t *testing.T) {
	w := newWorld(t)
	b := w.member(true)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.must(closed.Close())
	w.must(w.join(w.machine(), w.token(func(*fleet.JoinToken) {}), state.Level, closed.Addr().String(), b.address))
}

func TestAFollowerRenewsItsCertificateAtTheLeaderThatItIsToldOf(t *testing.T) {
	w := newWorld(t)
	b, c := w.member(true), w.member(true)
	begun := time.Now().Add(-50 * time.Minute)
	w.must(b.certs.Enroll(w.ca, pki.Identity{Role: pki.RoleScheduler, ID: b.id}, time.Hour, begun))
	old, err := b.certs.Leaf()
	w.must(err)
	// c led before: it only knows who does now.
	eventually(t, "renewed at the leader that another scheduler names", func() bool {
		b.presence.renew(within(t), replica.Member{ID: c.id, Address: c.address})
		leaf, err := b.certs.Leaf()
		return err == nil && !leaf.Equal(old) && leaf.NotAfter.After(time.Now().Add(CertLife-time.Hour))
	})

	// By itself it does so as soon as it runs.
	w.must(b.certs.Enroll(w.ca, pki.Identity{Role: pki.RoleScheduler, ID: b.id}, time.Hour, begun))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	eventually(t, "the leader is known", func() bool { _, ok := b.node.Leader(); return ok })
	go func() { done <- b.presence.Run(ctx) }()
	eventually(t, "renewed", func() bool {
		leaf, err := b.certs.Leaf()
		return err == nil && leaf.NotAfter.After(time.Now().Add(CertLife-time.Hour))
	})
	cancel()
	w.must(<-done)
}

func TestFaultsAreToldInPlainWords(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{status.Error(codes.Unavailable, `latest balancer error: connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`), "it does not answer: connection refused"},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), "it does not answer: no answer in time"},
		{status.Error(codes.PermissionDenied, "this scheduler was removed"), "it refuses this scheduler"},
		{errors.New("another scheduler is at a:1"), "it does not answer: another scheduler is at a:1"},
	} {
		if got := faultText(c.err); got != c.want {
			t.Errorf("%v: %q", c.err, got)
		}
	}
}

func TestAMemberThatNeverAnsweredIsSilentSinceItJoined(t *testing.T) {
	now := time.Now()
	k := NewKeeper(Config{})
	k.leadAt = now.Add(-time.Hour)
	for joined, want := range map[time.Duration]time.Duration{-time.Minute: time.Minute, -2 * time.Hour: time.Hour, time.Minute: 0} {
		if got := k.silent(fleet.Member{ID: "m", JoinedAt: now.Add(joined)}, now); got != want {
			t.Errorf("joined %v ago: silent for %v, want %v", -joined, got, want)
		}
	}
}

// The leader hears the clocks of those who answer it, and shows them beside its own.
func TestTheKeeperComparesClocks(t *testing.T) {
	w := newWorld(t)
	if others, voters := w.lead.keeper.Clocks(); len(others) != 0 || voters != 1 {
		t.Errorf("alone: %v of %d", others, voters)
	}
	b := w.member(false)
	w.member(true)
	differs := func(want time.Duration) func() bool {
		return func() bool {
			others, voters := w.lead.keeper.Clocks()
			return voters == 2 && len(others) == 1 && (others[0]-want).Abs() < time.Minute
		}
	}
	eventually(t, "the clocks agree", differs(0))
	b.clock.Store(int64(time.Hour))
	eventually(t, "its clock is ahead", differs(time.Hour))
	w.lead.clock.Store(int64(3 * time.Hour))
	eventually(t, "it is behind the leader's", differs(-2*time.Hour))
	eventually(t, "all but the leader's are shown", func() bool {
		view, err := w.lead.keeper.View(within(t))
		w.must(err)
		return !slices.ContainsFunc(view.Members, func(m fleet.MemberView) bool {
			known := m.Clock != nil
			return known == m.Leader || known && m.Voter && (*m.Clock+2*time.Hour).Abs() > time.Minute
		})
	})
	b.close()
	eventually(t, "one that is silent has no clock", func() bool { others, _ := w.lead.keeper.Clocks(); return len(others) == 0 })
}

func TestAClockIsNotJudgedByASlowAnswer(t *testing.T) {
	asked := time.Now()
	answer := &agentrpc.StatusResponse{ClockNs: asked.Add(time.Minute).UnixNano()}
	if off := clockOff(answer, asked, asked.Add(2*time.Second)); off == nil || *off != 59*time.Second {
		t.Errorf("%v", off)
	}
	for name, off := range map[string]*time.Duration{
		"slow": clockOff(answer, asked, asked.Add(3*time.Second)), "backwards": clockOff(answer, asked, asked.Add(-time.Second)),
		"an older program": clockOff(&agentrpc.StatusResponse{}, asked, asked), "no answer": clockOff(nil, asked, asked),
	} {
		if off != nil {
			t.Errorf("%s: %v", name, *off)
		}
	}
}
