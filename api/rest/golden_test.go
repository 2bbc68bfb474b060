package rest_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"gantry/api/rest"
	"gantry/api/rest/resttest"
)

var update = flag.Bool("update", false, "write the golden answers anew")

// row is one request of the golden table. Its file shows the request and the whole answer.
type row struct {
	topic, name string
	rule        string // one of rules()
	setup       func(*testing.T, *resttest.Fake)
	config      func(*rest.Config)
	method      string
	path        string
	key         string
	body        string
	header      []string // name, value, …; an empty value removes
	noBody      bool     // the answer's body is not part of the row
	before      int      // how often the same request is sent first
}

// The pod that most rows speak of: the first that a Fake makes.
const podID = "pod00000000009"

// TestGolden plays the table and compares the answers with the golden ones and with what the OpenAPI
// document says of them.
func TestGolden(t *testing.T) {
	texts := map[string]*bytes.Buffer{}
	b := openBook(t, newSite(t, nil, rest.Limits{}).api)
	for _, r := range rows() {
		t.Run(r.topic+"/"+r.name, func(t *testing.T) {
			if texts[r.topic] == nil {
				texts[r.topic] = &bytes.Buffer{}
			}
			text, got := play(t, r)
			texts[r.topic].WriteString(text)
			b.checkAnswer(t, r, got)
		})
	}
	for topic, text := range texts {
		path := filepath.Join("testdata", "golden", topic+".txt")
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, text.Bytes()) {
			t.Errorf("%s: answers differ from the golden ones:\n%s", path, firstDifference(string(want), text.String()))
		}
	}
}

func TestEveryRuleHasRow(t *testing.T) {
	have, names := map[string]bool{}, map[string]bool{}
	for _, r := range rows() {
		if !slices.Contains(rules(), r.rule) {
			t.Errorf("row %s/%s is for the rule %q, which is not in the list", r.topic, r.name, r.rule)
		}
		if names[r.topic+"/"+r.name] {
			t.Errorf("two rows are named %s/%s", r.topic, r.name)
		}
		have[r.rule], names[r.topic+"/"+r.name] = true, true
	}
	for _, rule := range rules() {
		if !have[rule] {
			t.Errorf("the rule %q has no row", rule)
		}
	}
}

// TestAnswersNeverEcho sends a marker as value in every place of the rows' bodies that a client
// fills, and looks for it in the refusals.
func TestAnswersNeverEcho(t *testing.T) {
	const marker = "s3cret-value"
	for _, body := range []string{
		`{"name":"` + marker + `\u0000","image":"busybox","cpu":{"id":"cpu3g","vcpuCount":2}}`,
		`{"name":["` + marker + `"],"image":"` + marker + ` x","cpu":"` + marker + `","gpu":"` + marker + `"}`,
		`{"name":"a","image":"busybox","cpu":{"id":"` + marker + `","vcpuCount":2}}`,
		`{"name":"a","image":"busybox","cpu":{"id":"cpu3g","vcpuCount":"` + marker + `"},"cloud":"` + marker + `"}`,
		`{"name":"a","image":"busybox","gpu":{"id":"` + marker + `"},"env":{"TOKEN":{"x":"` + marker + `"}},"ports":["` + marker + `"]}`,
		`{"name":"a","image":"busybox","gpu":{"id":"x"},"dataCenterIds":["` + marker + `"],"args":"'` + marker + `"}`,
		`{"name":"a","image":"busybox","gpu":{"id":"x"},"env":{"TOKEN":"` + marker + `\u0000"}}`,
		`{"name":"a","image":"busybox","gpu":{"id":"NVIDIA A30"},"registry":"` + marker + `"}`,
		`{"name":"a","image":"busybox","gpu":{"id":"NVIDIA A30"},"templateId":"` + marker + `"}`,
		`{"name":"` + marker + `","name":"` + marker + `"}`,
		`{"name":"` + marker,
		`"` + marker + `"`,
		marker,
	} {
		s := newSite(t, nil, rest.Limits{})
		got := s.ask(t, "POST", "/v2/pods", resttest.User, body)
		if got.status < 400 || strings.Contains(got.body, marker) {
			t.Errorf("%s\n%d %s", body, got.status, got.body)
		}
	}
}

// play sends the row's request to a new server and shows both sides.
func play(t *testing.T, r row) (string, answer) {
	t.Helper()
	s := newSite(t, r.config, rest.Limits{})
	if r.setup != nil {
		r.setup(t, s.fake)
	}
	header := append([]string{"X-Request-Id", "req-1"}, r.header...)
	for range r.before {
		s.ask(t, r.method, r.path, r.key, r.body, header...)
	}
	got := s.ask(t, r.method, r.path, r.key, r.body, header...)

	var out strings.Builder
	fmt.Fprintf(&out, "=== %s\n# %s\n%s %s\n", r.name, r.rule, r.method, r.path)
	if r.key != "" {
		fmt.Fprintf(&out, "Authorization: Bearer <%s>\n", r.key)
	}
	for i := 0; i < len(r.header); i += 2 {
		for v := range strings.SplitSeq(r.header[i+1], "\n") {
			fmt.Fprintf(&out, "%s: %s\n", r.header[i], v)
		}
	}
	if r.body != "" {
		fmt.Fprintf(&out, "\n%s\n", shown(r.body))
	}
	fmt.Fprintf(&out, "---\n%d %s\n", got.status, http.StatusText(got.status))
	for _, name := range []string{"Allow", "Cache-Control", "Content-Type", "RateLimit", "RateLimit-Policy", "Retry-After", "WWW-Authenticate", "X-Accel-Buffering", "X-Request-Id"} {
		if v := got.header.Values(name); len(v) > 0 {
			fmt.Fprintf(&out, "%s: %s\n", name, strings.Join(v, ", "))
		}
	}
	if got.body != "" && !r.noBody {
		fmt.Fprintf(&out, "\n%s\n", indented(got.body))
	}
	out.WriteString("\n")
	return out.String(), got
}

func shown(body string) string {
	if !utf8.ValidString(body) || strings.ContainsAny(body, "\x00") {
		return fmt.Sprintf("%q", body)
	}
	if len(body) > 600 {
		return fmt.Sprintf("%s… (%d bytes)", body[:100], len(body))
	}
	return body
}

func indented(body string) string {
	var out bytes.Buffer
	if json.Indent(&out, []byte(body), "", "  ") != nil {
		return strings.TrimRight(body, "\n")
	}
	return strings.TrimRight(out.String(), "\n")
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			from := max(0, i-12)
			return fmt.Sprintf("line %d\nwant:\n%s\ngot:\n%s", i+1, strings.Join(w[from:i+1], "\n"), strings.Join(g[from:i+1], "\n"))
		}
	}
	return fmt.Sprintf("want %d lines, got %d", len(w), len(g))
}
