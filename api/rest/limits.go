package rest

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// KeyChecker tells who a request is from.
type KeyChecker interface {
	// Authenticate returns who holds the key; CodeUnauthorized when nobody does.
	Authenticate(ctx context.Context, key fleet.Secret) (fleet.Principal, error)
	// KnownKey is Authenticate as far as this scheduler knows by itself. It answers at once.
	KnownKey(key fleet.Secret) (fleet.Principal, bool)
}

const (
	rateHeader   = "RateLimit"
	policyHeader = "RateLimit-Policy"
	retryHeader  = "Retry-After"
)

const textFailures = "too many requests from this address failed: no key, or none that is good"

// admit finds out who makes a request, counts it and writes what is left of the caller's quotas into
// the answer's header. A good key passes whatever others did from its address: what failed there is counted
// against further failures alone. Errors: those of auth.Principal, and CodeLimited.
func (a *API) admit(w http.ResponseWriter, r *http.Request, scope auth.Scope) (fleet.Principal, error) {
	if scope.Public {
		return fleet.Principal{}, nil
	}
	return a.identify(w, r, auth.Bearer, &scope)
}

// identify is admit for a key that keyOf reads from the request; a nil scope is not asked for.
func (a *API) identify(
	w http.ResponseWriter, r *http.Request, keyOf func(*http.Request) (fleet.Secret, error), scope *auth.Scope,
) (fleet.Principal, error) {
	if wait := a.guard.Blocked(r.RemoteAddr); wait > 0 {
		if _, ok := a.known(r, keyOf); !ok { // so that a flood of keys costs no more than this
			return fleet.Principal{}, limited(w, wait, textFailures)
		}
	}
	who, err := auth.Principal(r, part[KeyChecker](a), keyOf, scope)
	if fleet.CodeOf(err) == fleet.CodeUnauthorized {
		a.guard.Failed(r.RemoteAddr)
	}
	if err != nil && who.Account == "" {
		return who, err
	}
	if late := a.count(w, who); late != nil { // also for a key that lacks the permission
		return who, late
	}
	return who, err
}

// countMiss counts a request that no route takes: with a good key as one of its account, else as one that failed. CodeLimited when
// there were too many.
func (a *API) countMiss(w http.ResponseWriter, r *http.Request) error {
	if who, ok := a.known(r, auth.Bearer); ok {
		return a.count(w, who)
	}
	if wait := a.guard.Blocked(r.RemoteAddr); wait > 0 {
		return limited(w, wait, textFailures)
	}
	a.guard.Failed(r.RemoteAddr)
	return nil
}

// count counts a request of an account, and writes what is left of its quotas into the answer's header.
func (a *API) count(w http.ResponseWriter, who fleet.Principal) error {
	v := a.rates.Take(who.Account, who.Quotas)
	if policy := v.Policy(); policy != "" {
		w.Header().Set(rateHeader, v.Header())
		w.Header().Set(policyHeader, policy)
	}
	if name, wait := v.Exceeded(); wait > 0 {
		return limited(w, wait, fmt.Sprintf("rate limit exceeded for the %s window", name))
	}
	return nil
}

// known returns who holds the key of a request, as far as this scheduler knows.
func (a *API) known(r *http.Request, keyOf func(*http.Request) (fleet.Secret, error)) (fleet.Principal, bool) {
	key, err := keyOf(r)
	if err != nil {
		return fleet.Principal{}, false
	}
	return part[KeyChecker](a).KnownKey(key)
}

// limited refuses a request that may come again after wait seconds.
func limited(w http.ResponseWriter, wait int, text string) error {
	w.Header().Set(retryHeader, strconv.Itoa(wait))
	return &fleet.Error{Code: fleet.CodeLimited, Msg: text}
}

// describeLimits documents the headers of an operation's answers.
func describeLimits(op *huma.Operation, class limit.Class) {
	for status, resp := range op.Responses {
		header := func(name, text string, schema *huma.Schema) {
			if resp.Headers == nil {
				resp.Headers = map[string]*huma.Param{}
			}
			resp.Headers[name] = &huma.Param{Description: text, Schema: schema}
		}
		// Answers of success have them, too; the document says so once.
		if class == limit.PerAccount && status != strconv.Itoa(http.StatusUnauthorized) && status > "3" {
			header(rateHeader, "Per window the requests that are left (r) and the seconds until it passes (t); absent where the caller was not authenticated, "+
				"and without a member for a window that has no quota.", listSchema(`"minute";r=179;t=60, "hour";r=7199;t=3600, "day";r=99999;t=86400`))
			header(policyHeader, "Per window its quota of requests (q) and its length in seconds (w); absent where RateLimit is.",
				listSchema(`"minute";q=180;w=60, "hour";q=7200;w=3600, "day";q=100000;w=86400`))
		}
		if status == strconv.Itoa(http.StatusTooManyRequests) {
			header(retryHeader, "Seconds to wait.", &huma.Schema{Type: huma.TypeInteger, Minimum: new(1.0), Examples: []any{12}})
		}
	}
}

// listSchema is the schema of a structured-field list.
func listSchema(example string) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Examples: []any{example}}
}
