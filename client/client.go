package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"gantry/fleet"
)

const (
	callTimeout = 60 * time.Second
	dialTimeout = 10 * time.Second
	maxAnswer   = 64 << 20 // bytes of one answer
)

// The header of a create that must happen at most once, and the one that tells that it had happened before.
const (
	headerOnce     = "Idempotency-Key"
	headerReplayed = "Idempotent-Replayed"
)

// Client calls an API with one key, at one of its addresses. It is safe for concurrent use.
type Client struct {
	bases *addresses
	key   fleet.Secret
	agent string
	http  *http.Client
	once  bool   // calls are never repeated
	keyed string // the idempotency key of creates; empty: each has a new one
}

// New returns a client of the API at address, for example "http://127.0.0.1:8080"; a path prefix is kept. Several
// addresses of one cluster are joined by commas: calls go to the one that answered last, and to the next when it is
// away. An empty key sends no credential, and one that no header can bear is refused. agent is sent as User-Agent.
func New(address string, key fleet.Secret, agent string) (*Client, error) {
	bases, err := parseAddresses(address)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(key.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("the API key has characters that keys cannot have, such as a line break")
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: bases.dialTimeout(), KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   bases.dialTimeout(),
		ResponseHeaderTimeout: callTimeout,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   4,
		ForceAttemptHTTP2:     true,
	}
	return &Client{
		bases: bases, key: key, agent: agent,
		// A key must not follow a redirect to where its owner did not send it.
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
	}, nil
}

// Address returns the API address that calls go to at present.
func (c *Client) Address() string { return c.bases.current().String() }

// Close drops idle connections; the client stays usable.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Once returns a client over the same connections that repeats no call by itself, for callers with a loop of their own.
func (c *Client) Once() *Client {
	out := *c
	out.once = true
	return &out
}

// Keyed returns a client over the same connections whose creates are done once under an idempotency key; under a new one
// each, where the key is empty.
func (c *Client) Keyed(key string) *Client {
	out := *c
	out.keyed = key
	return &out
}

// Answer is a decoded answer and the very bytes that the API sent; Raw is empty when there was no body.
type Answer[T any] struct {
	Value    T
	Raw      json.RawMessage
	Replayed bool // what a create asks for had been made before, by a request with the same idempotency key
}

// request makes a request for path, whose words are escaped already; body is sent as JSON unless it is nil.
func (c *Client) request(ctx context.Context, method, path string, query url.Values, body any) (*http.Request, error) {
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		reader = bytes.NewReader(text)
	}
	address := c.Address() + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, address, reader)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key.Reveal())
	}
	req.Header.Set("User-Agent", c.agent)
	return req, nil
}

// send returns the response of a successful call, whose body the caller closes. With several addresses it tries each
// once, as far as that is safe.
func (c *Client) send(req *http.Request) (*http.Response, error) {
	return c.failover(req, func(req *http.Request) (*http.Response, error) {
		res, err := c.http.Do(req)
		if err != nil {
			if ctx := req.Context(); ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, &Unreachable{Address: addressOf(req.URL), Err: err}
		}
		if res.StatusCode < 200 || res.StatusCode > 299 {
			defer drain(res)
			return nil, readProblem(res)
		}
		return res, nil
	})
}

func drain(res *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	_ = res.Body.Close()
}

// ask is one call.
type ask struct {
	method, path string
	query        url.Values
	body         any
	key          string // sent as Idempotency-Key, unless it is empty
}

// call makes one call and decodes its answer. A GET is repeated while the API is away for a moment.
func call[T any](ctx context.Context, c *Client, method, path string, query url.Values, body any) (Answer[T], error) {
	return exchange[T](ctx, c, ask{method: method, path: path, query: query, body: body})
}

// create makes a call that the API carries out once for each key, however often it arrives.
func create[T any](ctx context.Context, c *Client, path string, body any) (Answer[T], error) {
	return exchange[T](ctx, c, ask{method: http.MethodPost, path: path, body: body, key: c.onceKey()})
}

// onceKey is the idempotency key of a create.
func (c *Client) onceKey() string { return cmp.Or(c.keyed, rand.Text()) }

func exchange[T any](ctx context.Context, c *Client, a ask) (Answer[T], error) {
	var out Answer[T]
	err := c.repeat(ctx, a.method == http.MethodGet || a.key != "", func() error {
		var err error
		out, err = exchangeOnce[T](ctx, c, a)
		return err
	})
	return out, err
}

func exchangeOnce[T any](ctx context.Context, c *Client, a ask) (Answer[T], error) {
	var out Answer[T]
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout,
		&Unreachable{Address: c.Address(), Err: fmt.Errorf("no answer within %v", callTimeout)})
	defer cancel()
	req, err := c.request(ctx, a.method, a.path, a.query, a.body)
	if err != nil {
		return out, err
	}
	req.Header.Set("Accept", "application/json")
	if a.key != "" {
		req.Header.Set(headerOnce, a.key)
	}
	res, err := c.send(req)
	if err != nil {
		return out, err
	}
	defer drain(res)
	out.Replayed = res.Header.Get(headerReplayed) == "true"
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return out, context.Cause(ctx)
	case err != nil:
		return out, &Unreachable{Address: c.Address(), Err: fmt.Errorf("read the answer: %w", err)}
	case len(raw) > maxAnswer:
		return out, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	case len(bytes.TrimSpace(raw)) == 0:
		return out, nil
	}
	out.Raw = raw
	if err := json.Unmarshal(raw, &out.Value); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return out, &Foreign{Address: c.Address(), What: "something else than JSON"}
		}
		return out, fmt.Errorf("read the answer of %s: not what this API sends: %w", c.Address(), err)
	}
	return out, nil
}

// word escapes one path segment.
func word(s string) string { return url.PathEscape(s) }
