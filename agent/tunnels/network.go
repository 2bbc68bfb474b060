package tunnels

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

const (
	pingingPods = 64   // of which echoes are sent at once, for whomever
	maxProbes   = 8192 // of one tunnel
	showTimeout = 10 * time.Second
)

// network answers with the host's network, or with who of its pods reaches whom.
func (t *Tunnels) network(ctx context.Context, stream agentrpc.Frames, ask *agentrpc.OpenTunnel) error {
	probes := ask.GetNetwork().GetProbes()
	all := 0
	for _, p := range probes {
		all += len(p.GetTo())
	}
	switch {
	case t.Overlays == nil:
		return stream.Send(t.refusal(ask, fleet.Unavailable("this host takes no part in private networks", nil)))
	case all > maxProbes:
		return stream.Send(t.refusal(ask, fleet.NotAllowed("%d probes are too many at once", all)))
	case len(probes) == 0:
		return t.showNetwork(ctx, stream, ask)
	}
	if err := stream.Send(&agentrpc.Frame{Id: ask.GetId()}); err != nil {
		return err
	}
	var mu sync.Mutex // of the stream
	tell := func(p fleet.Probe) error {
		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		return stream.Send(&agentrpc.Frame{Data: append(text, '\n')})
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pingingPods)
	for _, from := range probes {
		group.Go(func() error { return t.probe(ctx, from, tell) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return stream.Send(&agentrpc.Frame{End: true})
}

func (t *Tunnels) showNetwork(ctx context.Context, stream agentrpc.Frames, ask *agentrpc.OpenTunnel) error {
	ctx, cancel := context.WithTimeout(ctx, showTimeout)
	defer cancel()
	is, err := t.Overlays.Show(ctx, t.Public())
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	text, err := json.Marshal(is)
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	if err := stream.Send(&agentrpc.Frame{Id: ask.GetId()}); err != nil {
		return err
	}
	for len(text) > 0 {
		n := min(len(text), frameSize)
		if err := stream.Send(&agentrpc.Frame{Data: text[:n]}); err != nil {
			return err
		}
		text = text[n:]
	}
	return stream.Send(&agentrpc.Frame{End: true})
}

// probe tells whom one pod reaches.
func (t *Tunnels) probe(ctx context.Context, ask *agentrpc.ProbeFrom, tell func(fleet.Probe) error) error {
	from := fleet.PodID(ask.GetPodId())
	to := make([]netip.Addr, 0, len(ask.GetTo()))
	for _, p := range ask.GetTo() {
		if addr, _ := netip.ParseAddr(p.GetAddr()); addr.Is4() {
			to = append(to, addr)
		}
	}
	took, err := t.ping(ctx, from, to)
	problem := "no answer came within a second"
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		t.Log.Warn("ping from a pod", "pod", from, "err", err)
		problem = "the pod's network could not be used"
		var known *fleet.Error
		if errors.As(err, &known) {
			problem = known.Msg
		}
	}
	for _, p := range ask.GetTo() {
		out := fleet.Probe{From: from, To: fleet.PodID(p.GetPodId()), Addr: p.GetAddr(), Problem: problem}
		if addr, _ := netip.ParseAddr(p.GetAddr()); took[addr] > 0 {
			out.Millis, out.Problem = float64(took[addr])/float64(time.Millisecond), ""
		}
		if err := tell(out); err != nil {
			return err
		}
	}
	return nil
}

// ping sends echoes from a pod that runs here.
func (t *Tunnels) ping(ctx context.Context, from fleet.PodID, to []netip.Addr) (map[netip.Addr]time.Duration, error) {
	if _, here := t.address(from); !here {
		return nil, fleet.NotAllowed("the pod does not run")
	}
	select {
	case t.pinging <- struct{}{}:
		defer func() { <-t.pinging }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p, err := t.Pinger(from)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return p.Ping(ctx, to)
}
