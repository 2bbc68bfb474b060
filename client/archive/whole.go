package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
)

// endMark is how many bytes of zeros end every tar stream.
const endMark = 1024

// whole reads the entries of a tar stream and tells one that was cut off between two entries, which a tar.Reader takes
// for the end, from one that is whole.
type whole struct {
	tar *tar.Reader
	in  *counting
}

type counting struct {
	r io.Reader
	n int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func newWhole(r io.Reader) whole {
	in := &counting{r: r}
	return whole{tar.NewReader(in), in}
}

// next skips what is left of the present entry and returns the next; io.EOF when the stream was read to its end and
// was whole.
func (w whole) next() (*tar.Header, error) {
	if _, err := io.Copy(io.Discard, w.tar); err != nil {
		return nil, fmt.Errorf("read the tar stream: %w", err)
	}
	before := w.in.n
	h, err := w.tar.Next()
	switch {
	case err == nil:
		return h, nil
	case !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("read the tar stream: %w", err)
	}
	// What follows the mark is padding; reading it tells whether the connection held.
	_, err = io.Copy(io.Discard, w.in)
	if err == nil && w.in.n-before < endMark {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("read the end of the tar stream: %w", err)
	}
	return nil, io.EOF
}

// Copy copies a tar stream as it is. It fails when the stream is none, or is not whole.
func Copy(w io.Writer, r io.Reader) error {
	in := newWhole(io.TeeReader(r, w))
	for {
		if _, err := in.next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
