package graphql_test

import (
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

const podFields = `id name imageName env dockerArgs dockerId containerDiskInGb volumeInGb volumeMountPath costPerHr desiredStatus lastStatusChange
  gpuCount vcpuCount memoryInGb machineId podType port ports uptimeSeconds clusterIp templateId networkVolumeId createdAt locked version
  containerRegistryAuthId lastStartedAt adjustedCostPerHr volumeEncrypted networkVolume { id name }
  runtime { uptimeInSeconds ports { ip isIpPublic privatePort publicPort PortType: type } gpus { id gpuUtilPercent memoryUtilPercent }
    container { cpuPercent memoryPercent } }
  machine { podHostId gpuTypeId gpuDisplayName location dataCenterId secureCloud costPerHr }`

const endpointFields = `id name aiKey gpuIds idleTimeout locations networkVolumeId networkVolume { id dataCenterId } networkVolumeIds { networkVolumeId
  dataCenterId } scalerType scalerValue templateId type userId version workersMax workersMin workersStandby gpuCount env { key value } createdAt
  flashBootType instanceIds computeType allowedCudaVersions minCudaVersion executionTimeoutMs modelReferences template { id name imageName dockerArgs
  containerDiskInGb ports env { key value } } pods { id }`

const templateFields = `id name imageName isServerless isPublic isRunpod category containerDiskInGb volumeInGb volumeMountPath ports env { key value }
  dockerArgs readme containerRegistryAuthId startSsh startJupyter createdAt`

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA me@laptop"

func topics() []topic {
	return []topic{
		{name: "account", rows: accountRows()},
		{name: "pods", setup: withVolume, rows: podRows()},
		{name: "pod-inputs", setup: withVolume, rows: podInputRows()},
		{name: "cpu-pods", setup: withVolume, rows: cpuPodRows()},
		{name: "endpoints", setup: withVolume, rows: endpointRows()},
		{name: "templates", rows: templateRows()},
		{name: "registries", rows: registryRows()},
		{name: "volumes", setup: withVolume, rows: volumeRows()},
		{name: "catalog", rows: catalogRows()},
		{name: "clusters", setup: roomForCluster, rows: clusterRows()},
		{name: "documents", rows: documentRows()},
		{name: "own-limits", setup: ownLimits, rows: ownLimitRows()},
		{name: "permissions", setup: restricted, rows: permissionRows()},
	}
}

func withVolume(t *testing.T, p *plane.Plane) {
	t.Helper()
	p.Provision(p.PutVolume(plane.User, 1, "dev-1"))
	p.PutVolume(plane.Other, 2, "dev-1")
}

// ownLimits has the account let itself spend a dollar an hour.
func ownLimits(t *testing.T, p *plane.Plane) {
	t.Helper()
	change := fleet.AccountUpdate{Prepaid: new(true), AccountSettings: fleet.AccountSettings{SpendLimit: new(fleet.Dollar)}}
	if _, err := p.UpdateAccount(t.Context(), plane.Research, change); err != nil {
		t.Fatal(err)
	}
}

func ownLimitRows() []row {
	return []row{
		{name: "the lower limit", query: `{ myself { spendLimit notifyLowBalance } }`},
		{name: "a pod beyond it", query: `mutation { podFindAndDeployOnDemand(input: { imageName: "busybox", gpuTypeId: "NVIDIA H100 80GB HBM3", gpuCount: 1 }) { id } }`},
	}
}

func accountRows() []row {
	return []row{
		{name: "who the caller is", query: `query { myself { id email } }`},
		{name: "all fields", query: `{ myself { id email authId pubKey clientBalance currentSpendPerHr spendLimit notifyPodsStale notifyPodsGeneral notifyLowBalance } }`},
		{name: "every list while there is nothing", query: `{ myself { pods { id } endpoints { id } networkVolumes { id } containerRegistryCreds { id } podTemplates { id } secrets { id } endpoint(id: "none") { id } } }`},
		{
			name: "SSH keys, one on a line", query: `mutation Mutation($input: UpdateUserSettingsInput) { updateUserSettings(input: $input) { id pubKey } }`,
			variables: `{"input":{"pubKey":"\n` + publicKey + `\n` + publicKey + `2\r\n"}}`,
		},
		{name: "a broken SSH key", query: `mutation { updateUserSettings(input: { pubKey: "ssh-ed25519 nonsense" }) { id } }`},
		{name: "no SSH keys", query: `mutation { updateUserSettings(input: { pubKey: "" }) { id pubKey } }`},
		{name: "settings without any", query: `mutation { updateUserSettings { id pubKey } }`},
		{name: "a secret", query: `mutation { secretCreate(input: { name: "HF_TOKEN", value: "hf_1", description: "mine" }) { id name createdAt } }`},
		{name: "a secret whose name is none", query: `mutation { secretCreate(input: { name: "a b", value: "x" }) { id } }`},
		{name: "a secret without a value", query: `mutation { secretCreate(input: { name: "A" }) { id } }`},
		{name: "secrets", query: `{ myself { secrets { id name } } }`},
		{name: "a secret is deleted", query: `mutation { secretDelete(id: "HF_TOKEN") }`},
		{name: "a secret that is not there", query: `mutation D($id: String!) { secretDelete(id: $id) }`, variables: `{"id":"HF_TOKEN"}`},
	}
}

func podRows() []row {
	return []row{
		{
			name: "a pod is created as clients inline it",
			query: `mutation {
  podFindAndDeployOnDemand(
    input: { name: "trainer", imageName: "docker.io/library/busybox:1.36", gpuTypeId: "NVIDIA H100 80GB HBM3", cloudType: ALL, supportPublicIp: true, startSsh: true, dataCenterId: "dev-1", gpuCount: 2, volumeInGb: 20, containerDiskInGb: 10, minVcpuCount: 1, minMemoryInGb: 1, dockerArgs: "sleep 1h", ports: "8888/http,22/tcp", volumeMountPath: "/data", env: [{ key: "EPOCHS", value: "3" }, { key: "A", value: "b=c" }] }
  ) { ` + podFields + ` }
}`,
			then: run,
		},
		{name: "it runs", query: `query pod($input: PodFilter!) { pod(input: $input) { ` + podFields + ` } }`, variables: `{"input":{"podId":"<pod-1>"}}`},
		{name: "all pods", query: `query myPods { myself { pods { id, name, desiredStatus, machine { podHostId }, runtime { ports { ip, PortType: type } } } } }`},
		{name: "another account's pod", key: plane.Other, query: `{ pod(input: { podId: "<pod-1>" }) { id } myself { pods { id } } }`},
		{name: "a pod without an id", query: `{ pod { id } }`},
		{name: "it is changed in place", query: `mutation { podEditJob(input: { podId: "<pod-1>", name: "renamed", volumeInGb: 30 }) { id name volumeInGb volumeMountPath } }`},
		{name: "it is changed, and restarts", query: `mutation E($input: PodEditJobInput!) { podEditJob(input: $input) { id imageName dockerArgs env ports containerDiskInGb desiredStatus lastStatusChange } }`, variables: `{"input":{"podId":"<pod-1>","imageName":"busybox:2","dockerArgs":"","env":[],"ports":"80/http","containerDiskInGb":12,"containerRegistryAuthId":""}}`},
		{name: "a change that is refused", query: `mutation { podEditJob(input: { podId: "<pod-1>", volumeInGb: 5, containerDiskInGb: 0 }) { id } }`},
		{name: "a change of another account's pod", key: plane.Other, query: `mutation { podEditJob(input: { podId: "<pod-1>", name: "x" }) { id } }`},
		{name: "it is stopped", query: `mutation { podStop(input: {podId: "<pod-1>"}) { id desiredStatus } }`, then: func(t *testing.T, p *plane.Plane) { end(t, p) }},
		{name: "it is stopped again", query: `mutation { podStop(input: {podId: "<pod-1>"}) { id desiredStatus } }`},
		{name: "it cannot have other GPUs", query: `mutation { podResume(input: { podId: "<pod-1>", gpuCount: 1 }) { id } }`},
		{name: "it is started", query: `mutation { podResume(input: { podId: "<pod-1>", gpuCount: 2 }) { id desiredStatus imageName env machineId machine { podHostId } costPerHr lastStatusChange } }`},
		{name: "an interruptible pod", query: `mutation R($input: PodRentInterruptableInput) { podRentInterruptable(input: $input) { id name podType costPerHr gpuCount desiredStatus } }`, variables: `{"input":{"name":"spot","imageName":"busybox:1","gpuTypeId":"NVIDIA H100 80GB HBM3","gpuCount":1,"bidPerGpu":1.5,"terminateAfter":"2100-01-01T00:00:00Z"}}`},
		{name: "an interruptible pod at the minimum", query: `mutation { podRentInterruptable(input: { imageName: "busybox:1", gpuTypeId: "NVIDIA H100 80GB HBM3" }) { id podType costPerHr } }`},
		{name: "a bid above the price", query: `mutation { podRentInterruptable(input: { imageName: "busybox:1", gpuTypeId: "NVIDIA H100 80GB HBM3", bidPerGpu: 99 }) { id } }`},
		{name: "no input of an interruptible pod", query: `mutation { podRentInterruptable { id } }`},
		{name: "it is stopped, too", query: `mutation { podStop(input: {podId: "<pod-2>"}) { id desiredStatus } }`, then: func(t *testing.T, p *plane.Plane) { ended(t, p, "<pod-2>") }},
		{name: "it cannot be resumed as on demand", query: `mutation { podResume(input: { podId: "<pod-2>", gpuCount: 1 }) { id } }`},
		{name: "it is resumed with another bid", query: `mutation { podBidResume(input: { podId: "<pod-2>", bidPerGpu: 1.75, gpuCount: 1 }) { id desiredStatus costPerHr podType } }`},
		{name: "another account bids", key: plane.Other, query: `mutation { podBidResume(input: { podId: "<pod-2>", bidPerGpu: 1.75 }) { id } }`},
		{name: "a bid for a pod on demand", query: `mutation { podBidResume(input: { podId: "<pod-1>", bidPerGpu: 1.75 }) { id } }`},
		{name: "a bid that is none", query: `mutation { podBidResume(input: { podId: "<pod-2>", bidPerGpu: -1 }) { id } }`},
		{name: "another account terminates it", key: plane.Other, query: `mutation { podTerminate(input: { podId: "<pod-1>" }) }`},
		{name: "it is terminated", query: `mutation { podTerminate(input: { podId: "<pod-1>" }) }`},
		{name: "it is terminated again", query: `mutation { podTerminate(input: { podId: "<pod-1>" }) }`},
		{name: "a pod that never was is terminated", query: `mutation T($podId: String!) { podTerminate(input: { podId: $podId }) }`, variables: `{"podId":"none0000000001"}`},
	}
}

// run has the first pod run.
func run(t *testing.T, p *plane.Plane) {
	t.Helper()
	id := fleet.PodID(p.Meant("<pod-1>"))
	p.Advance(3 * time.Second)
	for _, event := range []fleet.Trigger{fleet.EventStarting, fleet.EventRunning} {
		if err := p.Report(id, event); err != nil {
			t.Fatal(err)
		}
	}
	p.SetLive(id, fleet.Live{CPUPercent: 10, MemoryPercent: 20, GPUs: []fleet.GPUUse{{Util: 30, MemoryUtil: 40}, {Util: 50, MemoryUtil: 60}}})
	p.Advance(time.Minute)
}

// end has the first pod's container be gone.
func end(t *testing.T, p *plane.Plane) { ended(t, p, "<pod-1>") }

func ended(t *testing.T, p *plane.Plane, name string) {
	t.Helper()
	if err := p.Report(fleet.PodID(p.Meant(name)), fleet.EventExited); err != nil {
		t.Fatal(err)
	}
}

func podInputRows() []row {
	const create = `mutation ($input: PodFindAndDeployOnDemandInput) { podFindAndDeployOnDemand(input: $input) { id name imageName env costPerHr ports dockerArgs
  containerDiskInGb volumeInGb volumeMountPath networkVolumeId gpuCount machine { gpuTypeId dataCenterId secureCloud } } }`
	in := func(name, members string) row {
		return row{name: name, query: create, variables: `{"input":{"imageName":"busybox",` + members + `}}`}
	}
	const h100 = `"gpuTypeId":"NVIDIA H100 80GB HBM3"`
	return []row{
		{
			name: "one variable for each member", variables: `{"name":"v","image":"busybox","gpu":"NVIDIA H100 80GB HBM3","count":1,"disk":5,"cloud":"SECURE","env":[{"key":"A","value":"b"}],"ssh":false}`,
			query: `mutation ($name: String, $image: String!, $gpu: String, $count: Int!, $disk: Int, $cloud: CloudTypeEnum, $env: [EnvironmentVariableInput!]!, $ssh: Boolean, $volume: String) {
  podFindAndDeployOnDemand(input: { name: $name, imageName: $image, gpuTypeId: $gpu, gpuCount: $count, containerDiskInGb: $disk, cloudType: $cloud, env: $env, startSsh: $ssh, networkVolumeId: $volume }) { id name env } }`,
		},
		in("the least", h100),
		in("nulls and empty texts are as what is left out", h100+`,"name":null,"templateId":"","dockerArgs":"","ports":"","env":[],"networkVolumeId":"","dataCenterId":"","volumeKey":"",
			"objectMounts":null,"savingsPlan":null,"minCudaVersion":"","allowedCudaVersions":[],"compliance":[],"containerRegistryAuthId":"","stopAfter":null,"gpuCount":0,"minDownload":0,"volumeInGb":0,"containerDiskInGb":0`),
		in("the first type that there is room for", `"gpuTypeIdList":["NVIDIA B200",null,"NVIDIA H100 80GB HBM3"]`),
		in("the tier where there is room", `"gpuTypeId":"NVIDIA GeForce RTX 4090","cloudType":"ALL"`),
		in("one tier alone", `"gpuTypeId":"NVIDIA GeForce RTX 4090","cloudType":"SECURE"`),
		in("less than the least storage", h100+`,"volumeInGb":1`),
		in("a network volume in place of storage", h100+`,"networkVolumeId":"vol00000000001","volumeInGb":20`),
		in("another account's network volume", h100+`,"networkVolumeId":"vol00000000002","volumeMountPath":"/v"`),
		in("floors of the pod are floors of a GPU", h100+`,"gpuCount":2,"minVcpuCount":9,"minMemoryInGb":33`),
		in("floors that no host has", h100+`,"minMemoryInGb":60000`),
		in("a list of CUDA versions with a floor", h100+`,"allowedCudaVersions":["11.8","12.8"],"minCudaVersion":"12.0"`),
		in("certificates that no data center has", h100+`,"compliance":["HIPAA"]`),
		in("a certificate that is none", h100+`,"compliance":["NONE"]`),
		in("no type", `"gpuCount":1`),
		in("a type that is none", `"gpuTypeId":"NVIDIA NOTHING"`),
		in("wrong values", h100+`,"gpuCount":-1,"containerDiskInGb":-5,"ports":"80","env":[{"key":"1A","value":"x"},{"value":"y"},null],"volumeInGb":20,"volumeMountPath":"data"`),
		in("a template that is not there", h100+`,"templateId":"none0000000001"`),
		in("a registry credential that is not there", h100+`,"containerRegistryAuthId":"none0000000001"`),
		in("what there is not: speed of networks", h100+`,"minDownload":100,"minUpload":1`),
		in("what there is not: countries", h100+`,"countryCode":"US"`),
		in("what there is not: encryption", h100+`,"volumeKey":"secret-key"`),
		in("what there is not: savings plans", h100+`,"savingsPlan":{"planLength":"3months"}`),
		{name: "no input", query: `mutation { podFindAndDeployOnDemand { id } }`},
		{name: "no room", query: create, variables: `{"input":{"imageName":"busybox","gpuCount":8,` + h100 + `}}`},
	}
}

// roomForCluster adds a host, so that a cluster of two has room.
func roomForCluster(t *testing.T, p *plane.Plane) {
	t.Helper()
	withVolume(t, p)
	p.AddHost("host0000000003")
}

func clusterRows() []row {
	const create = `mutation ($input: CreateClusterInput) { createCluster(input: $input) { id name type dataCenterId createdAt pods { id name clusterIp lastStatusChange imageName gpuCount env networkVolumeId machine { podHostId } } } }`
	in := func(name, members string) row {
		return row{name: name, query: create, variables: `{"input":{` + members + `}}`}
	}
	const two = `"gpuTypeId":"NVIDIA H100 80GB HBM3","gpuCountPerPod":1,"podCount":2,"imageName":"busybox"`
	return []row{
		in("a cluster as an orchestrator makes it", two+`,"clusterName":"train","type":"TRAINING","deployCost":40,"dataCenterId":"dev-1","networkVolumeId":"vol00000000001","startSsh":true,"ports":"22/tcp","env":[{"key":"A","value":"b"}],
			"dockerArgs":"","containerDiskInGb":20,"volumeInGb":0,"volumeMountPath":"/workspace","allowedCudaVersions":[],"throughput":null,"volumeKey":null,"templateId":"","startJupyter":false`),
		{name: "its pods are not among the pods", query: `{ myself { pods { id } } }`},
		{name: "a pod of it", query: `{ pod(input: {podId: "<pod-1>"}) { id clusterIp } }`},
		{name: "a pod of it is not stopped", query: `mutation { podStop(input: {podId: "<pod-1>"}) { id } }`},
		in("the least", two),
		in("more than there is room for", `"gpuTypeId":"NVIDIA H100 80GB HBM3","gpuCountPerPod":8,"podCount":9,"imageName":"busybox"`),
		in("one pod", `"gpuTypeId":"NVIDIA H100 80GB HBM3","gpuCountPerPod":1,"podCount":1,"imageName":"busybox"`),
		in("nothing of what it needs", `"clusterName":"x"`),
		in("a type that is none", two+`,"type":"SWARM"`),
		in("what there is not: CUDA versions", two+`,"minCudaVersion":"12.4"`),
		in("what there is not: throughput", two+`,"throughput":100`),
		{name: "no input", query: `mutation { createCluster { id } }`},
		{name: "another account's", key: plane.Other, query: `mutation { deleteCluster(input: {id: "<cluster-1>"}) }`},
		{name: "it is deleted", query: `mutation ($id: String!) { deleteCluster(input: {id: $id}) }`, variables: `{"id":"<cluster-1>"}`},
		{name: "it is deleted again", query: `mutation { deleteCluster(input: {id: "<cluster-1>"}) }`},
	}
}

func cpuPodRows() []row {
	const create = `mutation createCpuPod($input: deployCpuPodInput!) { deployCpuPod(input: $input) { id name imageName env vcpuCount memoryInGb gpuCount costPerHr networkVolumeId templateId machine { podHostId gpuDisplayName } } }`
	in := func(name, members string) row {
		return row{name: name, query: create, variables: `{"input":{` + members + `}}`}
	}
	return []row{
		in("a CPU pod", `"instanceId":"cpu3g-2-8","cloudType":"SECURE","containerDiskInGb":10,"deployCost":0.08,"imageName":"busybox","name":"worker","env":[{"key":"A","value":"b"}],"startSsh":true,"networkVolumeId":"vol00000000001"`),
		in("the template that a library names by itself", `"instanceId":"cpu3c-4-8","deployCost":"0.1","imageName":"busybox","templateId":"runpod-ubuntu"`),
		in("that template without an image", `"instanceId":"cpu3c-4-8","templateId":"runpod-ubuntu"`),
		in("an instance that is none", `"instanceId":"cpu3g","imageName":"busybox"`),
		in("other memory than the flavor has", `"instanceId":"cpu3g-2-16","imageName":"busybox"`),
		in("a flavor that is none", `"instanceId":"cpu9z-2-16","imageName":"busybox"`),
		in("vCPUs that the flavor has not", `"instanceId":"cpu3g-3-12","imageName":"busybox"`),
		in("storage of a host, which CPU pods have not", `"instanceId":"cpu3g-2-8","imageName":"busybox","volumeInGb":10`),
	}
}

func endpointRows() []row {
	const save = `mutation saveEndpoint($input: EndpointInput!) { saveEndpoint(input: $input) { ` + endpointFields + ` } }`
	in := func(name, members string) row {
		return row{name: name, query: save, variables: `{"input":{` + members + `}}`}
	}
	return []row{
		{name: "a template for endpoints", query: `mutation { saveTemplate(input: { name: "worker", imageName: "busybox", isServerless: true, containerDiskInGb: 5, volumeInGb: 0, dockerArgs: "", env: [{key: "M", value: "small"}], ports: "" }) { id } }`},
		in("an endpoint from a template", `"name":"embed","templateId":"<template-1>","gpuIds":"ADA_80_PRO,AMPERE_80,-NVIDIA H100 PCIe","gpuCount":1,"networkVolumeId":"vol00000000001","locations":"dev-1","idleTimeout":5,"scalerType":"QUEUE_DELAY","scalerValue":4,"workersMin":0,"workersMax":3`),
		in("an endpoint with everything in its input", `"name":"inline","type":"QB","gpuIds":"ADA_80_PRO","gpuCount":2,"workersMin":0,"workersMax":null,"idleTimeout":7,"scalerType":"REQUEST_COUNT","scalerValue":3,"executionTimeoutMs":600000,"flashBootType":"FLASHBOOT",
			"locations":null,"networkVolumeIds":null,"compliance":[],"modelReferences":[],"minCudaVersion":"12.4","allowedCudaVersions":"11.8, 12.4,12.8","env":[{"key":"A","value":"1"}],
			"template":{"name":"inline__template__abc","imageName":"busybox","containerDiskInGb":20,"containerRegistryAuthId":"","dockerArgs":"","startScript":"","ports":"","env":[{"key":"A","value":"0"},{"key":"B","value":"2"}]}`),
		in("a balancer", `"name":"lb","type":"LB","gpuIds":"ADA_80_PRO","scalerValue":1,"template":{"imageName":"busybox","ports":"80/http"}`),
		in("an endpoint of CPU workers", `"name":"cpu","instanceIds":["cpu3g-2-8","cpu3c-2-4"],"template":{"imageName":"busybox"},"networkVolumeIds":[{"networkVolumeId":"vol00000000001"}]`),
		{name: "all endpoints", query: `query { myself { endpoints { id name type computeType networkVolumeIds { networkVolumeId dataCenterId } template { id imageName } } } }`},
		{name: "one endpoint", query: `query ($id: String!) { myself { endpoint(id: $id) { ` + endpointFields + ` } } }`, variables: `{"id":"<endpoint-1>"}`},
		{name: "another account's", key: plane.Other, query: `{ myself { endpoint(id: "<endpoint-1>") { id } endpoints { id } } }`},
		in("what is left out returns to its default", `"id":"<endpoint-1>","name":"embed2","gpuIds":"ADA_80_PRO"`),
		in("its workers are bounded", `"id":"<endpoint-1>","name":"embed2","workersMin":2,"workersMax":1`),
		{name: "it has workers and is not deleted", query: `mutation { deleteEndpoint(id: "<endpoint-1>") }`},
		{name: "another template", query: `mutation { saveTemplate(input: { name: "worker2", imageName: "busybox:2", isServerless: true }) { id } }`},
		{name: "it gets another template", query: `mutation ($input: UpdateEndpointTemplateInput) { updateEndpointTemplate(input: $input) { id templateId version template { imageName } } }`, variables: `{"input":{"templateId":"<template-2>","endpointId":"<endpoint-1>"}}`},
		{name: "it gets a template that is not there", query: `mutation { updateEndpointTemplate(input: { templateId: "none0000000001", endpointId: "<endpoint-1>" }) { id } }`},
		in("it can have no workers", `"id":"<endpoint-1>","name":"embed2","gpuIds":"ADA_80_PRO","workersMin":0,"workersMax":0`),
		{name: "it is deleted", query: `mutation ($id: String!) { deleteEndpoint(id: $id) }`, variables: `{"id":"<endpoint-1>"}`},
		{name: "it is deleted again", query: `mutation { deleteEndpoint(id: "<endpoint-1>") }`},
		{name: "without GPUs", query: fill(`name: "x", template: {imageName: "busybox"}`)},
		{name: "without an image", query: fill(`name: "x", gpuIds: "ADA_80_PRO"`)},
		{name: "a pool that is none", query: fill(`name: "x", gpuIds: "NOPE", template: {imageName: "busybox"}`)},
		{name: "a type that is none", query: fill(`name: "x", type: "XX", gpuIds: "ADA_80_PRO", template: {imageName: "busybox"}`)},
		{name: "a scaler that is none", query: fill(`name: "x", gpuIds: "ADA_80_PRO", scalerType: "MAGIC", template: {imageName: "busybox"}`)},
		{name: "wrong values", query: fill(`gpuIds: "ADA_80_PRO", gpuCount: 99, idleTimeout: 0, scalerValue: 0.1, executionTimeoutMs: -1, allowedCudaVersions: "new", template: {imageName: "busy box", containerDiskInGb: -1}`)},
		{name: "two volumes of one data center", query: fill(`name: "x", gpuIds: "ADA_80_PRO", networkVolumeIds: [{networkVolumeId: "vol00000000001"}, {networkVolumeId: "vol00000000002"}], template: {imageName: "busybox"}`)},
		{name: "what there is not: a hub", query: fill(`name: "x", hubReleaseId: "r1", gpuIds: "ADA_80_PRO", template: {imageName: "busybox"}`)},
		in("an endpoint with models", `"name":"chat","gpuIds":"ADA_80_PRO","template":{"imageName":"busybox"},"modelReferences":["https://huggingface.co/org/name:main"]`),
		in("without any more", `"id":"<endpoint-5>","name":"chat","gpuIds":"ADA_80_PRO","template":{"imageName":"busybox"}`),
		{name: "a model that is none", query: fill(`name: "x", modelReferences: ["https://example.com/a:b"], gpuIds: "ADA_80_PRO", template: {imageName: "busybox"}`)},
		{name: "what there is not: start scripts", query: fill(`name: "x", gpuIds: "ADA_80_PRO", template: {imageName: "busybox", startScript: "true"}`)},
	}
}

func templateRows() []row {
	const save = `mutation SaveTemplate($input: SaveTemplateInput) { saveTemplate(input: $input) { ` + templateFields + ` } }`
	in := func(name, members string) row {
		return row{name: name, query: save, variables: `{"input":{` + members + `}}`}
	}
	return []row{
		in("a template", `"name":"notebook","imageName":"busybox","dockerArgs":"sleep 1h","containerDiskInGb":15,"volumeInGb":20,"volumeMountPath":"/workspace","ports":"8888/http, 22/tcp","env":[{"key":"A","value":"b"}],"isServerless":false,"isPublic":true,"readme":"","startSsh":true,"startJupyter":false,"category":"NVIDIA","portLabels":null`),
		in("the least", `"name":"small","imageName":"busybox"`),
		in("it is changed", `"id":"<template-2>","name":"smaller","env":[{"key":"X","value":"y"}],"dockerArgs":"","containerRegistryAuthId":""`),
		in("without a name", `"imageName":"busybox","containerDiskInGb":0`),
		in("a start script", `"name":"x","imageName":"busybox","startScript":"true"`),
		in("a template that is not there", `"id":"none0000000001","name":"x"`),
		{name: "the account's templates", query: `{ myself { podTemplates { id name isServerless } } }`},
		{name: "public templates", query: `{ podTemplates { id name isPublic isRunpod } }`},
		{name: "official templates", query: `{ podTemplates(input: { isRunpod: true }) { id } }`},
		{name: "others' templates", key: plane.Other, query: `query ($input: PodTemplateInput) { podTemplates(input: $input) { id name } podTemplate(id: "<template-1>") { id env { key value } } }`, variables: `{"input":{"isRunpod":false}}`},
		{name: "another account's template", key: plane.Other, query: `{ podTemplate(id: "<template-2>") { id } }`},
		{name: "another account deletes one", key: plane.Other, query: `mutation { deleteTemplate(templateName: "notebook") }`},
		{name: "it is deleted by its name", query: `mutation ($templateName: String!) { deleteTemplate(templateName: $templateName) }`, variables: `{"templateName":"notebook"}`},
		{name: "it is deleted again", query: `mutation { deleteTemplate(templateName: "notebook") }`},
		in("a second of one name", `"name":"smaller","imageName":"busybox"`),
		{name: "a name that two have", query: `mutation { deleteTemplate(templateName: "smaller") }`},
		{name: "the id of one", query: `mutation { deleteTemplate(templateName: "<template-2>") }`},
		{name: "now one has it", query: `mutation { deleteTemplate(templateName: "smaller") }`},
	}
}

func registryRows() []row {
	return []row{
		{name: "a credential", query: `mutation SaveRegistryAuth($input: SaveRegistryAuthInput!) { saveRegistryAuth(input: $input) { id name } }`, variables: `{"input":{"name":"team","username":"robot","password":"secret-password"}}`},
		{name: "wrong values", query: `mutation { saveRegistryAuth(input: { name: "", username: "a:b" }) { id } }`},
		{name: "all of them", query: `{ myself { containerRegistryCreds { id name } } }`},
		{name: "another password", query: `mutation { updateRegistryAuth(input: { id: "<registry-1>", username: "robot2", password: "other-secret" }) { id name } }`},
		{name: "without a password", query: `mutation { updateRegistryAuth(input: { id: "<registry-1>", username: "robot2" }) { id } }`},
		{name: "of another account", key: plane.Other, query: `mutation { updateRegistryAuth(input: { id: "<registry-1>", username: "a", password: "b" }) { id } }`},
		{name: "it is deleted", query: `mutation ($registryAuthId: String!) { deleteRegistryAuth(registryAuthId: $registryAuthId) }`, variables: `{"registryAuthId":"<registry-1>"}`},
		{name: "it is deleted again", query: `mutation { deleteRegistryAuth(registryAuthId: "<registry-1>") }`},
	}
}

func volumeRows() []row {
	return []row{
		{name: "a volume, one variable for each member", query: `mutation ($name: String, $size: Int, $dataCenterId: String) { createNetworkVolume(input: { name: $name, size: $size, dataCenterId: $dataCenterId }) { id name size dataCenterId } }`, variables: `{"name":"data","size":50,"dataCenterId":"dev-1"}`},
		{name: "all of them", query: `{ myself { networkVolumes { id name size dataCenterId dataCenter { id name location } } } }`},
		{name: "it grows", query: `mutation ($input: UpdateNetworkVolumeInput!) { updateNetworkVolume(input: $input) { id name size } }`, variables: `{"input":{"id":"<volume-1>","name":"more","size":60}}`},
		{name: "it does not shrink", query: `mutation { updateNetworkVolume(input: { id: "<volume-1>", size: 20 }) { id } }`},
		{name: "a size that is none", query: `mutation { createNetworkVolume(input: { name: "a", size: 1, dataCenterId: "dev-1" }) { id } }`},
		{name: "a data center that is none", query: `mutation { createNetworkVolume(input: { name: "a", size: 10, dataCenterId: "nowhere" }) { id } }`},
		{name: "another account's", key: plane.Other, query: `mutation { updateNetworkVolume(input: { id: "vol00000000001", size: 500 }) { id } }`},
		{name: "it is deleted", query: `mutation { deleteNetworkVolume(input: { id: "<volume-1>" }) }`},
		{name: "it is deleted again", query: `mutation { deleteNetworkVolume(input: { id: "<volume-1>" }) }`},
	}
}

func catalogRows() []row {
	return []row{
		{
			name: "a GPU type", key: noKey,
			query: `query ($input: GpuTypeFilter, $lowest: GpuLowestPriceInput!) { gpuTypes(input: $input) { id displayName memoryInGb manufacturer cudaCores secureCloud communityCloud maxGpuCount
  maxGpuCountCommunityCloud maxGpuCountSecureCloud minPodGpuCount securePrice communityPrice oneWeekPrice oneMonthPrice threeMonthPrice sixMonthPrice communitySpotPrice secureSpotPrice
  clusterPrice nodeGroupDatacenters { id } lowestPrice(input: $lowest) { minimumBidPrice uninterruptablePrice minMemory minVcpu stockStatus compliance countryCode gpuName gpuTypeId
  gpuTypeCudaVersions { cudaVersion availability } } } }`,
			variables: `{"input":{"id":"NVIDIA H100 80GB HBM3"},"lowest":{"gpuCount":1}}`,
		},
		{name: "some GPU types", key: noKey, query: `{ gpuTypes(input: { ids: ["NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090", "none"] }) { id lowestPrice(input: { gpuCount: 2 }) { stockStatus uninterruptablePrice } } }`},
		{name: "one tier", query: `{ gpuTypes(input: { ids: ["NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"] }) { id secure: lowestPrice(input: { gpuCount: 1, secureCloud: true }) { stockStatus } community: lowestPrice(input: { gpuCount: 1, secureCloud: false }) { stockStatus uninterruptablePrice } } }`},
		{name: "a data center and a CUDA version", query: `{ gpuTypes(input: { id: "NVIDIA H100 80GB HBM3" }) { here: lowestPrice(input: { dataCenterId: "dev-1" }) { stockStatus } there: lowestPrice(input: { dataCenterId: "dev-2" }) { stockStatus } nowhere: lowestPrice(input: { dataCenterId: "x" }) { stockStatus } old: lowestPrice(input: { allowedCudaVersions: ["11.0"] }) { stockStatus } least: lowestPrice(input: { minCudaVersion: "12.0" }) { stockStatus } } }`},
		{name: "too many GPUs", query: `{ gpuTypes(input: { id: "NVIDIA H100 80GB HBM3" }) { lowestPrice(input: { gpuCount: 1000 }) { stockStatus } } }`},
		{name: "data centers", key: noKey, query: `{ dataCenters { id name location listed globalNetwork compliance } countryCodes }`},
		{name: "CPU flavors", key: noKey, query: `query ($id: CpuFlavorInput, $s: SpecificsInput) { cpuFlavors(input: $id) { id groupId groupName displayName minVcpu maxVcpu ramMultiplier diskLimitPerVcpu specifics(input: $s) { stockStatus securePrice } } }`, variables: `{"id":{"id":"cpu3g"},"s":{"dataCenterId":"dev-1","instanceId":"cpu3g-4-16"}}`},
		{name: "pools", key: noKey, query: `{ serverlessGpuPools { id gpuTypeIds } }`},
		{name: "what an installation has not", key: noKey, query: `query ($input: ListingsInput!) { listings(input: $input) { id title listedRelease { id config build { imageName } } } listing(id: "a") { id } listingFromRepo(repoOwner: "a", repoName: "b") { id } allAiApiPublicConfigs { id metadata } myModels { id } }`, variables: `{"input":{"limit":10,"orderBy":"deploys","orderDirection":"desc"}}`},
	}
}

func documentRows() []row {
	return []row{
		{name: "a field that is none", query: `{ myself { id nothing } }`},
		{name: "an argument that is none", query: `{ pod(id: "a") { id } }`},
		{name: "a type that is none", query: `query ($input: Nothing) { pod(input: $input) { id } }`, variables: `{"input":null}`},
		{name: "a syntax error", query: `{ myself { id }`},
		{name: "no document", query: ``},
		{name: "a variable of another type", query: `query ($podId: Int) { pod(input: { podId: $podId }) { id } }`, variables: `{"podId":1}`},
		{name: "a variable whose value is of another type", query: `query ($podId: String) { pod(input: { podId: $podId }) { id } }`, variables: `{"podId":{"secret-value":true}}`},
		{name: "a literal of another type", query: `{ pod(input: { podId: ["secret-value"] }) { id } }`},
		{name: "a word that is none", query: `mutation { podFindAndDeployOnDemand(input: { cloudType: SECRETVALUE }) { id } }`},
		{name: "a variable with a word that is none", query: `mutation ($c: CloudTypeEnum) { podFindAndDeployOnDemand(input: { cloudType: $c }) { id } }`, variables: `{"c":"SECRETVALUE"}`},
		{name: "a required variable without a value", query: `query ($podId: String!) { pod(input: { podId: $podId }) { id } }`},
		{name: "a member that the schema has not", query: `{ pod(input: { podId: "a", secretMember: 1 }) { id } }`},
		{name: "a variable's member that the schema has not", query: `query ($input: PodFilter) { pod(input: $input) { id } }`, variables: `{"input":{"podId":"a","secretMember":1}}`},
		{name: "members that the schema has not, and are null", query: `query ($input: PodFilter) { a: pod(input: $input) { id } b: pod(input: { podId: "a", other: null }) { id } }`, variables: `{"input":{"podId":"a","other":null}}`},
		{name: "two operations without a name", query: `query A { countryCodes } query B { countryCodes }`},
		{name: "a subscription", query: `subscription { myself { id } }`},
		{name: "aliases, fragments and directives", query: `query Q($with: Boolean!) { me: myself { ...Who email @include(if: $with) name: email @skip(if: $with) __typename } } fragment Who on User { id }`, variables: `{"with":false}`},
		{name: "one of two mutations is refused", query: `mutation { a: secretCreate(input: { name: "A", value: "x" }) { id } b: podStop(input: { podId: "none0000000001" }) { id } }`},
	}
}

func restricted(t *testing.T, p *plane.Plane) {
	t.Helper()
	withVolume(t, p)
	p.Restrict(plane.Reader, map[fleet.Group]fleet.Access{fleet.GroupGraphQL: fleet.AccessRead, fleet.GroupPods: fleet.AccessWrite, fleet.GroupAccount: fleet.AccessRead})
	p.Restrict(plane.Other, map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessWrite, fleet.GroupAccount: fleet.AccessWrite})
}

func permissionRows() []row {
	return []row{
		{name: "a key with graphql:read reads what it may otherwise read", key: plane.Reader, query: `{ myself { id pods { id } networkVolumes { id } } }`},
		{name: "a key with graphql:read changes nothing", key: plane.Reader, query: `mutation { podStop(input: { podId: "none0000000001" }) { id } }`},
		{name: "a key without graphql", key: plane.Other, query: `{ myself { id } }`},
		{name: "no key", key: noKey, query: `{ myself { id } }`},
		{name: "no key, and a change", key: noKey, query: `mutation { podTerminate(input: { podId: "none0000000001" }) }`},
		{name: "a key that has ended", key: plane.Expired, query: `{ myself { id } }`},
	}
}
