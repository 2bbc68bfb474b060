// Package observe checks what deploy/ has for Prometheus and Grafana against Prometheus itself and the table of docs/metrics.md.
package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/test/metricstable"
)

// rule is what the tests read of an alert, line by line as alerts.yml is written.
type rule struct{ name, text, severity, after, runbook string }

var (
	alertLine = regexp.MustCompile(`(?m)^ +- alert: (\w+)$`)
	named     = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
	quoted    = regexp.MustCompile(`"[^"]*"`)
	braces    = regexp.MustCompile(`\{[^}]*\}`)
	ranges    = regexp.MustCompile(`\[[^\]]*\]`)
	grouping  = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)`)
	matcher   = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)`)
)

// words are those of expressions that are no metrics.
var words = []string{"and", "or", "unless", "bool", "sum", "max", "min", "avg", "count", "rate", "histogram_quantile", "time", "vector", "abs", "predict_linear"}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func rules(t *testing.T) []rule {
	t.Helper()
	text := read(t, "deploy/prometheus/alerts.yml")
	var out []rule
	at := alertLine.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		body := text[m[1]:end]
		field := func(pattern string) string {
			found := regexp.MustCompile(pattern).FindStringSubmatch(body)
			if found == nil {
				t.Fatalf("%s has no %s", text[m[2]:m[3]], pattern)
			}
			return found[1]
		}
		out = append(out, rule{
			name: text[m[2]:m[3]], text: field(`(?s)expr: (?:>-)?(.*?)\n +for:`), severity: field(`severity: (\w+)`), after: field(`for: (\w+)`),
			runbook: field(`runbook: (\S+)`),
		})
	}
	return out
}

// panels returns the expressions of the dashboard.
func panels(t *testing.T) []string {
	t.Helper()
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "deploy/grafana/gantry.json")), &board); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			out = append(out, strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
		}
	}
	if len(out) < 40 {
		t.Fatalf("the dashboard has %d expressions", len(out))
	}
	return out
}

func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "promtool", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestPrometheusTakesEveryExpression has Prometheus' own tool read configuration, alerts and the dashboard's expressions, and try each alert.
func TestPrometheusTakesEveryExpression(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	board := &strings.Builder{}
	board.WriteString("groups:\n- name: board\n  rules:\n")
	for i, expr := range panels(t) {
		fmt.Fprintf(board, "  - record: panel:%d\n    expr: %q\n", i, expr)
	}
	write("board.yml", board.String())
	for _, name := range []string{"scrape.yml", "central.yml", "alerts.yml"} {
		write(name, read(t, "deploy/prometheus/"+name))
	}
	write("alerts_test.yml", read(t, "test/observe/alerts_test.yml"))
	promtool(t, dir, "check", "config", "scrape.yml")
	promtool(t, dir, "check", "config", "--syntax-only", "central.yml") // its certificates are the installation's
	promtool(t, dir, "check", "rules", "alerts.yml", "board.yml")
	promtool(t, dir, "test", "rules", "alerts_test.yml")
}

// unknown names what an expression asks for that is not in the table: metrics, and labels of theirs.
func unknown(expr string, table map[string]metricstable.Row) (out []string) {
	for _, m := range regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}`).FindAllStringSubmatch(expr, -1) {
		for _, l := range matcher.FindAllStringSubmatch(quoted.ReplaceAllStringFunc(m[2], func(string) string { return `""` }), -1) {
			if !slices.Contains(table[m[1]].Labels, l[1]) && l[1] != "job" && l[1] != "instance" {
				out = append(out, m[1]+"{"+l[1]+"}")
			}
		}
	}
	bare := grouping.ReplaceAllString(ranges.ReplaceAllString(braces.ReplaceAllString(quoted.ReplaceAllString(expr, ""), ""), ""), "")
	for _, word := range named.FindAllString(bare, -1) {
		if _, ok := table[word]; !ok && !slices.Contains(words, word) {
			out = append(out, word)
		}
	}
	return out
}

// known is the table with the names that histograms have in Prometheus, and what is not Gantry's own.
func known(t *testing.T) map[string]metricstable.Row {
	t.Helper()
	out := map[string]metricstable.Row{"up": {}, "process_resident_memory_bytes": {}}
	for _, r := range metricstable.Read(t, metricstable.Root(t)) {
		if r.Type != "histogram" {
			out[r.Name] = r
			continue
		}
		for _, end := range []string{"_bucket", "_sum", "_count"} {
			out[r.Name+end] = r
		}
	}
	return out
}

func TestExpressionsNameMetricsThatAreThere(t *testing.T) {
	table := known(t)
	all := panels(t)
	for _, r := range rules(t) {
		all = append(all, r.text)
	}
	for _, expr := range all {
		for _, name := range unknown(expr, table) {
			t.Errorf("%s: no metric or label of docs/metrics.md is %s", expr, name)
		}
	}
	for expr, want := range map[string]string{
		"sum by (code) (rate(gantry_none_total[5m]))": "gantry_none_total", `gantry_host_conditions{kind="x"} == 2`: "gantry_host_conditions{kind}",
		`gantry_host_conditions{code=~"a=b"} == 2`: "", "rate(gantry_agent_pod_start_duration_seconds[5m])": "gantry_agent_pod_start_duration_seconds",
	} {
		if got := strings.Join(unknown(expr, table), " "); got != want {
			t.Errorf("%s: unknown are %q, want %q", expr, got, want)
		}
	}
}

// TestEachAlertHasARunbook: a line and a paragraph of docs/alerts.md, a case among the tests, and no other.
func TestEachAlertHasARunbook(t *testing.T) {
	page, tests := read(t, "docs/alerts.md"), read(t, "test/observe/alerts_test.yml")
	all := rules(t)
	for _, r := range all {
		anchor := strings.ToLower(r.name)
		if r.runbook != "docs/alerts.md#"+anchor {
			t.Errorf("%s has the runbook %s", r.name, r.runbook)
		}
		if !strings.Contains(page, fmt.Sprintf("| [%s](#%s) | %s | %s |\n", r.name, anchor, r.severity, r.after)) {
			t.Errorf("the table of docs/alerts.md has no %s, %s, %s", r.name, r.severity, r.after)
		}
		_, text, _ := strings.Cut(page, "\n## "+r.name+"\n\n")
		if text, _, _ = strings.Cut(text, "\n## "); len(text) < 100 {
			t.Errorf("docs/alerts.md says nothing of %s", r.name)
		}
		if silent := regexp.MustCompile(`\{eval_time: \w+, alertname: ` + r.name + `\}`); !silent.MatchString(tests) {
			t.Errorf("no test shows when %s does not fire", r.name)
		}
		if fires := regexp.MustCompile(`alertname: ` + r.name + `\n +exp_alerts`); !fires.MatchString(tests) {
			t.Errorf("no test shows that %s fires", r.name)
		}
	}
	if n := strings.Count(page, "\n## Gantry"); n != len(all) || len(all) < 15 {
		t.Errorf("%d alerts, %d paragraphs", len(all), n)
	}
}

// TestTheTableIsOfTheDaemons: each row belongs to a daemon, whose own test compares it with what it registers.
func TestTheTableIsOfTheDaemons(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range metricstable.Read(t, metricstable.Root(t)) {
		if seen[r.Name] {
			t.Errorf("%s is there twice", r.Name)
		}
		seen[r.Name] = true
	}
	if len(seen) < 80 {
		t.Errorf("the table has %d rows", len(seen))
	}
}
