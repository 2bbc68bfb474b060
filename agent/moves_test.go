package agent

import (
	"testing"
	"time"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/session"
)

func TestAHungWriteIsNoMove(t *testing.T) {
	s, err := session.New(session.Config{})
	if err != nil {
		t.Fatal(err)
	}
	d := &agent{host: &host{book: ledgertest.Open(t, t.TempDir())}, sessions: s}
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
