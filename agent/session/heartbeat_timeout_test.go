package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestASilentSchedulerIsGivenUpAtTheSecondLook(t *testing.T) {
	const limit = 2400 * time.Millisecond
	for name, x := range map[string]struct {
		do  func(s *heartbeatTimeout) // at the first look
		end bool
	}{
		"nothing came":       {func(*heartbeatTimeout) {}, true},
		"something is read":  {func(s *heartbeatTimeout) { s.stop() }, false},
		"something was read": {func(s *heartbeatTimeout) { s.stop(); s.begin() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancelCause(t.Context())
				defer end(nil)
				s := newHeartbeatTimeout(limit, end)
				defer s.stop()
				time.Sleep(limit) // virtual
				synctest.Wait()
				if ctx.Err() != nil {
					t.Fatal("given up at the first look")
				}
				x.do(s)
				time.Sleep(limit / 2)
				synctest.Wait()
				if given := errors.Is(context.Cause(ctx), errSilence); given != x.end {
					t.Errorf("given up: %v", given)
				}
			})
		})
	}
}

// TestAClockThatWasStoppedEndsNothing, though it came to its end at the same moment.
func TestAClockThatWasStoppedEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancelCause(t.Context())
		defer end(nil)
		s := newHeartbeatTimeout(time.Second, end)
		round := s.rounds
		s.stop()
		s.over(round, false)
		s.over(round, true)
		if time.Sleep(time.Minute); ctx.Err() != nil {
			t.Error("given up")
		}
	})
}

func TestASchedulerThatNeedSayNothingIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancelCause(t.Context())
		defer end(nil)
		s := newHeartbeatTimeout(0, end)
		s.begin()
		time.Sleep(time.Hour) // virtual
		s.stop()
		if ctx.Err() != nil {
			t.Error("given up")
		}
	})
}
