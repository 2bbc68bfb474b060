// Package metricstable reads the table of docs/metrics.md and compares it with what a daemon registers. It is for tests.
package metricstable

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// Row is a metric as the table has it.
type Row struct {
	Name, Type string
	Labels     []string
	Line       string
}

var row = regexp.MustCompile("^\\| `(gantry_[a-z0-9_]+)` \\| (counter|gauge|histogram) \\| ([^|]*) \\| [^|]+ \\|$")

// Read returns all rows. Root is the repository's.
func Read(t testing.TB, root string) []Row {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	var out []Row
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		cells := row.FindStringSubmatch(line)
		if cells == nil {
			if strings.HasPrefix(line, "| `gantry_") && strings.Count(line, "|") == 5 {
				t.Errorf("docs/metrics.md: no row of the table: %s", line)
			}
			continue
		}
		r := Row{Name: cells[1], Type: cells[2], Line: line}
		for label := range strings.SplitSeq(cells[3], ",") {
			if label = strings.Trim(label, " `"); label != "" {
				r.Labels = append(r.Labels, label)
			}
		}
		out = append(out, r)
	}
	return out
}

// Root is the repository's, seen from the package whose tests run.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above this test")
		}
		dir = filepath.Dir(dir)
	}
}

// Check compares what a registry has with the rows whose names begin so, both ways, and asks Prometheus' linter about it.
func Check(t testing.TB, r prometheus.Gatherer, prefix string) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			if strings.HasPrefix(f.GetName(), "gantry_") {
				t.Errorf("%s does not begin with %s", f.GetName(), prefix)
			}
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		slices.Sort(labels)
		got = append(got, fmt.Sprintf("| `%s` | %s | %s | %s |", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp()))
	}
	for _, r := range Read(t, Root(t)) {
		if strings.HasPrefix(r.Name, prefix) {
			want = append(want, r.Line)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/metrics.md (-) and the daemon (+):\n%s", diff)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// Text returns the lines that a scrape of a registry shows.
func Text(t testing.TB, r prometheus.Gatherer) map[string]bool {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	out := map[string]bool{}
	for line := range strings.Lines(answer.Body.String()) {
		out[strings.TrimSpace(line)] = true
	}
	return out
}
