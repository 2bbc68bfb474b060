package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHelpInEveryForm(t *testing.T) {
	long, _ := gantry(t, setup{}, "pod", "list", "--help")
	for _, line := range []string{"help pod list", "pod list -h", "pods ls --help"} {
		if got, _ := gantry(t, setup{}, strings.Fields(line)...); got != long || got.Code != 0 {
			t.Errorf("gantry %s: %+v", line, got)
		}
	}
	if strings.Contains(long.Out, "--api=") || !strings.Contains(long.Out, "Flags of all commands") || !strings.Contains(long.Out, "--status") {
		t.Error(long.Out)
	}
	top, _ := gantry(t, setup{}, "help")
	for _, want := range []string{"--api=URL", "Pods, and what they use:\n  pod ", "For operators:\n  host ", "This program:\n  dev "} {
		if !strings.Contains(top.Out, want) {
			t.Errorf("no %q in\n%s", want, top.Out)
		}
	}
	if strings.Contains(top.Out, "__complete") || strings.Contains(top.Out, "(pods") {
		t.Error(top.Out)
	}
	flag, _ := gantry(t, setup{}, "--version")
	command, _ := gantry(t, setup{}, "version")
	if flag != command || !strings.HasPrefix(flag.Out, "gantry devel (go") {
		t.Errorf("%+v %+v", flag, command)
	}
}

func TestWordsOfOthers(t *testing.T) {
	for line, want := range map[string]string{
		"ps": "GET /v2/pods", "pods ls": "GET /v2/pods", "pod ps": "GET /v2/pods", "hosts ls": "GET /admin/v1/hosts", "node list": "GET /admin/v1/hosts",
		"pod describe " + podID: "GET /v2/pods/" + podID, "volumes list": "GET /v2/network-volumes", "keys ls": "GET /v2/account/keys",
		"rm " + podID: "GET /v2/pods/" + podID, "pod rm " + podID: "GET /v2/pods/" + podID, "secret rm A": "DELETE /v2/secrets/A",
		"run web img --cpu c": `POST /v2/pods {"image":"img","name":"web","cpu":{"id":"c","vcpuCount":2}}`, "stop " + podID: `POST /v2/pods/` + podID + `/action {"action":"stop"}`,
		"network list": "GET /v2/network", "accounts list": "GET /admin/v1/accounts",
	} {
		_, api := gantry(t, setup{api: world()}, strings.Fields(line)...)
		if len(api.seen) == 0 || api.seen[0] != want {
			t.Errorf("gantry %s: %q", line, api.seen)
		}
	}
}

func TestCompletion(t *testing.T) {
	api := map[string][]string{
		"GET /v2/pods":       {"200 " + `{"pods":[` + podJSON(nil) + "," + podJSON(map[string]any{"id": "a5f8k2m7q1w4z9", "name": ""}) + `]}`},
		"GET /v2/registries": {`200 {"registries":[{"id":"r3g8k2m7q1w4z9","name":"team"}]}`}, "GET /v2/secrets": {`200 {"secrets":[{"name":"HF_TOKEN"}]}`},
		"GET /admin/v1/hosts": {`200 {"hosts":[{"id":"h7d2k9s4f1g6j3","name":"gpu-01"}]}`},
	}
	for line, want := range map[string]string{
		"po":                          "pod",
		"pod l":                       "link list logs",
		"pods li":                     "link list",
		"pod list --st":               "--status",
		"pod list --output j":         "json jsonpath=",
		"pod list --output=y":         "--output=yaml",
		"pod get ":                    "a5f8k2m7q1w4z9 web",
		"pod stop web a":              "a5f8k2m7q1w4z9",
		"rm w":                        "web",
		"completion ":                 "bash fish zsh",
		"host token --cloud S":        "SECURE",
		"pod logs --source=c":         "--source=container",
		"pod get web ":                "",
		"pod list --name ":            "",
		"nothing ":                    "",
		"pod exec web -- l":           "",
		"host set-cloud h7d2k9s4f C":  "COMMUNITY",
		"account key x --preset read": "readOnly",
		"registry delete t":           "team",
		"secret delete H":             "HF_TOKEN",
		"net show ":                   "gpu-01",
	} {
		words := strings.Split(line, " ")
		got, _ := gantry(t, setup{api: api}, append([]string{"__complete", "--"}, words...)...)
		if strings.Join(strings.Fields(got.Out), " ") != want || got.Err != "" || (got.Code == 0) != (want != "") {
			t.Errorf("gantry %s: %+v, want %s", line, got, want)
		}
	}
}

