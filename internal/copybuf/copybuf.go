// Package copybuf copies streams that are mostly quiet, such as connections to pods and WebSockets. It stores nothing.
package copybuf

import (
	"errors"
	"io"
	"sync"
)

// A stream that is quiet holds a small buffer, and one that is busy borrows a large one.
const (
	small = 2 << 10
	large = 128 << 10
)

var largeBuffers = sync.Pool{New: func() any { return new([large]byte) }}

// Copy copies until from ends, and returns how many bytes. It asks neither side for another way of copying.
func Copy(to io.Writer, from io.Reader) (copied int64, err error) {
	own := make([]byte, small)
	buf := own
	defer func() { giveBack(buf) }()
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return copied, err
			}
			copied += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return copied, nil
		case err != nil:
			return copied, err
		case n == small && len(buf) == small:
			buf = largeBuffers.Get().(*[large]byte)[:] //nolint:forcetypeassert // it holds nothing else
		case n < small && len(buf) == large:
			giveBack(buf)
			buf = own
		}
	}
}

func giveBack(buf []byte) {
	if len(buf) == large {
		largeBuffers.Put((*[large]byte)(buf))
	}
}
