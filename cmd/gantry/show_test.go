package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAnswers says what people see of answers.
func TestAnswers(t *testing.T) {
	const pod = "k3n8w0zq5r7d2a"
	tests := []struct {
		args string
		api  map[string][]string
		want result
	}{
		{"pod get " + pod, map[string][]string{get(pod): {"200 " + podJSON(map[string]any{
			"status": "RUNNING", "locked": true, "template": "t5f8k2m7q1w4z9", "registry": "r3g8k2m7q1w4z9", "cudaVersion": "12.8", "exitCode": nil,
			"ports": []string{"22/tcp"}, "cpu": nil, "gpu": map[string]any{"id": "NVIDIA L40S", "count": 1}, "startedAt": "2026-10-01T12:01:00.000Z",
			"mounts": map[string]any{"persistent": map[string]any{"size": 50, "path": "/workspace"}}, "actions": []string{"terminate"},
			"globalNetworking": map[string]any{"enabled": true, "ip": "10.64.0.2", "internalDns": pod + ".gantry.internal"},
			"ssh":              map[string]any{"proxy": nil, "direct": map[string]any{"host": "203.0.113.7", "port": 30022, "username": "root", "command": "ssh root@203.0.113.7 -p 30022"}},
			"runtime": map[string]any{
				"uptime": 30, "cpu": map[string]any{"util": 7}, "memory": map[string]any{"util": 21}, "gpus": []any{map[string]any{"util": 99, "memoryUtil": 80}},
				"ports": []any{map[string]any{"private": 22, "public": 30022, "type": "tcp", "ip": "203.0.113.7", "isIpPublic": true}},
			},
		})}}, result{Out: `Id:           k3n8w0zq5r7d2a
Name:         web
Status:       RUNNING
Image:        docker.io/library/nginx:alpine
Template:     t5f8k2m7q1w4z9
Registry:     r3g8k2m7q1w4z9
Compute:      1 × NVIDIA L40S
CUDA:         12.8
Disk:         10 GB
Mounts:       50 GB of the host at /workspace
Ports:        22/tcp
Address:      22/tcp at 203.0.113.7:30022
SSH:          ssh root@203.0.113.7 -p 30022
Network:      10.64.0.2 k3n8w0zq5r7d2a.gantry.internal
Env:          TOKEN
Cloud:        SECURE
Data center:  dev-1
Host:         h7d2k9s4f1g6j3
Cost:         $0.060 per hour
Locked:       yes: stop and restart are refused
Actions:      terminate
Created:      2026-10-01 12:00:00.000 UTC
Started:      2026-10-01 12:01:00.000 UTC
Up:           30s
Use:          CPU 7 %, memory 21 %, disk 0 %, GPU 0 99 % (memory 80 %)
`}},
		{"pod ssh --print " + pod, map[string][]string{get(pod): {"200 " + podJSON(map[string]any{
			"ssh": map[string]any{"direct": map[string]any{"command": "ssh root@203.0.113.7 -p 30022"}},
		})}}, result{Out: "ssh root@203.0.113.7 -p 30022\n"}},
		{"pod ssh --print " + pod, map[string][]string{get(pod): {"200 " + podJSON(nil)}}, result{
			Code: 1, Err: "gantry: pod k3n8w0zq5r7d2a cannot be reached by SSH: it must be RUNNING and list 22/tcp in its ports\n",
		}},
		{"pod exec " + pod + " -- ls", map[string][]string{
			get(pod + "/exec"): {`409 {"status":409,"detail":"the pod does not run","code":"not_allowed"}`},
		}, result{Code: 4, Err: "gantry: the pod does not run\n"}},
		{"account", world(), result{Out: `Id:       a5f8k2m7q1w4z9
Name:     research
Balance:  $10.000
Spends:   $2.500 per hour
Prepaid:  yes
Lasts:    4.0 hours
`}},
		{"account get a5f8k2m7q1w4z9", map[string][]string{
			"GET /admin/v1/accounts/a5f8k2m7q1w4z9": world()["GET /v2/account"],
		}, result{Out: `Id:        a5f8k2m7q1w4z9
Name:      research
Balance:   $10.000
Spends:    $2.500 per hour
Prepaid:   yes
Lasts:     4.0 hours
Requests:  10 a minute, 200 an hour, 3000 a day
`}},
		{"key update m2c9v4x7b1n5q8 --disable", map[string][]string{"PATCH /v2/account/keys/m2c9v4x7b1n5q8": {
			`200 {"id":"m2c9v4x7b1n5q8","name":"ci","hint":"gk_abc","permissions":{"pods":"read","s3":"read"},"disabled":true,"lastUsedAt":"2026-10-01T12:00:00.000Z","createdAt":"2026-10-01T11:00:00.000Z"}`,
		}}, result{Out: `ID              NAME  KEY      PERMISSIONS  STATE     CREATED                      LAST USED                    EXPIRES
m2c9v4x7b1n5q8  ci    gk_abc…  all:read     disabled  2026-10-01 11:00:00.000 UTC  2026-10-01 12:00:00.000 UTC  -
`}},
		{"ssh-key list", world(), result{Out: `TYPE         FINGERPRINT                                         COMMENT
ssh-ed25519  ` + parseSSHKey(otherLine).fingerprint + `  you@desk
`}},
		{"volume list", map[string][]string{"GET /v2/network-volumes": {`200 {"networkVolumes":[
			{"id":"vol00000000001","name":"datasets","size":100,"dataCenter":"EU-RO-1","type":"STANDARD","status":"READY","statusReason":null,"used":42000000000,"createdAt":"2026-10-01T12:00:00.000Z"},
			{"id":"vol00000000002","name":"new","size":4096,"dataCenter":"EU-RO-1","type":"HIGH_PERFORMANCE","status":"CREATING","statusReason":"the host is away","used":null,"createdAt":"2026-10-01T12:01:00.000Z"}]}`}}, result{
			Out: `ID              NAME      STATUS    SIZE     USED     DATA CENTER  TIER              CREATED                      REASON
vol00000000001  datasets  READY     100 GB   42.0 GB  EU-RO-1      STANDARD          2026-10-01 12:00:00.000 UTC  -
vol00000000002  new       CREATING  4096 GB  -        EU-RO-1      HIGH_PERFORMANCE  2026-10-01 12:01:00.000 UTC  the host is away
`,
		}},
		{"s3-key create ci", world(), result{Out: "rps_new\n", Err: "Access key user_000000000000000000000000000 (ci) was made. Keep its secret key: it is not shown again.\n"}},
		{"host role gpu-01 --none", world(), result{Out: "h7d2k9s4f1g6j3 (gpu-01) has the roles: -\n"}},
		{"admin volume-backend get b", map[string][]string{"GET /admin/v1/volume-backends/b": {`200 {"id":"b","dataCenterId":"EU-RO-1","type":"STANDARD","kind":"nfs","nfs":{"server":"filer","export":"/srv"},"cephfs":null,
			"local":null,"storageHost":null,"storagePath":null,"quota":"measured","closed":true,"volumes":2,"sizeGb":200,"host":"h7d2k9s4f1g6j3","problem":null,"createdAt":"2026-10-01T12:00:00.000Z"}`}}, result{
			Out: `ID  DATA CENTER  TIER      KIND  WHERE       QUOTA     OPEN  VOLUMES  SIZE    LOOKED AFTER BY  PROBLEM
b   EU-RO-1      STANDARD  nfs   filer:/srv  measured  no    2        200 GB  h7d2k9s4f1g6j3   -
`,
		}},
		{"admin storage-prices get", world(), result{Out: `Container disk:             $0.1 per GB and month
Persistent mount, running:  $0 per GB and month
Persistent mount, stopped:  $0 per GB and month
Network volume, first TB:   $0 per GB and month
Network volume, beyond:     $0 per GB and month
Fast volume, first TB:      $0 per GB and month
Fast volume, beyond:        $0 per GB and month
`}},
		{"billing pods --last 2", map[string][]string{"GET /v2/billing/pods": {`200 {"records":[
			{"startTime":"2026-09-30T00:00:00Z","endTime":"2026-10-01T00:00:00Z","podId":"k3n8w0zq5r7d2a","totalAmount":12.345,"gpuAmount":12,"cpuAmount":0,"diskAmount":0.345},
			{"startTime":"2026-10-01T00:00:00Z","endTime":"2026-10-02T00:00:00Z","podId":"a5f8k2m7q1w4z9","totalAmount":0.5,"gpuAmount":0.5,"cpuAmount":0,"diskAmount":0}],
			"metadata":{"query":{"startTime":"2026-09-30T00:00:00Z","endTime":"2026-10-02T00:00:00Z","bucketSize":"day"},"recordCount":2,
			"totals":{"totalAmount":12.845,"gpuAmount":12.5,"cpuAmount":0,"diskAmount":0.345}}}`}}, result{
			Out: `FROM              TO                ID                TOTAL    DISK      GPU
2026-09-30 00:00  2026-10-01 00:00  k3n8w0zq5r7d2a  $12.345  $0.345  $12.000
2026-10-01 00:00  2026-10-02 00:00  a5f8k2m7q1w4z9   $0.500  $0.000   $0.500
2026-09-30 00:00  2026-10-02 00:00  all             $12.845  $0.345  $12.500
`,
		}},
		{"billing", map[string][]string{"GET /v2/billing": {`200 {"records":[],"metadata":{"query":{"startTime":"2026-09-30T00:00:00Z","endTime":"2026-10-02T00:00:00Z"},"totals":{"totalAmount":0,"podGpuAmount":0}}}`}}, result{
			Out: `FROM              TO                 TOTAL
2026-09-30 00:00  2026-10-02 00:00  $0.000
`,
		}},
		{"pod create web img --cpu c --idempotency-key again", world(), result{Out: `ID              NAME  STATUS        COMPUTE            IMAGE                           PORTS    CENTER  COST/H  AGE
k3n8w0zq5r7d2a  web   PROVISIONING  cpu3c 2 vCPU 4 GB  docker.io/library/nginx:alpine  80/http  dev-1   $0.060  1m30s
`, Err: "k3n8w0zq5r7d2a had been made before under this idempotency key.\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			got, api := gantry(t, setup{api: tt.api}, strings.Fields(tt.args)...)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s\n%q", diff, api.seen)
			}
		})
	}
}

