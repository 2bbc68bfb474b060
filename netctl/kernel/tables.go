package kernel

import (
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"

	"gantry/netctl"
)

// The reasons that rules drop for (netctl.Drop.Why).
const (
	spoofed = "spoofed"   // the source is not the sender's
	flooded = "flooded"   // to all, or asks for nobody
	foreign = "foreign"   // of another network, or another protocol
	host    = "host"      // to the host
	denied  = "denied"    // a range or port that pods may not reach
	control = "scheduler" // the control plane
	shut    = "closed"    // the pod opens nothing outside
	unasked = "unasked"   // nobody asked for it
	crowded = "crowded"   // the pod has as many connections as it may have
)

func families() []knftables.Family {
	return []knftables.Family{knftables.BridgeFamily, knftables.InetFamily}
}

// transaction replaces both tables of an instance by those of the value. The kernel
// takes it as one step: no packet sees neither the old nor the new rules.
func transaction(nft knftables.Interface, c netctl.Config) *knftables.Transaction {
	tx := nft.NewTransaction()
	for _, f := range families() {
		t := knftables.Table{Family: f, Name: netctl.TableName(c.Instance)}
		tx.Add(&t)
		tx.Delete(&t)
		tx.Add(&t)
	}
	addPins(tx, c)
	addOverlays(tx, c)
	addFilter(tx, c)
	return tx
}

// addPins writes the bridge table: a frame from a pod's link passes only with the
// pod's own hardware and IPv4 address in it, and only to the gateway. ARP is held to
// the same, anything else (IPv6, VLAN tags) is dropped before the bridge learns from it.
// Ports are isolated as well, but the kernel does not count what that stops.
func addPins(tx *knftables.Transaction, c netctl.Config) {
	w := writer{tx, knftables.BridgeFamily, netctl.TableName(c.Instance)}
	w.set(pinSet, "ifname . ether_addr . ipv4_addr")
	for _, p := range c.Pods {
		for _, one := range pinsOf(c.Instance, p) {
			w.element(pinSet, one.link, one.mac, one.addr.String())
		}
	}
	w.chain("from_pod")
	w.base("at_bridge", knftables.FilterType, knftables.PreroutingHook, knftables.DNATPriority)
	w.rule("at_bridge", "iifname", quote(netctl.BridgeName(c.Instance)+"*"), "jump from_pod")
	gateway := c.Gateway().Addr()
	away := "ether daddr != " + netctl.MACFor(gateway)
	w.drop("from_pod", foreign, "ether type ip", away)
	w.drop("from_pod", foreign, "ether type arp arp operation request arp daddr ip !=", gateway.String())
	w.drop("from_pod", foreign, "ether type arp arp operation != request", away)
	w.rule("from_pod", "ether type ip iifname . ether saddr . ip saddr @"+pinSet, "accept")
	w.rule("from_pod", "ether type arp iifname . ether saddr . arp saddr ip @"+pinSet,
		"iifname . arp saddr ether . arp saddr ip @"+pinSet, "accept")
	w.drop("from_pod", spoofed)
}

