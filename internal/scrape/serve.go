// Package scrape is how daemons are looked at: it serves their metrics to Prometheus, on loopback or over TLS, and counts HTTP requests.
package scrape

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"gantry/internal/share"
	"gantry/internal/sleep"
)

// Connections is how many scrapers may be connected at a time, and PerAddress how many of one address.
const (
	Connections = 32
	PerAddress  = 16
)

const (
	timeout     = 10 * time.Second
	idle        = 2 * time.Minute // between two scrapes of one connection
	headerBytes = 8 << 10
	atOnce      = 2
	again       = 10 * time.Second
)

// CheckAddress says what is wrong with an address that is not empty. Whoever reaches it can read what a daemon does, so it is
// on loopback.
func CheckAddress(addr string) error {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || !at.Addr().IsLoopback() || at.Port() == 0 {
		return errors.New("must be an address and a port of this host's loopback, such as 127.0.0.1:9412")
	}
	return nil
}

// checkAnyAddress says what is wrong with an address that others may reach.
func checkAnyAddress(addr string) error {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || at.Port() == 0 {
		return errors.New("must be an address and a port of this host, such as 10.0.0.7:9412")
	}
	return nil
}

// NewRegistry returns a registry with the metrics of the process and of Go.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Server answers scrapers. Registry and Log must be set.
type Server struct {
	Addr     string // for the log, and where Listen is nil
	Registry *prometheus.Registry
	Healthz  http.HandlerFunc // answers GET /healthz; nil: nothing does
	Log      *slog.Logger
	// Listen opens the listener; nil: at Addr.
	Listen func(context.Context) (net.Listener, error)
	// Secure reads what TLS needs, and what shows who may read metrics. nil: plain HTTP to anybody, so Addr is of loopback.
	Secure func() (Material, error)
}

// Run answers scrapers until ctx ends. No daemon needs them, and whoever may open a port must not keep one from its work:
// when serving fails it is tried again and again.
func (s Server) Run(ctx context.Context) {
	listen := s.Listen
	if listen == nil {
		listen = func(ctx context.Context) (net.Listener, error) {
			return (&net.ListenConfig{}).Listen(ctx, "tcp", s.Addr)
		}
	}
	for ctx.Err() == nil {
		l, err := listen(ctx)
		if err == nil {
			s.Log.Info("metrics are served", "addr", l.Addr().String())
			err = s.Serve(ctx, l)
		}
		if ctx.Err() != nil {
			return
		}
		s.Log.Warn("metrics are not served: set --metrics to another address, or to none", "addr", s.Addr, "err", err, "again_in", again)
		_ = sleep.For(ctx, again)
	}
}

// Serve answers scrapers of one listener until ctx ends, and closes it.
func (s Server) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: atOnce, Timeout: timeout, DisableCompression: true,
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}))
	if s.Healthz != nil {
		mux.HandleFunc("GET /healthz", s.Healthz)
	}
	var handler http.Handler = mux
	l = share.Listen(l, share.Seats{All: Connections, Each: PerAddress})
	if s.Secure != nil {
		k := &keeper{read: s.Secure}
		if _, _, err := k.current(); err != nil {
			return errors.Join(err, l.Close())
		}
		l, handler = tls.NewListener(l, k.tls()), k.guard(mux)
	}
	srv := &http.Server{
		Handler: handler, ReadHeaderTimeout: timeout, ReadTimeout: timeout, WriteTimeout: 2 * timeout, IdleTimeout: idle,
		MaxHeaderBytes: headerBytes, ConnState: share.State, DisableGeneralOptionsHandler: true,
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	return srv.Serve(l)
}
