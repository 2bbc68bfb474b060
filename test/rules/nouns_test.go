package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// plainNoun is a noun that is declared and little more: what it costs tells what a further one costs.
type plainNoun struct {
	name  string
	words *regexp.Regexp // of names, in small letters
	most  int            // product lines over all rooms
}

// What counts as a line of a plain noun, in the rooms that a noun goes through: every line of a product file whose name has a
// word of the noun, and elsewhere every line of a declaration (function, method, type, constant or variable, with its comment)
// whose name has one, or whose receiver has. Tests and what is generated do not count, nor what all nouns share.
var (
	nounRooms  = []string{"api/rest", "api/v2", "api/admin", "client", "cmd/gantry", "fleet", "scheduler", "scheduler/state"}
	plainNouns = []plainNoun{
		{"secrets", regexp.MustCompile("secret"), 300},
		{"registries", regexp.MustCompile("registry|registries|credential"), 340}, // it can be changed, which the secrets do by their names,
		{"S3 keys", regexp.MustCompile("s3key"), 300},
		{"templates", regexp.MustCompile("template"), 675}, // 17 members, each in four records and two commands; and the public catalog
	}
	// otherNouns have a word of a plain noun and are not of it.
	otherNouns = map[string]string{
		"fleet/secret.go":          "text that nothing shows, and keys",
		"fleet/environment.go":     "how the environment of pods refers to secrets",
		"fleet.Secret":             "text that nothing shows",
		"fleet.BackendSecrets":     "keys of a storage backend",
		"scheduler.BackendSecrets": "keys of a storage backend",
		"v2.Secret":                "reveals a hidden text",
		"scheduler.S3Secret":       "half of an S3 key",
		"gantry.showSecret":        "shows a new key of any kind",
		"cmd/gantry/scrub.go":      "what a debug bundle leaves out",
		"rest.newRegistry":         "schemas of the OpenAPI document",
		"rest.docsTemplate":        "the page of the reference",
	}
)

// nounLines returns the lines of plain nouns by their names, and each part by the noun's name and its own.
func nounLines(t *testing.T, root string) (totals map[string]int, parts map[string]int) {
	t.Helper()
	totals, parts = map[string]int{}, map[string]int{}
	for _, room := range nounRooms {
		files, err := filepath.Glob(filepath.Join(root, room, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, noun := range plainNouns {
				for part, lines := range noun.in(t, room, filepath.Base(name), string(text)) {
					parts[noun.name+": "+part] += lines
					totals[noun.name] += lines
				}
			}
		}
	}
	return totals, parts
}

// in returns the parts of a file that are the noun's, and how many lines each has.
func (n plainNoun) in(t *testing.T, room, name, text string) map[string]int {
	t.Helper()
	whole := room + "/" + name
	switch {
	case otherNouns[whole] != "":
		return nil
	case n.words.MatchString(name):
		return map[string]int{whole: strings.Count(text, "\n")}
	}
	out, fset := map[string]int{}, token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	count := func(of ast.Node, doc *ast.CommentGroup, names ...string) {
		begin := of.Pos()
		if doc != nil {
			begin = doc.Pos()
		}
		for _, name := range names {
			if full := path.Base(room) + "." + name; n.words.MatchString(strings.ToLower(name)) && otherNouns[full] == "" {
				out[room+"/"+name] += fset.Position(of.End()).Line - fset.Position(begin).Line + 1
				return
			}
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names := []string{d.Name.Name}
			if d.Recv != nil {
				names = append(names, receiver(d.Recv.List[0].Type))
			}
			count(d, d.Doc, names...)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					count(s, first(s.Doc, d.Doc, len(d.Specs)), s.Name.Name)
				case *ast.ValueSpec:
					var names []string
					for _, name := range s.Names {
						names = append(names, name.Name)
					}
					count(s, first(s.Doc, d.Doc, len(d.Specs)), names...)
				}
			}
		}
	}
	return out
}

// first is the comment of one of several declarations that may share one.
func first(own, shared *ast.CommentGroup, declarations int) *ast.CommentGroup {
	if own == nil && declarations == 1 {
		return shared
	}
	return own
}

func TestPlainNounsAreSmall(t *testing.T) {
	totals, parts := nounLines(t, filepath.Join("..", ".."))
	for _, noun := range plainNouns {
		t.Logf("%-28s %8d", noun.name, totals[noun.name]) // for make size
		if totals[noun.name] <= noun.most {
			continue
		}
		t.Errorf("%s have %d lines over all rooms, and %d at most", noun.name, totals[noun.name], noun.most)
		for _, part := range slices.Sorted(maps.Keys(parts)) {
			if strings.HasPrefix(part, noun.name+": ") {
				t.Logf("%-70s %4d", part, parts[part])
			}
		}
	}
}

func TestLinesOfANounAreCounted(t *testing.T) {
	const src = "package fleet\n\nimport \"fmt\"\n\n// Template is one.\ntype Template struct {\n\tA int\n}\n\n" +
		"// String shows it.\nfunc (t *Template) String() string { return fmt.Sprint(t.A) }\n\n" +
		"const (\n\t// maxTemplates is a bound.\n\tmaxTemplates = 1\n\tmaxPods      = 2\n)\n\n" +
		"// showTemplates shows some.\nfunc showTemplates() {\n}\n\n// Secret is none.\ntype Secret string\n"
	noun := plainNouns[slices.IndexFunc(plainNouns, func(n plainNoun) bool { return n.name == "templates" })]
	got := noun.in(t, "fleet", "a.go", src)
	want := map[string]int{"fleet/Template": 4 + 2, // with its method
		"fleet/maxTemplates": 2, "fleet/showTemplates": 3}
	if !maps.Equal(got, want) {
		t.Errorf("%v, expected %v", got, want)
	}
	if got := noun.in(t, "fleet", "template.go", src); !maps.Equal(got, map[string]int{"fleet/template.go": strings.Count(src, "\n")}) {
		t.Errorf("%v of a file that is named after it", got)
	}
	if got := plainNouns[0].in(t, "fleet", "a.go", src); len(got) != 0 {
		t.Errorf("%v of another thing with its word", got)
	}
}
