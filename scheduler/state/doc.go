// Package state is the replicated state machine of the control plane: what accounts, keys, hosts
// and pods there are, the commands that change them, and views of them.
//
// It is pure: no clock, no random, no goroutine, and every time and every random value is in a command.
// The same entries give the same state on every replica.
//
// Package table keeps the records, in memory and in a file, with their indexes, events and snapshots; it
// says how they are locked. This package declares the tables and what is derived of them (tables.go),
// decides commands and answers questions. tables.candMu guards the cached candidates and is taken in a view.
package state
