package rest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
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
	in, out      any    // examples of the bodies; nil: no body
}

// podPath begins the paths of routes about one pod.
const podPath = "/v2/pods/{id}"

// nothingHeader is in a 503 that came before anything was done.
const nothingHeader = "X-Gantry-Nothing-Done"

// none is the body of a request without one.
type none struct{}

// call is one request, after limit, key, scope, parameters and body were found good.
type call struct {
	who  fleet.Principal
	args args
	r    *http.Request
	w    http.ResponseWriter

	status int // of success, where it is not the route's
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
	a.serve(op, rt, func(ctx context.Context, c *call) error {
		ctx, cancel := context.WithTimeout(ctx, a.callTimeout)
		defer cancel()
		var in In
		if body != nil {
			if err := readBody(c.w, c.r, a.maxBody, body, &in); err != nil {
				return err
			}
		}
		out, err := f(ctx, c, &in)
		switch {
		case err != nil:
			return err
		case out == nil:
			c.w.WriteHeader(http.StatusNoContent)
			return nil
		}
		if list {
			if err := paged(c, reflect.ValueOf(out).Elem(), field); err != nil {
				return err
			}
		}
		return writeJSON(c.w, cmp.Or(c.status, rt.status), out)
	})
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

// serve registers a route that writes its answer itself; it returns an error only when it has
// written nothing.
func (a *API) serve(op *huma.Operation, rt route, f func(context.Context, *call) error) {
	if !rt.scope.Declared() {
		a.faults = append(a.faults, fmt.Errorf("route %s %s declares no scope", rt.method, rt.path))
		return
	}
	if !rt.limit.Declared() || rt.scope.Public != (rt.limit == limit.Exempt) {
		a.faults = append(a.faults, fmt.Errorf("route %s %s declares no limit class that fits its scope", rt.method, rt.path))
		return
	}
	if rt.scope.Pod && (rt.scope.Public || rt.path != podPath && !strings.HasPrefix(rt.path, podPath+"/")) {
		a.faults = append(a.faults, fmt.Errorf("route %s %s is open to a pod's own key, and names no pod", rt.method, rt.path))
		return
	}
	params, err := compileParams(rt.params)
	if err != nil {
		a.faults = append(a.faults, fmt.Errorf("route %s %s: %w", rt.method, rt.path, err))
		return
	}
	a.routes = append(a.routes, Route{Method: rt.method, Path: rt.path, Scope: rt.scope, Limit: rt.limit})
	describeLimits(op, rt.limit)
	describeOnce(op, rt)
	a.huma.OpenAPI().AddOperation(op)
	a.huma.Adapter().Handle(op, func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		ctx, attempt := fleet.WithAttempt(r.Context())
		c := &call{r: r, w: w}
		err := func() (err error) {
			if c.who, err = a.admit(w, r, rt.scope); err != nil {
				return err
			}
			if c.args, err = params.read(r); err != nil {
				return err
			}
			if c.who.Pod != "" && c.args.text("id") != string(c.who.Pod) {
				return fleet.NotFound("pod")
			}
			return f(ctx, c)
		}()
		if err != nil {
			if attempt.Untouched(err) {
				w.Header().Set(nothingHeader, "1")
			}
			problem.Answer(w, r, a.log, err)
		}
	})
}

// Route is one registered operation.
type Route struct {
	Method, Path string
	Scope        auth.Scope
	Limit        limit.Class
}

// Routes lists what is registered, in order of registration.
func (a *API) Routes() []Route { return slices.Clone(a.routes) }

func writeJSON(w http.ResponseWriter, status int, v any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(buf.Bytes()) // a client that left is not told
	return nil
}
