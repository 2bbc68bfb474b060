// Package auth finds out who makes a request and whether it may: API keys in the header
// "Authorization: Bearer …", for GraphQL also in the query, and the scope that each route declares. It never looks for a
// key elsewhere (not in a cookie), never logs one, and stores nothing.
package auth

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"gantry/fleet"
)

// Scope is what a route asks of a key. The zero Scope is none: a route must not have it.
type Scope struct {
	Group  fleet.Group
	Access fleet.Access
	Public bool // no key needed
	// Pod says that a pod's own key will do, too, for that pod alone. Routes that do not say so refuse it.
	Pod bool
	// Self asks for a key or a session, and for no permission: what the caller asks for is about the caller. A pod's own key will not do.
	Self bool
}

// Public is the scope of a route that needs no key.
func Public() Scope { return Scope{Public: true} }

// Self is the scope of a route for whoever asks, about the one who asks.
func Self() Scope { return Scope{Self: true} }

// Read asks for reading in group g.
func Read(g fleet.Group) Scope { return Scope{Group: g, Access: fleet.AccessRead} }

// Write asks for writing in group g.
func Write(g fleet.Group) Scope { return Scope{Group: g, Access: fleet.AccessWrite} }

// OrPod returns the scope with Pod set.
func (s Scope) OrPod() Scope {
	s.Pod = true
	return s
}

// Declared reports whether the scope says anything.
func (s Scope) Declared() bool {
	group := s.Group != "" && (s.Access == fleet.AccessRead || s.Access == fleet.AccessWrite)
	return s.Public != (group != s.Self) && (!group || !s.Self)
}

// String returns "group:access", or "public".
func (s Scope) String() string {
	switch {
	case s.Public:
		return "public"
	case s.Self:
		return "self"
	}
	return string(s.Group) + ":" + string(s.Access)
}

// Keys knows the API keys.
type Keys interface {
	// Authenticate returns who holds the key; CodeUnauthorized when nobody does, or no more.
	Authenticate(ctx context.Context, key fleet.Secret) (fleet.Principal, error)
}

// ErrNoKey is the refusal of a request without a key.
var ErrNoKey = unauthorized("missing bearer token")

// Bearer returns the API key of a request. Errors are CodeUnauthorized: no Authorization header, more
// than one, another scheme than Bearer (in any case), or a text that has not the form of a key.
func Bearer(r *http.Request) (fleet.Secret, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 || values[0] == "" {
		return "", ErrNoKey
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimLeft(token, " ")
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", unauthorized("malformed bearer token")
	}
	if !fleet.ValidAPIKey(token) {
		return "", unauthorized("invalid bearer token")
	}
	return fleet.Secret(token), nil
}

// queryKey is the query parameter in which clients of GraphQL send their key.
const queryKey = "api_key"

// BearerOrQuery returns the API key of a request as Bearer does, or that of its query where it has no Authorization header.
// It is for GraphQL alone: an address with a key in it may end up in logs.
func BearerOrQuery(r *http.Request) (fleet.Secret, error) {
	values := r.URL.Query()[queryKey]
	if len(r.Header.Values("Authorization")) > 0 || len(values) == 0 {
		return Bearer(r)
	}
	if len(values) > 1 || !fleet.ValidAPIKey(values[0]) {
		return "", unauthorized("invalid " + queryKey)
	}
	return fleet.Secret(values[0]), nil
}

// Principal returns who makes the request when its key, which keyOf reads from it, covers the scope; nil asks for no scope.
// Errors: CodeUnauthorized, CodeForbidden, and what keys answers when it cannot tell.
func Principal(r *http.Request, keys Keys, keyOf func(*http.Request) (fleet.Secret, error), scope *Scope) (fleet.Principal, error) {
	if scope != nil && scope.Public {
		return fleet.Principal{}, nil
	}
	key, err := keyOf(r)
	if err != nil {
		return fleet.Principal{}, err
	}
	who, err := keys.Authenticate(r.Context(), key)
	if errors.Is(err, fleet.ErrKeyEnded) { // which only the key's holder can be told
		return fleet.Principal{}, fleet.ErrKeyEnded
	}
	if fleet.CodeOf(err) == fleet.CodeUnauthorized {
		return fleet.Principal{}, unauthorized("invalid bearer token")
	}
	if err != nil {
		return fleet.Principal{}, err
	}
	if scope == nil {
		return who, nil
	}
	return who, Require(who, *scope)
}

// Require returns CodeForbidden unless who covers the scope. An undeclared scope is covered by nobody. Of a pod's own
// key it does not say whether the request is about that pod.
func Require(who fleet.Principal, scope Scope) error {
	if scope.Public {
		return nil
	}
	covered := scope.Self || who.May(scope.Group, scope.Access)
	if who.Pod != "" {
		covered = scope.Pod
	}
	if !scope.Declared() || !covered {
		return fleet.Forbidden(lack(who, scope))
	}
	return nil
}

// lack says which permission is missing, and of what kind the key is where that is why.
func lack(who fleet.Principal, scope Scope) string {
	switch {
	case !scope.Declared():
		return "no key may do this"
	case who.Pod != "":
		return "a pod's own key may not do this"
	case scope.Group == fleet.GroupAdmin && who.Can[fleet.GroupAdmin] == fleet.AccessNone:
		return "this key lacks " + scope.String() + ": it is an account's, and this takes an operator's"
	case who.Can[scope.Group] == fleet.AccessRead:
		return "this key lacks " + scope.String() + ": it has " + string(scope.Group) + ":read"
	}
	return "this key lacks " + scope.String()
}

func unauthorized(msg string) error { return &fleet.Error{Code: fleet.CodeUnauthorized, Msg: msg} }
