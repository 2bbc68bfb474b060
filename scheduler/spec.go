package scheduler

import (
	"cmp"
	"crypto/rand"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gantry/fleet"
	"gantry/scheduler/state"
)

const (
	defaultDiskGPU = 20 // GB
	defaultDiskCPU = 10 // GB
	maxEnv         = 50 // variables, those of a template included

	// maxSSHKeyBytes is of all keys of an account: they share one variable of a pod, and Linux starts no
	// process with one above 128 KiB.
	maxSSHKeyBytes = 32_768

	passwordLength = 24
)

// checkMounts refuses the path of a mount, of which there is one at most. Errors: rule.
func checkMounts(persistent *fleet.PersistentMount, network *fleet.NetworkMount) error {
	field, path := "", ""
	switch {
	case persistent != nil:
		field, path = "mounts.persistent.path", persistent.Path
	case network != nil:
		field, path = "mounts.network[0].path", network.Path
	default:
		return nil
	}
	if fault := fleet.MountPathFault(path); fault != "" {
		return fleet.BreaksRule("%s %s", field, fault)
	}
	return nil
}

// specOf is the specification that a request and its template mean together. It refuses what names
// nothing that is there, and what cannot be meant.
func specOf(v *state.View, cat fleet.Catalog, account fleet.AccountID, req fleet.PodRequest) (fleet.PodSpec, error) {
	switch {
	case req.GPU != nil && req.CPU != nil:
		return fleet.PodSpec{}, fleet.BreaksRule("gpu and cpu exclude each other: set exactly one")
	case req.GPU == nil && req.CPU == nil:
		return fleet.PodSpec{}, fleet.BreaksRule("exactly one of gpu and cpu must be set")
	case req.GlobalNetworking && req.GPU == nil:
		return fleet.PodSpec{}, errNotNetworked()
	case req.Persistent != nil && req.Network != nil:
		return fleet.PodSpec{}, fleet.BreaksRule("mounts.persistent and mounts.network exclude each other")
	case req.Persistent != nil && req.CPU != nil:
		return fleet.PodSpec{}, fleet.BreaksRule("mounts.persistent is not available for CPU pods")
	case req.CUDA != nil && len(req.CUDA.Allowed) > 0 && req.CUDA.Min != "":
		return fleet.PodSpec{}, fleet.BreaksRule("gpu.allowedCudaVersions and gpu.minCudaVersion exclude each other")
	}
	if err := checkMounts(req.Persistent, req.Network); err != nil {
		return fleet.PodSpec{}, err
	}
	req, err := merge(v, account, req)
	if err != nil {
		return fleet.PodSpec{}, err
	}
	spec := fleet.PodSpec{
		Name: req.Name, Image: req.Image, Args: req.Args, DiskGB: req.DiskGB, Ports: req.Ports, Env: req.Env,
		Cloud: cmp.Or(req.Cloud, fleet.CloudSecure), Centers: req.Centers, Template: req.Template,
		Persistent: req.Persistent, Network: req.Network, GlobalNetworking: req.GlobalNetworking,
		Models: req.Models,
	}
	if req.Registry != nil {
		spec.Registry = *req.Registry
	}
	if req.Movable != nil {
		spec.Movable = *req.Movable
	}
	spec.StopAfter, spec.TerminateAfter, spec.HTTP = req.StopAfter, req.TerminateAfter, req.HTTP
	if spec.Spot, err = spotOf(cat, &req); err != nil {
		return fleet.PodSpec{}, err
	}
	if req.GPU != nil {
		specifyGPU(&spec, req)
	} else if err := specifyCPU(&spec, *req.CPU, cat); err != nil {
		return fleet.PodSpec{}, err
	}
	return spec, checkSpec(v, cat, account, &spec)
}

