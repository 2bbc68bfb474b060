package state

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// The bounds of files of TLS for users: a certificate with its chain and key are some 10 KiB, and there are few.
const (
	maxTLSFiles  = 256
	maxTLSName   = 512      // bytes
	maxTLSSealed = 64 << 10 // bytes
)

// PutTLSFile creates or replaces a file, or deletes it when Sealed is empty, also where there is none.
// Errors: invalid, rule (there are too many).
type PutTLSFile struct {
	File fleet.TLSFile `cbor:"1,keyasint"`
}

func (c PutTLSFile) apply(t *txn) (any, error) {
	in := c.File
	switch {
	case in.Name == "" || len(in.Name) > maxTLSName || !utf8.ValidString(in.Name):
		return nil, fleet.Invalid("$.name", "must have 1 to 512 bytes")
	case len(in.Sealed) > maxTLSSealed:
		return nil, fleet.Invalid("$.sealed", "must have at most 65536 bytes")
	case len(in.Sealed) == 0:
		t.base.tlsFiles.Drop(t.Txn, in.Name)
		return nil, nil
	case t.base.tlsFiles.Get(t.Txn, in.Name) == nil && len(t.base.tlsFiles.Keys(t.Txn, 0, table.All)) >= maxTLSFiles:
		return nil, fleet.BreaksRule("there may be at most %d files of TLS", maxTLSFiles)
	}
	in.Sealed = slices.Clone(in.Sealed)
	t.base.tlsFiles.Put(t.Txn, in.Name, &in)
	return nil, nil
}

// TLSFile returns a file of TLS for users.
func (v *View) TLSFile(name string) (fleet.TLSFile, bool) {
	f := v.tb.tlsFiles.Rows[name]
	if f == nil {
		return fleet.TLSFile{}, false
	}
	out := *f
	out.Sealed = slices.Clone(f.Sealed)
	return out, true
}

// TLSFiles returns the names that begin with prefix, sorted.
func (v *View) TLSFiles(prefix string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(v.tb.tlsFiles.Rows)), func(name string) bool {
		return !strings.HasPrefix(name, prefix)
	})
}
