package kernel

import (
	"strconv"

	"sigs.k8s.io/knftables"
)

// The sets in which the kernel counts tracked connections by the pod's address. The kernel adds an element with the
// first connection of an address and removes it after the last: nothing is written when a pod comes or goes.
const (
	openedSet = "opened" // connections that pods open
	cameSet   = "came"   // connections to pods
)

// flowKeys bounds the elements of each set: more than there are addresses on a host.
const flowKeys uint64 = 1 << 16

// addFlows bounds the connections of each pod that the host tracks. The chains come after those that filter, so that
// only what passed them is counted, and a packet that is dropped here is never tracked.
func addFlows(w writer, most int, bridge string) {
	if most == 0 {
		return
	}
	keys := flowKeys
	for _, name := range []string{openedSet, cameSet} {
		w.tx.Add(&knftables.Set{
			Family: w.family, Table: w.table, Name: name, Type: "ipv4_addr", Flags: []knftables.SetFlag{knftables.DynamicFlag}, Size: &keys,
		})
	}
	// To count is to walk through what the pod has. A one-way flow stays "new": without the status each packet would walk.
	first := "ct state new ct status & confirmed == 0"
	over := "ct count over " + strconv.Itoa(most)
	opened := []string{"iifname", bridge, first, "add @" + openedSet, "{ ip saddr", over, "}"}
	came := []string{"oifname", bridge, first, "add @" + cameSet, "{ ip daddr", over, "}"}
	for _, at := range []struct {
		chain string
		hook  knftables.BaseChainHook
		rule  []string
	}{
		{"flows_forward", knftables.ForwardHook, opened},
		{"flows_input", knftables.InputHook, opened},
		{"flows_postrouting", knftables.PostroutingHook, came}, // what the host opens to a published port leads to the bridge from here on
	} {
		w.base(at.chain, knftables.FilterType, at.hook, knftables.FilterPriority+"+10")
		w.drop(at.chain, crowded, at.rule...)
	}
}
