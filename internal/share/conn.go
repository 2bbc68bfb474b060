package share

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Conn is a connection that is counted. Its Close ends that.
type Conn struct {
	net.Conn
	since time.Time
	leave atomic.Pointer[func(*Conn)]
	busy  atomic.Bool
	idle  atomic.Bool
	spare Why // Free: it has a seat of the public's
}

// NewConn returns a connection that is counted nowhere so far.
func NewConn(c net.Conn) *Conn { return &Conn{Conn: c, since: time.Now()} }

func (c *Conn) in(leave func(*Conn)) { c.leave.Store(&leave) }

// Leave ends the counting of a connection that stays open.
func (c *Conn) Leave() {
	if leave := c.leave.Swap(nil); leave != nil {
		(*leave)(c)
	}
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.Leave()
	return c.Conn.Close()
}

// NetConn returns the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// ReadFrom keeps the kernel's way of sending files, which only the connection itself knows.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// CloseWrite says that nothing more comes, where the connection can tell that apart from its end. What a server answers before it
// has read all of a request is lost without it.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Since returns when the connection was accepted.
func (c *Conn) Since() time.Time { return c.since }

// Idle tells whether the connection waits for its next request. One that has not had its first one yet is not idle.
func (c *Conn) Idle() bool { return c.idle.Load() }

// Busy tells whether a request on a spare seat was let in.
func (c *Conn) Busy() bool { return c.busy.Load() }

// Admit keeps a connection on a spare seat open while it is served.
func (c *Conn) Admit() { c.busy.Store(true) }

// Spare says why the connection has one of the seats that are kept; Free: it has one of the public's.
func (c *Conn) Spare() Why { return c.spare }

// Below returns the counted connection that conn is, or that TLS runs over; nil where there is none.
func Below(conn net.Conn) *Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c, _ := conn.(*Conn)
	return c
}

// State is for the ConnState of an http.Server whose listener is a Listener.
func State(conn net.Conn, state http.ConnState) {
	if c := Below(conn); c != nil {
		c.idle.Store(state == http.StateIdle)
	}
}
