package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"gantry/fleet"
)

// Face is an API of other paths, with a document of its own. Its routes call operations of the API that it stands on: they
// have no service, and count against the same limits.
type Face struct {
	api  *API
	base *API
}

// Face returns a face without routes, whose document and page are at the path at.
func (a *API) Face(info huma.Info, at string, tags ...*huma.Tag) *Face {
	doc := document("")
	info.Extensions, info.License = a.huma.OpenAPI().Info.Extensions, doc.Info.License
	doc.Info, doc.Tags = &info, append(slices.Clone(tags), &huma.Tag{Name: documentTag, Description: "This document."})
	f := &Face{api: onEngine(a.engine, doc), base: a}
	f.api.registerDocument(at+documentName, documentTag)
	f.api.registerDocs(at+"/docs", documentTag)
	return f
}

// FaceRoute is a route of a face. Its permission, its limit and its errors are those of an operation.
type FaceRoute struct {
	Method, Path, ID, Tag, Summary, Text string

	Operation string // its identifier
	Params    []*huma.Param
	Status    int          // of success; 204 where Do answers nil
	In, Out   *huma.Schema // of the bodies; nil: none
	Example   any          // of In
	Shown     any          // an example of Out
	// Do answers a request whose parameters (those of the path, too) and body were found good; other properties of the body than
	// those of In are refused.
	Do func(ctx context.Context, c *Caller, params url.Values, in map[string]any) (any, error)
}

// Handle registers a route.
func (f *Face) Handle(rt FaceRoute) {
	of := f.base.operations[rt.Operation]
	if of == nil {
		f.api.faults = append(f.api.faults, fmt.Errorf("route %s %s: there is no operation %q", rt.Method, rt.Path, rt.Operation))
		return
	}
	r := route{
		method: rt.Method, path: rt.Path, id: rt.ID, tag: rt.Tag, summary: rt.Summary, text: rt.Text, scope: of.route.scope, limit: of.route.limit,
		params: rt.Params, status: rt.Status, errors: of.route.errors,
	}
	var body *rule
	if rt.In != nil {
		r.in = rt.Example
	}
	op := f.api.declare(r)
	if rt.In != nil {
		op.RequestBody = jsonBody(f.Component(rt.ID+"Request", rt.In), rt.Example)
		f.api.noteBody(op.RequestBody.Content["application/json"].Schema)
		var err error
		if body, err = compile(f.api.huma.OpenAPI().Components.Schemas, rt.In); err != nil {
			f.api.faults = append(f.api.faults, fmt.Errorf("route %s %s: %w", rt.Method, rt.Path, err))
		}
	}
	if rt.Out != nil {
		answer(op, r, rt.Out, rt.Shown)
	}
	f.api.serve(op, r, func(ctx context.Context, c *call) error {
		var in map[string]any
		if body != nil {
			if err := readBody(c.w, c.r, f.api.maxBody, body, &in); err != nil {
				return err
			}
		}
		out, err := rt.Do(ctx, &Caller{Who: c.who, api: f.base, r: c.r, w: c.w}, url.Values(c.args), in)
		switch {
		case err != nil:
			return err
		case out == nil:
			c.w.WriteHeader(http.StatusNoContent)
			return nil
		}
		return writeJSON(c.w, rt.Status, out)
	})
}

// Component puts a record's schema among those of the document and returns a reference to it.
func (f *Face) Component(name string, s *huma.Schema) *huma.Schema {
	name = strings.ToUpper(name[:1]) + name[1:]
	f.api.huma.OpenAPI().Components.Schemas.Map()[name], f.api.described[name] = s, true
	return &huma.Schema{Ref: schemaPrefix + name}
}

// Finish ends registration: it reports faults and fixes the document.
func (f *Face) Finish() error { return f.api.finish() }

// ServeHTTP answers one request.
func (f *Face) ServeHTTP(w http.ResponseWriter, r *http.Request) { f.api.ServeHTTP(w, r) }

// Routes lists what is registered, in order of registration.
func (f *Face) Routes() []Route { return f.api.Routes() }

// Document returns the OpenAPI document as JSON; nil when it cannot be encoded. The caller must not change it.
func (f *Face) Document() []byte { return f.api.Document() }

// Member returns a copy of the schema of a member of a record of the base's document, such as "mounts.persistent.size" of
// "Pod"; "[0]" after a name means an item of its list. nil: there is none.
func (f *Face) Member(record, path string) *huma.Schema {
	reg := f.base.huma.OpenAPI().Components.Schemas
	s := reg.Map()[record]
	for name := range strings.SplitSeq(path, ".") {
		name, item := strings.CutSuffix(name, "[0]")
		if s = plainSchema(reg, s); s == nil {
			return nil
		}
		if s = s.Properties[name]; item {
			if s = plainSchema(reg, s); s != nil {
				s = s.Items
			}
		}
	}
	if s = plainSchema(reg, s); s == nil {
		return nil
	}
	out := *s
	return &out
}

// plainSchema follows references, also those of what may be null.
func plainSchema(reg huma.Registry, s *huma.Schema) *huma.Schema {
	for s != nil && (s.Ref != "" || len(s.AnyOf) > 0) {
		if s.Ref == "" {
			s = s.AnyOf[0]
			continue
		}
		s = reg.SchemaFromRef(s.Ref)
	}
	return s
}

// Sample returns an example of what an operation answers, as JSON; nil when it has none.
func (f *Face) Sample(operation string) []byte {
	of := f.base.operations[operation]
	if of == nil || of.route.out == nil {
		return nil
	}
	data, err := json.Marshal(of.route.out)
	if err != nil {
		return nil
	}
	return data
}

// Params returns those parameters of an operation that are named.
func (f *Face) Params(operation string, names ...string) []*huma.Param {
	of := f.base.operations[operation]
	if of == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(of.route.params), func(p *huma.Param) bool { return !slices.Contains(names, p.Name) })
}

// SetHeader sets a field of the answer's header.
func (c *Caller) SetHeader(name, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w.Header().Set(name, value)
}

// Next sets the Link header of a list without members, where it goes on at a cursor.
func (c *Caller) Next(cursor string) {
	if cursor != "" {
		c.SetHeader("Link", linkTo(c.r.URL, cursor))
	}
}

// FirstWithRoom tries the choices in order and returns what the first made that found room, or the last error. With an
// idempotency key, a choice may be refused because another one was made before.
func FirstWithRoom[T any](choices []string, try func(choice string) (T, error)) (out T, err error) {
	for _, choice := range choices {
		if out, err = try(choice); err == nil {
			break
		}
		if code := fleet.CodeOf(err); code != fleet.CodeNoCapacity && !aboutKey(err) {
			break
		}
	}
	return out, err
}

// aboutKey reports whether an idempotency key was refused, rather than what it came with.
func aboutKey(err error) bool {
	var e *fleet.Error
	return errors.As(err, &e) && e.Code == fleet.CodeInvalid &&
		slices.ContainsFunc(e.Details, func(d string) bool { return strings.HasPrefix(d, onceHeader) })
}
