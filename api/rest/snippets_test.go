package rest_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

var (
	operationOf = regexp.MustCompile(`(?s)<h3 id="op-([A-Za-z0-9]+)">(.*?)</article>`)
	snippetOf   = regexp.MustCompile(`(?s)<h4>(curl|Python|JavaScript)</h4><pre>(.*?)</pre>`)
)

// snippets reads the programs of the page of documentation, by operation and language.
func snippets(t *testing.T, page string) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	for _, op := range operationOf.FindAllStringSubmatch(page, -1) {
		out[op[1]] = map[string]string{}
		for _, m := range snippetOf.FindAllStringSubmatch(op[2], -1) {
			out[op[1]][m[1]] = html.UnescapeString(m[2])
		}
	}
	return out
}

// runSnippet runs a program in a folder of its own and returns what it printed.
func runSnippet(t *testing.T, language, code string, env map[string]string, files map[string][]byte) (stdout, stderr string, err error) {
	t.Helper()
	dir := t.TempDir()
	name, command := "run.sh", []string{"bash"}
	switch language {
	case "Python":
		name, command = "run.py", []string{"python3"}
	case "JavaScript":
		name, command = "run.mjs", []string{"node"}
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], name)...)
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "NO_PROXY=127.0.0.1", "PYTHONDONTWRITEBYTECODE=1"}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if saved, rerr := os.ReadFile(filepath.Join(dir, "answer.bin")); rerr == nil {
		out.Write(saved)
	}
	return out.String(), errs.String(), err
}

// tarOf makes an archive of one file.
func tarOf(t *testing.T, name, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// snippetCase is an operation whose programs are run.
type snippetCase struct {
	operation string
	env       map[string]string
	files     map[string][]byte
	want      string // in what it prints
}

// TestSnippetsOfTheDocsRun runs what the page of documentation shows, against a real server.
func TestSnippetsOfTheDocsRun(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	all := snippets(t, s.ask(t, "GET", "/docs", "", "").body)
	id := makePod(t, s.plane, fleet.EventRunning)
	s.plane.Log(id, "container", "hello from the log")
	s.plane.PutFile(id, "/etc/motd", "text of a file")
	pod := map[string]string{"ID": string(id)}
	for _, c := range []snippetCase{
		{operation: "listPods", want: string(id)},
		{operation: "getPod", env: pod, want: string(id)},
		{operation: "createPod", want: `"trainer"`},
		{operation: "getPodLogs", env: pod, want: "hello from the log"},
		{operation: "readPodFiles", env: map[string]string{"ID": string(id), "FILE_PATH": "/etc/motd"}, want: "text of a file"},
		{
			operation: "writePodFiles", env: map[string]string{"ID": string(id), "FILE_PATH": "/"},
			files: map[string][]byte{"files.tar": tarOf(t, "new", "of a snippet")},
		},
		{operation: "getGpuType", env: map[string]string{"ID": "NVIDIA H100 80GB HBM3"}, want: `"NVIDIA H100 80GB HBM3"`},
		{operation: "listHosts", want: string(plane.Host)},
		{operation: "updatePod", env: pod, want: string(id)},
		{operation: "getOpenApi", want: `"openapi"`},
	} {
		for _, language := range []string{"curl", "Python", "JavaScript"} {
			t.Run(c.operation+" "+language, func(t *testing.T) {
				code := all[c.operation][language]
				if code == "" {
					t.Fatal("there is no such snippet")
				}
				env := map[string]string{
					"GANTRY_API": s.base, "GANTRY_API_KEY": plane.KeyText(plane.User).Reveal(), "GANTRY_ADMIN_KEY": plane.KeyText(plane.Operator).Reveal(),
				}
				for name, value := range c.env {
					if language == "curl" { // which encodes nothing, as the page says
						value = strings.ReplaceAll(value, " ", "%20")
					}
					env[name] = value
				}
				out, errs, err := runSnippet(t, language, code, env, c.files)
				if err != nil || !strings.Contains(out, c.want) {
					t.Errorf("%v\n%s\n%s\nof\n%s", err, out, errs, code)
				}
				env["GANTRY_API_KEY"], env["GANTRY_ADMIN_KEY"] = "gk_wrong", "gk_wrong"
				if !strings.Contains(code, "Bearer") {
					return
				}
				out, errs, err = runSnippet(t, language, code, env, c.files)
				if err == nil || !strings.Contains(out+errs, "unauthorized") {
					t.Errorf("with a wrong key: %v\n%s\n%s", err, out, errs)
				}
			})
		}
	}
	if text, ok := s.plane.File(id, "/new"); !ok || text != "of a snippet" {
		t.Errorf("the file that was written: %q, %v", text, ok)
	}
}

// TestEverySnippetIsAProgram has the languages read the snippets of all operations.
func TestEverySnippetIsAProgram(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	all := snippets(t, s.ask(t, "GET", "/docs", "", "").body)
	if len(all) != len(listed(s.api)) {
		t.Errorf("%d operations, %d routes", len(all), len(listed(s.api)))
	}
	curl, programs := "", map[string]map[string]string{"Python": {}, "JavaScript": {}}
	for operation, of := range all {
		if operation == "execPod" {
			if len(of) > 0 {
				t.Error("a WebSocket has snippets that cannot work")
			}
			continue
		}
		if len(of) != 3 {
			t.Errorf("%s has %d snippets", operation, len(of))
		}
		curl += of["curl"] + "\n"
		programs["Python"][operation] = of["Python"]
		programs["JavaScript"][operation] = of["JavaScript"]
	}
	if out, err := exec.CommandContext(t.Context(), "bash", "-n", "-c", curl).CombinedOutput(); err != nil {
		t.Errorf("curl: %v\n%s", err, out)
	}
	for language, reader := range map[string][]string{
		"Python": {"python3", "-c", "import json, sys\nfor name, code in json.load(sys.stdin).items(): compile(code, name, 'exec')"},
		"JavaScript": {"node", "-e", `const read = Object.getPrototypeOf(async () => {}).constructor;
			for (const [name, code] of Object.entries(JSON.parse(require("fs").readFileSync(0)))) {
				try { new read(code.replace(/^import .*\n/, "")); } catch (e) { console.error(name, e); process.exitCode = 1; }
			}`},
	} {
		text, err := json.Marshal(programs[language])
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), reader[0], reader[1:]...)
		cmd.Stdin = bytes.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", language, err, out)
		}
	}
}
