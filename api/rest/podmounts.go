package rest

import (
	"path"
	"strings"
	"unicode/utf8"

	"gantry/api/v2"

	"gantry/fleet"
)

// mountRules checks the paths of mounts; which mounts may be together is the service's to say.
func mountRules(m *v2.Mounts) error {
	switch {
	case m == nil || m.Persistent != nil && len(m.Network) > 0:
		return nil
	case m.Persistent != nil:
		return mountPath("mounts.persistent.path", m.Persistent.Path)
	case len(m.Network) > 0:
		return mountPath("mounts.network[0].path", m.Network[0].Path)
	}
	return nil
}

// mountParts returns the mounts in the service's form.
func mountParts(m *v2.Mounts) (persistent *fleet.PersistentMount, network *fleet.NetworkMount) {
	if m != nil && m.Persistent != nil {
		persistent = &fleet.PersistentMount{SizeGB: m.Persistent.Size, Path: m.Persistent.Path}
	}
	if m != nil && len(m.Network) > 0 {
		network = &fleet.NetworkMount{Volume: fleet.VolumeID(m.Network[0].VolumeID), Path: m.Network[0].Path}
	}
	return persistent, network
}

// mountsOf shows the mounts of a specification.
func mountsOf(spec *fleet.PodSpec) v2.Mounts {
	var out v2.Mounts
	if p := spec.Persistent; p != nil {
		out.Persistent = &v2.PersistentMount{Size: p.SizeGB, Path: p.Path}
	}
	if n := spec.Network; n != nil {
		out.Network = []v2.NetworkMount{{VolumeID: string(n.Volume), Path: n.Path}}
	}
	return out
}

// systemPaths may not be mounted over, nor anything below them.
func systemPaths() []string {
	return []string{
		"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/run",
	}
}

func mountPath(field, p string) error {
	switch {
	case !path.IsAbs(p):
		return fleet.BreaksRule("%s must be absolute", field)
	case strings.ContainsRune(p, 0) || !utf8.ValidString(p):
		return fleet.BreaksRule("%s must not contain NUL", field)
	case path.Clean(p) == "/":
		return fleet.BreaksRule("%s must not be /", field)
	case path.Clean(p) != p:
		return fleet.BreaksRule("%s must be clean: without '.', '..', empty parts and a slash at the end", field)
	}
	for _, sys := range systemPaths() {
		if p == sys || strings.HasPrefix(p, sys+"/") {
			return fleet.BreaksRule("%s must not be a system path", field)
		}
	}
	return nil
}