// TestPackagedCompletion: the files of the package are what the command prints.
func TestPackagedCompletion(t *testing.T) {
	for shell, file := range map[string]string{"bash": "gantry.bash", "zsh": "_gantry", "fish": "gantry.fish"} {
		got, _ := gantry(t, setup{}, "completion", shell)
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "deb", "completion", file))
		if err != nil || got.Out != string(text) || got.Code != 0 {
			t.Errorf("%s: deploy/deb/completion/%s is not what gantry completion prints: %v", shell, file, err)
		}
	}
}

func TestLockedPodsAreNotDeletedByASlip(t *testing.T) {
	api := func(change map[string]any) map[string][]string {
		return map[string][]string{get(podID): {"200 " + podJSON(change)}, "DELETE /v2/pods/" + podID: {"204 "}}
	}
	got, fake := gantry(t, setup{api: api(map[string]any{"locked": true})}, "pod", "delete", podID)
	want := "gantry: pod web is locked: gantry pod update " + podID + " --no-locked unlocks it, --force deletes it without\n"
	if got.Code != exitRefused || got.Err != want || len(fake.seen) != 1 {
		t.Errorf("%+v %q", got, fake.seen)
	}
	for _, line := range []string{"pod delete --force " + podID, "pod delete -f " + podID} {
		if got, _ := gantry(t, setup{api: api(map[string]any{"locked": true})}, strings.Fields(line)...); got.Code != 0 || got.Out != "deleted "+podID+"\n" {
			t.Errorf("%+v", got)
		}
	}
}

func TestARestartIsSaid(t *testing.T) {
	const said = "This restarts pod web, which is RUNNING, and wipes its container disk.\n"
	for line, want := range map[string]string{
		"--disk 20": said, "--image i": said, "--env A=1": said, "--set-env A=1": said, "--port 80": said, "--args x": said,
		"--name b": "", "--locked": "", "--image i --yes": "",
	} {
		api := map[string][]string{get(podID): {"200 " + podJSON(map[string]any{"status": "RUNNING"})}, "PATCH /v2/pods/" + podID: {"200 " + podJSON(nil)}}
		got, _ := gantry(t, setup{api: api}, append([]string{"pod", "update", podID}, strings.Fields(line)...)...)
		if got.Code != 0 || got.Err != want {
			t.Errorf("%s: %+v", line, got)
		}
		api[get(podID)] = []string{"200 " + podJSON(map[string]any{"status": "EXITED"})}
		if got, _ = gantry(t, setup{api: api}, append([]string{"pod", "update", podID}, strings.Fields(line)...)...); got.Code != 0 || got.Err != "" {
			t.Errorf("%s, stopped: %+v", line, got)
		}
	}
}

func TestFailuresNameFlags(t *testing.T) {
	for failure, want := range map[string]string{
		"$.cpu.id: names nothing": "--cpu: names nothing", "$.ports[0]: must be": "--port[0]: must be", "$.env.A: must": "--env.A: must",
		"$.mounts.network[0].path: x": "--network-volume[0].path: x", "path.id: must be": "id: must be", "$.new: x": "$.new: x", "no path": "no path",
		"$: missing property 'name'": "$: missing property 'name'",
	} {
		if got := inFlags(failure); got != want {
			t.Errorf("%s: %s, want %s", failure, got, want)
		}
	}
}

const unknownType = `422 {"status":422,"detail":"Request validation failed.","code":"invalid","errors":["$.gpu.id: names a GPU type that is not in the catalog"]}`

