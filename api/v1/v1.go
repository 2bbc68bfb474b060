// Package v1 is REST version 1 (interface.md, "REST v1"; wire-facts.md, 3.3) on the operations of version 2. It renames
// members by a table (Nouns), and shapes what cannot be said by a name alone. What a request means, who may send it and what
// is wrong with it is said by the operation that it calls; it keeps nothing.
package v1

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/rest"
)

// Owns reports whether a path is one of version 1.
func Owns(path string) bool { return path == "/v1" || strings.HasPrefix(path, "/v1/") }

// New returns the face.
func New(api *rest.API) (*rest.Face, error) {
	f := face{Face: api.Face(huma.Info{
		Title: "Gantry, version 1", Version: "1.0.0",
		Description: "The resources of version 2 (/v2/openapi.json) under the names of version 1: bare arrays, records without null for what is absent, and a POST twin " +
			"for each PATCH. In a body null means left out. Errors are problems as in version 2, whose text is also in error and message.",
	}, "/v1", &huma.Tag{Name: "Pods"}, &huma.Tag{Name: "Endpoints"}, &huma.Tag{Name: "Templates"}, &huma.Tag{Name: "Network volumes"},
		&huma.Tag{Name: "Container registry credentials"}, &huma.Tag{Name: "Billing"}), nouns: map[string]*Noun{}}
	for _, n := range Nouns() {
		f.nouns[n.Title] = &n
	}
	f.pods()
	f.endpoints()
	f.others()
	f.billing()
	return f.Face, errors.Join(append(f.faults, f.Finish())...)
}

type face struct {
	*rest.Face
	nouns  map[string]*Noun
	faults []error
}

// view is one request.
type view struct {
	*rest.Caller
	noun   *Noun
	ctx    context.Context //nolint:containedctx // of the request, whose end it is
	params url.Values
	tables map[string]map[string]object
}

// crud are the routes of a Noun.
type crud struct {
	noun    *Noun
	one     string // in identifiers of operations
	several string
	list    string // operations of version 2
	make    string
	get     string
	change  string // empty: there is none
	remove  string
	member  string // of the answer of list that is the list
	made    int    // status of a create

	filters map[string]string // query parameters of a list by those of version 2
	include []string          // flags that add members to a record
	example object            // of a create
	changed object            // of an update
	text    string            // of an update: what it restarts

	// create makes a record of a body; change makes a body of version 2 of an update of the record had. finish completes a record.
	// nil: names alone do.
	create func(v *view, in object) (any, error)
	update func(v *view, in, had object) (object, error)
	finish func(v *view, had, out object) error
}

func (f *face) register(c crud) {
	record := f.Component(strings.ToUpper(c.one[:1])+c.one[1:], f.schema(c.noun, "r"))
	sample := c.sample(f.Sample(c.get))
	id := f.Params(c.get, "id")
	route := func(method, path, verb, op string) rest.FaceRoute {
		return rest.FaceRoute{
			Method: method, Path: c.noun.Path + path, ID: verb + c.one, Tag: c.noun.Title, Summary: strings.ToUpper(verb[:1]) + verb[1:] + " " + strings.ToLower(c.noun.Title),
			Text: "As " + op + " of version 2.", Operation: op, Status: http.StatusOK, Out: record, Shown: sample,
		}
	}
	list := route(http.MethodGet, "", "list", c.list)
	list.ID, list.Out, list.Shown = "list"+c.several, &huma.Schema{Type: huma.TypeArray, Items: record}, []any{sample}
	list.Params = append(f.filters(&c), f.Params(c.list, "limit", "cursor")...)
	list.Params = append(list.Params, c.flags()...)
	list.Do = c.doList
	f.Handle(list)

	create := route(http.MethodPost, "", "create", c.make)
	create.Status, create.In, create.Example, create.Params, create.Do = c.made, f.schema(c.noun, "c"), c.example, f.Params(c.make, "Idempotency-Key"), c.doCreate
	f.Handle(create)

	one := route(http.MethodGet, "/{id}", "get", c.get)
	one.Params, one.Do = slices.Concat(id, c.flags()), c.doGet
	f.Handle(one)

	if c.change != "" {
		update := route(http.MethodPatch, "/{id}", "update", c.change)
		update.In, update.Example, update.Params, update.Do = f.schema(c.noun, "u"), c.changed, id, c.doUpdate
		update.Text += " " + c.text
		f.Handle(update)
		update.Method, update.Path, update.ID = http.MethodPost, update.Path+"/update", update.ID+"ByPost"
		f.Handle(update)
	}
	remove := route(http.MethodDelete, "/{id}", "delete", c.remove)
	remove.Status, remove.Out, remove.Params = http.StatusNoContent, nil, id
	remove.Do = func(ctx context.Context, call *rest.Caller, params url.Values, _ object) (any, error) {
		_, err := call.Call(ctx, c.remove, params, nil)
		return nil, err
	}
	f.Handle(remove)
}

func (c *crud) sample(of []byte) object {
	had, err := treeOf(json.RawMessage(of))
	if err != nil {
		return object{}
	}
	return c.noun.record(had)
}

func (c *crud) flags() (out []*huma.Param) {
	for _, name := range c.include {
		out = append(out, &huma.Param{Name: name, In: "query", Description: "Adds to the record.", Schema: &huma.Schema{Type: huma.TypeBoolean, Default: false}})
	}
	return out
}

