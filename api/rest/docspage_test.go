package rest

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"gantry/fleet"
)

// Bytes of the page at most, as it is and as browsers get it.
const (
	maxDocsPage   = 1 << 20
	maxDocsPacked = 96 << 10
)

func docsAPI(t *testing.T) *API {
	t.Helper()
	a, err := New(Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func getDocs(t *testing.T, a *API) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/docs", nil))
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	return w
}

func TestDocsNameEverything(t *testing.T) {
	a := docsAPI(t)
	page := getDocs(t, a).Body.String()
	if packed := len(a.render().docs.packed); len(page) > maxDocsPage || packed > maxDocsPacked {
		t.Errorf("the page has %d bytes, %d when it is compressed", len(page), packed)
	}
	plain := html.UnescapeString(page)
	has := func(what, text string) {
		if !strings.Contains(plain, text) {
			t.Errorf("%s is not on the page: %s", what, text)
		}
	}
	n := 0
	for _, item := range a.huma.OpenAPI().Paths {
		for _, op := range operations(item) {
			n++
			has("an operation", `<span class="method">`+op.Method+`</span> `+op.Path+"<")
			has("an anchor", ` id="op-`+op.OperationID+`"`)
			has("a link", ` href="#op-`+op.OperationID+`"`)
			for _, p := range op.Parameters {
				has("a parameter of "+op.OperationID, "<code>"+p.Name+"</code>")
			}
			for status := range op.Responses {
				has("a status of "+op.OperationID, "<code>"+status+"</code>")
			}
		}
	}
	listed := len(slices.DeleteFunc(a.Routes(), func(rt Route) bool { return rt.Unlisted }))
	if n != listed {
		t.Errorf("%d operations, %d routes", n, listed)
	}
	for name, s := range a.huma.OpenAPI().Components.Schemas.Map() {
		has("a type", ` id="type-`+name+`"`)
		for member := range s.Properties {
			has("a member of "+name, "<code>"+member+"</code>")
		}
	}
	for _, code := range []fleet.Code{fleet.CodeInvalid, fleet.CodeConflictRule, fleet.CodeNoCapacity, fleet.CodeLimited, fleet.CodeNoCredit} {
		has("a code", "<td><code>"+string(code)+"</code></td>")
	}
}

// outside is what could make a browser fetch or run something, but for the page's own script and its field for words.
var outside = regexp.MustCompile(`(?i)<(link|img|iframe|object|embed|base|form|svg|video|audio|source|meta http-equiv)\b` +
	`|\s(src|srcset|style|background|action|on[a-z]+)\s*=|url\(|@import|javascript:`)

var (
	anchorOf = regexp.MustCompile(`\sid="([^"]*)"`)
	linkOf   = regexp.MustCompile(`\shref="([^"]*)"`)
	textOf   = regexp.MustCompile(`>[^<]*<`)
	valueOf  = regexp.MustCompile(`="[^"]*"`)
)

// tagsOf returns the page without the text between its tags and the values in them, but with its style.
func tagsOf(page string) string {
	_, style, _ := strings.Cut(page, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	return valueOf.ReplaceAllString(textOf.ReplaceAllString(page, "><"), "=") + style
}

func TestDocsLoadNothing(t *testing.T) {
	w := getDocs(t, docsAPI(t))
	page := w.Body.String()
	if found := outside.FindString(tagsOf(page)); found != "" {
		t.Errorf("the page has %q", found)
	}
	ids := map[string]bool{}
	for _, m := range anchorOf.FindAllStringSubmatch(page, -1) {
		if ids[m[1]] {
			t.Errorf("two anchors %q", m[1])
		}
		ids[m[1]] = true
	}
	for _, m := range linkOf.FindAllStringSubmatch(page, -1) {
		if id, here := strings.CutPrefix(m[1], "#"); m[1] != "/v2/openapi.json" && (!here || !ids[id]) {
			t.Errorf("a link to %q", m[1])
		}
	}
	if n, m := strings.Count(page, "<script"), strings.Count(page, "<input"); n != 1 || m != 1 {
		t.Errorf("the page has %d scripts and %d fields", n, m)
	}
	hash := func(element string) string {
		_, text, _ := strings.Cut(page, "<"+element+">")
		text, _, _ = strings.Cut(text, "</"+element+">")
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	want := "default-src 'none'; style-src " + hash("style") + "; script-src " + hash("script") +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	if got := w.Header().Get("Content-Security-Policy"); got != want {
		t.Errorf("the policy is %s, want %s", got, want)
	}
	for _, part := range []string{"prefers-color-scheme: dark", `name="viewport"`, `lang="en"`, `charset="utf-8"`} {
		if !strings.Contains(page, part) {
			t.Errorf("the page lacks %s", part)
		}
	}
}

// evil is text that would do harm as markup.
const evil = `"'></pre></code></style><img src=x onerror=alert(1)><script>alert(1)</script><!--{{.}}`

// spoil writes evil into every text of a schema.
func spoil(s *huma.Schema) {
	if s == nil || s.Type == evil {
		return
	}
	s.Description, s.Default, s.PatternDescription = evil, evil, evil
	if s.Enum != nil {
		s.Enum = append(s.Enum, evil)
	}
	if s.Type == huma.TypeObject && s.Properties != nil {
		s.Properties[evil] = &huma.Schema{Type: evil}
	}
	spoil(s.Items)
	for _, p := range s.Properties {
		spoil(p)
	}
}

// spoilAll writes evil into every text of a document.
func spoilAll(api *huma.OpenAPI) {
	api.Info.Title, api.Info.Version, api.Info.Description = evil, evil, evil
	for _, tag := range api.Tags {
		tag.Description = evil
	}
	for _, s := range api.Components.Schemas.Map() {
		spoil(s)
	}
	api.Components.Schemas.Map()[evil] = &huma.Schema{Type: huma.TypeObject}
	for _, item := range api.Paths {
		for _, op := range operations(item) {
			op.Summary, op.Description, op.Path, op.OperationID = evil, evil, evil, op.OperationID+evil
			op.Extensions[scopeExtension] = evil
			for _, p := range op.Parameters {
				p.Name, p.Description = evil, evil
				spoil(p.Schema)
			}
			if op.RequestBody != nil {
				op.RequestBody.Description = evil
				op.RequestBody.Content[evil] = &huma.MediaType{Example: evil}
			}
			op.Responses[evil] = &huma.Response{Description: evil, Content: map[string]*huma.MediaType{evil: {Example: evil}}}
		}
	}
}

// TestDocsEscape writes markup into every text of the document and looks for it on the page.
func TestDocsEscape(t *testing.T) {
	api := docsAPI(t).huma.OpenAPI()
	spoilAll(api)
	made, err := renderDocs(api)
	if err != nil {
		t.Fatal(err)
	}
	page := string(made.page)
	if found := outside.FindString(tagsOf(page)); found != "" {
		t.Errorf("the page has %q", found)
	}
	for _, m := range linkOf.FindAllStringSubmatch(page, -1) {
		if m[1] != "/v2/openapi.json" && !strings.HasPrefix(m[1], "#") {
			t.Errorf("a link to %q", m[1])
		}
	}
	for _, part := range []string{"<img", "<script>alert", "<!--", "alert(1)</script>"} {
		if strings.Contains(page, part) {
			t.Errorf("the page has %s", part)
		}
	}
	if n, m := strings.Count(page, "</style>"), strings.Count(page, "</script>"); n != 1 || m != 1 {
		t.Errorf("%d ends of the style, %d of the script", n, m)
	}
	if n := strings.Count(page, "&lt;script&gt;"); n < 1000 {
		t.Errorf("the texts are on the page %d times only", n)
	}
}

func TestUnusableDocsFail(t *testing.T) {
	api := docsAPI(t).huma.OpenAPI()
	api.Paths["/v2/pods"].Post.RequestBody.Content["application/json"].Example = func() {}
	if _, err := renderDocs(api); err == nil || !strings.Contains(err.Error(), "createPod") {
		t.Errorf("an example that cannot be written: %v", err)
	}
}

// TestDocsAreCompressed for those who ask for it, and for nobody else.
func TestDocsAreCompressed(t *testing.T) {
	a := docsAPI(t)
	plain := getDocs(t, a).Body.String()
	for accept, want := range map[string]bool{
		"": false, "br": false, "gzip;q=0": false, "gzip;q=0.0, br": false, "gzip": true, "br, gzip;q=0.5": true, "deflate,gzip": true,
	} {
		r := httptest.NewRequest(http.MethodGet, "/docs", nil)
		r.Header.Set("Accept-Encoding", accept)
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		if got := w.Header().Get("Content-Encoding") == "gzip"; got != want || w.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("%q: %v", accept, w.Header())
		}
		if !want {
			continue
		}
		text, err := gzip.NewReader(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		if page, err := io.ReadAll(text); err != nil || string(page) != plain {
			t.Errorf("%q: %d bytes of %d, %v", accept, len(page), len(plain), err)
		}
	}
}
