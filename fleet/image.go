package fleet

import (
	"regexp"
	"strings"
)

var (
	imagePath   = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	imageHost   = regexp.MustCompile(`^(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?$`)
	imageTag    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	imageDigest = regexp.MustCompile(`^(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`)
)

// ImageName returns the full form of an image reference, under which registries and hosts know it: "busybox"
// becomes "docker.io/library/busybox:latest". A digest makes a tag beside it meaningless, which is left out. The
// second result is false for what is no reference; it is returned as it is.
func ImageName(ref string) (string, bool) {
	const hub, official = "docker.io", "library/"
	name, digest, digested := strings.Cut(ref, "@")
	path, tag := name, ""
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		path, tag = name[:at], name[at+1:]
		if !imageTag.MatchString(tag) {
			return ref, false
		}
	}
	host, rest, ok := strings.Cut(path, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" && strings.ToLower(host) == host {
		host, rest = hub, path
	}
	if host == "index.docker.io" {
		host = hub
	}
	if host == hub && !strings.Contains(rest, "/") {
		rest = official + rest
	}
	switch {
	case !imageHost.MatchString(host), !imagePath.MatchString(rest), digested && !imageDigest.MatchString(digest):
		return ref, false
	case digested:
		return host + "/" + rest + "@" + digest, true
	case tag == "":
		tag = "latest"
	}
	return host + "/" + rest + ":" + tag, true
}

// PrefetchRequest asks hosts to get an image. Of Hosts and Centers, a host has to be in both where both are named.
type PrefetchRequest struct {
	Image   string
	Hosts   []HostID       // empty: all
	Centers []DataCenterID // empty: all
}

// HostImages is what images a host has, as far as it said so last.
type HostImages struct {
	Host       HostID
	Name       string
	DataCenter DataCenterID
	Connected  bool
	Images     []string // full references; of an answer about one image, only that
	Models     []string // references of models of hubs; none in an answer about one image
	Present    bool     // of an answer about one image: it is there
}
