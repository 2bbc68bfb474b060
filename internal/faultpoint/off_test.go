//go:build !faultpoints

package faultpoint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOrdinaryBuildsHaveNoPoints holds that what ordinary builds have of the package is empty, and that the compiler
// leaves nothing of a call, its name included.
func TestOrdinaryBuildsHaveNoPoints(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.GoFiles}} {{.Imports}}", ".").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "[doc.go off.go] []" {
		t.Fatalf("the package is %s, %v", out, err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "off.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); !ok || len(f.Body.List) > 0 {
			t.Errorf("%v is not an empty function", d)
		}
	}
	dir := t.TempDir()
	const caller = "package caller\n\nimport \"gantry/internal/faultpoint\"\n\n" +
		"//go:noinline\nfunc Call(s string) { faultpoint.Hit(\"nobodyhere\"); faultpoint.Before(\"nobodyhere\", s); faultpoint.After(\"nobodyhere\", s) }\n"
	source, overlay, object := filepath.Join(dir, "caller.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "caller.a")
	here, err := filepath.Abs("caller")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{source: caller, overlay: fmt.Sprintf(`{"Replace":{%q:%q}}`, filepath.Join(here, "caller.go"), source)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", object, "./caller")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	compiled, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(compiled, []byte("nobodyhere")) {
		t.Error("the name of a point is in the compiled package")
	}
}
