// Package agent is the daemon of a host: it joins the cluster, keeps one session with a scheduler,
// writes what is wanted into its ledger, runs a machine for each pod and reports what it sees. It
// never decides which pods run here. Containers outlive it: after a restart it finds them by label
// and goes on, and it starts nothing new until it has heard a scheduler.
//
// Of several schedulers it follows the one that leads: those that do not name it. Where they are it knows from
// its flags and from what schedulers told it, which it keeps in its data folder. It never follows a control plane
// that is an older copy of one that it followed before (its lineage, in the ledger). A session in which the
// answers to heartbeats stay out is given up for another one; the same run of the agent keeps its orders
// meanwhile, and the set of them is not sent again.
package agent
