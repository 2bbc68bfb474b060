package ctrd

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/userns"
)

const (
	// specVersion is understood by every runc since 1.1.
	specVersion  = "1.0.2"
	wantedFiles  = 1 << 20
	cpuPeriod    = 100_000 // microseconds
	leastQuota   = 1_000   // microseconds, the kernel's own lower bound
	defaultPath  = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultShmMB = 64
	terminals    = 256 // pseudo terminals of a container; all pods of a host have 3072 by the kernel's settings
	profileFile  = "/etc/profile.d/00-gantry.sh"
	// execve(2) takes maxString bytes as one word or variable, and 2 MiB of all of them at the usual limit of
	// stacks: with each, its final zero and its address.
	maxString      = 128<<10 - 1
	maxEnvironment = 1 << 20
	maxCommand     = 512 << 10
	besideString   = 1 + 8
	// gpuPrefix begins variables by which an image could ask for devices.
	gpuPrefix = "NVIDIA_"
)

// capabilities are those that software inside images expects of its root user, without MKNOD and
// without anything that reaches beyond the container.
func capabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
}

// capabilitiesOf leaves out what would let a container whose root is the host's send and receive raw packets by RDMA devices that others
// use, too. In a user namespace it has no such right over them.
func capabilitiesOf(s pod.ContainerSpec, h host) []string {
	caps := capabilities()
	if len(s.Devices.Adapters) > 0 && h.users == "" {
		caps = slices.DeleteFunc(caps, func(c string) bool { return c == "CAP_NET_RAW" })
	}
	return caps
}

// host is what the spec depends on beside pod and image.
type host struct {
	limits  hostLimits
	cgroup  string // path of the pod's control group below the mount
	swapMax bool   // the kernel can limit swap
	users   string // path of the user namespace to join; empty: none

	hugepages []string // sizes of pages whose use the kernel can limit, as "2MB"
	hidden    []string // paths that are masked beside maskedPaths
}

// buildSpec makes the OCI spec of a container.
func buildSpec(s pod.ContainerSpec, img *image, user specs.User, h host) (*specs.Spec, error) {
	args, err := command(s.Args, img.config)
	if err != nil {
		return nil, err
	}
	env, err := environment(img.config.Env, s.Env, s.Devices.Env)
	if err != nil {
		return nil, err
	}
	caps := capabilitiesOf(s, h)
	out := &specs.Spec{
		Version:  specVersion,
		Hostname: s.Hostname,
		Root:     &specs.Root{Path: "rootfs"},
		Mounts:   mounts(s),
		Process: &specs.Process{
			Args: args, Env: env, Cwd: path.Join("/", img.config.WorkingDir), User: user,
			NoNewPrivileges: true,
			Capabilities:    &specs.LinuxCapabilities{Bounding: caps, Permitted: caps, Effective: caps},
			Rlimits:         rlimits(s, h),
		},
		Linux: &specs.Linux{
			CgroupsPath:       "/" + h.cgroup,
			RootfsPropagation: "rprivate",
			MaskedPaths:       append(maskedPaths(), h.hidden...),
			ReadonlyPaths:     readonlyPaths(),
			Resources:         resources(s, h),
			Namespaces:        namespacesOf(s, h),
		},
	}
	adj := max(0, h.limits.oomAdj)
	out.Process.OOMScoreAdj = &adj
	if h.users != "" {
		// The kernel knows them already; runc wants to be told as well.
		ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: s.IDBase, Size: userns.Size}}
		out.Linux.UIDMappings, out.Linux.GIDMappings = ids, ids
	}
	out.Linux.Seccomp = seccompProfile(out)
	return out, nil
}

func namespacesOf(s pod.ContainerSpec, h host) []specs.LinuxNamespace {
	out := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.CgroupNamespace},
		{Type: specs.NetworkNamespace, Path: s.NetNS},
	}
	if h.users != "" {
		out = append(out, specs.LinuxNamespace{Type: specs.UserNamespace, Path: h.users})
	}
	return out
}

