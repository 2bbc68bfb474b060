// Package balance is the face of endpoints that balance: "<endpoint>.<proxy domain>/<any path>" and "/v2/<endpoint>/<any path>". It asks
// for the account's key, bounds requests, and carries them to the worker that a Balancer chose (wire-facts.md, §5.4). Which worker that is,
// and how workers are, is not its business.
package balance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gantry/api/jobs"
	"gantry/api/proxy"
	"gantry/api/v2"
	"gantry/fleet"
	"gantry/internal/share"
)

// Balancer chooses workers.
type Balancer interface {
	// Endpoint returns an endpoint that balances, from memory.
	Endpoint(id fleet.EndpointID) (fleet.Endpoint, bool)
	// Take waits for a worker other than those in without. Errors: not_found, not_allowed (there is none in time), rate_limited.
	Take(ctx context.Context, e *fleet.Endpoint, wish fleet.WorkerWish, without []fleet.PodID) (fleet.WorkerSeat, error)
	// Refused is told that a worker's port takes no connection.
	Refused(endpoint fleet.EndpointID, worker fleet.PodID)
	// Count is told of each request that ended, unless its client left or it was refused.
	Count(endpoint fleet.EndpointID, completed bool)
}

// Config is what an API is made from.
type Config struct {
	Domain   string // of the proxy
	Balancer Balancer
	// May refuses a key with which no requests may be sent to an endpoint.
	May func(ctx context.Context, key fleet.Secret, id fleet.EndpointID) error
	// Proxy carries requests to workers: its dialer reaches their ports.
	Proxy *proxy.Proxy
	Log   *slog.Logger

	// Requests at a time, those that wait and WebSockets included: of one account, and in all.
	PerAccount int
	All        int
}

// The header by which a client asks for a worker, and learns which one answered, in its two names.
var workerHeaders = []string{"X-Gantry-Worker-Id", "X-Runpod-Worker-Id"}

const mostTries = 3 // workers whose ports take no connection

// API serves requests to endpoints that balance.
type API struct {
	cfg  Config
	held *share.Held[fleet.AccountID]
}

// New returns an API.
func New(cfg Config) *API {
	return &API{cfg: cfg, held: share.NewHeld[fleet.AccountID](cfg.All, cfg.PerAccount, nil)}
}

// Open returns how many requests are under way.
func (a *API) Open() int { return a.held.Sum() }

// Find returns the endpoint that a request is for, if that balances, and its path there. named: the host is an endpoint's, be there one or
// not.
func (a *API) Find(r *http.Request) (e fleet.Endpoint, path string, named, ok bool) {
	id, named := proxy.ParseEndpoint(r.Host, a.cfg.Domain)
	if path = r.URL.EscapedPath(); !named {
		if id, path, ok = jobs.Split(path); !ok || jobs.Reserved(path) {
			return e, "", false, false
		}
	}
	e, ok = a.cfg.Balancer.Endpoint(id)
	return e, path, named, ok
}

