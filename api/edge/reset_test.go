package edge

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gantry/api/rest"
)

// frame is a frame of HTTP/2 (RFC 9113, section 4.1).
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(head, stream), payload...)
}

// TestRapidReset: a client of HTTP/2 that opens requests and takes each back at once (CVE-2023-44487) has no more of them under way than
// one that waits, is cut off for it, and holds up nobody.
func TestRapidReset(t *testing.T) {
	const asked, atOnce = 20_000, 100
	var running, most atomic.Int64
	held := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "hostile.test" {
			_, _ = io.WriteString(w, "hello")
			return
		}
		for now := running.Add(1); ; {
			if had := most.Load(); had >= now || most.CompareAndSwap(had, now) {
				break
			}
		}
		<-held // as a handler that does not notice
		running.Add(-1)
	})
	addr, browser := overTLS(t, "gantry.test", h, rest.Limits{})
	release := sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)

	c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, ServerName: "gantry.test", NextProtos: []string{"h2"}}) //nolint:gosec // it is the test's
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	}()
	_ = c.SetDeadline(time.Now().Add(patience))
	out := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(4, 0, 0, nil)...)
	header := append([]byte{0x82, 0x87, 0x84, 0x01, byte(len("hostile.test"))}, "hostile.test"...) // GET https / of the host
	for i := range uint32(asked) {
		out = append(out, frame(1, 5, 2*i+1, header)...)
		out = append(out, frame(3, 0, 2*i+1, []byte{0, 0, 0, 8})...)
	}
	_, sent := c.Write(out)
	err = <-ended
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		t.Errorf("the connection is open after %d requests that were taken back", asked)
	}
	t.Logf("%d requests at a time; sending: %v, receiving: %v", most.Load(), sent, err)
	if n := most.Load(); n == 0 || n > atOnce {
		t.Errorf("%d requests of one connection at a time, and there may be %d", n, atOnce)
	}
	resp, err := browser.Get("https://gantry.test/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); string(body) != "hello" || resp.ProtoMajor != 2 {
		t.Errorf("%s: %q %v", resp.Proto, body, err)
	}
	release()
}
