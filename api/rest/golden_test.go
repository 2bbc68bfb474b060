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
	"gantry/test/plane"
)

var update = flag.Bool("update", false, "write the golden answers anew")

// row is one request of the golden table. Its file shows the request and the whole answer. Names such as <pod-1> in path,
// body and header stand for what the row's setup made (see plane.Meant), and the file shows them, too.
type row struct {
	topic, name string
	rule        string // one of rules()
	setup       func(*testing.T, *plane.Plane)
	config      func(*rest.Config)
	method      string
	path        string
	key         string
	body        string
	header      []string // name, value, …; an empty value removes
	noBody      bool     // the answer's body is not part of the row
	ids         bool     // of the listed pods only the identifiers are part of the row
	before      int      // how often the same request is sent first
	warm        string   // body of a request that is sent first, with the same header
}

const (
	podID     = "<pod-1>"        // the first pod that a row's setup makes, of which most rows speak
	missingID = "none0000000001" // has the form of an id, and is none
)

// A topic's rows may stand in a file of their own, which adds them in an init function.
var (
	moreRows  []func() []row
	moreRules []string
)

// addRows adds the rows of a topic, and rules that are not in the list yet.
func addRows(f func() []row, rules ...string) {
	moreRows, moreRules = append(moreRows, f), append(moreRules, rules...)
}

func allRows() []row {
	out := rows()
	for _, f := range moreRows {
		out = append(out, f()...)
	}
	return out
}

func allRules() []string { return slices.Concat(rules(), moreRules) }

