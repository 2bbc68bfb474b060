package rest

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"gantry/fleet"
)

// CreatePodRequest is the body that creates a pod.
type CreatePodRequest struct {
	PodSettings
	Name          string           `json:"name" doc:"Name of the pod; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"trainer"`
	GPU           *CreateGPUConfig `json:"gpu,omitempty" doc:"GPUs of a GPU pod. Exactly one of gpu and cpu must be set (400 otherwise)."`
	CPU           *CreateCPUConfig `json:"cpu,omitempty" doc:"vCPUs of a CPU pod. Exactly one of gpu and cpu must be set (400 otherwise)."`
	Cloud         string           `json:"cloud,omitempty" doc:"Tier of hosts." enum:"SECURE,COMMUNITY" default:"SECURE"`
	DataCenterIDs []string         `json:"dataCenterIds,omitempty" doc:"Data centers to choose from; omitted or empty: any." maxItems:"32" example:"[\"EU-RO-1\"]"`
	StartSSH      *bool            `json:"startSsh,omitempty" doc:"Put the account's SSH keys, one per line, into the variable PUBLIC_KEY, unless env sets PUBLIC_KEY or SSH_PUBLIC_KEY or the account has none. Omitted: as the template says, or false."`
	StartJupyter  *bool            `json:"startJupyter,omitempty" doc:"Put a random password into the variable JUPYTER_PASSWORD, unless env sets it. Omitted: as the template says, or false."`
}

// PodSettings are the members that creating and updating a pod have in common; what is left out stays as it
// is, is the template's, or is the default.
type PodSettings struct {
	Image            string            `json:"image,omitempty" doc:"Image reference, with an optional registry, tag and digest." minLength:"1" maxLength:"512" example:"docker.io/library/nginx:1.29"`
	Args             *string           `json:"args,omitempty" doc:"Replaces the image's command: words as a POSIX shell splits them, or a JSON object with \"entrypoint\" and \"cmd\", lists of strings. Empty keeps the image's own." maxLength:"32768" example:"python train.py --epochs 3"`
	Disk             int               `json:"disk,omitempty" doc:"Container disk in GB (10^9 bytes), wiped at every start. Default: 20 for GPU pods, 10 for CPU pods." minimum:"1" maximum:"65536" example:"20"`
	Ports            []string          `json:"ports,omitzero" doc:"Ports to expose, each number/protocol: 1 to 65535, http or tcp; at most 10 of http, none twice. A tcp port from 70000 to 135535 is symmetrical: the container listens at the very port that is published, and reads it from RUNPOD_TCP_PORT_70000 or GANTRY_TCP_PORT_70000." maxItems:"40" example:"[\"8080/http\",\"22/tcp\"]"`
	Env              map[string]string `json:"env,omitzero" doc:"Environment variables, at most 50. Names are letters, digits and underscores, at most 256; values have at most 32768 characters and no NUL." maxProperties:"50" example:"{\"EPOCHS\":\"3\"}"`
	Registry         Maybe[string]     `json:"registry,omitzero" doc:"Registry credential for a private image, or null: none." minLength:"1" maxLength:"191"`
	Mounts           *Mounts           `json:"mounts,omitempty" doc:"Storage mounts. persistent and network exclude each other (400)."`
	GlobalNetworking *bool             `json:"globalNetworking,omitempty" doc:"Join the account's private network. Needs an NVIDIA GPU and a data center that has it (400 otherwise). Default false."`
	Movable          *bool             `json:"movable,omitempty" doc:"Let a drain of its host stop the pod and start it on another, where its place is reserved first. Omitted in a create: the installation's default."`
	TemplateID       string            `json:"templateId,omitempty" doc:"Template to fill in what the body leaves out; env is merged, the body's values win." minLength:"1" maxLength:"191"`
}

// CreateGPUConfig asks for GPUs.
type CreateGPUConfig struct {
	ID            string   `json:"id" doc:"GPU type, as GET /v2/catalog/gpus lists it." minLength:"1" maxLength:"191" example:"NVIDIA H100 80GB HBM3"`
	Count         int      `json:"count,omitempty" doc:"Number of GPUs." minimum:"1" maximum:"64" default:"1" example:"1"`
	AllowedCUDA   []string `json:"allowedCudaVersions,omitzero" doc:"Only hosts whose CUDA version is one of these, as major.minor. Empty: any, also against a template. Excludes minCudaVersion (400)." maxItems:"32" example:"[\"12.8\"]"`
	MinCUDA       string   `json:"minCudaVersion,omitempty" doc:"Only hosts whose CUDA version is this or newer, as major.minor. Excludes allowedCudaVersions (400)." maxLength:"16" pattern:"^\\d+\\.\\d+$" patternDescription:"major.minor" example:"12.4"`
	MinRAMPerGPU  int      `json:"minRamPerGpu,omitempty" doc:"Only hosts with at least this memory in GB for each GPU asked for; the pod gets at least that." minimum:"1" maximum:"65536" example:"32"`
	MinVCPUPerGPU int      `json:"minVcpuCountPerGpu,omitempty" doc:"Only hosts with at least this many vCPUs for each GPU asked for; the pod gets at least that." minimum:"1" maximum:"4096" example:"8"`
}

// CreateCPUConfig asks for virtual CPUs.
type CreateCPUConfig struct {
	ID        string `json:"id" doc:"CPU flavor, as GET /v2/catalog/cpus lists it." minLength:"1" maxLength:"191" example:"cpu3g"`
	VCPUCount int    `json:"vcpuCount" doc:"Number of vCPUs: a power of two that the flavor allows." minimum:"2" maximum:"256" example:"4"`
}

