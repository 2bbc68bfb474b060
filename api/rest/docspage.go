package rest

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed" // the page's template
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/problem"
	"gantry/fleet"
)

//go:embed docspage.html
var docsTemplate string

// docs is the page that shows the document to people.
type docs struct {
	page   []byte
	packed []byte // the page as gzip
	policy string // Content-Security-Policy: nothing but the page's own style and script
}

// registerDocs serves the document's page at a path.
func (a *API) registerDocs(at, tag string) {
	rt := route{
		method: http.MethodGet, path: at, id: "getDocs", tag: tag, summary: "This document, for people",
		text: "Returns this document as one HTML page, which loads nothing else. Needs no key.", scope: auth.Public(), limit: limit.Exempt,
		status: http.StatusOK,
	}
	op := a.declare(rt)
	op.Responses["200"].Content = map[string]*huma.MediaType{"text/html": {Schema: &huma.Schema{Type: huma.TypeString}, Example: "<!DOCTYPE html>"}}
	a.serve(op, rt, func(_ context.Context, c *call) error {
		made := a.render()
		if made.err != nil {
			return made.err
		}
		h := c.w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", made.docs.policy)
		h.Set("Cache-Control", "no-cache")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Vary", "Accept-Encoding")
		page := made.docs.page
		if Takes(c.r, "gzip") {
			h.Set("Content-Encoding", "gzip")
			page = made.docs.packed
		}
		c.w.WriteHeader(http.StatusOK)
		_, _ = c.w.Write(page) // a client that left is not told
		return nil
	})
}

// Takes reports whether a client takes answers in a content coding.
func Takes(r *http.Request, coding string) bool {
	for word := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(word), ";q=")
		if q, err := strconv.ParseFloat(weight, 64); name == coding {
			return err != nil || q > 0
		}
	}
	return false
}

// renderDocs makes the page of a document that is complete.
func renderDocs(api *huma.OpenAPI) (docs, error) {
	t, err := template.New("docs").Parse(docsTemplate)
	if err != nil {
		return docs{}, fmt.Errorf("read template of the documentation: %w", err)
	}
	model, err := describePage(api)
	if err != nil {
		return docs{}, err
	}
	var page bytes.Buffer
	if err := t.Execute(&page, model); err != nil {
		return docs{}, fmt.Errorf("write documentation: %w", err)
	}
	out := docs{page: page.Bytes(), policy: "default-src 'none'; style-src " + sourceHash(page.Bytes(), "style") +
		"; script-src " + sourceHash(page.Bytes(), "script") + "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err = w.Write(out.page); err == nil {
		err = w.Close()
	}
	out.packed = packed.Bytes()
	return out, err
}

// sourceHash allows what the first element of that name on a page holds, in a Content-Security-Policy.
func sourceHash(page []byte, element string) string {
	_, rest, _ := bytes.Cut(page, []byte("<"+element+">"))
	text, _, _ := bytes.Cut(rest, []byte("</"+element+">"))
	sum := sha256.Sum256(text)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// The page's model. Everything in it is text; the template escapes it.
type (
	docsPage struct {
		Title, Version, Intro, Document string
		Groups                          []docsGroup
		Codes                           []docsCode
		Types                           []docsType
	}
	docsGroup struct {
		Name, Text string
		Operations []docsOperation
	}
	docsOperation struct {
		ID, Anchor, Method, Path, Summary, Scope string
		Text                                     []string // paragraphs
		Params, Body                             []docsField
		BodyKind, BodyText                       string
		Example, AnswerExample                   string
		Snippets                                 []docsSnippet
		Answers                                  []docsAnswer
	}
	docsAnswer struct {
		Status, Text string
		Types        []docsKind
	}
	docsCode struct {
		Code   string
		Status int
		Text   string
	}
	docsType struct {
		Name, Anchor string
		Fields       []docsField
	}
	docsField struct {
		Name     string
		Required bool
		Kind     docsKind
		Text     string
		Rules    []string
	}
	// docsKind is a type in words, of which Ref is a link.
	docsKind struct{ Before, Ref, Anchor, After string }
)

func describePage(api *huma.OpenAPI) (docsPage, error) {
	out := docsPage{Title: api.Info.Title, Version: api.Info.Version, Intro: api.Info.Description, Codes: describeCodes()}
	for _, tag := range api.Tags {
		group := docsGroup{Name: tag.Name, Text: tag.Description}
		for _, path := range slices.Sorted(maps.Keys(api.Paths)) {
			if strings.HasSuffix(path, documentName) {
				out.Document = path
			}
			for _, op := range operations(api.Paths[path]) {
				if !slices.Contains(op.Tags, tag.Name) {
					continue
				}
				shown, err := describeOperation(api, op)
				if err != nil {
					return out, fmt.Errorf("document %s: %w", op.OperationID, err)
				}
				group.Operations = append(group.Operations, shown)
			}
		}
		out.Groups = append(out.Groups, group)
	}
	schemas := api.Components.Schemas.Map()
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		out.Types = append(out.Types, docsType{Name: name, Anchor: "type-" + name, Fields: describeFields(schemas[name])})
	}
	return out, nil
}

