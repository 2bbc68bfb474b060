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
	asked, slow := make(chan struct{}, 2), make(chan struct{})
	s := &supervisor{conf: servingConfig{Region: "EU-RO-1"}, tls: func() (servingTLS, error) {
		asked <- struct{}{}
		<-slow
		return servingTLS{Cert: []byte("late")}, nil
	}}
	answered := make(chan struct{})
	go func() { defer close(answered); s.answer(context.Background(), here, func() {}) }()
	t.Cleanup(func() {
		conn.Close()
		_ = here.Close()
		<-answered
	})
	c := &control{conn: conn, within: time.Minute}
	ctx, giveUp := context.WithCancel(t.Context())
	go func() { <-asked; giveUp() }()
	if _, err := c.ask(ctx, askTLS, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("a question without an answer: %v", err)
	}
	close(slow)
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
