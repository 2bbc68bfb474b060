// Package chaos holds the fault tests with real processes: schedulers, agents and clients, each on a machine of its own,
// with real TLS, Raft over TCP and disks that fail. README.md says which rows of the reliability table are here.
package chaos
