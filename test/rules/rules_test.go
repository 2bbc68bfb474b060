// Package rules holds the import rules of docs/architecture.md as a test over `go list -deps`. It looks at product code
// only: test files and what lies under test/ may reach for the real parts they try.
package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "gantry"

// core are packages that the rules are about. Were one renamed, its rules would pass without looking at anything.
var core = []string{
	"gantry/fleet",
	"gantry/scheduler/state", "gantry/scheduler/state/table", "gantry/scheduler/place", "gantry/scheduler/meter", "gantry/scheduler/replica",
	"gantry/scheduler/dispatch", "gantry/scheduler/feed/s3", "gantry/scheduler/feed/volumes", "gantry/scheduler/feed/networks", "gantry/scheduler/feed/storage",
	"gantry/agent/session", "gantry/agent/orders", "gantry/agent/pod", "gantry/agent/ctrd", "gantry/agent/gpu", "gantry/agent/gpu/nvml", "gantry/agent/containerfs",
	"gantry/storage", "gantry/storage/disk", "gantry/storage/helper", "gantry/storage/provision", "gantry/storage/volume",
	"gantry/storage/s3", "gantry/storage/s3/broker", "gantry/cmd/gantry-s3",
	"gantry/internal/userns", "gantry/netctl/kernel", "gantry/netctl/tunnel", "gantry/netctl/dns", "gantry/agent/overlay", "gantry/cmd/gantry-net",
	"gantry/serverless/queue", "gantry/serverless/scale", "gantry/api/rest", "gantry/api/edge", "gantry/api/v2", "gantry/api/admin",
}

// layers names for a part of the tree what it must not reach, be it through others.
var layers = []struct {
	part  []string
	never []string
}{
	{[]string{"gantry/internal", "gantry/netctl", "gantry/storage", "gantry/serverless"}, []string{"gantry/api", "gantry/scheduler", "gantry/agent"}},
	{[]string{"gantry/api"}, []string{"gantry/scheduler", "gantry/agent"}},
	{[]string{"gantry/scheduler"}, []string{"gantry/api", "gantry/agent"}},
	{[]string{"gantry/scheduler/feed"}, []string{"gantry/scheduler/dispatch"}},
	{[]string{"gantry/scheduler/dispatch"}, []string{"gantry/scheduler/feed/s3", "gantry/scheduler/feed/networks", "gantry/scheduler/feed/storage"}},
	{[]string{"gantry/agent"}, []string{"gantry/api", "gantry/scheduler"}},
	// What takes a scheduler's messages registers with the session, which knows none of it.
	{[]string{"gantry/agent/session"}, []string{"gantry/agent/pod", "gantry/agent/ledger", "gantry/agent/orders", "gantry/agent/tunnels", "gantry/netctl", "gantry/storage"}},
	{userSide, []string{"gantry/api", "gantry/scheduler", "gantry/agent"}},
	{[]string{"gantry/storage/disk", "gantry/storage/helper"}, []string{"gantry/fleet", "gantry/netctl", "gantry/internal", "net/http"}},
	// What answers names and carries frames is confined: it shares nothing with what runs as root but how it is spoken to.
	{[]string{"gantry/cmd/gantry-net"}, []string{"gantry/agent", "gantry/scheduler", "gantry/storage", "gantry/netctl/kernel"}},
	// What answers S3 requests is confined: it shares nothing with what runs as root and mounts.
	{
		[]string{"gantry/storage/s3", "gantry/cmd/gantry-s3"},
		[]string{"gantry/agent", "gantry/scheduler", "gantry/netctl", "gantry/storage/disk", "gantry/storage/helper", "gantry/storage/provision", "gantry/storage/volume"},
	},
	{[]string{"gantry/storage/s3"}, []string{"gantry/fleet", "gantry/internal", "os/exec", "google.golang.org/grpc"}},
	{
		[]string{"gantry/scheduler/state", "gantry/scheduler/place", "gantry/scheduler/meter", "gantry/serverless/queue", "gantry/serverless/scale"},
		[]string{"net/http", "os/exec", "google.golang.org/grpc", "github.com/hashicorp", "github.com/containerd", "gantry/internal/agentrpc"},
	},
	{
		[]string{"gantry/agent/pod"},
		[]string{"os/exec", "github.com/NVIDIA", "github.com/hashicorp", "github.com/containerd", "go.etcd.io/bbolt", "github.com/vishvananda", "sigs.k8s.io/knftables"},
	},
}

