package volumes

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gantry/agent/volumes/volumestest"
	"gantry/fleet"
	"gantry/storage/volume"
)

// TestWhatIsAttachedForNobodyIsLetGoOf: after a lost ledger, and once unknown containers are gone.
func TestWhatIsAttachedForNobodyIsLetGoOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &volumestest.Mounts{Notify: make(chan struct{}, 1)}
		for _, id := range []fleet.PodID{"p1", "lost"} {
			if _, err := m.Attach(t.Context(), id, volume.Volume{}); err != nil {
				t.Fatal(err)
			}
		}
		var swept atomic.Bool
		changed := make(chan struct{}, 1)
		k := &Keeper{
			Mounts: m, Known: func(id fleet.PodID) bool { return id == "p1" }, Swept: swept.Load,
			Changed: func() { changed <- struct{}{} }, Log: slog.New(slog.DiscardHandler),
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { k.Run(ctx); close(ended) }()
		time.Sleep(sweepEvery + time.Second)
		if got, _ := m.Attached(); len(got) != 2 {
			t.Errorf("before the containers are looked at: %v", got)
		}
		swept.Store(true)
		time.Sleep(sweepEvery + time.Second)
		if got, _ := m.Attached(); !slices.Equal(got, []fleet.PodID{"p1"}) {
			t.Errorf("after: %v", got)
		}
		m.Notify <- struct{}{}
		<-changed
		cancel()
		<-ended
	})
}

func TestAttachingIsTimed(t *testing.T) {
	m, times := &volumestest.Mounts{}, 0
	v := Timed(m, func(time.Duration) { times++ })
	if _, err := v.Attach(t.Context(), "p", volume.Volume{}); err != nil {
		t.Fatal(err)
	}
	m.Fail = errors.New("gone")
	if _, err := v.Attach(t.Context(), "p", volume.Volume{}); err == nil {
		t.Fatal("no error")
	}
	if times != 1 {
		t.Errorf("%d attachments were timed", times)
	}
}
