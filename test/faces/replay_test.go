package faces_test

import (
	"net/http"
	"strings"
	"testing"
)

// replayed are calls as clients of version 1 send them: method, path, body; and what must be in the answer's record.
var replayed = []struct{ name, method, path, body, has string }{
	// A command line client makes CPU pods through version 1, and decodes numbers, lists and objects by their types.
	{"cpu pod of a command line", "POST", "/v1/pods", `{"name":"box","imageName":"busybox","computeType":"CPU","cpuFlavorIds":["cpu3g"],"vcpuCount":2,"containerDiskInGb":10,` +
		`"cloudType":"SECURE","ports":["22/tcp"],"env":{"A":"1"}}`, `"costPerHr":0.08|"vcpuCount":2|"ports":["22/tcp"]|"env":{"A":"1"}|"imageName":"busybox"|"portMappings":null`},
	{
		"gpu pod of an SDK", "POST", "/v1/pods", `{"name":"a","imageName":"busybox","gpuTypeIds":["NVIDIA H100 80GB HBM3"],"gpuCount":1,"containerDiskInGb":50,"volumeInGb":20,` +
			`"volumeMountPath":"/workspace","dockerStartCmd":["bash","-c","sleep infinity"],"interruptible":false,"dataCenterIds":["dev-1"],"dataCenterPriority":"availability"}`,
		`"gpu":{"count":1|"dockerStartCmd":["bash","-c","sleep infinity"]|"desiredStatus":"RUNNING"|"volumeMountPath":"/workspace"`,
	},
	{"pods of an orchestrator", "GET", "/v1/pods?includeMachine=true&desiredStatus=RUNNING&computeType=GPU", "", `[{|"machine":{|"gpuDisplayName"`},
	{"template of an infrastructure tool", "POST", "/v1/templates", `{"name":"t","imageName":"busybox","containerDiskInGb":20,"volumeInGb":0,"dockerEntrypoint":[],"dockerStartCmd":[],` +
		`"env":{},"isPublic":false,"isServerless":true,"ports":[],"readme":""}`, `"isServerless":true|"containerDiskInGb":20|"volumeInGb":0`},
	{
		"endpoint of an infrastructure tool", "POST", "/v1/endpoints", `{"name":"e","templateId":"<workers>","computeType":"GPU","gpuTypeIds":["NVIDIA H100 80GB HBM3"],"gpuCount":1,"workersMin":0,` +
			`"workersMax":3,"idleTimeout":5,"scalerType":"QUEUE_DELAY","scalerValue":4,"executionTimeoutMs":600000,"flashboot":true}`,
		`"workersMax":3|"idleTimeout":5|"scalerValue":4|"flashboot":true|"gpuTypeIds":["NVIDIA H100 80GB HBM3"]`,
	},
	{"network volume of the contract", "POST", "/v1/networkvolumes", `{"name":"v","size":10,"dataCenterId":"dev-1"}`, `"size":10|"dataCenterId":"dev-1"`},
	{"credential", "POST", "/v1/containerregistryauth", `{"name":"c","username":"u","password":"p"}`, `"name":"c"`},
	{"bill", "GET", "/v1/billing/pods?bucketSize=day&grouping=podId", "", `[`},
}

// TestClientsOfVersion1 replays what public clients send.
func TestClientsOfVersion1(t *testing.T) {
	s := newSite(t)
	for _, c := range replayed {
		t.Run(c.name, func(t *testing.T) {
			s.t = t
			body := strings.ReplaceAll(c.body, "<workers>", s.ids["<workers>"])
			code, text := s.send("v1", c.method, c.path, body)
			want := http.StatusOK
			if c.method == http.MethodPost && c.path == "/v1/pods" {
				want = http.StatusCreated
			}
			if code != want {
				t.Fatalf("%d %s", code, text)
			}
			for part := range strings.SplitSeq(c.has, "|") {
				if !strings.Contains(text, part) {
					t.Errorf("%s is not in %s", part, text)
				}
			}
		})
	}
}