func TestShortNamesOfGPUs(t *testing.T) {
	offers := `200 {"gpus":[
		{"id":"NVIDIA H100 80GB HBM3","name":"H100 SXM","availability":"NONE"},{"id":"NVIDIA H100 PCIe","name":"H100 PCIe","availability":"LOW"},
		{"id":"NVIDIA L40","name":"L40","availability":"HIGH"},{"id":"NVIDIA L40S","name":"L40S","availability":"HIGH"},
		{"id":"NVIDIA A100 80GB PCIe","name":"A100 PCIe","availability":"NONE"},{"id":"NVIDIA A100-SXM4-80GB","name":"A100 SXM","availability":"NONE"}]}`
	for text, want := range map[string]string{
		"H100": "NVIDIA H100 PCIe", "h100 sxm": "NVIDIA H100 80GB HBM3", "L40": "NVIDIA L40", "l40s": "NVIDIA L40S",
		"A100": `several GPU types have this in their names; did you mean "NVIDIA A100 80GB PCIe" or "NVIDIA A100-SXM4-80GB"?`, "L4OS": `did you mean "NVIDIA L40`, "TPU": "see gantry catalog gpus --free", "L400": `no GPU type has this name; did you mean "NVIDIA L40" or "NVIDIA L40S"?`,
	} {
		for _, dry := range []string{"--wait=false", "--dry-run"} {
			got, fake := gantry(t, setup{api: map[string][]string{
				"POST /v2/pods": {unknownType, "201 " + podJSON(nil)}, "GET /v2/catalog/gpus": {offers},
			}}, "pod", "create", "web", "img", "--gpu", text, dry)
			if strings.HasPrefix(want, "NVIDIA") {
				if got.Code != 0 || got.Err != "GPU type "+want+"\n" || !strings.Contains(fake.seen[2], `"gpu":{"id":"`+want+`"`) {
					t.Errorf("%s: %+v %q", text, got, fake.seen)
				}
			} else if got.Code != exitUsage || !strings.Contains(got.Err, want) || len(fake.seen) != 2 {
				t.Errorf("%s: %+v %q", text, got, fake.seen)
			}
		}
	}
	got, _ := gantry(t, setup{api: map[string][]string{"POST /v2/pods": {unknownType}}}, "pod", "create", "web", "img", "--gpu", "H100")
	if got.Code != exitUsage || !strings.Contains(got.Err, "  --gpu: names a GPU type that is not in the catalog\n") {
		t.Errorf("without a catalog: %+v", got)
	}
}

func TestPodsAreListedByShortNamesOfGPUs(t *testing.T) {
	const offers = `200 {"gpus":[{"id":"NVIDIA H100 80GB HBM3","name":"H100 SXM"},{"id":"NVIDIA H100 PCIe","name":"H100 PCIe"},{"id":"NVIDIA L40","name":"L40"},{"id":"NVIDIA L40S","name":"L40S"}]}`
	for text, want := range map[string]string{
		"h100": "gpuTypeId=NVIDIA+H100+80GB+HBM3&gpuTypeId=NVIDIA+H100+PCIe", "L40": "gpuTypeId=NVIDIA+L40", "nvidia l40s": "gpuTypeId=NVIDIA+L40S", "PCIe H100": "gpuTypeId=NVIDIA+H100+PCIe",
	} {
		got, fake := gantry(t, setup{api: map[string][]string{"GET /v2/pods": {`200 {"pods":[]}`}, "GET /v2/catalog/gpus": {offers}}}, "pod", "list", "--gpu", text)
		if got.Code != 0 || len(fake.seen) != 2 || !strings.HasSuffix(strings.TrimSpace(fake.seen[1]), want) {
			t.Errorf("%s: %+v %q", text, got, fake.seen)
		}
	}
	got, fake := gantry(t, setup{api: map[string][]string{"GET /v2/catalog/gpus": {offers}}}, "pod", "list", "--gpu", "TPU")
	if got.Code != exitUsage || !strings.Contains(got.Err, "no GPU type has this name") || len(fake.seen) != 1 {
		t.Errorf("%+v %q", got, fake.seen)
	}
}