// merge fills in what a request leaves out from its template, and adds the variables that it asks for.
func merge(v *state.View, account fleet.AccountID, req fleet.PodRequest) (fleet.PodRequest, error) {
	var t fleet.Template
	if req.Template != "" {
		var err error
		if t, err = podTemplate(v, account, req.Template); err != nil {
			return req, err
		}
	}
	req.Image = cmp.Or(req.Image, t.Image)
	req.DiskGB = cmp.Or(req.DiskGB, t.DiskGB)
	if !req.ArgsSet {
		req.Args = cmp.Or(req.Args, t.Args)
	}
	if !req.PortsSet && req.Ports == nil {
		req.Ports = t.Ports
	}
	if req.Registry == nil {
		req.Registry = &t.Registry
	}
	// A CPU pod cannot have a persistent mount; a template that has one serves it all the same.
	if req.Persistent == nil && req.Network == nil && req.GPU != nil {
		req.Persistent = t.Persistent
	}
	if req.CUDA == nil {
		req.CUDA = &fleet.CUDARange{Allowed: t.AllowedCUDA}
	}
	env := maps.Clone(t.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, req.Env)
	if len(env) > maxEnv {
		return req, fleet.Invalid("$.env", "must have at most 50 variables, those of the template included")
	}
	if wants(req.StartSSH, t.StartSSH) {
		if err := injectKeys(env, v.SSHKeys(account)); err != nil {
			return req, err
		}
	}
	if wants(req.StartJupyter, t.StartJupyter) {
		injectPassword(env)
	}
	req.Env = env
	return req, nil
}

// wants is what the request says, or else the template.
func wants(said *bool, otherwise bool) bool {
	if said != nil {
		return *said
	}
	return otherwise
}

// injectKeys hands the account's SSH keys to an image that serves SSH, unless the user set theirs. Errors:
// rule (they are too large for a variable).
func injectKeys(env map[string]string, keys []string) error {
	_, own := env["PUBLIC_KEY"]
	if _, other := env["SSH_PUBLIC_KEY"]; own || other || len(keys) == 0 {
		return nil
	}
	if sizeOf(keys) > maxSSHKeyBytes {
		return fleet.BreaksRule("startSsh needs SSH keys of the account of at most %d bytes together", maxSSHKeyBytes)
	}
	env["PUBLIC_KEY"] = strings.Join(keys, "\n")
	return nil
}

// sizeOf returns the bytes of texts together.
func sizeOf(texts []string) int {
	sum := 0
	for _, text := range texts {
		sum += len(text)
	}
	return sum
}

// injectPassword makes a password for an image that serves Jupyter, unless the user set one.
func injectPassword(env map[string]string) {
	if _, own := env["JUPYTER_PASSWORD"]; !own {
		env["JUPYTER_PASSWORD"] = rand.Text()[:passwordLength]
	}
}

func specifyGPU(spec *fleet.PodSpec, req fleet.PodRequest) {
	spec.GPU = &fleet.GPURequest{Type: req.GPU.Type, Count: max(req.GPU.Count, 1)}
	spec.DiskGB = cmp.Or(spec.DiskGB, defaultDiskGPU)
	spec.MinRAMPerGPU, spec.MinVCPUPerGPU = req.MinRAMPerGPU, req.MinVCPUPerGPU
	if len(req.CUDA.Allowed) > 0 || req.CUDA.Min != "" {
		spec.CUDA = req.CUDA
	}
}

func specifyCPU(spec *fleet.PodSpec, cpu fleet.CPURequest, cat fleet.Catalog) error {
	f, ok := flavorOf(cat, cpu.Flavor)
	switch {
	case !ok:
		return unknownFlavor(cat, cpu.Flavor)
	case !offers(f, cpu.VCPU):
		return fleet.Invalid("$.cpu.vcpuCount", "must be one of "+strings.Join(vcpuCounts(f), ", "))
	}
	cpu.MemoryGB = memoryOf(f, cpu.VCPU)
	spec.CPU = &cpu
	spec.DiskGB = cmp.Or(spec.DiskGB, defaultDisk(f, cpu.VCPU))
	return nil
}

// vcpuCounts lists the numbers of vCPUs that a flavor offers.
func vcpuCounts(f fleet.CPUFlavor) (out []string) {
	for n := 1; n <= f.MaxVCPU; n *= 2 {
		if offers(f, n) {
			out = append(out, strconv.Itoa(n))
		}
	}
	return out
}

