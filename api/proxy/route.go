package proxy

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
)

// Route has requests carried to pods that somebody else chose, for whom this proxy counts nothing.
type Route struct {
	Target Target
	// Again is told that the target took no connection, so that nothing was sent, and returns another one, or false.
	Again func(err error) (Target, bool)
	// Answered may change an answer. Its error takes the place of the answer.
	Answered func(*http.Response) error
	// Failed answers a request that has no answer.
	Failed func(w http.ResponseWriter, err error)
}

type routeKey struct{}

func routeOf(r *http.Request) *Route {
	route, _ := r.Context().Value(routeKey{}).(*Route)
	return route
}

// Carry sends a request on its route, and the answer back. It reports false when the proxy has been closed.
func (p *Proxy) Carry(w http.ResponseWriter, r *http.Request, route *Route) bool {
	if !p.enter() {
		return false
	}
	defer p.wg.Done()
	p.pass(w, r.WithContext(context.WithValue(r.Context(), routeKey{}, route)), route.Target)
	return true
}

// routed sends a request to its target, or to another one while none has taken its connection.
func (p *Proxy) routed(r *http.Request, route *Route) (*http.Response, error) {
	if r = r.Clone(r.Context()); r.Body != nil {
		r.Body = unclosed{r.Body}
	}
	for {
		connected := false
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }})
		resp, err := p.trip(r.WithContext(ctx)) //nolint:contextcheck // it is the request's, with a trace
		if err == nil || connected || r.Context().Err() != nil {
			return resp, err
		}
		next, ok := route.Again(err)
		if !ok {
			return nil, err
		}
		r.URL.Host = next.key()
	}
}

// unclosed is a body that its server closes: the transport closes what it is given with each attempt.
type unclosed struct{ io.Reader }

func (unclosed) Close() error { return nil }
