package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const (
	maxAddresses = 16
	// Where there is another address to try.
	dialNextAfter  = 3 * time.Second
	readNextAfter  = 5 * time.Second
	writeNextAfter = 10 * time.Second
)

// addresses are those of one API. All clients that were made from one another share which is in use.
type addresses struct {
	all []*url.URL
	at  atomic.Int64 // index of the one that answered last

	read, write time.Duration // for an answer to a GET and to others, where there is another address to try
}

func parseAddresses(text string) (*addresses, error) {
	out := &addresses{read: readNextAfter, write: writeNextAfter}
	for one := range strings.SplitSeq(text, ",") {
		one = strings.TrimRight(strings.TrimSpace(one), "/")
		base, err := url.Parse(one)
		if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" || base.User != nil {
			return nil, fmt.Errorf("API address %q: must be http://HOST[:PORT] or https://HOST[:PORT]", one)
		}
		if !slices.ContainsFunc(out.all, func(u *url.URL) bool { return u.String() == base.String() }) {
			out.all = append(out.all, base)
		}
	}
	if len(out.all) > maxAddresses {
		return nil, fmt.Errorf("%d API addresses: there may be at most %d", len(out.all), maxAddresses)
	}
	return out, nil
}

func (a *addresses) current() *url.URL { return a.all[a.at.Load()] }

// leave makes the address after one that was found away the one in use, unless somebody else has.
func (a *addresses) leave(at int64) { a.at.CompareAndSwap(at, (at+1)%int64(len(a.all))) }

func (a *addresses) dialTimeout() time.Duration {
	if len(a.all) > 1 {
		return dialNextAfter
	}
	return dialTimeout
}

// addressOf is the address for people: no path or query of a request.
func addressOf(u *url.URL) string { return u.Scheme + "://" + u.Host }

// failover calls try with req for each address, beginning with the one in use, until one answers or another try would
// not be safe. The error is that of the last.
func (c *Client) failover(req *http.Request, try func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	path := strings.TrimPrefix(req.URL.String(), c.baseOf(req.URL))
	for tries := 1; ; tries++ {
		at := c.bases.at.Load()
		next, err := c.aimed(req, c.bases.all[at], path)
		if err != nil {
			return nil, err
		}
		res, sent, err := c.attempt(next, tries < len(c.bases.all), try)
		if err != nil && (away(err) || req.Context().Err() != nil) {
			c.bases.leave(at) // also when the time is over: the caller's next call is not to hang there again
		}
		if err == nil || !away(err) || req.Context().Err() != nil {
			return res, err
		}
		if tries >= len(c.bases.all) || !repeatable(req) || sent && !elsewhere(err, isSafe(req)) {
			return res, err
		}
	}
}

// attempt calls try with req, and tells whether anything may have been sent. While there are other addresses to ask,
// one that says nothing has only a while: it may hang. What takes long to send is not hurried.
func (c *Client) attempt(req *http.Request, more bool, try func(*http.Request) (*http.Response, error)) (*http.Response, bool, error) {
	var connected atomic.Bool
	ctx, cancel := context.WithCancelCause(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}))
	if more && repeatable(req) {
		limit := c.bases.write
		if req.Method == http.MethodGet {
			limit = c.bases.read
		}
		late := time.AfterFunc(limit, func() {
			cancel(&Unreachable{Address: addressOf(req.URL), Err: fmt.Errorf("no answer within %v", limit)})
		})
		defer late.Stop()
	}
	res, err := try(req.WithContext(ctx))
	if err != nil || res == nil {
		cancel(nil)
	} else {
		res.Body = &answerBody{res.Body, cancel}
	}
	return res, connected.Load(), err
}

// answerBody is the body of an answer, and lets go of what the request held.
type answerBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *answerBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

// baseOf returns the address that a request was made for.
func (c *Client) baseOf(u *url.URL) string {
	best := addressOf(u)
	for _, base := range c.bases.all {
		if b := base.String(); len(b) > len(best) && strings.HasPrefix(u.String(), b+"/") {
			best = b
		}
	}
	return best
}

// aimed returns req for another address.
func (c *Client) aimed(req *http.Request, base *url.URL, path string) (*http.Request, error) {
	target, err := url.Parse(base.String() + path)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	out := req.Clone(req.Context())
	out.URL, out.Host = target, target.Host
	if req.GetBody != nil {
		if out.Body, err = req.GetBody(); err != nil {
			return nil, fmt.Errorf("make the request: %w", err)
		}
	}
	return out, nil
}

// repeatable reports whether the body of a request can be sent a second time.
func repeatable(req *http.Request) bool {
	return req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
}

// isSafe reports whether a request may be carried out twice.
func isSafe(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Header.Get(headerOnce) != ""
}

// away reports whether err is of the address, which may do no better next time: another one is asked then.
func away(err error) bool {
	var problem *Problem
	return Temporary(err) && (!errors.As(err, &problem) || problem.Status != http.StatusTooManyRequests)
}

// elsewhere reports whether another address may be asked at once: nobody has carried the request out, or nobody minds
// if it is carried out twice and this address is not to be reached.
func elsewhere(err error, safe bool) bool {
	var problem *Problem
	if errors.As(err, &problem) {
		return problem.NothingDone
	}
	var op *net.OpError
	return safe || errors.As(err, &op) && op.Op == "dial"
}
