package agentrpc

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"gantry/internal/pki"
	"gantry/internal/share"
)

// A stranger is a connection that has shown no certificate, be it that its handshake is under way or that it has none.
const (
	defaultMaxStrangers = 1024
	strangerShare       = 4               // one address has at most this part of them
	handshakeBytes      = 32 << 10        // that a client sends at most until its handshake is done
	strangerBytes       = 256 << 10       // that a client without a certificate sends at most in all
	givesWay            = 2 * time.Second // a stranger's age from which it gives way to another
	fullPause           = 100 * time.Millisecond
	hostConnections     = 64 // of one host at a time
)

var errTooMuch = errors.New("the client sent more than it may before it is known")

// rationed is a connection whose other end may send so many bytes.
type rationed struct {
	net.Conn
	left atomic.Int64
	free atomic.Bool // any number
}

// Read implements net.Conn.
func (r *rationed) Read(p []byte) (int, error) {
	if r.free.Load() {
		return r.Conn.Read(p)
	}
	left := r.left.Load()
	if left <= 0 {
		return 0, errTooMuch
	}
	n, err := r.Conn.Read(p[:min(int64(len(p)), left)])
	r.left.Add(int64(-n))
	return n, err
}

// NetConn returns the connection below.
func (r *rationed) NetConn() net.Conn { return r.Conn }

// crowds are the connections of a port.
type crowds struct {
	strangers *share.Crowd[netip.Addr]
	hosts     *share.Crowd[string] // by the host's id
}

func newCrowds(strangers int) crowds {
	return crowds{
		strangers: share.NewCrowd(share.Bounds[netip.Addr]{
			All: strangers, Each: max(1, strangers/strangerShare), MayGo: func(c *share.Conn) bool { return time.Since(c.Since()) > givesWay },
		}),
		hosts: share.NewCrowd(share.Bounds[string]{Each: hostConnections}),
	}
}

// take counts a connection that was accepted as a stranger's. It waits while there is no room for anybody; nil: it was closed.
func (c *crowds) take(ctx context.Context, raw net.Conn) (*share.Conn, *rationed) {
	r := &rationed{Conn: raw}
	r.left.Store(handshakeBytes)
	conn := share.NewConn(r)
	who := share.OfAddr(raw.RemoteAddr())
	for {
		left := c.strangers.Left()
		switch c.strangers.Enter(who, conn) {
		case share.Free:
			return conn, r
		case share.Own:
			_ = raw.Close()
			return nil, nil
		}
		select {
		case <-left:
		case <-time.After(fullPause): // one may have come of age
		case <-ctx.Done():
			_ = raw.Close()
			return nil, nil
		}
	}
}

// known counts a connection whose handshake is done as that of who it is, nil: of nobody, and lets it send what it may.
func (c *crowds) known(conn *share.Conn, r *rationed, who *pki.Identity) error {
	if who == nil {
		r.left.Store(strangerBytes)
		return nil
	}
	conn.Leave()
	r.free.Store(true)
	if who.Role == pki.RoleHost && c.hosts.Enter(who.ID, conn) != share.Free {
		return &refusedError{who.String() + " has too many connections"}
	}
	return nil
}
