// Package table holds the tables of a replicated state machine, and knows nothing of what is in them. Its user declares
// tables and their indexes (Set) and decides commands on a Txn; this package keeps the rows, in memory and in one bbolt file.
//
// It is pure but for that file: no clock, no random value, no goroutine of its own. The same entries give the same state on
// every replica.
//
// The file is written only by Apply: one transaction per batch, the applied index inside it. It is not synced, because the
// log and its snapshots are the truth; nothing is durable by Apply alone. A file that may have lost writes is thrown away at
// Open and comes back from them. Tables hold the same rows in memory, decoded, but for those of a Cold table, of which there are
// too many.
//
// Locks: Store.mu guards the tables, the ring, the index and, with writing, which file is open. Apply decides and writes the file
// without it and takes it only to publish what changed. Rows are never changed once they are published.
package table
