package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/problem"
	"gantry/fleet"
)

// route declares one operation: what OpenAPI says of it and what is checked before its handler runs.
type route struct {
	method, path string
	id           string // operationId
	tag          string
	summary      string
	text         string // description: units, ranges, errors
	scope        auth.Scope
	limit        limit.Class
	params       []*huma.Param
	status       int    // of success
	alike        []int  // statuses with the same body
	also         string // what 204 means, for a route that may answer it instead of status
	errors       []int  // beside those that follow from scope, parameters and body
	unlisted     bool   // in no document and for no Caller: it is for the console's page
	in, out      any    // examples of the bodies; nil: no body
}

// namesPod tells the paths of routes about one pod, of whatever version.
func namesPod(path string) bool {
	_, below, ok := strings.Cut(path, "/pods/{id}")
	return ok && (below == "" || below[0] == '/')
}

// nothingHeader is in a 503 that came before anything was done.
const nothingHeader = "X-Gantry-Nothing-Done"

// none is the body of a request without one.
type none struct{}

// call is one request, after limit, key, scope, parameters and body were found good.
type call struct {
	who   fleet.Principal
	scope auth.Scope // of the route
	args  args
	r     *http.Request // of a call by another face: as if it had come to this route
	w     http.ResponseWriter

	status int // of success, where it is not the route's

	direct bool         // over HTTP: the handler may leave how the answer is written, in place of its record
	write  func() error // it returns an error only when it has written nothing
}

// handle registers a route whose handler answers with one value. A nil value answers 204.
func handle[In, Out any](a *API, rt route, f func(context.Context, *call, *In) (*Out, error)) {
	var body *rule
	field, list := isList(rt, reflect.TypeFor[Out]())
	if list {
		rt.params = append(slices.Clone(rt.params), pageParams()...)
	}
	op := a.declare(rt)
	if t := reflect.TypeFor[In](); t != reflect.TypeFor[none]() {
		body = a.describeBody(op, rt, t)
	}
	if t := reflect.TypeFor[Out](); t != reflect.TypeFor[none]() {
		a.describeAnswer(op, rt, t)
	}
	run := func(ctx context.Context, c *call, read func(*rule, any) error) (*Out, error) {
		ctx, cancel := context.WithTimeout(ctx, a.callTimeout)
		defer cancel()
		var in In
		if body != nil {
			if err := read(body, &in); err != nil {
				return nil, err
			}
		}
		out, err := f(ctx, c, &in)
		if err == nil && rt.method != http.MethodGet {
			a.noteChange(ctx)
		}
		if err == nil && out != nil && list {
			err = paged(c, reflect.ValueOf(out).Elem(), field)
		}
		return out, err
	}
	ps := a.serve(op, rt, func(ctx context.Context, c *call) error {
		c.direct = true
		out, err := run(ctx, c, func(body *rule, in any) error { return readBody(c.w, c.r, a.maxBody, body, in) })
		switch {
		case err != nil:
			return err
		case c.write != nil:
			return c.write()
		case out == nil:
			c.w.WriteHeader(http.StatusNoContent)
			return nil
		}
		return writeJSON(c.w, cmp.Or(c.status, rt.status), out)
	})
	if rt.unlisted {
		return
	}
	a.operations[rt.id] = &operation{route: rt, params: ps, run: func(ctx context.Context, c *call, body any) (any, error) {
		out, err := run(ctx, c, func(rule *rule, in any) error { return readRecord(body, a.maxBody, rule, in) })
		if err != nil || out == nil {
			return nil, err
		}
		return out, nil
	}}
}

// on registers a route whose handler is given the part of the service that it needs, and no more.
func on[S, In, Out any](a *API, rt route, f func(context.Context, S, *call, *In) (*Out, error)) {
	handle(a, rt, func(ctx context.Context, c *call, in *In) (*Out, error) { return f(ctx, part[S](a), c, in) })
}

// part is one of the interfaces in Service.
func part[S any](a *API) S { return any(a.svc).(S) }

// byID is a handler of routes about one thing, which kind names, that is given its id: the {id} of the path.
func byID[S any, ID ~string, In, Out any](
	kind string, f func(context.Context, S, ID, *call, *In) (*Out, error),
) func(context.Context, S, *call, *In) (*Out, error) {
	return func(ctx context.Context, svc S, c *call, in *In) (*Out, error) {
		id, err := pathID[ID](c, kind)
		if err != nil {
			return nil, err
		}
		return f(ctx, svc, id, c, in)
	}
}

// once lets a route be asked for at most once under an idempotency key; see atMostOnce.
func (rt route) once() route {
	rt.params, rt.text = append([]*huma.Param{onceParam()}, rt.params...), rt.text+"\n\n"+onceText
	return rt
}

// fails adds statuses that do not follow from a route's scope, parameters and body.
func (rt route) fails(statuses ...int) route {
	rt.errors = append(rt.errors, statuses...)
	return rt
}

// fault returns why a route cannot be registered, or nil.
func (rt route) fault() error {
	switch {
	case !rt.scope.Declared():
		return errors.New("declares no scope")
	case !rt.limit.Declared() || rt.scope.Public != (rt.limit == limit.Exempt):
		return errors.New("declares no limit class that fits its scope")
	case rt.scope.Pod && (rt.scope.Public || !namesPod(rt.path)):
		return errors.New("is open to a pod's own key, and names no pod")
	}
	return nil
}

// serve registers a route that writes its answer itself, and returns its parameters; f returns an error only when it has
// written nothing.
func (a *API) serve(op *huma.Operation, rt route, f func(context.Context, *call) error) params {
	params, err := compileParams(rt.params)
	if err = cmp.Or(rt.fault(), err); err != nil {
		a.faults = append(a.faults, fmt.Errorf("route %s %s: %w", rt.method, rt.path, err))
		return nil
	}
	a.routes = append(a.routes, Route{Method: rt.method, Path: rt.path, Scope: rt.scope, Limit: rt.limit, Unlisted: rt.unlisted})
	describeLimits(op, rt.limit)
	describeOnce(op, rt)
	if !rt.unlisted {
		a.huma.OpenAPI().AddOperation(op)
	}
	a.huma.Adapter().Handle(op, func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		ctx, attempt := fleet.WithAttempt(r.Context())
		c := &call{r: r, w: w, scope: rt.scope}
		err := func() (err error) {
			if c.who, err = a.admit(w, r, rt.scope); err != nil {
				return err
			}
			if c.args, err = params.read(r); err != nil {
				return err
			}
			if err = c.mustBeOwn(); err != nil {
				return err
			}
			return f(audited(ctx, c, &rt), c)
		}()
		if err != nil {
			if attempt.Untouched(err) {
				w.Header().Set(nothingHeader, "1")
			}
			problem.Answer(w, r, a.log, err)
		}
	})
	return params
}

// mustBeOwn refuses a pod's own key for what is not that pod.
func (c *call) mustBeOwn() error {
	if c.who.Pod != "" && c.args.text("id") != string(c.who.Pod) {
		return fleet.NotFound("pod")
	}
	return nil
}

// Route is one registered operation.
type Route struct {
	Method, Path string
	Scope        auth.Scope
	Limit        limit.Class
	Unlisted     bool // it is in no document, and no Caller can call it
}

// Routes lists what is registered, in order of registration.
func (a *API) Routes() []Route { return slices.Clone(a.routes) }

func writeJSON(w http.ResponseWriter, status int, v any) error {
	body, err := jsonLine(v)
	if err == nil {
		writeBody(w, status, body)
	}
	return err
}

func writeBody(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left is not told
}
