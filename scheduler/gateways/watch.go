package gateways

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/sleep"
	"gantry/scheduler/membership"
	"gantry/scheduler/routes"
	"gantry/scheduler/state"
)

const (
	beat       = time.Second           // at least one part in so much time
	looksApart = 10 * time.Millisecond // so that a busy state is not looked at for each of its changes
	partItems  = 1000                  // of one part, each of at most some hundred bytes
)

var errAnotherWatch = errors.New("the gateway watches anew")

// Watch implements agentrpc.RoutesServer.
func (s *Server) Watch(_ *agentrpc.WatchRequest, stream agentrpc.Routes_WatchServer) error {
	id, err := membership.GatewayOf(stream.Context(), s.Store)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer s.begin(id, cancel)()
	w := &watch{Server: s, gateway: id, send: stream.Send, endpoints: map[fleet.EndpointID]*agentrpc.RouteEndpoint{}}
	if err = w.run(ctx); ctx.Err() != nil {
		return status.Error(codes.Aborted, context.Cause(ctx).Error())
	}
	return err
}

// begin ends the watch of before of a gateway. What it returns ends this one.
func (s *Server) begin(id fleet.GatewayID, cancel context.CancelCauseFunc) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.watches[id]; old != nil {
		(*old)(errAnotherWatch)
	}
	s.watches[id] = &cancel
	return func() {
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watches[id] == &cancel {
			delete(s.watches, id)
		}
	}
}

// watch is what one gateway is told.
type watch struct {
	*Server
	gateway   fleet.GatewayID
	send      func(*agentrpc.RoutesPart) error
	seen      uint64
	control   *agentrpc.RoutesControl
	endpoints map[fleet.EndpointID]*agentrpc.RouteEndpoint // that it was told of
}

func (w *watch) run(ctx context.Context) error {
	whole := false // it has a view, and the store knows all that has changed since
	for {
		var parts []*agentrpc.RoutesPart
		var err error
		if whole {
			parts, whole, err = w.changes()
		}
		if err == nil && !whole {
			parts, err = w.all()
			whole = true
		}
		if err != nil {
			return err
		}
		if parts[len(parts)-1].Control, err = w.controlNow(); err != nil {
			return err
		}
		for _, part := range parts {
			if err := w.send(part); err != nil {
				return err
			}
		}
		if err := w.wait(ctx); err != nil {
			return err
		}
	}
}

// wait returns when there may be something to tell, or the gateway is to hear a beat.
func (w *watch) wait(ctx context.Context) error {
	if err := sleep.For(ctx, looksApart); err != nil {
		return err
	}
	leader := w.Node.LeaderChanges()
	quiet, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	go func() { // ends with quiet
		select {
		case <-leader:
			cancel()
		case <-quiet.Done():
		}
	}()
	_ = w.Store.Wait(quiet, w.seen)
	return ctx.Err()
}

// controlNow is what the gateway has to know of the control plane; nil: what it was told. Errors: it was removed.
func (w *watch) controlNow() (*agentrpc.RoutesControl, error) {
	now := &agentrpc.RoutesControl{Leader: w.Leader()}
	var pem []byte
	known := false
	err := w.Store.View(func(v *state.View) error {
		g, ok := v.Gateway(w.gateway)
		known, now.Draining, now.Schedulers = ok, !g.Draining.IsZero(), membership.Addresses(v)
		c, _ := v.Cluster()
		pem = c.Trusted()
		return nil
	})
	if err != nil {
		return nil, status.Error(codes.Unavailable, "the state cannot be read")
	}
	if !known {
		return nil, status.Error(codes.PermissionDenied, "this gateway was removed from the cluster")
	}
	cas, err := pki.ParseTrust(pem)
	if err != nil {
		return nil, status.Error(codes.Internal, "internal error")
	}
	now.Cas = pki.RawCerts(cas)
	if proto.Equal(now, w.control) {
		return nil, nil
	}
	w.control = now
	return now, nil
}

// list are parts that grow as things are added.
type list struct{ parts []*agentrpc.RoutesPart }

// part returns the part that the next thing is added to.
func (l *list) part() *agentrpc.RoutesPart {
	if n := len(l.parts); n > 0 {
		p := l.parts[n-1]
		if len(p.GetPods())+len(p.GetEndpoints())+len(p.GetHosts())+len(p.GetGonePods())+len(p.GetGoneEndpoints())+len(p.GetGoneHosts()) < partItems {
			return p
		}
	}
	p := &agentrpc.RoutesPart{}
	l.parts = append(l.parts, p)
	return p
}

