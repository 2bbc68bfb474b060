package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCreateSendsWhatWasAsked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("# a comment\n\nA=1\r\nB = two words\nC=file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	api := map[string][]string{"POST /v2/pods": {"201 " + podJSON(nil)}}
	tests := []struct {
		name string
		args []string
		want string
	}{
		{
			"CPU",
			[]string{"--cpu", "cpu3c", "--port", "80", "--port", "22/tcp", "--", "sh", "-c", "echo 'a b'; exit", ""},
			`POST /v2/pods {"name":"web","image":"img","cpu":{"id":"cpu3c","vcpuCount":2},"args":"sh -c 'echo '\\''a b'\\''; exit' ''","ports":["80/http","22/tcp"]}`,
		},
		{
			"GPU",
			[]string{"--gpu", "NVIDIA B200", "--count", "8", "--disk", "50", "--data-center", "A", "--data-center", "B,C", "--cloud", "COMMUNITY", "--args", "x y"},
			`POST /v2/pods {"name":"web","image":"img","gpu":{"id":"NVIDIA B200","count":8},"args":"x y","disk":50,"cloud":"COMMUNITY","dataCenterIds":["A","B,C"]}`,
		},
		{
			"environment",
			[]string{"--cpu", "c", "--env-file", file, "--env", "C=a,b=c", "--env", "HERE"},
			`POST /v2/pods {"name":"web","image":"img","cpu":{"id":"c","vcpuCount":2},"env":{"A":"1","B":" two words","C":"a,b=c","HERE":"yes"}}`,
		},
		{
			"dry run",
			[]string{"--cpu", "c", "--dry-run"},
			`POST /v2/pods?dryRun=true {"name":"web","image":"img","cpu":{"id":"c","vcpuCount":2}}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, fake := gantry(t, setup{api: api, env: map[string]string{"HERE": "yes"}}, append([]string{"pod", "create", "web", "img"}, tt.args...)...)
			if got.Code != 0 {
				t.Fatal(got)
			}
			if diff := cmp.Diff(ordered([]string{tt.want}), ordered(fake.seen)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAnEnvFilesLineIsNotRepeated(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("A=1\nhunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, _ := gantry(t, setup{}, "pod", "create", "web", "img", "--cpu", "c", "--env-file", file)
	if got.Code != 2 || strings.Contains(got.Err, "hunter2") || !strings.Contains(got.Err, "line 2") {
		t.Error(got)
	}
}

func TestGetShowsWhereTheTimeWent(t *testing.T) {
	steps := map[string]string{
		"created": "2026-10-01T12:00:00.000Z", "received": "2026-10-01T12:00:00.002Z", "tasked": "2026-10-01T12:00:00.070Z",
		"started": "2026-10-01T12:00:00.071Z", "recorded": "2026-10-01T12:00:00.074Z",
	}
	api := map[string][]string{get(podID): {"200 " + podJSON(map[string]any{
		"status": "RUNNING", "steps": steps, "startedAt": "2026-10-01T12:00:00.071Z",
		"runtime": map[string]any{"uptime": 89, "cpu": map[string]any{"util": 3}, "memory": map[string]any{"util": 12}},
	})}}
	got, _ := gantry(t, setup{api: api}, "pod", "get", "-v", podID)
	want := result{Out: `Id:           k3n8w0zq5r7d2a
Name:         web
Status:       RUNNING
Image:        docker.io/library/nginx:alpine
Compute:      cpu3c 2 vCPU 4 GB
Disk:         10 GB
Ports:        80/http
Env:          TOKEN
Cloud:        SECURE
Data center:  dev-1
Host:         h7d2k9s4f1g6j3
Cost:         $0.060 per hour
Actions:      stop, terminate
Created:      2026-10-01 12:00:00.000 UTC
Started:      2026-10-01 12:00:00.071 UTC
Up:           1m29s
Use:          CPU 3 %, memory 12 %, disk 0 %

STEP      AT MS  TOOK MS  CLOCK
created     0.0        -  12:00:00.000
received    2.0      2.0  12:00:00.002
tasked     70.0     68.0  12:00:00.070
started    71.0      1.0  12:00:00.071
recorded   74.0      3.0  12:00:00.074
`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// comingUp are the answers of a pod that comes up: pulls, is not answered once, and ends in last.
func comingUp(last map[string]any) map[string][]string {
	pull := func(done int) string {
		return "200 " + podJSON(map[string]any{"progress": map[string]any{"activity": "pulling image", "pullDone": done, "pullTotal": 45_000_000}})
	}
	return map[string][]string{
		"POST /v2/pods": {"201 " + podJSON(nil)},
		get(podID): {
			"200 " + podJSON(nil), pull(1_000_000), pull(2_000_000), pull(44_000_000), `503 {"status":503,"detail":"no leader"}`,
			"200 " + podJSON(map[string]any{"status": "STARTING"}), "200 " + podJSON(last),
		},
	}
}

func TestWaitShowsALineForEachChange(t *testing.T) {
	got, _ := gantry(t, setup{api: comingUp(map[string]any{"status": "RUNNING"})}, "pod", "create", "web", "img", "--cpu", "c", "--wait", "-o", "json")
	want := `created k3n8w0zq5r7d2a
web  PROVISIONING  0.0 s
web  PROVISIONING  pulling image  1.0 MB of 45.0 MB  0.0 s
web  PROVISIONING  pulling image  44.0 MB of 45.0 MB  0.0 s
web  PROVISIONING  the API does not answer at the moment  0.0 s
web  STARTING  0.0 s
web  RUNNING  0.0 s
`
	if got.Code != 0 || got.Err != want || !strings.Contains(got.Out, `"status": "RUNNING"`) {
		t.Errorf("%d\n%s\n%s", got.Code, got.Out, cmp.Diff(want, got.Err))
	}
}

func TestWaitKeepsOneLineOnATerminal(t *testing.T) {
	got, _ := gantry(t, setup{api: comingUp(map[string]any{"status": "RUNNING"}), terminal: true}, "pod", "create", "web", "img", "--cpu", "c", "--wait")
	const one = "\r\x1b[Kweb  PROVISIONING  pulling image  1.0 MB of 45.0 MB  0.0 s"
	if got.Code != 0 || !strings.Contains(got.Err, one) || strings.Count(got.Err, "\n") != 1 || !strings.HasSuffix(got.Err, "\r\x1b[K") {
		t.Errorf("%+v", got)
	}
	for line := range strings.SplitSeq(got.Err, "\r\x1b[K") {
		if len([]rune(line)) >= 60 {
			t.Errorf("the line %q would wrap", line)
		}
	}
}

func TestWaitSaysWhyAPodFailed(t *testing.T) {
	api := comingUp(map[string]any{
		"status": "ERROR", "statusReason": "the container ended with exit code 3", "exitCode": 3, "logTail": "starting\nno such \x1b[1mfile\n",
	})
	got, _ := gantry(t, setup{api: api, terminal: true}, "pod", "create", "web", "img", "--cpu", "c", "--wait")
	want := `gantry: pod k3n8w0zq5r7d2a is ERROR: the container ended with exit code 3
Last lines of its log:
  starting
  no such �[1mfile
`
	if _, after, _ := strings.Cut(got.Err, "gantry: "); got.Code != 1 || "gantry: "+after != want || got.Out != "" {
		t.Errorf("%d\n%s", got.Code, cmp.Diff(want, got.Err))
	}
}

func TestWaitEnds(t *testing.T) {
	api := func() map[string][]string {
		return map[string][]string{"POST /v2/pods": {"201 " + podJSON(nil)}, get(podID): {"200 " + podJSON(nil)}}
	}
	got, _ := gantry(t, setup{api: api()}, "pod", "create", "web", "img", "--cpu", "c", "--wait", "--timeout", "100ms")
	if got.Code != 7 || !strings.Contains(got.Err, "gave up waiting for pod k3n8w0zq5r7d2a after 100ms") {
		t.Errorf("%+v", got)
	}
	asked, interrupt := context.WithCancel(context.Background())
	timer := time.AfterFunc(100*time.Millisecond, interrupt)
	defer timer.Stop()
	got, _ = gantry(t, setup{api: api(), ctx: asked}, "pod", "create", "web", "img", "--cpu", "c", "--wait")
	if got.Code != 130 || strings.Contains(got.Err, "gantry:") {
		t.Errorf("%+v", got)
	}
}

func TestRestartWaitsForTheNewIncarnation(t *testing.T) {
	api := map[string][]string{
		"POST /v2/pods/" + podID + "/action": {"200 " + podJSON(map[string]any{"status": "STARTING", "incarnation": 2})},
		get(podID): {
			"200 " + podJSON(map[string]any{"status": "STARTING", "incarnation": 2}),
			"200 " + podJSON(map[string]any{"status": "RUNNING", "incarnation": 2}),
		},
	}
	got, fake := gantry(t, setup{api: api}, "pod", "restart", podID, "--wait")
	if got.Code != 0 || len(fake.seen) != 3 || fake.seen[0] != "POST /v2/pods/"+podID+`/action {"action":"restart"}` {
		t.Errorf("%+v %q", got, fake.seen)
	}
}

func TestStartWaitsForAStopThatIsUnderWay(t *testing.T) {
	stopping := "200 " + podJSON(map[string]any{"status": "RUNNING", "statusReason": "stopping"})
	action := "POST /v2/pods/" + podID + "/action"
	refused := `409 {"status":409,"detail":"the action is not allowed while the pod is stopping","code":"not_allowed"}`
	got, _ := gantry(t, setup{api: map[string][]string{
		action:     {refused, "200 " + podJSON(nil)},
		get(podID): {stopping, stopping, "200 " + podJSON(map[string]any{"status": "EXITED"})},
	}}, "pod", "start", podID)
	if got.Code != exitOK || !strings.HasPrefix(got.Err, "pod "+podID+" is being stopped; it is started when that is done\n") || !strings.Contains(got.Out, "PROVISIONING") {
		t.Errorf("%+v", got)
	}
	got, _ = gantry(t, setup{api: map[string][]string{action: {refused}, get(podID): {stopping}}}, "pod", "start", podID, "--timeout", "100ms")
	if got.Code != exitTimeout || !strings.Contains(got.Err, "gave up waiting for pod "+podID+" after 100ms") {
		t.Errorf("%+v", got)
	}
	// It ended between the two.
	got, _ = gantry(t, setup{api: map[string][]string{
		action: {refused, "200 " + podJSON(nil)}, get(podID): {"200 " + podJSON(map[string]any{"status": "EXITED"})},
	}}, "pod", "start", podID)
	if got.Code != exitOK || got.Err != "" {
		t.Errorf("%+v", got)
	}
	// Any other refusal stays one.
	got, _ = gantry(t, setup{api: map[string][]string{action: {refused}, get(podID): {"200 " + podJSON(map[string]any{"status": "RUNNING"})}}}, "pod", "start", podID)
	if got.Code != exitRefused {
		t.Errorf("%+v", got)
	}
}

func TestTheListSaysWhy(t *testing.T) {
	list := func(pods ...string) map[string][]string {
		return map[string][]string{"GET /v2/pods": {`200 {"pods":[` + strings.Join(pods, ",") + `]}`}}
	}
	condition := map[string]any{"text": "the pod's host is being drained", "reason": "new fans", "since": "2026-10-01T12:00:00.000Z", "stopsAt": "2026-10-02T12:00:00.000Z"}
	drained := podJSON(map[string]any{"status": "RUNNING", "condition": condition, "movable": true})
	got, _ := gantry(t, setup{api: list(podJSON(nil), drained, podJSON(map[string]any{"status": "ERROR", "statusReason": "no such image"}))}, "pod", "list")
	for _, want := range []string{"AGE    REASON\n", "  -\n", "  the pod's host is being drained\n", "  no such image\n"} {
		if !strings.Contains(got.Out, want) {
			t.Errorf("%q is not in %s", want, got.Out)
		}
	}
	if got, _ = gantry(t, setup{api: list(podJSON(nil))}, "pod", "list"); strings.Contains(got.Out, "REASON") {
		t.Errorf("a column without a word: %s", got.Out)
	}
	got, _ = gantry(t, setup{api: map[string][]string{get(podID): {"200 " + drained}}}, "pod", "get", podID)
	for _, want := range []string{
		"the pod's host is being drained; it is stopped at 2026-10-02 12:00:00.000 UTC if it still runs there (new fans), since 2026-10-01 12:00:00.000 UTC\n",
		"yes: a drain of its host moves it\n",
	} {
		if !strings.Contains(got.Out, want) {
			t.Errorf("%q is not in %s", want, got.Out)
		}
	}
}

func TestAddressesComeFromTheAPI(t *testing.T) {
	ports := []map[string]any{{"private": 80, "type": "http", "url": "https://k3n8w0zq5r7d2a-80.proxy.example.com/"}, {"private": 81, "type": "http", "url": nil}}
	running := podJSON(map[string]any{"status": "RUNNING", "runtime": map[string]any{"ports": ports}})
	api := map[string][]string{get(podID): {"200 " + running}, "POST /v2/pods": {"201 " + running}}
	for _, args := range [][]string{{"pod", "get", podID}, {"pod", "create", "web", "img", "--cpu", "c", "--wait"}} {
		if got, _ := gantry(t, setup{api: api}, args...); strings.Count(got.Out, "https://k3n8w0zq5r7d2a-80.proxy.example.com/\n") != 1 || strings.Contains(got.Out, "-81") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestAddressesAreKnownBeforeThePodRuns(t *testing.T) {
	made := podJSON(map[string]any{"status": "PROVISIONING", "runtime": nil, "urls": []string{"https://k3n8w0zq5r7d2a-80.proxy.example.com/"}})
	api := map[string][]string{"POST /v2/pods": {"201 " + made}}
	got, _ := gantry(t, setup{api: api}, "pod", "create", "web", "img", "--cpu", "c")
	if strings.Count(got.Out, "https://k3n8w0zq5r7d2a-80.proxy.example.com/ (once it runs)\n") != 1 {
		t.Errorf("%+v", got)
	}
}

func TestDeleteWaitsUntilItIsGone(t *testing.T) {
	api := map[string][]string{
		"DELETE /v2/pods/" + podID: {"204 "},
		get(podID): {
			"200 " + podJSON(map[string]any{"status": "RUNNING", "statusReason": "stopping"}),
			"200 " + podJSON(map[string]any{"status": "TERMINATED"}),
		},
	}
	got, _ := gantry(t, setup{api: api}, "pod", "delete", podID, "--wait")
	if got.Code != 0 || got.Out != "deleted "+podID+"\n" {
		t.Errorf("%+v", got)
	}
}

func TestKeysGoOnlyWhereTheyBelong(t *testing.T) {
	dir := t.TempDir()
	keyFile, keysFile := filepath.Join(dir, "key"), filepath.Join(dir, "keys.json")
	for name, text := range map[string]string{
		keyFile:  "gk_file\n",
		keysFile: `{"clusterId": "c", "adminKey": "gk_admin", "accountId": "a", "apiKey": "gk_first"}` + "\n", // as init writes it
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name, args, dev string // dev: api of the last dev.json
		env             map[string]string
		want            string
	}{
		{"environment", "pod list", "$SERVER", nil, "gk_user"},
		{"file beats environment", "pod list --api-key-file " + keyFile, "", nil, "gk_file"},
		{"keys of init", "pod list --api-key-file " + keysFile, "", nil, "gk_first"},
		{"keys of init, for operators", "host list --api-key-file " + keysFile, "", nil, "gk_admin"},
		{"one key, for operators", "host list --api-key-file " + keyFile, "", nil, "gk_file"},
		{"last dev", "pod list", "$SERVER", map[string]string{"GANTRY_API": "", "GANTRY_API_KEY": ""}, "gk_devuser"},
		{"last dev, for operators", "host list", "$SERVER", map[string]string{"GANTRY_API": "", "GANTRY_API_KEY": ""}, "gk_devadmin"},
		{"dev's address with a user's key, for operators", "host list", "$SERVER", nil, "gk_devadmin"},
		{"another address gets no key of dev", "pod list", "http://127.0.0.1:1", map[string]string{"GANTRY_API_KEY": ""}, ""},
		{"operator's own key", "host list", "$SERVER", map[string]string{"GANTRY_ADMIN_KEY": "gk_boss"}, "gk_boss"},
		{"operator with one key", "host list", "", nil, "gk_user"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			api := map[string][]string{"GET /v2/pods": {`200 {"pods":[]}`}, "GET /admin/v1/hosts": {`200 {"hosts":[]}`}}
			state, fake := t.TempDir(), &fakeAPI{answers: api}
			srv := httptest.NewServer(fake)
			defer srv.Close()
			if tt.dev != "" {
				writeDev(t, state, strings.ReplaceAll(tt.dev, "$SERVER", srv.URL))
			}
			env := map[string]string{"GANTRY_API": srv.URL, "GANTRY_API_KEY": "gk_user", "XDG_STATE_HOME": state}
			for name, value := range tt.env {
				env[name] = value
			}
			var out, err bytes.Buffer
			code := run(context.Background(), strings.Fields(tt.args), system{
				in: strings.NewReader(""), out: &out, err: &err, now: time.Now, width: func() int { return 80 },
				env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
			})
			if tt.want == "" {
				if code != exitRefused || len(fake.keys) > 0 {
					t.Errorf("%d, sent %q\n%s", code, fake.keys, err.String())
				}
				return
			}
			if diff := cmp.Diff([]string{tt.want}, fake.keys); diff != "" {
				t.Errorf("%s\n%s", diff, err.String())
			}
		})
	}
}

func TestKeyFilesThatHoldNoKey(t *testing.T) {
	for text, args := range map[string]string{
		"":                      "pod list",
		"gk_one\ngk_two\n":      "pod list",
		`{"apiKey": "gk_cut`:    "pod list",
		`{"apiKey": "gk_first"`: "pod list",
		`{"apiKey": "gk_user"}`: "host list",
		`{"adminKey": "gk_admin", "apiKey": " "}`: "pod list",
	} {
		path := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, fake := gantry(t, setup{}, append(strings.Fields(args), "--api-key-file", path)...)
		if got.Code != exitUsage || len(fake.keys) > 0 || !strings.Contains(got.Err, path) || strings.Contains(got.Err, "gk_") {
			t.Errorf("%q: %+v, sent %q", text, got, fake.keys)
		}
	}
}

func writeDev(t *testing.T, state, api string) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		filepath.Join(state, "gantry", "dev"): dir + "\n",
		filepath.Join(dir, "dev.json"):        fmt.Sprintf(`{"api":%q,"apiKey":"gk_devuser","adminKey":"gk_devadmin","proxyDomain":"proxy.localhost"}`, api),
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHelpTeachesByExample(t *testing.T) {
	got, _ := gantry(t, setup{}, "--help")
	for _, want := range []string{"Exit status:", "Examples:", "GANTRY_API_KEY", "gantry pod create"} {
		if got.Code != 0 || !strings.Contains(got.Out, want) {
			t.Errorf("%d: no %q in\n%s", got.Code, want, got.Out)
		}
	}
	for _, command := range commands(t) {
		got, _ := gantry(t, setup{}, append(strings.Fields(command), "--help")...)
		if got.Code != 0 || !strings.Contains(got.Out, "Example") || !strings.Contains(got.Out, "gantry "+command) {
			t.Errorf("%s: %d\n%s", command, got.Code, got.Out)
		}
	}
}

// commands lists every command that does something.
func commands(t *testing.T) []string {
	t.Helper()
	parser, err := newParser(&app{cli: &cli{}})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	hideAliases(parser.Model.Node)
	for _, leaf := range parser.Model.Leaves(true) {
		out = append(out, commandWords(strings.TrimPrefix(leaf.FullPath(), "gantry ")))
	}
	if len(out) < 50 {
		t.Fatalf("only %d commands: %q", len(out), out)
	}
	return out
}

func TestThePageListsEveryCommand(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, command := range commands(t) {
		known[command] = true
		if !strings.Contains(string(page), "`gantry "+command) {
			t.Errorf("docs/cli.md does not tell of gantry %s", command)
		}
	}
	for _, part := range strings.Split(string(page), "| `gantry ")[1:] {
		words, _, _ := strings.Cut(part, "`")
		for len(words) > 0 && !known[words] {
			words = words[:max(0, strings.LastIndexByte(words, ' '))]
		}
		if words == "" {
			t.Errorf("docs/cli.md tells of a command that is not there: gantry %.40s", part)
		}
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 45_678_901: "45.7 MB", 2_000_000_000_000_000: "2000.0 TB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 10, 10, 0, 0, 0, 0, time.UTC)
	for ago, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 25 * time.Hour: "25h00m", 49 * time.Hour: "2d",
	} {
		if got := age(now, now.Add(-ago)); got != want {
			t.Errorf("%v: %s, want %s", ago, got, want)
		}
	}
}
