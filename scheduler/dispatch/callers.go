package dispatch

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// What one host may have under way over all its connections: each call holds a message of up to maxMessage that is not handled yet, and
// callWindow of what comes after it, 32 MiB in all. A tunnel counts until its first message shows that the scheduler has asked for it.
const (
	hostSessions = 3  // the one in use, and others that are not known to be over
	hostQueries  = 11 // calls with one message, and the stream of jobs; an agent asks for eight access keys at a time
	hostTunnels  = 3  // beyond those that were asked for
)

// kind is what calls of a host are counted by.
type kind int

const (
	aSession kind = iota
	aQuery
	aTunnel
	kinds
)

func kindOf(method string) kind {
	switch method {
	case agentrpc.Link_Session_FullMethodName:
		return aSession
	case agentrpc.Link_Tunnel_FullMethodName:
		return aTunnel
	}
	return aQuery
}

// callers counts the calls of each host. It is safe for concurrent use.
type callers struct {
	mu    sync.Mutex
	hosts map[fleet.HostID]*calls
}

// calls are those of one host.
type calls struct {
	open  [kinds]int
	asked int // tunnels that it was asked for and that did not come yet
}

func newCallers() *callers { return &callers{hosts: map[fleet.HostID]*calls{}} }

// place is the key of a context's value: a function that takes a tunnel off the count.
type place struct{}

// admit is asked for each call before anything of its message is read, and refuses what a host has too many of. It never waits.
func (c *callers) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	who, err := hostOf(ctx)
	if err != nil {
		return ctx, nil //nolint:nilerr // the method itself refuses who may not call it
	}
	host, k := fleet.HostID(who.ID), kindOf(info.FullMethodName)
	if !c.enter(host, k) {
		return nil, status.Error(codes.ResourceExhausted, "this host has too many calls under way")
	}
	leave := sync.OnceFunc(func() { c.add(host, func(n *calls) { n.open[k]-- }) })
	context.AfterFunc(ctx, leave)
	return context.WithValue(ctx, place{}, leave), nil
}

func (c *callers) enter(host fleet.HostID, k kind) (ok bool) {
	c.add(host, func(n *calls) {
		most := [kinds]int{aSession: hostSessions, aQuery: hostQueries, aTunnel: hostTunnels + n.asked}
		if ok = n.open[k] < most[k]; ok {
			n.open[k]++
		}
	})
	return ok
}

// ask counts tunnels that a host is asked for: 1 for one more, -1 for one that came or is not waited for any more.
func (c *callers) ask(host fleet.HostID, n int) { c.add(host, func(of *calls) { of.asked += n }) }

// claimed takes a tunnel that was asked for off the count.
func claimed(ctx context.Context) {
	if leave, ok := ctx.Value(place{}).(func()); ok {
		leave()
	}
}

// add changes the counts of a host, and keeps none of a host that has nothing under way.
func (c *callers) add(host fleet.HostID, change func(*calls)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.hosts[host]
	if n == nil {
		n = &calls{}
		c.hosts[host] = n
	}
	change(n)
	if *n == (calls{}) {
		delete(c.hosts, host)
	}
}