// done marks the last part.
func (l *list) done(index uint64) []*agentrpc.RoutesPart {
	last := l.part()
	last.Whole, last.Index = true, index
	return l.parts
}

// all is a view.
func (w *watch) all() ([]*agentrpc.RoutesPart, error) {
	var pods []*fleet.Pod
	var endpoints []*fleet.Endpoint
	var hosts []*fleet.Host
	err := w.Store.View(func(v *state.View) error {
		w.seen, hosts = v.Index(), v.HostRows()
		pods, endpoints = v.Routed()
		return nil
	})
	if err != nil {
		return nil, status.Error(codes.Unavailable, "the state cannot be read")
	}
	out := &list{}
	out.part().Anew = true
	clear(w.endpoints)
	queues := map[string]bool{}
	for _, e := range endpoints {
		if e.Spec.Type != fleet.EndpointBalanced {
			queues[string(e.ID)] = true
			continue
		}
		w.endpoints[e.ID] = routes.EncodeEndpoint(e)
		p := out.part()
		p.Endpoints = append(p.Endpoints, w.endpoints[e.ID])
	}
	for _, pod := range pods {
		p := out.part()
		p.Pods = append(p.Pods, routes.EncodePod(pod, pod.Owner.Kind == fleet.OwnerEndpoint && !queues[pod.Owner.ID]))
	}
	for _, h := range hosts {
		p := out.part()
		p.Hosts = append(p.Hosts, routes.EncodeHost(h))
	}
	return out.done(w.seen), nil
}

// changes is what has changed since; ok: that is all.
// What changed while it is read is told with the next changes once more.
func (w *watch) changes() (parts []*agentrpc.RoutesPart, ok bool, err error) {
	events, upTo, ok := w.Store.Events(w.seen)
	if !ok {
		return nil, false, nil
	}
	out := &list{}
	pods, hosts, accounts := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, e := range events {
		switch e.Kind {
		case state.KindPod:
			pods[e.ID] = true
		case state.KindHost:
			hosts[e.ID] = true
		case state.KindAccount:
			accounts[e.ID] = true
		}
	}
	err = w.Store.View(func(v *state.View) error {
		for id := range pods {
			w.pod(v, out.part(), fleet.PodID(id))
		}
		for id := range hosts {
			p := out.part()
			if h, ok := v.Host(fleet.HostID(id)); ok {
				p.Hosts = append(p.Hosts, routes.EncodeHost(&h))
			} else {
				p.GoneHosts = append(p.GoneHosts, id)
			}
		}
		for id := range accounts {
			w.account(v, out, id)
		}
		return nil
	})
	if err != nil {
		return nil, false, status.Error(codes.Unavailable, "the state cannot be read")
	}
	w.seen = upTo
	return out.done(w.seen), true, nil
}

func (w *watch) pod(v *state.View, part *agentrpc.RoutesPart, id fleet.PodID) {
	p, ok := v.Pod(id)
	if ok {
		worker := p.Owner.Kind == fleet.OwnerEndpoint
		if e, there := state.Find[fleet.Endpoint](v, p.Owner.ID); worker && there {
			worker = e.Spec.Type == fleet.EndpointBalanced
		}
		if in := routes.EncodePod(&p, worker); in != nil {
			part.Pods = append(part.Pods, in)
			return
		}
	}
	part.GonePods = append(part.GonePods, string(id))
}

// account tells of an account's endpoints that balance what is new.
func (w *watch) account(v *state.View, out *list, account string) {
	there := map[fleet.EndpointID]bool{}
	for _, e := range state.List[fleet.Endpoint](v, fleet.AccountID(account)) {
		if e.Spec.Type != fleet.EndpointBalanced {
			continue
		}
		there[e.ID] = true
		if now := routes.EncodeEndpoint(&e); !proto.Equal(now, w.endpoints[e.ID]) {
			w.endpoints[e.ID] = now
			p := out.part()
			p.Endpoints = append(p.Endpoints, now)
		}
	}
	for id, e := range w.endpoints {
		if e.GetAccountId() == account && !there[id] {
			delete(w.endpoints, id)
			p := out.part()
			p.GoneEndpoints = append(p.GoneEndpoints, string(id))
		}
	}
}
