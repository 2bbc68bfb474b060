// Package overlay shows, with real containers on three hosts in network namespaces, that pods of one account reach each other
// across hosts by address and name, and that nobody else hears them.
package overlay
