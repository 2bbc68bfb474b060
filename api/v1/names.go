package v1

import "github.com/danielgtaylor/huma/v2"

// Name tells what version 1 calls a member of a record of version 2, and what it has beside.
type Name struct {
	V1 string
	V2 string // path of the member in version 2; "[0]" after a name means the only item of its list; empty: there is none
	// Of says where the member is: c in the body of a create (C: required there), u in that of an update, r in the record.
	Of   string
	Note string // how the value differs; empty: it is the same
	// Default is what a create has that leaves the member out, where version 2 has another default.
	Default any

	schema  *huma.Schema // where it is not that of the member of version 2
	in, out func(any) any
}

// Noun is a kind of records under their names in version 1.
type Noun struct {
	Title, Path    string
	Record, Create string // components of version 2's document
	Update         string // empty: there is no update
	Names          []Name
}

func of(kind, text string) *huma.Schema { return &huma.Schema{Type: kind, Description: text} }

func words(text string, all ...any) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: text, Enum: all}
}

func textList(text string) *huma.Schema {
	most, long := 256, 32768
	return &huma.Schema{Type: huma.TypeArray, Description: text, MaxItems: &most, Items: &huma.Schema{Type: huma.TypeString, MaxLength: &long}}
}

func volumeSize() *huma.Schema {
	least, most := 0.0, 65536.0
	return &huma.Schema{Type: huma.TypeInteger, Description: "GB of host-local storage; 0: none, else at least 10.", Minimum: &least, Maximum: &most}
}

// constant is what version 1 shows of something that there is not.
func constant(v any) func(any) any { return func(any) any { return v } }

// unlike is a note on what a create may say only as if it had not.
const (
	unlike     = "only what changes nothing is taken: null, false, 0 or empty (422 otherwise)"
	argsNote   = "words of `args`; an empty list keeps the image's own"
	centerNote = "one of `dataCenterIds`"
)

// Nouns is the table of names: the faces' records differ in nothing else.
func Nouns() []Noun {
	return []Noun{
		{Title: "Pods", Path: "/v1/pods", Record: "Pod", Create: "CreatePodRequest", Update: "UpdatePodRequest", Names: podNames()},
		{
			Title: "Endpoints", Path: "/v1/endpoints", Record: "Endpoint", Create: "CreateEndpointRequest", Update: "UpdateEndpointRequest",
			Names: endpointNames(),
		},
		{Title: "Templates", Path: "/v1/templates", Record: "Template", Create: "CreateTemplateRequest", Update: "UpdateTemplateRequest", Names: templateNames()},
		{
			Title: "Network volumes", Path: "/v1/networkvolumes", Record: "NetworkVolume", Create: "CreateNetworkVolumeRequest", Update: "UpdateNetworkVolumeRequest",
			Names: []Name{
				{V1: "id", V2: "id", Of: "r"},
				{V1: "name", V2: "name", Of: "Cur"},
				{V1: "size", V2: "size", Of: "Cur"},
				{V1: "dataCenterId", V2: "dataCenter", Of: "Cr"},
			},
		},
		{Title: "Container registry credentials", Path: "/v1/containerregistryauth", Record: "Registry", Create: "CreateRegistryRequest", Names: []Name{
			{V1: "id", V2: "id", Of: "r"}, {V1: "name", V2: "name", Of: "Cr"}, {V1: "username", V2: "username", Of: "C"}, {V1: "password", V2: "password", Of: "C"},
		}},
	}
}

// container are the names of what pods and templates are made from.
func container() []Name {
	return []Name{
		{V1: "id", V2: "id", Of: "r"},
		{V1: "imageName", V2: "image", Of: "cur"},
		{V1: "image", V2: "image", Of: "r"},
		{V1: "containerDiskInGb", V2: "disk", Of: "cur", Default: 50},
		{V1: "env", V2: "env", Of: "cur"},
		{V1: "containerRegistryAuthId", V2: "registry", Of: "cur"},
		{V1: "dockerStartCmd", V2: "args", Of: "cur", Note: argsNote, schema: textList("Words in place of the image's command."), in: drop, out: command(1)},
		{V1: "dockerEntrypoint", V2: "args", Of: "cur", Note: argsNote, schema: textList("Words in place of the image's entrypoint."), in: drop, out: command(0)},
		{V1: "volumeInGb", V2: "mounts.persistent.size", Of: "cur", Default: 20, Note: "0: none", schema: volumeSize(), in: unlessZero, out: orZero},
		{V1: "volumeMountPath", V2: "mounts.persistent.path", Of: "cur", Default: "/workspace", Note: "of a pod with a network volume that one's path"},
		{V1: "ports", V2: "ports", Of: "cur", Default: []any{"8888/http", "22/tcp"}},
	}
}

