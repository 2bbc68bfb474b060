package rest_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"gantry/api/limit"
	"gantry/api/rest"
	"gantry/test/plane"
)

const (
	documentURL = "https://gantry.internal/openapi.json"
	maxDocument = 420_000 // bytes: what every generator of clients reads; all nouns of users and of operators
	metaURL     = "https://spec.openapis.org/oas/3.1/schema/2022-10-07"
)

// book is the OpenAPI document with a compiler that resolves references into it.
type book struct {
	routes   []rest.Route
	doc      map[string]any
	compiler *jsonschema.Compiler
}

func openBook(t *testing.T, api described) *book {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(api.Document()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource(documentURL, doc); err != nil {
		t.Fatal(err)
	}
	return &book{routes: listed(api), doc: doc.(map[string]any), compiler: c}
}

// listed returns the routes that are in the document.
func listed(api described) []rest.Route {
	return slices.DeleteFunc(api.Routes(), func(rt rest.Route) bool { return rt.Unlisted })
}

// at returns the member of the document at a path of keys, through references to components; nil when it is not there.
func (b *book) at(keys ...string) any {
	v, _ := b.find(keys...)
	return v
}

// find returns the member of the document at a path of keys and the path at which it really is.
func (b *book) find(keys ...string) (any, []string) {
	var v any = b.doc
	var path []string
	for _, k := range keys {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, nil
		}
		v, path = m[k], append(path, k)
		if m, ok := v.(map[string]any); ok {
			if ref, ok := m["$ref"].(string); ok {
				v, path = b.find(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
			}
		}
	}
	return v, path
}

func pointer(keys ...string) string {
	out := documentURL + "#"
	for _, k := range keys {
		k = strings.NewReplacer("~", "~0", "/", "~1").Replace(k)
		out += "/" + strings.NewReplacer("{", "%7B", "}", "%7D", "+", "%2B").Replace(k)
	}
	return out
}

// check validates v against the schema at a path of keys.
func (b *book) check(t *testing.T, what string, v any, keys ...string) {
	t.Helper()
	_, path := b.find(keys...)
	s, err := b.compiler.Compile(pointer(path...))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if err := s.Validate(v); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func TestDocumentIsValidOpenAPI(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	for version, face := range s.faces() {
		t.Run(version, func(t *testing.T) { validDocument(t, face, s.ask(t, "GET", "/"+version+"/openapi.json", "", "")) })
	}
}

func validDocument(t *testing.T, face described, got answer) {
	t.Helper()
	if got.status != http.StatusOK {
		t.Fatal(got.status)
	}
	meta, err := os.ReadFile("testdata/openapi-3.1-schema.json")
	if err != nil {
		t.Fatal(err)
	}
	metaDoc, err := jsonschema.UnmarshalJSON(bytes.NewReader(meta))
	if err != nil {
		t.Fatal(err)
	}
	b := openBook(t, face)
	if got.body != string(face.Document()) {
		t.Error("another document is served")
	}
	if len(got.body) > maxDocument {
		t.Errorf("the document has %d bytes, want at most %d", len(got.body), maxDocument)
	}
	if err := b.compiler.AddResource(metaURL, metaDoc); err != nil {
		t.Fatal(err)
	}
	schema, err := b.compiler.Compile(metaURL)
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(b.doc); err != nil {
		t.Error(err)
	}
	draft, err := b.compiler.Compile("https://json-schema.org/draft/2020-12/schema")
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range b.at("components", "schemas").(map[string]any) {
		if err := draft.Validate(v); err != nil {
			t.Errorf("component %s: %v", name, err)
		}
		if _, err := b.compiler.Compile(pointer("components", "schemas", name)); err != nil {
			t.Errorf("component %s: %v", name, err)
		}
	}
}

// TestDocumentNamesEveryRoute compares the document with what is registered, both ways, and asks of
// each operation what a reader needs.
func TestDocumentNamesEveryRoute(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	for version, face := range s.faces() {
		t.Run(version, func(t *testing.T) { namesEveryRoute(t, face) })
	}
}

func namesEveryRoute(t *testing.T, face described) {
	t.Helper()
	b := openBook(t, face)
	left := map[string]bool{}
	for path, ops := range b.at("paths").(map[string]any) {
		for method := range ops.(map[string]any) {
			left[strings.ToUpper(method)+" "+path] = true
		}
	}
	for _, rt := range listed(face) {
		name, m := rt.Method+" "+rt.Path, strings.ToLower(rt.Method)
		if !left[name] {
			t.Errorf("%s is not in the document", name)
			continue
		}
		delete(left, name)
		if got := b.at("paths", rt.Path, m, "x-gantry-scope"); got != rt.Scope.String() {
			t.Errorf("%s: scope %v in the document, %s registered", name, got, rt.Scope)
		}
		if needs, own := b.at("paths", rt.Path, m, "security").([]any); own != rt.Scope.Public || len(needs) > 0 {
			t.Errorf("%s: security requirement: %v", name, needs)
		}
		if got := b.at("paths", rt.Path, m, "x-gantry-limit"); got != string(rt.Limit) && (got != nil || rt.Limit != limit.PerAccount) {
			t.Errorf("%s: limit class %v in the document, %s registered", name, got, rt.Limit)
		}
		for _, member := range []string{"summary", "description", "operationId", "tags", "responses"} {
			if v := b.at("paths", rt.Path, m, member); v == nil || v == "" {
				t.Errorf("%s has no %s", name, member)
			}
		}
	}
	if needs, _ := b.at("security").([]any); len(needs) != 1 {
		t.Errorf("security requirement of all that say nothing else: %v", needs)
	}
	for name := range left {
		t.Errorf("the document has %s, which is not registered", name)
	}
}

// TestExamplesAreValid checks every example of the document against its schema.
func TestExamplesAreValid(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	for version, face := range s.faces() {
		t.Run(version, func(t *testing.T) { examplesAreValid(t, face) })
	}
}

func examplesAreValid(t *testing.T, face described) {
	t.Helper()
	b := openBook(t, face)
	for _, rt := range listed(face) {
		op := []string{"paths", rt.Path, strings.ToLower(rt.Method)}
		b.examples(t, append(op, "requestBody", "content"))
		responses, _ := b.at(append(op, "responses")...).(map[string]any)
		for status := range responses {
			content := append(append([]string{}, op...), "responses", status, "content")
			if n := b.examples(t, content); n == 0 && status != "204" && status != "101" {
				t.Errorf("%s %s %s has no example", rt.Method, rt.Path, status)
			}
		}
	}
}

// examples checks the examples of a content map and returns how many there are.
func (b *book) examples(t *testing.T, at []string) int {
	t.Helper()
	n := 0
	content, _ := b.at(at...).(map[string]any)
	for kind, media := range content {
		example, ok := media.(map[string]any)["example"]
		if !ok {
			continue
		}
		n++
		b.check(t, strings.Join(at, " "), example, append(append([]string{}, at...), kind, "schema")...)
	}
	return n
}

// checkAnswer checks the answer to a row against what the document says of it.
func (b *book) checkAnswer(t *testing.T, r row, got answer) {
	t.Helper()
	path, _, _ := strings.Cut(r.path, "?")
	path = b.template(path)
	if path == "" || got.status == http.StatusMethodNotAllowed {
		return
	}
	method := strings.ToLower(r.method)
	if method == "head" {
		method = "get"
	}
	keys := []string{"paths", path, method, "responses", strconv.Itoa(got.status)}
	if got.status >= http.StatusInternalServerError && b.at(keys...) == nil {
		keys[len(keys)-1] = "default"
	}
	if b.at(keys...) == nil {
		t.Fatalf("the document does not know %v", keys)
	}
	for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
		if got.header.Get(name) != "" && got.status >= 300 && b.at(append(keys, "headers", name)...) == nil {
			t.Errorf("the document does not know the header %s of %v", name, keys)
		}
	}
	kind := got.header.Get("Content-Type")
	if kind == "" || kind == "text/event-stream" || r.method == http.MethodHead {
		return
	}
	if kind == "application/x-ndjson" {
		if b.at(append(keys, "content", kind)...) == nil {
			t.Errorf("the document does not know %s of %v", kind, keys)
		}
		keys = append(keys, "content", "application/json", "schema", "properties", "lines", "items")
		for line := range strings.Lines(got.body) {
			b.checkText(t, line, keys)
		}
		return
	}
	b.checkText(t, got.body, append(keys, "content", kind, "schema"))
}

// checkText compares a text in JSON with the schema at keys.
func (b *book) checkText(t *testing.T, text string, keys []string) {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	b.check(t, text, v, keys...)
}

// template returns the path of the route that a request path has, "" for none.
func (b *book) template(path string) string {
	best := ""
	for _, rt := range b.routes {
		w, g := strings.Split(rt.Path, "/"), strings.Split(path, "/")
		fits := len(w) == len(g)
		for i := range w {
			fits = fits && (w[i] == g[i] || w[i] == "{id}")
		}
		if fits && (best == "" || strings.Contains(best, "{")) {
			best = rt.Path
		}
	}
	return best
}

// TestRequestSchemaAgrees sends bodies both to the service and through the document's schema: what
// the schema refuses must be refused with 422.
func TestRequestSchemaAgrees(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	b := openBook(t, s.api)
	schema, err := b.compiler.Compile(pointer("components", "schemas", "CreatePodRequest"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range allRows() {
		if r.method != "POST" || r.path != "/v2/pods" || !json.Valid([]byte(r.body)) || r.header != nil || r.topic == "body" {
			continue
		}
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(r.body))
		if err != nil {
			t.Fatal(err)
		}
		if schema.Validate(v) == nil {
			continue
		}
		got := s.ask(t, "POST", "/v2/pods", plane.User, r.body)
		if got.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: the schema refuses it, the service answers %d %s", r.name, got.status, got.body)
		}
	}
}

// TestChangesSayWhatTheyDo: a member that creating and changing share says of a change what that does, and has no default there.
func TestChangesSayWhatTheyDo(t *testing.T) {
	b := openBook(t, newSite(t, nil, rest.Limits{}).api)
	member := func(schema, name string) map[string]any {
		p, _ := b.at("components", "schemas", schema, "properties", name).(map[string]any)
		return p
	}
	for _, of := range []struct{ thing, name, says string }{
		{"Pod", "disk", "A new size restarts the pod."}, {"Template", "allowedCudaVersions", "[] clears the list."},
	} {
		made, changed := member("Create"+of.thing+"Request", of.name), member("Update"+of.thing+"Request", of.name)
		if text, _ := changed["description"].(string); !strings.HasSuffix(text, of.says) || made["description"] == text {
			t.Errorf("%s of a %s: %q", of.name, of.thing, text)
		}
	}
	if made, changed := member("CreateTemplateRequest", "startSsh"), member("UpdateTemplateRequest", "startSsh"); made["default"] != true || changed["default"] != nil {
		t.Errorf("startSsh is %v by default, and after a change %v", made["default"], changed["default"])
	}
}
