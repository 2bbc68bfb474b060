package rest

import (
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"gantry/fleet"
)

// CreatePodRequest is the body that creates a pod.
type CreatePodRequest struct {
	Name             string            `json:"name" doc:"Name of the pod; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f]*$" patternDescription:"text without control characters" example:"trainer"`
	Image            string            `json:"image" doc:"Image reference, with an optional registry, tag and digest." minLength:"1" maxLength:"512" example:"docker.io/library/nginx:1.29"`
	GPU              *CreateGPUConfig  `json:"gpu,omitempty" doc:"GPUs of a GPU pod. Exactly one of gpu and cpu must be set (400 otherwise)."`
	CPU              *CreateCPUConfig  `json:"cpu,omitempty" doc:"vCPUs of a CPU pod. Exactly one of gpu and cpu must be set (400 otherwise)."`
	Args             string            `json:"args,omitempty" doc:"Replaces the image's command: words as a POSIX shell splits them, or a JSON object with \"entrypoint\" and \"cmd\", lists of strings. Empty keeps the image's own." maxLength:"32768" example:"python train.py --epochs 3"`
	Disk             int               `json:"disk,omitempty" doc:"Container disk in GB (10^9 bytes), wiped at every start. Default: 20 for GPU pods, 10 for CPU pods." minimum:"1" maximum:"65536" example:"20"`
	Ports            []string          `json:"ports,omitempty" doc:"Ports to expose, each number/protocol: 1 to 65535, http or tcp; at most 10 of http, none twice." maxItems:"40" example:"[\"8080/http\",\"22/tcp\"]"`
	Env              map[string]string `json:"env,omitempty" doc:"Environment variables, at most 50. Names are letters, digits and underscores, at most 256; values have at most 32768 characters and no NUL." maxProperties:"50" example:"{\"EPOCHS\":\"3\"}"`
	Registry         *string           `json:"registry,omitempty" nullable:"true" doc:"Registry credential for a private image, or null." minLength:"1" maxLength:"191"`
	Mounts           *Mounts           `json:"mounts,omitempty" doc:"Storage mounts. persistent and network exclude each other (400)."`
	Cloud            string            `json:"cloud,omitempty" doc:"Tier of hosts." enum:"SECURE,COMMUNITY" default:"SECURE"`
	DataCenterIDs    []string          `json:"dataCenterIds,omitempty" doc:"Data centers to choose from; omitted or empty: any." maxItems:"32" example:"[\"EU-RO-1\"]"`
	GlobalNetworking bool              `json:"globalNetworking,omitempty" doc:"Join the account's private network. Needs a GPU pod in a data center that has it (400 otherwise)." default:"false"`
	TemplateID       string            `json:"templateId,omitempty" doc:"Template to fill in what the body leaves out." minLength:"1" maxLength:"191"`
}

// CreateGPUConfig asks for GPUs.
type CreateGPUConfig struct {
	ID    string `json:"id" doc:"GPU type, as GET /v2/catalog/gpus lists it." minLength:"1" maxLength:"191" example:"NVIDIA H100 80GB HBM3"`
	Count int    `json:"count,omitempty" doc:"Number of GPUs." minimum:"1" maximum:"64" default:"1" example:"1"`
}

// CreateCPUConfig asks for virtual CPUs.
type CreateCPUConfig struct {
	ID        string `json:"id" doc:"CPU flavor, as GET /v2/catalog/cpus lists it." minLength:"1" maxLength:"191" example:"cpu3g"`
	VCPUCount int    `json:"vcpuCount" doc:"Number of vCPUs: a power of two that the flavor allows." minimum:"2" maximum:"256" example:"4"`
}

// Mounts are the storage mounts of a pod.
type Mounts struct {
	Persistent *PersistentMount `json:"persistent,omitempty" doc:"Host-local storage; not for CPU pods. Deprecated in favor of network mounts."`
	Network    []NetworkMount   `json:"network,omitempty" doc:"Network volumes, at most one." maxItems:"1"`
}

// PersistentMount is host-local storage.
type PersistentMount struct {
	Size int    `json:"size" doc:"Size in GB." minimum:"10" maximum:"65536" example:"20"`
	Path string `json:"path" doc:"Absolute path in the container; not / and not a system path (400 otherwise)." minLength:"1" maxLength:"4096" example:"/workspace"`
}

// NetworkMount is a mounted network volume.
type NetworkMount struct {
	VolumeID string `json:"volumeId" doc:"Network volume of the pod's data center." minLength:"1" maxLength:"191"`
	Path     string `json:"path" doc:"Absolute path in the container; not / and not a system path (400 otherwise)." minLength:"1" maxLength:"4096" example:"/workspace"`
}

const (
	// imagePattern is the grammar of an image reference: [host[:port]/]path[:tag][@digest].
	imagePattern = `^(?:(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?/)?` +
		`[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*` +
		`(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64}|@sha512:[0-9a-f]{128})?$`
	portPattern    = `^[0-9]{1,8}/(http|tcp)$`
	envNamePattern = `^[A-Za-z_][A-Za-z0-9_]{0,255}$`
	maxEnvValue    = 32768
	maxHTTPPorts   = 10
	maxPort        = 65535
)

// TransformSchema adds what field tags cannot say.
func (CreatePodRequest) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	image := s.Properties["image"]
	image.Pattern, image.PatternDescription = imagePattern, "an image reference such as docker.io/library/nginx:1.29"
	ports := s.Properties["ports"].Items
	ports.Pattern, ports.PatternDescription = portPattern, "number/protocol with the protocol http or tcp"
	most := maxEnvValue
	s.Properties["env"].Extensions = map[string]any{"propertyNames": map[string]any{"pattern": envNamePattern}}
	s.Properties["env"].AdditionalProperties = &huma.Schema{Type: huma.TypeString, MaxLength: &most}
	least, longest := 1, 64
	centers := s.Properties["dataCenterIds"].Items
	centers.MinLength, centers.MaxLength = &least, &longest
	return s
}

