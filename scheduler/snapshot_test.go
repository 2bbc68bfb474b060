package scheduler

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gantry/scheduler/backup"
)

// office is a world that leads for a while.
type office struct {
	*world
	over atomic.Bool
}

func (o *office) IsLeader() bool { return !o.over.Load() }

// slowClient calls hook at the first byte.
type slowClient struct {
	bytes.Buffer
	hook func()
}

func (c *slowClient) Write(p []byte) (int, error) {
	if c.hook != nil {
		c.hook()
		c.hook = nil
	}
	return c.Buffer.Write(p)
}

func TestASnapshotEndsWithLeadershipThoughItsClientIsSlow(t *testing.T) {
	w := newWorld(t)
	o := &office{world: w}
	w.svc.Node = o
	synctest.Test(t, func(t *testing.T) {
		var whole slowClient
		if err := w.svc.SaveSnapshot(t.Context(), &whole); err != nil {
			t.Fatal(err)
		}
		if _, err := backup.Inspect(&whole.Buffer, backup.Keys{}); err != nil {
			t.Error(err)
		}
		err := w.svc.SaveSnapshot(t.Context(), &slowClient{hook: func() {
			o.over.Store(true)
			time.Sleep(2 * leadCheck)
		}})
		if !errors.Is(err, errDeposed) {
			t.Errorf("deposed: %v", err)
		}
		o.over.Store(false)
		if err := w.svc.SaveSnapshot(t.Context(), &slowClient{hook: func() { time.Sleep(2 * snapshotStall) }}); err == nil {
			t.Error("a client that takes nothing holds the state's pages for ever")
		}
	})
}
