package graphql

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"regexp"
	"runtime/debug"
	"time"

	engine "github.com/graph-gophers/graphql-go"
	queryerrors "github.com/graph-gophers/graphql-go/errors"

	"gantry/api/auth"
	"gantry/api/problem"
	"gantry/api/rest"
	"gantry/api/v2"
	"gantry/fleet"
)

// Schema is the schema in the language of GraphQL.
//
//go:embed schema.graphql
var Schema string

const (
	path = "/graphql"
	// SchemaPath is where the schema is published.
	SchemaPath = "/graphql/schema.graphql"

	maxBody     = 512 << 10
	callTimeout = 20 * time.Second
	parallel    = 4    // fields of one request that are resolved at a time
	maxPairs    = 1000 // of fields with one name that validation compares
	maxErrors   = 10
	maxPooled   = 1 << 20 // bytes of a buffer of answers that is used again
)

// API is the GraphQL face as an http.Handler. It is safe for concurrent use.
type API struct {
	rest   *rest.API
	log    *slog.Logger
	schema *engine.Schema
}

// root resolves the fields of Query and Mutation.
type root struct{}

// New returns the face over the operations of an API.
func New(api *rest.API, log *slog.Logger) (*API, error) {
	a := &API{rest: api, log: log}
	var err error
	a.schema, err = engine.ParseSchema(Schema, &root{}, engine.UseStringDescriptions(), engine.UseFieldResolvers(), engine.MaxDepth(maxDepth),
		engine.MaxQueryLength(maxDocument), engine.MaxSelections(5*maxFields), engine.OverlapValidationLimit(maxPairs), engine.MaxParallelism(parallel),
		engine.DisableFieldSelections(), engine.MaxPooledBufferCap(maxPooled), engine.Tracer(tracer{}), engine.Logger(panics{log}), engine.PanicHandler(panics{log}))
	return a, err
}

// Owns reports whether a path is one of this face.
func Owns(p string) bool { return p == path || p == SchemaPath }

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.rest.Guarded(a.serve).ServeHTTP(w, r)
}

func (a *API) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == SchemaPath {
		a.publish(w, r)
		return
	}
	out, status, err := a.answer(w, r)
	if err != nil {
		p := problem.From(err, problem.RequestID(r.Context()))
		if p.Code == fleet.CodeInternal {
			a.log.Error("request met an internal error", "request", p.RequestID, "route", path, "err", err)
		}
		one := &refusal{p}
		out, status = &engine.Response{Data: json.RawMessage("null"), Errors: []*queryerrors.QueryError{
			{Message: one.Error(), Extensions: one.Extensions()},
		}}, p.Status
	}
	write(w, status, out)
}

// publish answers with the schema, to everybody.
func (a *API) publish(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the method is not allowed for this path", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = io.WriteString(w, Schema) // a client that left is not told
}

// request is what a client sends.
type request struct {
	query, operation string
	variables        map[string]any
}

// answer does what a request asks for. An error is one of the request as a whole.
func (a *API) answer(w http.ResponseWriter, r *http.Request) (*engine.Response, int, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, 0, &fleet.Error{Code: fleet.CodeMethod, Msg: "the method is not allowed for this path: POST a document"}
	}
	caller, err := a.rest.Admit(w, r, auth.BearerOrQuery)
	if errors.Is(err, auth.ErrNoKey) {
		caller, err = a.rest.AdmitStranger(w, r)
	}
	if err != nil {
		return nil, 0, err
	}
	in, err := readRequest(w, r)
	if err != nil {
		return nil, 0, err
	}
	s := &session{caller: caller, log: a.log, lists: map[string]func() (any, error){}}
	s.gpuNames = namesOf(func() ([]v2.GPUType, error) { return s.gpus(nil) }, func(g v2.GPUType) (string, string) { return g.ID, g.Name })
	s.centerNames = namesOf(s.centers, func(d v2.DataCenter) (string, string) { return d.ID, d.Name })
	var doc string
	if doc, s.written, err = measure(in.query); err != nil {
		return nil, 0, err
	}
	s.ctx, s.cancel = context.WithTimeout(r.Context(), callTimeout)
	defer s.cancel()
	s.ctx = context.WithValue(fleet.WithAudit(s.ctx, fleet.AuditLine{}), sessionKey{}, s)
	out, err := a.run(s, doc, in)
	switch {
	case err != nil:
		return nil, 0, err
	case s.resolved.Load() > maxResolved:
		return nil, 0, tooMuch()
	case s.ctx.Err() != nil:
		return nil, 0, s.ctx.Err()
	case out.Data == nil:
		return harmless(out, problem.RequestID(s.ctx)), http.StatusBadRequest, nil //nolint:contextcheck // it is the request's
	case s.refused.Load():
		return nullData(out), http.StatusUnauthorized, nil
	}
	return nullData(out), http.StatusOK, nil
}

