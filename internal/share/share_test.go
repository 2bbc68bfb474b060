package share

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
)

func TestOf(t *testing.T) {
	for remote, want := range map[string]string{
		"10.1.2.3:80": "10.1.2.3", "[::ffff:10.1.2.3]:80": "10.1.2.3", "[2001:db8:1:2:3:4:5:6]:1": "2001:db8:1:2::", "[fe80::1%eth0]:1": "fe80::",
		"pipe": "invalid IP", "": "invalid IP",
	} {
		if got := Of(remote).String(); got != want {
			t.Errorf("%q: %s, want %s", remote, got, want)
		}
	}
	at := netip.MustParseAddrPort("[2001:db8:1:2:3:4:5:6]:1")
	if got := OfAddr(net.TCPAddrFromAddrPort(at)); got != Of(at.String()) {
		t.Errorf("the address of a connection is %s", got)
	}
	if OfAddr(nil).IsValid() || OfAddr(&net.UnixAddr{Name: "x"}).IsValid() {
		t.Error("what is no address is one")
	}
}

func TestHeldIsBoundedForEachAndInAll(t *testing.T) {
	h := NewHeld(3, 2, func(who string) bool { return who == "many" })
	take := func(who string, want Why) {
		t.Helper()
		if got := h.Take(who); got != want {
			t.Errorf("%s: %v, want %v", who, got, want)
		}
	}
	take("a", Free)
	take("a", Free)
	take("a", Own)
	take("b", Free)
	take("b", All)
	h.Give("a")
	take("b", Free)
	take("b", Own)
	for _, who := range []string{"a", "b", "b"} {
		h.Give(who)
	}
	if h.Sum() != 0 || len(h.held) != 0 {
		t.Errorf("%d are held by %d", h.Sum(), len(h.held))
	}
	for range 3 {
		take("many", Free)
	}
	take("many", All)
}

func TestHeldAtOnce(t *testing.T) {
	h := NewHeld[int](50, 7, nil)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			for range 100 {
				if h.Take(i%10) == Free {
					if h.Sum() > 50 {
						t.Error("more than all")
					}
					h.Give(i % 10)
				}
			}
		})
	}
	wg.Wait()
	if h.Sum() != 0 || len(h.held) != 0 {
		t.Error("something stays")
	}
}

// crowd is a crowd of connections that a test makes.
type crowd struct {
	*Crowd[string]
	t *testing.T
}

func newCrowd(t *testing.T, all, each int) crowd {
	return crowd{NewCrowd(Bounds[string]{All: all, Each: each, MayGo: (*Conn).Idle}), t}
}

// enter makes a connection of who.
func (c crowd) enter(who string, idle bool, want Why) *Conn {
	c.t.Helper()
	near, far := net.Pipe()
	c.t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	conn := NewConn(near)
	if got := c.Enter(who, conn); got != want {
		c.t.Errorf("%s: %v, want %v", who, got, want)
	}
	if idle {
		State(conn, http.StateIdle)
	}
	return conn
}

func (c crowd) has(conn *Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.conns[conn]
	return ok
}

func TestAnIdleConnectionOfTheSameClientGivesWay(t *testing.T) {
	c := newCrowd(t, 10, 2)
	idle := c.enter("a", true, Free)
	c.enter("a", false, Free)
	c.enter("a", false, Free)
	c.enter("a", false, Own)
	if c.has(idle) {
		t.Error("the idle one stays")
	}
	if _, err := idle.Write([]byte("x")); err == nil {
		t.Error("it is open")
	}
	if n := c.Counts(); n != (Counts{Open: 2, RefusedOwn: 1, Ended: 1}) {
		t.Errorf("%+v", n)
	}
}

func TestTheGreediestGivesWay(t *testing.T) {
	c := newCrowd(t, 6, 5)
	var greedy []*Conn
	for range 4 {
		greedy = append(greedy, c.enter("greedy", true, Free))
	}
	modest := []*Conn{c.enter("b", true, Free), c.enter("c", true, Free)}
	for range 2 {
		c.enter("new", false, Free)
	}
	left := 0
	for _, conn := range greedy {
		if c.has(conn) {
			left++
		}
	}
	if left != 2 || !c.has(modest[0]) || !c.has(modest[1]) {
		t.Errorf("the greedy client keeps %d of 4", left)
	}
	c.enter("new", false, All) // nobody has more than it
}

func TestABusyConnectionStays(t *testing.T) {
	c := newCrowd(t, 3, 3)
	busy := c.enter("a", true, Free)
	State(busy, http.StateActive)
	c.enter("a", false, Free)
	c.enter("a", false, Free)
	c.enter("b", false, All)
	if err := busy.Close(); err != nil {
		t.Error(err)
	}
	_ = busy.Close()
	c.enter("b", false, Free)
	if n := c.Counts(); n.Open != 3 || len(c.of["a"]) != 2 {
		t.Errorf("%+v", n)
	}
}

func TestManyEnterAndLeaveAtOnce(t *testing.T) {
	c := newCrowd(t, 20, 5)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			for range 50 {
				near, far := net.Pipe()
				conn := NewConn(near)
				if c.Enter(string(rune('a'+i%7)), conn) == Free {
					State(conn, http.StateIdle)
					if n := c.Counts().Open; n > 20 {
						t.Errorf("%d are open", n)
					}
				}
				_, _ = conn.Close(), far.Close()
			}
		})
	}
	wg.Wait()
	if n := c.Counts().Open; n != 0 || len(c.of) != 0 {
		t.Errorf("%d connections of %d clients stay", n, len(c.of))
	}
}
