package kernel

import (
	"strconv"
	"time"

	"sigs.k8s.io/knftables"
)

// The sets in which the kernel counts tracked connections by the pod's address. The kernel adds an element with the
// first connection of an address and removes it after the last: nothing is written when a pod comes or goes.
const (
	openedSet = "opened" // connections that pods open
	cameSet   = "came"   // connections to pods
)

// fullSet names the set of the addresses that had all that they may have a moment ago. What they begin is dropped before
// it is counted: the kernel keeps a record of each packet that it counts, also of one that is dropped then, and removes
// few of these at a time, so that a flood would fill its memory.
func fullSet(counts string) string { return counts + "_full" }

const fullFor = time.Second

// rateSet names the set of the rates at which connections begin. The kernel does not count those that have closed, and keeps
// them in its table for two minutes: with all of these, a pod has at most six times as many as are counted.
func rateSet(counts string) string { return counts + "_rate" }

const (
	flowRate = 32              // a second, that part of what a pod may have, and twice what it may have at once
	rateFor  = 2 * time.Minute // without a new connection, until the kernel forgets the rate; longer than until it is full again
)

// flowKeys bounds the elements of each set: more than there are addresses on a host.
const flowKeys uint64 = 1 << 16

// addFlows bounds the connections of each pod that the host tracks. The chains come after those that filter, so that
// only what passed them is counted, and a packet that is dropped here is never tracked.
func addFlows(w writer, most int, bridge string) {
	if most == 0 {
		return
	}
	for _, name := range []string{openedSet, cameSet} {
		w.dynamic(name, 0)
		w.dynamic(fullSet(name), fullFor)
		w.dynamic(rateSet(name), rateFor)
	}
	rate := strconv.Itoa(max(most/flowRate, 1)) + "/second"
	for _, at := range []struct {
		chain  string
		hook   knftables.BaseChainHook
		link   string // iifname or oifname
		counts string
		key    string
	}{
		{"flows_forward", knftables.ForwardHook, "iifname", openedSet, "ip saddr"},
		{"flows_input", knftables.InputHook, "iifname", openedSet, "ip saddr"},
		// What the host opens to a published port leads to the bridge from here on.
		{"flows_postrouting", knftables.PostroutingHook, "oifname", cameSet, "ip daddr"},
	} {
		w.base(at.chain, knftables.FilterType, at.hook, knftables.FilterPriority+"+10")
		// To count is to walk through what the pod has. A one-way flow stays "new": without the status each packet would.
		w.rule(at.chain, at.link, "!=", bridge, "accept")
		w.rule(at.chain, "ct state != new accept")
		w.rule(at.chain, "ct status & confirmed != 0 accept")
		full := "@" + fullSet(at.counts)
		w.drop(at.chain, crowded, at.key, full)
		w.drop(at.chain, crowded, "update @"+rateSet(at.counts), "{", at.key, "limit rate over", rate, "burst", strconv.Itoa(2*most), "packets }")
		w.drop(at.chain, crowded, "add @"+at.counts, "{", at.key, "ct count over", strconv.Itoa(most), "}", "add", full, "{", at.key, "}")
	}
}

// dynamic is a set of addresses that packets change. Each is forgotten after a time; 0: when nothing is counted for it.
func (w writer) dynamic(name string, after time.Duration) {
	size := flowKeys
	set := knftables.Set{
		Family: w.family, Table: w.table, Name: name, Type: "ipv4_addr", Flags: []knftables.SetFlag{knftables.DynamicFlag}, Size: &size,
	}
	if after > 0 {
		set.Flags, set.Timeout = []knftables.SetFlag{knftables.TimeoutFlag, knftables.DynamicFlag}, &after
	}
	w.tx.Add(&set)
}
