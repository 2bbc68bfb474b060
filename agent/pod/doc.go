// Package pod brings about, on one host, what the scheduler wants of each pod. Every pod has one
// goroutine that repeats three parts: look (what is on this host), next (a pure function that names
// one step) and do (one effect, which may be repeated). It decides nothing about where pods run,
// never starts an incarnation twice and speaks to the container runtime, the network and the ledger
// only through the interfaces that it declares.
//
// Durable, through Ledger: the assignment before anything is done about it, "this incarnation is
// about to start" before its process runs, and how an incarnation ended before its container is
// removed. After a crash at any point the machine looks again and goes on.
package pod