// rlimits are as high as the host allows, since memory and processes are limited otherwise; a core dump
// would be written where the host's settings say. A daemon that may not set them leaves a pod in a user namespace its own.
// What RDMA devices read and write stays in memory, of which the container has its share anyway.
func rlimits(s pod.ContainerSpec, h host) []specs.POSIXRlimit {
	l := h.limits
	if len(s.Devices.Adapters) > 0 && !l.bound {
		l.locked = unix.RLIM_INFINITY
	}
	if l.bound && h.users != "" {
		return nil
	}
	return []specs.POSIXRlimit{
		{Type: "RLIMIT_NOFILE", Hard: l.files, Soft: l.files},
		{Type: "RLIMIT_MEMLOCK", Hard: l.locked, Soft: l.locked},
		{Type: "RLIMIT_CORE", Hard: 0, Soft: 0},
	}
}

// seccompProfile is containerd's own without the x32 architecture: nothing uses it, its system calls
// are refused then, and every architecture costs runc milliseconds at each start.
func seccompProfile(s *specs.Spec) *specs.LinuxSeccomp {
	p := seccomp.DefaultProfile(s)
	p.Architectures = slices.DeleteFunc(p.Architectures, func(a specs.Arch) bool { return a == specs.ArchX32 })
	return p
}

// command joins the image's command and the pod's args.
func command(args string, cfg ocispec.ImageConfig) ([]string, error) {
	c, err := fleet.ParseArgs(args)
	if err != nil {
		return nil, fatal("the pod's args cannot be read: they "+err.Error(), nil)
	}
	entry, cmd := cfg.Entrypoint, cfg.Cmd
	if c.Entrypoint != nil {
		entry = c.Entrypoint
	}
	if c.Cmd != nil {
		cmd = c.Cmd
	}
	out := append(append([]string{}, entry...), cmd...)
	if len(out) == 0 || out[0] == "" {
		return nil, fatal("neither the image nor the pod's args name a command to run", nil)
	}
	total := 0
	for _, word := range out {
		if strings.ContainsRune(word, 0) {
			return nil, fatal("the pod's command contains a zero byte", nil)
		}
		if total += len(word) + besideString; len(word) > maxString || total > maxCommand {
			return nil, fatal("the command of image and pod is larger than a program can be started with: 131,071 bytes for a word, 512 KiB in all", nil)
		}
	}
	return out, nil
}

// environment joins the image's variables and the pod's, both without those that ask for GPUs, and what
// the devices need. Paths of the devices come before those of the others.
func environment(image []string, own map[string]string, devices []string) ([]string, error) {
	vars := map[string]string{"PATH": defaultPath}
	for _, kv := range image {
		k, v, ok := strings.Cut(kv, "=")
		if ok && k != "" && !strings.HasPrefix(k, gpuPrefix) && !strings.ContainsRune(kv, 0) {
			vars[k] = v
		}
	}
	for k, v := range own {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return nil, fatal("a name or value in the pod's environment is not allowed", nil)
		}
		if !strings.HasPrefix(k, gpuPrefix) {
			vars[k] = v
		}
	}
	for _, kv := range devices {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, &pod.Error{Class: pod.Retry, Sentence: "the host's devices cannot be described", Err: fmt.Errorf("variable %q", kv)}
		}
		if before := vars[k]; before != "" && (k == "PATH" || k == "LD_LIBRARY_PATH") {
			v += ":" + before
		}
		vars[k] = v
	}
	out, total := make([]string, 0, len(vars)), 0
	for k, v := range vars {
		one := k + "=" + v
		if total += len(one) + besideString; len(one) > maxString {
			return nil, fatal("a variable of the environment of image and pod is larger than a program can be started with: 131,071 bytes with its name", nil)
		}
		out = append(out, one)
	}
	if total > maxEnvironment {
		return nil, fatal("the environment of image and pod together is larger than 1 MiB, with 9 bytes beside each variable", nil)
	}
	sort.Strings(out)
	return out, nil
}

