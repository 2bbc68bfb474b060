// Package problem turns errors into application/problem+json answers: one table from error code to
// status, for every face of the API. It never shows the cause of an error and never a submitted
// value; causes go to the log beside the request's id. It keeps nothing.
package problem

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
)

// ContentType is the media type of a problem.
const ContentType = "application/problem+json"

// Texts that clients compare with.
const (
	TextNotFound    = "resource not found"
	TextNoPath      = "The requested path was not found."
	TextForbidden   = "access denied"
	TextInvalid     = "Request validation failed."
	textInternal    = "internal error"
	textUnavailable = "The request could not be completed in time. Its outcome is unknown."
)

// class is how one error code is answered.
type class struct {
	status int
	detail string // replaces the error's own message when not empty
	retry  int    // seconds of Retry-After; 0: no such header
}

func classOf(code fleet.Code) class {
	c, ok := map[fleet.Code]class{
		fleet.CodeInvalid:      {status: http.StatusUnprocessableEntity, detail: TextInvalid},
		fleet.CodeConflictRule: {status: http.StatusBadRequest},
		fleet.CodeMalformed:    {status: http.StatusBadRequest},
		fleet.CodeUnauthorized: {status: http.StatusUnauthorized},
		fleet.CodeNoCredit:     {status: http.StatusPaymentRequired},
		fleet.CodeSpendLimit:   {status: http.StatusPaymentRequired},
		fleet.CodeForbidden:    {status: http.StatusForbidden, detail: TextForbidden},
		fleet.CodeTooMany:      {status: http.StatusBadRequest},
		fleet.CodeQuota:        {status: http.StatusForbidden},
		fleet.CodeSuspended:    {status: http.StatusForbidden},
		fleet.CodeNotFound:     {status: http.StatusNotFound, detail: TextNotFound},
		fleet.CodeNotAllowed:   {status: http.StatusConflict},
		fleet.CodeExists:       {status: http.StatusConflict},
		fleet.CodeNoCapacity:   {status: http.StatusBadRequest},
		fleet.CodeInUse:        {status: http.StatusBadRequest},
		fleet.CodeStale:        {status: http.StatusServiceUnavailable, retry: 1},
		fleet.CodeUnavailable:  {status: http.StatusServiceUnavailable, retry: 1},
		fleet.CodeLimited:      {status: http.StatusTooManyRequests, retry: 1},
		fleet.CodeTooLarge:     {status: http.StatusRequestEntityTooLarge},
		fleet.CodeMediaType:    {status: http.StatusUnsupportedMediaType},
		fleet.CodeMethod:       {status: http.StatusMethodNotAllowed},
	}[code]
	if !ok {
		return class{status: http.StatusInternalServerError, detail: textInternal}
	}
	return c
}

// Status returns the HTTP status of an error code; 500 for a code that it does not know.
func Status(code fleet.Code) int { return classOf(code).status }

// From describes err, which is not nil, to the caller of the request requestID. An error without a
// fleet.Code is internal, except that a passed deadline is "unavailable".
func From(err error, requestID string) v2.Problem {
	var e *fleet.Error
	if !errors.As(err, &e) {
		e = &fleet.Error{Code: fleet.CodeInternal}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			e = &fleet.Error{Code: fleet.CodeUnavailable, Msg: textUnavailable}
		}
	}
	c := classOf(e.Code)
	p := v2.Problem{
		Title: http.StatusText(c.status), Status: c.status, Detail: e.Msg,
		Code: e.Code, RequestID: requestID,
	}
	if c.detail != "" {
		p.Detail = c.detail
	}
	if p.Detail == "" {
		p.Detail = p.Title
	}
	if c.status == http.StatusInternalServerError {
		p.Code = fleet.CodeInternal
		return p
	}
	p.Errors, p.Excluded = e.Details, e.Excluded
	return p
}

// NoPath describes a path that no route has.
func NoPath(requestID string) v2.Problem {
	p := From(&fleet.Error{Code: fleet.CodeNotFound}, requestID)
	p.Detail = TextNoPath
	return p
}

// For fits p to the version of the API that r speaks: clients of version 1 read error or message, and nothing else.
func For(r *http.Request, p v2.Problem) v2.Problem {
	if path := r.URL.Path; path == "/v1" || strings.HasPrefix(path, "/v1/") {
		text := strings.Join(append([]string{p.Detail}, p.Errors...), "\n")
		p.Error, p.Message = text, text
	}
	return p
}

// Write sends p with the headers that its status asks for. Allow, for 405, is the caller's to set; a
// Retry-After that the caller has set stays.
func Write(w http.ResponseWriter, p v2.Problem) {
	body, err := json.Marshal(p)
	if err != nil { // cannot happen: the type has only strings and numbers
		body = []byte(`{}`)
	}
	h := w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if retry := classOf(p.Code).retry; retry > 0 && h.Get("Retry-After") == "" {
		h.Set("Retry-After", strconv.Itoa(retry))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // a client that left is not told
}

// Answer logs what a person may have to look at and sends the problem that describes err.
func Answer(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error) {
	p := From(err, RequestID(r.Context()))
	if e := (*fleet.Error)(nil); errors.As(err, &e) && e.After > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((e.After+time.Second-1)/time.Second)))
	}
	switch {
	case r.Context().Err() != nil: // the client left; nobody reads the answer
	case p.Status == http.StatusInternalServerError:
		log.Error("request met an internal error", "request", p.RequestID, "method", r.Method, "route", r.Pattern, "err", err)
	case p.Status == http.StatusServiceUnavailable:
		log.Warn("process a join request", "request", p.RequestID, "method", r.Method, "route", r.Pattern, "err", err)
	}
	Write(w, For(r, p))
}

type requestIDKey struct{}

// WithRequestID returns ctx carrying the id of the request.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID returns the id that WithRequestID stored, "" when there is none.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

const maxRequestID = 64

// ChooseRequestID returns the id that the client sent when it is 1 to 64 letters, digits, '.', '_'
// or '-', and a new one otherwise.
func ChooseRequestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if id == "" || len(id) > maxRequestID {
		return fleet.NewID()
	}
	for i := 0; i < len(id); i++ {
		c := id[i]
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '.', c == '_', c == '-':
		default:
			return fleet.NewID()
		}
	}
	return id
}
