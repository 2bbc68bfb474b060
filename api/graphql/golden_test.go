package graphql_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gantry/test/plane"
)

var update = flag.Bool("update", false, "write the golden answers anew")

// topic is a sequence of requests to one control plane. Its file shows each with the whole answer; names such as <pod-1> stand
// for identifiers (see plane.Meant).
type topic struct {
	name  string
	setup func(*testing.T, *plane.Plane)
	rows  []row
}

// row is one request.
type row struct {
	name      string
	key       string // plane.User where it is empty; noKey: none
	query     string
	variables string // JSON
	then      func(*testing.T, *plane.Plane)
}

const noKey = "no key"

func TestGolden(t *testing.T) {
	for _, topic := range topics() {
		t.Run(topic.name, func(t *testing.T) {
			s := newSite(t)
			if topic.setup != nil {
				topic.setup(t, s.plane)
			}
			var out strings.Builder
			for _, r := range topic.rows {
				out.WriteString(s.play(t, r))
			}
			if strings.Contains(s.log.String(), "level=ERROR") {
				t.Errorf("an error was logged:\n%s", s.log)
			}
			compare(t, filepath.Join("testdata", "golden", topic.name+".txt"), out.String())
		})
	}
}

// play sends the row's request and shows both sides.
func (s *site) play(t *testing.T, r row) string {
	t.Helper()
	key := r.key
	switch key {
	case "":
		key = plane.User
	case noKey:
		key = ""
	}
	var variables json.RawMessage
	if r.variables != "" {
		variables = json.RawMessage(s.plane.Meant(r.variables))
	}
	data, err := json.Marshal(map[string]any{"query": s.plane.Meant(r.query), "variables": variables})
	if err != nil {
		t.Fatalf("%s: %v", r.name, err)
	}
	s.plane.Advance(time.Second) // so that lists have an order
	got := s.send(key, string(data))
	if r.then != nil {
		r.then(t, s.plane)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "=== %s\n%s\n", r.name, strings.TrimSpace(r.query))
	if r.variables != "" {
		fmt.Fprintf(&out, "variables: %s\n", r.variables)
	}
	if r.key != "" {
		fmt.Fprintf(&out, "key: %s\n", r.key)
	}
	fmt.Fprintf(&out, "---\n%d\n%s\n\n", got.status, s.plane.Named(indented(got.body)))
	return out.String()
}

func indented(body string) string {
	var out bytes.Buffer
	if json.Indent(&out, []byte(body), "", "  ") != nil {
		return strings.TrimRight(body, "\n")
	}
	return strings.TrimRight(out.String(), "\n")
}

func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) == got {
		return
	}
	w, g := strings.Split(string(want), "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			t.Fatalf("%s, line %d\nwant: %s\ngot:  %s", file, i+1, w[i], g[i])
		}
	}
	t.Fatalf("%s has %d lines, got %d", file, len(w), len(g))
}

// fill makes a document that saves an endpoint of these members.
func fill(members string) string {
	const document = `mutation { saveEndpoint(input: { %s }) { id name type gpuIds workersMin workersMax idleTimeout scalerType scalerValue } }`
	return strings.ReplaceAll(document, "%s", members)
}
