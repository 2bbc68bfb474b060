// Package webhook calls the URL that a job's owner gave, once the job has ended (interface.md, "Events"; wire-facts.md,
// §2.5). It makes one try; when to make the next is Next's answer, and whoever asks keeps how many there were.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"gantry/fleet"
	"gantry/internal/outbound"
)

// Tries is how often a webhook is called at most.
const Tries = 3

// Pause is the time between two calls.
const Pause = 10 * time.Second

const (
	timeout  = 10 * time.Second // of one call, from the connection to the end of the answer
	maxURL   = 2048
	maxHeard = 4 << 10 // bytes of an answer that are read, so that the connection can be used again
)

// SignatureHeader has "t=SECONDS,v1=HEX": when the call was signed (Unix time), and the HMAC-SHA256 of "SECONDS.BODY" under
// the endpoint's secret.
const SignatureHeader = "X-Gantry-Signature"

// CheckURL refuses what cannot be called. Errors: invalid, at path.
func CheckURL(path, raw string) error {
	u, err := url.Parse(raw)
	switch {
	case len(raw) > maxURL:
		return fleet.Invalid(path, "must have at most 2048 bytes")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fleet.Invalid(path, "must be an http or https URL")
	case u.User != nil:
		return fleet.Invalid(path, "must not hold a user name or password")
	}
	return nil
}

// Sender makes calls. It is safe for concurrent use.
type Sender struct {
	client http.Client
	now    func() time.Time
}

// NewSender returns a Sender that connects to public addresses, to those in allow, and to loopback addresses if loopback is set.
func NewSender(allow []netip.Prefix, loopback bool) *Sender {
	return &Sender{now: time.Now, client: http.Client{
		Transport: outbound.Guard{Allow: allow}.Transport(loopback), Timeout: timeout,
		// A redirect would lead the job's output to where its owner did not send it.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close ends idle connections.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

// Send posts the record of a job, which is JSON. With a secret the call is signed. Any answer of 2xx is success. The error says why
// it was none, without the answer's text.
func (s *Sender) Send(ctx context.Context, to string, record []byte, secret fleet.Secret) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(record))
	if err != nil {
		return errors.New("call webhook: the URL cannot be used")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "gantry-webhook")
	if secret.Reveal() != "" {
		req.Header.Set(SignatureHeader, sign(secret, s.now(), record))
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if e := new(url.Error); errors.As(err, &e) {
			err = e.Err // without the URL, which may hold a token
		}
		return fmt.Errorf("call webhook: %w", err)
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxHeard)
	_ = resp.Body.Close() // the answer's text does not matter
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("call webhook: the answer was status %d", resp.StatusCode)
	}
	return nil
}

func sign(secret fleet.Secret, at time.Time, body []byte) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret.Reveal()))
	_, _ = mac.Write([]byte(seconds + "."))
	_, _ = mac.Write(body) // a hash never fails
	return "t=" + seconds + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

// Next returns when to call again after so many calls, the last of which ended at this time; false: not at all.
func Next(calls int, last time.Time) (time.Time, bool) {
	return last.Add(Pause), calls < Tries
}
