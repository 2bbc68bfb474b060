package proxy

import (
	"net"
	"os"
	"time"

	"gantry/fleet"
)

// conn is a stream as net/http wants it. It has no deadlines: the transport that uses it needs none.
type conn struct {
	fleet.Stream
	to address
}

// address is the name of a stream's far end.
type address string

func (address) Network() string  { return "pod" }
func (a address) String() string { return string(a) }

func (c *conn) LocalAddr() net.Addr              { return address("proxy") }
func (c *conn) RemoteAddr() net.Addr             { return c.to }
func (c *conn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *conn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *conn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
