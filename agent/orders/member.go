package orders

import (
	"errors"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// hostName is what the host name of a member may be: one label of a DNS name.
var hostName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// decodeMember reads what a member of a cluster finds in its container; nil: the pod is none. The error says in a sentence what the
// host does not take.
func decodeMember(in *agentrpc.MemberSetup) (*pod.MemberSetup, error) {
	if in == nil {
		return nil, nil //nolint:nilnil // the pod is no member
	}
	out := &pod.MemberSetup{Hostname: in.GetHostname(), Hosts: in.GetHosts(), Fabric: in.GetFabric()}
	size := len(out.Hosts)
	if !hostName.MatchString(out.Hostname) || strings.ContainsRune(out.Hosts, 0) {
		return nil, errors.New("the order gives the pod names that no host can have")
	}
	if len(in.GetFiles()) > fleet.MaxPodFiles {
		return nil, errors.New("the order puts more files into the container than a host takes")
	}
	for _, f := range in.GetFiles() {
		if !path.IsAbs(f.GetPath()) || path.Clean(f.GetPath()) != f.GetPath() || f.GetPath() == "/" || strings.ContainsRune(f.GetPath(), 0) {
			return nil, errors.New("the order puts a file into the container at a path that is not a clean absolute one")
		}
		mode := fs.FileMode(f.GetMode())
		if mode != mode.Perm() {
			return nil, errors.New("the order puts a file into the container with more than permission bits")
		}
		size += len(f.GetText())
		out.Files = append(out.Files, pod.File{Path: f.GetPath(), Text: f.GetText(), Mode: mode})
	}
	if size > fleet.MaxPodFileBytes {
		return nil, errors.New("the order puts more bytes into the container than a host takes")
	}
	return out, nil
}