func unknownFlavor(cat fleet.Catalog, id string) error {
	var names []string
	for _, f := range cat.CPUs {
		names = append(names, f.ID)
	}
	return fleet.Invalid("$.cpu.id", "names a CPU flavor that is not in the catalog"+meant(id, names))
}

func unknownGPU(cat fleet.Catalog, id string) error {
	var names []string
	for _, g := range cat.GPUs {
		names = append(names, g.ID)
	}
	return fleet.Invalid("$.gpu.id", "names a GPU type that is not in the catalog"+meant(id, names))
}

// meant continues an error text with names that are similar to an unknown one, which it does not repeat.
func meant(text string, names []string) string {
	similar := fleet.Similar(text, names)
	if len(similar) == 0 {
		return ""
	}
	return "; did you mean '" + strings.Join(similar, "' or '") + "'?"
}

func flavorOf(cat fleet.Catalog, id string) (fleet.CPUFlavor, bool) {
	i := slices.IndexFunc(cat.CPUs, func(f fleet.CPUFlavor) bool { return f.ID == id })
	if i < 0 {
		return fleet.CPUFlavor{}, false
	}
	return cat.CPUs[i], true
}

func gpuTypeOf(cat fleet.Catalog, id string) (fleet.GPUType, bool) {
	i := slices.IndexFunc(cat.GPUs, func(t fleet.GPUType) bool { return t.ID == id })
	if i < 0 {
		return fleet.GPUType{}, false
	}
	return cat.GPUs[i], true
}

// offers reports whether a flavor comes with so many vCPUs.
func offers(f fleet.CPUFlavor, vcpu int) bool {
	return vcpu >= f.MinVCPU && vcpu <= f.MaxVCPU && powerOfTwo(vcpu)
}

func powerOfTwo(n int) bool { return n > 0 && n&(n-1) == 0 }

// memoryOf returns GB.
func memoryOf(f fleet.CPUFlavor, vcpu int) int { return int(f.RAMPerVCPU * float64(vcpu)) }

// defaultDisk returns GB: never more than the flavor allows.
func defaultDisk(f fleet.CPUFlavor, vcpu int) int {
	return max(1, min(defaultDiskCPU, f.DiskPerVCPU*vcpu))
}

// checkSpec refuses the specification of a new pod that names what is not there, or what does not go
// together.
func checkSpec(v *state.View, cat fleet.Catalog, account fleet.AccountID, spec *fleet.PodSpec) error {
	if spec.Image == "" {
		return fleet.Invalid("$", "missing property 'image'")
	}
	if err := checkDisk(cat, spec); err != nil {
		return err
	}
	if err := knownCenters(spec.Centers, v); err != nil {
		return err
	}
	if err := spec.CheckHTTP(); err != nil {
		return err
	}
	if err := cmp.Or(knownRegistry(v, account, spec.Registry), checkEnvironment(v, account, spec.Env)); err != nil {
		return err
	}
	if spec.Network == nil {
		return nil
	}
	if _, ok := volumeOf(v, account, spec.Network.Volume); !ok {
		return missing("$.mounts.network[0].volumeId", "no such network volume")
	}
	if spec.Cloud != fleet.CloudSecure {
		return fleet.BreaksRule("network volumes are of the SECURE cloud only")
	}
	return nil
}

// checkDisk refuses a container disk above what the CPU flavor allows.
func checkDisk(cat fleet.Catalog, spec *fleet.PodSpec) error {
	if spec.CPU == nil {
		return nil
	}
	if f, ok := flavorOf(cat, spec.CPU.Flavor); ok && spec.DiskGB > f.DiskPerVCPU*spec.CPU.VCPU {
		return fleet.Invalid("$.disk", "is above the flavor's limit for this vCPU count")
	}
	return nil
}

func knownCenters(centers []fleet.DataCenterID, v *state.View) error {
	known := map[fleet.DataCenterID]bool{}
	for _, dc := range v.DataCenters() {
		known[dc.ID] = true
	}
	for _, id := range centers {
		if !known[id] {
			return fleet.Invalid("$.dataCenterIds", "names a data center that does not exist")
		}
	}
	return nil
}
