package dispatch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
)

const (
	hostHeader   = "gantry-host" // of a session that is passed on
	leaderLook   = 50 * time.Millisecond
	liveEvery    = 5 * time.Second // what is live of pods is told again, though it is the same
	leaveTimeout = time.Second
)

// relay is the link through which sessions of hosts are passed on to the leader.
type relay struct {
	stops  atomic.Bool  // this scheduler does
	passed atomic.Int64 // sessions, now
	mu     sync.Mutex   // guards the fields below
	hosts  agentrpc.HostsClient
}

// to returns the link; nil: none stands.
func (r *relay) to() agentrpc.HostsClient {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hosts
}

func (r *relay) set(hosts agentrpc.HostsClient) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hosts = hosts
}

// Relay keeps a link to the scheduler that leads, while it is another, until ctx ends. Without it, hosts that come to a scheduler that
// does not lead are sent to the leader.
func (s *Server) Relay(ctx context.Context) error {
	var closing sync.WaitGroup
	defer closing.Wait()
	defer s.relay.stops.Store(true)
	for ctx.Err() == nil {
		if leader := s.follows(); leader != "" {
			s.linkTo(ctx, leader, &closing)
		}
		_ = sleep.For(ctx, leaderLook)
	}
	return nil
}

// follows returns the address of the scheduler that leads; empty: it is this one, or none is known.
func (s *Server) follows() string {
	if s.Dial == nil || s.Node.IsLeader() {
		return ""
	}
	return s.Leader()
}

// linkTo keeps a link to a leader until it leads no more, or has not answered for as long as a host may be silent. The end of the link
// ends the sessions that were passed on.
func (s *Server) linkTo(ctx context.Context, leader string, closing *sync.WaitGroup) {
	conn, err := s.Dial(leader,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(2*maxDown)),
		grpc.WithInitialWindowSize(callWindow), grpc.WithInitialConnWindowSize(agentrpc.ConnWindow),
	)
	if err != nil {
		s.Log.Error("reach the leader", "leader", leader, "err", err)
		return
	}
	defer closing.Go(func() { _ = conn.Close() }) // which may wait for a dead network
	defer s.relay.set(nil)
	ctx, end := context.WithCancel(ctx)
	defer end()
	closing.Go(func() {
		defer end()
		// That no leader is known at the moment says little: this scheduler may have been short of time.
		for sleep.For(ctx, leaderLook) == nil && !s.Node.IsLeader() {
			if now := s.Leader(); now != "" && now != leader {
				return
			}
		}
	})
	hosts := agentrpc.NewHostsClient(conn)
	for heard := time.Now(); time.Since(heard) < s.HeartbeatTimeout; {
		asked, cancel := context.WithTimeout(ctx, s.HeartbeatTimeout-time.Since(heard))
		_, err := hosts.Vouch(asked, &agentrpc.VouchRequest{Address: s.Address})
		cancel()
		pause := leaderLook
		if err == nil {
			heard, pause = time.Now(), s.Heartbeat
			s.relay.set(hosts)
		}
		if sleep.For(ctx, pause) != nil {
			return
		}
	}
	s.Log.Info("the leader does not take sessions of hosts", "leader", leader) // it may be of an earlier release
}

// passage is a host's session that is passed on.
type passage struct {
	server *Server
	host   agentrpc.Link_SessionServer
	leader agentrpc.Hosts_SessionClient
	cancel context.CancelCauseFunc
	quiet  *time.Timer // runs while the host has the word
	heard  atomic.Int64
	busy   atomic.Bool // what the host said waits for the leader to take it

	down     sync.Mutex // held while the host is sent something
	lastSent atomic.Int64
	up       sync.Mutex // the same, of the leader

	// Of the goroutine that receives from the host.
	live   *agentrpc.Heartbeat // as the leader was told it last
	liveAt time.Time
}

// pass passes a session on until either end, or what is between, fails. cancel ends ctx. An error errNotYet says that nobody leads as
// far as this scheduler knows; with it comes what the host has said.
func (s *Server) pass(
	ctx context.Context, cancel context.CancelCauseFunc, host fleet.HostID, hello *agentrpc.Hello, stream agentrpc.Link_SessionServer,
) (*agentrpc.Hello, error) {
	to := s.relay.to()
	if to == nil {
		return hello, errNotYet
	}
	// The leader is told of the end when the host's own stream is over already.
	upward, end := context.WithCancel(metadata.AppendToOutgoingContext(context.WithoutCancel(ctx), hostHeader, string(host)))
	greeting := context.AfterFunc(ctx, end)
	leader, err := to.Session(upward)
	if err == nil {
		hello, err = greet(ctx, stream, leader, hello)
	}
	if lives := greeting(); err != nil || !lives {
		end()
		return hello, passError(err)
	}
	s.relay.passed.Add(1)
	defer s.relay.passed.Add(-1)
	p := &passage{server: s, host: stream, leader: leader, cancel: cancel}
	p.hears(time.Now()) // the greeting took its time, and it was not the host's
	p.quiet = time.AfterFunc(s.HeartbeatTimeout, p.silence)
	// Both end with the streams, a moment after this has returned: a Send or Recv in progress does not end before.
	go func() {
		defer end()
		cancel(p.passDown())
	}()
	go func() { cancel(p.passUp()) }()
	<-ctx.Done()
	p.quiet.Stop()
	time.AfterFunc(leaveTimeout, end)
	if s.relay.stops.Load() { // the host has to find another, as after a death
		end()
		return hello, s.notLeader(ctx)
	}
	p.leave()
	if err = passError(context.Cause(ctx)); errors.Is(err, errNotYet) {
		return nil, agentrpc.NotLeader(ctx, s.Address) // the leader has changed: the host is to say hello again
	}
	return nil, err
}

