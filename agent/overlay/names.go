package overlay

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"
	"strings"
)

// fallback serves hosts that name no resolver, and pods where names are not answered and the host's own resolver listens on
// loopback, where no pod can reach it.
var fallback = []netip.Addr{netip.AddrFrom4([4]byte{1, 1, 1, 1}), netip.AddrFrom4([4]byte{8, 8, 8, 8})}

const domain = 53 // the port of DNS

// resolvers is what a resolv.conf says.
type resolvers struct {
	text    string
	servers []netip.Addr
	rest    []string // lines beside those of servers
}

// readResolvers reads a file of the host. One that cannot be read names nothing.
func readResolvers(path string) resolvers {
	data, err := os.ReadFile(path)
	if err != nil {
		data = nil
	}
	out := resolvers{text: string(data)}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) < 2 || strings.ContainsAny(fields[0][:1], "#;"):
		case fields[0] != "nameserver":
			out.rest = append(out.rest, strings.Join(fields, " "))
		default:
			if addr, err := netip.ParseAddr(fields[1]); err == nil {
				out.servers = append(out.servers, addr)
			}
		}
	}
	return out
}

// upstreams are whom the host asks. Where they are all on loopback, others are asked last: the agent may have a loopback of
// its own, on which nobody answers.
func (r resolvers) upstreams() []netip.AddrPort {
	var out []netip.AddrPort
	far := false
	for _, addr := range r.servers {
		out = append(out, netip.AddrPortFrom(addr, domain))
		far = far || !addr.IsLoopback()
	}
	if !far {
		for _, addr := range fallback {
			out = append(out, netip.AddrPortFrom(addr, domain))
		}
	}
	return out
}

// conf is the text of a pod's resolv.conf: the host's, with other servers.
func (r resolvers) conf(servers []netip.Addr) string {
	var out strings.Builder
	for _, line := range r.rest {
		out.WriteString(line + "\n")
	}
	for _, addr := range servers {
		out.WriteString("nameserver " + addr.String() + "\n")
	}
	return out.String()
}

// reachable are the servers that a pod can ask itself.
func (r resolvers) reachable() []netip.Addr {
	var out []netip.Addr
	for _, addr := range r.servers {
		if !addr.IsLoopback() && addr.Is4() {
			out = append(out, addr)
		}
	}
	if len(out) == 0 {
		return fallback
	}
	return out
}

func (k *Reconciler) resolvers() resolvers {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.resolv
}

// ResolvConf is the text of the resolv.conf of a pod that is made now. Where the host answers names it names the gateway alone.
func (k *Reconciler) ResolvConf() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stands {
		return k.resolv.conf([]netip.Addr{k.host.Gateway().Addr()})
	}
	return k.resolv.conf(k.resolv.reachable())
}

// resolved is what was told of ResolvConf.
type resolved struct {
	text  string
	times int
}

// tell tells it twice.
func (r *resolved) tell(text string, to func(text string)) {
	const enough = 2
	if text != r.text {
		r.text, r.times = text, 0
	}
	if r.times++; r.times <= enough && to != nil {
		to(text)
	}
}