func TestPlural(t *testing.T) {
	for one, want := range map[string]string{"key": "keys", "entry": "entries", "pod": "pods", "registry credential": "registry credentials"} {
		if got := plural(one); got != want {
			t.Errorf("%s: %s", one, got)
		}
	}
}

func TestFingerprints(t *testing.T) {
	const rsa = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAQQDGSxJJxKMZ"
	if k := parseSSHKey(keyLine); k.kind != "ssh-ed25519" || k.comment != "me@laptop" || !strings.HasPrefix(k.fingerprint, "SHA256:") || len(k.fingerprint) != 50 {
		t.Errorf("%+v", k)
	}
	if k := parseSSHKey(`command="x" ` + keyLine + " two"); k.fingerprint != parseSSHKey(keyLine).fingerprint || k.comment != "me@laptop two" {
		t.Errorf("%+v", k)
	}
	for _, line := range []string{"", "ssh-ed25519", "ssh-ed25519 AAAA", "ssh-rsa " + strings.Fields(keyLine)[1], "hello there"} {
		if k := parseSSHKey(line); k.fingerprint != "" {
			t.Errorf("%q: %+v", line, k)
		}
	}
	if k := parseSSHKey(rsa); k.fingerprint == "" || k.comment != "" {
		t.Errorf("%+v", k)
	}
}

