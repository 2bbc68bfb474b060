package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gantry/netctl"
)

const (
	portMap = "published" // public port to address and port of a pod
	openSet = "open"      // addresses and ports of pods that may be entered
)

// target is where a public port leads.
type target struct {
	addr netip.Addr
	port uint16
}

// ports is what is published: the elements of both objects, which agree when all is well.
type ports struct {
	leads map[uint16]target
	open  map[target]bool
}

func portsOf(pods ...netctl.Pod) ports {
	out := ports{map[uint16]target{}, map[target]bool{}}
	for _, p := range pods {
		for _, port := range p.Ports {
			to := target{p.Addr, port.Private}
			out.leads[port.Public], out.open[to] = to, true
		}
	}
	return out
}

func (p ports) equal(o ports) bool {
	return maps.Equal(p.leads, o.leads) && maps.Equal(p.open, o.open)
}

// without returns what leads elsewhere, or nowhere, in o.
func (p ports) without(o ports) map[uint16]target {
	out := map[uint16]target{}
	for public, to := range p.leads {
		if o.leads[public] != to {
			out[public] = to
		}
	}
	return out
}

// of returns the ports that lead to an address, by public port.
func (p ports) of(addr netip.Addr) []netctl.Port {
	var out []netctl.Port
	for _, public := range slices.Sorted(maps.Keys(p.leads)) {
		if to := p.leads[public]; to.addr == addr && p.open[to] {
			out = append(out, netctl.Port{Public: public, Private: to.port})
		}
	}
	return out
}

func (r *ruleset) readPorts(conn *nftables.Conn) (ports, error) {
	out := portsOf()
	leads, err := elementsOf(conn, r.inet(portMap))
	if err != nil {
		return out, fmt.Errorf("published ports: %w", err)
	}
	for _, e := range leads {
		if to, ok := parseTarget(e.Val); ok && len(e.Key) >= 2 {
			out.leads[binary.BigEndian.Uint16(e.Key)] = to
		}
	}
	open, err := elementsOf(conn, r.inet(openSet))
	if err != nil {
		return out, fmt.Errorf("published ports: %w", err)
	}
	for _, e := range open {
		if to, ok := parseTarget(e.Key); ok {
			out.open[to] = true
		}
	}
	return out, nil
}

// ports reads what is published; without a table that is nothing.
func (r *ruleset) ports() (out ports, err error) {
	err = r.exchange(func(conn *nftables.Conn) error {
		out, err = r.readPorts(conn)
		return err
	})
	return out, err
}

// publish makes the ports that lead to the pod's address those of the pod, in one step, and takes
// them from whoever had them. It returns what led elsewhere before. When the tables are gone the
// error is ENOENT.
func (r *ruleset) publish(p netctl.Pod) (map[uint16]target, error) {
	r.publishing.Lock()
	defer r.publishing.Unlock()
	have, err := r.ports()
	if err != nil {
		return nil, err
	}
	gone, come, withdrawn := have.changeTo(p)
	if gone.empty() && come.empty() {
		return nil, nil
	}
	if err := r.write(gone, come); err != nil {
		return nil, fmt.Errorf("publish ports: %w", err)
	}
	return withdrawn, nil
}

// changeTo says what goes and comes when the pod's ports become those that lead to its address, and
// what led elsewhere before. It uses p up.
func (p ports) changeTo(pod netctl.Pod) (gone, come change, withdrawn map[uint16]target) {
	want := portsOf(pod)
	withdrawn = map[uint16]target{}
	for public, to := range p.leads {
		now, wanted := want.leads[public]
		if (wanted || to.addr == pod.Addr) && now != to {
			gone.leads = append(gone.leads, lead(public, to))
			withdrawn[public] = to
		}
	}
	for to := range p.open {
		if to.addr == pod.Addr && !want.open[to] {
			gone.open = append(gone.open, nftables.SetElement{Key: to.bytes()})
		}
	}
	for public, to := range withdrawn {
		delete(p.leads, public)
		if to.addr != pod.Addr && p.open[to] && !slices.Contains(slices.Collect(maps.Values(p.leads)), to) {
			gone.open = append(gone.open, nftables.SetElement{Key: to.bytes()})
		}
	}
	for public, to := range want.leads {
		if p.leads[public] != to {
			come.leads = append(come.leads, lead(public, to))
		}
		if !p.open[to] {
			come.open = append(come.open, nftables.SetElement{Key: to.bytes()})
		}
	}
	return gone, come, withdrawn
}

// withdraw takes away every port that leads to an address.
func (r *ruleset) withdraw(addr netip.Addr) error {
	_, err := r.publish(netctl.Pod{Addr: addr})
	return err
}

// change is a number of elements of both objects.
type change struct{ leads, open []nftables.SetElement }

func (c change) empty() bool { return len(c.leads)+len(c.open) == 0 }

// write removes, then adds, as one step of the kernel.
func (r *ruleset) write(gone, come change) error {
	return r.exchange(func(conn *nftables.Conn) error {
		var faults []error
		del := func(set string, elements []nftables.SetElement) {
			if len(elements) > 0 {
				faults = append(faults, conn.SetDeleteElements(r.inet(set), elements))
			}
		}
		add := func(set string, elements []nftables.SetElement) {
			if len(elements) > 0 {
				faults = append(faults, conn.SetAddElements(r.inet(set), elements))
			}
		}
		del(portMap, gone.leads)
		del(openSet, gone.open)
		add(portMap, come.leads)
		add(openSet, come.open)
		if err := errors.Join(faults...); err != nil {
			return err
		}
		return conn.Flush()
	})
}

func (r *ruleset) inet(set string) *nftables.Set {
	return &nftables.Set{
		Name:  set,
		Table: &nftables.Table{Family: nftables.TableFamilyINet, Name: netctl.TableName(r.instance)},
	}
}

func lead(public uint16, to target) nftables.SetElement {
	return nftables.SetElement{Key: binary.BigEndian.AppendUint16(nil, public), Val: to.bytes()}
}

// bytes is the kernel's form of ipv4_addr . inet_service, each part padded to four octets.
func (t target) bytes() []byte {
	out := make([]byte, 8)
	copy(out, t.addr.AsSlice())
	binary.BigEndian.PutUint16(out[4:], t.port)
	return out
}

func parseTarget(b []byte) (target, bool) {
	if len(b) < 6 {
		return target{}, false
	}
	return target{netip.AddrFrom4([4]byte(b[:4])), binary.BigEndian.Uint16(b[4:])}, true
}

// forgetLeads drops the connections that came through ports which lead elsewhere now.
func (c *Controller) forgetLeads(withdrawn map[uint16]target) error {
	if len(withdrawn) == 0 {
		return nil
	}
	_, err := retry(func() (uint, error) {
		return c.host.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, flowsThrough(withdrawn))
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("forget connections: %w", err)
	}
	return nil
}

// flowsThrough matches connections that came through public ports to where these led.
type flowsThrough map[uint16]target

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f flowsThrough) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	to, ok := f[flow.Forward.DstPort]
	from, valid := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return ok && valid && from.Unmap() == to.addr && flow.Reverse.SrcPort == to.port
}
