package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gantry/internal/ipc"
	"gantry/internal/share"
	"gantry/storage/s3"
	"gantry/storage/s3/broker"
)

const (
	headerWithin = 10 * time.Second
	idleClient   = 2 * time.Minute
	maxHeader    = 64 << 10 // bytes
	maxClients   = 4096     // connections
	drainWithin  = 20 * time.Second
	tlsEvery     = time.Minute
)

// serve is the serving process. It has a listener, the supervisor to ask, and nothing else.
func serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := settled(); err != nil {
		return fmt.Errorf("gantry-s3 needs a confined process to serve: %w", err)
	}
	sock, err := ipc.Socket(os.NewFile(controlFD, "control"))
	if err != nil {
		return fmt.Errorf("the supervisor: %w", err)
	}
	super := &control{conn: ipc.NewConn(sock, maxControl), within: controlWithin}
	defer super.conn.Close()
	var conf servingConfig
	if _, err := super.ask(ctx, askConfig, &conf); err != nil {
		return fmt.Errorf("ask the supervisor: %w", err)
	}
	level := slog.LevelInfo
	if conf.Debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	file := os.NewFile(listenFD, "listener")
	l, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("the listener: %w", err)
	}
	_ = file.Close() // l is a copy
	l = share.Listen(l, share.Seats{All: maxClients, Each: conf.PerAddress})
	seen := newMetrics(conf)
	ctx, cancel := context.WithCancel(ctx)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer cancel()
	if conf.TLS {
		pairs := &certificates{super: super, seen: seen, log: log}
		if err := pairs.load(ctx); err != nil {
			return fmt.Errorf("the certificate: %w", err)
		}
		loops.Go(func() { pairs.renew(ctx) })
		l = pairs.before(l)
	}
	client := broker.NewClient(seen.dialling(super.dial))
	defer client.Close()
	src := newSource(client, conf.Region, log)
	loops.Go(func() { src.tidy(ctx) })
	if _, err := super.ask(ctx, askReady, nil); err != nil {
		return fmt.Errorf("tell the supervisor: %w", err)
	}
	loops.Go(func() { seen.serve(ctx, conf, super, log) })
	h := s3.New(s3.Config{Source: src, Region: conf.Region, Domains: conf.Domains, Origins: conf.Origins, Log: log})
	loops.Go(func() { sayAlive(ctx, super, h, conf.Alive, log) })
	return serveHTTP(ctx, l, seen.counted(h), log)
}

// sayAlive tells the supervisor again and again until ctx ends that requests are answered. Each time it asks the handler itself, without
// a key and past the counters; a handler that does not answer keeps it from telling.
func sayAlive(ctx context.Context, super *control, h http.Handler, every time.Duration, log *slog.Logger) {
	if every == 0 {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		h.ServeHTTP(unread{}, (&http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}, Body: http.NoBody}).WithContext(ctx))
		if _, err := super.ask(ctx, askAlive, nil); err != nil {
			log.Warn("notify the service manager", "err", err)
		}
	}
}

// unread is an answer that nobody reads.
type unread struct{}

// Header implements http.ResponseWriter.
func (unread) Header() http.Header { return http.Header{} }

// WriteHeader implements http.ResponseWriter.
func (unread) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (unread) Write(p []byte) (int, error) { return len(p), nil }

// serveHTTP answers clients until ctx ends, and those that it has begun with for a while longer.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	var protocols http.Protocols
	protocols.SetHTTP1(true) // all that S3's clients speak
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: headerWithin, IdleTimeout: idleClient, MaxHeaderBytes: maxHeader, Protocols: &protocols,
		ConnState: share.State,
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainWithin)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		log.Warn("requests were interrupted by shutdown", "err", err)
		_ = server.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// certificates has the certificate that the supervisor has at the time.
type certificates struct {
	super *control
	seen  *metrics
	log   *slog.Logger
	now   atomic.Pointer[tls.Certificate]
}

func (c *certificates) load(ctx context.Context) error {
	var pem servingTLS
	if _, err := c.super.ask(ctx, askTLS, &pem); err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(pem.Cert, pem.Key)
	if err != nil {
		return err
	}
	c.now.Store(&pair)
	c.seen.certificate(pair.Leaf)
	return nil
}

// renew loads it again and again until ctx ends.
func (c *certificates) renew(ctx context.Context) {
	tick := time.NewTicker(tlsEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := c.load(ctx); err != nil {
			c.log.Error("the certificate could not be read again; the old one counts", "err", err)
		}
	}
}

// before puts TLS before a listener.
func (c *certificates) before(l net.Listener) net.Listener {
	return tls.NewListener(l, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.now.Load(), nil },
	})
}
