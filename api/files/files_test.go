package files

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slow is a storage whose files come once it is opened.
type slow struct {
	began chan struct{}
	open  chan struct{}
}

// OpenFile implements Service.
func (s slow) OpenFile(context.Context, string, string, string, string, http.Header) (*http.Response, error) {
	s.began <- struct{}{}
	<-s.open
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("file"))}, nil
}

// TestReadersShareThePlaces: who reads slowly from one address leaves places to others, and gives its own back.
func TestReadersShareThePlaces(t *testing.T) {
	s := slow{make(chan struct{}), make(chan struct{})}
	a := New(s, time.Now, nil, slog.New(slog.DiscardHandler))
	get := func(address string) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, prefix+"a.png", nil)
		r.RemoteAddr = address + ":1"
		a.ServeHTTP(w, r)
		return w
	}
	var readers sync.WaitGroup
	begin := func(address string, n int) {
		for range n {
			readers.Go(func() {
				if w := get(address); w.Code != http.StatusOK || w.Body.String() != "file" {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
			<-s.began
		}
	}
	begin("192.0.2.1", mostOf)
	if w := get("192.0.2.1"); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
		t.Errorf("one more of the same address: %d", w.Code)
	}
	for i := range most/mostOf - 1 {
		begin("192.0.2."+string(rune('2'+i)), mostOf)
	}
	if w := get("198.51.100.1"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("one more than all: %d", w.Code)
	}
	close(s.open)
	readers.Wait()
	begin("192.0.2.1", 1)
	readers.Wait()
}
