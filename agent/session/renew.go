package session

import (
	"context"
	"crypto/x509"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"

	"gantry/internal/pki"
	"gantry/internal/sleep"
)

const (
	renewRetry  = time.Minute
	renewSpread = 2 * time.Second  // in which all hosts ask when another CA signs
	renewSooner = 10 * time.Second // instead of renewRetry, then
)

// renewal is when the certificate is due. It outlives sessions, of which none needs to last until then.
type renewal struct {
	fraction float64   // which part of the time in which it may be renewed passes first
	next     time.Time // not before
	retry    time.Time // the same, when another CA is to sign it
}

func (r *renewal) wait(leaf *x509.Certificate) time.Duration {
	return max(time.Until(pki.RenewAt(leaf, r.fraction)), time.Until(r.next))
}

// renewInTime trades the certificate for a fresh one at a random point between half and four fifths
// of its life, and again every minute while that fails; within moments when another CA signs by now.
func (s *Sessions) renewInTime(ctx context.Context, conn *grpc.ClientConn) error {
	for {
		leaf, err := s.Store.Leaf()
		if err != nil {
			return err
		}
		wait := s.renewal.wait(leaf)
		if s.Store.Outdated() || s.ousted.Load() {
			wait = max(rand.N(renewSpread), time.Until(s.renewal.retry))
		}
		again, err := sleep.Or(ctx, wait, s.renewNow)
		if err != nil {
			return err
		}
		if again {
			continue
		}
		err = renew(ctx, conn, s.Store)
		if ctx.Err() != nil {
			return context.Cause(ctx) // the session's end, which says nothing: the next one tries at once
		}
		s.renewal.next = time.Now().Add(renewRetry)
		if err != nil {
			s.renewal.retry = time.Now().Add(renewSooner)
			s.Log.Warn("renew the host's certificate", "err", err)
			continue
		}
		s.renewal.fraction = rand.Float64()
		s.ousted.Store(false)
		s.Changed.Ring()
		s.Log.Info("host certificate renewed")
	}
}

// trust makes the CAs that the scheduler names those that the host trusts; none: those that could not be taken before. What it
// holds is on disk before the scheduler is told.
func (s *Sessions) trust(cas [][]byte) {
	again := len(cas) == 0
	if again {
		cas = s.untaken
	}
	s.untaken = nil
	if len(cas) == 0 {
		return
	}
	certs, err := pki.ParseTrustDER(cas)
	if err == nil {
		err = s.Store.Trust(certs...)
	}
	switch {
	case errors.Is(err, pki.ErrEarlier):
	case errors.Is(err, pki.ErrOusted):
		s.untaken = cas // a beat after the new certificate
		if s.ousted.Swap(true) {
			return // it is being asked for
		}
	case err != nil:
		s.untaken = cas // the next beat comes soon
		if !again {
			s.Log.Error("keep which CAs are trusted", "err", err)
		}
		return
	default:
		s.ousted.Store(false)
		s.Changed.Ring()
	}
	if s.Store.Outdated() || s.ousted.Load() {
		s.renewNow.Ring()
	}
}
