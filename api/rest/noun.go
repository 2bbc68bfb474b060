package rest

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// noun declares the plain records of one kind: a service S keeps them as T, and the wire shows one as R and a list of them
// as L.
type noun[S any, ID ~string, T, R, L any] struct {
	path, tag string
	one       string // with its article, as summaries say it: "a template"
	name      string // in the names of operations: "Template"
	names     string // in that of the operation that lists them: "Templates"
	group     fleet.Group
	id        *huma.Param // {id} in the path of one
	example   R
	record    func(T) R
	records   func([]R) L
}

// kind is what sentences call one record.
func (n *noun[S, ID, T, R, L]) kind() string {
	_, kind, _ := strings.Cut(n.one, " ")
	return kind
}

// operation is a route of the noun that answers with a record; about one record where path goes on with {id}. Its id is the
// prefix with the noun's name, and in is an example of its body.
func (n *noun[S, ID, T, R, L]) operation(method, path, prefix, verb, text string, in any) route {
	rt := route{
		method: method, path: n.path + path, id: prefix + n.name, tag: n.tag, summary: verb + " " + n.one, text: text,
		scope: auth.Write(n.group), limit: limit.PerAccount, status: http.StatusOK, in: in, out: n.example,
	}
	if method == http.MethodGet {
		rt.scope = auth.Read(n.group)
	}
	if path != "" {
		rt.params = []*huma.Param{n.id}
	}
	return rt
}

// create is the route that makes a record of the body in.
func (n *noun[S, ID, T, R, L]) create(text string, in any) route {
	rt := n.operation(http.MethodPost, "", "create", "Make", text, in)
	rt.status = http.StatusCreated
	return rt
}

// update is the route that changes a record by the body in.
func (n *noun[S, ID, T, R, L]) update(text string, in any) route {
	return n.operation(http.MethodPatch, "/{id}", "update", "Change", text, in)
}

// list registers the route that lists an account's records.
func (n *noun[S, ID, T, R, L]) list(a *API, text string, all func(S, context.Context, fleet.Principal) ([]T, error)) {
	rt := n.operation(http.MethodGet, "", "", "List", text, nil)
	rt.id, rt.summary, rt.out = "list"+n.names, "List "+n.kind()+"s", n.records([]R{n.example})
	on(a, rt, func(ctx context.Context, svc S, c *call, _ *none) (*L, error) {
		records, err := showAll(n.record)(all(svc, ctx, c.who))
		out := n.records(records)
		return &out, err
	})
}

// get registers the route that shows one record.
func (n *noun[S, ID, T, R, L]) get(a *API, text string, one func(S, context.Context, fleet.Principal, ID) (T, error)) {
	rt := n.operation(http.MethodGet, "/{id}", "get", "Get", text, nil)
	on(a, rt, byID(n.kind(), func(ctx context.Context, svc S, id ID, c *call, _ *none) (*R, error) {
		return show(n.record)(one(svc, ctx, c.who, id))
	}))
}

// delete registers the route that deletes one record.
func (n *noun[S, ID, T, R, L]) delete(a *API, text string, remove func(S, context.Context, fleet.Principal, ID) error) {
	rt := n.operation(http.MethodDelete, "/{id}", "delete", "Delete", text, nil)
	rt.status, rt.out = http.StatusNoContent, nil
	on(a, rt, byID(n.kind(), func(ctx context.Context, svc S, id ID, c *call, _ *none) (*none, error) {
		return nil, remove(svc, ctx, c.who, id)
	}))
}
