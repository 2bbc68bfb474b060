package forward_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gantry/api/forward"
)

func TestWebSockets(t *testing.T) {
	s := newSite(t)
	a := s.add("a", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		c.SetReadLimit(4 << 20)
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	})
	b := s.add("b", echo, func(c *forward.Config) { c.Handover = time.Millisecond })
	s.set(a)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(b.api.URL, "http"), nil) //nolint:bodyclose // the library says that there is none to close
	s.must(err)
	defer func() { _ = c.CloseNow() }()
	c.SetReadLimit(4 << 20)
	big := make([]byte, 1<<20)
	_, _ = rand.Read(big)
	for _, msg := range [][]byte{[]byte("hello"), big} {
		s.must(c.Write(ctx, websocket.MessageBinary, msg))
		if _, got, err := c.Read(ctx); err != nil || !bytes.Equal(got, msg) {
			t.Fatal(len(got), err)
		}
	}
	s.set(b)
	if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
		t.Error("the socket outlives the leader")
	}
}
