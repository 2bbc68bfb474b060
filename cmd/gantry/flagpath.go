package main

import "strings"

// flagOfPath is what a person typed for a value that the API names by its path in the request.
func flagOfPath() map[string]string {
	return map[string]string{
		"$.name": "name", "$.image": "image", "$.args": "--args", "$.cpu.id": "--cpu", "$.cpu.vcpuCount": "--vcpu", "$.gpu.id": "--gpu",
		"$.gpu.count": "--count", "$.gpu.allowedCudaVersions": "--cuda", "$.gpu.minCudaVersion": "--min-cuda",
		"$.gpu.minRamPerGpu": "--min-ram-per-gpu", "$.gpu.minVcpuCountPerGpu": "--min-vcpu-per-gpu", "$.templateId": "--template",
		"$.ports": "--port", "$.env": "--env", "$.disk": "--disk", "$.registry": "--registry", "$.dataCenterIds": "--data-center",
		"$.cloud": "--cloud", "$.mounts.persistent": "--persistent", "$.mounts.network": "--network-volume",
		"$.globalNetworking": "--global-networking", "$.startSsh": "--ssh", "$.startJupyter": "--jupyter", "$.size": "--size",
		"$.dataCenter": "--data-center", "$.type": "--type", "$.preset": "--preset", "$.permissions": "--permission", "$.invoke": "--invoke",
		"$.expiresAt": "--expires-in", "$.quotas.minute": "--rate-minute", "$.quotas.hour": "--rate-hour", "$.quotas.day": "--rate-day",
		"$.egress": "--egress", "$.amount": "amount", "$.username": "--username", "$.password": "--password-file", "$.value": "value",
		"$.category": "--category", "$.ttlSeconds": "--ttl", "$.storageHost": "--storage-host", "$.storagePath": "--storage-path",
		"$.cpu": "--cpu", "$.gpu.pools": "--pool", "$.gpu.excludedTypes": "--exclude", "$.workers.min": "--min-workers",
		"$.workers.max": "--max-workers", "$.workers.idleTimeout": "--idle-timeout", "$.scaling.queueDelay": "--queue-delay",
		"$.scaling.requestCount": "--request-count", "$.timeout": "--execution-timeout", "$.retries": "--retries", "$.failAfter": "--fail-after",
		"$.waitTimeout": "--wait-timeout", "$.maxBody": "--max-body",
		"$.flashboot": "--flashboot", "$.networkVolumes": "--network-volume", "$.modelReferences": "--model",
		"path.id": "id", "path.name": "name", "query.count": "--count", "query.vcpuCount": "--vcpu", "query.status": "--status",
	}
}

// inFlags begins a failure, "$.cpu.id: rule", with the flag of the path instead: "--cpu: rule". Paths without a flag stay.
func inFlags(failure string) string {
	path, rule, ok := strings.Cut(failure, ": ")
	if !ok {
		return failure
	}
	flags, rest := flagOfPath(), ""
	for at := path; at != ""; {
		if flag, known := flags[at]; known {
			return flag + rest + ": " + rule
		}
		cut := strings.LastIndexAny(at, ".[")
		if cut < 0 {
			break
		}
		at, rest = at[:cut], path[cut:]
	}
	return failure
}
