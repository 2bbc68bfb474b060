// Package ctxread has readers that end with a context. It stores nothing.
package ctxread

import (
	"context"
	"io"
)

type reader struct {
	ctx context.Context
	io.Reader
}

// New returns a reader of r whose reads fail with the context's error once ctx has ended. A read that has begun goes on.
func New(ctx context.Context, r io.Reader) io.Reader { return reader{ctx, r} }

// Read implements io.Reader.
func (r reader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}
