package rest_test

import (
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(podsV1Rows, "v1 pod created", "v1 pod record", "v1 pod list", "v1 pod changed", "v1 pod action", "v1 value that is not supported", "v1 null is left out", "v1 choices in order")
	addRows(endpointsV1Rows, "v1 endpoint created", "v1 endpoint record", "v1 endpoint changed")
	addRows(templatesV1Rows, "v1 template created", "v1 template record", "v1 template changed")
	addRows(othersV1Rows, "v1 registry credential", "v1 billing")
}

// v1Row is a row of version 1 with the key of User.
func v1Row(topic, name, rule, method, path, body string, setup func(*testing.T, *plane.Plane)) row {
	return row{topic: topic, name: name, rule: rule, method: method, path: "/v1" + path, key: plane.User, body: body, setup: setup}
}

// of returns the row for another key.
func (r row) of(key string) row {
	r.key = key
	return r
}

func podsV1Rows() []row {
	const created, record, changed, unlike = "v1 pod created", "v1 pod record", "v1 pod changed", "v1 value that is not supported"
	const gpu, cpu = `{"gpuTypeIds":["` + plane.SimGPU + `"],"imageName":"busybox"}`, `{"computeType":"CPU","cpuFlavorIds":["cpu3g"],"imageName":"busybox"}`
	with := func(body, members string) string { return strings.TrimSuffix(body, "}") + "," + members + "}" }
	make := func(name, rule, body string, setup func(*testing.T, *plane.Plane)) row {
		return v1Row("pods-v1", "create-"+name, rule, "POST", "/pods", body, setup)
	}
	get := func(name, query string, setup func(*testing.T, *plane.Plane)) row {
		return v1Row("pods-v1", "get-"+name, record, "GET", "/pods/"+podID+query, "", setup)
	}
	list := func(name, query string) row {
		return v1Row("pods-v1", "list-"+name, "v1 pod list", "GET", "/pods"+query, "", func(t *testing.T, p *plane.Plane) {
			makePod(t, p, fleet.EventRunning)
			p.Advance(time.Second) // lists are by age
			makePod(t, p, fleet.EventRunning, fleet.EventExited)
			p.Advance(time.Second)
			request(t, p, fleet.PodRequest{Name: "cpu", Image: "nginx", CPU: &fleet.CPURequest{Flavor: "cpu3g", VCPU: 2}})
		})
	}
	patch := func(name, rule, body string) row {
		return v1Row("pods-v1", "patch-"+name, rule, "PATCH", "/pods/"+podID, body, func(t *testing.T, p *plane.Plane) {
			req := webPod()
			req.Persistent, req.Args = &fleet.PersistentMount{SizeGB: 20, Path: "/data"}, `{"entrypoint":["/bin/sh"],"cmd":["-c","date"]}`
			request(t, p, req, fleet.EventRunning)
		})
	}
	do := func(name, rule, action string, events ...fleet.Trigger) row {
		return v1Row("pods-v1", action+name, rule, "POST", "/pods/"+podID+"/"+action, "", func(t *testing.T, p *plane.Plane) { makePod(t, p, events...) })
	}
	once := make("once", "creates happen once", with(gpu, `"gpuTypeIds":["NVIDIA H200","`+plane.SimGPU+`"]`), nil)
	once.body, once.header, once.before = strings.Replace(gpu, `["`, `["NVIDIA H200","`, 1), []string{"Idempotency-Key", "a"}, 1
	running, exited := fleet.EventRunning, fleet.EventExited
	return []row{
		make("defaults", created, gpu, nil), make("cpu", created, cpu, nil), make("cpu-vcpus", created, with(cpu, `"vcpuCount":4,"gpuCount":1,"containerDiskInGb":10`), nil),
		make("all", created, with(gpu, `"name":"a","gpuCount":2,"containerDiskInGb":30,"volumeInGb":40,"volumeMountPath":"/data","ports":["22/tcp"],"env":{"A":"1"},`+
			`"dockerEntrypoint":["sh","-c"],"dockerStartCmd":["sleep 1"],"cloudType":"SECURE","dataCenterIds":["dev-1"],"minRAMPerGPU":1,"minVCPUPerGPU":1,`+
			`"gpuTypePriority":"custom","dataCenterPriority":"custom","supportPublicIp":true`), nil),
		make("no-volume", created, with(gpu, `"volumeInGb":0`), nil), make("start-cmd", created, with(gpu, `"dockerStartCmd":["python","a b.py"],"dockerEntrypoint":[]`), nil),
		make("network-volume", created, with(gpu, `"networkVolumeId":"vol00000000001"`), ownVolume),
		make("network-volume-foreign", "404 unknown reference names the field", with(gpu, `"networkVolumeId":"vol00000000002"`), ownVolume),
		make("template", created, `{"gpuTypeIds":["`+plane.SimGPU+`"],"templateId":"<template-1>"}`, func(t *testing.T, p *plane.Plane) { template(t, p, plane.User, nil) }),
		make("template-missing", "404 unknown reference names the field", with(gpu, `"templateId":"`+missingID+`"`), nil),
		make("choices", "v1 choices in order", strings.Replace(gpu, `["`, `["NVIDIA H200","`, 1), nil), once,
		make("no-room", "400 no capacity", strings.Replace(gpu, plane.SimGPU, "NVIDIA H200", 1), nil),
		make("nulls", "v1 null is left out", with(gpu, `"name":null,"env":null,"containerRegistryAuthId":null,"networkVolumeId":null,"countryCodes":null,"interruptible":null`), nil),
		make("zeros", created, with(gpu, `"interruptible":false,"countryCodes":[],"minDownloadMbps":0,"minUploadMbps":0,"minDiskBandwidthMBps":0,"globalNetworking":false`), nil),
		make("unlike", unlike, with(gpu, `"interruptible":true,"countryCodes":["US"],"minDownloadMbps":100,"minUploadMbps":1,"minDiskBandwidthMBps":1`), nil),
		make("nothing", "422 missing field", `{}`, nil), make("no-image", "422 missing field", `{"gpuTypeIds":["`+plane.SimGPU+`"]}`, nil),
		make("no-flavor", "422 missing field", `{"computeType":"CPU","imageName":"busybox"}`, nil),
		make("unknown", "422 unknown property", with(gpu, `"image":"busybox","zzz":1`), nil),
		make("types", "422 wrong type", with(gpu, `"name":1,"env":[],"ports":"80/http","volumeInGb":"20","dockerStartCmd":"sh","gpuCount":true`), nil),
		make("bounds", "422 bound", with(gpu, `"name":"","containerDiskInGb":0,"volumeInGb":-1,"gpuCount":0,"vcpuCount":0`), nil),
		make("volume-small", "422 bound", with(gpu, `"volumeInGb":9`), nil),
		make("enums", "422 enum", with(gpu, `"computeType":"gpu","cloudType":"ALL","gpuTypePriority":"any"`), nil),
		make("image", "422 pattern", `{"gpuTypeIds":["x"],"imageName":"busy box"}`, nil),
		make("gpu-unknown", "422 unknown catalog id", `{"gpuTypeIds":["NVIDIA Nothing"],"imageName":"busybox"}`, nil),
		make("cpu-unknown", "422 unknown catalog id", strings.Replace(cpu, "cpu3g", "cpu0", 1), nil),
		make("vcpus", "422 vCPU count", with(cpu, `"vcpuCount":3`), nil),
		make("env", "422 environment", with(gpu, `"env":{"1A":"x"}`), nil), make("port", "422 port", with(gpu, `"ports":["0/http","80/udp"]`), nil),
		make("port-range", "422 port", with(gpu, `"ports":["0/http"]`), nil), make("nul", "422 args", with(gpu, `"dockerStartCmd":["a\u0000"]`), nil),
		make("path", "400 mount path", with(gpu, `"volumeMountPath":"/proc"`), nil),
		make("twice", "400 duplicate key", `{"name":"a","name":"b"}`, nil), make("large", "413 body over 1 MiB", `{"name":"`+strings.Repeat("a", 1<<20)+`"}`, nil),
		make("no-money", "402 low balance", gpu, func(_ *testing.T, p *plane.Plane) { p.SetBroke(plane.User, true) }),
		make("reader", "403 key without the permission", gpu, nil).of(plane.Reader), make("stranger", "401 missing bearer token", gpu, nil).of(""),
		get("running", "?includeMachine=true", func(t *testing.T, p *plane.Plane) { makePod(t, p, running) }),
		get("failed", "", func(t *testing.T, p *plane.Plane) { makePod(t, p, fleet.EventFailed) }),
		get("volume", "?includeNetworkVolume=true&includeTemplate=true", attached),
		get("foreign", "", func(t *testing.T, p *plane.Plane) { makePod(t, p) }).of(plane.Other),
		list("all", ""), list("status", "?desiredStatus=EXITED"), list("cpu", "?computeType=CPU&imageName=nginx"), list("gpu", "?gpuTypeId=NVIDIA%20H100%2080GB%20HBM3&name=web&limit=1"),
		list("wrong", "?desiredStatus=STARTING&computeType=TPU"),
		patch("name", changed, `{"name":"b","locked":true}`), patch("cmd", changed, `{"dockerStartCmd":["-c","id"]}`), patch("cmd-none", changed, `{"dockerStartCmd":[],"dockerEntrypoint":[]}`),
		patch("volume", changed, `{"volumeInGb":30}`), patch("path", changed, `{"volumeMountPath":"/mnt"}`), patch("shrink", "400 update of mounts", `{"volumeInGb":10}`),
		patch("many", changed, `{"imageName":"nginx","containerDiskInGb":40,"env":{"B":"2"},"ports":[],"globalNetworking":false}`), patch("nothing", changed, `{}`),
		patch("unknown", "422 unknown property", `{"gpuCount":2}`), patch("bounds", "422 bound", `{"containerDiskInGb":0}`), patch("foreign", "404 foreign object", `{"name":"b"}`).of(plane.Other),
		v1Row("pods-v1", "update", changed, "POST", "/pods/"+podID+"/update", `{"name":"b"}`, func(t *testing.T, p *plane.Plane) { makePod(t, p) }),
		do("", "v1 pod action", "stop", running), do("", "v1 pod action", "start", running, exited), do("", "v1 pod action", "restart", running), do("", "v1 pod action", "reset", running),
		do("-running", "409 action not allowed", "start", running), do("-exited", "409 action not allowed", "stop", running, exited),
		v1Row("pods-v1", "delete", "204 terminate", "DELETE", "/pods/"+podID, "", func(t *testing.T, p *plane.Plane) { makePod(t, p) }),
		v1Row("pods-v1", "method", "405 with Allow", "PUT", "/pods", "", nil),
	}
}

