package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const endpointID = "e4m7x1c9v2b6n8"

const endpointJSON = `{"id":"` + endpointID + `","name":"embed","type":"QUEUE","image":"img","args":"","disk":20,"ports":[],"env":{"TOKEN":"hidden"},` +
	`"registry":null,"template":null,"requestUrls":{"run":"http://x/v2/` + endpointID + `/run","runSync":"http://x/v2/` + endpointID + `/runsync"},` +
	`"gpu":{"pools":["HOPPER_141"],"excludedTypes":["NVIDIA H200 NVL"],"count":2,"allowedCudaVersions":[],"minCudaVersion":"12.4"},` +
	`"workers":{"min":0,"max":3,"idleTimeout":10},"scaling":{"type":"QUEUE_DELAY","queueDelay":4},"dataCenterIds":[],"networkVolumes":[],` +
	`"timeout":300000,"flashboot":"OFF","retries":1,"failAfter":600,"version":2,"createdAt":"2026-10-01T12:00:00.000Z"}`

// serverless is an API with one endpoint.
func serverless(more map[string][]string) map[string][]string {
	gpus := `{"gpus":[{"id":"NVIDIA H200","name":"H200","pool":"HOPPER_141"},{"id":"NVIDIA H200 NVL","name":"H200 NVL","pool":"HOPPER_141"},` +
		`{"id":"NVIDIA L40S","name":"L40S","pool":"ADA_48_PRO"},{"id":"NVIDIA T4","name":"T4","pool":null}]}`
	out := map[string][]string{
		"GET /v2/serverless":                  {`200 {"endpoints":[` + endpointJSON + `]}`},
		"GET /v2/serverless/" + endpointID:    {"200 " + endpointJSON},
		"POST /v2/serverless":                 {"201 " + endpointJSON},
		"PATCH /v2/serverless/" + endpointID:  {"200 " + endpointJSON},
		"DELETE /v2/serverless/" + endpointID: {"204 "},
		"GET /v2/catalog/gpus":                {"200 " + gpus},
		"GET /v2/network-volumes":             {`200 {"networkVolumes":[{"id":"vol00000000001","name":"models"}]}`},
		"GET /v2/templates":                   {`200 {"templates":[{"id":"t5f8k2m7q1w4z9","name":"mine"}]}`},
		"GET /v2/" + endpointID + "/health": {
			`200 {"jobs":{"completed":7,"failed":1,"inProgress":2,"inQueue":3,"retried":0},"workers":{"idle":0,"initializing":1,"ready":2,"running":2,"throttled":0,"unhealthy":0}}`,
		},
	}
	for what, answers := range more {
		out[what] = answers
	}
	return out
}