// Wrap returns a handler that serves requests to endpoints that balance, and gives the others to next.
func (a *API) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e, path, named, ok := a.Find(r)
		switch {
		case ok:
			a.serve(w, r, &e, path)
		case named:
			refuse(w, &fleet.Error{Code: fleet.CodeNotFound, Msg: "endpoint not found"})
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// serve serves a request to an endpoint.
func (a *API) serve(w http.ResponseWriter, r *http.Request, e *fleet.Endpoint, path string) {
	if r.Method == http.MethodConnect {
		refuse(w, &fleet.Error{Code: fleet.CodeNotAllowed, Msg: "CONNECT is not allowed"})
		return
	}
	if err := a.may(r, e.ID); err != nil {
		refuse(w, err)
		return
	}
	wish, err := wishOf(r.Header)
	most := int64(e.Spec.MaxBodyMB) * fleet.MB
	switch {
	case err != nil:
	case r.ContentLength > most:
		err = tooLarge(e)
	case a.held.Take(e.Account) != share.Free:
		err = &fleet.Error{Code: fleet.CodeLimited, Msg: "too many requests at a time", NothingDone: true}
	}
	if err != nil {
		refuse(w, err)
		return
	}
	defer a.held.Give(e.Account)
	seat, err := a.cfg.Balancer.Take(r.Context(), e, wish, nil)
	if err != nil {
		if fleet.CodeOf(err) == fleet.CodeNotAllowed { // no worker in time
			a.cfg.Balancer.Count(e.ID, false)
		}
		refuse(w, err)
		return
	}
	c := &carriage{API: a, e: e, wish: wish, seat: seat}
	defer func() {
		if c.end != none && r.Context().Err() == nil {
			a.cfg.Balancer.Count(e.ID, c.end == completed)
		}
		c.seat.Leave()
	}()
	c.run(w, r, path, most)
}

// may refuses a request without a key that may send it.
func (a *API) may(r *http.Request, id fleet.EndpointID) error {
	refused := func(text string) error { return &fleet.Error{Code: fleet.CodeUnauthorized, Msg: text} }
	values := r.Header.Values("Authorization")
	if len(values) == 0 || values[0] == "" {
		return refused("no token provided")
	}
	key := jobs.KeyOf(values[0])
	if len(values) > 1 || !fleet.ValidAPIKey(key) {
		return refused("invalid api key")
	}
	err := a.cfg.May(r.Context(), fleet.Secret(key), id)
	if fleet.CodeOf(err) == fleet.CodeUnauthorized {
		return refused("invalid api key")
	}
	return err
}

// wishOf reads which worker a client asks for. Errors: invalid.
func wishOf(h http.Header) (wish fleet.WorkerWish, err error) {
	for _, name := range workerHeaders {
		words := strings.Fields(h.Get(name))
		switch {
		case len(words) == 0:
			continue
		case len(words) == 2 && words[0] == "strict":
			wish = fleet.WorkerWish{Strict: true}
		case len(words) == 2 && words[0] == "strict-resume":
			wish = fleet.WorkerWish{Strict: true, Wake: true}
		case len(words) > 1:
			return wish, fleet.Invalid(name, "must be a worker's id, alone or after strict or strict-resume")
		}
		if wish.Worker = fleet.PodID(words[len(words)-1]); !fleet.ValidID(string(wish.Worker)) {
			return wish, fleet.Invalid(name, "must be a worker's id, alone or after strict or strict-resume")
		}
		return wish, nil
	}
	return wish, nil
}

// carriage is a request on its way to a worker.
type carriage struct {
	*API
	e     *fleet.Endpoint
	wish  fleet.WorkerWish
	seat  fleet.WorkerSeat
	tried []fleet.PodID
	end   end
}

// end is how a request ended.
type end uint8

const (
	none      end = iota // it has no answer of a worker, or was refused
	completed            // a worker answered below 500
	failed
)

var errSlow = errors.New("the worker has not answered in time")

// run carries the request.
func (c *carriage) run(w http.ResponseWriter, r *http.Request, path string, most int64) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	limit := cmp.Or(time.Duration(c.e.Spec.TimeoutMS)*time.Millisecond, math.MaxInt64) // 0: none
	slow := time.AfterFunc(limit, func() { cancel(errSlow) })
	defer slow.Stop()
	out := r.Clone(ctx)
	out.Header.Del("Authorization") // workers need no key, and should learn none
	if out.URL.Path != path {
		if err := setPath(out, path); err != nil {
			refuse(w, fleet.Invalid("path", "must be a path"))
			return
		}
	}
	if r.ContentLength != 0 {
		out.Body = http.MaxBytesReader(w, r.Body, most)
	}
	carried := c.cfg.Proxy.Carry(w, out, &proxy.Route{
		Target: c.target(),
		Again:  func(err error) (proxy.Target, bool) { return c.again(ctx, err) },
		Answered: func(resp *http.Response) error {
			slow.Stop()
			return c.answered(resp, most)
		},
		Failed: func(w http.ResponseWriter, err error) { c.failed(ctx, r, w, err) },
	})
	if !carried {
		refuse(w, fleet.Unavailable("this scheduler stops", nil))
	}
}

// setPath has a request ask for an escaped path.
func setPath(r *http.Request, path string) error {
	u, err := r.URL.Parse(path)
	if err != nil || u.Host != r.URL.Host {
		return errors.New("it is none")
	}
	r.URL.Path, r.URL.RawPath = u.Path, u.RawPath
	return nil
}