// TestUncertainCreates runs creates of which nobody knows whether they happened, and then once more as it was told.
func TestUncertainCreates(t *testing.T) {
	const away = `503 {"status":503,"detail":"The outcome is not known.","code":"unavailable","requestId":"r9"}`
	for args, what := range map[string]string{
		"pod create web img --cpu c":                "POST /v2/pods",
		"template create mine img":                  "POST /v2/templates",
		"volume create v --size 10 --data-center d": "POST /v2/network-volumes",
		"account credit a5f8k2m7q1w4z9 5":           "POST /admin/v1/accounts/a5f8k2m7q1w4z9/credits",
	} {
		got, _ := gantry(t, setup{api: map[string][]string{what: {away}}}, strings.Fields(args)...)
		before, key, told := strings.Cut(strings.Split(got.Err, "\n")[0], "--idempotency-key ")
		if got.Code != exitUnavailable || !told || len(key) < 20 || !strings.Contains(before, "not known") {
			t.Errorf("gantry %s: %+v", args, got)
		}
		if got, _ := gantry(t, setup{api: world()}, append(strings.Fields(args), "--idempotency-key", key)...); got.Code != 0 {
			t.Errorf("again: %+v", got)
		}
		refused, _ := gantry(t, setup{api: map[string][]string{what: {`400 {"status":400,"detail":"no","code":"rule"}`}}}, strings.Fields(args)...)
		if refused.Err != "gantry: no\n" {
			t.Errorf("refused: %+v", refused)
		}
	}
}

func TestDollars(t *testing.T) {
	for d, want := range map[float64]string{0: "$0.000", -0.0001: "$0.000", -0.0005: "-$0.001", 1.2344: "$1.234", -12.5: "-$12.500"} {
		if got := dollars(d); got != want {
			t.Errorf("%v is shown as %s, want %s", d, got, want)
		}
	}
}
