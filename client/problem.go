package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gantry/api/v2"
)

const maxProblem = 1 << 20 // bytes of a problem body

// Problem is a refusal or failure that the API explained.
type Problem struct {
	v2.Problem
	// RetryAfter is what the API asked to wait before another try; 0 when it said nothing.
	RetryAfter time.Duration
	// NothingDone tells that the refusal came before anything was done.
	NothingDone bool
}

// Error returns the detail, or the title where there is none.
func (p *Problem) Error() string {
	switch {
	case p.Detail != "":
		return p.Detail
	case p.Title != "":
		return p.Title
	default:
		return fmt.Sprintf("the API answered %d", p.Status)
	}
}

// Temporary reports whether the same call may succeed later: unavailable, limited, or a gateway's error.
func (p *Problem) Temporary() bool {
	switch p.Status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	default:
		return false
	}
}

// Foreign is an answer that no Gantry API gives: another server is at the address.
type Foreign struct {
	Address string
	What    string // what it answered
}

// Error says what answered how.
func (f *Foreign) Error() string {
	return fmt.Sprintf("%s is no Gantry API: it answered %s", f.Address, f.What)
}

// foreign describes an answer that is not a Gantry API's: a redirect, or a refusal with another body. It is nil for what
// may be one. Between us and the API a gateway may answer, when the API is away: its errors, 5xx and 429, tell nothing.
func foreign(res *http.Response, body []byte, kind, address string) error {
	const gateway = http.StatusInternalServerError
	switch code := res.StatusCode; {
	case code >= gateway, code == http.StatusTooManyRequests, code == http.StatusRequestEntityTooLarge:
		return nil
	case code >= http.StatusBadRequest && (len(body) == 0 || kind == "application/problem+json"):
		return nil
	}
	return &Foreign{Address: address, What: strings.TrimSpace(fmt.Sprintf("%d %s", res.StatusCode, http.StatusText(res.StatusCode)))}
}

// readProblem makes a Problem of an answer that is not a success, also where something between us and the API
// answered with another form.
func readProblem(res *http.Response) error {
	p := &Problem{}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if strings.HasSuffix(kind, "json") && json.Unmarshal(body, &p.Problem) != nil {
		p = &Problem{}
	}
	p.Status = res.StatusCode
	if res.Request != nil && p.Code == "" {
		said := ""
		if isJobPath(res.Request.URL.Path) {
			said = jobProblem(body)
		}
		p.Detail = cmp.Or(said, p.Detail)
		if err := foreign(res, body, kind, addressOf(res.Request.URL)); err != nil && said == "" {
			return err
		}
	}
	if p.Title == "" {
		p.Title = http.StatusText(res.StatusCode)
	}
	if p.Detail == "" {
		p.Detail = strings.TrimSpace(fmt.Sprintf("The API answered %d %s.", res.StatusCode, p.Title))
	}
	if p.RequestID == "" {
		p.RequestID = res.Header.Get("X-Request-Id")
	}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && n > 0 && n <= 86400 {
		p.RetryAfter = time.Duration(n) * time.Second
	}
	p.NothingDone = res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("X-Gantry-Nothing-Done") == "1"
	return p
}

// jobProblem reads the sentence of an error about jobs, {"error": …}; empty: the body is none.
func jobProblem(body []byte) string {
	var in v2.JobProblem
	if json.Unmarshal(body, &in) != nil {
		return ""
	}
	return in.Error
}

// Unreachable is a call that got no answer.
type Unreachable struct {
	Address string
	Err     error
}

// Error says in plain words what is wrong with the connection.
func (u *Unreachable) Error() string {
	return fmt.Sprintf("cannot reach %s: %s", u.Address, plain(u.Err))
}

// Unwrap returns the cause.
func (u *Unreachable) Unwrap() error { return u.Err }

func plain(err error) string {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE):
		return "the connection was lost"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to it"
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host name"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	}
	// The outer layers repeat method and address.
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// Temporary reports whether err may pass by itself: the API was not reached, or said that it is not available now.
func Temporary(err error) bool {
	var gone *Unreachable
	var problem *Problem
	return errors.As(err, &gone) || errors.As(err, &problem) && problem.Temporary()
}

// IsNotFound reports whether err is the API saying that the thing is not there.
func IsNotFound(err error) bool {
	var problem *Problem
	return errors.As(err, &problem) && problem.Status == http.StatusNotFound
}