func (c *carriage) target() proxy.Target { return proxy.Target{Pod: c.seat.Worker, Port: c.seat.Port} }

// again takes another worker for a request that has not been sent.
func (c *carriage) again(ctx context.Context, err error) (proxy.Target, bool) {
	c.cfg.Log.Debug("a worker takes no connection", "endpoint", string(c.e.ID), "pod", c.seat.Worker, "err", err)
	c.cfg.Balancer.Refused(c.e.ID, c.seat.Worker)
	c.tried = append(c.tried, c.seat.Worker)
	if len(c.tried) >= mostTries || c.wish.Strict {
		return proxy.Target{}, false
	}
	seat, err := c.cfg.Balancer.Take(ctx, c.e, fleet.WorkerWish{}, c.tried)
	if err != nil {
		return proxy.Target{}, false
	}
	c.seat.Leave()
	c.seat = seat
	return c.target(), true
}

// answered says who answered, and bounds the answer. That of a WebSocket has no bound.
func (c *carriage) answered(resp *http.Response, most int64) error {
	for _, name := range workerHeaders {
		resp.Header.Set(name, string(c.seat.Worker))
	}
	if c.end = completed; resp.StatusCode >= http.StatusInternalServerError {
		c.end = failed
	}
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
	case resp.ContentLength > most && resp.Request.Method != http.MethodHead:
		return errLarge
	default:
		resp.Body = &bounded{ReadCloser: resp.Body, left: most, end: &c.end}
	}
	return nil
}

var errLarge = errors.New("the worker's answer is too large")

// bounded is a body that breaks off when it is too large.
type bounded struct {
	io.ReadCloser
	left int64
	end  *end
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		n, err = 0, errLarge
	}
	if err != nil && !errors.Is(err, io.EOF) {
		*b.end = failed
	}
	return n, err
}

// failed answers a request that has no answer.
func (c *carriage) failed(ctx context.Context, r *http.Request, w http.ResponseWriter, err error) {
	var large *http.MaxBytesError
	status, text := http.StatusBadGateway, "the worker broke off before it answered"
	c.end = failed
	switch {
	case errors.Is(context.Cause(ctx), errSlow):
		status, text = http.StatusGatewayTimeout, "the worker did not answer in time"
	case r.Context().Err() != nil:
		return // the client left
	case errors.As(err, &large):
		c.end = none
		refuse(w, tooLarge(c.e))
		return
	case errors.Is(err, errLarge):
		text = "the worker's answer is larger than " + strconv.Itoa(c.e.Spec.MaxBodyMB) + " MB"
	case fleet.CodeOf(err) == fleet.CodeUnavailable || fleet.CodeOf(err) == fleet.CodeNotAllowed:
		text = "the worker's port takes no connection"
	}
	c.cfg.Log.Debug("a worker did not answer", "endpoint", string(c.e.ID), "pod", c.seat.Worker, "err", err)
	for _, name := range workerHeaders {
		w.Header().Set(name, string(c.seat.Worker))
	}
	write(w, status, text)
}

func tooLarge(e *fleet.Endpoint) error {
	return &fleet.Error{Code: fleet.CodeTooLarge, Msg: "the body is too large; max size is " + strconv.Itoa(e.Spec.MaxBodyMB) + " MB"}
}

// refuse answers in place of a worker.
func refuse(w http.ResponseWriter, err error) {
	var why *fleet.Error
	if !errors.As(err, &why) {
		if !errors.Is(err, context.Canceled) { // then nobody reads it
			write(w, http.StatusInternalServerError, "internal error")
		}
		return
	}
	status := jobs.StatusOf(why.Code)
	switch why.Code {
	case fleet.CodeTooLarge:
		status = http.StatusRequestEntityTooLarge
	case fleet.CodeLimited, fleet.CodeUnavailable:
		w.Header().Set("Retry-After", "1")
	}
	text := why.Msg
	if len(why.Details) > 0 {
		text = strings.Join(why.Details, "; ")
	}
	write(w, status, text)
}

func write(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v2.JobProblem{Error: text}) // a client that left is not told
}