func podNames() []Name {
	return append(container(), []Name{
		{V1: "name", V2: "name", Of: "cur", Default: "my pod"},
		{V1: "templateId", V2: "templateId", Of: "c"},
		{V1: "templateId", V2: "template", Of: "r"},
		{V1: "cloudType", V2: "cloud", Of: "c"},
		{
			V1: "computeType", Of: "c", Note: "which of `gpu` and `cpu` is set", Default: "GPU", in: drop,
			schema: words("GPU pods have GPUs, CPU pods have none.", "GPU", "CPU"),
		},
		{
			V1: "gpuTypeIds", V2: "gpu.id", Of: "c", Note: "the first with room is taken", in: drop,
			schema: textList("GPU types as GET /v2/catalog/gpus names them, the preferred first; the first with room is taken."),
		},
		{V1: "gpuTypePriority", Of: "c", Note: "the order of `gpuTypeIds` counts either way", schema: words("Both mean the order of gpuTypeIds.", "availability", "custom"), in: drop},
		{V1: "gpuCount", V2: "gpu.count", Of: "c"},
		{V1: "allowedCudaVersions", V2: "gpu.allowedCudaVersions", Of: "c"},
		{V1: "minRAMPerGPU", V2: "gpu.minRamPerGpu", Of: "c", Note: "no default"},
		{V1: "minVCPUPerGPU", V2: "gpu.minVcpuCountPerGpu", Of: "c", Note: "no default"},
		{
			V1: "cpuFlavorIds", V2: "cpu.id", Of: "c", Note: "the first with room is taken", in: drop,
			schema: textList("CPU flavors as GET /v2/catalog/cpus names them, the preferred first; the first with room is taken."),
		},
		{V1: "cpuFlavorPriority", Of: "c", Note: "as gpuTypePriority", schema: words("Both mean the order of cpuFlavorIds.", "availability", "custom"), in: drop},
		{V1: "vcpuCount", V2: "cpu.vcpuCount", Of: "cr", Default: 2, Note: "of CPU pods"},
		{V1: "dataCenterIds", V2: "dataCenterIds", Of: "c"},
		{V1: "dataCenterPriority", Of: "c", Note: "the scheduler chooses either way", schema: words("Both leave the choice to the scheduler.", "availability", "custom"), in: drop},
		{V1: "globalNetworking", V2: "globalNetworking", Of: "cu"},
		{V1: "locked", V2: "locked", Of: "ur"},
		{V1: "networkVolumeId", V2: "mounts.network[0].volumeId", Of: "cr"},
		{V1: "supportPublicIp", Of: "c", Note: "no effect: hosts that publish ports have an address", schema: of(huma.TypeBoolean, "No effect."), in: drop},
		{V1: "interruptible", V2: "interruptible", Of: "cr", Note: "at the minimum bid", out: func(v any) any { return v == true }},
		{V1: "countryCodes", Of: "c", Note: unlike, schema: textList("Any is refused; name data centers.")},
		{V1: "minDiskBandwidthMBps", Of: "c", Note: unlike, schema: of(huma.TypeNumber, "Any but 0 is refused.")},
		{V1: "minDownloadMbps", Of: "c", Note: unlike, schema: of(huma.TypeNumber, "Any but 0 is refused.")},
		{V1: "minUploadMbps", Of: "c", Note: unlike, schema: of(huma.TypeNumber, "Any but 0 is refused.")},
		{
			V1: "desiredStatus", V2: "status", Of: "r", Note: "RUNNING until it has ended, also while it starts; EXITED also of ERROR",
			schema: words("What it is to be.", "RUNNING", "EXITED", "TERMINATED"), out: desired,
		},
		{V1: "costPerHr", V2: "cost", Of: "r"},
		{V1: "adjustedCostPerHr", V2: "cost", Of: "r"},
		{V1: "machineId", V2: "hostId", Of: "r"},
		{V1: "memoryInGb", V2: "cpu.memory", Of: "r", Note: "of CPU pods"},
		{V1: "cpuFlavorId", V2: "cpu.id", Of: "r"},
		{V1: "createdAt", V2: "createdAt", Of: "r"},
		{V1: "lastStartedAt", V2: "startedAt", Of: "r"},
		{V1: "lastStatusChange", V2: "statusReason", Of: "r"},
		{V1: "gpu", V2: "gpu", Of: "r", Note: "with `displayName`", schema: of(huma.TypeObject, "GPUs: id, count, displayName.")},
		{V1: "publicIp", V2: "ssh", Of: "r", Note: "of the first published port", schema: of(huma.TypeString, "Address of the published ports, or null."), out: drop},
		{
			V1: "portMappings", V2: "runtime.ports", Of: "r", Note: "published port of each, or null",
			schema: of(huma.TypeObject, "Published ports by those in the container, or null."), out: mappings,
		},
		{V1: "machine", V2: "dataCenterId", Of: "r", Note: "with includeMachine", schema: of(huma.TypeObject, "Where it runs, with includeMachine."), out: drop},
		{V1: "networkVolume", Of: "r", Note: "with includeNetworkVolume", schema: of(huma.TypeObject, "Its network volume, with includeNetworkVolume."), out: drop},
		{V1: "template", Of: "r", Note: "with includeTemplate", schema: of(huma.TypeObject, "Its template, with includeTemplate."), out: drop},
		{V1: "savingsPlans", Of: "r", Note: "there are none", schema: textList("Always empty."), out: constant([]any{})},
		{V1: "volumeEncrypted", Of: "r", Note: "never", schema: of(huma.TypeBoolean, "Always false."), out: constant(false)},
	}...)
}

