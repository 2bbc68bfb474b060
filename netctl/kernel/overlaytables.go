package kernel

import (
	"strconv"

	"sigs.k8s.io/knftables"

	"gantry/netctl"
)

// addOverlays writes what the bridge table says of overlays. Which overlay a frame is of follows from the link that it came by, and
// stands in the packet's mark while it is in these rules: so members come and go, and overlays too, without a rule being written.
func addOverlays(tx *knftables.Transaction, c netctl.Config) {
	w := writer{tx, knftables.BridgeFamily, netctl.TableName(c.Instance)}
	w.mapping(leadMap, "ifname : mark")
	w.set(memberSet, "mark . ether_addr . ipv4_addr")
	w.set(askedSet, "mark . ipv4_addr")
	w.set(farSet, "ifname . ether_addr . ipv4_addr")
	for _, o := range c.Overlays {
		for _, e := range overlayEntries(c, o) {
			w.entry(e)
		}
	}
	pods := quote("go" + c.Instance + "*")
	uplink := quote("gv" + c.Instance + "*")
	addMembers(w, pods)
	addUplink(w, uplink)
	w.base("at_pass", knftables.FilterType, knftables.ForwardHook, knftables.DNATPriority)
	w.rule("at_pass", "iifname", pods, "ether type arp drop") // the bridge has answered
	w.chain("between_hosts")
	w.drop("between_hosts", foreign, "oifname", uplink)
	w.base("at_host", knftables.FilterType, knftables.InputHook, knftables.DNATPriority)
	w.rule("at_host", "iifname", pods, "ether type arp drop") // as above: all requests come here as well
	// What is sent to the addresses of a wire's two ends comes straight here, and would go to the host's IP from the port.
	w.drop("at_host", host, "iifname", quote(netctl.BridgeName(c.Instance)+"*"), "ether daddr & ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00")
	w.rule("at_pass", "iifname", uplink, "jump between_hosts")
	w.drop("at_host", host, "iifname", uplink)
	w.drop("at_host", host, "iifname", pods)
}

// addMembers writes what a pod may send in an overlay: IPv4 and ARP requests from itself to members.
func addMembers(w writer, pods string) {
	w.chain("from_member")
	w.chain("asks")
	w.rule("at_bridge", "iifname", pods, "jump from_member")
	w.rule("from_member", "meta mark set 0")
	w.rule("from_member", "meta mark set iifname map @"+leadMap)
	w.rule("from_member", "ether type arp goto asks")
	w.drop("from_member", foreign, "ether type != ip") // first: a frame with a VLAN tag is of protocol IP as well
	w.rule("from_member", "iifname . ether saddr . ip saddr @"+pinSet, "meta mark . ether daddr . ip daddr @"+memberSet, "meta mark set 0 accept")
	w.drop("from_member", spoofed, "iifname . ether saddr . ip saddr != @"+pinSet)
	w.drop("from_member", flooded, "ether daddr & 01:00:00:00:00:00 != 00:00:00:00:00:00")
	w.drop("from_member", foreign)

	// To ask for one's own address is to tell others that one has it.
	w.drop("asks", flooded, "iifname . ether saddr . arp daddr ip @"+pinSet)
	w.rule("asks", "arp operation request iifname . ether saddr . arp saddr ip @"+pinSet, "iifname . arp saddr ether . arp saddr ip @"+pinSet,
		"meta mark . arp daddr ip @"+askedSet, "meta mark set 0 accept")
	w.drop("asks", spoofed, "arp operation != request")
	w.drop("asks", spoofed, "iifname . ether saddr . arp saddr ip != @"+pinSet)
	w.drop("asks", spoofed, "iifname . arp saddr ether . arp saddr ip != @"+pinSet)
	w.drop("asks", flooded)
}

// addUplink writes what may come from other hosts: IPv4 from a member that is there to a member.
func addUplink(w writer, uplink string) {
	w.chain("from_host")
	w.rule("at_bridge", "iifname", uplink, "jump from_host")
	w.rule("from_host", "meta mark set 0")
	w.rule("from_host", "meta mark set iifname map @"+leadMap)
	w.drop("from_host", foreign, "ether type != ip")
	w.rule("from_host", "iifname . ether saddr . ip saddr @"+farSet, "meta mark . ether daddr . ip daddr @"+memberSet, "meta mark set 0 accept")
	w.drop("from_host", foreign)
}

// addUnderlay writes what the inet table says of overlays: the host leads nothing into or out of one, VXLAN comes from other hosts alone,
// and nothing leaves for the tunnel's addresses but by the tunnel.
func addUnderlay(w writer, c netctl.Config) {
	bridges, tunnel := quote("gb"+c.Instance+"*"), quote(netctl.TunnelLink(c.Instance))
	// Bridged frames come here where br_netfilter is on. Two overlays may have one address, so nothing may be remembered of them,
	// and no fragments be joined: before the kernel does either.
	w.base("at_first", knftables.FilterType, knftables.PreroutingHook, "-450")
	w.rule("at_first", "iifname", bridges, "notrack")
	// Whatever passed the bridge comes by it; by a port itself comes what found a way around.
	w.drop("at_first", host, "iifname", quote(netctl.BridgeName(c.Instance)+"*"), "iifname !=", quote(netctl.BridgeName(c.Instance)))
	for _, port := range []string{"go", "gv"} {
		w.drop("at_first", host, "iifname", quote(port+c.Instance+"*"))
	}
	w.drop("at_input", host, "iifname", bridges)
	w.drop("at_forward", foreign, "iifname", bridges, "oifname !=", bridges)
	w.drop("at_forward", foreign, "iifname !=", bridges, "oifname", bridges)
	w.drop("at_forward", foreign, "iifname", tunnel)
	w.drop("at_forward", foreign, "oifname", tunnel)

	u := c.Underlay
	if u.Port == 0 {
		return
	}
	port := strconv.Itoa(int(u.Port))
	if u.Range.IsValid() {
		w.rule("at_input", "iifname", tunnel, "ip saddr", u.Range.String(), "udp dport", port, "accept")
		w.base("at_leave", knftables.FilterType, knftables.OutputHook, knftables.FilterPriority)
		w.drop("at_leave", denied, "ip daddr", u.Range.String(), "oifname !=", tunnel, "oifname != lo")
	}
	w.drop("at_input", foreign, "iifname", tunnel)
	w.drop("at_input", foreign, "udp dport", port, "ip saddr != @"+plainSet+" iifname != lo")
	w.drop("at_input", foreign, "meta nfproto ipv6 udp dport", port, "iifname != lo")
}

// entry writes an element of an overlay.
func (w writer) entry(e entry) {
	vni := strconv.Itoa(int(e.vni))
	switch e.kind {
	case member:
		w.element(memberSet, vni, e.mac.String(), e.addr.addr().String())
	case asked:
		w.element(askedSet, vni, e.addr.addr().String())
	case far:
		w.element(farSet, e.link.String(), e.mac.String(), e.addr.addr().String())
	case belongs:
		w.tx.Add(&knftables.Element{Family: w.family, Table: w.table, Map: leadMap, Key: []string{e.link.String()}, Value: []string{vni}})
	case closed, near:
		w.element(setOf(e.kind), e.addr.addr().String())
	case barred:
		w.element(barredSet, e.addr.addr().String(), vni)
	}
}
