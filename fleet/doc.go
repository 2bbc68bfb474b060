// Package fleet holds the nouns of Gantry: pods, hosts, GPUs, data centers, accounts and keys,
// their identifiers, their states with the legal moves, and the error codes that cross every
// boundary. It imports the standard library only, is imported by every other package, stores
// nothing, starts nothing and reads no clock.
package fleet
