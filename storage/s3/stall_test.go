package s3

import (
	"io"
	"strings"
	"testing"
	"time"
)

// slowly gives a byte at a time.
type slowly struct {
	left  string
	pause time.Duration
}

func (s *slowly) Read(p []byte) (int, error) {
	if s.left == "" {
		return 0, io.EOF
	}
	if s.pause > 0 {
		<-time.After(s.pause)
	}
	n := copy(p[:1], s.left)
	s.left = s.left[n:]
	return n, nil
}

func TestASlowBodyMayTakeLongAndAStalledOneNot(t *testing.T) {
	f := newFixtureIn(t, t.TempDir(), Limits{Stall: 200 * time.Millisecond})
	content := strings.Repeat("x", 20)
	// Longer in all than the answer's time.
	r := f.signed(call{method: "PUT", path: "/vol1/slow", body: []byte(content)})
	r.Body = nopBody{&slowly{content, 40 * time.Millisecond}}
	if got := f.send(r); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if f.get("slow") != content {
		t.Error("other content")
	}
	stop := make(chan struct{})
	r = f.signed(call{method: "PUT", path: "/vol1/stalled", body: []byte(content)})
	r.Body = nopBody{readFunc(func([]byte) (int, error) { <-stop; return 0, io.ErrUnexpectedEOF })}
	got, err := testClient.Transport.RoundTrip(r)
	close(stop)
	if err == nil {
		_ = got.Body.Close()
		if got.StatusCode != 400 {
			t.Errorf("status %d", got.StatusCode)
		}
	}
	if f.exists("stalled") {
		t.Error("a stalled body was kept")
	}
}

func TestALongCopyKeepsTheClientWaiting(t *testing.T) {
	f := newFixtureIn(t, t.TempDir(), Limits{Stall: 120 * time.Millisecond, Wait: 10 * time.Second})
	id := f.create("a")
	f.want(partCall("a", id, 1, "x"), 200, "")
	// Nothing of the volume's file system can be asked for a while.
	f.h.mu.Lock()
	v := f.h.volumes["vol1"]
	f.h.mu.Unlock()
	for range cap(v.threads) {
		v.threads <- struct{}{}
	}
	free := time.AfterFunc(400*time.Millisecond, func() {
		for range cap(v.threads) {
			<-v.threads
		}
	})
	defer free.Stop()
	got := f.want(completeCall("a", id, map[int]string{1: md5Of("x")}, 1), 200, "")
	if !strings.Contains(string(got.body), "?>\n ") || !strings.Contains(string(got.body), "<Key>a</Key>") || strings.Contains(string(got.body), "<Error>") {
		t.Errorf("%q", got.body)
	}
	if f.get("a") != "x" {
		t.Error("other content")
	}
}
