package faces_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gantry/api/v1"
)

var update = flag.Bool("update", false, "write the tables of the docs anew")

const (
	page  = "api-v1.md"
	begin = "<!-- The tables of names are printed by go test ./test/faces -update. -->\n"
	end   = "<!-- end of the tables of names -->\n"
)

// TestDocsHaveTheNames prints the naming table into the page of version 1.
func TestDocsHaveTheNames(t *testing.T) {
	path := filepath.Join("..", "..", "docs", page)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatal("the page has no place for the tables")
	}
	want := before + begin + tables() + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(text) {
		t.Errorf("%s does not have the tables of names: go test ./test/faces -update", path)
	}
}

// tables are the naming tables as Markdown.
func tables() string {
	var out strings.Builder
	for _, n := range v1.Nouns() {
		fmt.Fprintf(&out, "\n### %s\n\n`%s`\n\n| version 1 | version 2 | in | default | remarks |\n| --- | --- | --- | --- | --- |\n", n.Title, n.Path)
		for _, name := range n.Names {
			two, absent := "", ""
			if name.V2 != "" {
				two = "`" + name.V2 + "`"
			}
			if name.Default != nil {
				absent = fmt.Sprintf("`%v`", name.Default)
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s | %s |\n", name.V1, two, uses(name.Of), absent, name.Note)
		}
	}
	return out.String() + "\n"
}

// uses says in words where a member is.
func uses(of string) string {
	var out []string
	for _, c := range of {
		out = append(out, map[rune]string{'C': "create (required)", 'c': "create", 'u': "update", 'r': "record"}[c])
	}
	return strings.Join(out, ", ")
}
