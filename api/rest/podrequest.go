package rest

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
)

const (
	// imagePattern is the grammar of an image reference: [host[:port]/]path[:tag][@digest].
	imagePattern = `^(?:(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?/)?` +
		`[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*` +
		`(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64}|@sha512:[0-9a-f]{128})?$`
	envNamePattern = `^[A-Za-z_][A-Za-z0-9_]{0,255}$`
	cudaPattern    = `^\d+\.\d+$`
	cudaForm       = "major.minor"
	maxEnvValue    = 32768
	maxHTTPPorts   = 10
	maxPort        = 65535
)

func checkCreatePod(in *v2.CreatePodRequest) []string {
	var out []string
	if in.Image == nil && in.TemplateID == "" {
		out = append(out, "$: missing property 'image'")
	}
	if in.CPU != nil && bits.OnesCount(uint(in.CPU.VCPUCount)) != 1 {
		out = append(out, "$.cpu.vcpuCount: must be a power of two")
	}
	return append(out, checkSettings(in.Args, in.Ports, in.Env)...)
}

// checkSettings checks what pods and templates are made from.
func checkSettings(args *string, ports []string, env map[string]string) []string {
	return append(append(checkArgs(given(args)), checkPorts(ports)...), checkEnv(env)...)
}

func checkArgs(args string) []string {
	command, err := fleet.ParseArgs(args)
	if err != nil {
		return []string{"$.args: " + err.Error()}
	}
	for _, word := range append([]string{args}, slices.Concat(command.Entrypoint, command.Cmd)...) {
		if strings.ContainsRune(word, 0) { // which JSON can write without one
			return []string{"$.args: must not contain NUL"}
		}
	}
	return nil
}

func checkEnv(env map[string]string) []string {
	var out []string
	for _, name := range sortedKeys(env) {
		if !validEnvName(name) {
			out = append(out, "$.env: the name "+quoteName(name)+" must be letters, digits and underscores, not starting with a digit")
		}
		if strings.ContainsRune(env[name], 0) {
			out = append(out, join("$.env", name)+": must not contain NUL")
		}
	}
	return out
}

func checkPorts(ports []string) []string {
	var out []string
	seen, https := map[fleet.Port]bool{}, 0
	for i, text := range ports {
		at := "$.ports[" + strconv.Itoa(i) + "]: "
		p := parsePort(text)
		switch {
		case fleet.Symmetrical(p.Number) && p.Protocol != "tcp":
			out = append(out, at+"a symmetrical port must be tcp")
		case (p.Number < 1 || p.Number > maxPort) && !fleet.Symmetrical(p.Number):
			out = append(out, at+"the port must be from 1 to 65535, or a symmetrical one from 70000 to 135535")
		case seen[p]:
			out = append(out, at+"is given twice")
		}
		seen[p] = true
		if p.Protocol == "http" {
			https++
		}
	}
	if https > maxHTTPPorts {
		out = append(out, "$.ports: must have at most "+strconv.Itoa(maxHTTPPorts)+" items of protocol http")
	}
	return out
}

// parsePort reads what the pattern of ports let pass.
func parsePort(text string) fleet.Port {
	number, protocol, _ := strings.Cut(text, "/")
	n, _ := strconv.Atoi(number)
	return fleet.Port{Number: n, Protocol: protocol}
}

func parsePorts(texts []string) []fleet.Port {
	var out []fleet.Port
	for _, p := range texts {
		out = append(out, parsePort(p))
	}
	return out
}

func validEnvName(name string) bool {
	if name == "" || len(name) > 256 || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	return strings.IndexFunc(name, func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}) < 0
}

func podRequest(in *v2.CreatePodRequest) fleet.PodRequest {
	out := fleet.PodRequest{
		Name: in.Name, Image: given(in.Image), DiskGB: given(in.Disk), Ports: parsePorts(in.Ports), PortsSet: in.Ports != nil, Env: in.Env,
		Cloud: fleet.Cloud(in.Cloud), Template: fleet.TemplateID(in.TemplateID), Registry: wantedRegistry(in.Registry),
		StartSSH: in.StartSSH, StartJupyter: in.StartJupyter, Movable: in.Movable, GlobalNetworking: given(in.GlobalNetworking),
		Args: given(in.Args), ArgsSet: in.Args != nil,
	}
	out.Interruptible, out.Bid, out.Return = in.Interruptible, fleet.MoneyUSD(given(in.BidPerGPU)), given(in.Return)
	out.StopAfter, out.TerminateAfter = given(moment(in.StopAfter)), given(moment(in.TerminateAfter))
	out.Persistent, out.Network = mountParts(in.Mounts)
	out.HTTP = httpSettings(in.PortSettings)
	if in.GPU != nil {
		out.GPU = &fleet.GPURequest{Type: in.GPU.ID, Count: max(in.GPU.Count, 1)}
		out.CUDA = cudaRange(in.GPU)
		out.MinRAMPerGPU, out.MinVCPUPerGPU = in.GPU.MinRAMPerGPU, in.GPU.MinVCPUPerGPU
	}
	if in.CPU != nil {
		out.CPU = &fleet.CPURequest{Flavor: in.CPU.ID, VCPU: in.CPU.VCPUCount}
	}
	for _, id := range in.DataCenterIDs {
		if dc := fleet.DataCenterID(id); !slices.Contains(out.Centers, dc) {
			out.Centers = append(out.Centers, dc)
		}
	}
	return out
}

func httpSettings(in []v2.PortSetting) []fleet.HTTPSetting {
	out := make([]fleet.HTTPSetting, 0, len(in))
	for _, one := range in {
		out = append(out, fleet.HTTPSetting{Port: one.Port, Keyed: one.Access == v2.AccessKey, Most: one.Timeout})
	}
	return out
}

// moment tells "not said" (nil) from never (zero).
func moment(in v2.Maybe[v2.Time]) *time.Time {
	if !in.Set {
		return nil
	}
	return new(given(in.Value).Time)
}

// wantedRegistry tells "not said" (nil) from none (empty).
func wantedRegistry(in v2.Maybe[string]) *fleet.RegistryID {
	if !in.Set {
		return nil
	}
	return new(fleet.RegistryID(given(in.Value)))
}

// cudaRange tells "not said" (nil) from any version.
func cudaRange(in *v2.CreateGPUConfig) *fleet.CUDARange {
	if in.AllowedCUDA == nil && in.MinCUDA == "" {
		return nil
	}
	return &fleet.CUDARange{Allowed: slices.Clip(in.AllowedCUDA), Min: in.MinCUDA}
}

func sortedKeys(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