func operations(p *huma.PathItem) []*huma.Operation {
	all := []*huma.Operation{p.Get, p.Post, p.Put, p.Patch, p.Delete, p.Head, p.Options, p.Trace}
	return slices.DeleteFunc(all, func(op *huma.Operation) bool { return op == nil })
}

func describeOperation(api *huma.OpenAPI, op *huma.Operation) (docsOperation, error) {
	out := docsOperation{
		ID: op.OperationID, Anchor: "op-" + op.OperationID, Method: op.Method, Path: op.Path, Summary: op.Summary, Text: strings.Split(op.Description, "\n\n"),
	}
	if op.Security == nil {
		out.Scope, _ = op.Extensions[scopeExtension].(string)
	}
	for _, p := range op.Parameters {
		f := describeField(p.Name, p.Schema)
		f.Required, f.Text = p.Required, p.Description
		f.Rules = append([]string{"In " + p.In + "."}, f.Rules...)
		out.Params = append(out.Params, f)
	}
	if b := op.RequestBody; b != nil {
		out.BodyText = b.Description
		for _, kind := range slices.Sorted(maps.Keys(b.Content)) {
			media := b.Content[kind]
			out.BodyKind, out.Body = kind, describeFields(resolve(api, media.Schema))
			text, err := exampleText(media.Example)
			if err != nil {
				return out, err
			}
			out.Example = text
		}
	}
	var err error
	if out.Snippets, err = describeSnippets(op); err != nil {
		return out, err
	}
	return out, out.describeAnswers(op)
}

func (out *docsOperation) describeAnswers(op *huma.Operation) error {
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		resp := op.Responses[status]
		answer := docsAnswer{Status: status, Text: resp.Description}
		for _, kind := range slices.Sorted(maps.Keys(resp.Content)) {
			media := resp.Content[kind]
			answer.Types = append(answer.Types, kindOfBody(kind, media.Schema))
			if out.AnswerExample != "" || media.Example == nil || kind == problem.ContentType {
				continue
			}
			text, err := exampleText(media.Example)
			if err != nil {
				return err
			}
			out.AnswerExample = text
		}
		out.Answers = append(out.Answers, answer)
	}
	return nil
}

// kindOfBody names the type of a body, or its content type where it has no type of its own.
func kindOfBody(content string, s *huma.Schema) docsKind {
	if s != nil && s.Ref != "" {
		return describeKind(s)
	}
	return docsKind{Before: content}
}

func exampleText(v any) (string, error) {
	if v == nil {
		return "", nil
	}
	if text, ok := v.(string); ok {
		return text, nil
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode example: %w", err)
	}
	return string(text), nil
}

// resolve follows references to a schema of the document.
func resolve(api *huma.OpenAPI, s *huma.Schema) *huma.Schema {
	for s != nil && s.Ref != "" {
		s = api.Components.Schemas.SchemaFromRef(s.Ref)
	}
	return s
}

// describeFields lists the members of an object, required ones first.
func describeFields(s *huma.Schema) []docsField {
	if s == nil {
		return nil
	}
	var out []docsField
	for _, required := range []bool{true, false} {
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			if slices.Contains(s.Required, name) == required {
				f := describeField(name, s.Properties[name])
				f.Required = required
				out = append(out, f)
			}
		}
	}
	return out
}