// TestEndpointRequests says what the command lines about endpoints ask of the API.
func TestEndpointRequests(t *testing.T) {
	const create, gpus = "POST /v2/serverless ", "GET /v2/catalog/gpus?include=AVAILABILITY&product=POD"
	const delay, patch = `"scaling":{"queueDelay":4,"type":"QUEUE_DELAY"},"type":"QUEUE"}`, "PATCH /v2/serverless/" + endpointID + " "
	for args, want := range map[string][]string{
		"endpoint create e img --cpu cpu3c": {create + `{"cpu":[{"id":"cpu3c","vcpuCount":2}],"image":"img","name":"e",` + delay},
		"endpoint create e img --cpu cpu5c:8 --cpu cpu3c --request-count 4 --min-workers 1 --max-workers 9 --type LOAD_BALANCER": {
			create + `{"cpu":[{"id":"cpu5c","vcpuCount":8},{"id":"cpu3c","vcpuCount":2}],"image":"img","name":"e",` +
				`"scaling":{"requestCount":4,"type":"REQUEST_COUNT"},"type":"LOAD_BALANCER","workers":{"max":9,"min":1}}`,
		},
		"endpoint create e img --cpu cpu3c --type load-balancer --wait-timeout 30s --max-body 5": {
			create + `{"cpu":[{"id":"cpu3c","vcpuCount":2}],"image":"img","maxBody":5,"name":"e",` +
				`"scaling":{"requestCount":4,"type":"REQUEST_COUNT"},"type":"LOAD_BALANCER","waitTimeout":30}`,
		},
		"endpoint create e img --gpu h200 --count 2 --min-cuda 12.4": {
			gpus, create + `{"gpu":{"count":2,"excludedTypes":["NVIDIA H200 NVL"],"minCudaVersion":"12.4","pools":["HOPPER_141"]},"image":"img","name":"e",` + delay,
		},
		"endpoint create e --template mine --pool ADA_48_PRO --exclude T --queue-delay 1500ms --idle-timeout 1m --execution-timeout 0s --fail-after 0s": {
			"GET /v2/templates", create + `{"failAfter":0,"gpu":{"excludedTypes":["T"],"pools":["ADA_48_PRO"]},"name":"e",` +
				`"scaling":{"queueDelay":1.5,"type":"QUEUE_DELAY"},"templateId":"t5f8k2m7q1w4z9","timeout":0,"type":"QUEUE","workers":{"idleTimeout":60}}`,
		},
		"endpoint create e img --cpu cpu3c --env A=1 --disk 5 --data-center d --network-volume models --flashboot FLASHBOOT --retries 0 -- python handler.py": {
			"GET /v2/network-volumes", create + `{"args":"python handler.py","cpu":[{"id":"cpu3c","vcpuCount":2}],"dataCenterIds":["d"],"disk":5,"env":{"A":"1"},` +
				`"flashboot":"FLASHBOOT","image":"img","name":"e","networkVolumes":["vol00000000001"],"retries":0,` + delay,
		},
		"endpoint update " + endpointID + " --webhook-secret-file -": {patch + `{"webhookSecret":"0123456789abcdef"}`},
		"endpoint update " + endpointID + " --no-webhook-secret":     {patch + `{"webhookSecret":""}`},

		"endpoint create e img --cpu cpu3c --model https://huggingface.co/o/n --model https://huggingface.co/o/m:v1": {
			create + `{"cpu":[{"id":"cpu3c","vcpuCount":2}],"image":"img","modelReferences":["https://huggingface.co/o/n","https://huggingface.co/o/m:v1"],"name":"e",` + delay,
		},
		"endpoint update " + endpointID + " --no-models": {patch + `{"modelReferences":[]}`},

		"endpoint list":                 {"GET /v2/serverless"},
		"endpoint get embed -o json":    {"GET /v2/serverless", "GET /v2/serverless/" + endpointID},
		"endpoint delete " + endpointID: {"DELETE /v2/serverless/" + endpointID},
		"endpoint update " + endpointID + " --image b --max-workers 0 --no-cuda --any-data-center --no-network-volumes --no-env": {
			patch + `{"dataCenterIds":[],"env":{},"gpu":{"allowedCudaVersions":[],"minCudaVersion":""},"image":"b","networkVolumes":[],"workers":{"max":0}}`,
		},
		"endpoint update " + endpointID + " --set-env A=1 --unset-env TOKEN --request-count 2": {
			"GET /v2/serverless/" + endpointID, patch + `{"env":{"A":"1"},"scaling":{"requestCount":2,"type":"REQUEST_COUNT"}}`,
		},
	} {
		got, fake := gantry(t, setup{api: serverless(nil), in: "0123456789abcdef\n"}, strings.Fields(args)...)
		if diff := cmp.Diff(want, ordered(fake.seen)); diff != "" || got.Code != 0 {
			t.Errorf("gantry %s: %+v\n%s", args, got, diff)
		}
	}
}

