package pod

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gantry/fleet"
	"gantry/internal/atomicfile"
)

// environment merges the owner's variables, and what the scheduler put beside them, with those that every pod
// gets, each under its public name (wire-facts 6.1) and as GANTRY_*. The owner cannot set the latter, nor NVIDIA_*:
// which devices a container sees is decided by its assignment alone.
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
	if want.Volume != nil {
		vars["VOLUME_ID"] = string(want.Volume.ID)
	}
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

// profileName is the name of the file that writeProfile makes.
const profileName = "profile.sh"

var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// ofTheShell reports whether a variable is a login shell's own: who logs in, where and how is not as the container
// has it, and some shells read no further when one of the others is set.
func ofTheShell(name string) bool {
	switch name {
	case "HOME", "USER", "LOGNAME", "SHELL", "TERM", "PWD", "OLDPWD", "SHLVL", "_",
		"UID", "EUID", "PPID", "GROUPS", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO", "IFS", "OPTIND", "LINENO", "ENV", "BASH_ENV":
		return true
	}
	return false
}

// keepPath has a login shell look for programs where the container does: what /etc/profile sets lacks where the
// image has its own. That of the container is in the environment of its first process.
const keepPath = `gantry_path=$( { tr '\000' '\n' </proc/1/environ | sed -n 's/^PATH=//p'; } 2>/dev/null )
[ -z "$gantry_path" ] || export PATH="$gantry_path:$PATH"
unset gantry_path
`

// writeProfile writes what login shells of the container read, so that they have the pod's variables: a POSIX shell
// script in dir, which only the container's root may read. base is the host's id of that root.
func (m *machine) writeProfile(dir string, env map[string]string, base uint32) (string, error) {
	path := filepath.Join(dir, profileName)
	if err := atomicfile.WriteOwned(path, []byte(profileText(env)), 0o400, int(base), int(base)); err != nil {
		return "", fmt.Errorf("write the pod's profile: %w", err)
	}
	return path, nil
}

// profileText exports what of an environment a shell can have.
func profileText(env map[string]string) string {
	var out strings.Builder
	if _, own := env["PATH"]; !own {
		out.WriteString(keepPath)
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if value := env[name]; shellName.MatchString(name) && !ofTheShell(name) && !strings.ContainsRune(value, 0) {
			fmt.Fprintf(&out, "export %s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
		}
	}
	return out.String()
}
