package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// named finds `path/file.go:Func` and `path/file.go` in a page; a method is named as Type.Method.
var named = regexp.MustCompile("`([a-z0-9_/.-]+\\.go)(?::([A-Za-z.]+))?`")

// TestTheWalkthroughNamesWhatExists: each file, function, method and type that docs/walkthrough.md names is there.
func TestTheWalkthroughNamesWhatExists(t *testing.T) {
	root := filepath.Join("..", "..")
	found := named.FindAllStringSubmatch(readPage(t, filepath.Join(root, "docs", "walkthrough.md")), -1)
	if len(found) < 60 {
		t.Errorf("only %d names were found: are they still written as before?", len(found))
	}
	declared := map[string]map[string]bool{}
	for _, m := range found {
		file, name := m[1], m[2]
		if declared[file] == nil {
			declared[file] = declarations(t, filepath.Join(root, filepath.FromSlash(file)))
		}
		if name != "" && !declared[file][name] {
			t.Errorf("docs/walkthrough.md: %s declares no %s", file, name)
		}
	}
}

func TestDeclarationsAreRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.go")
	const text = "package a\n\ntype T struct{}\n\ntype G[K any] struct{}\n\nfunc f() {}\n\nfunc (t *T) m() {}\n\nfunc (g *G[K]) m() {}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := declarations(t, file)
	for _, name := range []string{"T", "G", "f", "T.m", "G.m"} {
		if !got[name] {
			t.Errorf("%s was not found", name)
		}
	}
	if got["m"] || got["T.f"] {
		t.Errorf("too much was found: %v", got)
	}
}

// declarations returns the functions, methods (Type.Method) and types of one file.
func declarations(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("a page names a file that cannot be read: %v", err)
		return map[string]bool{}
	}
	out := map[string]bool{}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			out[name] = true
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if s, ok := spec.(*ast.TypeSpec); ok {
					out[s.Name.Name] = true
				}
			}
		}
	}
	return out
}

// receiver returns the name of a method's receiver type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
)

// TestLinksOfThePagesLeadSomewhere: each relative link of a page leads to a file, and its anchor to a heading there.
func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	root, links := filepath.Join("..", ".."), 0
	for _, page := range pages(t, root) {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(readPage(t, page), ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue
			}
			links++
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), filepath.FromSlash(target))
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: the link %s leads nowhere: %v", page, m[1], err)
				continue
			}
			if anchor != "" && !anchors(readPage(t, file))[anchor] {
				t.Errorf("%s: the link %s names no heading of that page", page, m[1])
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links were found", links)
	}
}

// proseColumns is how wide a line of prose may be. Tables and code may be wider.
const proseColumns = 120

// TestProseIsWrapped: no page has prose beyond proseColumns. The track record is a table with notes, and is left out.
func TestProseIsWrapped(t *testing.T) {
	for _, page := range pages(t, filepath.Join("..", "..")) {
		if filepath.Base(page) == "track-record.md" {
			continue
		}
		for _, n := range wideLines(readPage(t, page)) {
			t.Errorf("%s:%d: the line has more than %d columns", page, n, proseColumns)
		}
	}
}

func TestWideLinesAreFound(t *testing.T) {
	wide := strings.Repeat("wörd ", 25)
	text := "# Title\n\n" + wide + "\n\n| " + wide + "|\n\n    " + wide + "\n\n```sh\n" + wide + "\n```\n\n- " + wide + "\n" + strings.Repeat("ö", proseColumns)
	if got := wideLines(text); !slices.Equal(got, []int{3, 13}) {
		t.Errorf("got lines %v, want 3 and 13", got)
	}
}

// wideLines returns the numbers of the lines of prose that are too wide.
func wideLines(text string) (out []int) {
	fenced, n := false, 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\n ")
		code := strings.HasPrefix(strings.TrimSpace(line), "```")
		fenced = fenced != code
		if !code && !fenced && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "    ") && utf8.RuneCountInString(line) > proseColumns {
			out = append(out, n)
		}
	}
	return out
}

// pages returns the written pages of the tree: those at its root, below docs, and in packages.
func pages(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "test/*/*.md", "*/DESIGN.md", "*/*/DESIGN.md"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	if len(out) < 20 {
		t.Errorf("only %d pages were found: %q", len(out), out)
	}
	return out
}

// anchors returns what the headings of a page are called in links.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 127:
				return r
			}
			return -1
		}, strings.ToLower(m[1]))
		out[name] = true
	}
	return out
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
