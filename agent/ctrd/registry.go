package ctrd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	resolveTimeout = 2 * time.Minute
	maxRedirects   = 5
)

var (
	errRefusedAddress = errors.New("address is not allowed")
	errStalled        = errors.New("no byte received for too long")
	errInsecure       = errors.New("redirect to plain http")
	errElsewhere      = errors.New("redirect of a login to another server")
	errCredential     = errors.New("credential refused")
	errResolve        = errors.New("resolve")
)

// source is a remotes.Resolver that reaches registries through a guarded transport and counts
// what it downloads for one pull.
type source struct {
	remotes.Resolver
	pull      *pull
	slots     chan struct{}
	stall     time.Duration
	transport *http.Transport
}

func newSource(p *pull, slots chan struct{}, stall time.Duration) *source {
	g := &source{pull: p, slots: slots, stall: stall, transport: newTransport(false)}
	g.Resolver = docker.NewResolver(docker.ResolverOptions{Hosts: g.hosts})
	return g
}

// hosts says how to reach the registry of a reference: plain HTTP only on loopback.
func (g *source) hosts(name string) ([]docker.RegistryHost, error) {
	local, err := docker.MatchLocalhost(name)
	if err != nil {
		return nil, err
	}
	h := docker.RegistryHost{
		Host: name, Scheme: "https", Path: "/v2",
		Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
	}
	if h.Host, err = docker.DefaultHost(name); err != nil {
		return nil, err
	}
	if local {
		h.Scheme = "http"
		g.transport = newTransport(true)
	}
	transport := bounded{g.transport}
	h.Client = &http.Client{Transport: homeOnly{transport, h.Scheme, h.Host}, CheckRedirect: redirects(local)}
	login := &http.Client{Transport: transport, CheckRedirect: redirects(local)}
	opts := []docker.AuthorizerOpt{docker.WithAuthClient(login)}
	if auth := g.pull.auth; auth != nil {
		login.Transport, login.CheckRedirect = secure{transport, local}, stay
		opts = append(opts, docker.WithAuthCreds(func(host string) (string, string, error) {
			if host != h.Host {
				return "", "", nil
			}
			return auth.Username, auth.Password.Reveal(), nil
		}))
	}
	h.Authorizer = docker.NewDockerAuthorizer(opts...)
	return []docker.RegistryHost{h}, nil
}

// homeOnly keeps what authorizes requests to a registry from every other server: a redirect may lead
// to one on the same machine or below the same name, to which the standard client would send it.
type homeOnly struct {
	next         http.RoundTripper
	scheme, host string
}

func (h homeOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header.Get("Authorization") != "" && (req.URL.Scheme != h.scheme || req.URL.Host != h.host) {
		req = req.Clone(req.Context())
		req.Header.Del("Authorization")
	}
	return h.next.RoundTrip(req)
}

// secure carries logins: over TLS alone, but for a registry on loopback and a login server there.
type secure struct {
	next  http.RoundTripper
	local bool
}

func (s secure) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" {
		onLoopback, err := docker.MatchLocalhost(req.URL.Host)
		if err != nil || !s.local || !onLoopback {
			return nil, errInsecure
		}
	}
	return s.next.RoundTrip(req)
}

// stay follows redirects of a login within its server.
func stay(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return errors.New("too many redirects")
	}
	if first := via[0].URL; req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
		return errElsewhere
	}
	return nil
}

func (g *source) close() { g.transport.CloseIdleConnections() }

// redirects follows a few, and never from HTTPS to plain HTTP.
func redirects(local bool) func(*http.Request, []*http.Request) error {
	return func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return errors.New("too many redirects")
		}
		if !local && req.URL.Scheme != "https" {
			return errInsecure
		}
		return nil
	}
}