// TestRefusedEndpointsAndJobs says which command lines are refused before anything is sent, and with which flag.
func TestRefusedEndpointsAndJobs(t *testing.T) {
	const run = "job run " + endpointID
	for args, want := range map[string]string{
		"endpoint create e --cpu c":                                           "say the image, or --template",
		"endpoint create e i":                                                 "say --cpu FLAVOR, --gpu TYPE or --pool POOL",
		"endpoint create e i --cpu c --gpu g":                                 "--cpu excludes --gpu and --pool",
		"endpoint create e i --gpu g --pool p":                                "--gpu and --pool exclude each other",
		"endpoint create e i --gpu g --exclude x":                             "--exclude goes with --pool",
		"endpoint create e i --cpu c --count 2":                               "go with --gpu or --pool",
		"endpoint create e i --cpu c:x":                                       "--cpu must be FLAVOR or FLAVOR:N",
		"endpoint create e i --cpu :2":                                        "--cpu must be FLAVOR or FLAVOR:N",
		"endpoint create e i --pool p --cuda 12.8 --min-cuda 1":               "--cuda, --no-cuda and --min-cuda exclude each other",
		"endpoint create e i --cpu c --queue-delay 4s --request-count 2":      "--queue-delay and --request-count exclude each other",
		"endpoint create e i --cpu c --idle-timeout 1500ms":                   "--idle-timeout must be in whole seconds",
		"endpoint create e i --cpu c --fail-after=-1s":                        "--fail-after must be in whole seconds",
		"endpoint create e i --cpu c --execution-timeout 1us":                 "--execution-timeout must be in whole milliseconds",
		"endpoint create e i --cpu c --data-center d --any-data-center":       "--data-center and --any-data-center exclude each other",
		"endpoint create e i --cpu c --network-volume v --no-network-volumes": "exclude each other",
		"endpoint create e i --cpu c --model m --no-models":                   "exclude each other",
		"endpoint update e --webhook-secret-file f --no-webhook-secret":       "exclude each other",
		"endpoint update e --webhook-secret-file /nothing":                    "--webhook-secret-file: open /nothing",
		"endpoint update e":                                                   "say what to change",
		"endpoint update e --env A=1 --set-env B=2":                           "exclude each other",
		run:                                             "say the job's input: --input JSON or --input-file FILE",
		run + " --input {} --input-file f":              "--input and --input-file exclude each other",
		run + " --input {a}":                            "--input is not JSON, at byte 2",
		run + " --input [1]":                            "--input must be a JSON object",
		run + " --input null":                           "--input must be a JSON object",
		run + " --input -":                              "--input is not JSON",
		run + " --input-file /nothing":                  "--input-file: open /nothing",
		run + " --input {} --ttl 9s":                    "--ttl must be from 10s to 168h",
		run + " --input {} --execution-timeout 4s":      "--execution-timeout must be from 5s to 168h",
		run + " --input {} --execution-timeout 169h":    "--execution-timeout must be from 5s to 168h",
		run + " --input {} --webhook ftp://x/":          "--webhook must be an address that begins with http:// or https://",
		run + " --input {} --s3-config-file /nothing":   "--s3-config-file: open /nothing",
		"job list " + endpointID + " --limit 1001":      "--limit must be from 1 to 1000",
		"job list " + endpointID + " --since yesterday": "--since must be a time",
		"job stream " + endpointID + " j -o yaml":       "a stream is text",
	} {
		got, fake := gantry(t, setup{api: serverless(nil)}, strings.Fields(args)...)
		if got.Code != exitUsage || !strings.Contains(got.Err, want) || len(fake.seen) > 0 {
			t.Errorf("gantry %s: %+v %q, want %s", args, got, fake.seen, want)
		}
	}
	got, fake := gantry(t, setup{api: serverless(nil), in: `{"a":"` + strings.Repeat("x", int(maxRun)) + `"}`}, "job", "run", endpointID, "--input", "-")
	if got.Code != exitUsage || !strings.Contains(got.Err, "--input: more than 10.0 MB") || len(fake.seen) > 0 {
		t.Errorf("a large input: %+v", got)
	}
	got, _ = gantry(t, setup{api: serverless(nil)}, "endpoint", "create", "e", "i", "--gpu", "T4")
	if got.Code != exitUsage || !strings.Contains(got.Err, "--gpu: NVIDIA T4 is in no pool") {
		t.Errorf("a type without a pool: %+v", got)
	}
	for args, want := range map[string]string{
		"endpoint get nobody":                     "gantry: no endpoint has the id or name nobody\n",
		"endpoint delete zzzzzzzzzzzzzz":          "gantry: no endpoint has the id or name zzzzzzzzzzzzzz\n",
		"job run nobody --input {}":               "gantry: no endpoint has the id or name nobody\n",
		"endpoint update nobody --max-workers 1":  "gantry: no endpoint has the id or name nobody\n",
		"endpoint create e --template no --cpu c": "gantry: no template has the id or name no\n",
	} {
		if got, _ := gantry(t, setup{api: serverless(nil)}, strings.Fields(args)...); got.Code != exitNotFound || got.Err != want {
			t.Errorf("gantry %s: %+v", args, got)
		}
	}
}

