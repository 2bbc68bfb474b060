// Package volume mounts the backends of network volumes on a host, each once, and gives pods the directories of
// their volumes.
//
// Nothing here is durable: what is mounted is what the kernel says is mounted, and a later process goes on from there.
package volume

import "gantry/storage"

// Backend is that of package storage, which can be imported without what this package is made of.
type Backend = storage.Backend

// Volume is that of package storage.
type Volume = storage.Volume

// Error is that of package storage.
type Error = storage.Error
