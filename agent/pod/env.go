package pod

import (
	"strconv"
	"strings"

	"gantry/fleet"
)

// environment merges the owner's variables with those that every pod gets, each under its public
// name (wire-facts 6.1) and as GANTRY_*. The owner cannot set the latter, nor NVIDIA_*: which
// devices a container sees is decided by its assignment alone.
func (m *machine) environment(want Assignment) map[string]string {
	out := make(map[string]string, len(want.Env)+16)
	for k, v := range want.Env {
		if !strings.HasPrefix(k, "NVIDIA_") {
			out[k] = v
		}
	}
	gpu := ""
	if len(want.GPUs) > 0 {
		gpu = m.GPUName(want.GPUs[0])
	}
	vars := map[string]string{}
	for _, p := range want.Mappings {
		vars["PUBLIC_IP"] = m.PublicIP()
		vars["TCP_PORT_"+strconv.Itoa(p.Private)] = strconv.Itoa(p.Public)
	}
	cpus := (want.Limits.MilliCPU + 999) / 1000
	for name, value := range map[string]string{
		"POD_ID":       string(want.Pod),
		"DC_ID":        string(want.DataCenter),
		"POD_HOSTNAME": string(want.Pod),
		"GPU_COUNT":    strconv.Itoa(len(want.GPUs)),
		"GPU_NAME":     gpu,
		"CPU_COUNT":    strconv.FormatInt(cpus, 10),
		"MEM_GB":       strconv.FormatInt(want.Limits.MemoryMB*1_000_000/fleet.GB, 10),
	} {
		vars[name] = value
	}
	for name, value := range vars {
		out["RUNPOD_"+name] = value
		out["GANTRY_"+name] = value
	}
	return out
}
