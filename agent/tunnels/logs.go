package tunnels

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"gantry/agent/logs"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// podLog sends a pod's log.
func (t *Tunnels) podLog(ctx context.Context, stream agentrpc.Frames, ask *agentrpc.OpenTunnel) error {
	target := ask.GetLogs()
	id := fleet.PodID(target.GetPodId())
	if _, ok := t.Ledger.Record(id); !ok && !t.Logs.Has(id) {
		return stream.Send(t.refusal(ask, fleet.NotAllowed("the pod's host has no log of it: it has not heard of the pod yet, or removed the log of a stopped pod to make room")))
	}
	within, err := t.Logs.Span(id, target.GetPrevious())
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	if err := stream.Send(&agentrpc.Frame{Id: ask.GetId()}); err != nil {
		return err
	}
	// The scheduler sends nothing: receiving ends when it lets go of the tunnel.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		_, _ = stream.Recv()
	}()
	q := fleet.LogQuery{
		Source: target.GetSource(), Tail: min(int(target.GetTail()), logs.MaxTail), After: target.GetAfter(),
		Follow: target.GetFollow() && !target.GetPrevious(),
	}
	if target.GetSinceNs() != 0 {
		q.Since = time.Unix(0, target.GetSinceNs())
	}
	err = t.Logs.Read(ctx, id, q, within, func(line fleet.LogLine) error {
		data, err := json.Marshal(line)
		if err != nil {
			return err
		}
		return stream.Send(&agentrpc.Frame{Data: append(data, '\n')})
	})
	last := &agentrpc.Frame{End: true}
	if err != nil && ctx.Err() == nil {
		last.Error = "the log could not be read"
		t.Log.Warn("read a pod's log", "pod", target.GetPodId(), "err", err)
	}
	sendErr := stream.Send(last)
	_ = stream.CloseSend()
	<-done
	return errors.Join(err, sendErr)
}
