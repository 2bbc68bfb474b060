// Package agent is the daemon of a host: it joins the cluster, keeps one session with a scheduler,
// writes what is wanted into its ledger, runs a machine for each pod and reports what it sees. It
// never decides which pods run here. Containers outlive it: after a restart it finds them by label
// and goes on, and it starts nothing new until it has heard a scheduler.
package agent
