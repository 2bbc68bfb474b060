// Package state is the replicated state machine of the control plane: what accounts, keys, hosts
// and pods there are, the commands that change them, and views of them.
//
// It is pure but for its own file: no clock, no random, no goroutine, and every time and every random
// value is in a command. The same entries give the same state on every replica.
//
// All of the state is in one bbolt file, written only by Apply: one transaction per batch, the applied
// index inside it. The file is not synced, because the log and its snapshots are the truth; nothing is
// durable by Apply alone. A file that may have lost writes is thrown away at Open and comes back
// from them. Tables in memory hold the same records, decoded, but for hourly usage, of which there is too
// much: Usage reads it in the file.
//
// Locks: Store.mu guards the tables, the ring, the index and, with writing, which file is open;
// Store.candMu guards the cached candidates and is taken after it. Apply decides and writes the file
// without either and takes mu only to publish what changed. Records are never changed once they are
// published.
package state
