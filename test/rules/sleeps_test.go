package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sleeper is the one package that waits for a time or a context, whichever ends first.
const sleeper = "gantry/internal/sleep"

// TestNothingWritesItsOwnSleep: a select of two cases, the end of a context and that of a timer, is sleep.For.
func TestNothingWritesItsOwnSleep(t *testing.T) {
	all := load(t, "./...")
	if _, ok := all[sleeper]; !ok {
		t.Fatalf("there is no %s", sleeper)
	}
	for _, path := range all.own() {
		files, err := filepath.Glob(filepath.Join(all[path].Dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if path != sleeper && !strings.HasSuffix(name, "_test.go") {
				report(t, sleeps(t, name, nil))
			}
		}
	}
}

func TestSleepsAreFound(t *testing.T) {
	const src = `package p

func f() {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	timer := time.NewTimer(d)
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	select {
	case <-woken:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func g() {
	timer := time.NewTicker(d)
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		select {
		case <-timer.C:
		default:
		}
	}
}
`
	const why = ": wait with gantry/internal/sleep"
	if got, want := sleeps(t, "p.go", src), []string{"p.go:4:2" + why, "p.go:9:2" + why}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// sleeps reads one file, from src if that is not nil, and names the selects that wait for a timer and a context only.
// A ticker goes on, and a wait for something else beside is the caller's own.
func sleeps(t *testing.T, name string, src any) []string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	timers := map[string]bool{} // by name, of one function
	var faults []string
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			clear(timers)
		case *ast.AssignStmt:
			if len(n.Lhs) == 1 && isCall(n.Rhs[0], "NewTimer") {
				if id, ok := n.Lhs[0].(*ast.Ident); ok {
					timers[id.Name] = true
				}
			}
		case *ast.SelectStmt:
			kinds := map[string]int{}
			for _, c := range n.Body.List {
				kinds[waitsFor(c.(*ast.CommClause), timers)]++
			}
			if len(n.Body.List) == 2 && kinds["context"] == 1 && kinds["timer"] == 1 {
				faults = append(faults, fmt.Sprintf("%s: wait with %s", fset.Position(n.Pos()), sleeper))
			}
		}
		return true
	})
	return faults
}

func waitsFor(c *ast.CommClause, timers map[string]bool) string {
	expr, ok := c.Comm.(*ast.ExprStmt)
	if !ok {
		return ""
	}
	from, ok := expr.X.(*ast.UnaryExpr)
	if !ok {
		return ""
	}
	if isCall(from.X, "Done") {
		return "context"
	}
	field, ok := from.X.(*ast.SelectorExpr)
	if !ok || field.Sel.Name != "C" {
		if isCall(from.X, "After") {
			return "timer"
		}
		return ""
	}
	if id, ok := field.X.(*ast.Ident); ok && timers[id.Name] {
		return "timer"
	}
	return ""
}

func isCall(e ast.Expr, name string) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == name
}