const (
	// imagePattern is the grammar of an image reference: [host[:port]/]path[:tag][@digest].
	imagePattern = `^(?:(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?/)?` +
		`[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*` +
		`(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64}|@sha512:[0-9a-f]{128})?$`
	portPattern    = `^[0-9]{1,8}/(http|tcp)$`
	envNamePattern = `^[A-Za-z_][A-Za-z0-9_]{0,255}$`
	cudaPattern    = `^\d+\.\d+$`
	cudaForm       = "major.minor"
	maxEnvValue    = 32768
	maxHTTPPorts   = 10
	maxPort        = 65535
)

// TransformSchema adds what field tags cannot say.
func (CreatePodRequest) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	least, longest := 1, 64
	centers := s.Properties["dataCenterIds"].Items
	centers.MinLength, centers.MaxLength = &least, &longest
	describeSettings(s)
	return s
}

// TransformSchema adds what field tags cannot say.
func (CreateGPUConfig) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	longest := 16
	versions := s.Properties["allowedCudaVersions"].Items
	versions.Pattern, versions.PatternDescription, versions.MaxLength = cudaPattern, cudaForm, &longest
	return s
}

// describeSettings adds to a schema with PodSettings what field tags cannot say.
func describeSettings(s *huma.Schema) {
	describeImage(s.Properties["image"])
	describePorts(s.Properties["ports"])
	describeEnv(s.Properties["env"])
}

func describeImage(s *huma.Schema) {
	s.Pattern, s.PatternDescription = imagePattern, "an image reference such as docker.io/library/nginx:1.29"
}

func describePorts(s *huma.Schema) {
	s.Items.Pattern, s.Items.PatternDescription = portPattern, "number/protocol with the protocol http or tcp"
}

func describeEnv(s *huma.Schema) {
	most := maxEnvValue
	s.Extensions = map[string]any{"propertyNames": map[string]any{"pattern": envNamePattern}}
	s.AdditionalProperties = &huma.Schema{Type: huma.TypeString, MaxLength: &most}
}

func (in *CreatePodRequest) check() []string {
	var out []string
	if in.Image == "" && in.TemplateID == "" {
		out = append(out, "$: missing property 'image'")
	}
	if in.CPU != nil && bits.OnesCount(uint(in.CPU.VCPUCount)) != 1 {
		out = append(out, "$.cpu.vcpuCount: must be a power of two")
	}
	return append(out, in.PodSettings.check()...)
}

func (in *PodSettings) check() []string {
	var out []string
	if in.Args != nil {
		out = checkArgs(*in.Args)
	}
	return append(append(out, checkPorts(in.Ports)...), checkEnv(in.Env)...)
}

func checkArgs(args string) []string {
	if strings.ContainsRune(args, 0) {
		return []string{"$.args: must not contain NUL"}
	}
	if _, err := fleet.ParseArgs(args); err != nil {
		return []string{"$.args: " + err.Error()}
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

// parsePort reads what portPattern let pass.
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

// rules checks the rules between fields: CodeConflictRule.
func (in *CreatePodRequest) rules() error {
	switch {
	case in.GPU != nil && in.CPU != nil:
		return fleet.BreaksRule("gpu and cpu exclude each other: set exactly one")
	case in.GPU == nil && in.CPU == nil:
		return fleet.BreaksRule("exactly one of gpu and cpu must be set")
	case in.GlobalNetworking != nil && *in.GlobalNetworking && in.GPU == nil:
		return fleet.BreaksRule("globalNetworking needs an NVIDIA GPU")
	case in.GPU != nil && len(in.GPU.AllowedCUDA) > 0 && in.GPU.MinCUDA != "":
		return fleet.BreaksRule("gpu.allowedCudaVersions and gpu.minCudaVersion exclude each other")
	}
	if m := in.Mounts; m != nil && m.Persistent != nil && in.CPU != nil && len(m.Network) == 0 {
		return fleet.BreaksRule("mounts.persistent is not available for CPU pods")
	}
	return in.Mounts.rules()
}

func (in *CreatePodRequest) request() fleet.PodRequest {
	out := fleet.PodRequest{
		Name: in.Name, Image: in.Image, DiskGB: in.Disk, Ports: parsePorts(in.Ports), PortsSet: in.Ports != nil, Env: in.Env,
		Cloud: fleet.Cloud(in.Cloud), Template: fleet.TemplateID(in.TemplateID), Registry: in.registry(),
		StartSSH: in.StartSSH, StartJupyter: in.StartJupyter, Movable: in.Movable,
	}
	if in.Args != nil {
		out.Args, out.ArgsSet = *in.Args, true
	}
	if in.GlobalNetworking != nil {
		out.GlobalNetworking = *in.GlobalNetworking
	}
	out.Persistent, out.Network = in.Mounts.parts()
	if in.GPU != nil {
		out.GPU = &fleet.GPURequest{Type: in.GPU.ID, Count: max(in.GPU.Count, 1)}
		out.CUDA = in.GPU.cuda()
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

// registry tells "not said" (nil) from none (empty).
func (in *PodSettings) registry() *fleet.RegistryID {
	if !in.Registry.Set {
		return nil
	}
	id := fleet.RegistryID("")
	if in.Registry.Value != nil {
		id = fleet.RegistryID(*in.Registry.Value)
	}
	return &id
}

// cuda tells "not said" (nil) from any version.
func (in *CreateGPUConfig) cuda() *fleet.CUDARange {
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