func mounts(s pod.ContainerSpec) []specs.Mount {
	shm := s.ShmMB
	if shm <= 0 {
		shm = defaultShmMB // to the kernel, a size of 0 is no limit
	}
	out := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", fmt.Sprintf("max=%d", terminals)}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", fmt.Sprintf("size=%d", shm*1_000_000)}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		// The folders of file systems are named after disks and volumes: of them all, a container sees its control group.
		{Destination: "/sys/fs", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "nodev", "ro", "mode=555", "size=64k"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
	}
	for _, f := range smallFiles(s) {
		out = append(out, bind(f[1], f[0], "ro", "nosuid", "nodev", "noexec"))
	}
	// Nodes are those of the host, since nobody in a user namespace makes any.
	for _, d := range s.Devices.Nodes {
		out = append(out, bind(d.Host, d.Path, "rw", "nosuid", "noexec"))
	}
	for _, f := range s.Devices.Files {
		out = append(out, bind(f.Source, f.Target, "ro", "nosuid", "nodev"))
	}
	if s.Notices != "" {
		out = append(out, bind(s.Notices, pod.NoticesDir, "ro", "nosuid", "nodev", "noexec"))
	}
	// Last, so that none of them can lie over what every container gets without being seen here. runc
	// makes a missing target, and follows links of the image within the image's own files alone.
	for _, m := range s.Mounts {
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		out = append(out, bind(m.Source, m.Target, access, "nosuid", "nodev"))
	}
	return out
}

func bind(source, target, access string, options ...string) specs.Mount {
	return specs.Mount{
		Destination: target, Type: "bind", Source: source, Options: append([]string{"bind", access, "rprivate"}, options...),
	}
}

// checkMounts refuses what the API refuses too: here it is the last word.
func checkMounts(mounts []pod.Mount) error {
	seen := map[string]bool{}
	for _, m := range mounts {
		if seen[m.Target] {
			return fatal("two of the pod's mounts have the same path", nil)
		}
		seen[m.Target] = true
		if !filepath.IsAbs(m.Source) || filepath.Clean(m.Source) != m.Source {
			return fatal("a path of the pod's host files is not absolute", nil)
		}
		if fault := fleet.MountPathFault(m.Target); fault != "" {
			return fatal("the path of the pod's mount "+fault, nil)
		}
	}
	return nil
}

func resources(s pod.ContainerSpec, h host) *specs.LinuxResources {
	// runc adds the default devices (null, zero, full, random, urandom, tty, pts) to the rule below.
	out := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	for _, d := range s.Devices.Nodes {
		out.Devices = append(out.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &d.Major, Minor: &d.Minor, Access: "rw"})
	}
	for _, size := range h.hugepages {
		out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: size, Limit: 0})
	}
	if s.Limits.MemoryMB > 0 {
		page := int64(os.Getpagesize())
		limit := (s.Limits.MemoryMB*1_000_000 + page - 1) / page * page
		out.Memory = &specs.LinuxMemory{Limit: &limit}
		if h.swapMax {
			out.Memory.Swap = &limit
		}
	}
	if milli := s.Limits.MilliCPU; milli > 0 {
		shares, period := uint64(max(2, milli*1024/1000)), uint64(cpuPeriod)
		quota := max(leastQuota, milli*cpuPeriod/1000)
		out.CPU = &specs.LinuxCPU{Shares: &shares, Quota: &quota, Period: &period}
	}
	if s.CPUs != "" {
		if out.CPU == nil {
			out.CPU = &specs.LinuxCPU{}
		}
		out.CPU.Cpus = s.CPUs
	}
	if s.PIDs > 0 {
		limit := s.PIDs
		out.Pids = &specs.LinuxPids{Limit: &limit}
	}
	return out
}

// checkPaths refuses host paths that are not absolute: they would be read below the runtime's folder.
func checkPaths(s pod.ContainerSpec) error {
	paths := []string{s.ResolvConf, s.Hosts, s.HostnameTxt, s.NetNS, s.Profile, s.Notices}
	for _, d := range s.Devices.Nodes {
		paths = append(paths, d.Host, d.Path)
	}
	for _, f := range s.Devices.Files {
		paths = append(paths, f.Source, f.Target)
	}
	for _, p := range paths {
		if p != "" && !filepath.IsAbs(p) {
			return fatal("a path of the pod's host files is not absolute", nil)
		}
	}
	return checkMounts(s.Mounts)
}