func TestAnEndpointIsShown(t *testing.T) {
	got, _ := gantry(t, setup{api: serverless(nil)}, "endpoint", "get", endpointID)
	want := `Id:            e4m7x1c9v2b6n8
Name:          embed
Type:          QUEUE
Jobs:          3 in the queue, 2 in progress, 7 completed, 1 failed
Workers:       2 running, 1 initializing; 0 to 3
Scaling:       jobs wait 4 s
Idle for:      10s
FlashBoot:     OFF
Image:         img
Compute:       2 × HOPPER_141
Disk:          20 GB
Env:           TOKEN
Jobs may run:  5m0s
Retries:       1
Fails after:   10m0s
Version:       2
Created:       2026-10-01 12:00:00.000 UTC
Without:       NVIDIA H200 NVL
CUDA:          12.4
Run:           http://x/v2/e4m7x1c9v2b6n8/run
Run and wait:  http://x/v2/e4m7x1c9v2b6n8/runsync
`
	if got.Code != 0 || got.Out != want {
		t.Errorf("%d %s\n%s", got.Code, got.Err, cmp.Diff(want, got.Out))
	}
	got, _ = gantry(t, setup{api: serverless(map[string][]string{"GET /v2/" + endpointID + "/health": {`401 {"error":"the API key is missing or wrong"}`}})}, "endpoint", "get", endpointID)
	if got.Code != 0 || !strings.Contains(got.Out, "Workers:       0 to 3\n") || strings.Contains(got.Out, "Jobs:") {
		t.Errorf("a key that may not see its jobs: %+v", got)
	}
	balances := strings.Replace(endpointJSON, `"type":"QUEUE"`, `"type":"LOAD_BALANCER"`, 1)
	got, _ = gantry(t, setup{api: serverless(map[string][]string{"GET /v2/serverless/" + endpointID: {"200 " + balances}})}, "endpoint", "get", endpointID)
	if got.Code != 0 || !strings.Contains(got.Out, "\nRequests:        3 in the queue, 2 in progress") ||
		!strings.Contains(got.Out, "\nAnswers within:  5m0s\n") || strings.Contains(got.Out, "Jobs") || strings.Contains(got.Out, "Retries") {
		t.Errorf("%s", got.Out)
	}
	if got, _ = gantry(t, setup{api: serverless(nil)}, "endpoint", "list"); !strings.Contains(got.Out, "embed  img    2 × HOPPER_141  0 to 3   jobs wait 4 s  2        1m30s") {
		t.Errorf("%+v", got)
	}
}

// TestWorkersAndReleasesAreShown, and why jobs wait: of a release whose workers crash.
func TestWorkersAndReleasesAreShown(t *testing.T) {
	const path = "GET /v2/serverless/" + endpointID
	waits := strings.Replace(endpointJSON, `"version":2`,
		`"rollout":{"inProgress":true,"workersOnLatest":1,"workersTotal":3,"percentOnLatest":33},"reason":"workers crash, 3 in a row: exit code 1","version":2`, 1)
	worker := func(id, more string) string {
		return `{"id":"` + id + `","version":2,"image":"img","gpuTypeId":"NVIDIA H200","dataCenterId":"dc-1","createdAt":"2026-10-01T12:00:00.000Z",` + more + `}`
	}
	api := serverless(map[string][]string{
		path: {"200 " + waits},
		path + "/workers": {`200 {"workers":[` + worker("w1", `"status":"IDLE","isFrozen":true,"gpuCount":2`) + `,` +
			worker("w2", `"status":"INITIALIZING","isStale":true,"gpuCount":1,"reason":"pulling image 63 %"`) + `],"summary":{"total":2},"endpointVersion":2}`},
		path + "/releases":        {`200 {"releases":[{"version":2,"diff":[{"field":"image"},{"field":"env"}],"workerCount":1,"createdByUserId":"k1","createdAt":"2026-10-01T12:00:00.000Z"}]}`},
		path + "/workers/w2/logs": {"200 id: 1\ndata: {\"source\":\"container\",\"line\":\"newest\"}\n\n"},
		path + "/workers/w1/logs": {"200 id: 1\ndata: {\"source\":\"container\",\"line\":\"first\"}\n\n"},
	})
	for args, wants := range map[string][]string{
		"endpoint get ":      {"Reason:        workers crash, 3 in a row: exit code 1\n", "Rollout:       1 of 3 workers are of the newest release\n"},
		"endpoint workers ":  {"w1  IDLE, frozen         2        2 × NVIDIA H200  dc-1", "w2  INITIALIZING, stale  2        NVIDIA H200", "pulling image 63 %"},
		"endpoint releases ": {"2        image, env  1        k1", "1m30s"},
		"endpoint logs ":     {"newest\n"},
	} {
		got, _ := gantry(t, setup{api: api}, strings.Fields(args+endpointID)...)
		for _, want := range wants {
			if got.Code != 0 || !strings.Contains(got.Out, want) {
				t.Errorf("%s: %q is not in\n%s%s", args, want, got.Out, got.Err)
			}
		}
	}
	if got, _ := gantry(t, setup{api: api}, "endpoint", "logs", endpointID, "w1"); got.Out != "first\n" {
		t.Errorf("the log of a worker: %+v", got)
	}
	if got, fake := gantry(t, setup{api: api}, "endpoint", "logs", endpointID, "--previous"); got.Code != exitUsage || len(fake.seen) > 0 {
		t.Errorf("a run before, which workers do not have: %+v %v", got, fake.seen)
	}
	none := serverless(map[string][]string{path + "/workers": {`200 {"workers":[]}`}})
	if got, _ := gantry(t, setup{api: none}, "endpoint", "logs", endpointID); got.Code == 0 || !strings.Contains(got.Err, "the endpoint has no workers now") {
		t.Errorf("no workers: %+v", got)
	}
}
