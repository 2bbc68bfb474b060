package proxy

import (
	"strconv"
	"strings"

	"gantry/fleet"
)

// Target is one port of one pod.
type Target struct {
	Pod  fleet.PodID
	Port int // 1 to 65535
}

// ParseHost reads the Host of a request, whose port does not matter. ours says whether the host is the
// domain or below it; ok whether it is "<podId>-<port>.<domain>" and target holds both. Letter case
// and one dot at the end do not matter.
func ParseHost(host, domain string) (target Target, ours, ok bool) {
	host = strings.ToLower(hostOnly(host))
	domain = strings.ToLower(domain)
	if host == domain {
		return Target{}, true, false
	}
	label, found := strings.CutSuffix(host, "."+domain)
	if !found || domain == "" {
		return Target{}, false, false
	}
	id, number, found := strings.Cut(label, "-")
	if !found || !fleet.ValidID(id) || len(number) > 5 || strings.HasPrefix(number, "0") {
		return Target{}, true, false
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return Target{}, true, false
	}
	return Target{Pod: fleet.PodID(id), Port: int(port)}, true, true
}

// ParseEndpoint reads a Host like ParseHost, and reports whether it is "<endpoint>.<domain>".
func ParseEndpoint(host, domain string) (fleet.EndpointID, bool) {
	label, rest, found := strings.Cut(hostOnly(host), ".")
	id := strings.ToLower(label)
	return fleet.EndpointID(id), found && strings.EqualFold(rest, domain) && fleet.ValidID(id)
}

// hostOnly takes off a port, and one dot at the end.
func hostOnly(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return strings.TrimSuffix(host, ".")
}

// key names the target as the host of an outgoing request, so that connections are pooled by target.
func (t Target) key() string { return string(t.Pod) + "-" + strconv.Itoa(t.Port) }

func parseKey(addr string) (Target, bool) {
	const domain = "pod"
	host := addr
	if i := strings.LastIndexByte(addr, ':'); i >= 0 {
		host = addr[:i]
	}
	t, _, ok := ParseHost(host+"."+domain, domain)
	return t, ok
}
