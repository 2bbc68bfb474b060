package proxy_test

import (
	"bytes"
	"crypto/rand"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gantry/api/rest"
)

func echoSocket(t *testing.T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			t.Error(err)
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
}

func (s *site) socket(t *testing.T) *websocket.Conn {
	t.Helper()
	c, resp, err := websocket.Dial(t.Context(), "ws://"+s.host(8080)+"/chat", &websocket.DialOptions{HTTPClient: &http.Client{Transport: s.client.Transport}}) //nolint:bodyclose // the library says that there is none to close
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp.Status)
	}
	c.SetReadLimit(4 << 20)
	t.Cleanup(func() { _ = c.CloseNow() })
	return c
}

func TestWebSocket(t *testing.T) {
	limits := rest.Limits{Read: 200 * time.Millisecond, Write: 200 * time.Millisecond, Header: 200 * time.Millisecond, Idle: 200 * time.Millisecond}
	s := newSite(t, echoSocket(t), limits, nil)
	c := s.socket(t)
	big := make([]byte, 1<<20)
	_, _ = rand.Read(big)
	for i, msg := range [][]byte{[]byte("hello"), big, []byte("after the limits")} {
		if err := c.Write(t.Context(), websocket.MessageBinary, msg); err != nil {
			t.Fatal(i, err)
		}
		if _, got, err := c.Read(t.Context()); err != nil || !bytes.Equal(got, msg) {
			t.Fatal(i, len(got), err)
		}
		outlast(limits.Read)
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsWebSockets(t *testing.T) {
	s := newSite(t, echoSocket(t), rest.Limits{}, nil)
	c := s.socket(t)
	s.proxy.Close()
	if _, _, err := c.Read(t.Context()); err == nil {
		t.Error("the socket still works")
	}
	if resp, _ := s.get(t, s.host(8080)); resp.status != http.StatusServiceUnavailable {
		t.Errorf("a closed proxy answered %d", resp.status)
	}
}