// passError returns what a host is told of the end of its session with the leader; errNotYet: the leader has changed.
func passError(err error) error {
	switch status.Code(err) {
	case codes.OK, codes.Unknown: // of this end
		return grpcOrStatus(err)
	case codes.Unavailable, codes.Canceled:
		return errNotYet
	}
	return err
}

// greet passes on what both ends say until the host is welcome. It returns the host's last hello.
func greet(
	ctx context.Context, host agentrpc.Link_SessionServer, leader agentrpc.Hosts_SessionClient, hello *agentrpc.Hello,
) (*agentrpc.Hello, error) {
	// Why the stream does not take it is what Recv tells.
	_ = leader.Send(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: hello}})
	for {
		msg, err := leader.Recv()
		if err == nil {
			err = host.Send(msg)
		}
		if err != nil || msg.GetWelcome() != nil {
			return hello, err
		}
		if msg.GetWhole() != nil {
			if hello, err = recvHello(ctx, host); err != nil {
				return nil, err
			}
			_ = leader.Send(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: hello}})
		}
	}
}

// hears notes that the host said something.
func (p *passage) hears(now time.Time) { p.heard.Store(now.UnixNano()) }

// silence is called when the host has said nothing for too long. It looks again a moment later: on a busy machine the clock may come
// before the reader.
func (p *passage) silence() {
	heard := p.heard.Load()
	time.AfterFunc(fraction(p.server.HeartbeatTimeout), func() {
		if p.heard.Load() == heard && !p.busy.Load() {
			p.cancel(errSilent)
		}
	})
}

// leave tells the leader that the session is over, and since when the host was not heard.
func (p *passage) leave() {
	p.up.Lock()
	defer p.up.Unlock()
	quiet := time.Since(time.Unix(0, p.heard.Load()))
	if p.leader.Send(&agentrpc.Up{Kind: &agentrpc.Up_Left{Left: &agentrpc.Left{QuietMs: quiet.Milliseconds()}}}) == nil {
		_ = p.leader.CloseSend()
	}
}

func (p *passage) passDown() error {
	for {
		msg, err := p.leader.Recv()
		if err != nil {
			return err
		}
		p.down.Lock()
		err = p.host.Send(msg)
		p.lastSent.Store(time.Now().UnixNano())
		p.down.Unlock()
		if err != nil {
			return err
		}
	}
}

func (p *passage) passUp() error {
	for {
		msg, err := p.host.Recv()
		if err != nil {
			return err
		}
		now := time.Now()
		p.hears(now)
		live := msg.GetHeartbeat()
		if live != nil {
			p.answer(now)
		}
		if live == nil || p.news(live, now) {
			p.tell(msg)
		}
		p.quiet.Reset(p.server.HeartbeatTimeout)
	}
}

// tell hands a message to the leader. Why a stream takes it no more is what the other direction tells.
func (p *passage) tell(msg *agentrpc.Up) {
	p.up.Lock()
	defer p.up.Unlock()
	p.busy.Store(true)
	defer p.busy.Store(false)
	_ = p.leader.Send(msg)
	p.hears(time.Now())
}

// answer sends a beat, unless the host was sent something a moment ago, or is sent something now.
func (p *passage) answer(now time.Time) {
	if now.Sub(time.Unix(0, p.lastSent.Load())) < p.server.Heartbeat/8 || !p.down.TryLock() {
		return
	}
	defer p.down.Unlock()
	if err := p.host.Send(plainBeat); err != nil {
		p.cancel(err)
	}
	p.lastSent.Store(now.UnixNano())
}

// news reports whether the leader is to hear what is live of the host's pods.
func (p *passage) news(live *agentrpc.Heartbeat, now time.Time) bool {
	if len(live.GetPods()) == 0 && len(p.live.GetPods()) == 0 || now.Sub(p.liveAt) < liveEvery && proto.Equal(live, p.live) {
		return false
	}
	p.live, p.liveAt = live, now
	return true
}
