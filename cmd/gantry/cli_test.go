package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommandLines(t *testing.T) {
	running := map[string]any{"status": "RUNNING", "actions": []string{"stop", "restart", "terminate"}}
	list := "200 " + `{"pods":[` + podJSON(running) + "," + podJSON(map[string]any{
		"id": "a5f8k2m7q1w4z9", "name": "train\x1b[31m", "status": "RUNNING", "statusReason": "stopping", "cpu": nil,
		"gpu": map[string]any{"id": "NVIDIA H100 80GB HBM3", "count": 8}, "ports": []string{}, "cost": 21.52,
	}) + "]}"
	tests := []struct {
		name string
		args string
		api  map[string][]string
		env  map[string]string
		want result
	}{
		{
			name: "a table is aligned and steers no terminal", args: "pod list", api: map[string][]string{"GET /v2/pods": {list}},
			want: result{Out: `ID              NAME        STATUS              COMPUTE                    IMAGE                           PORTS    CENTER  COST/H   AGE
k3n8w0zq5r7d2a  web         RUNNING             cpu3c 2 vCPU 4 GB          docker.io/library/nginx:alpine  80/http  dev-1   $0.060   1m30s
a5f8k2m7q1w4z9  train�[31m  RUNNING (stopping)  8 × NVIDIA H100 80GB HBM3  docker.io/library/nginx:alpine  -        dev-1   $21.520  1m30s
`},
		},
		{
			name: "an empty table has its heading", args: "account list",
			api: map[string][]string{"GET /admin/v1/accounts": {`200 {"accounts":[]}`}}, want: result{Out: "ID  NAME  BALANCE  SPENDS/H  PREPAID  SUSPENDED  CREATED\n"},
		},
		{
			name: "json is what the API said", args: "pod list -o json",
			api:  map[string][]string{"GET /v2/pods": {`200 {"pods":[],"new":{"b":1.50,"a":"<&>"}}`}},
			want: result{Out: "{\n  \"pods\": [],\n  \"new\": {\n    \"b\": 1.50,\n    \"a\": \"<&>\"\n  }\n}\n"},
		},
		{
			name: "a name finds its pod", args: "pod stop web",
			api: map[string][]string{
				"GET /v2/pods": {list},
				"POST /v2/pods/" + podID + "/action": {"200 " + podJSON(map[string]any{
					"status": "RUNNING", "statusReason": "stopping",
				})},
			},
			want: result{Out: `ID              NAME  STATUS              COMPUTE            IMAGE                           PORTS    CENTER  COST/H  AGE
k3n8w0zq5r7d2a  web   RUNNING (stopping)  cpu3c 2 vCPU 4 GB  docker.io/library/nginx:alpine  80/http  dev-1   $0.060  1m30s
`},
		},
		{
			name: "an unknown name", args: "pod get nobody", api: map[string][]string{"GET /v2/pods": {list}},
			want: result{Code: 3, Err: "gantry: no pod has the id or name nobody\n"},
		},
		{
			name: "an unknown id", args: "pod get zzzzzzzzzzzzzz", api: map[string][]string{"GET /v2/pods": {list}},
			want: result{Code: 3, Err: "gantry: no pod has the id or name zzzzzzzzzzzzzz\n"},
		},
		{
			name: "delete", args: "pod delete " + podID, api: map[string][]string{get(podID): {"200 " + podJSON(nil)}, "DELETE /v2/pods/" + podID: {"204 "}},
			want: result{Out: "deleted " + podID + "\n"},
		},
		{
			name: "one of two fails", args: "key delete m2c9v4x7b1n5q8 m2c9v4x7b1n5q9",
			api:  map[string][]string{"DELETE /v2/account/keys/m2c9v4x7b1n5q9": {"204 "}},
			want: result{Code: 3, Out: "deleted m2c9v4x7b1n5q9\n", Err: "gantry: no API key has the id m2c9v4x7b1n5q8\n"},
		},
		{
			name: "no room", args: "pod create web img --gpu B200",
			api: map[string][]string{"POST /v2/pods": {`400 {"title":"Bad Request","status":400,"detail":"There are no longer any instances available.","code":"no_capacity","excluded":[{"reason":"GPU type","hosts":3},{"reason":"draining","hosts":1}]}`}},
			want: result{Code: 6, Err: `gantry: There are no longer any instances available.
  3 hosts: GPU type
  1 host: draining
`},
		},
		{
			name: "a refused value", args: "pod create web img --cpu cpu3c --vcpu 3",
			api: map[string][]string{"POST /v2/pods": {`422 {"title":"Unprocessable Entity","status":422,"detail":"Request validation failed.","code":"invalid","errors":["$.cpu.vcpuCount: must be a power of two"]}`}},
			want: result{Code: 2, Err: `gantry: Request validation failed.
  --vcpu: must be a power of two
`},
		},
		{
			name: "a wrong key", args: "catalog gpus",
			api:  map[string][]string{"GET /v2/catalog/gpus": {`401 {"status":401,"detail":"missing bearer token","code":"unauthorized"}`}},
			want: result{Code: 4, Err: "gantry: missing bearer token\n"},
		},
		{
			name: "not allowed now", args: "pod start " + podID,
			api:  map[string][]string{"POST /v2/pods/" + podID + "/action": {`409 {"status":409,"detail":"start is not allowed while the pod is RUNNING","code":"not_allowed"}`}},
			want: result{Code: 4, Err: "gantry: start is not allowed while the pod is RUNNING\n"},
		},
		{
			name: "no leader", args: "pod list",
			api:  map[string][]string{"GET /v2/pods": {`503 {"status":503,"detail":"The request could not be decided.","code":"unavailable","requestId":"r9"}`}},
			want: result{Code: 5, Err: "gantry: The request could not be decided.\n  request r9\n"},
		},
		{
			name: "a fault of the API", args: "pod list",
			api:  map[string][]string{"GET /v2/pods": {`500 {"status":500,"detail":"internal error","code":"internal","requestId":"r9"}`}},
			want: result{Code: 1, Err: "gantry: internal error\n  request r9\n"},
		},
		{
			name: "a log", args: "pod logs " + podID,
			api: map[string][]string{
				get(podID + "/logs"): {"200 id: 1\ndata: {\"source\":\"system\",\"line\":\"start container\",\"ts\":\"2026-10-01T12:00:00.000Z\"}\n\n" +
					"id: 2\ndata: {\"source\":\"container\",\"line\":\"ready\",\"ts\":\"2026-10-01T12:00:01.500Z\"}\n\n"},
			},
			want: result{Out: "[system] start container\nready\n"},
		},
		{
			name: "a log with times", args: "pod logs -t " + podID,
			api:  map[string][]string{get(podID + "/logs"): {"200 id: 2\ndata: {\"source\":\"container\",\"line\":\"ready\",\"ts\":\"2026-10-01T12:00:01.500Z\"}\n\n"}},
			want: result{Out: "2026-10-01T12:00:01.500Z ready\n"},
		},
		{
			name: "a log as json", args: "pod logs -o json " + podID,
			api:  map[string][]string{get(podID + "/logs"): {"200 id: 2\ndata: {\"source\":\"container\",\"line\":\"ready\"}\n\n"}},
			want: result{Out: `{"source":"container","line":"ready"}` + "\n"},
		},
		{
			name: "events go on behind the last, and end with the key", args: "events -f --kind pod --kind volume",
			api: map[string][]string{
				"GET /v2/events": {
					"200 id: 0-7-9\nevent: ready\ndata: {\"eventId\":\"0-7-9\",\"type\":\"ready\"}\n\nid: 0-8-1\ndata: {\"eventId\":\"0-8-1\",\"kind\":\"pod\"," +
						"\"id\":\"p7x1c9v2b6n8e4\",\"type\":\"changed\",\"at\":\"2026-10-01T12:00:01.500Z\",\"status\":\"ERROR\",\"reason\":\"out of \\u001b[31mmemory\"}\n\n",
					"200 id: 0-9-9\nevent: reset\ndata: {\"eventId\":\"0-9-9\",\"type\":\"reset\"}\n\n",
					`403 {"status":403,"detail":"access denied","code":"forbidden","requestId":"r9"}`,
				},
			},
			want: result{
				Code: 4, Out: "2026-10-01 12:00:01.500 UTC  pod             changed   p7x1c9v2b6n8e4  ERROR  out of \ufffd[31mmemory\n",
				Err: "gantry: events are missing here: they are older than what the API remembers\ngantry: access denied\n",
			},
		},
		{
			name: "the audit log", args: "audit --from 2026-10-01 --object p7x1c9v2b6n8e4",
			api:  map[string][]string{"GET /v2/audit": {"200 " + auditLine + "\n"}},
			want: result{Out: "2026-10-01 12:00:01.500 UTC  v2  createPod  p7x1c9v2b6n8e4  acc00000000001  c\ufffdi  -\n"},
		},
		{
			name: "the audit log as json", args: "admin audit --account acc00000000001 -o json --limit 0",
			api:  map[string][]string{"GET /admin/v1/audit": {"200 " + auditLine + "\n" + auditLine + "\n"}},
			want: result{Out: auditLine + "\n" + auditLine + "\n"},
		},
		{
			name: "the audit log is cut off", args: "audit",
			api:  map[string][]string{"GET /v2/audit": {"200 " + auditLine[:40]}},
			want: result{Code: 1, Err: "gantry: read the audit log: unexpected EOF\n"},
		},
		{
			name: "the audit log with a limit that is none", args: "audit --limit=-1",
			want: result{Code: exitUsage, Err: "gantry: --limit must be 0 to 10000\nRun \"gantry audit --help\" for more.\n"},
		},
		{
			name: "a new key's text is alone", args: "key create ci --expires-in 24h",
			api:  map[string][]string{"POST /v2/account/keys": {`201 {"key":{"id":"m2c9v4x7b1n5q8","name":"ci","expiresAt":"2026-10-02T12:01:30.000Z"},"apiKey":"gk_new"}`}},
			want: result{Out: "gk_new\n", Err: "Key m2c9v4x7b1n5q8 (ci) was made and ends 2026-10-02 12:01:30.000 UTC. Keep its text: it is not shown again.\n"},
		},
		{
			name: "a join token", args: "host token --data-center EU-RO-1 --ttl 10m",
			api:  map[string][]string{"POST /admin/v1/hosts/tokens": {`201 {"token":"one-use","expiresAt":"2026-10-01T12:11:30.000Z"}`}},
			want: result{Out: "one-use\n", Err: "The token lets one host join EU-RO-1, until 2026-10-01 12:11:30.000 UTC.\n"},
		},
		{
			name: "hosts", args: "host list",
			api: map[string][]string{"GET /admin/v1/hosts": {`200 {"hosts":[{"id":"h7d2k9s4f1g6j3","name":"n1","dataCenterId":"dev-1","cloud":"SECURE","state":"ready","pods":2,
				"total":{"milliCpu":31000,"memoryMb":24000,"diskGb":500},"used":{"milliCpu":2000,"memoryMb":4000,"diskGb":10},"usedGpus":1,
				"gpus":[{"type":"NVIDIA B200","simulated":true},{"type":"NVIDIA B200","simulated":true}]}]}`}},
			want: result{Out: `ID              NAME  CENTER  CLOUD   STATE  PODS  CPU         MEMORY   DISK       GPUS
h7d2k9s4f1g6j3  n1    dev-1   SECURE  ready  2     2/31 cores  4/24 GB  10/500 GB  1/2 used: 2 × NVIDIA B200 (simulated)
`},
		},
		{
			name: "GPU types", args: "catalog gpus",
			api: map[string][]string{"GET /v2/catalog/gpus": {`200 {"gpus":[{"id":"NVIDIA B200","pool":null,"memory":180,"price":{"secure":5.99,"community":0,"serverless":null},
				"maxCount":{"secure":8,"community":0},"availability":"HIGH","dataCenters":[{"id":"dev-1","availability":"HIGH"},{"id":"x","availability":"NONE"}],
				"cudaVersions":[{"version":"12.8","available":true},{"version":"12.4","available":false}]}]}`}},
			want: result{Out: `ID           POOL  MEMORY  CUDA  SECURE/H  COMMUNITY/H  BID FROM  MOST  FREE  CENTERS
NVIDIA B200  -     180 GB  12.8  $5.990    -            -         8     HIGH  dev-1
`},
		},
		{
			name: "unknown flag", args: "pod list --everything",
			want: result{Code: 2, Err: "gantry: unknown flag --everything\nRun \"gantry pod list --help\" for more.\n"},
		},
		{
			name: "unknown command", args: "podd",
			want: result{Code: 2, Err: "gantry: unexpected argument podd, did you mean \"pod\"?\nRun \"gantry --help\" for more.\n"},
		},
		{
			name: "neither CPU nor GPU", args: "pod create web img",
			want: result{Code: 2, Err: "gantry: say --cpu FLAVOR or --gpu TYPE: see gantry catalog cpus and gantry catalog gpus\nRun \"gantry pod create --help\" for more.\n"},
		},
		{
			name: "both CPU and GPU", args: "pod create web img --cpu a --gpu b",
			want: result{Code: 2, Err: "gantry: --cpu and --gpu exclude each other\nRun \"gantry pod create --help\" for more.\n"},
		},
		{
			name: "arguments where none go", args: "pod list -- x",
			want: result{Code: 2, Err: "gantry: this command takes no arguments after --\nRun \"gantry pod list --help\" for more.\n"},
		},
		{
			name: "no API", args: "pod list", env: map[string]string{"GANTRY_API": ""},
			want: result{Code: 5, Err: "gantry: no API address: no `gantry dev` was started by this user; set GANTRY_API, give --api, or add a context: gantry context add --help\n"},
		},
		{
			name: "no key", args: "pod list", env: map[string]string{"GANTRY_API_KEY": ""},
			want: result{Code: 4, Err: "gantry: no API key: set GANTRY_API_KEY or give --api-key-file\n"},
		},
		{
			name: "nobody there", args: "pod list --api http://127.0.0.1:1",
			want: result{Code: 5, Err: "gantry: cannot reach http://127.0.0.1:1: connection refused\n  Is `gantry dev` running?\n"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, _ := gantry(t, setup{api: tt.api, env: tt.env}, strings.Fields(tt.args)...)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// auditLine is a line of the audit log as the API sends it.
const auditLine = `{"at":"2026-10-01T12:00:01.500Z","accountId":"acc00000000001","keyId":"k1","keyName":"c\u001bi","operator":false,` +
	`"operation":"createPod","objectId":"p7x1c9v2b6n8e4","face":"v2","address":null,"status":201}`

// TestCommandsWhoseExamplesHaveArgumentsTakeThem: every example with -- is of a command that takes what follows.
func TestCommandsWhoseExamplesHaveArgumentsTakeThem(t *testing.T) {
	files, err := filepath.Glob("help/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		command := ""
		for line := range strings.Lines(string(text)) {
			if named, ok := strings.CutPrefix(line, "== "); ok {
				command, _, _ = strings.Cut(strings.TrimSpace(named), ",")
			}
			if strings.HasPrefix(line, "    gantry ") && strings.Contains(line, " -- ") && !slices.Contains(takeRest(), command) {
				t.Errorf("%s: %q does not take the arguments of %s", file, command, line)
			}
		}
	}
}
