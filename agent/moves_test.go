package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gantry/agent/ledger/ledgertest"
	"gantry/internal/link"
	"gantry/internal/pki"
)

// An agent that no scheduler answers moves, however long its container runtime takes to answer within its deadline. One whose
// own work does not end is stuck.
func TestOnlyAStuckLoopIsNoMove(t *testing.T) {
	ca, err := pki.NewCA("cluster", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	store, err := pki.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Enroll(ca, pki.Identity{Role: pki.RoleHost, ID: "host"}, time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	where, err := openDirectory(t.TempDir(), []string{"192.0.2.1:8443"})
	if err != nil {
		t.Fatal(err)
	}
	book := ledgertest.Open(t, t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		release := make(chan struct{})
		s := &sessions{
			where: where, store: store, ledger: book, log: slog.New(slog.DiscardHandler),
			dial: func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody is there") },
			hello: func() *link.Hello {
				time.Sleep(runtimeTimeout) // virtual
				if hangs.Load() {
					<-release
				}
				return &link.Hello{}
			},
		}
		d := &daemon{book: book, sessions: s}
		ctx, end := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); s.run(ctx) }()
		for range 600 {
			time.Sleep(time.Second)
			if !d.moves() {
				t.Fatal("without a scheduler it counts as stuck")
			}
		}
		hangs.Store(true)
		time.Sleep(workAtMost + time.Minute)
		if d.moves() {
			t.Error("its loop hangs, and it counts as moving")
		}
		close(release)
		synctest.Wait()
		time.Sleep(time.Minute)
		if !d.moves() {
			t.Error("it goes on, and counts as stuck")
		}
		end()
		<-over
		if !d.moves() {
			t.Error("while it stops it counts as stuck")
		}
	})
}

func TestAHungWriteIsNoMove(t *testing.T) {
	d := &daemon{book: ledgertest.Open(t, t.TempDir()), sessions: &sessions{}}
	begun, goesOn := make(chan struct{}), make(chan struct{})
	d.book.WhenWritten(func(time.Duration) { close(begun); <-goesOn })
	written := make(chan error, 1)
	go func() { written <- d.book.SetLineage(7) }()
	<-begun
	moved := make(chan bool, 1)
	go func() { moved <- d.moves() }()
	select {
	case <-moved:
		t.Error("it counts as moving while it writes")
	case <-time.After(20 * time.Millisecond): // what must not come
	}
	close(goesOn)
	if err := <-written; err != nil {
		t.Error(err)
	}
	if !<-moved {
		t.Error("it has written, and counts as stuck")
	}
}