func endpointNames() []Name {
	return []Name{
		{V1: "id", V2: "id", Of: "r"},
		{V1: "name", V2: "name", Of: "cur", Default: "my endpoint"},
		{V1: "templateId", V2: "templateId", Of: "C"},
		{V1: "templateId", V2: "template", Of: "r"},
		{
			V1: "computeType", Of: "cr", Note: "which of `gpu` and `cpu` is set", Default: "GPU", in: drop, out: drop,
			schema: words("Whether workers have GPUs.", "GPU", "CPU"),
		},
		{
			V1: "gpuTypeIds", V2: "gpu.pools", Of: "cur", Note: "types of the pools but for `excludedTypes`", in: drop, out: drop,
			schema: textList("GPU types as GET /v2/catalog/gpus names them."),
		},
		{V1: "gpuCount", V2: "gpu.count", Of: "cur"},
		{V1: "allowedCudaVersions", V2: "gpu.allowedCudaVersions", Of: "cur"},
		{V1: "minCudaVersion", V2: "gpu.minCudaVersion", Of: "cur"},
		{V1: "cpuFlavorIds", V2: "cpu", Of: "cu", Note: "ids of `cpu`", schema: textList("CPU flavors, the preferred first."), in: drop},
		{V1: "vcpuCount", V2: "cpu[0].vcpuCount", Of: "cu", Default: 2, Note: "of all of `cpu`", in: drop},
		{V1: "instanceIds", V2: "cpu", Of: "r", Note: "flavor-vcpuCount-memory of each", schema: textList("CPU flavors with vCPUs and GB."), out: instances},
		{V1: "dataCenterIds", V2: "dataCenterIds", Of: "cur"},
		{V1: "networkVolumeId", V2: "networkVolumes[0]", Of: "cur", Note: "the first"},
		{V1: "networkVolumeIds", V2: "networkVolumes", Of: "cur"},
		{V1: "workersMin", V2: "workers.min", Of: "cur"},
		{V1: "workersMax", V2: "workers.max", Of: "cur"},
		{V1: "idleTimeout", V2: "workers.idleTimeout", Of: "cur", Default: 5, Note: "left out with REQUEST_COUNT"},
		{V1: "scalerType", V2: "scaling.type", Of: "cur", Default: "QUEUE_DELAY"},
		{
			V1: "scalerValue", V2: "scaling.queueDelay", Of: "cur", Default: 4, Note: "`requestCount` with REQUEST_COUNT", in: drop, out: drop,
			schema: of(huma.TypeNumber, "Seconds with QUEUE_DELAY, requests with REQUEST_COUNT."),
		},
		{V1: "executionTimeoutMs", V2: "timeout", Of: "cur"},
		{V1: "flashboot", V2: "flashboot", Of: "cur", Note: "true: FLASHBOOT, false: OFF", schema: of(huma.TypeBoolean, "Whether workers are frozen instead of ended."), in: flash, out: flashes},
		{V1: "env", V2: "env", Of: "r"},
		{V1: "createdAt", V2: "createdAt", Of: "r"},
		{V1: "version", V2: "version", Of: "r"},
		{V1: "template", Of: "r", Note: "with includeTemplate", schema: of(huma.TypeObject, "Its template, with includeTemplate."), out: drop},
		{V1: "workers", Of: "r", Note: "with includeWorkers, without `env`", schema: &huma.Schema{
			Type: huma.TypeArray, Description: "Its workers, with includeWorkers.", Items: of(huma.TypeObject, "A worker."),
		}, out: drop},
	}
}

func templateNames() []Name {
	return append(container(), []Name{
		{V1: "name", V2: "name", Of: "Cur"},
		{V1: "category", V2: "category", Of: "cur"},
		{V1: "isPublic", V2: "public", Of: "cur"},
		{V1: "isServerless", V2: "serverless", Of: "cr"},
		{V1: "isRunpod", V2: "source", Of: "r", Note: "whether it is official", schema: of(huma.TypeBoolean, "Whether it is an official one."), out: equals("official")},
		{V1: "readme", Of: "cur", Note: unlike, schema: of(huma.TypeString, "Any but the empty text is refused."), out: constant("")},
		{V1: "earned", Of: "r", Note: "always 0", schema: of(huma.TypeNumber, "Always 0."), out: constant(0)},
		{V1: "runtimeInMin", Of: "r", Note: "always 0", schema: of(huma.TypeNumber, "Always 0."), out: constant(0)},
	}...)
}
