package rules

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEachListenerIsHeldByATest: every row of the table of listeners in docs/security.md names tests, and they exist.
func TestEachListenerIsHeldByATest(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Listeners\n")
	section, _, _ = strings.Cut(section, "\n## ")
	tests := testNames(t, root)
	named, rows := regexp.MustCompile("`(Test[A-Za-z0-9]+)`"), 0
	for row := range strings.Lines(section) {
		if !strings.HasPrefix(row, "| ") || strings.HasPrefix(row, "| listener") || strings.HasPrefix(row, "| ---") {
			continue
		}
		rows++
		names := named.FindAllStringSubmatch(row, -1)
		if len(names) == 0 {
			t.Errorf("no test holds %.60s", row)
		}
		for _, name := range names {
			if !tests[name[1]] {
				t.Errorf("there is no %s: %.60s", name[1], row)
			}
		}
	}
	if rows < 10 {
		t.Errorf("the table has %d rows", rows)
	}
}

// testNames are the tests of the whole tree.
func testNames(t *testing.T, root string) map[string]bool {
	t.Helper()
	out, declared := map[string]bool{}, regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if strings.HasSuffix(path, "_test.go") {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range declared.FindAllSubmatch(text, -1) {
				out[string(m[1])] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