func endpointsV1Rows() []row {
	const created, record, changed = "v1 endpoint created", "v1 endpoint record", "v1 endpoint changed"
	serverless := func(t *testing.T, p *plane.Plane) {
		template(t, p, plane.User, func(in *fleet.Template) { in.Serverless, in.DiskGB = true, 20 })
	}
	make := func(name, rule, members string) row {
		return v1Row("endpoints-v1", "create-"+name, rule, "POST", "/endpoints", `{"templateId":"<template-1>"`+members+"}", serverless)
	}
	made := func(t *testing.T, p *plane.Plane) { makeEndpoint(t, p, func(*fleet.EndpointSpec) {}) }
	get := func(name, query string) row {
		return v1Row("endpoints-v1", "get-"+name, record, "GET", "/endpoints/<endpoint-1>"+query, "", made)
	}
	patch := func(name, rule, body string) row {
		return v1Row("endpoints-v1", "patch-"+name, rule, "PATCH", "/endpoints/<endpoint-1>", body, made)
	}
	const gpu = `,"gpuTypeIds":["` + plane.SimGPU + `"]`
	missing := make("no-template", "422 missing field", gpu)
	missing.body = `{"name":"a","gpuTypeIds":["` + plane.SimGPU + `"]}`
	return []row{
		make("defaults", created, gpu), make("cpu", created, `,"computeType":"CPU","cpuFlavorIds":["cpu3g","cpu3c"],"vcpuCount":4`), make("cpu-defaults", created, `,"computeType":"CPU","cpuFlavorIds":["cpu3g"]`),
		make("all", created, gpu+`,"name":"a","gpuCount":2,"allowedCudaVersions":["12.8"],"dataCenterIds":["dev-1"],"workersMin":1,"workersMax":4,"idleTimeout":30,"scalerType":"QUEUE_DELAY",`+
			`"scalerValue":2.5,"executionTimeoutMs":60000,"flashboot":true`),
		make("requests", created, gpu+`,"scalerType":"REQUEST_COUNT","scalerValue":3`), make("two-pools", created, `,"gpuTypeIds":["NVIDIA A40","NVIDIA H100 PCIe"]`),
		make("no-gpu", "422 missing field", ""), missing, make("gpu-unknown", "422 unknown catalog id", `,"gpuTypeIds":["NVIDIA Nothing"]`),
		make("bounds", "422 bound", gpu+`,"workersMax":-1,"idleTimeout":0,"gpuCount":0`), make("scaler-value", "422 bound", gpu+`,"scalerValue":0.1`),
		make("enum", "422 enum", gpu+`,"scalerType":"NONE","computeType":"TPU"`), make("unknown", "422 unknown property", gpu+`,"type":"LB"`),
		make("types", "422 wrong type", gpu+`,"flashboot":"FLASHBOOT","workersMin":"1"`),
		make("volume-missing", "404 unknown reference names the field", gpu+`,"networkVolumeId":"`+missingID+`"`),
		make("reader", "403 key without the permission", gpu).of(plane.Reader),
		get("one", ""), get("more", "?includeTemplate=true&includeWorkers=true"), get("foreign", "").of(plane.Other),
		v1Row("endpoints-v1", "list", record, "GET", "/endpoints", "", made),
		patch("counts", changed, `{"workersMax":5,"workersMin":1,"idleTimeout":60,"name":"b"}`), patch("value", changed, `{"scalerValue":7}`),
		patch("type", changed, `{"scalerType":"REQUEST_COUNT","scalerValue":2}`), patch("gpus", changed, `{"gpuTypeIds":["NVIDIA H100 PCIe"],"gpuCount":1}`), patch("flash", changed, `{"flashboot":true,"executionTimeoutMs":0}`),
		patch("cuda", "400 CUDA list with floor", `{"minCudaVersion":"12.4"}`), patch("bounds", "422 bound", `{"workersMax":100000}`),
		v1Row("endpoints-v1", "update", changed, "POST", "/endpoints/<endpoint-1>/update", `{"name":"b"}`, made),
		v1Row("endpoints-v1", "delete", "204 endpoint", "DELETE", "/endpoints/<endpoint-1>", "", made),
	}
}

