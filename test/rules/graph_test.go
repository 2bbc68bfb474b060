package rules

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// pkg is what `go list` says of a package; only non-test files count.
type pkg struct {
	ImportPath string
	Dir        string
	Standard   bool
	CgoFiles   []string
	Imports    []string
	Deps       []string
}

// graph is a set of packages by import path, closed under imports.
type graph map[string]pkg

// loaded are the graphs that were listed before, by their patterns. Tests here run one after the other.
var loaded = map[string]graph{}

// load lists the packages that match and everything they depend on, as built for Linux with cgo at hand: a cgo package
// would hide from a listing without it.
func load(t *testing.T, patterns ...string) graph {
	t.Helper()
	key := strings.Join(patterns, " ")
	if loaded[key] == nil {
		loaded[key] = list(t, patterns)
	}
	return loaded[key]
}

func list(t *testing.T, patterns []string) graph {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args := append([]string{"list", "-deps", "-json=ImportPath,Dir,Standard,CgoFiles,Imports,Deps"}, patterns...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOOS=linux")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	found := graph{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		found[p.ImportPath] = p
	}
}

// own returns the paths of this module's packages, sorted.
func (g graph) own() []string {
	var paths []string
	for path := range g {
		if within(path, module) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// chain returns the shortest way of imports from one package to another, for a reader to see where to cut.
func (g graph) chain(from, to string) string {
	before := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		if queue[0] == to {
			break
		}
		for _, next := range g[queue[0]].Imports {
			if _, seen := before[next]; !seen {
				before[next] = queue[0]
				queue = append(queue, next)
			}
		}
	}
	way := to
	for at := before[to]; at != ""; at = before[at] {
		way = at + " -> " + way
	}
	return way
}

// within reports whether a path is the root or lies below it.
func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

func withinAny(path string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return within(path, root) })
}