// run executes a document. What the engine cannot read it answers with a panic, before it has called anything.
func (a *API) run(s *session, doc string, in request) (out *engine.Response, err error) {
	defer func() {
		if v := recover(); v != nil {
			panics{a.log}.LogPanic(s.ctx, v)
			err = refused("a value of the document cannot be read: give it as a variable")
		}
	}()
	return a.schema.Exec(s.ctx, doc, in.operation, in.variables), nil
}

// readRequest reads the body of a request.
func readRequest(w http.ResponseWriter, r *http.Request) (request, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return request{}, &fleet.Error{Code: fleet.CodeMediaType, Msg: "the content type must be application/json"}
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var over *http.MaxBytesError
	if errors.As(err, &over) {
		return request{}, &fleet.Error{Code: fleet.CodeTooLarge, Msg: fmt.Sprintf("the request body is larger than %d bytes", maxBody)}
	}
	if err != nil {
		return request{}, refused("the request body could not be read")
	}
	var body struct {
		Query         string
		OperationName *string
		Variables     map[string]any
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return request{}, refused("the request body must be a JSON object with query, and variables and operationName where there are any")
	}
	for _, v := range body.Variables {
		dropNulls(v)
	}
	return request{body.Query, text(body.OperationName), body.Variables}, nil
}

// dropNulls leaves out the members of objects that are null, also those that the schema does not know.
func dropNulls(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			dropNulls(item)
		}
	case map[string]any:
		for name, item := range v {
			if item == nil {
				delete(v, name)
			} else {
				dropNulls(item)
			}
		}
	}
}

// The parts of the engine's messages that repeat a value, which may be secret, and what stands in their place.
var repeated = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`(?s)( has invalid (?:value|type)).*\nExpected type ("[^"]*"), found .*`), "$1: expected $2"},
	{regexp.MustCompile(`(?s)( cannot represent (?:a )?non[^:]* value): .*`), "$1"},
	{regexp.MustCompile(`(?s)^Value ".*" does not exist in ("[^"]*") enum.*`), "The value does not exist in enum $1"},
	{regexp.MustCompile(`(?s)(Expected type "[^"]*"), found .*`), "$1"},
}

// harmless takes the values that were sent out of the errors of a document that is not valid, and leaves the first few.
func harmless(out *engine.Response, requestID string) *engine.Response {
	out.Data = json.RawMessage("null")
	out.Errors = out.Errors[:min(len(out.Errors), maxErrors)]
	for _, e := range out.Errors {
		for _, r := range repeated {
			e.Message = r.from.ReplaceAllString(e.Message, r.to)
		}
		e.Locations = e.Locations[:min(len(e.Locations), maxErrors)]
		e.Extensions = (&refusal{problem.From(refused(""), requestID)}).Extensions()
	}
	return out
}

// nullData has null for data where there are errors and nothing else.
func nullData(out *engine.Response) *engine.Response {
	var fields map[string]json.RawMessage
	if len(out.Errors) == 0 || json.Unmarshal(out.Data, &fields) != nil {
		return out
	}
	for _, v := range fields {
		if string(v) != "null" {
			return out
		}
	}
	out.Data = json.RawMessage("null")
	return out
}

func write(w http.ResponseWriter, status int, out *engine.Response) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	before, data, after := `{"data":`, []byte(out.Data), "}\n"
	if len(out.Errors) > 0 { // what came without errors may be large, and is encoded already
		before, after = "", "\n"
		var err error
		if data, err = json.Marshal(out); err != nil { // cannot happen, for the same reason
			status, data = http.StatusInternalServerError, []byte(`{"errors":[{"message":"internal error"}],"data":null}`)
		}
	}
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, before) // a client that left is not told
	_, _ = w.Write(data)
	_, _ = io.WriteString(w, after)
}

// panics logs a panic of a resolver, and says nothing of it.
type panics struct{ log *slog.Logger }

// LogPanic implements the engine's Logger.
func (p panics) LogPanic(ctx context.Context, v any) {
	p.log.Error("request panicked", "request", problem.RequestID(ctx), "route", path, "panic", v, "stack", string(debug.Stack()))
}

// MakePanicError implements the engine's PanicHandler.
func (panics) MakePanicError(context.Context, any) *queryerrors.QueryError {
	return &queryerrors.QueryError{Message: "internal error", Extensions: map[string]any{"code": fleet.CodeInternal}}
}
