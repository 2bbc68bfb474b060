package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"gantry/api/auth"
	"gantry/fleet"
	"gantry/internal/share"
)

// operation is a route as other faces call it: without HTTP, and without its answer being encoded.
type operation struct {
	route  route
	params params
	run    func(ctx context.Context, c *call, body any) (any, error)
}

// Caller is who sent a request to another face, after it was counted once. It calls any number of operations for that
// request, with the checks of their routes: permission, parameters, body. It is safe for concurrent use.
type Caller struct {
	Who fleet.Principal

	api *API
	r   *http.Request

	mu sync.Mutex
	w  http.ResponseWriter // of which the headers alone are touched
}

// Admit finds out who sent a request to another face and counts it against the limits; keyOf is auth.Bearer, or
// auth.BearerOrQuery. What is left of the limits goes into the answer's header. Errors: CodeUnauthorized, CodeLimited.
func (a *API) Admit(w http.ResponseWriter, r *http.Request, keyOf func(*http.Request) (fleet.Secret, error)) (*Caller, error) {
	who, err := a.identify(w, r, keyOf, nil)
	if err != nil {
		return nil, err
	}
	return &Caller{Who: who, api: a, r: r, w: w}, nil
}

// Operations lists the identifiers of the operations that a Caller can call, sorted: all but those that stream.
func (a *API) Operations() []string { return slices.Sorted(maps.Keys(a.operations)) }

// Call calls the operation with an operationId of the document. params has its parameters by name, those of the path and
// of the header, too. body is the record that it takes, raw JSON ([]byte, json.RawMessage), or nil; either is checked as over
// HTTP. The result is a pointer to the record that it answers with; nil where that is 204. Errors are those of the
// operation, with a fleet.Code.
func (c *Caller) Call(ctx context.Context, id string, params url.Values, body any) (any, error) {
	op := c.api.operations[id]
	if op == nil {
		return nil, fmt.Errorf("call operation %q: there is none", id)
	}
	if err := c.may(op.route.scope); err != nil {
		return nil, err
	}
	args, err := op.params.check(func(p param) []string { return params[p.name] })
	if err != nil {
		return nil, err
	}
	in := &call{who: c.Who, args: args, r: c.request(ctx, &op.route, params), w: &discard{header: http.Header{}}}
	if err := in.mustBeOwn(); err != nil {
		return nil, err
	}
	out, err := op.run(audited(ctx, in, &op.route), in, body)
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(c.w.Header(), in.w.Header())
	return out, err
}

// may refuses a caller whose key does not cover the scope of an operation.
func (c *Caller) may(scope auth.Scope) error {
	if c.Who.Account == "" && !scope.Public && !c.Who.May(scope.Group, scope.Access) {
		return auth.ErrNoKey
	}
	return auth.Require(c.Who, scope)
}

// request is what a client would have sent to the operation's own route.
func (c *Caller) request(ctx context.Context, rt *route, params url.Values) *http.Request {
	r := c.r.WithContext(ctx)
	var path strings.Builder
	for part := range strings.SplitSeq(rt.path[1:], "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			part = params.Get(strings.TrimSuffix(name, "}"))
		}
		path.WriteString("/" + part)
	}
	r.Method, r.URL, r.Header, r.Body = rt.method, &url.URL{Path: path.String()}, http.Header{}, http.NoBody
	if key, ok := params[onceHeader]; ok {
		r.Header[onceHeader] = key
	}
	return r
}

// As is Caller.Call for an operation that answers with a record T; nil where it answers 204.
func As[T any](ctx context.Context, c *Caller, id string, params url.Values, body any) (*T, error) {
	out, err := c.Call(ctx, id, params, body)
	if err != nil || out == nil {
		return nil, err
	}
	record, ok := out.(*T)
	if !ok {
		return nil, fmt.Errorf("operation %s answers with a %T, not with a %T", id, out, record)
	}
	return record, nil
}

// readRecord reads a body that another face gives into v, with all the checks of one that came over HTTP.
func readRecord(body any, most int64, rule *rule, v any) error {
	var data []byte
	switch body := body.(type) {
	case nil:
	case []byte:
		data = body
	case json.RawMessage:
		data = body
	default:
		var err error
		if data, err = json.Marshal(body); err != nil {
			return fmt.Errorf("encode body: %w", err)
		}
		most = int64(len(data)) // the outer face has bounded it
	}
	if int64(len(data)) > most {
		return tooLarge(most)
	}
	return decode(data, rule, v)
}

// AdmitStranger lets in a request to another face that has no key, and counts it against the limits of its address. Its caller
// can read the catalog alone.
func (a *API) AdmitStranger(w http.ResponseWriter, r *http.Request) (*Caller, error) {
	who := fleet.Principal{Can: map[fleet.Group]fleet.Access{fleet.GroupCatalog: fleet.AccessRead}}
	c := &Caller{Who: who, api: a, r: r, w: w}
	return c, c.Count()
}

// Count counts a request again, for a face that does more for one than one operation.
func (c *Caller) Count() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	who := c.Who
	if who.Account == "" {
		who.Account = fleet.AccountID("at " + share.Of(c.r.RemoteAddr).String())
	}
	return c.api.count(c.w, who)
}
