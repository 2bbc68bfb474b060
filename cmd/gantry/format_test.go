package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// laid is text for people as it is printed on a terminal of this width; 0 is none.
func laid(t *testing.T, text string, width int) string {
	t.Helper()
	var out bytes.Buffer
	a := &app{system: system{out: &out, screenWidth: func() int { return width }}, cli: &cli{Output: formatTable}}
	if err := a.page(text); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// threePods are those of a list: two that run and one that does not.
func threePods() map[string][]string {
	one := func(id, name, status, image string, cost float64) string {
		return podJSON(map[string]any{"id": id, "name": name, "status": status, "image": image, "cost": cost})
	}
	return map[string][]string{"GET /v2/pods": {`200 {"pods":[` + strings.Join([]string{
		one("k3n8w0zq5r7d2a", "web", "RUNNING", "docker.io/library/nginx:alpine", 9.5),
		one("a5f8k2m7q1w4z9", "train", "EXITED", "registry.example.com/team/a-model-with-a-long-name:2026-11-22", 21.52),
		one("c5f8k2m7q1w4z9", "box", "RUNNING", "busybox", 0.06),
	}, ",") + `]}`}}
}

func TestFormats(t *testing.T) {
	for args, want := range map[string]string{
		"pod list -q":                                        "k3n8w0zq5r7d2a\na5f8k2m7q1w4z9\nc5f8k2m7q1w4z9\n",
		"pod list -o name":                                   "k3n8w0zq5r7d2a\na5f8k2m7q1w4z9\nc5f8k2m7q1w4z9\n",
		"pods ls -o jsonpath={.pods[*].name}":                "web train box\n",
		"ps -o jsonpath=pods[0].id":                          "k3n8w0zq5r7d2a\n",
		"ps -o jsonpath=$.pods[?(@.status=='RUNNING')].name": "web box\n",
	} {
		got, _ := gantry(t, setup{api: threePods()}, strings.Fields(args)...)
		if got.Out != want || got.Code != 0 || got.Err != "" {
			t.Errorf("gantry %s: %+v", args, got)
		}
	}
	got, _ := gantry(t, setup{api: threePods()}, "pod", "list", "-o", `jsonpath={range .pods[*]}{.name} costs {.cost}{"\n"}{end}`)
	if got.Out != "web costs 9.5\ntrain costs 21.52\nbox costs 0.06\n" {
		t.Errorf("%+v", got)
	}
}

func TestNamesOfRecords(t *testing.T) {
	for raw, want := range map[string]string{
		`{"pods":[]}`: "", `{"id":"a","actions":["stop"]}`: "a\n", `{"key":{"id":"k"},"apiKey":"t"}`: "k\n",
		`{"keys":["ssh-ed25519 x"]}`: "ssh-ed25519 x\n", `{"id":"cluster","members":[{"id":"m1"},{"id":"m2"}]}`: "m1\nm2\n",
		`{"secrets":[{"name":"TOKEN"}]}`: "TOKEN\n", `{"id":"e","name":"n","cpu":[{"id":"cpu3c"}]}`: "e\n", `{"id":"j","status":"COMPLETED","output":[{"id":"x"}]}`: "j\n",
	} {
		if got, err := names(json.RawMessage(raw)); err != nil || got != want {
			t.Errorf("%s: %q, %v", raw, got, err)
		}
	}
	for _, raw := range []string{`[]`, `{"balance":3}`, `nonsense`, `{"a":`} {
		if got, err := names(json.RawMessage(raw)); err == nil {
			t.Errorf("%s: %q", raw, got)
		}
	}
}

func TestYAMLIsTheAnswer(t *testing.T) {
	const answer = `{"id":"a","text":"two\nlines","odd":"\u009b31m\u202e\ud83d\ude00","no":null,"n":1.50,"big":12345678901234567890,"yes":true,"list":[],"like":"yes","number":"007","in":[{"b":1,"a":2}]}`
	got, err := yamlText(json.RawMessage(answer))
	if err != nil {
		t.Fatal(err)
	}
	const want = `id: a
text: |-
  two
  lines
odd: "\x9B31m\U0000202e\U0001F600"
"no": null
"n": 1.50
big: 12345678901234567890
"yes": true
list: []
like: "yes"
number: "007"
in:
  - b: 1
    a: 2
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var back, same any
	if err := yaml.Unmarshal([]byte(got), &back); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(answer), &same); err != nil {
		t.Fatal(err)
	}
	if text, _ := back.(map[string]any)["odd"].(string); text != same.(map[string]any)["odd"] {
		t.Errorf("%q", text)
	}
}

func TestNoOutputSteersTheTerminal(t *testing.T) {
	api := map[string][]string{get(podID): {"200 " + podJSON(map[string]any{"name": "\u009b31mEVIL\u009d0;pwn\u009c\u202e"})}}
	for _, format := range []string{"table", "json", "yaml", "jsonpath={.name}"} {
		got, _ := gantry(t, setup{api: api}, "pod", "get", podID, "-o", format)
		if got.Code != 0 || !strings.Contains(got.Out, "EVIL") || strings.ContainsAny(got.Out, "\u009b\u009c\u009d\u202e\x1b") {
			t.Errorf("%s: %q", format, got.Out)
		}
		var record struct{ Name string }
		if format == "json" && (json.Unmarshal([]byte(got.Out), &record) != nil || record.Name != "\u009b31mEVIL\u009d0;pwn\u009c\u202e") {
			t.Errorf("not what the API said: %s", got.Out)
		}
	}
}

func TestTablesFitTheTerminal(t *testing.T) {
	heading, row := []string{"ID", "IMAGE", "~PORTS", "AGE"}, []string{"k3n8w0zq5r7d2a", "docker.io/library/nginx:alpine", "80/http", "1m30s"}
	for width, want := range map[int]string{
		0:  "ID              IMAGE                           PORTS    AGE\nk3n8w0zq5r7d2a  docker.io/library/nginx:alpine  80/http  1m30s\n",
		60: "ID              IMAGE                           AGE\nk3n8w0zq5r7d2a  docker.io/library/nginx:alpine  1m30s\n",
		40: "ID              IMAGE            AGE\nk3n8w0zq5r7d2a  docker.io/libra…  1m30s\n",
		10: "ID              IMAGE         AGE\nk3n8w0zq5r7d2a  docker.io/l…  1m30s\n",
	} {
		got := laid(t, table(append([]string(nil), heading...), [][]string{row}), width)
		if width == 40 {
			want = "ID              IMAGE              AGE\nk3n8w0zq5r7d2a  docker.io/librar…  1m30s\n"
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d columns: %s", width, diff)
		}
	}
}

func TestTablesAreSorted(t *testing.T) {
	for args, want := range map[string]string{
		"pod list --no-headers --sort-by cost/h -o wide":  "box web train",
		"pod list --no-headers --sort-by=-COST/H -o wide": "train web box",
		"pod list --no-headers --sort-by name -o wide":    "box train web",
		"pod list --no-headers --sort-by -name -o wide":   "web train box",
	} {
		got, _ := gantry(t, setup{api: threePods()}, strings.Fields(args)...)
		var names []string
		for line := range strings.Lines(got.Out) {
			names = append(names, strings.Fields(line)[1])
		}
		if strings.Join(names, " ") != want {
			t.Errorf("gantry %s:\n%s", args, got.Out)
		}
	}
	got, _ := gantry(t, setup{api: threePods()}, "pod", "list", "--sort-by", "beauty")
	if got.Code != exitUsage || !strings.Contains(got.Err, "--sort-by must be one of the columns ID, NAME, STATUS") {
		t.Errorf("%+v", got)
	}
}

func TestAmounts(t *testing.T) {
	for _, pair := range [][2]string{
		{"$0.060", "$21.520"},
		{"9 GB", "10 GB"},
		{"999 MB", "1.0 GB"},
		{"1m30s", "25h00m"},
		{"25h00m", "3d"},
		{"2/31 cores", "10/31 cores"},
		{"5", "-"},
		{"a", "b"},
		{"B", "a"},
	} {
		if compareCells(pair[0], pair[1]) >= 0 || compareCells(pair[1], pair[0]) <= 0 {
			t.Errorf("%s is not less than %s", pair[0], pair[1])
		}
	}
}

func TestRefusedFormats(t *testing.T) {
	for args, want := range map[string]string{
		"pod list -o xml":                 "-o must be table, wide, json, yaml, name or jsonpath=TEMPLATE",
		"pod list -q -o json":             "-q is -o name",
		"pod list -o json --sort-by name": "are for tables",
		"pod list -o name --no-headers":   "are for tables",
		"pod list -o jsonpath={.pods":     "a { is not closed",
		"pod list -o jsonpath={.a}{end}":  "{end} without {range}",
		"pod list -o jsonpath={.pods[}":   "-o jsonpath: .pods[",
		"pod stop web --watch":            "--watch goes with commands that list or show",
		"pod list --api x --context prod": "--api and --context exclude each other",
		"context add x":                   "say --api",
		"context add . --api 127.0.0.1":   "a name must be",
	} {
		got, _ := gantry(t, setup{api: threePods()}, strings.Fields(args)...)
		if got.Code != exitUsage || !strings.Contains(got.Err, want) {
			t.Errorf("gantry %s: %+v", args, got)
		}
	}
}

func TestWatchShowsChanges(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	list := func(name string) string { return `200 {"secrets":[{"name":"` + name + `"}]}` }
	answers := map[string][]string{"GET /v2/secrets": {
		list("A"), list("A"), `503 {"status":503,"detail":"no leader","code":"unavailable"}`, list("B"), `403 {"status":403,"detail":"access denied","code":"forbidden"}`,
	}}
	got, _ := gantry(t, setup{api: answers, ctx: ctx, every: time.Millisecond}, "secret", "list", "-w", "--no-headers")
	if got.Code != exitRefused || got.Out != "A\nB\n" || !strings.Contains(got.Err, "access denied") {
		t.Errorf("%+v", got)
	}
}