// newTransport makes one that reaches no address of this host or of its cloud's metadata service,
// whatever name or redirect leads there. A loopback registry may be reached on loopback. It uses no
// proxy, which would hide the address.
func newTransport(loopback bool) *http.Transport {
	d := net.Dialer{
		Timeout: 30 * time.Second, KeepAlive: 30 * time.Second,
		Control: func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil || refused(ap.Addr(), loopback) {
				return fmt.Errorf("dial registry: %w", errRefusedAddress)
			}
			return nil
		},
	}
	return &http.Transport{
		DialContext: d.DialContext, TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout: 30 * time.Second, MaxIdleConns: 10, ExpectContinueTimeout: 5 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// isMetadata names addresses at which clouds serve a machine's credentials, beside link-local ones.
func isMetadata(a netip.Addr) bool {
	switch a.String() {
	case "fd00:ec2::254", "100.100.100.200", "168.63.129.16":
		return true
	}
	return false
}

func refused(a netip.Addr, loopback bool) bool {
	a = a.WithZone("").Unmap()
	if netip.MustParsePrefix("64:ff9b::/96").Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	if a.IsLoopback() {
		return !loopback
	}
	return a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() || isMetadata(a) || a.Is4() && a.As4()[0] == 0
}

// bounded cuts every body that is not a layer: manifests and tokens are small.
type bounded struct{ next http.RoundTripper }

type downloadKey struct{}

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if err == nil && req.Context().Value(downloadKey{}) == nil {
		resp.Body = &limitedBody{Reader: io.LimitReader(resp.Body, maxMetadata), Closer: resp.Body}
	}
	return resp, err
}

type limitedBody struct {
	io.Reader
	io.Closer
}

func (g *source) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	name, desc, err := g.Resolver.Resolve(ctx, ref)
	if err != nil {
		err = fmt.Errorf("%w: %w", errResolve, err)
	}
	return name, desc, err
}

func (g *source) Fetcher(ctx context.Context, ref string) (remotes.Fetcher, error) {
	f, err := g.Resolver.Fetcher(ctx, ref)
	if err != nil {
		return nil, err
	}
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		return g.fetch(ctx, f, desc)
	}), nil
}

func (g *source) Pusher(context.Context, string) (remotes.Pusher, error) {
	return nil, errdefs.ErrNotImplemented
}

// fetch opens one download. Alternative addresses that a manifest names are ignored: the fetcher
// would reach them past the guarded transport.
func (g *source) fetch(ctx context.Context, f remotes.Fetcher, desc ocispec.Descriptor) (io.ReadCloser, error) {
	desc.URLs = nil
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, downloadKey{}, true))
	body, err := f.Fetch(ctx, desc)
	if err != nil {
		cancel(nil)
		<-g.slots
		return nil, err
	}
	d := &download{
		body: body, ctx: ctx, item: g.pull.item(desc), pull: g.pull, stall: g.stall,
		timer: time.AfterFunc(g.stall, func() { cancel(errStalled) }),
	}
	d.timer.Stop()
	d.free = func() { cancel(nil); <-g.slots }
	return d, nil
}

// download counts bytes and gives up when none come. One goroutine uses it at a time.
type download struct {
	body  io.ReadCloser
	ctx   context.Context
	item  *item
	pull  *pull
	stall time.Duration
	timer *time.Timer // ends ctx; runs while a read waits for the registry
	free  func()
}

func (d *download) Read(b []byte) (int, error) {
	d.timer.Reset(d.stall)
	n, err := d.body.Read(b)
	d.timer.Stop()
	d.pull.add(d.item, int64(n))
	if err != nil && errors.Is(context.Cause(d.ctx), errStalled) {
		err = errStalled
	}
	return n, err
}

// Seek lets a download go on where an earlier one stopped.
func (d *download) Seek(offset int64, whence int) (int64, error) {
	s, ok := d.body.(io.Seeker)
	if !ok {
		return 0, errdefs.ErrNotImplemented
	}
	at, err := s.Seek(offset, whence)
	if err == nil {
		d.pull.set(d.item, at)
	}
	return at, err
}

func (d *download) Close() error {
	d.timer.Stop()
	err := d.body.Close()
	if d.free != nil {
		d.free()
		d.free = nil
	}
	return err
}