// The packages of the records that requests and answers are made of, and those outside of api that share them.
var (
	wireRecords = []string{"gantry/api/v2", "gantry/api/admin"}
	userSide    = []string{"gantry/client", "gantry/dev"}
)

// plain are small tools with the standard library only, which every layer may use.
var plain = []string{"gantry/internal/atomicfile", "gantry/internal/ipc", "gantry/internal/ipc/process", "gantry/internal/sleep"}

// homes names what a few packages of the product alone may import, they themselves and not what lies below them: parts
// that are put together elsewhere, and technology that docs/dependencies.md gives to a whole folder. Of two that hold an
// import the one further down decides.
var homes = []struct {
	what string
	by   []string
}{
	{"gantry/agent/ctrd", []string{"gantry/cmd/gantry-agent"}},
	{"gantry/agent/gpu/nvml", []string{"gantry/cmd/gantry-gpu"}},
	// The agent's rooms. The session knows none of them, nor they it: the agent registers them for their messages.
	{"gantry/agent/images", []string{"gantry/agent", "gantry/cmd/gantry-agent"}},
	{"gantry/agent/inventory", []string{"gantry/agent", "gantry/agent/metrics", "gantry/cmd/gantry-agent"}},
	{"gantry/agent/ledger", []string{"gantry/agent", "gantry/agent/orders", "gantry/agent/recovery", "gantry/agent/sweep", "gantry/agent/tunnels", "gantry/agent/usage"}},
	{"gantry/agent/machine", []string{"gantry/agent", "gantry/agent/inventory", "gantry/agent/metrics", "gantry/agent/session", "gantry/agent/usage"}},
	{"gantry/agent/metrics", []string{"gantry/agent"}},
	{"gantry/agent/models", []string{"gantry/agent", "gantry/cmd/gantry-agent"}},
	{"gantry/agent/orders", []string{"gantry/agent"}},
	{"gantry/agent/podlog", []string{"gantry/agent", "gantry/agent/reports", "gantry/agent/tunnels"}},
	{"gantry/agent/podnet", []string{"gantry/agent", "gantry/cmd/gantry-agent"}},
	{"gantry/agent/recovery", []string{"gantry/agent", "gantry/agent/sweep"}},
	{"gantry/agent/reports", []string{"gantry/agent", "gantry/agent/usage"}},
	{"gantry/agent/s3", []string{"gantry/agent", "gantry/cmd/gantry-agent"}},
	{"gantry/agent/session", []string{"gantry/agent", "gantry/cmd/gantry-agent"}},
	{"gantry/agent/storage", []string{"gantry/agent", "gantry/agent/metrics", "gantry/agent/sweep", "gantry/cmd/gantry-agent"}},
	{"gantry/agent/sweep", []string{"gantry/agent", "gantry/cmd/gantry-agent"}},
	{"gantry/agent/tunnels", []string{"gantry/agent"}},
	{"gantry/agent/usage", []string{"gantry/agent", "gantry/agent/metrics"}},
	{"gantry/agent/volumes", []string{"gantry/agent", "gantry/agent/orders", "gantry/agent/s3", "gantry/agent/storage", "gantry/cmd/gantry-agent"}},
	{"gantry/agent/workers", []string{"gantry/agent"}},
	{"gantry/agent/overlay", []string{"gantry/agent", "gantry/agent/metrics", "gantry/agent/orders", "gantry/agent/podnet", "gantry/agent/tunnels", "gantry/cmd/gantry-agent"}},
	{"gantry/agent/containerfs", []string{"gantry/agent", "gantry/agent/ctrd", "gantry/agent/tunnels", "gantry/cmd/gantry-agent"}},
	{"gantry/storage/disk/tree", []string{"gantry/storage/disk", "gantry/storage/provision", "gantry/agent/pod"}},
	{"gantry/storage/helper", []string{"gantry/storage/volume", "gantry/agent/storage", "gantry/cmd/gantry-agent"}},
	{"gantry/storage/provision", []string{"gantry/storage/volume", "gantry/agent/storage"}},
	{"gantry/storage/volume", []string{"gantry/agent", "gantry/agent/metrics", "gantry/agent/s3", "gantry/agent/storage", "gantry/agent/volumes", "gantry/cmd/gantry-agent"}},
	{"gantry/storage/s3", []string{"gantry/cmd/gantry-s3"}},
	{"gantry/storage/s3/broker", []string{"gantry/agent/s3", "gantry/cmd/gantry-s3"}},
	{"gantry/netctl/tunnel", []string{"gantry/agent", "gantry/agent/overlay", "gantry/cmd/gantry-agent", "gantry/cmd/gantry-net"}},
	{"gantry/netctl/dns", []string{"gantry/agent/overlay", "gantry/cmd/gantry-agent", "gantry/cmd/gantry-net"}},
	{"gantry/internal/userns", []string{"gantry/agent/podnet", "gantry/agent/ctrd", "gantry/netctl", "gantry/netctl/kernel", "gantry/cmd/gantry-agent"}},
	{"gantry/internal/outbound", []string{"gantry/agent/ctrd", "gantry/agent/models", "gantry/cmd/gantry-agent", "gantry/serverless/webhook"}},
	{"gantry/internal/faultpoint", []string{"gantry/agent/pod", "gantry/agent/ctrd", "gantry/agent/ledger", "gantry/agent/workers", "gantry/cmd/gantry-scheduler"}},
	{"gantry/scheduler/state/table", []string{"gantry/scheduler/state"}},
	{"gantry/api/console", []string{"gantry/cmd/gantry-scheduler"}},
	{"gantry/api/edge", []string{"gantry/cmd/gantry-scheduler"}},
	{"gantry/api/graphql", []string{"gantry/cmd/gantry-scheduler"}},
	{"github.com/graph-gophers", []string{"gantry/api/graphql"}},
	{"github.com/caddyserver", []string{"gantry/api/edge"}},
	{"github.com/mholt", []string{"gantry/api/edge"}},
	{"go.uber.org/zap", []string{"gantry/api/edge"}},
	{"github.com/prometheus", []string{"gantry/agent/metrics", "gantry/internal/scrape", "gantry/cmd/gantry-scheduler", "gantry/cmd/gantry-s3"}},
	{"github.com/NVIDIA", []string{"gantry/agent/gpu/nvml"}},
	{"tags.cncf.io", []string{"gantry/agent/gpu", "gantry/agent/gpu/nvml"}},
}