func templatesV1Rows() []row {
	const created, record, changed = "v1 template created", "v1 template record", "v1 template changed"
	make := func(name, rule, members string) row {
		return v1Row("templates-v1", "create-"+name, rule, "POST", "/templates", `{"name":"a","imageName":"busybox"`+members+"}", nil)
	}
	made := func(t *testing.T, p *plane.Plane) { template(t, p, plane.User, nil) }
	on := func(name, rule, method, path, body string) row {
		return v1Row("templates-v1", name, rule, method, "/templates"+path, body, made)
	}
	const one = "/<template-1>"
	return []row{
		make("defaults", created, ""), make("cpu", created, `,"category":"CPU"`), make("serverless", created, `,"isServerless":true,"ports":[]`), make("readme", "v1 value that is not supported", `,"readme":"x"`),
		make("all", created, `,"category":"NVIDIA","containerDiskInGb":30,"dockerEntrypoint":["sh"],"dockerStartCmd":["-c","id"],"env":{"A":"1"},"isPublic":true,"ports":["80/http"],"volumeInGb":50,"volumeMountPath":"/data","readme":""`),
		make("bounds", "422 bound", `,"containerDiskInGb":0`), make("enum", "422 enum", `,"category":"TPU"`), make("unknown", "422 unknown property", `,"image":"x"`),
		make("registry", "404 unknown reference names the field", `,"containerRegistryAuthId":"`+missingID+`"`), make("reader", "403 key without the permission", "").of(plane.Reader),
		on("get", record, "GET", one, ""), on("list", record, "GET", "", ""), on("foreign", "404 foreign object", "GET", one, "").of(plane.Other),
		on("patch", changed, "PATCH", one, `{"name":"b","volumeInGb":30,"dockerStartCmd":["x"]}`), on("update", changed, "POST", one+"/update", `{"env":{},"isPublic":true}`),
		on("patch-bounds", "422 bound", "PATCH", one, `{"volumeInGb":5}`), on("delete", "204 template", "DELETE", one, ""),
	}
}

