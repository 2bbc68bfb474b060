// Package limit counts requests: those of each account in three fixed windows (minute, hour, day), and
// the failed authentications of each client address. It says what is left in the form of the RateLimit
// headers. It answers no request, reads no key and never waits. Counts live in this process's memory
// only and nothing is durable: a restart, or another leader, begins at zero.
//
// Tables are split into parts with a lock each; no two locks are ever held at once. What is kept is
// bounded: entries whose windows have all passed are dropped while requests come in, and a full part
// gives up its least recent entries.
package limit