// addFilter writes the inet table: pods reach what lies beyond the host and not
// denied, nothing reaches a pod by forwarding but answers and what came to a port
// that is published for it, and pods get only answers from the host. accept here
// leaves the last word to other tables of the machine.
func addFilter(tx *knftables.Transaction, c netctl.Config) {
	w := writer{tx, knftables.InetFamily, netctl.TableName(c.Instance)}
	bridge := quote(netctl.BridgeName(c.Instance))
	w.set("denied", "ipv4_addr", knftables.IntervalFlag)
	for _, p := range c.Denied() {
		w.element("denied", p.String())
	}
	addPorts(w, c)
	w.set(closedSet, "ipv4_addr")
	w.set(barredSet, "ipv4_addr . inet_service")
	w.set(plainSet, "ipv4_addr")
	for _, e := range hostEntries(c) {
		w.entry(e)
	}
	w.chain("from_pods")
	w.drop("from_pods", foreign, "meta nfproto != ipv4")
	w.drop("from_pods", spoofed, "ip saddr !=", c.Subnet.String())
	w.drop("from_pods", shut, "ip saddr @"+closedSet, "ct direction original")
	w.rule("from_pods", "ct status dnat ct direction reply ct state established,related accept")
	w.rule("from_pods", "oifname", bridge, "ct status dnat ip daddr . tcp dport @"+openSet, "accept")
	w.drop("from_pods", foreign, "oifname", bridge)
	w.drop("from_pods", denied, "ip daddr @denied")
	w.drop("from_pods", control, "ip daddr . tcp dport @"+barredSet)
	if c.Underlay.Port != 0 {
		w.drop("from_pods", denied, "udp dport", strconv.Itoa(int(c.Underlay.Port)))
	}
	w.drop("from_pods", unasked, "ct state invalid")
	w.chain("to_pods")
	w.rule("to_pods", "ct state established,related accept")
	w.rule("to_pods", "ct status dnat ip daddr . tcp dport @"+openSet, "accept")
	w.drop("to_pods", unasked)

	w.base("at_forward", knftables.FilterType, knftables.ForwardHook, knftables.FilterPriority)
	w.rule("at_forward", "iifname", bridge, "jump from_pods")
	w.rule("at_forward", "oifname", bridge, "jump to_pods")
	w.base("at_input", knftables.FilterType, knftables.InputHook, knftables.FilterPriority)
	w.rule("at_input", "iifname", bridge, "ct state established,related accept")
	if c.Names {
		gateway := c.Gateway().Addr().String()
		for _, proto := range []string{"udp", "tcp"} {
			w.rule("at_input", "iifname", bridge, "ip daddr", gateway, proto, "dport 53 accept")
			w.drop("at_input", unasked, "iifname !=", bridge, "iifname != lo ip daddr", gateway, proto, "dport 53")
		}
	}
	w.drop("at_input", host, "iifname", bridge)
	addUnderlay(w, c)
	addFlows(w, c.Flows, bridge)
	w.base("at_postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority)
	w.rule("at_postrouting", "ip saddr", c.Subnet.String(), "oifname !=", bridge, "masquerade")
	// Between two pods the answer must come back through the host, whose address it was sent to.
	w.rule("at_postrouting", "ip saddr", c.Subnet.String(), "oifname", bridge, "ct status dnat masquerade")
}

// addPorts writes what leads from a public port of the host to a pod. The map names the pod's
// address and port, the set lets exactly these through; the source of a connection stays as it is.
func addPorts(w writer, c netctl.Config) {
	w.mapping(portMap, "inet_service : ipv4_addr . inet_service")
	w.set(openSet, "ipv4_addr . inet_service")
	for _, p := range c.Pods {
		for _, port := range p.Ports {
			private := strconv.Itoa(int(port.Private))
			w.tx.Add(&knftables.Element{
				Family: w.family, Table: w.table, Map: portMap,
				Key: []string{strconv.Itoa(int(port.Public))}, Value: []string{p.Addr.String(), private},
			})
			w.element(openSet, p.Addr.String(), private)
		}
	}
	w.set("public", "ipv4_addr")
	for _, a := range c.Public {
		w.element("public", a.String())
	}
	for _, at := range []struct {
		chain string
		hook  knftables.BaseChainHook
	}{{"at_prerouting", knftables.PreroutingHook}, {"at_output", knftables.OutputHook}} {
		w.base(at.chain, knftables.NATType, at.hook, knftables.DNATPriority)
		w.rule(at.chain, "ip daddr @public dnat ip to tcp dport map @"+portMap)
	}
}

// writer adds objects of one table.
type writer struct {
	tx     *knftables.Transaction
	family knftables.Family
	table  string
}

func (w writer) set(name, key string, flags ...knftables.SetFlag) {
	w.tx.Add(&knftables.Set{Family: w.family, Table: w.table, Name: name, Type: key, Flags: flags})
}

func (w writer) mapping(name, types string) {
	w.tx.Add(&knftables.Map{Family: w.family, Table: w.table, Name: name, Type: types})
}

func (w writer) element(set string, key ...string) {
	w.tx.Add(&knftables.Element{Family: w.family, Table: w.table, Set: set, Key: key})
}

func (w writer) chain(name string) {
	w.tx.Add(&knftables.Chain{Family: w.family, Table: w.table, Name: name})
}

func (w writer) base(name string, t knftables.BaseChainType, h knftables.BaseChainHook, p knftables.BaseChainPriority) {
	w.tx.Add(&knftables.Chain{Family: w.family, Table: w.table, Name: name, Type: &t, Hook: &h, Priority: &p})
}

func (w writer) rule(chain string, words ...string) {
	w.tx.Add(&knftables.Rule{Family: w.family, Table: w.table, Chain: chain, Rule: strings.Join(words, " ")})
}

// drop is a rule that drops and counts; its comment says why (netctl.Drop).
func (w writer) drop(chain, why string, words ...string) {
	rule := strings.Join(append(words, "counter drop"), " ")
	w.tx.Add(&knftables.Rule{Family: w.family, Table: w.table, Chain: chain, Rule: rule, Comment: &why})
}

func quote(s string) string { return `"` + s + `"` }
