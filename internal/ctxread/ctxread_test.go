package ctxread_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"gantry/internal/ctxread"
)

func TestAReaderEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := ctxread.New(ctx, strings.NewReader("abcd"))
	b := make([]byte, 2)
	if n, err := r.Read(b); n != 2 || err != nil || string(b) != "ab" {
		t.Fatalf("%d %q, %v", n, b, err)
	}
	cancel()
	if rest, err := io.ReadAll(r); len(rest) != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%q, %v", rest, err)
	}
}
