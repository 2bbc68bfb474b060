package models

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/internal/outbound"
)

const (
	askTimeout   = time.Minute // for the hub's answer about a revision
	maxRedirects = 5
)

var (
	errDenied   = errors.New("the hub refused access")
	errNotThere = errors.New("the hub has no such model or revision")
	errInsecure = errors.New("redirect to plain http")
	errStatus   = errors.New("the hub answered unexpectedly")
	errAway     = errors.New("the hub does not answer")
)

// hub speaks to a hub on behalf of who has a token; empty: of everybody.
type hub struct {
	address string
	client  *http.Client
}

// newHub makes one. Connections to the hub itself go where the operator's setting says; a redirect leads to it or, over TLS, to
// addresses that the host's guard opens.
func (c *Cache) newHub(address string, token fleet.Secret) (*hub, error) {
	if err := fleet.CheckModelHub(address); err != nil {
		return nil, unusable("address of the hub: %v", err)
	}
	at, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	return &hub{address: address, client: &http.Client{
		Transport: door{at: at, token: token, own: c.own, others: c.others},
		CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return errors.New("too many redirects")
			}
			return nil
		},
	}}, nil
}

// newTransports makes those for the hub itself and for where it redirects to.
func newTransports(guard outbound.Guard) (own, others *http.Transport) {
	others = guard.Transport(false)
	own = others.Clone()
	own.DialContext = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	own.DisableCompression, others.DisableCompression = true, true
	return own, others
}

// door shows the token to the hub alone, not to what it redirects to.
type door struct {
	at          *url.URL
	token       fleet.Secret
	own, others http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (d door) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == d.at.Scheme && req.URL.Host == d.at.Host {
		if d.token != "" {
			req = req.Clone(req.Context())
			req.Header.Set("Authorization", "Bearer "+d.token.Reveal())
		}
		return d.own.RoundTrip(req)
	}
	if req.URL.Scheme != "https" {
		return nil, errInsecure
	}
	return d.others.RoundTrip(req)
}

// get asks the hub for a path. The caller closes the body.
func (h *hub) get(ctx context.Context, method, path string, header http.Header, client *http.Client) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, h.address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header = header
	req.Header.Set("User-Agent", "gantry")
	res, err := client.Do(req)
	if err != nil {
		return nil, transportFault(err)
	}
	return res, nil
}

// transportFault drops the address, which may be a signed one.
func transportFault(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(err, outbound.ErrRefused) || errors.Is(err, errInsecure) {
		return err
	}
	return fmt.Errorf("%w: %w", errAway, err)
}

// statusFault is the error of an answer's status; nil: it is a success.
func statusFault(status int) error {
	switch {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return errDenied
	case status == http.StatusNotFound:
		return errNotThere
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status >= 500:
		return fmt.Errorf("%w: status %d", errAway, status)
	}
	return fmt.Errorf("%w: status %d", errStatus, status)
}

// ask returns what a revision consists of.
func (h *hub) ask(ctx context.Context, ref fleet.ModelRef) (*manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := h.get(ctx, http.MethodGet, "/api/models/"+ref.Repo+"/revision/"+url.PathEscape(ref.Revision)+"?blobs=true", http.Header{}, h.client)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if err := statusFault(res.StatusCode); err != nil {
		return nil, err
	}
	m, err := readManifest(res.Body)
	if err != nil && !errors.Is(err, errAnswer) {
		err = transportFault(err)
	}
	return m, err
}

// opens returns nil when the hub gives out a file of a revision. It reads nothing, and follows redirects only to the hub itself, as of a
// model with a new name: what gives out the file elsewhere does not ask who wants it.
func (h *hub) opens(ctx context.Context, repo, commit string, f file) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	still := *h.client
	still.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if first := via[0].URL; req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
			return http.ErrUseLastResponse
		}
		return h.client.CheckRedirect(req, via)
	}
	res, err := h.get(ctx, http.MethodHead, resolvePath(repo, commit, f), http.Header{}, &still)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		return nil
	}
	return statusFault(res.StatusCode)
}

func resolvePath(repo, commit string, f file) string {
	parts := strings.Split(f.name, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "/" + repo + "/resolve/" + commit + "/" + strings.Join(parts, "/")
}

// open begins to read a file from an offset on. at is where what is read begins: 0 when the hub gives out the whole alone.
func (h *hub) open(ctx context.Context, repo, commit string, f file, from int64) (body io.ReadCloser, at int64, err error) {
	header := http.Header{"Accept-Encoding": {"identity"}}
	if from > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(from, 10)+"-")
	}
	res, err := h.get(ctx, http.MethodGet, resolvePath(repo, commit, f), header, h.client)
	if err != nil {
		return nil, 0, err
	}
	if err = statusFault(res.StatusCode); err == nil && res.Header.Get("Content-Encoding") != "" {
		err = unusable("a file comes encoded")
	}
	partial := res.StatusCode == http.StatusPartialContent
	if err == nil && partial && !strings.HasPrefix(res.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(from, 10)+"-") {
		err = unusable("a part of a file is not the one that was asked for")
	}
	if err != nil {
		_ = res.Body.Close()
		return nil, 0, err
	}
	if partial {
		at = from
	}
	return res.Body, at, nil
}