func TestLogsSteerNoTerminal(t *testing.T) {
	const line = "\x1b[31mred\x1b[0m \x1b]0;title\x07\tx\x1b[2J\u009b5A"
	api := map[string][]string{get(podID + "/logs"): {`200 id: 1` + "\n" + `data: {"source":"container","line":"\u001b[31mred\u001b[0m \u001b]0;title\u0007\tx\u001b[2J\u009b5A"}` + "\n\n"}}
	for _, tt := range []struct {
		width int
		args  string
		want  string
	}{
		{0, "", line + "\n"},
		{80, "", "\x1b[31mred\x1b[0m �]0;title�\tx�[2J�5A\x1b[0m\n"},
		{80, " --raw", line + "\n"},
	} {
		got, _ := gantry(t, setup{api: api, screen: tt.width}, strings.Fields("pod logs "+podID+tt.args)...)
		if diff := cmp.Diff(tt.want, got.Out); diff != "" {
			t.Errorf("%d%s: %s", tt.width, tt.args, diff)
		}
	}
	if got, _ := gantry(t, setup{api: api}, "pod", "logs", podID, "-o", "yaml"); got.Code != exitUsage {
		t.Errorf("%+v", got)
	}
}

func TestKeysShowWhetherTheyWork(t *testing.T) {
	api := map[string][]string{"GET /v2/account/keys": {`200 {"keys":[
		{"id":"k1","name":"a","hint":"gk_1","permissions":{"pods":"write","account":"write"}},
		{"id":"k2","name":"b","hint":"gk_2","permissions":{"pods":"read","account":"none"},"expiresAt":"2026-10-01T12:01:30.000Z"},
		{"id":"k3","name":"c","hint":"gk_3","permissions":{"pods":"read","account":"read"},"disabled":true},
		{"id":"k4","name":"d","hint":"gk_4","permissions":{"pods":"write","account":"write","admin":"write"},"expiresAt":"2026-10-01T12:01:31.000Z"},
		{"id":"k5","name":"e","hint":"gk_5","permissions":{"pods":"none","account":"none","admin":"read"}}]}`}}
	got, _ := gantry(t, setup{api: api}, "key", "list", "-o", "wide")
	var rows []string
	for row := range strings.Lines(got.Out) {
		rows = append(rows, strings.Join(strings.Fields(row)[3:6], " "))
	}
	want := []string{"PERMISSIONS STATE CREATED", "all:write active -", "pods:read ended -", "all:read disabled -", "operator:write all:write active", "operator:read active -"}
	for i := range rows {
		if !strings.HasPrefix(rows[i], strings.TrimSuffix(want[i], " -")) {
			t.Errorf("%q, want %q", rows[i], want[i])
		}
	}
	if len(rows) != len(want) {
		t.Errorf("%+v", got)
	}
}

func TestVolumesThatGrow(t *testing.T) {
	growing := `{"id":"vol00000000001","name":"data","size":20,"provisioned":10,"status":"UPDATING","statusReason":"the host that prepares network volumes in this data center is not connected","dataCenter":"d","type":"STANDARD"}`
	path := "/v2/network-volumes/vol00000000001"
	got, _ := gantry(t, setup{api: map[string][]string{"PATCH " + path: {"200 " + growing}}}, "volume", "update", "vol00000000001", "--size", "20")
	if got.Code != 0 || !strings.Contains(got.Out, "UPDATING  10 of 20 GB") || !strings.Contains(got.Out, "Its storage has 10 of 20 GB so far") {
		t.Errorf("%+v", got)
	}
	done := strings.NewReplacer(`"UPDATING"`, `"READY"`, `"provisioned":10`, `"provisioned":20`).Replace(growing)
	got, fake := gantry(t, setup{api: map[string][]string{"PATCH " + path: {"200 " + growing}, "GET " + path: {"200 " + growing, "200 " + done}}},
		"volume", "update", "vol00000000001", "--size", "20", "--wait")
	if got.Code != 0 || !strings.Contains(got.Out, "READY   20 GB") || len(fake.seen) != 3 {
		t.Errorf("%+v", got)
	}
	got, _ = gantry(t, setup{api: map[string][]string{"GET " + path: {"200 " + growing}}}, "volume", "get", "vol00000000001")
	if !strings.HasPrefix(got.Out, "Id:           vol00000000001\nName:         data\nStatus:       UPDATING\nReason:       the host") {
		t.Errorf("%+v", got)
	}
}

