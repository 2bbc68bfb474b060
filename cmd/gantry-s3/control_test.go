package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"gantry/internal/ipc"
)

// An answer that comes when its question was given up is nobody's: neither it nor its descriptor goes to the next question.
func TestALateAnswerIsNotTakenForTheNext(t *testing.T) {
	here, there, err := ipc.Pair()
	must(t, err)
	sock, err := ipc.Socket(there)
	must(t, err)
	conn := ipc.NewConn(sock, maxControl)
	slow := make(chan struct{})
	s := &supervisor{conf: servingConfig{Region: "EU-RO-1"}, tls: func() (servingTLS, error) { <-slow; return servingTLS{Cert: []byte("late")}, nil }}
	answered := make(chan struct{})
	go func() { defer close(answered); s.answer(context.Background(), here, func() {}) }()
	t.Cleanup(func() {
		conn.Close()
		_ = here.Close()
		<-answered
	})
	c := &control{conn: conn, within: 10 * time.Millisecond}
	if _, err := c.ask(t.Context(), askTLS, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a question without an answer: %v", err)
	}
	close(slow)
	c.within = controlWithin
	for range 2 {
		var conf servingConfig
		if _, err := c.ask(t.Context(), askConfig, &conf); err != nil || conf.Region != "EU-RO-1" {
			t.Errorf("got %+v, %v", conf, err)
		}
	}
	var pem servingTLS
	if _, err := c.ask(t.Context(), askTLS, &pem); err != nil || string(pem.Cert) != "late" {
		t.Errorf("got %q, %v", pem.Cert, err)
	}
}