func (in *CreatePodRequest) check() []string {
	var out []string
	if in.CPU != nil && bits.OnesCount(uint(in.CPU.VCPUCount)) != 1 {
		out = append(out, "$.cpu.vcpuCount: must be a power of two")
	}
	if strings.ContainsRune(in.Args, 0) {
		out = append(out, "$.args: must not contain NUL")
	} else if _, err := fleet.ParseArgs(in.Args); err != nil {
		out = append(out, "$.args: "+err.Error())
	}
	out = append(out, in.checkPorts()...)
	for _, name := range sortedKeys(in.Env) {
		if !validEnvName(name) {
			out = append(out, "$.env: the name "+quoteName(name)+" must be letters, digits and underscores, not starting with a digit")
		}
		if strings.ContainsRune(in.Env[name], 0) {
			out = append(out, join("$.env", name)+": must not contain NUL")
		}
	}
	return out
}

func (in *CreatePodRequest) checkPorts() []string {
	var out []string
	seen, https := map[fleet.Port]bool{}, 0
	for i, text := range in.Ports {
		at := "$.ports[" + strconv.Itoa(i) + "]: "
		p := parsePort(text)
		switch {
		case p.Number < 1 || p.Number > maxPort:
			out = append(out, at+"the port must be from 1 to 65535")
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

func validEnvName(name string) bool {
	if name == "" || len(name) > 256 || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	return strings.IndexFunc(name, func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}) < 0
}

// rules checks the rules between fields: CodeConflictRule, and CodeNotFound for what does not exist.
func (in *CreatePodRequest) rules() error {
	switch {
	case in.GPU != nil && in.CPU != nil:
		return fleet.BreaksRule("gpu and cpu exclude each other: set exactly one")
	case in.GPU == nil && in.CPU == nil:
		return fleet.BreaksRule("exactly one of gpu and cpu must be set")
	case in.GlobalNetworking && in.GPU == nil:
		return fleet.BreaksRule("globalNetworking needs an NVIDIA GPU")
	}
	if err := in.mountRules(); err != nil {
		return err
	}
	if in.GlobalNetworking {
		return fleet.BreaksRule("globalNetworking needs a data center with global networking, and none has it yet")
	}
	if in.Mounts != nil && len(in.Mounts.Network) > 0 {
		return missing("$.mounts.network[0].volumeId", "no such network volume")
	}
	if in.Registry != nil {
		return missing("$.registry", "no such registry credential")
	}
	if in.TemplateID != "" {
		return missing("$.templateId", "no such template")
	}
	return nil
}

func (in *CreatePodRequest) mountRules() error {
	m := in.Mounts
	if m == nil {
		return nil
	}
	if m.Persistent != nil && len(m.Network) > 0 {
		return fleet.BreaksRule("mounts.persistent and mounts.network exclude each other")
	}
	if m.Persistent != nil && in.CPU != nil {
		return fleet.BreaksRule("mounts.persistent is not available for CPU pods")
	}
	for _, n := range m.Network {
		if err := mountPath("mounts.network[0].path", n.Path); err != nil {
			return err
		}
	}
	if m.Persistent == nil {
		return nil
	}
	if err := mountPath("mounts.persistent.path", m.Persistent.Path); err != nil {
		return err
	}
	return fleet.BreaksRule("mounts.persistent cannot be provided: no host offers host-local storage yet")
}

// systemPaths may not be mounted over, nor anything below them.
func systemPaths() []string {
	return []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr"}
}

func mountPath(field, p string) error {
	clean := path.Clean(p)
	switch {
	case !path.IsAbs(p):
		return fleet.BreaksRule("%s must be absolute", field)
	case clean == "/":
		return fleet.BreaksRule("%s must not be /", field)
	case strings.ContainsRune(p, 0) || !utf8.ValidString(p):
		return fleet.BreaksRule("%s must not contain NUL", field)
	}
	for _, sys := range systemPaths() {
		if clean == sys || strings.HasPrefix(clean, sys+"/") {
			return fleet.BreaksRule("%s must not be a system path", field)
		}
	}
	return nil
}

// missing is the answer for something referenced that is not there, or not the caller's.
func missing(path, what string) error {
	return &fleet.Error{Code: fleet.CodeNotFound, Msg: "resource not found", Details: []string{path + ": " + what}}
}

func (in *CreatePodRequest) request() fleet.PodRequest {
	out := fleet.PodRequest{
		Name: in.Name, Image: in.Image, Args: in.Args, DiskGB: in.Disk, Env: in.Env, Cloud: fleet.Cloud(in.Cloud),
	}
	if in.GPU != nil {
		out.GPU = &fleet.GPURequest{Type: in.GPU.ID, Count: max(in.GPU.Count, 1)}
	}
	if in.CPU != nil {
		out.CPU = &fleet.CPURequest{Flavor: in.CPU.ID, VCPU: in.CPU.VCPUCount}
	}
	for _, p := range in.Ports {
		out.Ports = append(out.Ports, parsePort(p))
	}
	for _, id := range in.DataCenterIDs {
		if dc := fleet.DataCenterID(id); !slices.Contains(out.Centers, dc) {
			out.Centers = append(out.Centers, dc)
		}
	}
	return out
}

func sortedKeys(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
