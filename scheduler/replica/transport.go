package replica

import (
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Transport carries Raft's requests, with everything that Raft looks for in one.
type Transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// transport returns what Raft speaks to other members with.
func (n *Node) transport(log hclog.Logger) Transport {
	switch {
	case n.cfg.Transport != nil:
		return n.cfg.Transport
	case n.cfg.Streams == nil:
		_, t := raft.NewInmemTransport(raft.ServerAddress(n.cfg.Address))
		return t
	}
	n.streams = &streams{StreamLayer: n.cfg.Streams, known: address(n.cfg.Address), open: map[*stream]struct{}{}}
	return raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:  n.streams,
		MaxPool: 3,
		Timeout: n.cfg.RequestTimeout,
		Logger:  log,
	})
}

// streams is a StreamLayer as Raft wants it: its address is the one that other members know, and
// Close ends all of its connections, which Raft by itself does not.
type streams struct {
	StreamLayer
	known address

	mu     sync.Mutex
	open   map[*stream]struct{}
	closed bool
}

// stream is a connection that its layer knows of.
type stream struct {
	net.Conn
	of *streams
}

// Addr returns the address under which other members reach this one.
func (s *streams) Addr() net.Addr { return s.known }

// Dial connects to the member at an address.
func (s *streams) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.keep(s.StreamLayer.Dial(string(to), timeout))
}

// Accept returns the next connection of another member.
func (s *streams) Accept() (net.Conn, error) { return s.keep(s.StreamLayer.Accept()) }

// keep remembers a connection until it is closed.
func (s *streams) keep(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	kept := &stream{c, s}
	s.open[kept] = struct{}{}
	return kept, nil
}

// Close closes the connection.
func (c *stream) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// Close closes the listener and every connection. It may be called more than once.
func (s *streams) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	err := s.StreamLayer.Close()
	for _, c := range open {
		_ = c.Close() // its other end, or Raft, may have been first
	}
	return err
}

// address is a net.Addr that need not be resolvable.
type address string

// Network returns "tcp".
func (address) Network() string { return "tcp" }

// String returns the address.
func (a address) String() string { return string(a) }