// pure names the files whose code reads no clock, draws no random value, does no network I/O and starts no goroutine.
var pure = []struct{ path, files string }{
	{"gantry/scheduler/state", "*.go"},
	{"gantry/scheduler/state/table", "*.go"},
	{"gantry/scheduler/place", "*.go"},
	{"gantry/scheduler/meter", "*.go"},
	{"gantry/serverless/queue", "*.go"},
	{"gantry/serverless/scale", "*.go"},
	{"gantry/agent/pod", "next*.go"},
}

var (
	impureImports = []string{"math/rand", "math/rand/v2", "crypto/rand", "net", "net/http", "os/exec"}
	impureCalls   = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}
)

func TestCorePackagesAreThere(t *testing.T) {
	all := load(t, "./...")
	for _, path := range core {
		if _, ok := all[path]; !ok {
			t.Errorf("package %s is not there: the import rules name it, so a rename must change them too", path)
		}
	}
}

func TestTechnologyStaysWithItsOwner(t *testing.T) {
	report(t, ownerFaults(load(t, "./..."), documented(t)))
}

func TestPartsStayWithTheirOwner(t *testing.T) {
	all := load(t, "./...")
	for _, home := range homes {
		if _, ok := all[home.what]; !ok && within(home.what, module) {
			t.Errorf("package %s is not there, and a rule names it", home.what)
		}
	}
	report(t, homeFaults(all))
}

func TestDependenciesRunOneWay(t *testing.T) {
	report(t, layerFaults(load(t, "./...")))
}

func TestNounsUseTheStandardLibraryOnly(t *testing.T) {
	report(t, standardOnlyFaults(load(t, "./fleet/...", "./storage"), "gantry/fleet", "gantry/storage"))
	report(t, standardOnlyFaults(load(t, "./api/v2", "./api/admin"), append([]string{"gantry/fleet"}, wireRecords...)...))
}

