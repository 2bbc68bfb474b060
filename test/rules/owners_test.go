package rules

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// owner is one line of docs/dependencies.md: which packages import a module, of our own code.
type owner struct {
	anywhere bool
	by       []string
}

var (
	tableRow = regexp.MustCompile("^\\| `([^`]+)` \\| [^|]+ \\| ([^|]+) \\|$")
	quoted   = regexp.MustCompile("`([^`]+)`")
	// A line "command:package" of scripts/setup.sh, or a package that it names when something is not there.
	wantedPackage = regexp.MustCompile(`(?m)^\t+[a-z0-9._/-]+:([a-z0-9.+-]+)$|\|\| echo ([a-z0-9.+-]+)$`)
)

// documented reads the product's table of docs/dependencies.md, by module.
func documented(t *testing.T) map[string]owner {
	t.Helper()
	owners := map[string]owner{}
	for line := range strings.Lines(dependencies(t)) {
		row := tableRow.FindStringSubmatch(strings.TrimSpace(line))
		if row == nil {
			continue
		}
		module, who := row[1], row[2]
		var by []string
		for _, name := range quoted.FindAllStringSubmatch(who, -1) {
			by = append(by, "gantry/"+name[1])
		}
		switch {
		case strings.HasPrefix(who, "anywhere"):
			owners[module] = owner{anywhere: true}
		case who == "tests only":
			owners[module] = owner{}
		case len(by) > 0:
			owners[module] = owner{by: by}
		default:
			t.Errorf("docs/dependencies.md does not say who may import %s: %q", module, who)
		}
	}
	return owners
}

func dependencies(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// modFile is the part of `go mod edit -json` that the tests read.
type modFile struct {
	Require []struct {
		Path     string
		Indirect bool
	}
	Tool []struct{ Path string }
}

func readModFile(t *testing.T, dir string) modFile {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
	cmd.Dir = filepath.Join("..", "..", dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod edit in %q: %v", dir, err)
	}
	var file modFile
	if err := json.Unmarshal(out, &file); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestEveryDependencyIsDocumented(t *testing.T) {
	owners := documented(t)
	for _, required := range readModFile(t, "").Require {
		_, ok := owners[required.Path]
		if !required.Indirect && !ok {
			t.Errorf("go.mod requires %s, and docs/dependencies.md does not say why", required.Path)
		}
		if !required.Indirect {
			delete(owners, required.Path)
		}
	}
	for module := range owners {
		t.Errorf("docs/dependencies.md has %s, which go.mod does not require directly", module)
	}
}

func TestEveryToolIsDocumented(t *testing.T) {
	_, section, _ := strings.Cut(dependencies(t), "## Tools")
	tools := readModFile(t, "tools").Tool
	if len(tools) == 0 {
		t.Error("tools/go.mod names no tool")
	}
	for _, tool := range tools {
		if !slices.ContainsFunc(quoted.FindAllStringSubmatch(section, -1), func(m []string) bool { return within(tool.Path, m[1]) }) {
			t.Errorf("tools/go.mod has %s, and docs/dependencies.md does not say why", tool.Path)
		}
	}
}

func TestEveryDebianPackageIsDocumented(t *testing.T) {
	_, section, _ := strings.Cut(dependencies(t), "## Debian packages")
	text, err := os.ReadFile(filepath.Join("..", "..", "scripts", "setup.sh"))
	if err != nil {
		t.Fatal(err)
	}
	installed := wantedPackage.FindAllStringSubmatch(string(text), -1)
	if len(installed) < 20 {
		t.Errorf("scripts/setup.sh installs %q: is its list still read right?", installed)
	}
	for _, m := range installed {
		name := m[1] + m[2]
		if !strings.Contains(section, "`"+name+"`") {
			t.Errorf("scripts/setup.sh installs %s, and docs/dependencies.md does not say why", name)
		}
	}
}

// forTests reports whether a package serves tests: it lies under test/ or is named as httptest is.
func forTests(path string) bool {
	return within(path, "gantry/test") || within(path, module) && strings.HasSuffix(path, "test")
}

func ownerFaults(g graph, owners map[string]owner) []string {
	var faults []string
	for _, path := range g.own() {
		if forTests(path) {
			continue
		}
		for _, imported := range g[path].Imports {
			if why := refusal(g, owners, path, imported); why != "" {
				faults = append(faults, fmt.Sprintf("%s imports %s: %s", path, imported, why))
			}
		}
	}
	return faults
}

// refusal says why one package may not import another, and nothing if it may.
func refusal(g graph, owners map[string]owner, path, imported string) string {
	switch {
	case imported == "testing" || forTests(imported):
		return "only test code may"
	case within(imported, "gantry/cmd") && !within(path, "gantry/cmd"):
		return "nothing imports a command"
	case g[imported].Standard || within(imported, module):
		return ""
	}
	found := ""
	for module := range owners {
		if within(imported, module) && len(module) > len(found) {
			found = module
		}
	}
	switch who := owners[found]; {
	case found == "":
		return "its module is not in docs/dependencies.md"
	case who.anywhere || withinAny(path, who.by):
		return ""
	case len(who.by) == 0:
		return "only test code may"
	default:
		return "only " + strings.Join(who.by, ", ") + " may"
	}
}
