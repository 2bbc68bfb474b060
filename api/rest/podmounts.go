package rest

import (
	"path"
	"strings"
	"unicode/utf8"

	"gantry/fleet"
)

// Mounts are the storage mounts of a pod.
type Mounts struct {
	Persistent *PersistentMount `json:"persistent,omitempty" doc:"Host-local storage; not for CPU pods. Deprecated in favor of network mounts."`
	Network    []NetworkMount   `json:"network,omitzero" doc:"Network volumes, at most one." maxItems:"1"`
}

// PersistentMount is host-local storage.
type PersistentMount struct {
	Size int    `json:"size" doc:"Size in GB; it can grow later, and never shrink." minimum:"10" maximum:"65536" example:"20"`
	Path string `json:"path" doc:"Absolute path in the container; not / and not a system path (400 otherwise)." minLength:"1" maxLength:"4096" example:"/workspace"`
}

// NetworkMount is a mounted network volume.
type NetworkMount struct {
	VolumeID string `json:"volumeId" doc:"Network volume of the pod's data center; fixed when the pod is created." minLength:"1" maxLength:"191"`
	Path     string `json:"path" doc:"Absolute path in the container; not / and not a system path (400 otherwise)." minLength:"1" maxLength:"4096" example:"/workspace"`
}

// rules checks what holds for creating and updating alike.
func (m *Mounts) rules() error {
	switch {
	case m == nil:
		return nil
	case m.Persistent != nil && len(m.Network) > 0:
		return fleet.BreaksRule("mounts.persistent and mounts.network exclude each other")
	case m.Persistent != nil:
		return mountPath("mounts.persistent.path", m.Persistent.Path)
	case len(m.Network) > 0:
		return mountPath("mounts.network[0].path", m.Network[0].Path)
	}
	return nil
}

// parts returns the mounts in the service's form.
func (m *Mounts) parts() (*fleet.PersistentMount, *fleet.NetworkMount) {
	switch {
	case m == nil:
		return nil, nil
	case m.Persistent != nil:
		return &fleet.PersistentMount{SizeGB: m.Persistent.Size, Path: m.Persistent.Path}, nil
	case len(m.Network) > 0:
		return nil, &fleet.NetworkMount{Volume: fleet.VolumeID(m.Network[0].VolumeID), Path: m.Network[0].Path}
	}
	return nil, nil
}

// mountsOf shows the mounts of a specification.
func mountsOf(spec *fleet.PodSpec) Mounts {
	var out Mounts
	if p := spec.Persistent; p != nil {
		out.Persistent = &PersistentMount{Size: p.SizeGB, Path: p.Path}
	}
	if n := spec.Network; n != nil {
		out.Network = []NetworkMount{{VolumeID: string(n.Volume), Path: n.Path}}
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
