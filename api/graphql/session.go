package graphql

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/graph-gophers/graphql-go/errors"
	"github.com/graph-gophers/graphql-go/introspection"

	"gantry/api/auth"
	"gantry/api/problem"
	"gantry/api/rest"
	"gantry/api/v2"
	"gantry/fleet"
)

const (
	// maxResolved is how many fields one request may resolve: those of 10,000 pods, all of them.
	maxResolved = 500_000
	// introspectionCost is how many fields one of the schema itself counts as. The usual introspection query has some 9,000 of them.
	introspectionCost = 15
)

// session is one request: who sent it, what it has cost so far, and the lists that were read for it, each once.
type session struct {
	caller *rest.Caller
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc

	written  int64 // fields that the document writes down
	resolved atomic.Int64
	calls    atomic.Int64
	refused  atomic.Bool // a call lacked a key

	mu                    sync.Mutex
	lists                 map[string]func() (any, error)
	gpuNames, centerNames func() map[string]string
}

type sessionKey struct{}

func sessionOf(ctx context.Context) *session {
	s, _ := ctx.Value(sessionKey{}).(*session)
	return s
}

// ask calls an operation that reads.
func ask[T any](s *session, id string, params url.Values) (*T, error) {
	return call[T](s, auth.Read(fleet.GroupGraphQL), id, params, nil)
}

// act calls an operation that changes something.
func act[T any](s *session, id string, params url.Values, body any) (*T, error) {
	return call[T](s, auth.Write(fleet.GroupGraphQL), id, params, body)
}

// call calls an operation of REST v2. The key must cover its scope, and that of GraphQL itself unless it is a pod's own. The first
// call of a request was counted with it, each further one is counted as another request.
func call[T any](s *session, scope auth.Scope, id string, params url.Values, body any) (*T, error) {
	if s.calls.Add(1) > 1 {
		if err := s.caller.Count(); err != nil {
			return nil, s.fail(err)
		}
	}
	if who := s.caller.Who; who.Account != "" && who.Pod == "" {
		if err := auth.Require(who, scope); err != nil {
			return nil, s.fail(err)
		}
	}
	out, err := rest.As[T](s.ctx, s.caller, id, params, body)
	return out, s.fail(err)
}

// read asks for a list once in a request.
func read[T any](s *session, id string, params url.Values) (*T, error) {
	key := id + "?" + params.Encode()
	s.mu.Lock()
	f := s.lists[key]
	if f == nil {
		f = sync.OnceValues(func() (any, error) { return ask[T](s, id, params) })
		s.lists[key] = f
	}
	s.mu.Unlock()
	out, err := f()
	if err != nil {
		return nil, err
	}
	return out.(*T), nil //nolint:forcetypeassert // the key names the operation
}

// namesOf are the names of records by their ids, which are asked for when one is needed, and once.
func namesOf[R any](all func() ([]R, error), of func(R) (id, name string)) func() map[string]string {
	return sync.OnceValue(func() map[string]string {
		records, _ := all() // the ids will do
		out := make(map[string]string, len(records))
		for _, r := range records {
			id, name := of(r)
			out[id] = name
		}
		return out
	})
}

// list makes the resolvers of a list's records, unless the request would resolve too many fields by them.
func list[R, V any](s *session, records []R, view func(*session, *R) *V) ([]*V, error) {
	if s.resolved.Load()+int64(len(records))*s.written > maxResolved {
		return nil, s.fail(tooMuch())
	}
	out := make([]*V, len(records))
	for i := range records {
		out[i] = view(s, &records[i])
	}
	return out, nil
}

func tooMuch() error {
	return refused("the request asks for more than %d fields: ask for fewer of a list's, or for single records", maxResolved)
}

// refusal is an error as clients see it.
type refusal struct{ p v2.Problem }

// Error is what clients show: the problem, and each of its failures.
func (r *refusal) Error() string {
	if len(r.p.Errors) == 0 {
		return r.p.Detail
	}
	return r.p.Detail + " " + strings.Join(r.p.Errors, "; ")
}

// Extensions tell programs what the message tells people.
func (r *refusal) Extensions() map[string]any {
	out := map[string]any{"code": r.p.Code, "status": r.p.Status, "requestId": r.p.RequestID}
	if len(r.p.Errors) > 0 {
		out["errors"] = r.p.Errors
	}
	if len(r.p.Excluded) > 0 {
		out["excluded"] = r.p.Excluded
	}
	return out
}

// fail returns what a client is told of an error, nil for none, and logs what a person may have to look at.
func (s *session) fail(err error) error {
	if err == nil {
		return nil
	}
	p := problem.From(err, problem.RequestID(s.ctx))
	switch {
	case s.ctx.Err() != nil: // nobody reads it
	case p.Code == fleet.CodeInternal:
		s.log.Error("request met an internal error", "request", p.RequestID, "route", path, "err", err)
	case p.Code == fleet.CodeUnauthorized:
		s.refused.Store(true)
	}
	return &refusal{p}
}

// codeOf is the code of an error that a call returned.
func codeOf(err error) fleet.Code {
	if r, ok := err.(*refusal); ok { //nolint:errorlint // it is never wrapped
		return r.p.Code
	}
	return ""
}

// renamed has an error name the members of a GraphQL input that its paths in a body stand for.
func renamed(err error, names []member) error {
	r, ok := err.(*refusal) //nolint:errorlint // it is never wrapped
	if !ok {
		return err
	}
	p := r.p
	p.Errors = slices.Clone(p.Errors)
	for i, text := range p.Errors {
		for _, n := range names {
			for _, told := range []string{"$." + n.to, "$: missing property '" + n.to + "'", n.to} {
				rest, found := strings.CutPrefix(text, told)
				if found && n.to != "" && (rest == "" || strings.IndexByte(":.[", rest[0]) >= 0) {
					if rest == "" {
						rest = ": must be given"
					}
					p.Errors[i] = "input." + n.from + rest
				}
			}
		}
	}
	return &refusal{p}
}

// said is a refusal of this face, whose message clients compare with.
func (s *session) said(code fleet.Code, text string) error {
	r, _ := s.fail(&fleet.Error{Code: code}).(*refusal) //nolint:errorlint // it is one
	r.p.Detail = text
	return r
}

// tracer notes which mutation is resolved, counts what is, and ends a request that resolves too much: introspection
// alone can ask for more than any list.
type tracer struct{}

func (tracer) TraceQuery(
	ctx context.Context, _, _ string, _ map[string]any, _ map[string]*introspection.Type,
) (context.Context, func([]*errors.QueryError)) {
	return ctx, func([]*errors.QueryError) {}
}

func (tracer) TraceField(ctx context.Context, _, of, field string, _ bool, _ map[string]any) (context.Context, func(*errors.QueryError)) {
	cost := int64(1)
	if strings.HasPrefix(of, "__") {
		cost = introspectionCost
	}
	s := sessionOf(ctx)
	if s == nil {
		return ctx, nothing
	}
	if of == "Mutation" { // one is resolved after the other
		fleet.AuditOf(s.ctx).Begin(fleet.AuditLine{Operation: field, Face: "graphql", Status: http.StatusOK})
	}
	if s.resolved.Add(cost) > maxResolved {
		s.cancel()
	}
	return ctx, nothing
}

func nothing(*errors.QueryError) {}
