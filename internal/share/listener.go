package share

import (
	"net"
	"net/netip"
	"time"
)

// Seats are the connections that a Listener lets clients have at a time.
type Seats struct {
	All    int                   // in all
	Each   int                   // of one client
	Exempt func(netip.Addr) bool // clients that are many, such as a load balancer; nil: none
	// Spare are seats for connections beyond these bounds, of which a handler has to find out whether they carry what must get
	// through (Conn.Spare, Conn.Admit). They always take one more: one that carries nothing so far gives way. 0: none.
	Spare, SpareEach int
	// Refusal is sent on a connection that is refused, before anything was read from it; nil: it is closed.
	Refusal []byte
}

// Listener hands out the connections for which there is a seat. Accept returns connections of type *Conn.
type Listener struct {
	net.Listener
	seats  Seats
	public *Crowd[netip.Addr]
	spare  *Crowd[netip.Addr]
}

// Listen returns a listener over ln. An idle connection gives way to a client that has fewer; for that the server's ConnState must
// be State.
func Listen(ln net.Listener, seats Seats) *Listener {
	return &Listener{
		Listener: ln, seats: seats,
		public: NewCrowd(Bounds[netip.Addr]{All: seats.All, Each: seats.Each, Exempt: seats.Exempt, MayGo: (*Conn).Idle}),
		spare: NewCrowd(Bounds[netip.Addr]{
			All: seats.Spare, Each: seats.SpareEach, MayGo: func(c *Conn) bool { return !c.Busy() },
		}),
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn, who := NewConn(raw), OfAddr(raw.RemoteAddr())
		if conn.spare = l.public.Enter(who, conn); conn.spare == Free {
			return conn, nil
		}
		if l.seats.Spare > 0 && l.spare.Enter(who, conn) == Free {
			return conn, nil
		}
		if l.seats.Refusal != nil {
			_ = raw.SetWriteDeadline(time.Now().Add(time.Second)) // an empty socket buffer takes the few bytes at once
			_, _ = raw.Write(l.seats.Refusal)
		}
		_ = raw.Close()
	}
}

// Counts returns what was counted: of the public's seats, and of the spare ones.
func (l *Listener) Counts() (public, spare Counts) { return l.public.Counts(), l.spare.Counts() }
