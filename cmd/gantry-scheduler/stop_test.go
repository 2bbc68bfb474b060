package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
)

// A stop lets a request end that was sent on to the leader.
func TestAStopLetsForwardedRequestsEnd(t *testing.T) {
	w := three(t)
	stops := w.all[0]
	if stops == w.leader() {
		stops = w.all[1]
	}
	body, rest := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+stops.api+"/admin/v1/accounts", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.keys.AdminKey)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Expect", "100-continue") // the first write below returns when the scheduler reads it
	transport := &http.Transport{ExpectContinueTimeout: patience}
	defer transport.CloseIdleConnections()
	done := make(chan error, 1)
	go func() {
		resp, err := transport.RoundTrip(req)
		if err == nil {
			out, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusCreated {
				err = fmt.Errorf("%d %s", resp.StatusCode, out)
			}
		}
		_ = body.CloseWithError(io.ErrClosedPipe)
		done <- err
	}()
	if _, err := rest.Write([]byte(`{"name":"slow"`)); err != nil {
		t.Fatal(err)
	}
	if err := stops.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	w.eventually("it takes no new connections", func() bool {
		conn, err := net.Dial("tcp", stops.api)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	if _, err := rest.Write([]byte(`}`)); err != nil {
		t.Fatal(err)
	}
	if err := rest.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the request was cut: %v", err)
	}
	if err := stops.ended(); err != nil {
		t.Errorf("the stop ended with %v", err)
	}
	stops.cmd = nil
}

// The leader's side of it: what another scheduler has sent on may end.
func TestDrainWaitsForRequests(t *testing.T) {
	began, end := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-end
		w.WriteHeader(http.StatusNoContent)
	}))
	defer s.Close()
	answered := make(chan error, 1)
	go func() {
		resp, err := s.Client().Get(s.URL)
		if err == nil {
			err = resp.Body.Close()
		}
		answered <- err
	}()
	<-began
	stopping := make(chan struct{})
	s.Config.RegisterOnShutdown(func() { close(stopping) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // as the daemon's is
	drained := make(chan error, 1)
	go func() { drained <- drain(ctx, s.Config) }()
	<-stopping
	close(end)
	if err := <-answered; err != nil {
		t.Errorf("the request was cut: %v", err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}
