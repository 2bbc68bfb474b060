package balance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"gantry/fleet"
	"gantry/internal/sleep"
)

// State is how a worker is.
type State uint8

// The states.
const (
	Unknown      State = iota // it was not asked yet, or its host cannot be reached
	Initializing              // 204
	Ready                     // 200: it gets requests
	Unhealthy                 // anything else
	Silent                    // nothing listens on its port
)

// Health is what a scheduler knows of a worker.
type Health struct {
	State State
	Since time.Time // of State
	Text  string    // what is wrong; empty: nothing
	Cold  time.Duration
	began time.Time // of the first 204
}

// Health returns what is known of a worker of an endpoint.
func (b *Balancer) Health(endpoint fleet.EndpointID, id fleet.PodID) (Health, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pools[endpoint]; p != nil && p.workers[id] != nil {
		return p.workers[id].health, true
	}
	return Health{}, false
}

// maxAnswer is how many bytes of a worker's answer are read: its head, which a worker can make as long as it likes.
const maxAnswer = 16 << 10

// missesAllowed is how many questions in a row a worker may leave without an answer that does not stand for its ill health: one that
// computes may be late.
const missesAllowed = 2

// watch asks a worker how it is, until end is called. The caller holds mu.
func (b *Balancer) watch(p *pool, w *worker) {
	if w.frozen { // it cannot answer
		w.end = func() {}
		return
	}
	ctx, cancel := context.WithCancel(b.life)
	w.end = cancel
	host, id, at := w.host, w.id, w.at
	b.tasks.Go(func() {
		for ctx.Err() == nil {
			select {
			case b.asking <- struct{}{}:
			case <-ctx.Done():
				return
			}
			state, text, late := b.ask(ctx, host, id, at)
			<-b.asking
			if ctx.Err() != nil {
				return
			}
			pause := b.Pace.Starting
			if b.note(p, w, state, text, late) == Ready {
				pause = b.Pace.Ready
			}
			_ = sleep.For(ctx, pause)
		}
	})
}

// note keeps an answer, and returns how the worker is now.
func (b *Balancer) note(p *pool, w *worker, state State, text string, late bool) State {
	now := b.Now()
	b.mu.Lock()
	if w.misses++; !late {
		w.misses = 0
	}
	h := &w.health
	if late && h.State == Ready && w.misses <= missesAllowed {
		state, text = Ready, ""
	}
	if state == Initializing && h.began.IsZero() {
		h.began = now
	}
	if state == Ready && h.Cold == 0 && !h.began.IsZero() {
		h.Cold = now.Sub(h.began)
	}
	changed := h.State != state || h.Text != text
	if h.State != state || h.Since.IsZero() {
		h.State, h.Since = state, now
	}
	h.Text = text
	if changed {
		b.notice(p)
	}
	b.mu.Unlock()
	if changed {
		b.Log.Debug("health of a worker", "endpoint", p.id, "pod", w.id, "state", state, "text", text)
		if b.Changed != nil {
			b.Changed(p.id)
		}
	}
	return state
}

// ask asks a worker how it is. late: it did not answer in time.
func (b *Balancer) ask(ctx context.Context, host fleet.HostID, id fleet.PodID, at fleet.Serving) (state State, text string, late bool) {
	ctx, cancel := context.WithTimeout(ctx, b.Pace.Answer)
	defer cancel()
	status, err := b.get(ctx, host, id, at)
	switch {
	case silent(err):
		from := fleet.EnvHealthPort
		if at.Health == at.Port {
			from = fleet.EnvPort
		}
		return Silent, fmt.Sprintf("nothing listens on port %d (%s)", at.Health, from), false
	case ctx.Err() != nil:
		return Unhealthy, fmt.Sprintf("%s on port %d does not answer within %s", at.Path, at.Health, b.Pace.Answer), true
	case fleet.CodeOf(err) == fleet.CodeUnavailable:
		return Unknown, "", false
	case err != nil:
		return Unhealthy, fmt.Sprintf("%s on port %d breaks off before it answers", at.Path, at.Health), false
	case status == http.StatusNoContent:
		return Initializing, "", false
	case status != http.StatusOK:
		return Unhealthy, fmt.Sprintf("%s on port %d answers %d", at.Path, at.Health, status), false
	case at.Port == at.Health:
		return Ready, "", false
	}
	stream, err := b.Open(ctx, host, id, at.Port)
	if err != nil {
		return Silent, fmt.Sprintf("nothing listens on port %d (%s)", at.Port, fleet.EnvPort), false
	}
	_ = stream.Close()
	return Ready, "", false
}

// silent reports whether a host said that nothing takes connections.
func silent(err error) bool {
	var e *fleet.Error
	return errors.As(err, &e) && e.Msg == fleet.NothingListens
}

// get asks for the path of health.
func (b *Balancer) get(ctx context.Context, host fleet.HostID, id fleet.PodID, at fleet.Serving) (status int, err error) {
	stream, err := b.Open(ctx, host, id, at.Health)
	if err != nil {
		return 0, err
	}
	defer func() { _ = stream.Close() }()
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://worker"+at.Path, http.NoBody)
	if err != nil {
		return 0, err
	}
	r.Close = true
	r.Header.Set("User-Agent", "gantry-health")
	if err := r.Write(stream); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(io.LimitReader(stream, maxAnswer), 4<<10), r)
	if err != nil {
		return 0, err
	}
	_ = resp.Body.Close()
	return resp.StatusCode, nil
}