func othersV1Rows() []row {
	const cred, bill = "v1 registry credential", "v1 billing"
	auth := func(name, rule, method, path, body string) row {
		return v1Row("others-v1", name, rule, method, "/containerregistryauth"+path, body, func(t *testing.T, p *plane.Plane) {
			_, _, err := p.CreateRegistry(t.Context(), p.Who(plane.User), "mine", fleet.Credential{Username: "u", Password: "p"}, nil)
			must(t, err)
		})
	}
	paid := func(name, rule, path string) row {
		return v1Row("others-v1", name, rule, "GET", "/billing/"+path, "", charged)
	}
	return []row{
		auth("auth-list", cred, "GET", "", ""), auth("auth-get", cred, "GET", "/<registry-1>", ""), auth("auth-create", cred, "POST", "", `{"name":"a","username":"u","password":"s3cret-value"}`),
		auth("auth-no-password", "422 missing field", "POST", "", `{"name":"a","username":"u"}`), auth("auth-user", "422 pattern", "POST", "", `{"name":"a","username":"u:v","password":"s3cret-value"}`),
		auth("auth-delete", "204 registry", "DELETE", "/<registry-1>", ""), auth("auth-patch", "405 with Allow", "PATCH", "/<registry-1>", `{"name":"b"}`), auth("auth-foreign", "404 foreign object", "GET", "/<registry-1>", "").of(plane.Other),
		paid("pods", bill, "pods?bucketSize=hour&grouping=podId"), paid("pods-one", bill, "pods?podId="+missingID), paid("pods-grouping", "422 enum", "pods?grouping=gpuTypeId"),
		paid("endpoints", bill, "endpoints"), paid("volumes", bill, "networkvolumes?bucketSize=day"), paid("times", "400 billing times", "pods?startTime=2026-10-02T00:00:00Z&endTime=2026-10-01T00:00:00Z"),
	}
}
