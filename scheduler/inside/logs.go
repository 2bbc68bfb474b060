package inside

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// Logs streams a pod's log from its host to sink until it ends or ctx does.
func (open Opener) Logs(ctx context.Context, host fleet.HostID, pod fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error {
	target := &agentrpc.LogTarget{
		PodId: string(pod), Source: q.Source, Tail: int32(q.Tail), After: q.After, Follow: q.Follow, Previous: q.Previous, //nolint:gosec // bounded
	}
	if !q.Since.IsZero() {
		target.SinceNs = q.Since.UnixNano()
	}
	c, err := open(ctx, host, &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Logs{Logs: target}})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	lines := bufio.NewScanner(c)
	lines.Buffer(make([]byte, 0, frameSize), maxLogLine)
	for lines.Scan() {
		var line fleet.LogLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return cmp.Or(logEnd(ctx, lines), err) // half a line is what is left when the tunnel breaks
		}
		if err := sink(line); err != nil {
			return err
		}
	}
	return logEnd(ctx, lines)
}

// logEnd tells why a log has ended; nil when it was complete.
func logEnd(ctx context.Context, lines *bufio.Scanner) error {
	err := lines.Err()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fleet.Unavailable("the pod's host was lost while its log was read", err)
	}
	return err
}
