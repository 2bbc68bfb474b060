package rest

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Limits bound what clients may do to a server. The zero value of a field means its default.
type Limits struct {
	Header      time.Duration // to send the header of a request; 5 s
	Read        time.Duration // to send a whole request; 30 s; streams and proxied requests extend it as they go
	Write       time.Duration // to take the answer; 60 s; streams and proxied requests extend it as they go
	Idle        time.Duration // between requests; 60 s
	HeaderBytes int           // 16 KiB
	Connections int           // open at a time, taken-over ones (WebSockets) not counted; 4096
}

func (l *Limits) defaults() {
	for _, d := range []struct {
		of *time.Duration
		to time.Duration
	}{{&l.Header, 5 * time.Second}, {&l.Read, 30 * time.Second}, {&l.Write, 60 * time.Second}, {&l.Idle, 60 * time.Second}} {
		if *d.of == 0 {
			*d.of = d.to
		}
	}
	if l.HeaderBytes == 0 {
		l.HeaderBytes = 16 << 10
	}
	if l.Connections == 0 {
		l.Connections = 4096
	}
}

// NewServer returns a server for h with every limit set. A connection above the limit gets 503 and
// is closed. The server's own complaints go to log at level debug: clients cause them.
func NewServer(h http.Handler, limits Limits, log *slog.Logger) *http.Server {
	limits.defaults()
	open := &connections{most: int64(limits.Connections)}
	return &http.Server{
		Handler:                      evenly(limits, h),
		ReadHeaderTimeout:            limits.Header,
		ReadTimeout:                  limits.Read,
		WriteTimeout:                 limits.Write,
		IdleTimeout:                  limits.Idle,
		MaxHeaderBytes:               limits.HeaderBytes,
		ConnState:                    open.changed,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// connections counts open connections.
type connections struct {
	most int64
	open atomic.Int64
}

const refusal = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\nRetry-After: 1\r\nContent-Length: 21\r\n\r\ntoo many connections\n"

func (c *connections) changed(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if c.open.Add(1) <= c.most {
			return
		}
		if _, secure := conn.(*tls.Conn); !secure {
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // an empty socket buffer takes the few bytes at once
			_, _ = conn.Write([]byte(refusal))
		}
		_ = conn.Close() // the server sees it closed and tells StateClosed
	case http.StateClosed, http.StateHijacked:
		c.open.Add(-1)
	}
}
