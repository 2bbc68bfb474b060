package rules

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// largePackage is from how many product lines on a package needs a DESIGN.md that says why it is one.
const largePackage = 1500

// budgets are the most product lines of the parts that are being built. One is raised only with a reason in its commit.
var budgets = map[string]int{
	"serverless": 2000, "api/jobs": 1050, "api/v1": 1400, "api/graphql": 2690, "gateway": 1800, "api/console": 520, "console": 40,
}

// sizes returns the product's Go lines of each folder: without tests, what is generated, and what lies under test/.
func sizes(t *testing.T, root string) map[string]int {
	t.Helper()
	out := map[string]int{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		if d.IsDir() && (rel == "test" || rel == "tools" || rel != "." && strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, ".pb.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		out[filepath.ToSlash(filepath.Dir(rel))] += strings.Count(string(text), "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var ownFile = regexp.MustCompile("`([a-z0-9_]+\\.go)`")

// undesigned returns what is wrong with the pages of the packages below root that are large.
func undesigned(root string, sizes map[string]int) (faults []string) {
	for dir, lines := range sizes {
		if lines <= largePackage {
			continue
		}
		page, err := os.ReadFile(filepath.Join(root, dir, "DESIGN.md"))
		if err != nil {
			// Two packages may share a page, whose heading names both.
			page, err = os.ReadFile(filepath.Join(root, path.Dir(dir), "DESIGN.md"))
			if heading, _, _ := strings.Cut(string(page), "\n"); err == nil && !strings.Contains(heading, dir) {
				err = fs.ErrNotExist
			}
		}
		if err != nil {
			faults = append(faults, fmt.Sprintf("%s has %d lines and no DESIGN.md that says why it is one package", dir, lines))
			continue
		}
		for _, m := range ownFile.FindAllStringSubmatch(string(page), -1) {
			if _, err := os.Stat(filepath.Join(root, dir, m[1])); err != nil {
				faults = append(faults, fmt.Sprintf("the DESIGN.md of %s names %s, which is not there", dir, m[1]))
			}
		}
	}
	return faults
}

func TestLargePackagesSayWhyTheyAreOne(t *testing.T) {
	root := filepath.Join("..", "..")
	report(t, undesigned(root, sizes(t, root)))
}

func TestPartsStayWithinTheirBudget(t *testing.T) {
	all := sizes(t, filepath.Join("..", ".."))
	for part, most := range budgets {
		lines := 0
		for dir, n := range all {
			if dir == part || strings.HasPrefix(dir, part+"/") {
				lines += n
			}
		}
		if lines > most {
			t.Errorf("%s has %d lines, and %d at most", part, lines, most)
		}
	}
}

func TestSizesAreOfTheProduct(t *testing.T) {
	root := t.TempDir()
	long := "package a\n" + strings.Repeat("\n", largePackage)
	for file, text := range map[string]string{
		"a/a.go": long, "a/a_test.go": long, "a/a.pb.go": long, "test/b/b.go": long, ".bin/c.go": long,
		"d/d.go": long, "d/DESIGN.md": "# d\n\n`d.go`, `gone.go`\n", "e/DESIGN.md": "# e and e/f\n", "e/f/f.go": long, "e/g/g.go": long,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := sizes(t, root)
	if len(all) != 4 || all["a"] != largePackage+1 {
		t.Errorf("%v", all)
	}
	got := strings.Join(undesigned(root, all), "\n")
	for _, want := range []string{"a has 1501 lines and no DESIGN.md", "of d names gone.go", "e/g has"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not among\n%s", want, got)
		}
	}
	if strings.Count(got, "\n") != 2 {
		t.Errorf("too much was found:\n%s", got)
	}
}