// filters are the parameters of a list under their names in version 1.
func (f *face) filters(c *crud) (out []*huma.Param) {
	for _, v1 := range slices.Sorted(maps.Keys(c.filters)) {
		for _, p := range f.Params(c.list, c.filters[v1]) {
			renamed := *p
			renamed.Name = v1
			if v1 == "desiredStatus" {
				s := *p.Schema
				s.Items = words("", "RUNNING", "EXITED", "TERMINATED")
				renamed.Schema, renamed.Description = &s, "Only pods that are to be so."
			}
			out = append(out, &renamed)
		}
	}
	return out
}

func (c *crud) view(ctx context.Context, call *rest.Caller, params url.Values) *view {
	return &view{Caller: call, noun: c.noun, ctx: ctx, params: params, tables: map[string]map[string]object{}}
}

func (v *view) wants(flag string) bool {
	_, there := v.params[flag]
	return there && v.params.Get(flag) == "true"
}

// shown returns a record of version 2 as version 1 has it.
func (c *crud) shown(v *view, had object) (object, error) {
	out := c.noun.record(had)
	if c.finish == nil {
		return out, nil
	}
	return out, c.finish(v, had, out)
}

func (c *crud) doList(ctx context.Context, call *rest.Caller, params url.Values, _ object) (any, error) {
	v := c.view(ctx, call, params)
	query := url.Values{"limit": params["limit"], "cursor": params["cursor"]}
	for v1, name := range c.filters {
		query[name] = params[v1]
		if v1 == "desiredStatus" {
			query[name] = statusesOf(params[v1])
		}
	}
	record, err := call.Call(ctx, c.list, query, nil)
	if err != nil {
		return nil, err
	}
	tree, err := treeOf(record)
	if err != nil {
		return nil, err
	}
	next, _ := tree["next"].(string)
	call.Next(next)
	all, _ := tree[c.member].([]any)
	out := make([]object, len(all))
	for i := range all {
		if out[i], err = c.shown(v, all[i].(object)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (c *crud) doGet(ctx context.Context, call *rest.Caller, params url.Values, _ object) (any, error) {
	v := c.view(ctx, call, params)
	return c.show(v)(call.Call(ctx, c.get, url.Values{"id": params["id"]}, nil))
}

// show returns what shows the answer of an operation.
func (c *crud) show(v *view) func(any, error) (any, error) {
	return func(record any, err error) (any, error) {
		if err != nil {
			return nil, c.noun.renamed(err)
		}
		had, err := treeOf(record)
		if err != nil {
			return nil, err
		}
		return c.shown(v, had)
	}
}

func (c *crud) doCreate(ctx context.Context, call *rest.Caller, params url.Values, in object) (any, error) {
	v := c.view(ctx, call, params)
	if c.create != nil {
		return c.show(v)(c.create(v, in))
	}
	body, err := c.noun.body("c", in)
	if err != nil {
		return nil, err
	}
	return c.show(v)(call.Call(ctx, c.make, params, body))
}

func (c *crud) doUpdate(ctx context.Context, call *rest.Caller, params url.Values, in object) (any, error) {
	v := c.view(ctx, call, params)
	id := url.Values{"id": params["id"]}
	body, err := c.noun.body("u", in)
	if err != nil {
		return nil, err
	}
	if c.update != nil {
		more, err := v.tree(c.get, id)
		if err == nil {
			more, err = c.update(v, in, more)
		}
		if err != nil {
			return nil, c.noun.renamed(err)
		}
		for path, value := range more {
			put(body, path, value)
		}
	}
	return c.show(v)(call.Call(ctx, c.change, id, body))
}

// tree returns what an operation answers, as its JSON.
func (v *view) tree(operation string, params url.Values) (object, error) {
	record, err := v.Call(v.ctx, operation, params, nil)
	if err != nil {
		return nil, err
	}
	return treeOf(record)
}

// table returns the records of a list by their ids; it asks once in a request.
func (v *view) table(operation, member string) (map[string]object, error) {
	if v.tables[operation] == nil {
		tree, err := v.tree(operation, nil)
		if err != nil {
			return nil, err
		}
		out, all := map[string]object{}, []any(nil)
		all, _ = tree[member].([]any)
		for _, one := range all {
			record, _ := one.(object)
			id, _ := record["id"].(string)
			out[id] = record
		}
		v.tables[operation] = out
	}
	return v.tables[operation], nil
}

// add puts the record with an id, as version 1 has it, into a member of another record.
func (v *view) add(to object, member string, n *Noun, operation, list string, id any) error {
	all, err := v.table(operation, list)
	if err != nil {
		return err
	}
	if had, ok := all[fmt.Sprint(id)]; ok {
		to[member] = n.record(had)
	}
	return nil
}

// schema is that of a body or a record of version 1: that of version 2 with other names.
func (f *face) schema(n *Noun, use string) *huma.Schema {
	component := map[string]string{"c": n.Create, "u": n.Update, "r": n.Record}[use]
	out := &huma.Schema{Type: huma.TypeObject, Properties: map[string]*huma.Schema{}, AdditionalProperties: false}
	for i := range n.Names {
		name := &n.Names[i]
		if !name.isOf(use) {
			continue
		}
		var s *huma.Schema
		if name.schema != nil {
			own := *name.schema
			s = &own
		} else {
			s = f.Member(component, name.V2)
		}
		if s == nil {
			f.faults = append(f.faults, fmt.Errorf("version 2 has no member %s of %s", name.V2, component))
			continue
		}
		s.Default = nil
		s.Nullable = s.Nullable || use != "r" || name.schema != nil
		if use == "c" && name.Default != nil {
			s.Default = name.Default
		}
		if out.Properties[name.V1] = s; use == "c" && strings.Contains(name.Of, "C") {
			out.Required = append(out.Required, name.V1)
			s.Nullable = false
		}
	}
	return out
}