func TestAccountsHaveNames(t *testing.T) {
	api := map[string][]string{"GET /admin/v1/accounts": {`200 {"accounts":[{"id":"a5f8k2m7q1w4z9","name":"acme"}]}`}, "GET /admin/v1/accounts/a5f8k2m7q1w4z9": {`200 {"id":"a5f8k2m7q1w4z9","name":"acme"}`}}
	got, _ := gantry(t, setup{api: api}, "account", "get", "acme", "-q")
	if got.Out != "a5f8k2m7q1w4z9\n" || got.Code != 0 {
		t.Errorf("%+v", got)
	}
}

func TestRefusalsNameWhatIsMissing(t *testing.T) {
	const denied = `403 {"status":403,"detail":"access denied","code":"forbidden","errors":["this key lacks admin:read: it is an account's, and this takes an operator's"]}`
	const hint = "  Operators' commands need an operator's key: set GANTRY_ADMIN_KEY, or choose a context that has one.\n"
	got, _ := gantry(t, setup{api: map[string][]string{"GET /admin/v1/hosts": {denied}}}, "host", "list")
	if got.Code != exitRefused || got.Err != "gantry: access denied\n  this key lacks admin:read: it is an account's, and this takes an operator's\n"+hint {
		t.Errorf("%+v", got)
	}
	got, _ = gantry(t, setup{api: map[string][]string{"GET /v2/pods": {denied}}}, "pod", "list")
	if got.Code != exitRefused || strings.Contains(got.Err, hint) {
		t.Errorf("%+v", got)
	}
	used := map[string][]string{"DELETE /v2/secrets/A": {`400 {"status":400,"detail":"the secret is in use: 1 pod has it","code":"in_use","errors":["pod k3n8w0zq5r7d2a (web)"]}`}}
	got, _ = gantry(t, setup{api: used}, "secret", "delete", "A")
	if got.Code != exitRefused || got.Err != "gantry: the secret is in use: 1 pod has it\n  pod k3n8w0zq5r7d2a (web)\n" {
		t.Errorf("%+v", got)
	}
}

func TestCatalogLists(t *testing.T) {
	api := map[string][]string{
		"GET /v2/catalog/gpus": {`200 {"gpus":[{"id":"NVIDIA B200","availability":"HIGH"},{"id":"NVIDIA L4","availability":"NONE"}]}`},
		"GET /v2/catalog/datacenters": {`200 {"dataCenters":[{"id":"d","name":"D","cpuAvailability":[{"id":"cpu3c","name":"Compute-Optimized","availability":"HIGH"},
			{"id":"cpu5c","name":"Compute-Optimized","availability":"HIGH"},{"id":"cpu3g","name":"General Purpose","availability":"LOW"}]}]}`},
	}
	if got, _ := gantry(t, setup{api: api}, "catalog", "gpus", "--free", "--no-headers"); !strings.HasPrefix(got.Out, "NVIDIA B200 ") || strings.Contains(got.Out, "L4") {
		t.Errorf("%+v", got)
	}
	if got, _ := gantry(t, setup{api: api}, "catalog", "datacenters"); !strings.HasSuffix(got.Out, "  Compute-Optimized, General Purpose\n") {
		t.Errorf("%+v", got)
	}
}

func TestMetricsOfThisMachine(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"scheduler.toml": "metrics = \"127.0.0.1:7000\"\nlisten = \":1\"\n", "agent.toml": "data-dir = \"/x\"\n", "s3.toml": "metrics = \"\"\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	plain := []scraped{{url: "http://127.0.0.1:7000/metrics"}, {url: "http://127.0.0.1:9412/metrics"}}
	if diff := cmp.Diff(plain, metricsOf(dir), cmp.AllowUnexported(scraped{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"gantry-scheduler", "gantry-agent", "gantry-s3"}, unitsOf(dir)); diff != "" {
		t.Error(diff)
	}
	if got := metricsOf(t.TempDir()); got != nil {
		t.Error(got)
	}
}
