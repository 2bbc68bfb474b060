package survive

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"gantry/fleet"
	"gantry/test/devtest"
)

// counts are what an agent has that must not grow with what it has done.
type counts struct{ files, goroutines int }

func (h *host) counts(metrics string) (c counts, err error) {
	if c.files, err = devtest.OpenFiles(h.agent.pid()); err != nil {
		return c, err
	}
	// One connection for one question: what is open is counted.
	web := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := web.Get("http://" + metrics + "/metrics")
	if err != nil {
		return c, err
	}
	text, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return c, err
	}
	for line := range strings.Lines(string(text)) {
		if number, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			c.goroutines, err = strconv.Atoi(strings.TrimSpace(number))
			return c, err
		}
	}
	return c, errors.New("the metrics do not tell how many goroutines there are")
}

// lives lets so many pods live and go, side by side.
func (h *host) lives(first, n int) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			l := &life{host: h, number: first + i}
			for _, a := range acts {
				if _, err := l.cut(a, ""); err != nil {
					errs[i] = fmt.Errorf("%s: %w", a.name, err)
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// TestAgentHoldsNothingOfWhatIsGone counts the files and goroutines of an agent before and after many pods.
func TestAgentHoldsNothingOfWhatIsGone(t *testing.T) {
	w := newWorld(t)
	metrics := freePort(t)
	w.unusual = []string{"--metrics", metrics}
	h := w.newHost("grows", "points")
	stays, pids := h.running(74001) // it has what every agent with a pod has
	if err := h.lives(74100, 4); err != nil {
		t.Fatal(err)
	}
	before, err := h.settled(metrics, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.lives(74200, 10); err != nil {
		t.Fatal(err)
	}
	after, err := h.settled(metrics, &before)
	t.Logf("before %+v, after %+v", before, after)
	if err != nil {
		t.Error(err)
	}
	if err := errors.Join(stays.undisturbed(pids), w.is(stays.pod, fleet.StatusRunning, 1)); err != nil {
		t.Error(err)
	}
	h.gone(stays)
}

// settled counts until two counts in a row are equal and, when there is a count of before, none is above it.
func (h *host) settled(metrics string, before *counts) (now counts, err error) {
	var last counts
	err = devtest.Until(patience, func() error {
		last, err = now, nil
		if now, err = h.counts(metrics); err != nil {
			return err
		}
		if before != nil && (now.files > before.files || now.goroutines > before.goroutines) {
			return fmt.Errorf("%+v, before it was %+v", now, *before)
		}
		if now != last {
			return errors.New("it still changes")
		}
		return nil
	})
	return now, err
}