func describeField(name string, s *huma.Schema) docsField {
	out := docsField{Name: name, Kind: describeKind(s), Text: s.Description}
	rule := func(format string, args ...any) { out.Rules = append(out.Rules, fmt.Sprintf(format, args...)) }
	words := s
	if s.Items != nil {
		words = s.Items
	}
	if len(words.Enum) > 0 {
		var all []string
		for _, w := range words.Enum {
			all = append(all, fmt.Sprint(w))
		}
		rule("One of %s.", strings.Join(all, ", "))
	}
	switch {
	case s.Minimum != nil && s.Maximum != nil:
		rule("From %s to %s.", plain(*s.Minimum), plain(*s.Maximum))
	case s.Minimum != nil:
		rule("At least %s.", plain(*s.Minimum))
	case s.Maximum != nil:
		rule("At most %s.", plain(*s.Maximum))
	}
	if words.MaxLength != nil {
		rule("At most %s.", counted(*words.MaxLength, "characters"))
	}
	if s.MaxItems != nil {
		rule("At most %s.", counted(*s.MaxItems, "items"))
	}
	if s.MaxProperties != nil {
		rule("At most %s.", counted(*s.MaxProperties, "members"))
	}
	if words.PatternDescription != "" {
		rule("Form: %s.", words.PatternDescription)
	}
	if s.Default != nil {
		rule("Default %v.", s.Default)
	}
	return out
}

// describeKind tells a type in words.
func describeKind(s *huma.Schema) docsKind {
	switch {
	case s == nil:
		return docsKind{Before: "any"}
	case s.Ref != "":
		name := s.Ref[len(schemaPrefix):]
		return docsKind{Ref: name, Anchor: "type-" + name}
	case len(s.AnyOf) == 2 && s.AnyOf[1].Type == "null":
		out := describeKind(s.AnyOf[0])
		out.After += " or null"
		return out
	case s.Items != nil:
		return wrap("list of ", s, describeKind(s.Items))
	}
	if values, ok := s.AdditionalProperties.(*huma.Schema); ok {
		return wrap("map of text to ", s, describeKind(values))
	}
	word, known := map[string]string{
		"": "one of several forms", huma.TypeString: "text", huma.TypeInteger: "whole number", huma.TypeBoolean: "true or false",
	}[s.Type]
	if !known {
		word = s.Type
	}
	if s.Format == "date-time" {
		word = "time"
	}
	return wrap("", s, docsKind{Before: word})
}

func wrap(before string, s *huma.Schema, of docsKind) docsKind {
	of.Before = before + of.Before
	if s.Nullable {
		of.After += " or null"
	}
	return of
}

// describeCodes lists the codes of problems with their statuses.
func describeCodes() []docsCode {
	var out []docsCode
	for _, c := range []struct {
		code fleet.Code
		text string
	}{
		{fleet.CodeMalformed, "Not JSON, not an object, a key twice, not UTF-8, too deep."},
		{fleet.CodeConflictRule, "Values break a rule between them, such as both gpu and cpu."},
		{fleet.CodeInUse, "Other things refer to it; errors lists some of them."},
		{fleet.CodeNoCapacity, "No room now; excluded counts the hosts that each rule refused."},
		{fleet.CodeUnauthorized, "No key, or a malformed, unknown, expired, disabled or deleted one."},
		{fleet.CodeNoCredit, "The balance of a prepaid account is below one hour of the cost."},
		{fleet.CodeSpendLimit, "It is beyond the account's spend limit."},
		{fleet.CodeForbidden, "The key lacks the permission."},
		{fleet.CodeNotFound, "Not there, or another account's: the same answer."},
		{fleet.CodeMethod, "Another method; Allow lists those there are."},
		{fleet.CodeNotAllowed, "Not in this status."},
		{fleet.CodeExists, "Already there."},
		{fleet.CodeTooLarge, "The body is over 1 MiB."},
		{fleet.CodeMediaType, "The content type is not the one that the operation takes."},
		{fleet.CodeInvalid, "Unknown property, wrong type, missing field, bound, pattern, or an id that the catalog does not have."},
		{fleet.CodeLimited, "A quota is used up, or there are too many failed authentications or open streams; with Retry-After."},
		{fleet.CodeInternal, "A fault of the service; the log has the cause under the request's id."},
		{fleet.CodeUnavailable, "No leader, or the outcome is not known; with Retry-After."},
		{fleet.CodeStale, "The thing changes too quickly to decide; with Retry-After."},
	} {
		out = append(out, docsCode{Code: string(c.code), Status: problem.Status(c.code), Text: c.text})
	}
	return out
}
