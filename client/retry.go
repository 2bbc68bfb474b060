package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"

	"gantry/internal/sleep"
)

// How often and how long a call is repeated. Whoever asks to wait longer than repeatFor is not waited for.
const (
	repeatTries = 3 // after the first
	repeatFor   = 20 * time.Second
	repeatPause = 100 * time.Millisecond // before the second try; doubles with each
)

// repeat calls f until it succeeds or fails for good. safe says that f may be carried out twice; what the API refused
// because of its rate limits, or before it did anything, was not carried out, so that is repeated anyway.
func (c *Client) repeat(ctx context.Context, safe bool, f func() error) error {
	until := time.Now().Add(repeatFor)
	for try := 0; ; try++ {
		err := f()
		if err == nil || c.once || try == repeatTries || !passing(err, safe) {
			return err
		}
		pause := repeatPause << try
		var problem *Problem
		if errors.As(err, &problem) {
			pause = max(pause, problem.RetryAfter)
		}
		if time.Now().Add(pause).After(until) {
			return err
		}
		if sleep.For(ctx, pause) != nil {
			return context.Cause(ctx)
		}
	}
}

// passing reports whether another try may fare better. Nobody listening, or no such name, is told at once: that is
// most often a wrong address.
func passing(err error, safe bool) bool {
	var problem *Problem
	if errors.As(err, &problem) && (problem.Status == http.StatusTooManyRequests || problem.NothingDone) {
		return true
	}
	var dns *net.DNSError
	return safe && Temporary(err) && !errors.Is(err, syscall.ECONNREFUSED) && !errors.As(err, &dns)
}