func TestPlainToolsUseTheStandardLibraryOnly(t *testing.T) {
	for _, tool := range plain {
		report(t, standardOnlyFaults(load(t, "./"+strings.TrimPrefix(tool, module+"/")), plain...))
	}
}

func TestPureCodeStaysPure(t *testing.T) {
	all := load(t, "./...")
	for _, p := range pure {
		files, err := filepath.Glob(filepath.Join(all[p.path].Dir, p.files))
		if err != nil {
			t.Fatal(err)
		}
		files = slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
		if len(files) == 0 {
			t.Errorf("%s has no file %s: the rule for pure code looks at nothing", p.path, p.files)
		}
		for _, name := range files {
			report(t, impurities(t, name, nil))
		}
	}
}

func TestOnlyTheGPUHelperNeedsCgo(t *testing.T) {
	report(t, cgoFaults(load(t, "./cmd/gantry", "./cmd/gantry-scheduler", "./cmd/gantry-agent", "./cmd/gantry-logger", "./cmd/gantry-net", "./cmd/gantry-s3")))
}

func report(t *testing.T, faults []string) {
	t.Helper()
	for _, fault := range faults {
		t.Error(fault)
	}
}

func layerFaults(g graph) []string {
	var faults []string
	for _, path := range g.own() {
		for _, rule := range layers {
			if !withinAny(path, rule.part) {
				continue
			}
			for _, dep := range g[path].Deps {
				shared := slices.Contains(plain, dep) || withinAny(path, userSide) && slices.Contains(wireRecords, dep)
				if withinAny(dep, rule.never) && !shared {
					faults = append(faults, fmt.Sprintf("%s must not reach %s: %s", path, dep, g.chain(path, dep)))
				}
			}
		}
	}
	return faults
}

func homeFaults(g graph) []string {
	var faults []string
	for _, path := range g.own() {
		if forTests(path) {
			continue
		}
		for _, imported := range g[path].Imports {
			what, by := homeOf(imported)
			if what != "" && !forTests(imported) && !within(path, what) && !slices.Contains(by, path) {
				faults = append(faults, fmt.Sprintf("%s imports %s: only %s may", path, imported, strings.Join(by, ", ")))
			}
		}
	}
	return faults
}

// homeOf returns the rule for an import that says most exactly which one it is for, and nothing if there is none.
func homeOf(imported string) (what string, by []string) {
	for _, home := range homes {
		if within(imported, home.what) && len(home.what) > len(what) {
			what, by = home.what, home.by
		}
	}
	return what, by
}

// standardOnlyFaults names what packages of nouns use beside the standard library and each other.
func standardOnlyFaults(g graph, nouns ...string) []string {
	var faults []string
	for path, p := range g {
		if !p.Standard && !slices.Contains(nouns, path) {
			faults = append(faults, fmt.Sprintf("%s uses %s: only the standard library is allowed", strings.Join(nouns, " or "), path))
		}
	}
	slices.Sort(faults)
	return faults
}

// cgoFaults leaves the standard library out: its cgo parts have a twin in Go that a build without cgo takes.
func cgoFaults(g graph) []string {
	var faults []string
	for path, p := range g {
		if !p.Standard && len(p.CgoFiles) > 0 {
			faults = append(faults, fmt.Sprintf("%s is in a binary that is built without cgo and uses it in %s", path, strings.Join(p.CgoFiles, ", ")))
		}
	}
	slices.Sort(faults)
	return faults
}

// impurities reads one file, from src if that is not nil, and names what pure code must not have.
func impurities(t *testing.T, name string, src any) []string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var faults []string
	fault := func(at token.Pos, what string) {
		faults = append(faults, fmt.Sprintf("%s: pure code must not %s", fset.Position(at), what))
	}
	clock := ""
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(impureImports, path) {
			fault(spec.Pos(), "import "+path)
		}
		if path == "time" {
			clock = "time"
			if spec.Name != nil {
				clock = spec.Name.Name
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			fault(n.Pos(), "start a goroutine")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && clock != "" && x.Name == clock && slices.Contains(impureCalls, n.Sel.Name) {
				fault(n.Pos(), "call time."+n.Sel.Name)
			}
		}
		return true
	})
	return faults
}
