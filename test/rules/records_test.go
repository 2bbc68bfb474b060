package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// maxMethods is how many methods an interface of the product may declare, beside those of interfaces in it.
const maxMethods = 12

// A record is written to the wire and read from it by one type, wherever that is done.
func TestRecordsAreDeclaredOnce(t *testing.T) {
	seen := map[string]string{}
	// Records of the protocol between schedulers and agents, of which the faces show another form.
	inner := []string{"gantry/fleet.ExecSize", "gantry/fleet.HostNetwork", "gantry/fleet.Probe", "gantry/fleet.LogLine"}
	for _, d := range declaredTypes(t, "gantry/api", "gantry/client", "gantry/fleet") {
		if _, ok := d.of.(*ast.StructType); !ok || !isRecord(d.of.(*ast.StructType)) || slices.Contains(inner, d.pkg+"."+d.name) {
			continue
		}
		if first := seen[d.name]; first != "" && ast.IsExported(d.name) {
			t.Errorf("record %s is declared in %s and again in %s", d.name, first, d.at)
		}
		seen[d.name] = d.at
	}
	if seen["Pod"] == "" || seen["Host"] == "" {
		t.Error("no record is found: the rule looks at nothing")
	}
}

func TestInterfacesAreSmall(t *testing.T) {
	found := 0
	// Those that are larger still, with how many methods they have.
	larger := map[string]int{"gantry/netctl.Controller": 16, "gantry/scheduler/membership.Node": 14}
	for _, d := range declaredTypes(t, module) {
		of, ok := d.of.(*ast.InterfaceType)
		if !ok {
			continue
		}
		found++
		if n := methods(of); n > max(maxMethods, larger[d.pkg+"."+d.name]) {
			t.Errorf("interface %s in %s has %d methods, of %d at most", d.name, d.at, n, maxMethods)
		}
	}
	if found == 0 {
		t.Error("no interface is found: the rule looks at nothing")
	}
}

func TestRulesForDeclarationsSeeWhatTheyAreFor(t *testing.T) {
	const src = "package a\ntype R struct {\n\tA int `json:\"a\"`\n}\ntype V struct {\n\tA int `json:\"-\"`\n\tB int\n}\ntype I interface {\n\tA()\n\tB()\n\tJ\n}\n"
	of := map[string]ast.Expr{}
	for _, d := range declared(t, "a", "a.go", src) {
		of[d.name] = d.of
	}
	if r, v := isRecord(of["R"].(*ast.StructType)), isRecord(of["V"].(*ast.StructType)); !r || v {
		t.Errorf("records: %v, %v", r, v)
	}
	if n := methods(of["I"].(*ast.InterfaceType)); n != 2 {
		t.Errorf("%d methods", n)
	}
}

// declaration is a type that a file of the product declares.
type declaration struct {
	pkg, name, at string
	of            ast.Expr
}

// declaredTypes returns the types that the product's packages in some parts of the tree declare, code that is generated aside.
func declaredTypes(t *testing.T, parts ...string) []declaration {
	t.Helper()
	all := load(t, "./...")
	var out []declaration
	for _, path := range all.own() {
		if forTests(path) || !withinAny(path, parts) {
			continue
		}
		files, err := filepath.Glob(filepath.Join(all[path].Dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if !strings.HasSuffix(name, "_test.go") && !strings.HasSuffix(name, ".pb.go") {
				out = append(out, declared(t, path, name, nil)...)
			}
		}
	}
	return out
}

// declared reads the types of one file, from src if that is not nil.
func declared(t *testing.T, path, name string, src any) []declaration {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var out []declaration
	for _, d := range file.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range group.Specs {
			if s, ok := spec.(*ast.TypeSpec); ok {
				out = append(out, declaration{path, s.Name.Name, fmt.Sprint(fset.Position(s.Pos())), s.Type})
			}
		}
	}
	return out
}

// isRecord reports whether a struct has members that JSON knows by a name of their own.
func isRecord(s *ast.StructType) bool {
	return slices.ContainsFunc(s.Fields.List, func(f *ast.Field) bool {
		if f.Tag == nil {
			return false
		}
		name, ok := reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Lookup("json")
		return ok && name != "-"
	})
}

// methods counts what an interface declares itself.
func methods(of *ast.InterfaceType) int {
	n := 0
	for _, m := range of.Methods.List {
		n += len(m.Names)
	}
	return n
}
