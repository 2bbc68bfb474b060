package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"gantry/test/chaos/history"
	"gantry/test/chaos/lab"
)

const callTime = 12 * time.Second // longer than any call that is answered

// web calls APIs from a place.
type web struct{ http *http.Client }

func newWeb(from *lab.Place) *web {
	return &web{&http.Client{
		Timeout: callTime,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				return from.Dial(ctx, network, addr)
			},
			MaxIdleConnsPerHost: 32, IdleConnTimeout: 10 * time.Second,
		},
	}}
}

// ask is a call.
type ask struct {
	base, key    string
	method, path string
	body         any
	once         string // Idempotency-Key
	limit        time.Duration
}

// answer is what came of it.
type answer struct {
	status int // 0: none came
	body   []byte
	result history.Result
	note   string
	header http.Header
}

// call makes a call and judges what is known of it: a write is unknown unless the API or the connection says more.
func (w *web) call(ctx context.Context, a ask) answer {
	if a.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.limit)
		defer cancel()
	}
	var body io.Reader
	if a.body != nil {
		text, err := json.Marshal(a.body)
		if err != nil {
			return answer{result: history.Refused, note: err.Error()}
		}
		// Not one of the kinds that the HTTP client would send again by itself.
		body = io.NopCloser(bytes.NewReader(text))
	}
	req, err := http.NewRequestWithContext(ctx, a.method, a.base+a.path, body)
	if err != nil {
		return answer{result: history.Refused, note: err.Error()}
	}
	req.Header.Set("Authorization", "Bearer "+a.key)
	if a.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.once != "" {
		req.Header.Set("Idempotency-Key", a.once)
	}
	res, err := w.http.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return answer{result: history.Refused, note: err.Error()}
		}
		return answer{result: history.Unknown, note: err.Error()}
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err != nil {
		return answer{result: history.Unknown, note: err.Error()}
	}
	out := answer{status: res.StatusCode, body: text, header: res.Header}
	switch {
	case res.StatusCode < 300:
		out.result = history.OK
	case res.StatusCode >= 500 && !saysNothingDone(res, text):
		out.result = history.Unknown
	default:
		out.result = history.Refused
	}
	if out.result != history.OK {
		out.note = fmt.Sprintf("%d %.200s", res.StatusCode, text)
	}
	return out
}

// saysNothingDone reports whether a refusal promises that nothing happened, to programs or to people. The promise is
// held against what is read later.
func saysNothingDone(res *http.Response, body []byte) bool {
	return res.Header.Get("X-Gantry-Nothing-Done") == "1" ||
		bytes.Contains(body, []byte("nothing was done")) || bytes.Contains(body, []byte("Nothing was changed"))
}

// read makes a call that must be answered well, and decodes the answer.
func (w *web) read(ctx context.Context, a ask, into any) error {
	got := w.call(ctx, a)
	if got.result != history.OK {
		return fmt.Errorf("%s %s%s: %s", a.method, a.base, a.path, got.note)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(got.body, into)
}
