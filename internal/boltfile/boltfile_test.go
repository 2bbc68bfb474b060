package boltfile

import (
	"encoding/binary"
	"testing"
)

// FuzzElements takes apart pages of any bytes: it never panics.
func FuzzElements(f *testing.F) {
	page := make([]byte, 256)
	binary.NativeEndian.PutUint16(page[8:], flagLeaf)
	binary.NativeEndian.PutUint16(page[10:], 2)
	f.Add(page)
	f.Fuzz(func(_ *testing.T, page []byte) { _, _, _ = elements(page) })
}
