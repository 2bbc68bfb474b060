package rules

import (
	"slices"
	"strings"
	"testing"
)

// made builds a graph from "path: import import ..." lines; what is not a line of its own is a package without imports.
func made(lines ...string) graph {
	g := graph{}
	for _, line := range lines {
		path, imports, _ := strings.Cut(line, ":")
		g[path] = pkg{ImportPath: path, Imports: strings.Fields(imports)}
	}
	for path := range g {
		p := g[path]
		for queue := slices.Clone(p.Imports); len(queue) > 0; queue = queue[1:] {
			if !slices.Contains(p.Deps, queue[0]) {
				p.Deps = append(p.Deps, queue[0])
				queue = append(queue, g[queue[0]].Imports...)
			}
		}
		g[path] = p
	}
	return g
}

// The rules themselves are tried on graphs that break them, since the tree, as a rule, does not.
func TestRulesFindWhatBreaksThem(t *testing.T) {
	owners := map[string]owner{
		"github.com/hashicorp/raft": {by: []string{"gantry/scheduler/replica"}},
		"golang.org/x/sys":          {anywhere: true},
		"pgregory.net/rapid":        {},
	}
	owned := func(g graph) []string { return ownerFaults(g, owners) }
	for _, c := range []struct {
		name  string
		check func(graph) []string
		graph graph
		want  []string
	}{
		{
			"raft outside its owner", owned,
			made("gantry/scheduler/replica: github.com/hashicorp/raft", "gantry/scheduler/state: github.com/hashicorp/raft"),
			[]string{"gantry/scheduler/state imports github.com/hashicorp/raft: only gantry/scheduler/replica may"},
		},
		{
			"test library in the product", owned,
			made("gantry/fleet: pgregory.net/rapid", "gantry/test/sim: pgregory.net/rapid"),
			[]string{"gantry/fleet imports pgregory.net/rapid: only test code may"},
		},
		{
			"test package in the product", owned,
			made("gantry/agent/ctrd/ctrdtest: testing pgregory.net/rapid", "gantry/agent: gantry/agent/ctrd/ctrdtest"),
			[]string{"gantry/agent imports gantry/agent/ctrd/ctrdtest: only test code may"},
		},
		{
			"similar name is another module", owned,
			made("gantry/scheduler/replica: github.com/hashicorp/raftx"),
			[]string{"gantry/scheduler/replica imports github.com/hashicorp/raftx: its module is not in docs/dependencies.md"},
		},
		{
			"below the owner, in the library, anywhere", owned,
			made("gantry/scheduler/replica/log: github.com/hashicorp/raft/x golang.org/x/sys/unix"), nil,
		},
		{
			"face reaches the scheduler through another", layerFaults,
			made("gantry/api/rest: gantry/glue", "gantry/glue: gantry/scheduler/state"),
			[]string{"gantry/api/rest must not reach gantry/scheduler/state: gantry/api/rest -> gantry/glue -> gantry/scheduler/state"},
		},
		{
			"scheduler and agent", layerFaults,
			made("gantry/scheduler/dispatch: gantry/agent/pod", "gantry/agent/ledger: gantry/fleet"),
			[]string{"gantry/scheduler/dispatch must not reach gantry/agent/pod: gantry/scheduler/dispatch -> gantry/agent/pod"},
		},
		{
			"low part reaches up", layerFaults,
			made("gantry/netctl: gantry/agent/pod"),
			[]string{"gantry/netctl must not reach gantry/agent/pod: gantry/netctl -> gantry/agent/pod"},
		},
		{
			"agent with its runtime", homeFaults,
			made("gantry/cmd/gantry-agent: gantry/agent/ctrd", "gantry/agent: gantry/agent/ctrd", "gantry/test/hostile: gantry/agent/ctrd"),
			[]string{"gantry/agent imports gantry/agent/ctrd: only gantry/cmd/gantry-agent may"},
		},
		{
			"the one further down decides", homeFaults,
			made("gantry/agent/s3: gantry/storage/s3/broker gantry/storage/s3", "gantry/cmd/gantry-s3: gantry/storage/s3 gantry/storage/s3/broker"),
			[]string{"gantry/agent/s3 imports gantry/storage/s3: only gantry/cmd/gantry-s3 may"},
		},
		{
			"what answers S3 requests mounts nothing", layerFaults,
			made("gantry/cmd/gantry-s3: gantry/glue", "gantry/glue: gantry/storage/volume"),
			[]string{"gantry/cmd/gantry-s3 must not reach gantry/storage/volume: gantry/cmd/gantry-s3 -> gantry/glue -> gantry/storage/volume"},
		},
		{
			"metrics below the agent", homeFaults,
			made("gantry/agent/metrics: github.com/prometheus/client_golang/prometheus", "gantry/agent/pod: github.com/prometheus/client_golang/prometheus"),
			[]string{"gantry/agent/pod imports github.com/prometheus/client_golang/prometheus: only gantry/agent/metrics, gantry/internal/scrape, gantry/cmd/gantry-scheduler, gantry/cmd/gantry-s3 may"},
		},
		{
			"disks reach up", layerFaults,
			made("gantry/storage/disk: gantry/agent/pod"),
			[]string{"gantry/storage/disk must not reach gantry/agent/pod: gantry/storage/disk -> gantry/agent/pod"},
		},
		{
			"disks use a plain tool and another", layerFaults,
			made("gantry/storage/disk: gantry/internal/atomicfile gantry/internal/pki"),
			[]string{"gantry/storage/disk must not reach gantry/internal/pki: gantry/storage/disk -> gantry/internal/pki"},
		},
		{
			"nouns with a library", func(g graph) []string { return standardOnlyFaults(g, "gantry/fleet", "gantry/storage") },
			graph{"gantry/fleet": {}, "gantry/storage": {}, "time": {Standard: true}, "golang.org/x/sync/errgroup": {}},
			[]string{"gantry/fleet or gantry/storage uses golang.org/x/sync/errgroup: only the standard library is allowed"},
		},
		{
			"cgo", cgoFaults,
			graph{"net": {Standard: true, CgoFiles: []string{"cgo_linux.go"}}, "x.org/y": {CgoFiles: []string{"y.go"}}},
			[]string{"x.org/y is in a binary that is built without cgo and uses it in y.go"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.check(c.graph); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestImpuritiesAreFound(t *testing.T) {
	const src = `package p

import (
	"math/rand/v2"
	clock "time"
)

func f(at clock.Time) { go f(clock.Now()); _ = at.After(at); _ = rand.Int() }
`
	want := []string{
		"p.go:4:2: pure code must not import math/rand/v2",
		"p.go:8:25: pure code must not start a goroutine",
		"p.go:8:30: pure code must not call time.Now",
	}
	if got := impurities(t, "p.go", src); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