// TestGolden plays the table and compares the answers with the golden ones and with what the OpenAPI
// document says of them.
func TestGolden(t *testing.T) {
	texts := map[string]*bytes.Buffer{}
	first := newSite(t, nil, rest.Limits{})
	v2Book, v1Book := openBook(t, first.api), openBook(t, first.v1)
	for _, r := range allRows() {
		t.Run(r.topic+"/"+r.name, func(t *testing.T) {
			if texts[r.topic] == nil {
				texts[r.topic] = &bytes.Buffer{}
			}
			text, got := play(t, r)
			texts[r.topic].WriteString(text)
			if strings.HasPrefix(r.path, "/v1/") {
				v1Book.checkAnswer(t, r, got)
			} else {
				v2Book.checkAnswer(t, r, got)
			}
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
	have, names, known := map[string]bool{}, map[string]bool{}, allRules()
	for _, r := range allRows() {
		if !slices.Contains(known, r.rule) {
			t.Errorf("row %s/%s is for the rule %q, which is not in the list", r.topic, r.name, r.rule)
		}
		if names[r.topic+"/"+r.name] {
			t.Errorf("two rows are named %s/%s", r.topic, r.name)
		}
		have[r.rule], names[r.topic+"/"+r.name] = true, true
	}
	for _, rule := range known {
		if !have[rule] {
			t.Errorf("the rule %q has no row", rule)
		}
	}
}

// TestAnswersNeverEcho sends a marker as value in every place of the rows' bodies that a client
// fills, and looks for it in the refusals.
func TestAnswersNeverEcho(t *testing.T) {
	const marker = "s3cret-value"
	s := newSite(t, nil, rest.Limits{})
	for _, body := range []string{
		`{"name":"` + marker + `\u0000","image":"busybox","cpu":{"id":"cpu3g","vcpuCount":2}}`,
		`{"name":["` + marker + `"],"image":"` + marker + ` x","cpu":"` + marker + `","gpu":"` + marker + `"}`,
		`{"name":"a","image":"busybox","cpu":{"id":"` + marker + `","vcpuCount":2}}`,
		`{"name":"a","image":"busybox","cpu":{"id":"cpu3g","vcpuCount":"` + marker + `"},"cloud":"` + marker + `"}`,
		`{"name":"a","image":"busybox","gpu":{"id":"` + marker + `"},"env":{"TOKEN":{"x":"` + marker + `"}},"ports":["` + marker + `"]}`,
		`{"name":"a","image":"busybox","gpu":{"id":"x"},"dataCenterIds":["` + marker + `"],"args":"'` + marker + `"}`,
		`{"name":"a","image":"busybox","gpu":{"id":"x","minCudaVersion":"` + marker + `","allowedCudaVersions":["` + marker + `"]}}`,
		`{"name":"a","image":"busybox","gpu":{"id":"x"},"env":{"TOKEN":"` + marker + `\u0000"}}`,
		`{"name":"a","image":"busybox","gpu":{"id":"` + plane.SimGPU + `"},"registry":"` + marker + `"}`,
		`{"name":"a","image":"busybox","gpu":{"id":"` + plane.SimGPU + `"},"templateId":"` + marker + `"}`,
		`{"name":"a","image":"busybox","gpu":{"id":"` + plane.SimGPU + `"},"mounts":{"network":[{"volumeId":"` + marker + `","path":"/` + marker + `"}]}}`,
		`{"name":"a","image":"busybox","gpu":{"id":"` + plane.SimGPU + `"},"mounts":{"persistent":{"size":10,"path":"` + marker + `"}}}`,
		`{"name":"` + marker + `","name":"` + marker + `"}`,
		`{"name":"` + marker,
		`"` + marker + `"`,
		marker,
	} {
		got := s.ask(t, "POST", "/v2/pods", plane.User, body, "Idempotency-Key", marker+" with space")
		if got.status < 400 || strings.Contains(got.body, marker) {
			t.Errorf("%s\n%d %s", body, got.status, got.body)
		}
		got = s.ask(t, "POST", "/v2/pods", plane.User, body)
		if got.status < 400 || strings.Contains(got.body, marker) {
			t.Errorf("%s\n%d %s", body, got.status, got.body)
		}
	}
}

// shownHeaders are the header fields of an answer that a golden file shows.
var shownHeaders = []string{
	"Allow", "Cache-Control", "Content-Type", "Idempotent-Replayed", "RateLimit", "RateLimit-Policy", "Retry-After", "Upgrade", "WWW-Authenticate",
	"X-Accel-Buffering", "X-Gantry-Nothing-Done", "X-Request-Id",
}

// play sends the row's request to a new server and shows both sides.
func play(t *testing.T, r row) (string, answer) {
	t.Helper()
	s, ask := prepare(t, r)
	got := ask()
	return s.show(t, r, got), got
}

// prepare makes a new server and sends it what comes before the row's request, which ask sends.
func prepare(t *testing.T, r row) (s *site, ask func() answer) {
	t.Helper()
	s = newSite(t, r.config, rest.Limits{})
	if r.setup != nil {
		r.setup(t, s.plane)
	}
	path, body := s.plane.Meant(r.path), s.plane.Meant(r.body)
	header := append([]string{"X-Request-Id", "req-1"}, r.header...)
	for i := range header {
		header[i] = s.plane.Meant(header[i])
	}
	for range r.before {
		s.ask(t, r.method, path, r.key, body, header...)
	}
	if r.warm != "" {
		s.ask(t, r.method, path, r.key, r.warm, header...)
	}
	return s, func() answer { return s.ask(t, r.method, path, r.key, body, header...) }
}

// show shows both sides of a row.
func (s *site) show(t *testing.T, r row, got answer) string {
	t.Helper()
	var out strings.Builder
	fmt.Fprintf(&out, "=== %s\n# %s\n%s %s\n", r.name, r.rule, r.method, r.path)
	if r.key != "" {
		fmt.Fprintf(&out, "Authorization: Bearer <%s>\n", r.key)
	}
	for i := 0; i < len(r.header); i += 2 {
		for v := range strings.SplitSeq(r.header[i+1], "\n") {
			fmt.Fprintf(&out, "%s: %s\n", r.header[i], shown(v))
		}
	}
	if r.warm != "" {
		fmt.Fprintf(&out, "\nbefore: %s\n", shown(r.warm))
	}
	if r.body != "" {
		fmt.Fprintf(&out, "\n%s\n", shown(r.body))
	}
	fmt.Fprintf(&out, "---\n%d %s\n", got.status, http.StatusText(got.status))
	for _, name := range shownHeaders {
		if v := got.header.Values(name); len(v) > 0 {
			fmt.Fprintf(&out, "%s: %s\n", name, strings.Join(v, ", "))
		}
	}
	if r.ids {
		fmt.Fprintf(&out, "\n%s\n", s.plane.Named(listedIDs(t, got.body)))
	} else if got.body != "" && !r.noBody {
		fmt.Fprintf(&out, "\n%s\n", s.plane.Named(indented(got.body)))
	}
	out.WriteString("\n")
	return out.String()
}

// listedIDs returns the identifiers of a list of pods, one per line.
func listedIDs(t *testing.T, body string) string {
	t.Helper()
	var list struct{ Pods []struct{ ID string } }
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatal(err)
	}
	out := fmt.Sprintf("%d pods", len(list.Pods))
	for _, p := range list.Pods {
		out += "\n" + p.ID
	}
	return out
}

// sorted brings rows that were made from a map into a fixed order.
func sorted(rows []row) []row {
	slices.SortStableFunc(rows, func(a, b row) int { return strings.Compare(a.name, b.name) })
	return rows
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
